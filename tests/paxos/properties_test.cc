// SPDX-License-Identifier: Apache-2.0
//
// What holds for any input: the arithmetic of majorities, the order of ballots, the accounting of
// windows; and agreement under any schedule of deliveries, losses, crashes and flushes.
#include <algorithm>
#include <bit>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include "base/rng.h"
#include "tests/paxos/cranked.h"
#include "tests/support/gtest_status.h"

namespace hydra::paxos::test {
namespace {

// --- Majorities
// -----------------------------------------------------------------------------------

std::vector<Member> ArbitraryMembers() {
  const size_t count = *rc::gen::inRange<size_t>(1, kMaxMembers + 1);
  std::vector<Member> members;
  for (size_t i = 0; i < count; ++i) {
    const bool voter = i == 0 || *rc::gen::inRange(0, 4) != 0;
    members.push_back({{static_cast<NodeId>(i + 1), *rc::gen::inRange<uint32_t>(1, 4)},
                       voter ? Role::kVoter : Role::kLearner});
  }
  return members;
}

uint32_t ArbitraryMajority(const Config& config) {
  uint32_t bits = *rc::gen::arbitrary<uint32_t>();
  // Voters are added until it is one.
  for (size_t i = 0; !config.IsMajority(bits); ++i) bits |= 1u << i;
  return bits;
}

std::set<MemberId> Voters(const Config& config, uint32_t bits) {
  std::set<MemberId> ids;
  for (size_t i = 0; i < config.members().size(); ++i) {
    const Member& member = config.members()[i];
    if ((bits >> i & 1) != 0 && member.role == Role::kVoter) ids.insert(member.id);
  }
  return ids;
}

bool Intersect(const std::set<MemberId>& a, const std::set<MemberId>& b) {
  return std::any_of(a.begin(), a.end(), [&](const MemberId& id) { return b.contains(id); });
}

RC_GTEST_PROP(Majority, TwoOfOneConfigurationShareAVoter, ()) {
  const Config config(1, ArbitraryMembers());
  RC_ASSERT(Intersect(Voters(config, ArbitraryMajority(config)),
                      Voters(config, ArbitraryMajority(config))));
}

RC_GTEST_PROP(Majority, OfConfigurationsOneVoterApartShareAVoter, ()) {
  std::vector<Member> members = ArbitraryMembers();
  const Config before(1, members);
  const size_t at = *rc::gen::inRange<size_t>(0, members.size());
  const bool was_voter = members[at].role == Role::kVoter;
  if (was_voter && before.voters() == 1) return;  // the last one stays
  members[at].role = was_voter ? Role::kLearner : Role::kVoter;
  const Config after(2, members);
  RC_ASSERT(Intersect(Voters(before, ArbitraryMajority(before)),
                      Voters(after, ArbitraryMajority(after))));
}

RC_GTEST_PROP(Majority, IsMoreThanHalfOfTheVotersAndLearnersDoNotCount, ()) {
  const Config config(1, ArbitraryMembers());
  const uint32_t bits = *rc::gen::arbitrary<uint32_t>();
  RC_ASSERT(config.IsMajority(bits) == (2 * Voters(config, bits).size() > config.voters()));
  RC_ASSERT(!config.IsMajority(~config.voter_mask()));
  RC_ASSERT(config.IsMajority(config.voter_mask()));
  RC_ASSERT(static_cast<size_t>(std::popcount(config.voter_mask())) == config.voters());
}

// --- Ballots
// --------------------------------------------------------------------------------------

Ballot ArbitraryBallot() {
  return {*rc::gen::inRange<uint64_t>(0, 4), *rc::gen::inRange<NodeId>(0, 4)};
}

RC_GTEST_PROP(BallotOrder, IsTotalAndDecidedByTheRoundFirst, ()) {
  const Ballot a = ArbitraryBallot();
  const Ballot b = ArbitraryBallot();
  const Ballot c = ArbitraryBallot();
  RC_ASSERT((a < b) + (b < a) + (a == b) == 1);
  RC_ASSERT(!(a < b && b < c) || a < c);
  RC_ASSERT(a.round >= b.round || a < b);
  RC_ASSERT(Ballot{} <= a);
  // Two nodes never share one.
  RC_ASSERT(a.node == b.node || a != b);
}

// --- The window
// -----------------------------------------------------------------------------------

RC_GTEST_PROP(Window, OpenEntriesNeverExceedItAndAllOfItComesBack, ()) {
  Cluster::Options options;
  options.quick = true;
  options.replica.window_instances = *rc::gen::inRange<uint32_t>(1, 10);
  options.replica.window_bytes = *rc::gen::inRange<uint64_t>(1, 1000);
  Cluster c(options);
  c.Elect(1);
  const auto steps = *rc::gen::container<std::vector<uint32_t>>(rc::gen::inRange<uint32_t>(0, 300));
  Instance first_open = c[1].commit() + 1;
  std::map<Instance, uint32_t> open;
  const auto bytes = [&] {
    uint64_t sum = 0;
    for (const auto& [instance, size] : open) sum += size;
    return sum;
  };
  for (size_t i = 0; i < steps.size(); ++i) {
    if (steps[i] % 4 == 0) {
      c.DeliverAll();
    } else {
      const Result<Instance> instance = c.Propose(1, "e" + std::to_string(i), steps[i]);
      const bool fits = open.size() < options.replica.window_instances &&
                        (bytes() == 0 || bytes() + steps[i] <= options.replica.window_bytes);
      RC_ASSERT(instance.ok() == fits);
      if (fits) open[*instance] = steps[i];
    }
    open.erase(open.begin(), open.upper_bound(c[1].commit()));
  }
  c.Settle();
  RC_ASSERT(c[1].commit() + 1 >= first_open);
  for (uint32_t i = 0; i < options.replica.window_instances; ++i) {
    RC_ASSERT(c.Propose(1, "last" + std::to_string(i)).ok());
  }
  RC_ASSERT(c.violation().empty());
}

// --- Any schedule
// ---------------------------------------------------------------------------------

struct Schedule {
  uint64_t seed = 1;
  int nodes = 3;
  int voters = 3;
  int steps = 3000;
  bool rough = false;  // crashes, cuts, changes of members
};

class RandomRun {
 public:
  explicit RandomRun(const Schedule& schedule)
      : schedule_(schedule), rng_(schedule.seed), cluster_(MakeOptions(schedule)) {
    for (int i = 0; i < schedule.nodes; ++i) rates_.push_back(rng_.Between(920, 1080));
  }

  void Run() {
    for (int i = 0; i < schedule_.steps; ++i) {
      Step();
      ASSERT_EQ(cluster_.violation(), "") << "seed " << schedule_.seed << ", step " << i;
    }
    Calm();
  }

 private:
  static Cluster::Options MakeOptions(const Schedule& schedule) {
    Rng rng(schedule.seed * 77);
    Cluster::Options options;
    options.nodes = schedule.nodes;
    options.voters = schedule.voters;
    options.seed = schedule.seed;
    options.flush = false;
    options.heartbeats = false;
    options.quick = true;
    options.replica.window_instances = static_cast<uint32_t>(rng.Between(2, 20));
    options.replica.apply_backlog = static_cast<uint32_t>(rng.Between(8, 40));
    options.replica.max_entries_per_message = static_cast<uint32_t>(rng.Between(1, 8));
    options.replica.election_timeout = static_cast<Nanos>(rng.Between(100, 500)) * kMs;
    return options;
  }

  int Any() { return static_cast<int>(rng_.Between(1, schedule_.nodes)); }

  void Step() {
    const uint64_t dice = rng_.Below(1000);
    if (dice < 420) return Network();
    if (dice < 560) return Heartbeats();
    if (dice < 700) return Disk();
    if (dice < 870) return Time();
    if (dice < 940)
      return static_cast<void>(cluster_.Propose(Any(), "e" + std::to_string(++names_)).ok());
    if (dice < 975) return static_cast<void>(Up() && cluster_.Read(up_));
    if (dice < 985) return Owner();
    if (schedule_.rough) Trouble();
  }

  // A node that is up.
  bool Up() {
    up_ = Any();
    return cluster_.up(up_);
  }

  void Network() {
    auto& messages = cluster_.messages();
    if (messages.empty()) return;
    const size_t at = rng_.Below(std::min<size_t>(messages.size(), 30));
    const uint64_t dice = rng_.Below(100);
    if (dice < 4 || messages.size() > 300) {
      messages.erase(messages.begin() + static_cast<long>(at));
      return;
    }
    if (dice < 8) messages.push_back(messages[at]);
    cluster_.DeliverAt(at);
  }

  void Heartbeats() {
    auto& heartbeats = cluster_.heartbeats();
    if (heartbeats.empty()) return;
    const size_t at = rng_.Below(std::min<size_t>(heartbeats.size(), 12));
    const uint64_t dice = rng_.Below(100);
    if (dice < 3 || heartbeats.size() > 100) {
      heartbeats.erase(heartbeats.begin() + static_cast<long>(at));
      return;
    }
    if (dice < 6) heartbeats.push_back(heartbeats[at]);
    cluster_.DeliverHeartbeatAt(at);
  }

  void Disk() {
    const int node = Any();
    if (rng_.Percent(30)) {
      cluster_.FlushOne(node);
    } else {
      cluster_.Flush(node);
    }
  }

  // One time for all, a rate for each.
  void Time() {
    const Nanos passed = static_cast<Nanos>(rng_.Below(12'000)) * 1000;
    for (int i = 1; i <= schedule_.nodes; ++i) {
      cluster_.PassAt(i, passed * static_cast<Nanos>(rates_[i - 1]) / 1000, false);
    }
    cluster_.Tick(Any());
    cluster_.Tick(Any());
  }

  void Owner() {
    if (!Up()) return;
    cluster_.Checkpoint(up_);
    if (rng_.Percent(50)) cluster_.Truncate(up_, cluster_[up_].applied());
  }

  void Trouble() {
    const int node = Any();
    switch (rng_.Below(8)) {
      case 0:
      case 1:
        if (cluster_.up(node)) {
          cluster_.Crash(node);
        } else {
          cluster_.Restart(node);
        }
        break;
      case 2: cluster_.Restart(node); break;
      case 3: cluster_.Cut(node); break;
      case 4:
      case 5:
        for (int i = 1; i <= schedule_.nodes; ++i) {
          cluster_.Heal(i);
          if (!cluster_.up(i)) cluster_.Restart(i);
        }
        break;
      case 6:
        if (rng_.Percent(70)) {
          static_cast<void>(cluster_.HandOver(node, Any()).ok());
        } else if (cluster_.up(node)) {
          cluster_.Resign(node);
        }
        break;
      case 7: Members(node); break;
    }
  }

  void Members(int node) {
    if (schedule_.voters == schedule_.nodes || !cluster_.up(node)) return;
    std::vector<Member> members = cluster_[node].config().members();
    const int other = Any();
    const auto found = std::find_if(members.begin(), members.end(), [&](const Member& member) {
      return member.id == cluster_.Id(other);
    });
    if (found == members.end()) {
      members.push_back(cluster_.Learner(other));
    } else if (found->role == Role::kLearner) {
      found->role = Role::kVoter;
    } else {
      members.erase(found);
    }
    static_cast<void>(cluster_.Reconfigure(node, members).ok());
  }

  // The faults stop: someone serves, and all members come to the same log.
  void Calm() {
    Cluster& c = cluster_;
    for (int i = 1; i <= schedule_.nodes; ++i) {
      c.Heal(i);
      if (!c.up(i)) c.Restart(i);
    }
    c.options().flush = true;
    c.options().heartbeats = true;
    for (int i = 0; i < 30; ++i) {
      c.Pass(500 * kMs, true);
      ASSERT_EQ(c.violation(), "") << "seed " << schedule_.seed << ", when calm";
      if (c.Serving() == 0 || !c.Propose(c.Serving(), "last").ok()) continue;
      c.Pass(4 * kSecond, true);
      break;
    }
    const int master = c.Serving();
    ASSERT_NE(master, 0) << "seed " << schedule_.seed << ": nobody serves\n" << c.Summary();
    for (const Member& member : c[master].config().members()) {
      const int i = static_cast<int>(member.id.node);
      EXPECT_EQ(c.Log(i), c.Log(master)) << "seed " << schedule_.seed << ", node " << i << "\n"
                                         << c.Summary();
    }
  }

  const Schedule schedule_;
  Rng rng_;
  Cluster cluster_;
  std::vector<uint64_t> rates_;
  uint64_t names_ = 0;
  int up_ = 0;
};

void RunSeeds(Schedule schedule, uint64_t from, uint64_t to) {
  for (schedule.seed = from; schedule.seed < to; ++schedule.seed) {
    RandomRun(schedule).Run();
    if (testing::Test::HasFailure()) return;
  }
}

TEST(AnySchedule, OfThreeReplicasKeepsAgreementAndTheInvariants) {
  RunSeeds({.nodes = 3, .voters = 3}, 1, 51);
}

TEST(AnySchedule, OfThreeReplicasThatCrashKeepsAgreementAndTheInvariants) {
  RunSeeds({.nodes = 3, .voters = 3, .rough = true}, 51, 111);
}

TEST(AnySchedule, OfFiveReplicasThatCrashKeepsAgreementAndTheInvariants) {
  RunSeeds({.nodes = 5, .voters = 5, .rough = true}, 111, 161);
}

TEST(AnySchedule, WithChangesOfMembersKeepsAgreementAndTheInvariants) {
  RunSeeds({.nodes = 5, .voters = 3, .rough = true}, 161, 201);
}

TEST(SoakAnySchedule, OverManySeedsKeepsAgreementAndTheInvariants) {
  RunSeeds({.nodes = 3, .voters = 3, .steps = 6000, .rough = true}, 1000, 1500);
  RunSeeds({.nodes = 5, .voters = 3, .steps = 6000, .rough = true}, 2000, 2500);
  RunSeeds({.nodes = 5, .voters = 5, .steps = 6000, .rough = true}, 3000, 3300);
}

}  // namespace
}  // namespace hydra::paxos::test
