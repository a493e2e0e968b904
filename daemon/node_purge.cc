// SPDX-License-Identifier: Apache-2.0
//
// Sanitizing: a purge of this node's store (docs/architecture.md, "Sanitizing").
#include <fmt/format.h>

#include "daemon/node_impl.h"

namespace hydra {
namespace {

// Remembered keys: those of sanitizings that are under way, and a few that were.
constexpr size_t kMaxPurges = 256;
constexpr size_t kMaxKeyBytes = 256;

}  // namespace

// What these groups had must be dead here, and nothing of it may be on its way to the disk.
Status Node::Impl::BeginPurge(const rpc::Purge& request) {
  std::vector<GroupId> groups;
  for (const rpc::Purge::Point& point : request.groups()) {
    const Shard* shard = core_->shard(point.group());
    if (shard == nullptr) continue;
    if (!shard->serves_local() || shard->replica().applied() < point.instance()) {
      return Status::Busy(
          fmt::format("node {} has not applied all of group {}", options_.node, point.group()));
    }
    groups.push_back(shard->store_group());
  }
  HYDRA_ASSIGN_OR_RETURN(const uint64_t purge, engine_->Purge(groups));
  // The one that was asked for first is the first to be done with.
  if (purges_.size() >= kMaxPurges) {
    auto oldest = purges_.begin();
    for (auto it = purges_.begin(); it != purges_.end(); ++it) {
      if (it->second < oldest->second) oldest = it;
    }
    purges_.erase(oldest);
  }
  purges_[request.key()] = purge;
  return Status::Ok();
}

void Node::Impl::Purge(const Server::ClientPtr& client, const Frame& frame,
                       const rpc::Purge& request) {
  if (request.key().empty() || request.key().size() > kMaxKeyBytes) {
    return Answer(client, frame, rpc::Reply::INVALID, "a purge needs a key of 1 to 256 bytes");
  }
  if (!purges_.contains(request.key())) {
    const Status begun = BeginPurge(request);
    if (begun.code() == Code::kBusy) {
      return Answer(client, frame, rpc::Reply::BUSY, std::string(begun.message()));
    }
    if (!begun.ok()) return AnswerStatus(client, frame, begun);
    Wake();
  }
  const Result<PurgeInfo> info = engine_->PurgeProgress(purges_.at(request.key()));
  const Status failed = info.ok() ? info->failed : info.status();
  if (!failed.ok()) {
    purges_.erase(request.key());  // the next one who asks begins anew
    return AnswerStatus(client, frame, failed);
  }
  rpc::Reply reply;
  reply.mutable_purge()->set_done(info->done);
  reply.mutable_purge()->set_all(info->all);
  reply.mutable_purge()->set_left(info->left);
  server_->Reply(client, frame, reply);
}

}  // namespace hydra
