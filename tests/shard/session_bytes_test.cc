// SPDX-License-Identifier: Apache-2.0
//
// The bytes of a session table: what they are, and that nothing else is believed.
#include <initializer_list>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/coding.h"
#include "daemon/session_table.h"
#include "tests/support/gtest_status.h"

namespace hydra {
namespace {

// Numbers become varints.
std::string Varints(std::initializer_list<uint64_t> values) {
  std::string bytes;
  for (const uint64_t value : values) PutVarint64(&bytes, value);
  return bytes;
}

// A table of one format-1 head and whatever follows.
std::string Table(uint64_t now, uint64_t last_opened, uint64_t sessions, const std::string& rest) {
  return "\x01" + Varints({now, 0, last_opened, sessions}) + rest;
}

std::string Session(uint64_t step, uint64_t slots, uint64_t lowest = 1, uint64_t timeout = kSecond,
                    uint64_t idle = 0) {
  return Varints({step, timeout, idle, lowest, slots});
}

// An executed slot without detail, nine bytes or less.
std::string Slot(uint64_t gap) { return Varints({gap}) + "\x01" + Varints({0, 7, 0}); }

Status DecodeTableStatus(const std::string& bytes) {
  return SessionTable::Decode(AsBytes(bytes)).status();
}

SessionTable SampleTable() {
  SessionTable table;
  EXPECT_OK(table.Open(5, 2 * kSecond).status());
  EXPECT_OK(table.Open(9, 3 * kSecond).status());
  table.Advance(1000);
  EXPECT_TRUE(table.SetFence(3));
  EXPECT_EQ(table.Begin({5, 10, 8, 3}).decision, Decision::kExecute);
  table.Finish(5, 10, {Code::kFailedPrecondition, 300, "at 7"});
  EXPECT_EQ(table.Cancel(5, 12, 1).result, CancelResult::kCancelled);
  EXPECT_OK(table.Open(11, kSecond).status());
  EXPECT_TRUE(table.Close(11));
  return table;
}

TEST(SessionBytes, AreWhatTheHeaderSays) {
  const std::string expected =
      "\x01" + Varints({1000, 3, 11, 2}) +                      // now, fence, last opened, sessions
      Varints({5, 2 * kSecond, 0, 8, 2}) +                      // session 5
      Varints({2}) + "\x01\x05" + Varints({300, 4}) + "at 7" +  // seq 10, executed
      Varints({2}) + "\x02" +                                   // seq 12, cancelled
      Varints({4, 3 * kSecond, 1000, 1, 0});                    // session 9
  EXPECT_EQ(SampleTable().Encode(), expected);
}

TEST(SessionBytes, ComeBackAsTheyWereAndGoOnTheSame) {
  SessionTable table = SampleTable();
  Result<SessionTable> back = SessionTable::Decode(AsBytes(table.Encode()));
  ASSERT_OK(back.status());
  for (SessionTable* each : {&table, &*back}) {
    EXPECT_EQ(each->Begin({5, 12, 8, 3}).decision, Decision::kCancelled);
    EXPECT_EQ(each->Begin({5, 11, 8, 2}).decision, Decision::kFenced);
    const Verdict repeat = each->Begin({5, 10, 8, 3});
    ASSERT_EQ(repeat.decision, Decision::kRepeat);
    EXPECT_EQ(*repeat.first, (Outcome{Code::kFailedPrecondition, 300, "at 7"}));
    EXPECT_EQ(each->Advance(3 * kSecond - 1000), 1u) << "session 5; session 9 has a moment left";
    EXPECT_EQ(each->Advance(1), 1u);
  }
  EXPECT_EQ(table.Encode(), back->Encode());
  EXPECT_EQ(table.Digest(), back->Digest());
}

TEST(SessionBytes, TheDigestSeesEveryPartOfTheState) {
  const uint64_t digest = SampleTable().Digest();
  EXPECT_EQ(digest, SampleTable().Digest());
  SessionTable table = SampleTable();
  table.Advance(1);
  EXPECT_NE(table.Digest(), digest);
  table = SampleTable();
  ASSERT_TRUE(table.SetFence(4));
  EXPECT_NE(table.Digest(), digest);
  table = SampleTable();
  ASSERT_TRUE(table.Touch(9, 1));
  EXPECT_NE(table.Digest(), digest);
  table = SampleTable();
  ASSERT_TRUE(table.Touch(5, 9));
  EXPECT_NE(table.Digest(), digest);
  table = SampleTable();
  ASSERT_EQ(table.Cancel(9, 1, 1).result, CancelResult::kCancelled);
  EXPECT_NE(table.Digest(), digest);
}

TEST(SessionBytes, NoPieceAndNoExtensionOfATableIsATable) {
  const std::string bytes = SampleTable().Encode();
  EXPECT_OK(DecodeTableStatus(bytes));
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_CODE(DecodeTableStatus(bytes.substr(0, length)), Code::kCorruption);
  }
  EXPECT_CODE(DecodeTableStatus(bytes + '\0'), Code::kCorruption);
}

TEST(SessionBytes, AnotherFormatIsNotGuessedAt) {
  std::string bytes = SampleTable().Encode();
  bytes[0] = 2;
  EXPECT_CODE(DecodeTableStatus(bytes), Code::kUnsupported);
}

TEST(SessionBytes, WhatNoTableCanHoldIsRefused) {
  const uint64_t now = 10 * kSecond;
  EXPECT_OK(DecodeTableStatus(Table(now, 9, 1, Session(9, 1) + Slot(0))));
  const std::string huge = Varints({~uint64_t{0}});
  const std::vector<std::pair<std::string, const char*>> bad = {
      {Table(uint64_t{1} << 63, 9, 0, ""), "time before the start"},
      {Table((uint64_t{1} << 62) + 1, 9, 0, ""), "time after its end"},
      {Table(now, kMaxInstance + 1, 0, ""), "instance"},
      {Table(now, 9, 1, Session(0, 0)), "session 0"},
      {Table(now, 9, 1, Session(10, 0)), "session after the last one"},
      {Table(now, 9, 2, Session(9, 0) + Session(0, 0)), "session twice"},
      {Table(now, 9, 2, Session(9, 0) + Session(~uint64_t{0}, 0)), "ids descend by overflow"},
      {Table(now, 9, 1, Session(9, 0, 0)), "lowest unanswered 0"},
      {Table(now, 9, 1, Session(9, 0, 1, kSecond - 1)), "time-out too short"},
      {Table(now, 9, 1, Session(9, 0, 1, SessionTable::kMaxTimeout + 1)), "time-out too long"},
      {Table(now, 9, 1, Session(9, 0, 1, kSecond, kSecond + 1)), "expired, but there"},
      {Table(5, 9, 1, Session(9, 0, 1, kSecond, 6)), "used before time began"},
      {Table(now, 9, 1, Session(9, 2) + Slot(0) + Slot(0)), "sequence twice"},
      {Table(now, 9, 1, Session(9, 1, 2) + huge + Slot(0).substr(1)), "sequence overflows"},
      {Table(now, 9, 1, Session(9, 1) + Varints({0}) + '\0'), "neither done nor cancelled"},
      {Table(now, 9, 1, Session(9, 1) + Varints({0}) + "\x03"), "neither done nor cancelled"},
      {Table(now, 9, 1, Session(9, 1) + Varints({0}) + "\x01" + Varints({14, 7, 0})), "code"},
      {Table(now, 9, 1, Session(9, 1) + Varints({0, 1, 0, 7, 257}) + std::string(257, 'x')),
       "detail"},
      {Table(now, 9, 1, Session(9, 2) + Slot(0)), "fewer slots than it says"},
  };
  for (const auto& [bytes, what] : bad) {
    EXPECT_CODE(DecodeTableStatus(bytes), Code::kCorruption) << what;
  }
}

TEST(SessionBytes, MoreSessionsThanTheLimitAreRefused) {
  std::string sessions;
  for (size_t i = 0; i < SessionTable::kMaxSessions; ++i) sessions += Session(1, 0);
  EXPECT_OK(DecodeTableStatus(Table(0, 9999, SessionTable::kMaxSessions, sessions)));
  sessions += Session(1, 0);
  EXPECT_CODE(DecodeTableStatus(Table(0, 9999, SessionTable::kMaxSessions + 1, sessions)),
              Code::kCorruption);
}

// Outcomes of what was executed are kept even beyond the limits, and have to survive a restart.
TEST(SessionBytes, MoreOutcomesThanTheLimitsAllowComeBack) {
  std::string full = Session(1, SessionTable::kMaxOutcomes + 1) + Slot(0);
  for (size_t i = 0; i < SessionTable::kMaxOutcomes; ++i) full += Slot(1);
  constexpr size_t kEach = SessionTable::kMaxOutcomes + 1 - SessionTable::kGuaranteedOutcomes;
  constexpr size_t kTooMany = SessionTable::kSharedOutcomes / kEach + 1;
  std::string greedy;
  for (size_t i = 0; i < kTooMany; ++i) greedy += full;
  const auto table = SessionTable::Decode(AsBytes(Table(0, 9999, kTooMany, greedy)));
  ASSERT_OK(table.status());
  EXPECT_EQ(table->outcomes(), kTooMany * (SessionTable::kMaxOutcomes + 1));
  EXPECT_EQ(table->Look({1, 5000, 1, 0}).decision, Decision::kWindowFull);
}

}  // namespace
}  // namespace hydra
