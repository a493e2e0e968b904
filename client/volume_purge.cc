// SPDX-License-Identifier: Apache-2.0
//
// Making what a volume held unreadable, on every node that has a replica of it, or may have had
// one.
#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "client/hydra.h"
#include "client/protocol.pb.h"
#include "client/runtime.h"
#include "client/transfer.h"
#include "client/volume_state.h"

namespace hydra {
namespace {

using std::chrono::milliseconds;
using SteadyClock = std::chrono::steady_clock;

constexpr milliseconds kAskEvery(250);
constexpr milliseconds kNodePatience(1'000);
// Replicas that move meanwhile let it begin anew; not for ever.
constexpr unsigned kMaxBeginnings = 16;

// On the runtime's thread; keeps itself until it is done.
//
// An entry is chosen in every group first: what each replica has applied up to there includes
// everything that was discarded before. Then the nodes are asked in turn until all have done it.
// One that has accepted entries of a former master may not be able to begin before it has been told
// otherwise, which more entries do.
//
// A node without a replica may have had one that moved: it is asked as well. And whoever gets one
// after it was asked may be sent old entries by a node that is not done: if the replicas are not
// where they were when it began, it begins anew.
class Purger : public std::enable_shared_from_this<Purger> {
 public:
  Purger(std::shared_ptr<VolumeState> state, std::string key, std::function<void(double)> progress,
         milliseconds patience, internal::Callback<Status> done)
      : state_(std::move(state)),
        progress_(std::move(progress)),
        patience_(patience),
        done_(std::move(done)),
        key_(std::move(key)) {}

  void Start() {
    Layout layout = LayoutNow();
    if (layout.size() != state_->groups.size()) return done_(Deleted());
    ++beginnings_;
    moved_at_ = SteadyClock::now();
    marked_ = false;
    nodes_.clear();
    request_.Clear();
    uint64_t changes = 0;
    const auto view = state_->runtime->router.catalogue();
    for (const GroupId group : state_->groups) {
      request_.mutable_purge()->add_groups()->set_group(group);
      for (const NodeId node : view->groups.at(group).replicas) nodes_[node];
      changes += layout[group];
    }
    for (const auto& [id, node] : view->nodes) {
      // One that joins may have had replicas, and lost them again; not while it has no store.
      const bool joins = node.state != "active" && node.state != "draining";
      if (!joins || node.has_store) nodes_[id];
    }
    // Whoever asks with the same key joins what was begun with replicas where they are now.
    request_.mutable_purge()->set_key(fmt::format("{}/{}", key_, changes));
    layout_ = std::move(layout);
    Mark();
  }

 private:
  // How often the replicas of each of the volume's groups were changed.
  using Layout = std::map<GroupId, uint64_t>;

  static Status Deleted() { return Status::NotFound("the volume was deleted"); }

  Layout LayoutNow() const {
    Layout layout;
    const auto view = state_->runtime->router.catalogue();
    for (const GroupId group : state_->groups) {
      const auto found = view->groups.find(group);
      if (found != view->groups.end()) layout[group] = found->second.changes;
    }
    return layout;
  }

  // All have done it.
  void Finish() {
    state_->runtime->router.Refresh(
        state_->runtime->options.timeout, [self = shared_from_this()](const Status& refreshed) {
          if (!refreshed.ok()) return self->done_(refreshed);
          if (self->LayoutNow() == self->layout_) return self->done_(Status::Ok());
          if (self->beginnings_ < kMaxBeginnings) return self->Start();
          self->done_(Status::Unavailable(
              "replicas of the volume move all the time: try again when no change of nodes or "
              "replicas is under way (hydractl status)"));
        });
  }

  struct Node {
    bool done = false;
    double part = 0;
    std::string waits;  // why it has not begun, or cannot be asked
  };

  void Mark() {
    missing_ = state_->groups.size();
    for (uint32_t shard = 0; shard < state_->groups.size(); ++shard) {
      GroupRequest request;
      request.kind = GroupRequest::Kind::kFence;
      Address(*state_, shard, nullptr, &request);
      request.epoch = state_->epoch;
      state_->runtime->router.Submit(
          std::move(request), [self = shared_from_this(), shard](const GroupReply& reply) {
            if (!reply.status.ok()) self->failed_ = reply.status;
            // A lower one will do once it was known: nothing is written meanwhile.
            auto* point = self->request_.mutable_purge()->mutable_groups(static_cast<int>(shard));
            if (point->instance() == 0) point->set_instance(reply.commit);
            if (--self->missing_ == 0) self->Marked();
          });
    }
  }

  void Marked() {
    if (!failed_.ok() && !marked_) return done_(failed_);
    failed_ = Status::Ok();
    marked_ = true;
    Ask();
  }

  void Ask() {
    missing_ = 0;
    for (const auto& [id, node] : nodes_) missing_ += node.done ? 0 : 1;
    if (missing_ == 0) return Finish();
    const milliseconds patience = std::min(kNodePatience, state_->runtime->options.timeout);
    for (const auto& [id, node] : nodes_) {
      if (node.done) continue;
      state_->runtime->router.CallNode(id, request_, patience,
                                       [self = shared_from_this(), id = id](
                                           const Status& status, const rpc::Reply& reply, bool) {
                                         self->Answered(&self->nodes_[id], status, reply);
                                         if (--self->missing_ == 0) self->Asked();
                                       });
    }
  }

  void Answered(Node* node, const Status& status, const rpc::Reply& reply) {
    node->waits.clear();
    if (!status.ok()) {
      node->waits = std::string(status.message());
      const bool later = status.code() == Code::kBusy || status.code() == Code::kUnavailable ||
                         status.code() == Code::kAborted;
      if (!later) failed_ = status;
      return;
    }
    const rpc::PurgeStatus& purge = reply.purge();
    const double part = purge.done() ? 1
                        : purge.all() == 0
                            ? 0
                            : 1 - static_cast<double>(std::min(purge.left(), purge.all())) /
                                      static_cast<double>(purge.all() + 1);
    if (part != node->part || purge.done()) moved_at_ = SteadyClock::now();
    node->part = part;
    node->done = purge.done();
  }

  void Asked() {
    if (!failed_.ok()) return done_(failed_);
    double sum = 0;
    bool waits = false;
    bool all = true;
    std::string why;
    for (const auto& [id, node] : nodes_) {
      sum += node.part;
      all = all && node.done;
      waits = waits || !node.waits.empty();
      if (!node.done)
        why += fmt::format("{}node {}: {}", why.empty() ? "" : "; ", id,
                           node.waits.empty() ? "under way" : node.waits);
    }
    if (progress_) progress_(sum / static_cast<double>(nodes_.size()));
    if (all) return Finish();
    if (SteadyClock::now() - moved_at_ > patience_) {
      return done_(Status::Unavailable("not all nodes could make old data unreadable: " + why));
    }
    state_->runtime->router.After(kAskEvery, [self = shared_from_this(), waits] {
      if (self->state_->runtime->closed) {
        return self->done_(Status::Aborted("the client was closed"));
      }
      // Every few seconds: those that wait may lack an entry.
      const bool mark = waits && ++self->rounds_ % 8 == 0;
      mark ? self->Mark() : self->Ask();
    });
  }

  const std::shared_ptr<VolumeState> state_;
  const std::function<void(double)> progress_;
  const milliseconds patience_;
  const internal::Callback<Status> done_;
  const std::string key_;
  rpc::Request request_;
  Layout layout_;
  unsigned beginnings_ = 0;
  std::map<NodeId, Node> nodes_;
  SteadyClock::time_point moved_at_{};
  size_t missing_ = 0;
  unsigned rounds_ = 0;
  bool marked_ = false;
  Status failed_;
};

}  // namespace

void Volume::StartPurge(const std::string& key, std::function<void(double)> progress,
                        milliseconds patience, internal::Callback<Status> done) const {
  const auto state = impl_->state;
  state->runtime->Post([=, progress = std::move(progress), done = std::move(done)]() mutable {
    state->runtime->router.Refresh(
        state->runtime->options.timeout, [=](const Status& refreshed) mutable {
          if (!refreshed.ok()) return done(refreshed);
          if (Status updated = state->Update(); !updated.ok()) return done(updated);
          const std::string name = fmt::format("{}/{}", state->id, key);
          std::make_shared<Purger>(state, name, progress, patience, done)->Start();
        });
  });
}

Status Volume::Purge(const std::string& key, std::function<void(double)> progress,
                     milliseconds patience) {
  return impl_->cluster->Await<Status>(
      [&](auto done) { StartPurge(key, progress, patience, std::move(done)); });
}

}  // namespace hydra
