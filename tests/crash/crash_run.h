// SPDX-License-Identifier: Apache-2.0
//
// CrashRun: one seed's life of a store. Several groups on one stream, records, applies, jobs and
// reads in random order, batches and jobs held back as threads would hold them, death by power
// loss or crash at a random moment (also while recovering), and after each reopen a comparison
// with the model. The same seed makes the same run.
#pragma once

#include <deque>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/rng.h"
#include "tests/support/install_driver.h"
#include "tests/support/store_fixture.h"

namespace hydra::test {

template <typename T>
T Pick(Rng* rng, std::initializer_list<T> choices) {
  return choices.begin()[rng->Below(choices.size())];
}

// What a run met: a test of rare events is worth nothing if they never happen.
struct Sightings {
  uint64_t freed_segments = 0;
  uint64_t relocated_bytes = 0;
  uint64_t checkpoints = 0;
  uint64_t seals = 0;
  uint64_t no_space = 0;
  uint64_t overlay_full = 0;  // Apply had to wait
  uint64_t queue_full = 0;
  uint64_t torn = 0;              // recoveries that cut a batch
  uint64_t replayed = 0;          // entries applied by recovery
  uint64_t survived_unheard = 0;  // records found although nobody was told they were durable
  uint64_t lost_unheard = 0;      // ... not found
  uint64_t unapplied = 0;         // recoveries behind what had been applied
  uint64_t deaths_in_recovery = 0;
  uint64_t dropped_groups = 0;
  uint64_t installs = 0;            // finished
  uint64_t installs_resumed = 0;    // recoveries in the middle of one
  uint64_t installs_given_up = 0;   // aborted
  uint64_t installs_raced = 0;      // their source changed meanwhile
  uint64_t installs_owing = 0;      // left blocks owed
  uint64_t installs_delivered = 0;  // ... of which some were brought

  Sightings& operator+=(const Sightings& other);
  std::string Missing(bool installs) const;  // names of what never happened
};

class CrashRun {
 public:
  // `installs`: groups are also brought up to date from a peer's blocks.
  explicit CrashRun(uint64_t seed, bool installs = false);
  ~CrashRun();

  // "" if everything held; otherwise what did not, with the options and the last steps.
  std::string Run();
  const Sightings& seen() const { return seen_; }

 private:
  struct Step {
    const char* name;
    unsigned weight;
    void (CrashRun::*run)();
  };
  struct HeldJob {
    std::unique_ptr<Job> job;
    bool ran = false;
  };
  struct HeldRead {
    std::unique_ptr<ReadJob> job;
    GroupId group = 0;
    Lba lba = 0;
    Instance applied = 0;              // when the read was planned
    std::map<Lba, BlockState> blocks;  // ... the blocks it reads
  };

  // A replica of a group that is ahead of it, to install from. It meets no faults.
  struct Peer {
    std::unique_ptr<Store> store;
    Instance applied = 0;
    InstallDriver::Options options;
  };

  static const std::vector<Step>& Steps();
  static Store::Options RandomOptions(uint64_t seed);
  static bool Greedy(uint64_t seed);  // writes more than the store can hold

  // --- The course of a life. ---
  void Start();
  void Live(unsigned steps);
  void Die();
  void Reopen();
  void CatchUp();
  void Finish();
  void CompareWithReplica(GroupId group);
  void FinishInstalls();

  // --- Steps. ---
  void ProposeNext();
  void ProposeAhead();
  void FillGap();
  void AcceptAgain();
  void SaveHardState();
  void ApplySome();
  void TruncateLog();
  void MoveBatch();
  void MoveJob();
  void RunEverything();
  void CheckpointNow();
  void RequestCheckpoint();
  void ReadSome();
  void PlanRead();
  void FinishRead();
  void CheckLog();
  void CheckNewestVersion();
  void CreateGroup();
  void DropGroup();
  void Scrub();
  void PassTime();
  void ToggleVacuum();
  void StartInstall();
  void MoveInstall();
  void AbortInstall();
  void MovePeer();
  void DeliverSome(GroupId group, InstallDriver* driver);

  // --- Helpers. ---
  std::optional<GroupId> AnyGroup();
  Ballot& BallotOf(GroupId group);
  std::vector<Operation> RandomOperations(const GroupModel& group);
  Operation RandomOperation(const GroupModel& group, uint64_t max_pages);
  void Accept(GroupId group, Instance instance, const Proposal* value);
  void LetGo();     // finishes held batches, jobs and reads
  void LoseGrip();  // forgets them, as death does
  // True if the call worked. A failure that is not in `allowed` ends the run, unless power is out.
  bool Worked(const Status& status, std::initializer_list<Code> allowed = {});
  void Check(const std::string& problems);
  void NoteEngine();  // its counters, before it goes away
  void NoteOwed();    // ... what it owes
  void CheckOwed();   // ... is all that it owes afterwards
  void NoteRecovery(const StoreModel& before);
  void Trace(std::string text);
  bool powered() { return store_.disk().powered(); }
  std::string Report();

  const uint64_t seed_;
  const bool greedy_;
  Rng rng_;
  Store store_;
  std::map<GroupId, Ballot> ballots_;
  const bool installs_;
  std::map<GroupId, Peer> peers_;  // of groups that are, or soon will be, installing
  struct Owing {
    Instance applied = 0;
    std::vector<BlockName> blocks;
  };
  std::map<GroupId, Owing> owed_;  // at the last death, where it was known
  GroupId next_group_ = 1;
  bool full_ = false;  // the store refused a write since the last free
  bool vacuum_ = true;

  Batch* batch_ = nullptr;
  std::optional<Status> batch_written_;
  std::vector<HeldJob> jobs_;
  std::vector<HeldRead> reads_;

  Sightings seen_;
  std::string failure_;
  std::deque<std::string> trace_;
};

}  // namespace hydra::test
