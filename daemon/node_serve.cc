// SPDX-License-Identifier: Apache-2.0
//
// What clients ask of a node.
#include <algorithm>

#include <fmt/format.h>

#include "base/logging.h"
#include "client/io_codec.h"
#include "daemon/membership.h"
#include "daemon/node_impl.h"
#include "daemon/request_wire.h"

namespace hydra {

void Node::Impl::Answer(const Server::ClientPtr& client, const Server::Question& question,
                        rpc::Reply::Answer answer, const std::string& message, NodeId master) {
  rpc::Reply reply;
  reply.set_answer(answer);
  reply.set_message(message);
  reply.set_master(master);
  server_->Reply(client, question, reply);
}

void Node::Impl::AnswerStatus(const Server::ClientPtr& client, const Frame& frame,
                              const Status& status) {
  rpc::Reply reply;
  if (!status.ok()) {
    reply.set_answer(rpc::Reply::FAILED);
    reply.set_code(static_cast<uint32_t>(status.code()));
    reply.set_message(std::string(status.message()));
  }
  server_->Reply(client, frame, reply);
}

void Node::Impl::Accept(const std::shared_ptr<Connection>& connection) {
  if (!server_ || stopping_) return connection->Close();
  server_->Accept(connection);
}

void Node::Impl::OnRequest(const Server::ClientPtr& client, const Frame& frame) {
  requests_->Add();
  last_asked_ = clock_.Now();
  if (!stopping_ && DecodeIo(frame.header, &io_)) return Serve(client, frame, io_);
  OnOtherRequest(client, frame);
}

void Node::Impl::OnOtherRequest(const Server::ClientPtr& client, const Frame& frame) {
  rpc::Request request;
  if (!request.ParseFromString(frame.header)) {
    return Answer(client, frame, rpc::Reply::INVALID, "the request makes no sense");
  }
  if (stopping_) return Answer(client, frame, rpc::Reply::NOT_MASTER, "the node stops");
  switch (request.body_case()) {
    case rpc::Request::kIo: return Serve(client, frame, request.io());
    case rpc::Request::kOpenSession: {
      const GroupId group = request.open_session().group();
      return Ask(client, frame, group, ToShardRequest(request.open_session()), "open session");
    }
    case rpc::Request::kKeepAlive: {
      const GroupId group = request.keep_alive().group();
      return Ask(client, frame, group, ToShardRequest(request.keep_alive()), "keep alive");
    }
    case rpc::Request::kCloseSession: {
      const GroupId group = request.close_session().group();
      return Ask(client, frame, group, ToShardRequest(request.close_session()), "close session");
    }
    case rpc::Request::kFence: return FenceOff(client, frame, request.fence());
    case rpc::Request::kGetCatalogue: return GetCatalogue(client, frame, request.get_catalogue());
    case rpc::Request::kCreateVolume:
      return Change(client, frame, [r = request.create_volume()](rpc::Catalogue* catalogue) {
        return AddVolume(r, catalogue);
      });
    case rpc::Request::kResizeVolume:
      return Change(client, frame, [r = request.resize_volume()](rpc::Catalogue* catalogue) {
        return ResizeVolume(r, catalogue);
      });
    case rpc::Request::kDeleteVolume:
      return Change(client, frame, [r = request.delete_volume()](rpc::Catalogue* catalogue) {
        return DeleteVolume(r, catalogue);
      });
    case rpc::Request::kChangeAccess:
      return Change(client, frame, [r = request.change_access()](rpc::Catalogue* catalogue) {
        return ChangeAccess(r, catalogue);
      });
    case rpc::Request::kChangeTarget:
      return Change(client, frame, [r = request.change_target()](rpc::Catalogue* catalogue) {
        return ChangeTarget(r, catalogue);
      });
    case rpc::Request::kGetStatus: {
      rpc::Reply reply;
      FillStatus(request.get_status().groups(), reply.mutable_status());
      return server_->Reply(client, frame, reply);
    }
    case rpc::Request::kPurge: return Purge(client, frame, request.purge());
    case rpc::Request::kMoveMaster: return MoveMaster(client, frame, request.move_master());
    case rpc::Request::kScrub: return Scrub(client, frame, request.scrub());
    case rpc::Request::kChangeNodes: return ChangeMembers(client, frame, request.change_nodes());
    case rpc::Request::kForceSurvivor:
      return ForceSurvivor(client, frame, request.force_survivor());
    case rpc::Request::BODY_NOT_SET: break;
  }
  Answer(client, frame, rpc::Reply::INVALID, "a request of a newer version: upgrade this node");
}

// A linearizable read of group 0 comes first, so that whoever asks sees every change that was
// answered before, whichever node it asks. If that cannot be had, an older catalogue is better than
// none: it says where to ask.
void Node::Impl::GetCatalogue(const Server::ClientPtr& client, const Frame& frame,
                              const rpc::GetCatalogue& request) {
  if (core_->shard(kSystemGroup) == nullptr) return TellCatalogue(client, frame, request, false);
  ShardRequest read;
  read.id = next_request_++;
  read.kind = ShardRequest::Kind::kRead;
  read.count = 1;
  const Nanos now = clock_.Now();
  Asked asked{client, frame, kSystemGroup, now, "catalogue", false};
  asked.catalogue = std::make_unique<const rpc::GetCatalogue>(request);
  asked_.emplace(read.id, std::move(asked));
  core_->Submit(kSystemGroup, std::move(read), now);
  Wake();
}

void Node::Impl::TellCatalogue(const Server::ClientPtr& client, const Server::Question& question,
                               const rpc::GetCatalogue& request, bool read) {
  keeper_->Look(clock_.Now());
  if (request.current() && !(read && keeper_->current())) {
    return Answer(client, question, rpc::Reply::BUSY, "the catalogue here may be old");
  }
  if (!keeper_->known()) {
    return Answer(client, question, rpc::Reply::BUSY, "the catalogue is not known yet");
  }
  rpc::Reply reply;
  if (keeper_->catalogue().version() > request.newer_than()) {
    const rpc::Catalogue& catalogue = keeper_->catalogue();
    if (catalogue.version() != told_version_) {
      told_version_ = catalogue.version();
      told_catalogue_ = WithoutSecrets(catalogue).SerializeAsString();
    }
    reply.set_catalogue(told_catalogue_);
  }
  server_->Reply(client, question, reply);
}

void Node::Impl::Serve(const Server::ClientPtr& client, const Frame& frame, const rpc::Io& io) {
  const auto served = served_.find(io.group());
  if (served == served_.end()) {
    return Answer(client, frame, rpc::Reply::NO_GROUP,
                  fmt::format("node {} has no replica of group {}", options_.node, io.group()));
  }
  Result<ShardRequest> request = ToShardRequest(io, frame, served->second.block_pages);
  if (!request.ok()) {
    return Answer(client, frame, rpc::Reply::INVALID, std::string(request.status().message()));
  }
  const uint64_t extent = kExtentPages / served->second.block_pages;
  uint64_t last = io.lba() + io.count();
  if (io.extents_size() > 0) last = io.extents(io.extents_size() - 1) * extent;
  // What a shrink is unmapping must not be written any more: growing again would show it.
  const bool reaches = io.kind() == rpc::Io::UNMAP || io.kind() == rpc::Io::READ;
  if (last > (reaches ? served->second.blocks : served->second.kept)) {
    rpc::Reply reply;
    reply.set_answer(rpc::Reply::INVALID);
    reply.set_code(static_cast<uint32_t>(Code::kOutOfRange));
    reply.set_message("behind the end of the volume");
    return server_->Reply(client, frame, reply);
  }
  const bool reads = io.kind() == rpc::Io::READ;
  if (reads) {
    Server::Question question(frame);
    if (!io.map_only()) {
      server_->Expect(client, &question, io.count() * served->second.block_pages * kPageSize);
    }
    return Ask(client, question, io.group(), std::move(*request), "read", io.epoch());
  }
  // It was checked twice, by the caller under its epoch and here under this node's.
  const uint64_t own = served->second.epoch;
  request->context.epoch = io.epoch() == 0 ? own : std::min(io.epoch(), own);
  Ask(client, frame, io.group(), std::move(*request), "write", io.epoch());
}

// No further than the catalogue is: an epoch from nowhere would lock everyone out.
void Node::Impl::FenceOff(const Server::ClientPtr& client, const Frame& frame,
                          const rpc::Fence& fence) {
  const auto served = served_.find(fence.group());
  if (served != served_.end() && fence.epoch() > served->second.epoch) {
    return Answer(
        client, frame, rpc::Reply::BUSY,
        fmt::format("node {} does not know of epoch {} yet", options_.node, fence.epoch()));
  }
  Ask(client, frame, fence.group(), ToShardRequest(fence), "fence");
}

void Node::Impl::Ask(const Server::ClientPtr& client, const Server::Question& question,
                     GroupId group, ShardRequest&& request, const char* what, uint64_t epoch) {
  if (core_->shard(group) == nullptr || group == kSystemGroup) {
    return Answer(client, question, rpc::Reply::NO_GROUP,
                  fmt::format("node {} has no replica of group {}", options_.node, group));
  }
  const Nanos now = clock_.Now();
  request.id = next_request_++;
  const bool opens = request.context.kind == RequestKind::kOpenSession;
  Asked asked{client, question, group, now, what, opens};
  asked.by_own_epoch = epoch == 0 || request.context.epoch < epoch;
  asked_.emplace(request.id, std::move(asked));
  core_->Submit(group, std::move(request), now);
  Wake();
}

void Node::Impl::OnReply(ShardReply reply) {
  const auto found = asked_.find(reply.id);
  if (found == asked_.end()) {
    keeper_->OnReply(reply, clock_.Now());
    return;
  }
  const Asked asked = std::move(found->second);
  asked_.erase(found);
  if (asked.catalogue != nullptr) {
    const bool read = reply.answer == ShardAnswer::kDone;
    return TellCatalogue(asked.client, asked.question, *asked.catalogue, read);
  }
  const Nanos now = clock_.Now();
  const Nanos took = now - asked.since;
  if (reply.answer == ShardAnswer::kDone) stages_->Answered(asked.since, reply, now);
  (reply.data ? read_time_ : request_time_)->Observe(static_cast<uint64_t>(took));
  if (!reply.data && reply.answer == ShardAnswer::kDone) {
    ++answers_;
    answer_nanos_ += static_cast<uint64_t>(took);
  }
  if (options_.slow_request != 0 && took >= options_.slow_request) NoteSlow(asked, reply, took);
  rpc::Reply& out = reply_;
  out.Clear();
  std::vector<BufferSlice> payload;
  FillReply(reply, &out, &payload);
  if (reply.answer == ShardAnswer::kFenced && asked.by_own_epoch) {
    out.set_answer(rpc::Reply::BUSY);
    out.set_message("its catalogue is being brought up to date");
  }
  if (asked.opens_session && out.answer() == rpc::Reply::DONE) {
    out.set_session(VersionInstance(reply.outcome.version));
  }
  server_->Reply(asked.client, asked.question, out, std::move(payload));
}

void Node::Impl::NoteSlow(const Asked& asked, const ShardReply& reply, Nanos took) {
  slow_->Add();
  // A write waits for its turn, then for a majority's disks and for what is before it; a read for
  // the right to read, then for the disk.
  const Nanos waited = reply.begun == 0 ? took : reply.begun - asked.since;
  HYDRA_LOG_WARN("slow request: id {} {} group {} answer {} took {} ms: {} until {}, {} {}",
                 asked.question.id, asked.what, asked.group, static_cast<int>(reply.answer),
                 took / kMillisecond, waited / kMillisecond,
                 reply.begun == 0 ? "refused"
                 : reply.data     ? "it could be read"
                                  : "proposed",
                 (took - waited) / kMillisecond,
                 reply.data ? "at the disk" : "until chosen and applied");
}

}  // namespace hydra
