// SPDX-License-Identifier: Apache-2.0
//
// The front of the router, and the bounds of what is under way.
#include "client/router.h"

#include <algorithm>
#include <random>
#include <utility>

#include <boost/asio/post.hpp>
#include <fmt/format.h>

#include "client/router_core.h"

namespace hydra {
namespace {

using std::chrono::milliseconds;

// Ticks are no more frequent than this: time-outs need no more.
constexpr milliseconds kTick(20);

uint64_t SeedOr(uint64_t seed) {
  if (seed != 0) return seed;
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) | device();
}

// What a request counts against max_in_flight_bytes.
size_t BytesOf(const GroupRequest& request) {
  if (request.map_only) return static_cast<size_t>(request.count);
  if (request.is_read()) return static_cast<size_t>(request.count) * request.block_bytes;
  return request.payload_bytes();
}

}  // namespace

Router::Core::Core(boost::asio::io_context* context_in, RouterOptions options_in)
    : context(context_in),
      options(std::move(options_in)),
      rng(SeedOr(options.seed)),
      pool(std::make_shared<BufferPool>(options.max_in_flight_bytes * 2)),
      catalogue(std::make_shared<CatalogueView>()),
      tick_(*context) {}

void Router::Core::Submit(GroupRequest&& request, GroupDone&& done) {
  ++stats.requests;
  Queued queued{std::move(request), std::move(done), SteadyClock::now(), 0};
  queued.deadline += queued.request.timeout;
  queued.bytes = BytesOf(queued.request);
  // `done` never runs within this call.
  const auto refuse = [&](Status why) {
    boost::asio::post(*context, [done = std::move(queued.done), why = std::move(why)] {
      GroupReply reply;
      reply.status = why;
      done(std::move(reply));
    });
  };
  if (stopped) return refuse(Status::Aborted("the client was closed"));
  const bool fits = stats.in_flight_bytes == 0 ||
                    stats.in_flight_bytes + queued.bytes <= options.max_in_flight_bytes;
  if (queue_.empty() && fits) return Admit(std::move(queued));
  if (queue_.size() >= options.max_queued) {
    return refuse(Status::Busy(fmt::format(
        "{} requests wait already: wait for answers before asking more", queue_.size())));
  }
  Wake(queued.deadline);
  queue_.push_back(std::move(queued));
  stats.queued = queue_.size();
}

void Router::Core::Admit(Queued&& queued) {
  auto op = std::make_shared<GroupOp>();
  op->request = std::move(queued.request);
  op->done = std::move(queued.done);
  op->deadline = queued.deadline;
  op->bytes = queued.bytes;
  stats.in_flight_bytes += op->bytes;
  GroupOf(op->request.group)->Submit(std::move(op));
}

void Router::Core::Release(size_t bytes) {
  stats.in_flight_bytes -= bytes;
  // One that was let in has ended at once: the loop that let it in goes on.
  if (releasing_) return;
  releasing_ = true;
  while (!queue_.empty() && !stopped) {
    const size_t next = queue_.front().bytes;
    if (stats.in_flight_bytes > 0 && stats.in_flight_bytes + next > options.max_in_flight_bytes) {
      break;
    }
    Queued queued = std::move(queue_.front());
    queue_.pop_front();
    stats.queued = queue_.size();
    Admit(std::move(queued));
  }
  releasing_ = false;
}

std::shared_ptr<GroupClient> Router::Core::GroupOf(GroupId id) {
  std::shared_ptr<GroupClient>& group = groups_[id];
  if (!group) {
    group = std::make_shared<GroupClient>(this, id);
    const auto found = catalogue->groups.find(id);
    if (found != catalogue->groups.end()) group->SetReplicas(found->second);
  }
  return group;
}

void Router::Core::Wake(TimePoint at) {
  if (stopped || at == TimePoint::max()) return;
  if (tick_at_ && *tick_at_ <= at) return;
  at = std::max(at, SteadyClock::now() + kTick);
  if (tick_at_ && *tick_at_ <= at) return;
  tick_at_ = at;
  tick_.expires_at(at);
  tick_.async_wait([self = shared_from_this()](const boost::system::error_code& error) {
    if (!error) self->Tick();
  });
}

void Router::Core::Tick() {
  tick_at_.reset();
  if (stopped) return;
  const TimePoint now = SteadyClock::now();
  TimePoint next = TimePoint::max();
  for (auto it = queue_.begin(); it != queue_.end();) {
    if (now < it->deadline) {
      next = std::min(next, it->deadline);
      ++it;
      continue;
    }
    const Queued queued = std::move(*it);
    it = queue_.erase(it);
    stats.queued = queue_.size();
    GroupReply reply;
    reply.status =
        Status::Busy("the request did not happen: too much was under way for all its time");
    boost::asio::post(*context, [done = queued.done, reply] { done(reply); });
  }
  bool outstanding = false;
  for (const auto& [address, link] : links_) {
    link->CheckSilence(now);
    outstanding = outstanding || link->outstanding() > 0;
  }
  if (outstanding) next = std::min<TimePoint>(next, now + options.attempt_timeout / 4);
  std::vector<std::shared_ptr<GroupClient>> groups;
  groups.reserve(groups_.size());
  for (const auto& [id, group] : groups_) groups.push_back(group);
  for (const auto& group : groups) next = std::min(next, group->Tick(now));
  Wake(next);
}

void Router::Core::Stop() {
  if (stopped) return;
  stopped = true;
  tick_.cancel();
  for (const auto& timer : timers) timer->cancel();
  std::list<Queued> queue;
  queue.swap(queue_);
  for (const Queued& queued : queue) {
    GroupReply reply;
    reply.status = Status::Unavailable("the request did not happen: the client was closed");
    queued.done(std::move(reply));
  }
  for (const auto& [id, group] : std::map(groups_)) group->Stop();
  const std::list<std::shared_ptr<AdminCall>> calls(admin_);
  for (const auto& call : calls) {
    FinishAdmin(call, Status::Aborted("the client was closed"), rpc::Reply());
  }
  for (const auto& [address, link] : links_) link->Drop(Status::Aborted("the client was closed"));
  listeners.clear();
}

// --- Router -------------------------------------------------------------------------------------

Router::Router(boost::asio::io_context* context, RouterOptions options)
    : core_(std::make_shared<Core>(context, std::move(options))) {}

Router::~Router() { core_->Stop(); }

void Router::SetDirectory(CatalogueView directory) { core_->SetDirectory(std::move(directory)); }

void Router::Submit(GroupRequest request, GroupDone done) {
  core_->Submit(std::move(request), std::move(done));
}

void Router::Call(const rpc::Request& request, milliseconds timeout, AdminDone done) {
  core_->Call(request, timeout, 0, std::move(done));
}

void Router::CallNode(NodeId node, const rpc::Request& request, milliseconds timeout,
                      AdminDone done) {
  core_->Call(request, timeout, node, std::move(done));
}

void Router::Refresh(milliseconds timeout, std::function<void(Status)> done) {
  core_->Refresh(timeout, std::move(done));
}

void Router::RefreshToCurrent(milliseconds timeout, std::function<void(Status)> done) {
  core_->Refresh(timeout, std::move(done), true);
}

std::shared_ptr<const CatalogueView> Router::catalogue() const { return core_->catalogue; }

void Router::OnCatalogue(std::function<void()> changed) {
  core_->listeners.push_back(std::move(changed));
}

void Router::After(milliseconds delay, std::function<void()> then) {
  auto timer = std::make_shared<boost::asio::steady_timer>(*core_->context, delay);
  if (core_->stopped) timer->expires_after(milliseconds(0));
  core_->timers.insert(timer);
  timer->async_wait(
      [core = core_, timer, then = std::move(then)](const boost::system::error_code&) {
        core->timers.erase(timer);
        then();
      });
}

Result<Buffer> Router::Allocate(size_t bytes) {
  Result<Buffer> buffer = core_->pool->Get(bytes);
  // What is under way is bounded elsewhere; the pool only saves allocations.
  return buffer.ok() ? std::move(buffer) : Result<Buffer>(Buffer::Allocate(bytes));
}

RouterStats Router::stats() const { return core_->stats; }

void Router::Stop() { core_->Stop(); }

}  // namespace hydra
