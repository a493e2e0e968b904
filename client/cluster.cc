// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "client/hydra.h"
#include "client/protocol.pb.h"
#include "client/router.h"
#include "client/runtime.h"
#include "client/transfer.h"
#include "client/volume_state.h"

namespace hydra {
namespace {

using std::chrono::milliseconds;

VolumeInfo InfoOf(const CatalogueView::Volume& volume) {
  VolumeInfo info;
  info.name = volume.name;
  info.id = volume.id;
  info.bytes = volume.bytes;
  info.block_bytes = volume.block_bytes;
  info.logical_block = volume.logical_block;
  info.groups.assign(volume.shards.begin(), volume.shards.end());
  info.active = volume.active;
  info.replicas = volume.replicas;
  info.epoch = volume.epoch;
  info.target = volume.target;
  return info;
}

ScrubInfo InfoOf(const rpc::ScrubStatus& status) {
  ScrubInfo info;
  info.running = status.running();
  info.complete = status.complete();
  info.rate = status.rate();
  info.bytes = status.bytes();
  info.total = status.total();
  info.found = status.found();
  info.repaired = status.repaired();
  info.elapsed = milliseconds(status.elapsed_ms());
  info.failed = status.failed();
  info.last_completed = status.last_completed();
  info.last_found = status.last_found();
  info.next = status.next();
  info.under_repair = status.under_repair();
  info.rotten_total = status.rotten_total();
  info.repaired_total = status.repaired_total();
  info.given_up_total = status.given_up_total();
  return info;
}

void TakeStatus(const rpc::NodeStatus& status, NodeInfo* info) {
  info->version = status.version();
  info->feature_level = status.feature_level();
  info->cluster_feature_level = status.cluster_feature_level();
  info->uptime = milliseconds(status.uptime_ms());
  info->connected.assign(status.connected().begin(), status.connected().end());
  info->space_bytes = status.space_bytes();
  info->capacity_bytes = status.capacity_bytes();
  info->free_bytes = status.free_bytes();
  info->failed = status.failed();
  info->scrub = InfoOf(status.scrub());
  info->changes = status.changes();
  for (const auto& replica : status.replicas()) {
    ReplicaInfo& to = info->replicas.emplace_back();
    to.group = replica.group();
    to.incarnation = replica.incarnation();
    to.role = replica.role();
    to.ballot_round = replica.ballot_round();
    to.ballot_node = replica.ballot_node();
    to.commit = replica.commit();
    to.applied = replica.applied();
    to.master = replica.master();
    to.ready = replica.ready();
    to.data_blocks = replica.data_blocks();
    to.owed_bytes = replica.owed_bytes();
    to.lag = replica.lag();
    to.change = replica.change();
  }
  for (const auto& session : status.sessions()) {
    info->sessions.push_back({session.initiator(), session.target(), session.address(),
                              session.commands(), session.read_bytes(), session.written_bytes(),
                              session.failed(), session.aborted(), session.damaged(),
                              session.tasks()});
  }
}

}  // namespace

RuntimeThread::RuntimeThread(std::shared_ptr<Runtime> runtime) : runtime_(std::move(runtime)) {
  if (runtime_->own) thread_ = std::thread([runtime = runtime_] { runtime->context.run(); });
}

RuntimeThread::~RuntimeThread() {
  runtime_->Post([runtime = runtime_] {
    runtime->closed = true;
    runtime->router.Stop();
    runtime->work.reset();
  });
  if (!thread_.joinable()) return;
  if (std::this_thread::get_id() == thread_.get_id()) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

Result<Cluster> Cluster::Connect(std::vector<std::string> seeds, ClusterOptions options) {
  if (seeds.empty()) {
    return Status::InvalidArgument("give the address of at least one node, such as 127.0.0.1:7101");
  }
  for (const std::string& seed : seeds) {
    const size_t colon = seed.rfind(':');
    const bool port = colon != std::string::npos && colon > 0 && colon + 1 < seed.size() &&
                      seed.find_first_not_of("0123456789", colon + 1) == std::string::npos;
    if (!port) {
      return Status::InvalidArgument(fmt::format("'{}' is no address: give host:port", seed));
    }
  }
  RouterOptions router;
  router.seeds = std::move(seeds);
  router.name = options.name;
  router.translate = options.translate;
  router.dial = options.dial;
  router.connect_timeout = options.connect_timeout;
  router.attempt_timeout = options.attempt_timeout;
  router.session_timeout = options.session_timeout;
  router.max_in_flight_bytes = options.max_in_flight_bytes;
  router.max_queued = options.max_queued;
  auto impl =
      std::make_shared<Impl>(std::make_shared<Runtime>(std::move(options), std::move(router)));
  const auto runtime = impl->runtime();
  const Status refreshed = impl->Await<Status>([&](internal::Callback<Status> done) {
    runtime->Post([runtime, done = std::move(done)] {
      runtime->router.Refresh(runtime->options.timeout, done);
    });
  });
  if (!refreshed.ok()) return refreshed.WithContext("cannot connect to the cluster");
  return Cluster(std::move(impl));
}

ClusterStats Cluster::stats() const {
  const auto runtime = impl_->runtime();
  const auto stats = impl_->Await<Result<RouterStats>>([&](auto done) {
    runtime->Post([runtime, done = std::move(done)] { done(runtime->router.stats()); });
  });
  ClusterStats result;
  if (!stats.ok()) return result;
  result.requests = stats->requests;
  result.attempts = stats->attempts;
  result.redirects = stats->redirects;
  result.busy = stats->busy;
  result.lost = stats->lost;
  result.repeated = stats->repeated_safe;
  result.damaged = stats->damaged;
  result.sessions = stats->sessions;
  result.expired = stats->expired;
  result.unknown = stats->unknown;
  result.in_flight_bytes = stats->in_flight_bytes;
  result.queued = stats->queued;
  return result;
}

// --- Volumes ------------------------------------------------------------------------------------

void Cluster::StartVolumes(internal::Callback<Result<std::vector<VolumeInfo>>> done) const {
  const auto runtime = impl_->runtime();
  runtime->Post([runtime, done = std::move(done)] {
    runtime->router.Refresh(runtime->options.timeout, [runtime, done](const Status& status) {
      if (!status.ok()) return done(status);
      std::vector<VolumeInfo> volumes;
      for (const auto& [name, volume] : runtime->router.catalogue()->volumes) {
        volumes.push_back(InfoOf(volume));
      }
      done(std::move(volumes));
    });
  });
}

namespace {

// Whether the catalogue is as the call wanted it: what a refusal of a repeated call means.
using Wanted = std::function<bool(const CatalogueView& view)>;

// Sends a change of the catalogue. If a copy of it may have been executed before it was refused
// with `repeated`, the refusal is a success if the catalogue says what was wanted.
void Change(const std::shared_ptr<Runtime>& runtime, const rpc::Request& request, Code repeated,
            Wanted wanted, internal::Callback<Status> done) {
  runtime->Post([=] {
    runtime->router.Call(
        request, runtime->options.timeout,
        [=](const Status& status, const rpc::Reply&, bool maybe_repeated) {
          const bool ask = status.ok() || (status.code() == repeated && maybe_repeated);
          if (!ask) return done(status);
          runtime->router.Refresh(runtime->options.timeout, [=](const Status& refreshed) {
            // The change is made; who looks for it next will ask again.
            if (status.ok()) return done(status);
            if (!refreshed.ok()) return done(refreshed);
            done(wanted(*runtime->router.catalogue()) ? Status::Ok() : status);
          });
        });
  });
}

// Ends when every shard of a new volume has answered a read: its groups have been made and have
// masters.
void AwaitUsable(const std::shared_ptr<Runtime>& runtime, const std::string& name,
                 internal::Callback<Status> done) {
  const auto view = runtime->router.catalogue();
  const auto found = view->volumes.find(name);
  if (found == view->volumes.end()) return done(Status::Ok());  // deleted already
  struct Waiting {
    size_t missing = 0;
    Status first;
  };
  auto waiting = std::make_shared<Waiting>();
  waiting->missing = found->second.shards.size();
  for (const GroupId group : found->second.shards) {
    GroupRequest read;
    read.group = group;
    read.count = 1;
    read.block_bytes = found->second.block_bytes;
    read.timeout = runtime->options.timeout;
    runtime->router.Submit(std::move(read), [waiting, done](const GroupReply& reply) {
      if (!reply.status.ok() && waiting->first.ok()) waiting->first = reply.status;
      if (--waiting->missing > 0) return;
      done(waiting->first.ok()
               ? Status::Ok()
               : waiting->first.WithContext("the volume was made, but cannot be used yet"));
    });
  }
}

// A node of an older version passes over what it does not know of a request.
Status CheckMade(const CatalogueView& view, const VolumeSpec& spec) {
  const auto found = view.volumes.find(spec.name);
  if (found == view.volumes.end() || spec.logical_block == 0) return Status::Ok();
  if (found->second.logical_block == spec.logical_block) return Status::Ok();
  return Status::Unsupported(
      fmt::format("'{}' was made with logical blocks of {}, by a node that knows no others: delete "
                  "it, upgrade that node, and make it again",
                  spec.name, found->second.logical_block));
}

}  // namespace

void Cluster::StartCreate(const VolumeSpec& spec, internal::Callback<Status> done) const {
  rpc::Request request;
  auto* create = request.mutable_create_volume();
  create->set_name(spec.name);
  create->set_bytes(spec.bytes);
  create->set_block_bytes(spec.block_bytes);
  create->set_shards(spec.shards);
  create->set_replicas(spec.replicas);
  create->set_no_target(!spec.target);
  create->set_logical_block(spec.logical_block);
  const auto wanted = [spec](const CatalogueView& view) {
    const auto found = view.volumes.find(spec.name);
    if (found == view.volumes.end()) return false;
    const CatalogueView::Volume& volume = found->second;
    return volume.bytes == spec.bytes &&
           (spec.block_bytes == 0 || spec.block_bytes == volume.block_bytes) &&
           (spec.logical_block == 0 || spec.logical_block == volume.logical_block) &&
           (spec.shards == 0 || spec.shards == volume.shards.size()) &&
           spec.target == volume.target.offered;
  };
  const auto runtime = impl_->runtime();
  Change(runtime, request, Code::kAlreadyExists, wanted,
         [runtime, spec, done = std::move(done)](const Status& status) {
           if (!status.ok()) return done(status);
           if (Status made = CheckMade(*runtime->router.catalogue(), spec); !made.ok()) {
             return done(made);
           }
           AwaitUsable(runtime, spec.name, done);
         });
}

// Shrinking takes two calls: the first announces it, then every shard is told to refuse what was
// checked before that, what lies behind the new end is unmapped in them, and the second call
// changes the size. Whoever finds it half done may repeat it.
void Cluster::StartResize(const std::string& name, uint64_t bytes, bool force,
                          internal::Callback<Status> done) const {
  rpc::Request request;
  auto* resize = request.mutable_resize_volume();
  resize->set_name(name);
  resize->set_bytes(bytes);
  resize->set_force(force);
  const auto runtime = impl_->runtime();
  Change(runtime, request, Code::kOk, nullptr, [=](const Status& status) {
    if (!status.ok()) return done(status);
    const auto view = runtime->router.catalogue();
    const auto found = view->volumes.find(name);
    if (found == view->volumes.end() || !found->second.shrinking) return done(status);
    if (found->second.shrink_to != bytes) {
      return done(Status::Aborted("another change of the size is under way: look, and decide"));
    }
    const auto volume = std::make_shared<VolumeState>(runtime, found->second);
    const uint64_t end = found->second.bytes;
    const auto unmap = [=] {
      const auto transfer =
          std::make_shared<Transfer>(volume, Transfer::Kind::kUnmap, bytes, end - bytes);
      transfer->Start([=](const Status& unmapped) {
        if (!unmapped.ok()) {
          return done(unmapped.WithContext("the volume is not smaller yet; repeat the call"));
        }
        rpc::Request second = request;
        second.mutable_resize_volume()->set_unmapped(true);
        Change(runtime, second, Code::kOk, nullptr, done);
      });
    };
    volume->Fence(found->second.epoch, [=](const Status& fenced) {
      if (!fenced.ok()) {
        return done(fenced.WithContext("the volume is not smaller yet; repeat the call"));
      }
      unmap();
    });
  });
}

void Cluster::StartDelete(const std::string& name, internal::Callback<Status> done) const {
  rpc::Request request;
  request.mutable_delete_volume()->set_name(name);
  const auto wanted = [name](const CatalogueView& view) { return !view.volumes.contains(name); };
  Change(impl_->runtime(), request, Code::kNotFound, wanted, std::move(done));
}

namespace {

void Fill(const TargetChange& change, rpc::ChangeTarget* request) {
  if (change.offered) {
    request->set_offer(*change.offered ? rpc::ChangeTarget::ON : rpc::ChangeTarget::OFF);
  }
  request->set_open(change.open);
  request->set_close(change.close);
  for (const std::string& name : change.remove) request->add_remove(name);
  for (const std::string& name : change.allow) request->add_allow(name);
  request->set_set_chap(change.set_chap);
  const auto put = [](const std::optional<TargetChange::Account>& from, auto* to) {
    to->set_name(from->user);
    to->set_secret(from->secret);
  };
  if (change.chap) put(change.chap, request->mutable_initiator());
  if (change.mutual) put(change.mutual, request->mutable_target());
}

}  // namespace

// Fenced in any case: whoever repeats a call may do so because its fence failed.
void Cluster::StartChangeTarget(const std::string& name, const TargetChange& change,
                                internal::Callback<Status> done) const {
  rpc::Request request;
  request.mutable_change_target()->set_name(name);
  Fill(change, request.mutable_change_target());
  const auto runtime = impl_->runtime();
  const auto fence = [=] {
    const auto view = runtime->router.catalogue();
    const auto found = view->volumes.find(name);
    if (found == view->volumes.end()) {
      return done(Status::NotFound(fmt::format("volume '{}' was deleted meanwhile", name)));
    }
    const auto volume = std::make_shared<VolumeState>(runtime, found->second);
    volume->Fence(found->second.epoch, [done](const Status& fenced) {
      if (fenced.ok()) return done(fenced);
      done(
          Status::Aborted(fmt::format("the rules are changed, but what was sent before may still "
                                      "be executed: repeat the call; {}",
                                      fenced.message())));
    });
  };
  runtime->Post([=] {
    runtime->router.Call(
        request, runtime->options.timeout, [=](const Status& status, const rpc::Reply&, bool) {
          if (!status.ok()) return done(status);
          runtime->router.RefreshToCurrent(runtime->options.timeout, [=](const Status& refreshed) {
            if (refreshed.ok()) return fence();
            done(Status::Aborted(fmt::format(
                "the rules are changed, but what was sent before may still be executed: repeat "
                "the call; {}",
                refreshed.message())));
          });
        });
  });
}

// --- Nodes --------------------------------------------------------------------------------------

void Cluster::StartGetStatus(bool groups,
                             internal::Callback<Result<std::vector<NodeInfo>>> done) const {
  const auto runtime = impl_->runtime();
  struct Gathered {
    std::vector<NodeInfo> nodes;
    size_t missing = 0;
    internal::Callback<Result<std::vector<NodeInfo>>> done;
  };
  auto gathered = std::make_shared<Gathered>();
  gathered->done = std::move(done);
  runtime->Post([runtime, gathered, groups] {
    runtime->router.Refresh(runtime->options.timeout, [=](const Status& status) {
      if (!status.ok()) return gathered->done(status);
      const auto view = runtime->router.catalogue();
      rpc::Request request;
      request.mutable_get_status()->set_groups(groups);
      for (const auto& [id, node] : view->nodes) {
        NodeInfo& info = gathered->nodes.emplace_back();
        info.node = id;
        info.address = node.rpc;
        info.iscsi = node.iscsi;
        info.http = node.http;
        info.state = node.state;
      }
      gathered->missing = gathered->nodes.size();
      if (gathered->missing == 0) return gathered->done(std::move(gathered->nodes));
      const milliseconds patience =
          std::min(runtime->options.timeout, runtime->options.attempt_timeout);
      for (size_t i = 0; i < gathered->nodes.size(); ++i) {
        runtime->router.CallNode(
            gathered->nodes[i].node, request, patience,
            [gathered, i](const Status& answered, const rpc::Reply& reply, bool) {
              gathered->nodes[i].reachable = answered;
              if (answered.ok()) TakeStatus(reply.status(), &gathered->nodes[i]);
              if (--gathered->missing == 0) gathered->done(std::move(gathered->nodes));
            });
      }
    });
  });
}

void Cluster::StartProbe(milliseconds timeout, internal::Callback<Status> done) const {
  const auto runtime = impl_->runtime();
  runtime->Post([runtime, timeout, done = std::move(done)] {
    runtime->router.RefreshToCurrent(timeout, done);
  });
}

void Cluster::StartMoveMaster(uint32_t group, uint32_t node,
                              internal::Callback<Status> done) const {
  rpc::Request request;
  request.mutable_move_master()->set_group(group);
  request.mutable_move_master()->set_node(node);
  const auto runtime = impl_->runtime();
  runtime->Post([runtime, request, done = std::move(done)] {
    runtime->router.Call(request, runtime->options.timeout,
                         [done](const Status& status, const rpc::Reply&, bool) { done(status); });
  });
}

void Cluster::StartChangeNodes(const NodeChange& change, internal::Callback<Status> done) const {
  rpc::Request request;
  auto* nodes = request.mutable_change_nodes();
  switch (change.kind) {
    case NodeChange::Kind::kAdd: nodes->set_kind(rpc::ChangeNodes::ADD); break;
    case NodeChange::Kind::kReplace: nodes->set_kind(rpc::ChangeNodes::REPLACE); break;
    case NodeChange::Kind::kRemove: nodes->set_kind(rpc::ChangeNodes::REMOVE); break;
    case NodeChange::Kind::kSetReplicas: nodes->set_kind(rpc::ChangeNodes::SET_REPLICAS); break;
    case NodeChange::Kind::kRebalance: nodes->set_kind(rpc::ChangeNodes::REBALANCE); break;
  }
  nodes->set_node(change.node);
  nodes->set_rpc(change.address);
  nodes->set_iscsi(change.iscsi);
  nodes->set_http(change.http);
  nodes->set_volume(change.volume);
  nodes->set_replicas(change.replicas);
  nodes->set_force(change.force);
  // Repeating what was decided changes nothing, so no refusal means success.
  const auto runtime = impl_->runtime();
  if (change.kind != NodeChange::Kind::kReplace) {
    return Change(runtime, request, Code::kOk, nullptr, std::move(done));
  }
  // A replacement that comes a second time must not take the node for lost that has come with a new
  // disk meanwhile: it says which incarnation is meant.
  runtime->Post([runtime, request, done = std::move(done)] {
    runtime->router.RefreshToCurrent(
        runtime->options.timeout, [runtime, request, done](const Status& status) {
          if (!status.ok()) return done(status);
          rpc::Request exact = request;
          const auto view = runtime->router.catalogue();
          const auto node = view->nodes.find(request.change_nodes().node());
          if (node != view->nodes.end()) {
            exact.mutable_change_nodes()->set_incarnation(node->second.incarnation);
          }
          Change(runtime, exact, Code::kOk, nullptr, done);
        });
  });
}

namespace {

// Of one node alone, whatever it is the master of.
void TellNode(const std::shared_ptr<Runtime>& runtime, uint32_t node, const rpc::Request& request,
              internal::Callback<Status> done) {
  runtime->Post([runtime, node, request, done = std::move(done)] {
    runtime->router.Refresh(runtime->options.timeout, [=](const Status& status) {
      if (!status.ok()) return done(status);
      runtime->router.CallNode(
          node, request, runtime->options.timeout,
          [done](const Status& answered, const rpc::Reply&, bool) { done(answered); });
    });
  });
}

}  // namespace

// --- The same, blocking -------------------------------------------------------------------------

Result<std::vector<VolumeInfo>> Cluster::volumes() {
  return impl_->Await<Result<std::vector<VolumeInfo>>>(
      [&](auto done) { StartVolumes(std::move(done)); });
}

Status Cluster::CreateVolume(const VolumeSpec& spec) {
  return impl_->Await<Status>([&](auto done) { StartCreate(spec, std::move(done)); });
}

Status Cluster::ResizeVolume(const std::string& name, uint64_t bytes, bool force) {
  return impl_->Await<Status>([&](auto done) { StartResize(name, bytes, force, std::move(done)); });
}

Status Cluster::DeleteVolume(const std::string& name) {
  return impl_->Await<Status>([&](auto done) { StartDelete(name, std::move(done)); });
}

Status Cluster::ChangeTarget(const std::string& name, const TargetChange& change) {
  return impl_->Await<Status>([&](auto done) { StartChangeTarget(name, change, std::move(done)); });
}

Result<std::vector<NodeInfo>> Cluster::GetStatus(bool groups) {
  return impl_->Await<Result<std::vector<NodeInfo>>>(
      [&](auto done) { StartGetStatus(groups, std::move(done)); });
}

Status Cluster::Probe(milliseconds timeout) {
  return impl_->Await<Status>([&](auto done) { StartProbe(timeout, std::move(done)); });
}

Status Cluster::MoveMaster(uint32_t group, uint32_t node) {
  return impl_->Await<Status>([&](auto done) { StartMoveMaster(group, node, std::move(done)); });
}

Status Cluster::StartScrub(uint32_t node, uint64_t rate) {
  rpc::Request request;
  request.mutable_scrub()->set_action(rpc::Scrub::START);
  request.mutable_scrub()->set_rate(rate);
  return impl_->Await<Status>(
      [&](auto done) { TellNode(impl_->runtime(), node, request, std::move(done)); });
}

Status Cluster::StopScrub(uint32_t node) {
  rpc::Request request;
  request.mutable_scrub()->set_action(rpc::Scrub::STOP);
  return impl_->Await<Status>(
      [&](auto done) { TellNode(impl_->runtime(), node, request, std::move(done)); });
}

Status Cluster::ForceSurvivor(uint32_t node) {
  rpc::Request request;
  request.mutable_force_survivor()->set_may_lose_data(true);
  const auto runtime = impl_->runtime();
  return impl_->Await<Status>([&](internal::Callback<Status> done) {
    runtime->Post([runtime, request, node, done = std::move(done)] {
      runtime->router.CallNode(
          node, request, runtime->options.timeout,
          [done](const Status& status, const rpc::Reply&, bool) { done(status); });
    });
  });
}

Status Cluster::ChangeNodes(const NodeChange& change) {
  return impl_->Await<Status>([&](auto done) { StartChangeNodes(change, std::move(done)); });
}

}  // namespace hydra
