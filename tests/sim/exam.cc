// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/exam.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/check.h"

namespace hydra::sim {
namespace {

using Json = nlohmann::json;

// What a failure is about, told by its words.
enum Complaint : unsigned {
  kDiffer = 1 << 0,        // replicas applied, or show, different things
  kCheck = 1 << 1,         // an invariant, or a check in the product itself
  kStaleRead = 1 << 2,     // no order explains what clients saw
  kLocalRead = 1 << 3,     // a replica shows what it had not applied
  kStoreFails = 1 << 4,    // ... or lost something, and no fault excuses it
  kWritesOn = 1 << 5,      // after a failed write
  kOverwritten = 1 << 6,   // what a write had not seen
  kWrongMembers = 1 << 7,  // not the configuration that was applied
  kStuck = 1 << 8,         // liveness
  kWrongAnswer = 1 << 9,   // that no client can be given
  kOldWrite = 1 << 10,     // after a newer one, through another gateway
  kFencedWrite = 1 << 11,
  kAgreement = kDiffer | kCheck,
  kLostEntry = kAgreement | kStaleRead | kLocalRead,
};

constexpr std::pair<Complaint, const char*> kWords[] = {
    {kDiffer, "is not what another replica applied"},
    {kDiffer, "the blocks of node"},
    {kDiffer, "the state of node"},
    {kCheck, ": invariant "},
    {kCheck, "check failed"},
    {kStaleRead, "not linearizable"},
    {kLocalRead, "local read at"},
    {kStoreFails, "fails without a cause"},
    {kWritesOn, "goes on after a failed write"},
    {kOverwritten, "overwrote the newer one"},
    {kWrongMembers, "not the configuration that it applied"},
    {kStuck, "does not recover"},
    {kWrongAnswer, "was answered"},
    {kWrongAnswer, "with data that nobody wrote"},
    {kOldWrite, "an old write came after the newer one"},
    {kFencedWrite, "a fenced write happened"},
};

unsigned ExpectedOf(Sabotage sabotage) {
  switch (sabotage) {
    case Sabotage::kAckBeforeFlush:
    case Sabotage::kForgetPromiseOnRestart:
    case Sabotage::kSkipBallotPersist:
    case Sabotage::kCountDuplicateVotes:
    case Sabotage::kSkipReproposal:
    case Sabotage::kCommitFromAnotherBallot:
    case Sabotage::kWipedNodeVotes:
    case Sabotage::kTreatRotAsTorn: return kLostEntry;
    case Sabotage::kReadWithoutNoop: return kCheck | kStaleRead;
    case Sabotage::kReadWithoutLease:
    case Sabotage::kStaleReadRound:
    case Sabotage::kLeaseIgnoresRestart:
    case Sabotage::kLeaseIgnoresDrift:
    case Sabotage::kHandoverKeepsLease: return kStaleRead;
    case Sabotage::kConfigWithoutBarrier: return kAgreement;
    case Sabotage::kConfigLostInImage: return kWrongMembers;
    case Sabotage::kInstallNotExclusive: return kLostEntry | kStoreFails;
    case Sabotage::kLogOutlivesSegment: return kStuck | kStoreFails;
    case Sabotage::kBareForgetsOpenEntry: return kStuck | kStoreFails;
    case Sabotage::kAppliedNotAtomic: return kLostEntry | kStoreFails;
    case Sabotage::kSharedGroupCheckpoint: return kLostEntry | kStoreFails;
    case Sabotage::kRetryFailedFlush: return kWritesOn;
    case Sabotage::kUseShortSpare: return kStoreFails;
    case Sabotage::kReuseSegmentEarly: return kLostEntry | kStoreFails;
    case Sabotage::kTrustUnsyncedMap: return kLostEntry | kStoreFails;
    case Sabotage::kRepairAnyVersion: return kLostEntry | kWrongAnswer;
    case Sabotage::kApplyTwice: return kLostEntry;
    case Sabotage::kForgetSessions: return kLostEntry;
    case Sabotage::kIgnoreSeen: return kOverwritten | kOldWrite;
    case Sabotage::kIgnoreFence: return kFencedWrite;
  }
  HYDRA_CHECK(false);
}

// Looks for a seed that fails with the sabotage, fittingly, and only with it.
ExamRow Examine(Sabotage sabotage, const SeedRange& all, const RunOptions& run) {
  const RealClock clock;
  const Nanos began = clock.Now();
  CampaignOptions options;
  options.run = run;
  options.run.sabotage = sabotage;
  options.seeds = all;
  CampaignOptions without = options;
  without.run.sabotage.reset();
  ExamRow row;
  row.sabotage = sabotage;
  row.limit = all.last - all.first + 1;
  while (options.seeds.first <= all.last && !row.caught_by) {
    const CampaignResult result = RunCampaign(options, RunSeed);
    if (result.ok()) break;
    const SeedFailure& failure = result.failures.front();
    without.seeds = {failure.seed, failure.seed};
    if (!Fits(sabotage, failure.text)) {
      row.unfitting.push_back(failure.seed);
    } else if (!RunCampaign(without, RunSeed).ok()) {
      row.fails_anyway.push_back(failure.seed);
    } else {
      row.caught_by = failure.seed;
      row.failure = failure.text;
    }
    options.seeds.first = failure.seed + 1;
  }
  row.seeds = row.caught_by.value_or(all.last) - all.first + 1;
  row.wall_seconds = static_cast<double>(clock.Now() - began) / kSecond;
  return row;
}

Json ToJson(const ExamRow& row) {
  return {{"limit", row.limit},
          {"seeds", row.seeds},
          {"caught", row.caught_by.has_value()},
          {"seed", row.caught_by.value_or(0)},
          {"failure", row.failure},
          {"fails_anyway", row.fails_anyway},
          {"unfitting", row.unfitting},
          {"wall_seconds", row.wall_seconds}};
}

ExamRow FromJson(Sabotage sabotage, const Json& json) {
  ExamRow row;
  row.sabotage = sabotage;
  row.limit = json["limit"];
  row.seeds = json["seeds"];
  if (json["caught"].get<bool>()) row.caught_by = json["seed"].get<uint64_t>();
  row.failure = json["failure"];
  row.fails_anyway = json["fails_anyway"].get<std::vector<uint64_t>>();
  row.unfitting = json["unfitting"].get<std::vector<uint64_t>>();
  row.wall_seconds = json["wall_seconds"];
  return row;
}

}  // namespace

bool Fits(Sabotage sabotage, const std::string& failure) {
  // The first line says what it is; others may quote anything.
  const std::string_view text = std::string_view(failure).substr(0, failure.find("last events:"));
  const unsigned expected = ExpectedOf(sabotage);
  return std::any_of(std::begin(kWords), std::end(kWords), [&](const auto& words) {
    return (words.first & expected) != 0 && text.find(words.second) != std::string_view::npos;
  });
}

// A campaign whose "seeds" are the sabotages: each is examined in a child process by a campaign of
// its own, with one seed at a time, so that the seed that catches it is always the same.
std::vector<ExamRow> TakeExam(const ExamOptions& options) {
  HYDRA_CHECK(!options.sabotages.empty());
  const auto seeds_of = [&](Sabotage sabotage) {
    if (options.seeds) return *options.seeds;
    for (const SabotageInfo& info : AllSabotages()) {
      if (info.sabotage != sabotage) continue;
      return SeedRange{info.first, info.first + info.seeds - 1};
    }
    HYDRA_CHECK(false);
  };
  CampaignOptions campaign;
  campaign.seeds = {0, options.sabotages.size() - 1};
  campaign.jobs = options.jobs;
  campaign.max_failures = std::numeric_limits<unsigned>::max();
  campaign.seed_wall_time = 3600 * kSecond;
  const CampaignResult result = RunCampaign(campaign, [&](const RunOptions& run) {
    const Sabotage sabotage = options.sabotages[run.seed];
    const ExamRow row = Examine(sabotage, seeds_of(sabotage), options.run);
    if (options.on_row) options.on_row(row);
    RunResult as_result;
    as_result.ok = false;
    as_result.knobs = ToJson(row).dump(-1, ' ', false, Json::error_handler_t::replace);
    return as_result;
  });
  std::vector<ExamRow> rows;
  for (const SeedFailure& failure : result.failures) {
    HYDRA_CHECK(!failure.knobs.empty());  // the examiner itself died
    rows.push_back(FromJson(options.sabotages[failure.seed], Json::parse(failure.knobs)));
  }
  HYDRA_CHECK(rows.size() == options.sabotages.size());
  return rows;
}

}  // namespace hydra::sim
