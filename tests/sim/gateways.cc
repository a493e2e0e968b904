// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/gateways.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/crc32c.h"
#include "tests/sim/history.h"

namespace hydra::sim {
namespace {

constexpr size_t kMachines = 2;
constexpr size_t kGateways = 3;
constexpr Nanos kPatience = 400 * kMillisecond;  // of machines with a path
constexpr Nanos kAttempt = 150 * kMillisecond;   // of gateways with a node
constexpr unsigned kLossPercent = 4;
constexpr unsigned kResetPercent = 30;  // of lost patience
constexpr Nanos kSessionTimeout = 5 * kSecond;

}  // namespace

Gateways::Gateways(Scheduler* scheduler, Cluster* cluster, uint64_t seed)
    : scheduler_(scheduler),
      cluster_(cluster),
      rng_(seed),
      machines_(kMachines),
      gateways_(kGateways) {
  for (const GroupId group : cluster->groups()) epochs_[group] = 1;
}

void Gateways::Start() {
  for (size_t i = 0; i < machines_.size(); ++i) {
    machines_[i].path = rng_.Below(gateways_.size());
    Think(i);
  }
  for (size_t i = 0; i < gateways_.size(); ++i) Trouble(i);
}

void Gateways::SetReliable() {
  reliable_ = true;
  for (Gateway& gateway : gateways_) {
    gateway.alive = true;
    gateway.stalled_until = 0;
  }
}

void Gateways::StopIssuing() {
  issuing_ = false;
  for (size_t i = 0; i < machines_.size(); ++i) {
    for (const GroupId group : cluster_->groups()) Look(i, group, [](uint64_t) {});
  }
}

Block Gateways::BlockOf(size_t machine, GroupId group) const {
  return uint64_t{group} << 32 | LbaOf(machine);
}

// --- Machines -----------------------------------------------------------------------------------

void Gateways::Think(size_t machine) {
  const auto delay = static_cast<Nanos>(rng_.Below(60)) * kMillisecond;
  scheduler_->After(delay, {"machine", 0, machine}, [this, machine] { Begin(machine); });
}

void Gateways::Begin(size_t machine) {
  if (!issuing_) return;
  const auto& groups = cluster_->groups();
  const GroupId group = groups[rng_.Below(groups.size())];
  if (rng_.Percent(25)) return Look(machine, group, [this, machine](uint64_t) { Think(machine); });
  ++open_;
  ++machines_[machine].issued[group];
  Dispatch(machine, group);
}

// The command goes its present way, as a new one: what was sent before counts for nothing.
void Gateways::Dispatch(size_t machine, GroupId group) {
  Machine& m = machines_[machine];
  Command command;
  command.id = next_id_++;
  command.machine = machine;
  command.group = group;
  command.number = m.issued[group];
  m.current = command.id;
  const size_t path = m.path;
  m.patience = scheduler_->After(kPatience, {"path", 0, machine},
                                 [this, machine, group] { LosePatience(machine, group); });
  if (!reliable_ && rng_.Percent(kLossPercent)) return;
  scheduler_->After(Delay(), {"command", 0, command.id, path},
                    [this, path, command] { Arrive(path, command); });
}

void Gateways::LosePatience(size_t machine, GroupId group) {
  Machine& m = machines_[machine];
  m.current = 0;
  m.path = (m.path + 1 + rng_.Below(gateways_.size() - 1)) % gateways_.size();
  if (rng_.Percent(kResetPercent)) return Reset(machine, group);
  Dispatch(machine, group);
}

// Nothing that is under way to this group may happen when it has ended.
void Gateways::Reset(size_t machine, GroupId group) {
  const uint64_t epoch = ++epochs_[group];
  auto asked = std::make_unique<Asked>();
  asked->group = group;
  asked->request.context.kind = RequestKind::kFence;
  asked->request.context.epoch = epoch;
  asked->request.op.kind = ::hydra::OpKind::kOpaque;
  asked->done = [this, machine, group](const ShardReply&, bool) {
    Look(machine, group, [this, machine, group](uint64_t before) {
      const auto later = static_cast<Nanos>(rng_.Below(1500)) * kMillisecond;
      scheduler_->After(later, {"after reset", 0, machine}, [this, machine, group, before] {
        Look(machine, group, [this, machine, group, before](uint64_t after) {
          if (after != before) {
            on_failure_(
                fmt::format("machine {} group {}: number {} was written after a reset that "
                            "left {}: a fenced write happened",
                            machine, group, after, before));
            return;
          }
          ++machines_[machine].issued[group];
          Dispatch(machine, group);
        });
      });
    });
  };
  Ask(std::move(asked));
}

void Gateways::Acknowledged(const Command& command) {
  Machine& m = machines_[command.machine];
  if (m.current != command.id) return;  // it does not listen there any more
  m.current = 0;
  scheduler_->Cancel(m.patience);
  m.acknowledged[command.group] = command.number;
  ++finished_;
  --open_;
  if (rng_.Percent(50)) {
    const size_t machine = command.machine;
    return Look(machine, command.group, [this, machine](uint64_t) { Think(machine); });
  }
  Think(command.machine);
}

// A linearizable read: never less than what was acknowledged when it began.
void Gateways::Look(size_t machine, GroupId group, std::function<void(uint64_t)> then) {
  ++open_;
  auto asked = std::make_unique<Asked>();
  asked->group = group;
  asked->request.kind = ShardRequest::Kind::kRead;
  asked->request.lba = LbaOf(machine);
  asked->request.count = 1;
  if (rng_.Percent(50)) asked->request.context.epoch = epochs_[group];
  const uint64_t floor = machines_[machine].acknowledged[group];
  asked->done = [this, machine, group, floor, then = std::move(then)](const ShardReply& reply,
                                                                      bool) {
    --open_;
    ++finished_;
    const Result<Value> value = ParseBlock(BlockOf(machine, group), reply.data->data.span());
    const uint64_t issued = machines_[machine].issued[group];
    if (!value.ok() || *value < floor || *value > issued) {
      on_failure_(
          fmt::format("machine {} group {} reads {}, of {} issued: an old write came after "
                      "the newer one, number {}",
                      machine, group, value.ok() ? std::to_string(*value) : "what nobody wrote",
                      issued, floor));
      return;
    }
    then(*value);
  };
  Ask(std::move(asked));
}

// --- Gateways -----------------------------------------------------------------------------------

void Gateways::Trouble(size_t gateway) {
  const auto next = static_cast<Nanos>(rng_.Between(300, 4000)) * kMillisecond;
  scheduler_->After(next, {"gateway", 0, gateway}, [this, gateway] {
    if (reliable_) return;
    Gateway& g = gateways_[gateway];
    ++faults_;
    const auto length = static_cast<Nanos>(rng_.Between(50, 2500)) * kMillisecond;
    if (rng_.Percent(60)) {
      g.stalled_until = scheduler_->now() + length;
    } else {
      const uint64_t life = g.life + 1;
      g = Gateway{};
      g.life = life;
      g.alive = false;
      scheduler_->After(length, {"gateway back", 0, gateway},
                        [this, gateway] { gateways_[gateway].alive = true; });
    }
    Trouble(gateway);
  });
}

void Gateways::Arrive(size_t gateway, Command command) {
  Gateway& g = gateways_[gateway];
  if (!g.alive) return;
  command.seen = std::max<Instance>(g.seen[command.group], 1);
  command.epoch = epochs_[command.group];
  Serve(gateway, std::move(command));
}

// When it does not stall (any more).
void Gateways::Serve(size_t gateway, Command command) {
  Gateway& g = gateways_[gateway];
  if (scheduler_->now() < g.stalled_until) {
    scheduler_->At(g.stalled_until, {"stalled", 0, command.id},
                   [this, gateway, life = g.life, command] {
                     if (gateways_[gateway].life == life) Serve(gateway, command);
                   });
    return;
  }
  Session& session = g.sessions[command.group];
  if (session.id != 0) return Submit(gateway, std::move(command));
  session.waiting.push_back(std::move(command));
  if (!session.opening) OpenSession(gateway, session.waiting.back().group);
}

void Gateways::OpenSession(size_t gateway, GroupId group) {
  gateways_[gateway].sessions[group].opening = true;
  auto asked = std::make_unique<Asked>();
  asked->group = group;
  asked->gateway = gateway;
  asked->life = gateways_[gateway].life;
  asked->request.context.kind = RequestKind::kOpenSession;
  asked->request.context.timeout = kSessionTimeout;
  asked->request.op.kind = ::hydra::OpKind::kOpaque;
  asked->done = [this, gateway, group](const ShardReply& reply, bool) {
    Session& session = gateways_[gateway].sessions[group];
    session.opening = false;
    if (reply.outcome.code == Code::kOk) session.id = VersionInstance(reply.outcome.version);
    std::deque<Command> waiting = std::move(session.waiting);
    session.waiting.clear();
    for (Command& command : waiting) Serve(gateway, std::move(command));
  };
  Ask(std::move(asked));
}

void Gateways::Submit(size_t gateway, Command command) {
  Session& session = gateways_[gateway].sessions[command.group];
  command.session = session.id;
  command.seq = session.next_seq++;
  session.unanswered.insert(command.seq);
  auto asked = std::make_unique<Asked>();
  asked->group = command.group;
  asked->gateway = gateway;
  asked->life = gateways_[gateway].life;
  ShardRequest& request = asked->request;
  request.context.kind = RequestKind::kWrite;
  request.context.session = command.session;
  request.context.seq = command.seq;
  request.context.lowest_unanswered = *session.unanswered.begin();
  request.context.epoch = command.epoch;
  request.seen = command.seen;
  request.op.kind = ::hydra::OpKind::kWrite;
  request.op.block_pages = 1;
  request.op.lba = LbaOf(command.machine);
  request.op.count = 1;
  Buffer data = Buffer::Allocate(kPageSize);
  FillBlock(BlockOf(command.machine, command.group), command.number, data.span());
  request.op.crcs.push_back(Crc32c(data.span()));
  request.payload.push_back(BufferSlice{data, 0, data.size()});
  asked->done = [this, gateway, command](const ShardReply& reply, bool maybe) {
    Answered(gateway, command, reply, maybe);
  };
  Ask(std::move(asked));
}

void Gateways::Answered(size_t gateway, Command command, const ShardReply& reply, bool maybe) {
  Gateway& g = gateways_[gateway];
  g.seen[command.group] = std::max(g.seen[command.group], reply.commit);
  Session& session = g.sessions[command.group];
  if (session.id == command.session) session.unanswered.erase(command.seq);
  switch (reply.answer) {
    case ShardAnswer::kDone:
      if (!reliable_ && rng_.Percent(kLossPercent)) return;
      scheduler_->After(Delay(), {"answer", 0, command.id},
                        [this, command] { Acknowledged(command); });
      return;
    case ShardAnswer::kSessionExpired:
      if (session.id == command.session) session.id = 0;
      break;
    case ShardAnswer::kStale:
    case ShardAnswer::kFenced: break;
    default:
      on_failure_(fmt::format("command {} was answered {} ({})", command.id,
                              static_cast<int>(reply.answer), reply.status.ToString()));
      return;
  }
  // Of an earlier copy nothing is known: who asked has to lose patience.
  if (maybe) return;
  command.seen = std::max<Instance>(g.seen[command.group], 1);
  command.epoch = epochs_[command.group];
  ProveAlive(gateway, std::move(command));
}

void Gateways::ProveAlive(size_t gateway, Command command) {
  const uint64_t life = gateways_[gateway].life;
  scheduler_->After(Delay(), {"still there?", 0, command.id}, [this, gateway, life, command] {
    const Machine& m = machines_[command.machine];
    if (m.current != command.id || m.path != gateway) return;
    scheduler_->After(Delay(), {"still there", 0, command.id}, [this, gateway, life, command] {
      if (gateways_[gateway].life == life) Serve(gateway, command);
    });
  });
}

// --- Nodes --------------------------------------------------------------------------------------

void Gateways::Ask(std::unique_ptr<Asked> asked) {
  const uint64_t key = next_id_++;
  asked_.emplace(key, std::move(asked));
  Send(key);
}

void Gateways::Send(uint64_t key) {
  const auto found = asked_.find(key);
  if (found == asked_.end()) return;
  Asked* asked = found->second.get();
  const bool direct = asked->gateway == kDirect;
  if (!direct && gateways_[asked->gateway].life != asked->life) {
    asked_.erase(found);
    return;
  }
  const auto& nodes = cluster_->nodes();
  NodeId target = direct ? 0 : gateways_[asked->gateway].masters[asked->group];
  if (target == 0 || rng_.Percent(10)) target = nodes[rng_.Below(nodes.size())];
  const uint64_t id = next_id_++;
  asked->attempt = id;
  attempts_[id] = key;
  asked->timer = scheduler_->After(kAttempt, {"attempt", 0, key}, [this, key] {
    Asked* silent = asked_.at(key).get();
    silent->maybe = true;
    if (silent->gateway != kDirect && gateways_[silent->gateway].life == silent->life) {
      gateways_[silent->gateway].masters.erase(silent->group);
    }
    Send(key);
  });
  if (!reliable_ && rng_.Percent(kLossPercent)) return;
  auto request = std::make_shared<ShardRequest>(asked->request);
  request->id = id;
  // Some are very late.
  Nanos delay = Delay();
  if (!reliable_ && rng_.Percent(3)) delay = static_cast<Nanos>(rng_.Below(3000)) * kMillisecond;
  scheduler_->After(delay, {"gateway request", target, id},
                    [this, target, group = asked->group, request] {
                      if (cluster_->alive(target)) {
                        cluster_->Submit(target, group, std::move(*request));
                      }
                    });
}

void Gateways::OnReply(NodeId from, const ShardReply& reply) {
  if (!reliable_ && rng_.Percent(kLossPercent)) return;
  auto shared = std::make_shared<ShardReply>(reply);
  scheduler_->After(Delay(), {"gateway reply", from, reply.id}, [this, from, shared] {
    const auto attempt = attempts_.find(shared->id);
    if (attempt == attempts_.end()) return;
    const uint64_t key = attempt->second;
    attempts_.erase(attempt);
    const auto found = asked_.find(key);
    if (found == asked_.end()) return;
    Asked* asked = found->second.get();
    const bool direct = asked->gateway == kDirect;
    if (!direct && gateways_[asked->gateway].life != asked->life) return;
    if (shared->answer == ShardAnswer::kFenced &&
        asked->request.kind == ShardRequest::Kind::kRead) {
      asked->request.context.epoch = epochs_[asked->group];
      shared->answer = ShardAnswer::kBusy;
    }
    const bool again =
        shared->answer == ShardAnswer::kNotMaster || shared->answer == ShardAnswer::kBusy ||
        shared->answer == ShardAnswer::kNoSpace || shared->answer == ShardAnswer::kUnknown ||
        shared->answer == ShardAnswer::kDamaged;
    if (again) {
      if (shared->answer == ShardAnswer::kUnknown) asked->maybe = true;
      if (shared->id != asked->attempt) return;
      scheduler_->Cancel(asked->timer);
      if (!direct) gateways_[asked->gateway].masters[asked->group] = shared->master;
      asked->timer = scheduler_->After(static_cast<Nanos>(rng_.Between(1, 40)) * kMillisecond,
                                       {"gateway again", 0, key}, [this, key] { Send(key); });
      return;
    }
    scheduler_->Cancel(asked->timer);
    if (!direct) gateways_[asked->gateway].masters[asked->group] = from;
    const std::unique_ptr<Asked> done = std::move(found->second);
    asked_.erase(found);
    done->done(*shared, done->maybe);
  });
}

}  // namespace hydra::sim
