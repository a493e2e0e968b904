// SPDX-License-Identifier: Apache-2.0
#include "daemon/stage_times.h"

#include <algorithm>
#include <variant>

namespace hydra {
namespace {

// An entry that a peer never confirms, because it was lost or replaced, is not waited for longer.
constexpr Nanos kLongestRound = 2 * kSecond;

void Observe(Histogram* stage, Nanos from, Nanos to) {
  stage->Observe(static_cast<uint64_t>(std::max<Nanos>(to - from, 0)));
}

}  // namespace

StageTimes::StageTimes(MetricsRegistry* metrics) {
  const auto stage = [metrics](const char* kind, const char* name) {
    return metrics->GetHistogram("hydra_stage_seconds", "time that requests spend in each stage",
                                 HistogramOptions::Latency(), {{"kind", kind}, {"stage", name}});
  };
  write_queue_ = stage("write", "queue");
  write_replicate_ = stage("write", "replicate");
  write_apply_ = stage("write", "apply");
  write_reply_ = stage("write", "reply");
  read_queue_ = stage("read", "queue");
  read_disk_ = stage("read", "disk");
  read_reply_ = stage("read", "reply");
  batch_ = stage("batch", "disk");
  round_ = stage("peer", "round");
}

void StageTimes::Answered(Nanos arrived, const ShardReply& reply, Nanos now) {
  if (reply.begun == 0 || reply.ended == 0) return;
  if (reply.data) {
    Observe(read_queue_, arrived, reply.begun);
    Observe(read_disk_, reply.begun, reply.ended);
    Observe(read_reply_, reply.ended, now);
  } else if (reply.chosen != 0) {
    Observe(write_queue_, arrived, reply.begun);
    Observe(write_replicate_, reply.begun, reply.chosen);
    Observe(write_apply_, reply.chosen, reply.ended);
    Observe(write_reply_, reply.ended, now);
  }
}

void StageTimes::BatchWritten(Nanos took) { Observe(batch_, 0, took); }

void StageTimes::Sent(const PeerMessage& message, Nanos now) {
  const auto* sent = std::get_if<paxos::Message>(&message);
  const auto* accept = sent == nullptr ? nullptr : std::get_if<paxos::Accept>(&sent->body);
  if (accept == nullptr || accept->entries->empty()) return;
  Round& round = rounds_[sent->to.node];
  if (round.since != 0 && now < round.since + kLongestRound) return;
  round = {sent->group, accept->entries->back().instance, now};
}

void StageTimes::Received(const PeerMessage& message, Nanos now) {
  const auto* received = std::get_if<paxos::Message>(&message);
  const auto* accepted =
      received == nullptr ? nullptr : std::get_if<paxos::Accepted>(&received->body);
  if (accepted == nullptr) return;
  const auto found = rounds_.find(received->from.node);
  if (found == rounds_.end() || found->second.since == 0) return;
  Round& round = found->second;
  const bool confirmed =
      round.group == received->group &&
      std::any_of(accepted->ranges.begin(), accepted->ranges.end(), [&](const auto& range) {
        return range.from <= round.instance && round.instance <= range.to;
      });
  if (!confirmed) return;
  Observe(round_, round.since, now);
  round.since = 0;
}

}  // namespace hydra
