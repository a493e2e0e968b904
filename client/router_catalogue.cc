// SPDX-License-Identifier: Apache-2.0
//
// What the router knows about the cluster, and calls that any node can take.
#include <algorithm>
#include <utility>

#include <boost/asio/post.hpp>
#include <fmt/format.h>

#include "base/logging.h"
#include "client/router_core.h"

namespace hydra {
namespace {

using std::chrono::milliseconds;

// Questions asked because something seemed out of date are no more frequent than this.
constexpr milliseconds kRefreshPause(100);
constexpr milliseconds kRefreshTimeout(10'000);
constexpr milliseconds kAllPatience(1'000);
// Changes wait for several groups to do something.
constexpr milliseconds kPatienceWithChanges(20'000);

TargetInfo TargetOf(const rpc::TargetRules& rules) {
  TargetInfo info;
  info.offered = !rules.off();
  info.restricted = rules.restricted();
  info.allowed.assign(rules.allow().begin(), rules.allow().end());
  info.chap_user = rules.initiator().name();
  info.mutual_user = rules.target().name();
  info.chap_revision = rules.chap_revision();
  return info;
}

const char* StateOf(const rpc::CatalogueNode& node) {
  switch (node.state()) {
    case rpc::CatalogueNode::JOINING:
      return node.store().empty() && node.incarnation() > 1 ? "lost" : "joining";
    case rpc::CatalogueNode::DRAINING: return "draining";
    default: return "active";
  }
}

Result<CatalogueView> ViewOf(const std::string& bytes) {
  rpc::Catalogue catalogue;
  if (!catalogue.ParseFromString(bytes)) {
    return Status::Corruption("a node sent a catalogue that cannot be read");
  }
  CatalogueView view;
  view.version = catalogue.version();
  view.cluster = catalogue.cluster();
  for (const auto& node : catalogue.nodes()) {
    view.nodes[node.id()] = {node.rpc(),
                             node.iscsi(),
                             node.http(),
                             StateOf(node),
                             std::max(node.incarnation(), 1u),
                             !node.store().empty()};
  }
  for (const auto& group : catalogue.groups()) {
    CatalogueView::Group& entry = view.groups[group.id()];
    for (const auto& replica : group.replicas()) {
      // A node whose disk was lost has two rows for a while.
      const auto& known = entry.replicas;
      if (std::find(known.begin(), known.end(), replica.node()) != known.end()) continue;
      entry.replicas.push_back(replica.node());
    }
    entry.preferred_master = group.preferred_master();
    // One grows when a replica is wanted, the other when it votes, or is gone.
    entry.changes = group.last_incarnation() + group.config();
  }
  for (const auto& volume : catalogue.volumes()) {
    CatalogueView::Volume entry;
    entry.id = volume.id();
    entry.name = volume.name();
    entry.bytes = volume.bytes();
    entry.block_bytes = volume.block_bytes() == 0 ? 4096 : volume.block_bytes();
    entry.logical_block = volume.logical_block() == 0 ? 512 : volume.logical_block();
    entry.active = volume.state() != rpc::CatalogueVolume::CREATING;
    entry.shrinking = volume.state() == rpc::CatalogueVolume::SHRINKING;
    entry.shrink_to = volume.shrink_to();
    entry.epoch = std::max<uint64_t>(volume.epoch(), 1);
    entry.reservations = volume.reservations();
    entry.target = TargetOf(volume.target());
    entry.shards.assign(volume.shards().begin(), volume.shards().end());
    entry.replicas = volume.replicas();
    view.volumes[entry.name] = std::move(entry);
  }
  return view;
}

}  // namespace

// One call of administration on its way.
struct Router::Core::AdminCall {
  explicit AdminCall(boost::asio::io_context* context) : timer(*context) {}
  std::string header;
  NodeId only = 0;  // 0: any node
  NodeId next = 0;  // who is said to know better
  unsigned redirects = 0;
  TimePoint deadline;
  milliseconds patience{};  // with one node
  bool out = false;
  bool maybe_repeated = false;  // an earlier copy may have been executed
  bool sent_before = false;
  uint64_t attempt = 0;
  bool finished = false;
  Status last_error;
  AdminDone done;
  BackOff back_off;
  boost::asio::steady_timer timer;
};

// --- Links --------------------------------------------------------------------------------------

std::shared_ptr<NodeLink> Router::Core::LinkAt(const std::string& address) {
  std::shared_ptr<NodeLink>& link = links_[address];
  if (!link) {
    NodeLink::Options link_options;
    link_options.name = options.name;
    link_options.cluster = options.cluster;
    link_options.connect_timeout = options.connect_timeout;
    link_options.seed = rng.Next();
    link_options.dial = options.dial;
    link_options.allocate = [pool = pool](size_t bytes) {
      Result<Buffer> buffer = pool->Get(bytes);
      return buffer.ok() ? std::move(buffer) : Result<Buffer>(Buffer::Allocate(bytes));
    };
    std::string called = options.translate ? options.translate(address) : address;
    link = std::make_shared<NodeLink>(context, std::move(called), std::move(link_options));
  }
  return link;
}

std::shared_ptr<NodeLink> Router::Core::LinkOf(NodeId node) {
  const auto found = catalogue->nodes.find(node);
  if (found == catalogue->nodes.end() || found->second.rpc.empty()) return nullptr;
  const auto at = links_.find(found->second.rpc);
  if (at != links_.end()) return at->second;
  // A seed may be the same node by another name of its host.
  for (const std::string& seed : options.seeds) {
    const auto link = links_.find(seed);
    if (link != links_.end() && link->second->ready() && link->second->node() == node) {
      return links_[found->second.rpc] = link->second;
    }
  }
  return LinkAt(found->second.rpc);
}

// --- The catalogue ------------------------------------------------------------------------------

void Router::Core::SetDirectory(CatalogueView directory) { Apply(std::move(directory)); }

void Router::Core::Apply(CatalogueView view) {
  if (!view.cluster.empty() && options.cluster.empty()) {
    options.cluster = view.cluster;
    for (const auto& [address, link] : links_) link->set_cluster(view.cluster);
  }
  catalogue = std::make_shared<CatalogueView>(std::move(view));
  for (const auto& [id, group] : std::map(groups_)) {
    const auto found = catalogue->groups.find(id);
    if (found != catalogue->groups.end()) {
      group->SetReplicas(found->second);
    } else {
      group->Gone();
    }
  }
  const auto told = listeners;
  for (const auto& listener : told) listener();
}

Status Router::Core::Adopt(const rpc::Reply& reply) {
  if (reply.catalogue().empty()) return Status::Ok();
  HYDRA_ASSIGN_OR_RETURN(CatalogueView view, ViewOf(reply.catalogue()));
  if (view.version > catalogue->version) Apply(std::move(view));
  return Status::Ok();
}

void Router::Core::Refresh(milliseconds timeout, std::function<void(Status)> done, bool current) {
  rpc::Request request;
  request.mutable_get_catalogue()->set_newer_than(catalogue->version);
  request.mutable_get_catalogue()->set_current(current);
  Call(request, timeout, 0,
       [self = shared_from_this(), current, done = std::move(done)](Status status,
                                                                    const rpc::Reply& reply, bool) {
         if (status.ok()) status = self->Adopt(reply);
         // A node that cannot tell is not one that has too much to do.
         if (current && status.code() == Code::kBusy) {
           status = Status::Unavailable(std::string(status.message()));
         }
         done(status);
       });
}

void Router::Core::RefreshFromAll(std::function<void(Status)> done) {
  struct Gathered {
    size_t missing = 0;
    bool any = false;
    Status error;
    std::function<void(Status)> done;
  };
  auto gathered = std::make_shared<Gathered>();
  gathered->missing = catalogue->nodes.size();
  gathered->done = std::move(done);
  if (gathered->missing == 0) return Refresh(kRefreshTimeout, gathered->done);
  rpc::Request request;
  request.mutable_get_catalogue()->set_newer_than(catalogue->version);
  const auto view = catalogue;
  for (const auto& [id, node] : view->nodes) {
    Call(request, kAllPatience, id,
         [self = shared_from_this(), gathered](Status status, const rpc::Reply& reply, bool) {
           if (status.ok()) status = self->Adopt(reply);
           gathered->any = gathered->any || status.ok();
           if (!status.ok()) gathered->error = status;
           if (--gathered->missing == 0) {
             gathered->done(gathered->any ? Status::Ok() : gathered->error);
           }
         });
  }
}

void Router::Core::RefreshSoon() {
  if (options.seeds.empty() || stopped || refreshing_) return;
  if (SteadyClock::now() - last_refresh_ < kRefreshPause) return;
  refreshing_ = true;
  const auto ended = [self = shared_from_this()](const Status& status) {
    self->refreshing_ = false;
    self->last_refresh_ = SteadyClock::now();
    if (!status.ok()) HYDRA_LOG_DEBUG("catalogue: {}", status.ToString());
  };
  RefreshFromAll(ended);
}

// --- Calls --------------------------------------------------------------------------------------

void Router::Core::Call(const rpc::Request& request, milliseconds timeout, NodeId only,
                        AdminDone done) {
  auto call = std::make_shared<AdminCall>(context);
  call->header = request.SerializeAsString();
  call->only = only;
  const bool question = request.has_get_catalogue() || request.has_get_status();
  call->patience = question ? options.attempt_timeout : kPatienceWithChanges;
  call->deadline = SteadyClock::now() + timeout;
  call->done = std::move(done);
  admin_.push_back(call);
  // `done` never runs within this call.
  boost::asio::post(*context, [self = shared_from_this(), call] { self->TryAdmin(call); });
}

std::shared_ptr<NodeLink> Router::Core::PickAdminLink(AdminCall* call) {
  if (call->only != 0) return LinkOf(call->only);
  if (call->next != 0) {
    const NodeId node = std::exchange(call->next, 0);
    if (auto link = LinkOf(node)) return link;
  }
  // Nodes of the catalogue in turn, and the seeds, in case that all of those have moved.
  std::vector<std::string> addresses;
  for (const auto& [id, node] : catalogue->nodes) {
    if (!node.rpc.empty()) addresses.push_back(node.rpc);
  }
  for (const std::string& seed : options.seeds) {
    if (std::find(addresses.begin(), addresses.end(), seed) == addresses.end()) {
      addresses.push_back(seed);
    }
  }
  if (addresses.empty()) return nullptr;
  if (admin_link_ && admin_link_->ready()) return admin_link_;
  for (const bool ready : {true, false}) {
    for (size_t i = 0; i < addresses.size(); ++i) {
      auto link = LinkAt(addresses[(admin_turn_ + i) % addresses.size()]);
      if (ready ? !link->ready() : !link->usable()) continue;
      admin_turn_ = (admin_turn_ + i) % addresses.size();
      return link;
    }
  }
  return LinkAt(addresses[++admin_turn_ % addresses.size()]);
}

void Router::Core::TryAdmin(const std::shared_ptr<AdminCall>& call) {
  if (call->finished) return;
  const auto link = PickAdminLink(call.get());
  if (!link) return RetryAdmin(call, Status::Unavailable("no node is known"));
  const uint64_t attempt = ++call->attempt;
  call->out = true;
  if (call->sent_before) call->maybe_repeated = true;
  link->Call(call->header, {}, 0, call->patience,
             [self = shared_from_this(), call, attempt, link](NodeLink::Answer answer) {
               if (call->finished || attempt != call->attempt) return;
               call->out = false;
               self->OnAdmin(call, link, std::move(answer));
             });
  call->timer.expires_at(std::min(call->deadline, SteadyClock::now() + call->patience));
  call->timer.async_wait(
      [self = shared_from_this(), call, attempt](const boost::system::error_code& error) {
        if (error || call->finished || attempt != call->attempt) return;
        self->admin_link_.reset();
        ++self->admin_turn_;
        self->RetryAdmin(call, Status::Unavailable("a node did not answer"));
      });
  Wake(SteadyClock::now() + options.attempt_timeout / 2);
}

void Router::Core::OnAdmin(const std::shared_ptr<AdminCall>& call,
                           const std::shared_ptr<NodeLink>& link, NodeLink::Answer answer) {
  const auto move_on = [&] {
    if (admin_link_ == link) admin_link_.reset();
    ++admin_turn_;
  };
  if (!answer.status.ok()) {
    call->sent_before = call->sent_before || answer.sent;
    move_on();
    return RetryAdmin(call, answer.status);
  }
  const rpc::Reply& reply = answer.reply;
  switch (reply.answer()) {
    case rpc::Reply::DONE:
      if (call->only == 0) admin_link_ = link;
      return FinishAdmin(call, Status::Ok(), reply);
    case rpc::Reply::NO_GROUP:
      move_on();
      return RetryAdmin(call, Status::Unavailable(reply.message()));
    case rpc::Reply::NOT_MASTER:
      call->next = reply.master();
      if (call->next == 0) move_on();
      if (call->only == 0 && call->next != 0 && ++call->redirects <= 3) return TryAdmin(call);
      return RetryAdmin(call, Status::Unavailable("the system group has no master at present"));
    case rpc::Reply::UNKNOWN: call->sent_before = true; [[fallthrough]];
    case rpc::Reply::BUSY:
      move_on();
      return RetryAdmin(
          call, Status::Busy(reply.message().empty() ? "the cluster is busy" : reply.message()));
    case rpc::Reply::INVALID:
      return FinishAdmin(call, Status::InvalidArgument(reply.message()), reply);
    default: break;
  }
  const Code code = reply.code() == 0 ? Code::kUnavailable : static_cast<Code>(reply.code());
  FinishAdmin(call, Status(code, reply.message().empty() ? "the cluster refused" : reply.message()),
              reply);
}

void Router::Core::RetryAdmin(const std::shared_ptr<AdminCall>& call, const Status& why) {
  if (call->finished) return;
  ++call->attempt;  // a late answer does not count
  if (call->out) call->sent_before = true;
  call->out = false;
  call->last_error = why;
  // The node that was asked for may be down for long: whoever asks wants to know.
  const auto delay = call->back_off.Next(&rng);
  if (SteadyClock::now() + delay >= call->deadline) {
    return FinishAdmin(
        call,
        Status(why.code() == Code::kOk ? Code::kUnavailable : why.code(),
               fmt::format("no node could be reached that answers: {}{}", why.message(),
                           call->sent_before ? "; it may or may not have happened" : "")),
        rpc::Reply());
  }
  call->timer.expires_after(delay);
  call->timer.async_wait([self = shared_from_this(), call](const boost::system::error_code& error) {
    if (error) return;
    call->redirects = 0;
    self->TryAdmin(call);
  });
}

void Router::Core::FinishAdmin(const std::shared_ptr<AdminCall>& call, Status status,
                               const rpc::Reply& reply) {
  if (call->finished) return;
  call->finished = true;
  call->timer.cancel();
  admin_.remove(call);
  const AdminDone done = std::move(call->done);
  if (done) done(std::move(status), reply, call->maybe_repeated);
}

}  // namespace hydra
