// SPDX-License-Identifier: Apache-2.0
#include "daemon/self_watch.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace hydra {

void SelfWatch::Judge(Verdict* verdict, bool bad, bool doubtful, const std::string& complaint,
                      Nanos now) {
  // After a time without any look it begins anew.
  if (now > verdict->last_bad + kLongestBreak) verdict->bad_since = 0;
  if (bad || doubtful) verdict->last_bad = now;
  if (!verdict->complaint.empty()) {
    if (now >= verdict->last_bad + kFitAfter) *verdict = {};
    return;
  }
  if (!bad) {
    verdict->bad_since = 0;
    return;
  }
  if (verdict->bad_since == 0) verdict->bad_since = now;
  if (now >= verdict->bad_since + kUnfitAfter) verdict->complaint = complaint;
}

void SelfWatch::LookAtDisk(const Disk& disk, Nanos now) {
  const uint64_t writes = disk.writes - last_.writes;
  const uint64_t answers = disk.answers - last_.answers;
  const Nanos mean =
      writes == 0 ? 0 : static_cast<Nanos>((disk.write_nanos - last_.write_nanos) / writes);
  const Nanos waiting = disk.writing_since == 0 ? 0 : now - disk.writing_since;
  const Nanos took = std::max(mean, waiting);
  const Nanos answered =
      answers == 0 ? 0 : static_cast<Nanos>((disk.answer_nanos - last_.answer_nanos) / answers);
  last_ = disk;
  if (disk.longest_write >= kHangingWrite + kUnfitAfter) {
    disk_.last_bad = now;
    disk_.complaint =
        fmt::format("its disk took {} ms for a write", disk.longest_write / kMillisecond);
    return;
  }
  const bool slow = took >= kSlowWrite;
  const bool alone = answers > 0 && took >= kSlowerThanOthers * answered;
  // A write that has only just begun says nothing, nor does a disk that nobody uses.
  if (!slow && writes == 0 && disk_.complaint.empty()) return;
  const std::string complaint =
      alone ? fmt::format("its disk takes {} ms to write what others write in {:.1f} ms",
                          took / kMillisecond,
                          static_cast<double>(answered) / static_cast<double>(kMillisecond))
            : fmt::format("its disk has been writing for {} ms", took / kMillisecond);
  Judge(&disk_, slow && (alone || waiting >= kHangingWrite), slow, complaint, now);
}

bool SelfWatch::IsLossy(NodeId peer, const Beats& counts, Nanos now) const {
  const auto& before = beats_.front().second;
  const auto found = before.find(peer);
  if (found == before.end()) return false;
  const uint64_t asked = counts.asked - found->second.asked;
  const uint64_t answered = counts.answered - found->second.answered;
  if (asked < kFewestBeats || answered * 100 > asked * (100 - kUnansweredPercent)) return false;
  // The newest look of those that are old enough.
  const auto lately = std::find_if(beats_.rbegin(), beats_.rend(),
                                   [&](const auto& look) { return look.first + kOutage <= now; });
  if (lately == beats_.rend() || !lately->second.contains(peer)) return false;
  return counts.answered > lately->second.at(peer).answered;
}

void SelfWatch::LookAtLinks(const std::map<NodeId, Beats>& beats, Nanos now) {
  beats_.emplace_back(now, beats);
  while (beats_.front().first + kLinkWindow < now) beats_.pop_front();
  const auto lossy = static_cast<size_t>(std::ranges::count_if(
      beats, [&](const auto& peer) { return IsLossy(peer.first, peer.second, now); }));
  const bool bad = lossy >= 2 && 2 * lossy > beats.size();
  Judge(&links_, bad, bad,
        fmt::format("{} of its {} peers do not answer every fourth heartbeat", lossy, beats.size()),
        now);
}

}  // namespace hydra
