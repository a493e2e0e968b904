// SPDX-License-Identifier: Apache-2.0
//
// Applying is total: an entry may have been decided upon one that was lost with its master, and is
// then applied all the same, alike on all replicas.
#include "daemon/group_state.h"

#include <gtest/gtest.h>

#include "tests/support/gtest_status.h"

namespace hydra {
namespace {

class GroupStates : public testing::Test {
 protected:
  static Entry One(const RequestContext& context, OpKind kind, Nanos interval = 0) {
    EntryBuilder builder(1);
    Operation op;
    op.kind = kind;
    if (kind == OpKind::kZero) op.count = 1;
    EXPECT_OK(builder.Add(op, context));
    return builder.Build(interval);
  }
  static Entry Open() {
    RequestContext context;
    context.kind = RequestKind::kOpenSession;
    context.timeout = 2 * kSecond;
    return One(context, OpKind::kOpaque);
  }
  static Entry Zero(Instance session, uint64_t seq, uint64_t lowest, Nanos interval = 0) {
    RequestContext context;
    context.kind = RequestKind::kZero;
    context.session = session;
    context.seq = seq;
    context.lowest_unanswered = lowest;
    return One(context, OpKind::kZero, interval);
  }
  std::vector<Outcome> Apply(const Entry& entry) {
    const auto outcomes = state_.Apply(++instance_, entry);
    EXPECT_OK(outcomes.status());
    return outcomes.ok() ? *outcomes : std::vector<Outcome>(1);
  }

  GroupState state_;
  Instance instance_ = 0;
};

// Its master had renewed the session by an entry before, which is now a no-op.
TEST_F(GroupStates, AMutationOfASessionThatExpiredIsExecutedAndForgotten) {
  Apply(Open());
  const std::vector<Outcome> outcomes = Apply(Zero(1, 1, 1, 3 * kSecond));
  EXPECT_EQ(outcomes[0], (Outcome{Code::kOk, MakeVersion(2, 0), {}}));
  EXPECT_EQ(state_.sessions().sessions(), 0u);
  EXPECT_OK(GroupState::Decode(AsBytes(state_.Encode())).status());
}

// An entry before had acknowledged all that fills the window.
TEST_F(GroupStates, AMutationBeyondTheWindowIsExecutedAndRemembered) {
  Apply(Open());
  for (uint64_t seq = 1; seq <= SessionTable::kMaxOutcomes; ++seq) Apply(Zero(1, seq, 1));
  const uint64_t seq = SessionTable::kMaxOutcomes + 1;
  const std::vector<Outcome> outcomes = Apply(Zero(1, seq, 1));
  EXPECT_EQ(VersionInstance(outcomes[0].version), instance_);
  const Verdict verdict = state_.sessions().Look({1, seq, 1, 0});
  ASSERT_EQ(verdict.decision, Decision::kRepeat);
  EXPECT_EQ(*verdict.first, outcomes[0]);
  const auto back = GroupState::Decode(AsBytes(state_.Encode()));
  ASSERT_OK(back.status());
  EXPECT_EQ(back->Digest(), state_.Digest());
}

TEST_F(GroupStates, ARepeatHasTheFirstOutcome) {
  Apply(Open());
  const std::vector<Outcome> first = Apply(Zero(1, 1, 1));
  EXPECT_EQ(Apply(Zero(1, 1, 1)), first);
}

}  // namespace
}  // namespace hydra
