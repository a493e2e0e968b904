// SPDX-License-Identifier: Apache-2.0
//
// What clients ask of a shard: reads, and what mutations have to read first.
#include "base/probe.h"
#include "daemon/shard.h"

namespace hydra {
namespace {

ShardAnswer Unread(const Status& why) {
  return why.code() == Code::kBusy ? ShardAnswer::kBusy : ShardAnswer::kDamaged;
}

}  // namespace

void Shard::StartRead(ShardRequest request, unsigned again) {
  if (request.context.epoch != 0 && request.context.epoch < state_.sessions().fence()) {
    HYDRA_PROBE("fence: a read checked under an older epoch is refused");
    return Answer(request, ShardAnswer::kFenced);
  }
  if (request.map_only) return AnswerMap(request);
  auto job = engine_->PlanRead(store_group_, request.lba, request.count);
  if (!job.ok()) return Answer(request, ShardAnswer::kInvalid, job.status());
  const uint64_t ticket = next_ticket_++;
  const size_t bytes = BytesOf(request.count);
  reading_[ticket] = {std::move(request), now_, again};
  out_.reads.push_back({options_.group, ticket, std::move(*job), bytes});
}

void Shard::AnswerMap(const ShardRequest& request) {
  const auto kinds = engine_->ReadMap(store_group_, request.lba, request.count);
  if (!kinds.ok()) return Answer(request, ShardAnswer::kInvalid, kinds.status());
  ReadResult map;
  for (const BlockKind kind : *kinds) map.blocks.push_back({0, kind, 0});
  Answer(request, ShardAnswer::kDone);
  out_.replies.back().data = std::move(map);
  out_.replies.back().begun = now_;
  out_.replies.back().ended = now_;
}

void Shard::ServeReads(Nanos now) {
  for (auto it = reads_.begin(); it != reads_.end();) {
    if (!it->second.answered || replica_->applied() < it->second.after || !serves_local()) {
      ++it;
      continue;
    }
    StartRead(std::move(it->second.request));
    it = reads_.erase(it);
  }
  std::erase_if(overtaken_, [&](const Overtaken& refused) {
    if (refused.by > replica_->applied()) return false;
    AnswerId(refused.request, ShardAnswer::kStale, {});
    return true;
  });
  // Compares whose blocks may have been applied by now.
  std::vector<uint64_t> tickets;
  for (const auto& [ticket, waiting] : waiting_) {
    if (!waiting.reading) tickets.push_back(ticket);
  }
  for (const uint64_t ticket : tickets) Resolve(ticket, now);
}

void Shard::ReadDone(uint64_t ticket, std::unique_ptr<ReadJob> job, Nanos now) {
  Touch();
  now_ = std::max(now_, now);
  if (ticket >> kLifeShift != options_.life) {
    HYDRA_PROBE("a read that an earlier replica of the group planned returns");
    return engine_->DropRead(std::move(job));
  }
  if (ServeDone(ticket, &job, now) || LogSearched(ticket, &job) || OwedRead(ticket, &job)) return;
  DamagedRead damaged;
  auto result = engine_->FinishRead(std::move(job), &damaged);
  ExcuseOwed(damaged, &result);
  if (!TakeRead(ticket, result, &damaged, now)) ReadFinished(ticket, std::move(result), now);
}

void Shard::ReadFinished(uint64_t ticket, Result<ReadResult> result, Nanos now) {
  const auto resolving = resolving_.find(ticket);
  if (resolving != resolving_.end()) {
    const uint64_t lock = resolving->second;
    resolving_.erase(resolving);
    const auto found = waiting_.find(lock);
    if (found == waiting_.end()) return;
    ShardRequest request = std::move(found->second.request);
    waiting_.erase(found);
    ShardAnswer refusal = ShardAnswer::kBusy;
    Outcome repeat;
    if (!result.ok()) {
      Answer(request, Unread(result.status()), result.status());
    } else if (!ready()) {
      Answer(request, ShardAnswer::kNotMaster);
    } else if (!Decide(request, &refusal, &repeat)) {
      // Before `seen` is asked: what overtook a copy may be the first one.
      AnswerId(request.id, refusal, std::move(repeat));
    } else if (!SeenAllows(request)) {
      Answer(request, ShardAnswer::kStale);
    } else {
      Resolved(std::move(request), *result, now);
    }
    ReleaseLock(lock, now);
    return;
  }
  const auto found = reading_.find(ticket);
  if (found == reading_.end()) return;
  const auto [request, since, again] = std::move(found->second);
  reading_.erase(found);
  if (!result.ok()) return Answer(request, Unread(result.status()), result.status());
  Answer(request, ShardAnswer::kDone);
  out_.replies.back().data = std::move(*result);
  out_.replies.back().begun = since;
  out_.replies.back().ended = now;
}

}  // namespace hydra
