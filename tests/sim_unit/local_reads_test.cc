// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/local_reads.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace hydra::sim {
namespace {

using testing::HasSubstr;

constexpr uint64_t V(uint64_t instance, uint64_t operation = 0) {
  return instance << 16 | operation;
}

// Group 1: block 10 is 100, 101, deleted, 103; block 20 is 200 from the second instance on.
class LocalReadsTest : public testing::Test {
 protected:
  LocalReadsTest() {
    reads_.Chosen(1, 1, {{10, V(1), 100}});
    reads_.Chosen(1, 2, {{10, V(2), 101}, {20, V(2, 1), 200}});
    reads_.Chosen(1, 4, {{10, V(4), kAbsent}});
    reads_.Chosen(1, 5, {{10, V(5), 103}});
  }

  std::string See(Block block, uint64_t version, Value value, NodeId replica = 1,
                  uint64_t session = 1) {
    return reads_.Observe({replica, session, 1, std::nullopt, 0, {{block, version, value}}});
  }
  std::string SeeAsOf(uint64_t as_of, std::vector<LocalReads::Seen> blocks, uint64_t session = 1) {
    return reads_.Observe({1, session, 1, as_of, as_of, std::move(blocks)});
  }

  LocalReads reads_;
  uint64_t session_ = 100;
};

TEST_F(LocalReadsTest, OldIsFineButNeverBack) {
  EXPECT_EQ(See(10, V(1), 100), "");
  EXPECT_EQ(See(10, V(2), 101), "");
  EXPECT_EQ(See(10, V(2), 101), "");
  EXPECT_THAT(See(10, V(1), 100), HasSubstr("version 1.0 after version 2.0"));
  EXPECT_EQ(See(10, V(1), 100, /*replica=*/2), "");
  EXPECT_EQ(See(10, V(1), 100, 1, /*session=*/2), "");
}

TEST_F(LocalReadsTest, WhatWasNotChosenIsNeverShown) {
  EXPECT_THAT(See(10, V(6), 104), HasSubstr("version 6.0 is not chosen"));
  EXPECT_THAT(See(20, V(5), 103), HasSubstr("not chosen"));
  reads_.Chosen(1, 6, {{10, V(6), 104}});
  EXPECT_EQ(See(10, V(6), 104), "");
}

TEST_F(LocalReadsTest, AVersionHasOneValue) {
  EXPECT_THAT(See(10, V(2), 100), HasSubstr("version 2.0 is 101, not 100"));
  EXPECT_THAT(See(10, 0, 100), HasSubstr("without a version"));
}

TEST_F(LocalReadsTest, ABlockMayBeAsNewAsTheAnswerButNoOlderThanTheQuestion) {
  const auto see = [&](uint64_t as_of, uint64_t until, LocalReads::Seen seen) {
    LocalReads::Observation read;
    read.replica = 1;
    read.session = ++session_;
    read.group = 1;
    read.as_of = as_of;
    read.until = until;
    read.blocks = {seen};
    return reads_.Observe(read);
  };
  EXPECT_EQ(see(2, 5, {10, V(2), 101}), "");
  EXPECT_EQ(see(2, 5, {10, V(5), 103}), "");
  EXPECT_EQ(see(2, 5, {10, 0, kAbsent}), "") << "deleted in between";
  EXPECT_THAT(see(2, 5, {10, V(1), 100}), HasSubstr("as of instance 2"));
  EXPECT_THAT(see(2, 3, {10, V(5), 103}), HasSubstr("as of instance 2"));
  EXPECT_THAT(see(2, 3, {10, 0, kAbsent}), HasSubstr("as of instance 2"));
}

TEST_F(LocalReadsTest, AbsentIsBeforeTheFirstWriteOrAfterADelete) {
  EXPECT_EQ(See(10, 0, kAbsent), "");
  EXPECT_EQ(See(10, V(2), 101), "");
  EXPECT_EQ(See(10, 0, kAbsent), "");  // deleted in instance 4
  EXPECT_THAT(See(10, V(2), 101), HasSubstr("version 2.0 after version 4.0"));
  EXPECT_EQ(See(10, 0, kAbsent), "");
  EXPECT_EQ(See(10, V(5), 103), "");
  EXPECT_THAT(See(10, 0, kAbsent), HasSubstr("not deleted since"));
  EXPECT_EQ(See(20, V(2, 1), 200), "");
  EXPECT_THAT(See(20, 0, kAbsent), HasSubstr("absent after version 2.1"));
}

TEST_F(LocalReadsTest, AReadAsOfAnInstanceShowsExactlyThat) {
  EXPECT_EQ(SeeAsOf(1, {{10, V(1), 100}, {20, 0, kAbsent}}), "");
  EXPECT_EQ(SeeAsOf(3, {{10, V(2), 101}, {20, V(2, 1), 200}}), "");
  EXPECT_EQ(SeeAsOf(4, {{10, 0, kAbsent}}), "");
  EXPECT_EQ(SeeAsOf(5, {{10, V(5), 103}}), "");
  EXPECT_THAT(SeeAsOf(4, {{20, V(2, 1), 200}}), HasSubstr("as of instance 4, after one as of 5"));
}

TEST_F(LocalReadsTest, AMixOfTwoInstancesIsFound) {
  EXPECT_THAT(SeeAsOf(2, {{10, V(2), 101}, {20, 0, kAbsent}}), HasSubstr("block 20"));
  EXPECT_THAT(SeeAsOf(5, {{10, V(2), 101}}), HasSubstr("as of instance 5"));
  EXPECT_THAT(SeeAsOf(1, {{10, V(2), 101}}, /*session=*/2), HasSubstr("as of instance 1"));
}

TEST_F(LocalReadsTest, NobodyHasAppliedWhatIsNotChosen) {
  EXPECT_THAT(SeeAsOf(6, {{20, V(2, 1), 200}}), HasSubstr("only 5 are chosen"));
}

}  // namespace
}  // namespace hydra::sim
