// SPDX-License-Identifier: Apache-2.0
//
// The exam of the simulator: bugs put in on purpose, one at a time, each of which it must find.
//
//   if (!HYDRA_SABOTAGE(kAckBeforeFlush)) WaitForFlush();
//
// Only the simulator's build (HYDRA_SIM) contains them; everywhere else the macro is the constant
// false, and a test looks for their symbols in the libraries that hydrad is made of.
#pragma once

#include <cstdint>

// X(enumerator, name on the command line, the seed that the test begins with, seeds within which it
// must be found, what it does). To begin shortly before a seed that is known to find it spares
// time; scripts/nightly begins with the first.
#define HYDRA_SABOTAGES(X)                                                                         \
  X(kAckBeforeFlush, "ack-before-flush", 36, 600,                                                  \
    "promises and acceptances leave before they are durable")                                      \
  X(kForgetPromiseOnRestart, "forget-promise-on-restart", 1, 100,                                  \
    "a restarted node knows no promise")                                                           \
  X(kSkipBallotPersist, "skip-ballot-persist", 24, 600, "a promise is not written to disk at all") \
  X(kCountDuplicateVotes, "count-duplicate-votes", 1, 600,                                         \
    "votes are counted per message, not per node")                                                 \
  X(kSkipReproposal, "skip-reproposal", 1, 100, "a new master drops what it finds open")           \
  X(kCommitFromAnotherBallot, "commit-from-another-ballot", 1, 100,                                \
    "a follower applies what it accepted in an older ballot")                                      \
  X(kReadWithoutNoop, "read-without-noop", 1, 50,                                                  \
    "a new master serves before its own no-op is chosen")                                          \
  X(kReadWithoutLease, "read-without-lease", 1, 100,                                               \
    "a master serves reads after its lease ran out")                                               \
  X(kStaleReadRound, "stale-read-round", 76, 900,                                                  \
    "answers to an older read round count for a newer one")                                        \
  X(kLeaseIgnoresRestart, "lease-ignores-restart", 36, 600, "a restarted node votes at once")      \
  X(kLeaseIgnoresDrift, "lease-ignores-drift", 1, 600,                                             \
    "leases are counted as if clocks ran alike")                                                   \
  X(kHandoverKeepsLease, "handover-keeps-lease", 180, 600,                                         \
    "a master serves reads after handing over")                                                    \
  X(kWipedNodeVotes, "wiped-node-votes", 1, 300, "an empty disk takes its former place and votes") \
  X(kConfigWithoutBarrier, "config-without-barrier", 1, 50,                                        \
    "entries are proposed around a config")                                                        \
  X(kConfigLostInImage, "config-lost-in-image", 1, 50,                                             \
    "an image does not bring the configuration")                                                   \
  X(kInstallNotExclusive, "install-not-exclusive", 1, 300,                                         \
    "timers and messages go on during an install")                                                 \
  X(kLogOutlivesSegment, "log-outlives-segment", 60, 300,                                          \
    "entries stay in the log's index when their segment is freed")                                 \
  X(kAppliedNotAtomic, "applied-not-atomic", 1, 300,                                               \
    "the applied instance is saved apart from the blocks")                                         \
  X(kSharedGroupCheckpoint, "shared-group-checkpoint", 1, 50,                                      \
    "groups share a checkpointed position")                                                        \
  X(kTreatRotAsTorn, "treat-rot-as-torn", 64, 300,                                                 \
    "recovery cuts the log at the first rotten batch")                                             \
  X(kRetryFailedFlush, "retry-failed-flush", 70, 100,                                              \
    "a failed write is flushed again and believed")                                                \
  X(kUseShortSpare, "use-short-spare", 18, 600,                                                    \
    "a segment that found no room on the disk is used all the same")                               \
  X(kReuseSegmentEarly, "reuse-segment-early", 1, 600,                                             \
    "vacuum frees a segment before a checkpoint covers it")                                        \
  X(kTrustUnsyncedMap, "trust-unsynced-map", 1, 100, "checkpoints are not synced")                 \
  X(kRepairAnyVersion, "repair-without-version-check", 52, 600,                                    \
    "a rotten block is replaced by a peer's copy of whatever version")                             \
  X(kBareForgetsOpenEntry, "bare-forgets-open-entry", 720, 1500,                                   \
    "an install without payload forgets the payload that was accepted")                            \
  X(kApplyTwice, "apply-twice", 1, 50, "a repeated request is executed again")                     \
  X(kForgetSessions, "forget-sessions", 1, 50, "sessions do not survive a restart")                \
  X(kIgnoreSeen, "ignore-seen", 1, 50, "a write older than what it overwrites is not refused")     \
  X(kIgnoreFence, "ignore-fence", 1, 50,                                                           \
    "what was checked under access rights that are gone is executed")

namespace hydra {

enum class Sabotage : uint8_t {
#define HYDRA_SABOTAGE_ENUMERATOR(enumerator, name, first, seeds, what) enumerator,
  HYDRA_SABOTAGES(HYDRA_SABOTAGE_ENUMERATOR)
#undef HYDRA_SABOTAGE_ENUMERATOR
};

}  // namespace hydra

#ifndef HYDRA_SIM

// Names the enumerator, so that a misspelt one fails to compile in every build.
#define HYDRA_SABOTAGE(enumerator) (static_cast<void>(::hydra::Sabotage::enumerator), false)

#else

#include <atomic>
#include <optional>
#include <span>
#include <string_view>

namespace hydra {

struct SabotageInfo {
  Sabotage sabotage;
  std::string_view name;
  uint64_t first;
  uint64_t seeds;
  std::string_view what;
};
std::span<const SabotageInfo> AllSabotages();
std::string_view SabotageName(Sabotage sabotage);
std::optional<Sabotage> FindSabotage(std::string_view name);

// At most one is on in the process; nullopt: none.
void SetSabotage(std::optional<Sabotage> sabotage);
std::optional<Sabotage> CurrentSabotage();

namespace sabotage_internal {
inline constexpr int kNone = -1;
extern constinit std::atomic<int> current;
}  // namespace sabotage_internal

inline bool Sabotaged(Sabotage sabotage) {
  return sabotage_internal::current.load(std::memory_order_relaxed) == static_cast<int>(sabotage);
}

}  // namespace hydra

#define HYDRA_SABOTAGE(enumerator) ::hydra::Sabotaged(::hydra::Sabotage::enumerator)

#endif
