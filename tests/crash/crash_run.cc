// SPDX-License-Identifier: Apache-2.0
#include "tests/crash/crash_run.h"

#include <algorithm>

#include <fmt/format.h>

namespace hydra::test {
namespace {

constexpr size_t kTraceLength = 60;

constexpr std::pair<const char*, uint64_t Sightings::*> kSightings[] = {
    {"a segment freed", &Sightings::freed_segments},
    {"a block relocated", &Sightings::relocated_bytes},
    {"a checkpoint", &Sightings::checkpoints},
    {"a seal", &Sightings::seals},
    {"a full store", &Sightings::no_space},
    {"a full overlay", &Sightings::overlay_full},
    {"a full queue", &Sightings::queue_full},
    {"a torn batch", &Sightings::torn},
    {"an entry applied by recovery", &Sightings::replayed},
    {"a record that survived unheard of", &Sightings::survived_unheard},
    {"a record lost unheard of", &Sightings::lost_unheard},
    {"an entry to be applied again", &Sightings::unapplied},
    {"a death in recovery", &Sightings::deaths_in_recovery},
    {"a dropped group", &Sightings::dropped_groups},
    {"an install", &Sightings::installs},
    {"an install resumed after death", &Sightings::installs_resumed},
    {"an install given up", &Sightings::installs_given_up},
    {"an install from a source that changed", &Sightings::installs_raced},
    {"an install that owes blocks", &Sightings::installs_owing},
    {"an install's block delivered", &Sightings::installs_delivered},
};

std::string DescribeSpace(const EngineStats& stats) {
  std::string text =
      fmt::format("{} spares, {} bytes queued, accounting {}; segments:\n", stats.free_segments,
                  stats.queued_bytes, stats.accounting_complete ? "complete" : "incomplete");
  for (const SegmentStats& s : stats.segments) {
    text +=
        fmt::format("  {} lane {}: {} pages used, {} live, {} open records{}\n", s.segment, s.lane,
                    s.used_pages, s.live_pages, s.open_records, s.active ? ", active" : "");
  }
  return text;
}

}  // namespace

Sightings& Sightings::operator+=(const Sightings& other) {
  for (const auto& [name, field] : kSightings) this->*field += other.*field;
  return *this;
}

std::string Sightings::Missing(bool installs) const {
  std::string missing;
  for (const auto& [name, field] : kSightings) {
    if (!installs && std::string_view(name).starts_with("an install")) continue;
    if (this->*field == 0) missing += std::string(missing.empty() ? "" : ", ") + name;
  }
  return missing;
}

Store::Options CrashRun::RandomOptions(uint64_t seed) {
  Rng rng(seed ^ 0x6f7074696f6e73);
  Store::Options options;
  options.disk.seed = seed;
  options.disk.lose_percent = Pick(&rng, {0u, 30u, 40u, 50u, 100u});
  options.disk.garble_percent =
      std::min(100 - options.disk.lose_percent, Pick(&rng, {0u, 20u, 50u}));
  options.segment_bytes = Pick<uint64_t>(&rng, {256, 256, 256, 512, 1024}) * 1024;
  EngineOptions& engine = options.engine;
  engine.reserve_segments = static_cast<uint32_t>(rng.Between(2, 4));
  engine.spare_segments = static_cast<uint32_t>(rng.Between(1, 3));
  if (Greedy(seed)) {
    options.segment_bytes = 256 * 1024;
    engine.capacity_bytes = options.segment_bytes * (engine.reserve_segments + 6);
  } else if (rng.Percent(70)) {
    const uint64_t segments = engine.reserve_segments + rng.Between(5, 20);
    engine.capacity_bytes = options.segment_bytes * segments;
  }
  engine.queue_bytes = Pick<size_t>(&rng, {256, 1024, 65536}) * 1024;
  engine.queue_records = Pick<size_t>(&rng, {8, 100, 65536});
  engine.overlay_rows = Pick<size_t>(&rng, {60, 200, 1000, 192'000});
  engine.log_entries_kept = Pick<size_t>(&rng, {1, 16, 200, 65536});
  engine.change_retention = Pick<uint64_t>(&rng, {0, 5, 50, 1 << 20});
  engine.ballast_bytes = Pick<uint64_t>(&rng, {0, 128 * 1024});
  return options;
}

bool CrashRun::Greedy(uint64_t seed) { return Rng(seed ^ 0x677265656479).Percent(20); }

CrashRun::CrashRun(uint64_t seed, bool installs)
    : seed_(seed),
      greedy_(Greedy(seed)),
      rng_(seed),
      store_(RandomOptions(seed)),
      installs_(installs) {
  store_.set_patient(false);
}

CrashRun::~CrashRun() { LoseGrip(); }

std::string CrashRun::Run() {
  Start();
  const uint64_t lives = rng_.Between(2, 5);
  for (uint64_t life = 0; life < lives && failure_.empty(); ++life) {
    if (rng_.Percent(60)) {
      const uint64_t n = 1 + rng_.Below(Pick<uint64_t>(&rng_, {20, 200, 800}));
      Trace(fmt::format("power will fail at I/O {}", n));
      store_.disk().CutPowerAfter(n);
    }
    Live(static_cast<unsigned>(rng_.Between(20, 800)));
    if (failure_.empty()) Die();
    if (failure_.empty()) Reopen();
    if (failure_.empty()) CatchUp();
  }
  if (failure_.empty()) Finish();
  return failure_.empty() ? "" : Report();
}

// --- The course of a life --------------------------------------------------------------------

void CrashRun::Start() {
  if (!Worked(store_.Create()) || !Worked(store_.Open())) return;
  store_.set_patient(true);
  const uint64_t groups = rng_.Between(1, 3);
  for (uint64_t i = 0; i < groups; ++i) CreateGroup();
  store_.set_patient(false);
}

void CrashRun::Live(unsigned steps) {
  static const unsigned kTotal = [] {
    unsigned total = 0;
    for (const Step& step : Steps()) total += step.weight;
    return total;
  }();
  for (unsigned i = 0; i < steps && powered() && failure_.empty(); ++i) {
    uint64_t at = rng_.Below(kTotal);
    const Step* step = Steps().data();
    while (at >= step->weight) at -= (step++)->weight;
    Trace(step->name);
    (this->*step->run)();
    if (powered() && !store_->poisoned().ok())
      Check("poisoned for no reason: " + store_->poisoned().ToString());
    Check(store_.Problems());
  }
}

void CrashRun::Die() {
  NoteEngine();
  NoteOwed();
  store_.disk().CutPowerAfter(0);
  const uint64_t way = powered() ? rng_.Below(100) : 100;
  if (way < 15) {
    LetGo();
    Trace("close");
    if (failure_.empty()) Worked(store_.Close());
    return;
  }
  if (way < 55) {
    Trace("crash");
    store_.disk().Crash();
    LoseGrip();
    store_.Crash();
    return;
  }
  Trace(powered() ? "power loss" : "power was lost");
  if (powered()) store_.disk().PowerLoss();
  LoseGrip();
  store_.PowerLoss();
}

void CrashRun::Reopen() {
  for (int attempt = 0; attempt < 20; ++attempt) {
    const bool cut = attempt < 5 && rng_.Percent(25);
    if (cut) {
      const uint64_t n = 1 + rng_.Below(40);
      Trace(fmt::format("open; power will fail at I/O {}", n));
      store_.disk().CutPowerAfter(n);
    } else {
      Trace("open");
    }
    const StoreModel before = store_.model();
    const Status opened = store_.Open();
    Check(store_.Problems());
    if (!failure_.empty()) return;
    if (opened.ok()) NoteRecovery(before);
    if (!powered()) ++seen_.deaths_in_recovery;
    if (powered()) store_.disk().CutPowerAfter(0);
    if (opened.ok() && powered()) {
      CheckOwed();
      Trace(store_->recovery().ToString());
      if (store_->recovery().gaps + store_->recovery().faulty != 0)
        Check("rot where there is none");
      // What was seen once must never vanish, even if nothing was written since.
      if (!rng_.Percent(30)) return;
      Trace("power loss right after recovery");
    } else if (powered()) {
      return Check("open: " + opened.ToString());
    }
    store_.PowerLoss();
  }
}

// The layer above learns again what was chosen, and applies it.
void CrashRun::CatchUp() {
  vacuum_ = true;
  if (rng_.Percent(30)) store_.disk().CutPowerAfter(1 + rng_.Below(100));
  Trace("catch up");
  store_.set_patient(true);
  const Status status = store_.ApplyAll();
  store_.set_patient(false);
  Worked(status, {Code::kNoSpace});
  Check(store_.Problems());
  if (!powered()) {
    Die();
    if (failure_.empty()) Reopen();
    return;
  }
  store_.disk().CutPowerAfter(0);
  if (failure_.empty()) Check(store_.model().VerifyBlocks(store_.engine()));
}

// Compares what recovery found with what had been queued before.
void CrashRun::NoteRecovery(const StoreModel& before) {
  seen_.torn += store_->recovery().torn;
  seen_.replayed += store_->recovery().applied;
  for (GroupId id : before.Usable()) {
    if (!store_.model().Has(id)) continue;
    const GroupModel& now = store_.model().group(id);
    seen_.unapplied += now.applied < before.group(id).applied;
    seen_.installs_resumed += now.installing;
    for (const auto& [instance, states] : before.group(id).log) {
      if (states.back().done || instance <= now.applied) continue;
      const AcceptState* found = now.Newest(instance);
      const bool survived = found != nullptr && found->ballot == states.back().ballot;
      ++(survived ? seen_.survived_unheard : seen_.lost_unheard);
    }
  }
}

void CrashRun::NoteEngine() {
  if (store_.engine() == nullptr) return;
  const EngineStats stats = store_->Stats();
  seen_.freed_segments += stats.segments_freed;
  seen_.relocated_bytes += stats.relocated_bytes;
  seen_.checkpoints += stats.checkpoints;
  seen_.seals += stats.seals;
}

void CrashRun::NoteOwed() {
  owed_.clear();
  if (!powered() || !store_->Stats().accounting_complete) return;
  for (const GroupId id : store_.model().Usable()) {
    if (store_.model().Mixed(store_.engine(), id)) continue;
    auto owed = store_->OwedBlocks(id, 0, store_->OwedCount(id) + 1);
    if (owed.ok()) owed_[id] = {store_.model().group(id).applied, std::move(*owed)};
  }
}

void CrashRun::CheckOwed() {
  for (const auto& [id, before] : owed_) {
    if (!store_.model().Has(id) || store_.model().Mixed(store_.engine(), id)) continue;
    // What was written over is owed again where that is still to be applied again.
    if (store_.model().group(id).applied != before.applied) continue;
    const auto owed = store_->OwedBlocks(id, 0, store_->OwedCount(id) + 1);
    if (!Worked(owed.status())) return;
    for (const BlockName& block : *owed) {
      if (std::find(before.blocks.begin(), before.blocks.end(), block) != before.blocks.end())
        continue;
      Check(fmt::format("group {} block {}: owed, though its payload was here", id, block.lba));
    }
  }
}

void CrashRun::FinishInstalls() {
  Trace("finish installs");
  constexpr int kMaxMoves = 10'000;
  constexpr int kPatience = 200;  // moves, each of which waits for jobs
  constexpr int kMovesAlone = 50;
  for (int move = 0; !peers_.empty() && !full_ && failure_.empty(); ++move) {
    if (move == kMaxMoves) return Check("installs do not come to an end");
    // Without a single spare vacuum has nowhere to copy to: no room, though little of it is live.
    if (move >= kPatience && store_->Stats().free_segments == 0) return;
    if (Worked(store_.Flush())) MoveInstall();
    if (move < kMovesAlone) continue;
    // What is owed and was written again at the peer comes with the log; and the accounting says
    // that nothing is.
    if (!Worked(store_.ApplyAll(), {Code::kNoSpace, Code::kBusy}) || !Worked(store_.RunJobs())) {
      return;
    }
  }
}

void CrashRun::Finish() {
  LetGo();
  store_.set_patient(true);
  store_->RequestVacuum(true);
  full_ = false;
  FinishInstalls();
  if (failure_.empty() && !peers_.empty()) return Check(store_.VerifyAll());  // no room for them
  if (!failure_.empty()) return;
  for (GroupId id : store_.model().Usable()) {
    const GroupModel& group = store_.model().group(id);
    for (Instance i = group.applied + 1; i <= group.last() && failure_.empty(); ++i) {
      if (i <= group.chosen.size() || group.Newest(i) != nullptr) continue;
      Accept(id, i, store_.model().NewProposal(group, {Operation()}));
    }
  }
  Trace("final settling");
  Status settled = store_.Settle();
  if (settled.code() == Code::kNoSpace) return Check(store_.VerifyAll());
  if (!Worked(settled)) return;
  Check(store_.VerifySettled());
  Check(store_.Problems());
  if (!failure_.empty()) return;

  std::map<GroupId, uint64_t> digests;
  for (GroupId id : store_.model().Usable()) {
    const Result<uint64_t> digest = store_->Digest(id);
    if (!Worked(digest.ok() ? Status::Ok() : digest.status())) return;
    digests[id] = *digest;
  }
  Trace("final close");
  if (!Worked(store_.Close()) || !Worked(store_.Open())) return;
  Check(store_.Problems());
  if (failure_.empty()) Check(store_.VerifySettled());
  for (const auto& [id, before] : digests) {
    if (!failure_.empty()) return;
    const Result<uint64_t> after = store_->Digest(id);
    if (!after.ok() || *after != before) Check(fmt::format("the digest of {} changed", id));
    if (rng_.Percent(25)) CompareWithReplica(id);
  }
}

// A replica that lived through none of this must end up equal.
void CrashRun::CompareWithReplica(GroupId id) {
  Store::Options options;
  options.segment_bytes = 4 << 20;
  Store replica(options);
  const GroupModel& group = store_.model().group(id);
  if (!Worked(replica.Create()) || !Worked(replica.Open())) return;
  if (!Worked(replica.CreateGroup(id, group.block_pages))) return;
  for (Instance i = 1; i <= group.applied; ++i) {
    if (!Worked(replica.Accept(id, i, kFirstBallot, group.chosen[i - 1]))) return;
    if (i % 8 == 0 && !Worked(replica.Settle())) return;
  }
  if (!Worked(replica.Settle())) return;
  const Result<uint64_t> ours = store_->Digest(id);
  const Result<uint64_t> theirs = replica->Digest(id);
  if (!ours.ok() || !theirs.ok() || *ours != *theirs) Check("a replica ends up different");
}

// --- Helpers ---------------------------------------------------------------------------------

bool CrashRun::Worked(const Status& status, std::initializer_list<Code> allowed) {
  if (status.ok()) return true;
  const bool expected = std::find(allowed.begin(), allowed.end(), status.code()) != allowed.end();
  if (!expected && powered()) Check(status.ToString());
  return false;
}

void CrashRun::Check(const std::string& problems) {
  if (failure_.empty()) failure_ = problems;
}

void CrashRun::Trace(std::string text) {
  trace_.push_back(std::move(text));
  if (trace_.size() > kTraceLength) trace_.pop_front();
}

std::string CrashRun::Report() {
  const Store::Options& o = store_.options();
  std::string report = fmt::format(
      "seed {} failed; replay: HYDRA_CRASH_FIRST_SEED={} HYDRA_CRASH_SEEDS=1 crash-test\n{}\n"
      "lose {}% garble {}% segment {} capacity {} reserve {} spares {} queue {}/{} overlay {} "
      "kept {} retention {} ballast {}\nlast steps:\n",
      seed_, seed_, failure_, o.disk.lose_percent, o.disk.garble_percent, o.segment_bytes,
      o.engine.capacity_bytes, o.engine.reserve_segments, o.engine.spare_segments,
      o.engine.queue_bytes, o.engine.queue_records, o.engine.overlay_rows,
      o.engine.log_entries_kept, o.engine.change_retention, o.engine.ballast_bytes);
  for (const std::string& line : trace_) report += "  " + line + "\n";
  return report + (store_.engine() == nullptr ? "" : DescribeSpace(store_->Stats()));
}

}  // namespace hydra::test
