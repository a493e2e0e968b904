// SPDX-License-Identifier: Apache-2.0
//
// What a session does with data, order, task management and the rest.
#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/iscsi/session_fixture.h"

namespace hydra::iscsi {
namespace {

// --- Data ---------------------------------------------------------------------------------------

TEST_F(SessionTest, AReadComesInPiecesAndBurstsWithTheStatusInTheLast) {
  Open();
  ASSERT_OK(Give(Read(1, 0, 40)));  // 20480 bytes: 5 PDUs of 4096, bursts of 16384
  for (uint32_t i = 0; i < 5; ++i) {
    const OutPdu pdu = Next();
    EXPECT_EQ(pdu.header.opcode(), Opcode::kDataIn);
    EXPECT_EQ(pdu.header.Field32(36), i) << "DataSN";
    EXPECT_EQ(pdu.header.Field32(40), i * 4096) << "offset";
    EXPECT_EQ(pdu.header.final(), i == 3 || i == 4) << "end of a burst";
    EXPECT_EQ(pdu.header.flags() & 1, i == 4 ? 1 : 0) << "status";
  }
  EXPECT_TRUE(sent_.empty());
}

TEST_F(SessionTest, AWriteWithImmediateDataNeedsNothingElse) {
  Open();
  ASSERT_OK(Give(Write(1, 4, 2), Bytes(1024, 'a')));
  ExpectStatus(1, ScsiStatus::kGood);
  EXPECT_EQ(disk_->Contents(4 * 512, 1024), Bytes(1024, 'a'));
}

TEST_F(SessionTest, AWriteAsksForWhatItWasNotGiven) {
  Open();
  // 40960 bytes: 512 immediate, 7680 unsolicited, the rest in bursts of 16384, two at a time.
  ASSERT_OK(Give(Write(1, 0, 80, false), Bytes(512, 'a')));
  EXPECT_TRUE(sent_.empty());
  ASSERT_OK(Give(DataOut(1, kNoTag, 0, 512, false), Bytes(4096, 'b')));
  ASSERT_OK(Give(DataOut(1, kNoTag, 1, 4608, true), Bytes(3584, 'c')));
  OutPdu first = Next();
  OutPdu second = Next();
  EXPECT_EQ(first.header.opcode(), Opcode::kReadyToTransfer);
  EXPECT_EQ(first.header.Field32(40), 8192u);
  EXPECT_EQ(first.header.Field32(44), 16384u);
  EXPECT_EQ(second.header.Field32(36), 1u) << "R2TSN";
  EXPECT_EQ(second.header.Field32(40), 24576u);
  EXPECT_EQ(second.header.Field32(44), 16384u);
  const uint32_t tag1 = first.header.transfer_tag();
  const uint32_t tag2 = second.header.transfer_tag();
  ASSERT_OK(Give(DataOut(1, tag1, 0, 8192, false), Bytes(8192, 'd')));
  ASSERT_OK(Give(DataOut(1, tag1, 1, 16384, true), Bytes(8192, 'e')));
  EXPECT_TRUE(sent_.empty());
  ASSERT_OK(Give(DataOut(1, tag2, 0, 24576, true), Bytes(16384, 'f')));
  ExpectStatus(1, ScsiStatus::kGood);
  EXPECT_EQ(disk_->Contents(0, 512), Bytes(512, 'a'));
  EXPECT_EQ(disk_->Contents(512, 4096), Bytes(4096, 'b'));
  EXPECT_EQ(disk_->Contents(40960 - 16384, 16384), Bytes(16384, 'f'));
}

TEST_F(SessionTest, ADataNumberOutOfTurnFailsTheCommandAndNothingIsWritten) {
  Open();
  ASSERT_OK(Give(Write(1, 0, 4, false)));
  ASSERT_OK(Give(DataOut(1, kNoTag, 0, 0, false), Bytes(1024, 'x')));
  ASSERT_OK(Give(DataOut(1, kNoTag, 0, 1024, true), Bytes(1024, 'x')));
  ExpectStatus(1, ScsiStatus::kCheckCondition);
  EXPECT_EQ(disk_->Contents(0, 2048), Bytes(2048));
}

TEST_F(SessionTest, AWrongDataDigestFailsTheCommandAndNothingIsWritten) {
  Open();
  ASSERT_OK(Give(Write(1, 0, 2), Bytes(1024, 'x'), false));
  EXPECT_EQ(Next().header.opcode(), Opcode::kReject);
  ExpectStatus(1, ScsiStatus::kCheckCondition);
  EXPECT_EQ(disk_->Contents(0, 1024), Bytes(1024));
}

TEST_F(SessionTest, MoreThanWasAgreedOnEndsTheConnection) {
  Open();
  EXPECT_FALSE(Give(Write(1, 0, 40), Bytes(8704, 'x')).ok()) << "beyond the first burst";
  EXPECT_FALSE(Give(Write(2, 0, 1), Bytes(1024, 'x')).ok()) << "beyond what is expected";
  ASSERT_OK(Give(Write(3, 0, 80, false)));
  ASSERT_OK(Give(DataOut(3, kNoTag, 0, 0, false), Bytes(8192, 'x')));
  EXPECT_FALSE(Give(DataOut(3, kNoTag, 1, 8192, true), Bytes(512, 'x')).ok());
}

TEST_F(SessionTest, DataThatWasNotAgreedOnEndsTheConnection) {
  parameters_.initial_r2t = true;
  parameters_.immediate_data = false;
  Open();
  EXPECT_FALSE(Give(Write(1, 0, 2), Bytes(1024, 'x')).ok());
  EXPECT_FALSE(Give(Write(2, 0, 2, false)).ok());
}

TEST_F(SessionTest, ResidualsSayWhatWasLeft) {
  Open();
  Header header = Read(1, 0, 1);
  header.SetField32(20, 2048);
  ASSERT_OK(Give(header));
  OutPdu pdu = Next();
  EXPECT_EQ(pdu.header.flags() & 0x06, 0x02) << "underflow";
  EXPECT_EQ(pdu.header.Field32(44), 1536u);
  header = Read(2, 0, 1);
  header.SetField32(20, 200);
  ASSERT_OK(Give(header));
  pdu = Next();
  EXPECT_EQ(pdu.data().size(), 200u);
  EXPECT_EQ(pdu.header.flags() & 0x06, 0x04) << "overflow";
  EXPECT_EQ(pdu.header.Field32(44), 312u);
}

// --- Order --------------------------------------------------------------------------------------

TEST_F(SessionTest, CommandsOutsideTheWindowAreIgnored) {
  Open();
  Header header = Read(1, 0, 1);
  header.SetField32(24, kFirstCommand - 1);
  ASSERT_OK(Give(header));
  header.SetField32(24, kFirstCommand + Session::kWindow);
  ASSERT_OK(Give(header));
  EXPECT_TRUE(sent_.empty());
  header.SetField32(24, kFirstCommand);
  ASSERT_OK(Give(header));
  EXPECT_EQ(Next().header.task_tag(), 1u);
}

TEST_F(SessionTest, AGapHoldsWhatFollows) {
  Open();
  const Header first = Read(1, 0, 1);
  const Header second = Read(2, 0, 1);
  ASSERT_OK(Give(second));
  EXPECT_TRUE(sent_.empty());
  ASSERT_OK(Give(first));
  EXPECT_EQ(Next().header.task_tag(), 1u);
  EXPECT_EQ(Next().header.task_tag(), 2u);
  ASSERT_OK(Give(second));
  EXPECT_TRUE(sent_.empty()) << "a duplicate";
}

TEST_F(SessionTest, TheWindowIsWhatTheInitiatorHasNotUsed) {
  Open();
  disk_->Hold();
  for (uint32_t i = 0; i < Session::kWindow; ++i) ASSERT_OK(Give(Read(i, 0, 1)));
  Header nop(Opcode::kNopOut);
  nop.bytes[0] |= 0x40;
  nop.set_task_tag(0x999);
  ASSERT_OK(Give(nop));
  OutPdu pdu = Next();
  EXPECT_EQ(pdu.header.Field32(32), pdu.header.Field32(28) - 1) << "closed";
  disk_->Release();
  pdu = sent_.back();
  EXPECT_EQ(pdu.header.Field32(32), pdu.header.Field32(28) + Session::kWindow - 1) << "open";
}

TEST_F(SessionTest, StatusNumbersCountUp) {
  Open();
  for (uint32_t i = 0; i < 3; ++i) {
    ASSERT_OK(Give(Read(i, 0, 1)));
    EXPECT_EQ(Next().header.Field32(24), 50 + i);
  }
}

TEST_F(SessionTest, AnOrderedTaskWaitsAndIsWaitedFor) {
  Open();
  disk_->Hold();
  ASSERT_OK(Give(Read(1, 0, 1)));
  Header ordered = Read(2, 0, 1);
  ordered.bytes[1] = 0xc2;
  ASSERT_OK(Give(ordered));
  ASSERT_OK(Give(Read(3, 0, 1)));
  EXPECT_EQ(disk_->held(), 1u);
  disk_->Release();
  for (uint32_t tag = 1; tag <= 3; ++tag) EXPECT_EQ(Next().header.task_tag(), tag);
}

// --- Task management ----------------------------------------------------------------------------

TEST_F(SessionTest, AnAbortIsAnsweredWhenTheCommandCanChangeNothingAnyMore) {
  Open();
  disk_->Hold();
  ASSERT_OK(Give(Write(1, 0, 1), Bytes(512, 'x')));
  ASSERT_OK(Give(TaskRequest(1, 1, kFirstCommand)));
  EXPECT_TRUE(sent_.empty()) << "it is still under way";
  disk_->Release();
  const OutPdu pdu = Next();
  EXPECT_EQ(pdu.header.opcode(), Opcode::kTaskResponse);
  EXPECT_EQ(pdu.header.bytes[2], 0);
  EXPECT_TRUE(sent_.empty()) << "the command itself is not answered";
}

TEST_F(SessionTest, AnAbortedCommandThatWaitsForDataIsNeverCarriedOut) {
  Open();
  ASSERT_OK(Give(Write(1, 0, 4, false)));
  ASSERT_OK(Give(TaskRequest(1, 1, kFirstCommand)));
  EXPECT_EQ(Next().header.bytes[2], 0);
  ASSERT_OK(Give(DataOut(1, kNoTag, 0, 0, true), Bytes(2048, 'x')));
  EXPECT_TRUE(sent_.empty());
  EXPECT_EQ(disk_->Contents(0, 2048), Bytes(2048));
}

TEST_F(SessionTest, AnAbortOfWhatIsNotThere) {
  Open();
  ASSERT_OK(Give(Read(1, 0, 1)));
  Next();
  ASSERT_OK(Give(TaskRequest(1, 1, kFirstCommand)));
  EXPECT_EQ(Next().header.bytes[2], 1) << "does not exist";
  // One that has not come yet: its number is taken, and it is not carried out should it come.
  const Header late = Write(2, 0, 1);
  ASSERT_OK(Give(TaskRequest(1, 2, kFirstCommand + 1)));
  EXPECT_EQ(Next().header.bytes[2], 0);
  ASSERT_OK(Give(late, Bytes(512, 'x')));
  EXPECT_EQ(disk_->Contents(0, 512), Bytes(512));
}

TEST_F(SessionTest, AResetEndsEveryonesTasksAndTellsThem) {
  Open();
  Nexus other;
  other.initiator = "iqn.b,i,0x1";
  std::function<void()> other_done;
  other.abort_tasks = [&](std::function<void()> done) { other_done = std::move(done); };
  unit_->Join(&other);
  other.attentions.clear();  // that it is new
  disk_->Hold();
  ASSERT_OK(Give(Read(1, 0, 1)));
  disk_->Pass();
  ASSERT_OK(Give(TaskRequest(5)));
  disk_->Release();
  EXPECT_TRUE(sent_.empty()) << "the other's tasks are still under way";
  std::exchange(other_done, {})();
  EXPECT_EQ(Next().header.opcode(), Opcode::kTaskResponse);
  ASSERT_EQ(other.attentions.size(), 1u);
  EXPECT_EQ(other.attentions.front(), Asc::kLunReset);
  ASSERT_OK(Give(Read(2, 0, 1)));
  ExpectStatus(2, ScsiStatus::kCheckCondition);
  unit_->Leave(&other);
}

TEST_F(SessionTest, EndsIfTheAccountItWasLetInByTurnsOutNotToCount) {
  parameters_.confirmed = false;
  parameters_.chap_revision = 3;
  Open();
  EXPECT_TRUE(unit_->unconfirmed());
  disk_->access()->now.epoch = 5;
  disk_->access()->now.chap_revision = 5;
  unit_->RefreshShared([](const Status& refreshed) { EXPECT_OK(refreshed); });
  EXPECT_FALSE(closed_.empty());
}

TEST_F(SessionTest, AColdResetEndsTheSession) {
  Open();
  ASSERT_OK(Give(TaskRequest(7)));
  EXPECT_EQ(Next().header.opcode(), Opcode::kTaskResponse);
  EXPECT_FALSE(closed_.empty());
}

TEST_F(SessionTest, ASessionIsDrainedWhenItsLastCommandHasEnded) {
  Open();
  disk_->Hold();
  ASSERT_OK(Give(Write(1, 0, 1), Bytes(512, 'x')));
  bool drained = false;
  session_->OnDrained([&] { drained = true; });
  session_->Closed();
  EXPECT_FALSE(drained);
  disk_->Release();
  EXPECT_TRUE(drained);
  EXPECT_TRUE(sent_.empty());
}

// --- The rest -----------------------------------------------------------------------------------

TEST_F(SessionTest, PingsAreAnsweredAndSent) {
  Open();
  Header nop(Opcode::kNopOut);
  nop.bytes[0] |= 0x40;
  nop.set_task_tag(3);
  ASSERT_OK(Give(nop, Bytes{1, 2, 3}));
  EXPECT_EQ(Next().text, std::string("\1\2\3"));
  session_->Tick(Session::kPingAfter);
  const OutPdu ping = Next();
  EXPECT_EQ(ping.header.opcode(), Opcode::kNopIn);
  EXPECT_EQ(ping.header.task_tag(), kNoTag);
  session_->Tick(Session::kPingAfter + Session::kPingTimeout - 1);
  EXPECT_TRUE(closed_.empty());
  session_->Tick(Session::kPingAfter + Session::kPingTimeout);
  EXPECT_FALSE(closed_.empty());
}

TEST_F(SessionTest, WhatWaitsForAnOrderedTaskStartsWhenThatEndsInItsOwnTime) {
  Open();
  disk_->Hold();
  ASSERT_OK(Give(CommandHeader(1, Cdb(0x2a, 0, 1), 0xa2, 512), Bytes(512, 'x')));
  ASSERT_OK(Give(Write(2, 8, 1), Bytes(512, 'y')));
  EXPECT_EQ(disk_->held(), 1u);
  disk_->Release();
  ExpectStatus(1, ScsiStatus::kGood);
  ExpectStatus(2, ScsiStatus::kGood);
}

TEST_F(SessionTest, AnAbortOfWhatMayStillHappenIsRefused) {
  Open();
  disk_->Hold();
  ASSERT_OK(Give(Write(1, 0, 1), Bytes(512, 'x')));
  ASSERT_OK(Give(TaskRequest(1, 1, next_sn_ - 1)));
  disk_->FailWith(Status::Aborted("nobody knows"));
  disk_->Release();
  const OutPdu answer = Next();
  EXPECT_EQ(answer.header.opcode(), Opcode::kTaskResponse);
  EXPECT_EQ(answer.header.bytes[2], 255);
}

// --- Commands that others overtake ---

class OvertakenTest : public SessionTest {
 protected:
  // A write that comes too late; the tag of the NOP that asks whether it is still waited for.
  uint32_t WriteTooLate() {
    Open();
    disk_->Overtake(1);
    EXPECT_OK(Give(Write(7, 16, 1), Bytes(512, 0xab)));
    EXPECT_EQ(sent_.size(), 1u);
    const OutPdu ping = Next();
    EXPECT_EQ(ping.header.opcode(), Opcode::kNopIn);
    EXPECT_EQ(ping.header.task_tag(), kNoTag);
    EXPECT_NE(ping.header.transfer_tag(), kNoTag);
    return ping.header.transfer_tag();
  }
  Header AnswerTo(uint32_t tag) {
    Header header(Opcode::kNopOut);
    header.bytes[0] |= 0x40;
    header.bytes[1] = 0x80;
    header.set_task_tag(kNoTag);
    header.set_transfer_tag(tag);
    header.SetField32(24, next_sn_);
    return header;
  }
  bool Written() { return disk_->Contents(16 * 512, 512) == Bytes(512, 0xab); }
};

TEST_F(OvertakenTest, AWriteIsDoneAnewWhenTheInitiatorStillWaits) {
  const uint32_t tag = WriteTooLate();
  EXPECT_FALSE(Written());
  ASSERT_OK(Give(AnswerTo(tag + 1)));  // to something else
  EXPECT_FALSE(Written());
  ASSERT_OK(Give(AnswerTo(tag)));
  ExpectStatus(7, ScsiStatus::kGood);
  EXPECT_TRUE(Written());
}

// What others made of the unit while the command was under way.
TEST_F(OvertakenTest, AWriteThatWasUnderWayDuringAResetElsewhereSaysSo) {
  Open();
  disk_->Hold();
  ASSERT_OK(Give(Write(7, 16, 1), Bytes(512, 0xab)));
  SharedState shared;
  shared.resets = 1;
  shared.last_reset = Asc::kLunReset;
  disk_->access()->now = {unit_->epoch() + 1, shared.Encode()};
  disk_->Release();
  // It was let through before the reset, or refused by it: here it was let through.
  ExpectStatus(7, ScsiStatus::kGood);
  ASSERT_OK(Give(Write(8, 17, 1), Bytes(512, 0xcd)));
  const OutPdu ping = Next();
  ASSERT_EQ(ping.header.opcode(), Opcode::kNopIn);
  ASSERT_OK(Give(AnswerTo(ping.header.transfer_tag())));
  ExpectStatus(8, ScsiStatus::kCheckCondition);
  EXPECT_NE(disk_->Contents(17 * 512, 512), Bytes(512, 0xcd));
  ASSERT_OK(Give(Write(9, 17, 1), Bytes(512, 0xcd)));  // told once
  ExpectStatus(9, ScsiStatus::kGood);
}

// What is read after a stall may have been sent before it.
TEST_F(OvertakenTest, AfterAStallCommandsWaitUntilTheInitiatorSaysThatItIsThere) {
  Open();
  session_->Tick(kSecond);
  session_->Tick(kSecond + Session::kStalled);
  sent_.clear();  // an ordinary ping
  ASSERT_OK(Give(Write(7, 16, 1), Bytes(512, 0xab)));
  EXPECT_FALSE(Written());
  const OutPdu ping = Next();
  ASSERT_EQ(ping.header.opcode(), Opcode::kNopIn);
  ASSERT_OK(Give(AnswerTo(ping.header.transfer_tag())));
  ExpectStatus(7, ScsiStatus::kGood);
  EXPECT_TRUE(Written());
  ASSERT_OK(Give(Write(8, 17, 1), Bytes(512, 0xcd)));  // it is there
  ExpectStatus(8, ScsiStatus::kGood);
}

TEST_F(OvertakenTest, AfterAStallWhatCameOnAConnectionThatIsGoneIsNeverDone) {
  Open();
  session_->Tick(kSecond + Session::kStalled);
  ASSERT_OK(Give(Write(7, 16, 1), Bytes(512, 0xab)));
  session_->Closed();
  EXPECT_FALSE(Written());
}

TEST_F(OvertakenTest, AWriteThatIsAbortedMeanwhileIsNeverDone) {
  const uint32_t tag = WriteTooLate();
  ASSERT_OK(Give(TaskRequest(1, 7, next_sn_ - 1)));
  EXPECT_EQ(Next().header.opcode(), Opcode::kTaskResponse);
  ASSERT_OK(Give(AnswerTo(tag)));
  EXPECT_TRUE(sent_.empty());
  EXPECT_FALSE(Written());
}

TEST_F(OvertakenTest, AWriteOnAConnectionThatIsGoneIsNeverDone) {
  WriteTooLate();
  bool drained = false;
  session_->OnDrained([&] { drained = true; });
  session_->Closed();
  EXPECT_TRUE(drained);
  EXPECT_FALSE(Written());
}

TEST_F(OvertakenTest, WhoDoesNotSayThatItWaitsIsGivenUp) {
  WriteTooLate();
  session_->Tick(Session::kPingTimeout);
  EXPECT_NE(closed_, "");
  EXPECT_FALSE(Written());
}

TEST_F(SessionTest, LogoutWaitsForCommands) {
  Open();
  disk_->Hold();
  ASSERT_OK(Give(Write(1, 0, 1), Bytes(512, 'x')));
  Header logout(Opcode::kLogoutRequest);
  logout.bytes[0] |= 0x40;
  logout.set_task_tag(9);
  ASSERT_OK(Give(logout));
  EXPECT_TRUE(sent_.empty());
  disk_->Release();
  EXPECT_EQ(Next().header.opcode(), Opcode::kLogoutResponse);
  EXPECT_FALSE(closed_.empty());
}

TEST_F(SessionTest, APlannedStopAsksForALogout) {
  Open();
  session_->RequestLogout(7);
  const OutPdu pdu = Next();
  EXPECT_EQ(pdu.header.opcode(), Opcode::kAsyncMessage);
  EXPECT_EQ(pdu.header.bytes[36], 1);
  EXPECT_EQ(Get16(&pdu.header.bytes[42]), 7);
}

TEST_F(SessionTest, ALongAnswerToSendTargetsComesInPieces) {
  parameters_.discovery = true;
  parameters_.target.clear();
  Open();
  targets_ = std::string(10'000, 't');
  Header request(Opcode::kTextRequest);
  request.bytes[0] |= 0x40;
  request.set_task_tag(4);
  request.set_transfer_tag(kNoTag);
  const std::string text("SendTargets=All\0", 16);
  ASSERT_OK(Give(request, Bytes(text.begin(), text.end())));
  std::string all;
  for (int i = 0; i < 3; ++i) {
    const OutPdu pdu = Next();
    EXPECT_EQ(pdu.header.opcode(), Opcode::kTextResponse);
    EXPECT_EQ(pdu.header.final(), i == 2);
    all += pdu.text;
    request.set_transfer_tag(pdu.header.transfer_tag());
    if (i == 2) break;
    ASSERT_OK(Give(request));
  }
  EXPECT_EQ(all, targets_);
  EXPECT_EQ(asked_for_, "") << "all of them";
  EXPECT_FALSE(Give(Read(5, 0, 1)).ok()) << "no commands in a discovery session";
}

TEST_F(SessionTest, WhatIsNotSupportedIsRejected) {
  Open();
  Header snack(Opcode::kSnack);
  snack.bytes[0] |= 0x40;
  ASSERT_OK(Give(snack));
  EXPECT_EQ(Next().header.opcode(), Opcode::kReject);
  Header odd(static_cast<Opcode>(0x1d));
  odd.bytes[0] |= 0x40;
  ASSERT_OK(Give(odd));
  EXPECT_EQ(Next().header.opcode(), Opcode::kReject);
}

TEST_F(SessionTest, WithoutMemoryACommandIsPutOff) {
  Open();
  std::vector<Header> writes;
  for (uint32_t i = 0; i < 9; ++i) {
    Header write = CommandHeader(i, Cdb(0x2a, 0, 16384), 0xa1, 8 << 20);
    ASSERT_OK(Give(write));
  }
  const auto full = std::find_if(sent_.begin(), sent_.end(), [](const OutPdu& pdu) {
    return pdu.header.opcode() == Opcode::kScsiResponse &&
           pdu.header.bytes[3] == static_cast<uint8_t>(ScsiStatus::kTaskSetFull);
  });
  EXPECT_NE(full, sent_.end());
}

// --- Commands of many steps ---------------------------------------------------------------------

TEST_F(SessionTest, ALongVerifyEndsWithItsAbort) {
  Open();
  disk_->Hold();
  ASSERT_OK(Give(CommandHeader(1, Cdb(0x2f, 0, 16384), 0x81, 0)));  // 8 steps
  disk_->ReleaseOne();
  ASSERT_EQ(disk_->held(), 1u) << "the second";
  ASSERT_OK(Give(TaskRequest(1, 1, kFirstCommand)));
  EXPECT_TRUE(sent_.empty());
  disk_->ReleaseOne();
  EXPECT_EQ(disk_->held(), 0u);
  const OutPdu answer = Next();
  EXPECT_EQ(answer.header.opcode(), Opcode::kTaskResponse);
  EXPECT_EQ(answer.header.bytes[2], 0);
  EXPECT_TRUE(sent_.empty());
}

TEST_F(SessionTest, ALongVerifyEndsWithItsSession) {
  Open();
  disk_->Hold();
  ASSERT_OK(Give(CommandHeader(1, Cdb(0x2f, 0, 16384), 0x81, 0)));
  bool drained = false;
  session_->OnDrained([&] { drained = true; });
  session_->Closed();
  EXPECT_FALSE(drained);
  disk_->ReleaseOne();
  EXPECT_TRUE(drained);
}

// It was asked whether it still waits for the copy: nothing was under way then.
TEST_F(SessionTest, AnAbortOfACopyBetweenTwoStepsIsComplete) {
  parameters_.max_send_data = parameters_.max_burst = 1 << 20;
  Open();
  Header inquiry = CommandHeader(1, {0x12, 0x01, 0x83, 0x0f, 0xff, 0}, 0xc1, 4095);
  ASSERT_OK(Give(inquiry));
  const std::string page = Next().text;
  ASSERT_GT(page.size(), 8u);
  Bytes list(16 + 32 + 28);
  Put16(&list[2], 32);
  Put32(&list[8], 28);
  list[16] = 0xe4;
  std::copy_n(page.begin() + 4, 4u + static_cast<uint8_t>(page[7]), &list[20]);
  list[48] = 0x02;
  Put16(&list[50], 24);
  Put16(&list[58], 100);
  Put64(&list[68], 50);
  Bytes cdb(16);
  cdb[0] = 0x83;
  Put32(&cdb[10], static_cast<uint32_t>(list.size()));
  Header copy = CommandHeader(2, cdb, 0xa1, static_cast<uint32_t>(list.size()));
  ASSERT_OK(Give(copy, list));
  ASSERT_EQ(Next().header.opcode(), Opcode::kNopIn);
  ASSERT_OK(Give(TaskRequest(1, 2, next_sn_ - 1)));
  const OutPdu answer = Next();
  EXPECT_EQ(answer.header.opcode(), Opcode::kTaskResponse);
  EXPECT_EQ(answer.header.bytes[2], 0);
  EXPECT_TRUE(sent_.empty());
}

}  // namespace
}  // namespace hydra::iscsi
