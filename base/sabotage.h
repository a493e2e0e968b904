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

// X(enumerator, name on the command line, what it does)
#define HYDRA_SABOTAGES(X)                                                                         \
  X(kAckBeforeFlush, "ack-before-flush", "promises and acceptances leave before they are durable") \
  X(kForgetPromiseOnRestart, "forget-promise-on-restart", "a restarted node knows no promise")     \
  X(kCountDuplicateVotes, "count-duplicate-votes", "votes are counted per message, not per node")  \
  X(kSkipReproposal, "skip-reproposal", "a new master takes open instances for chosen")            \
  X(kCommitFromAnotherBallot, "commit-from-another-ballot",                                        \
    "a follower applies what it accepted in an older ballot")                                      \
  X(kReadWithoutNoop, "read-without-noop", "a new master serves before its own no-op is chosen")   \
  X(kReadWithoutLease, "read-without-lease", "a master serves reads after its lease ran out")      \
  X(kLeaseIgnoresRestart, "lease-ignores-restart", "a restarted node votes at once")               \
  X(kLeaseIgnoresDrift, "lease-ignores-drift", "leases are counted as if clocks ran alike")        \
  X(kTreatRotAsTorn, "treat-rot-as-torn", "recovery cuts the log at the first rotten batch")       \
  X(kDenyFaultyEntry, "deny-faulty-entry", "an unreadable entry is reported as never accepted")    \
  X(kWipedNodeVotes, "wiped-node-votes", "an empty disk takes its former place and votes")         \
  X(kConfigWithoutBarrier, "config-without-barrier", "entries are proposed around a config")       \
  X(kConfigLostInImage, "config-lost-in-image", "an image does not bring the configuration")       \
  X(kReuseSegmentEarly, "reuse-segment-early", "vacuum frees segments the map still points into")  \
  X(kTrustUnsyncedMap, "trust-unsynced-map", "checkpoints are not synced")                         \
  X(kApplyTwice, "apply-twice", "a repeated request is executed again")                            \
  X(kForgetSessions, "forget-sessions", "sessions do not survive a restart or an image")           \
  X(kIgnoreSeen, "ignore-seen", "a write older than what it overwrites is not refused")            \
  X(kStaleReadRound, "stale-read-round", "answers to an older read round count for a newer one")   \
  X(kAppliedNotAtomic, "applied-not-atomic", "the applied instance is saved apart from the state") \
  X(kIgnoreTruncateRecord, "ignore-truncate-record", "replay revives truncated entries")           \
  X(kRetryFailedFlush, "retry-failed-flush", "a failed flush is tried again and believed")         \
  X(kSkipBallotPersist, "skip-ballot-persist", "a promise is not written to disk at all")          \
  X(kHandoverKeepsLease, "handover-keeps-lease", "a master serves reads after handing over")       \
  X(kInstallNotExclusive, "install-not-exclusive", "timers and messages go on during an install")  \
  X(kSharedGroupCheckpoint, "shared-group-checkpoint", "groups share a checkpointed position")

namespace hydra {

enum class Sabotage : uint8_t {
#define HYDRA_SABOTAGE_ENUMERATOR(enumerator, name, what) enumerator,
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
