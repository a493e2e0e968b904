// SPDX-License-Identifier: Apache-2.0
#include "daemon/catalogue_keeper.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/crc32c.h"
#include "base/logging.h"

namespace hydra {
namespace {

constexpr size_t kMaxPending = 256;
constexpr Nanos kPatience = 10 * kSecond;
constexpr Nanos kSessionTimeout = 60 * kSecond;
constexpr Nanos kConfirmAgain = 100 * kMillisecond;

}  // namespace

CatalogueKeeper::CatalogueKeeper(NodeCore* core, Engine* engine, Handlers handlers)
    : core_(core), engine_(engine), handlers_(std::move(handlers)) {}

// --- Reading it ---------------------------------------------------------------------------------

Status CatalogueKeeper::Load() {
  HYDRA_ASSIGN_OR_RETURN(ReadResult read, engine_->Read(kSystemGroup, 0, 1));
  HYDRA_ASSIGN_OR_RETURN(const uint32_t count, CatalogueBlocks(read.data.span()));
  if (count > 1) {
    HYDRA_ASSIGN_OR_RETURN(read, engine_->Read(kSystemGroup, 0, count));
  }
  blocks_ = read.data;
  if (count == 0) return Status::Ok();
  HYDRA_ASSIGN_OR_RETURN(rpc::Catalogue catalogue, DecodeCatalogue(read.data.span()));
  const bool newer = !known_ || catalogue.version() > catalogue_.version();
  known_ = true;
  catalogue_ = std::move(catalogue);
  if (newer) handlers_.changed(catalogue_);
  return Status::Ok();
}

void CatalogueKeeper::Look(Nanos now) {
  LoadIfChanged();
  Confirm(now);
  Start(now);
}

uint64_t CatalogueKeeper::Read() {
  ShardRequest request;
  request.kind = ShardRequest::Kind::kRead;
  request.count = 1;
  return handlers_.submit(std::move(request));
}

void CatalogueKeeper::Confirm(Nanos now) {
  if (confirmed_ || confirming_ != 0 || !known_ || now < confirm_at_) return;
  confirming_ = Read();
}

void CatalogueKeeper::OnConfirmed(const ShardReply& reply, Nanos now) {
  confirming_ = 0;
  confirm_at_ = now + kConfirmAgain;
  if (reply.answer != ShardAnswer::kDone) return;
  LoadIfChanged();
  if (!current()) return;
  confirmed_ = true;
  handlers_.changed(catalogue_);
}

void CatalogueKeeper::LoadIfChanged() {
  const Shard* shard = std::as_const(*core_).shard(kSystemGroup);
  if (shard == nullptr) return;
  if (load_again_ || shard->replica().applied() != loaded_at_) {
    if (!shard->serves_local()) return;
    loaded_at_ = shard->replica().applied();
    const Status loaded = Load();
    load_again_ = !loaded.ok();
    if (!loaded.ok()) HYDRA_LOG_WARN("cannot read the catalogue: {}", loaded.ToString());
  }
}

bool CatalogueKeeper::current() const {
  const Shard* shard = core_->shard(kSystemGroup);
  return shard != nullptr && known_ && !load_again_ && shard->replica().applied() == loaded_at_;
}

// --- Changing it --------------------------------------------------------------------------------

void CatalogueKeeper::Submit(Change change, Done done, Nanos now) {
  if (pending_.size() >= kMaxPending) {
    return done(Status::Busy("too many changes of the catalogue wait; try again"));
  }
  pending_.push_back({std::move(change), std::move(done), now + kPatience});
  Start(now);
}

void CatalogueKeeper::Finish(const Status& status) {
  Pending first = std::move(pending_.front());
  pending_.pop_front();
  step_ = Step::kIdle;
  first.done(status);
}

void CatalogueKeeper::Start(Nanos now) {
  while (step_ == Step::kIdle && !pending_.empty()) {
    Shard* shard = core_->shard(kSystemGroup);
    if (now >= pending_.front().deadline) {
      Finish(Status::Unavailable("the change was not chosen in time; look whether it was made"));
      continue;
    }
    if (shard == nullptr || !shard->ready()) {
      Finish(Status::Unavailable("this node is not the master of the catalogue"));
      continue;
    }
    if (load_again_) return;  // what it is changed from has to be read first
    ShardRequest request;
    request.kind = ShardRequest::Kind::kMutate;
    if (session_ == 0) {
      request.context.kind = RequestKind::kOpenSession;
      request.context.timeout = kSessionTimeout;
      request.op.kind = OpKind::kOpaque;
      step_ = Step::kOpening;
      request_ = handlers_.submit(std::move(request));
      return;
    }
    rpc::Catalogue next = catalogue_;
    const Status changed = pending_.front().change(&next);
    if (!changed.ok()) {
      // Who is not the master any more, and has not heard of it, may be wrong.
      refusal_ = changed;
      refused_by_ = catalogue_.version();
      step_ = Step::kRefusing;
      request_ = Read();
      return;
    }
    next.set_version(std::max(next.version(), catalogue_.version() + 1));
    Result<Buffer> encoded = EncodeCatalogue(next);
    if (!encoded.ok()) {
      Finish(encoded.status());
      continue;
    }
    // Both as long as the longer one: what the old one has more must go.
    const size_t bytes = std::max(encoded->size(), blocks_.size());
    Buffer data = Buffer::Allocate(bytes);
    Buffer compare = Buffer::Allocate(bytes);
    std::memcpy(data.data(), encoded->data(), encoded->size());
    std::memcpy(compare.data(), blocks_.data(), blocks_.size());
    request.context.kind = RequestKind::kCompareAndWrite;
    request.context.session = session_;
    request.context.seq = ++seq_;
    request.context.lowest_unanswered = seq_;
    request.op.kind = OpKind::kWrite;
    request.op.count = bytes / kPageSize;
    for (size_t i = 0; i < bytes; i += kPageSize) {
      request.op.crcs.push_back(Crc32c(data.data() + i, kPageSize));
    }
    request.payload.push_back({data, 0, bytes});
    request.compare = {compare, 0, bytes};
    step_ = Step::kWriting;
    request_ = handlers_.submit(std::move(request));
  }
}

bool CatalogueKeeper::OnReply(const ShardReply& reply, Nanos now) {
  if (confirming_ != 0 && reply.id == confirming_) {
    OnConfirmed(reply, now);
    return true;
  }
  if (step_ == Step::kIdle || reply.id != request_) return false;
  const Step step = step_;
  step_ = Step::kIdle;
  load_again_ = true;
  if (step == Step::kRefusing) {
    LoadIfChanged();
    const bool stands =
        reply.answer == ShardAnswer::kDone && current() && catalogue_.version() == refused_by_;
    if (stands) Finish(std::exchange(refusal_, Status::Ok()));
  } else if (reply.answer == ShardAnswer::kDone && step == Step::kOpening) {
    if (reply.outcome.code == Code::kOk) {
      session_ = VersionInstance(reply.outcome.version);
      seq_ = 0;
    }
  } else if (reply.answer == ShardAnswer::kDone && reply.outcome.code == Code::kOk) {
    LoadIfChanged();  // so that `changed` comes before `done`
    Finish(Status::Ok());
  } else if (reply.answer == ShardAnswer::kSessionExpired) {
    session_ = 0;
  } else if (reply.answer == ShardAnswer::kUnknown) {
    session_ = 0;
    Finish(Status::Unavailable(
        "the master of the catalogue changed meanwhile; look whether the change was made"));
  } else if (reply.answer == ShardAnswer::kNotMaster) {
    session_ = 0;
  }
  // Otherwise (busy, or somebody else changed it first): once more, from what is there now.
  Look(now);
  return true;
}

}  // namespace hydra
