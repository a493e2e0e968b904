// SPDX-License-Identifier: Apache-2.0
//
// What a session answers: residual counts, digests, text, and the order of commands.
#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/iscsi/session_fixture.h"

namespace hydra::iscsi {
namespace {

class SessionAnswers : public SessionTest {
 protected:
  // A text request, which is immediate; the tag is ours, or the target's if it goes on.
  Header Text(uint8_t flags, uint32_t transfer = kNoTag) {
    Header text(Opcode::kTextRequest, flags);
    text.bytes[0] |= 0x40;
    text.set_task_tag(0x77);
    text.set_transfer_tag(transfer);
    return text;
  }
  static Bytes Keys(const std::string& keys) { return {keys.begin(), keys.end()}; }
  static Bytes Limit(const std::string& value) {
    return Keys("MaxRecvDataSegmentLength=" + value + std::string(1, '\0'));
  }
  Header ReadAs(uint32_t tag, uint8_t attribute) {
    Header header = Read(tag, tag, 1);
    header.bytes[1] = static_cast<uint8_t>(0xc0 | attribute);
    return header;
  }
  static constexpr uint8_t kOrdered = 2;
  static constexpr uint8_t kHeadOfQueue = 3;
};

// --- Residual counts ----------------------------------------------------------------------------

TEST_F(SessionAnswers, ResidualsOfWritesSayWhatWasLeft) {
  Open();
  Header header = Write(1, 0, 2);
  header.SetField32(20, 2048);
  ASSERT_OK(Give(header, Bytes(2048, 'a')));
  OutPdu pdu = Next();
  EXPECT_EQ(pdu.header.opcode(), Opcode::kScsiResponse);
  EXPECT_EQ(pdu.header.bytes[3], 0) << "GOOD";
  EXPECT_EQ(pdu.header.flags() & 0x06, 0x02) << "underflow";
  EXPECT_EQ(pdu.header.Field32(44), 1024u);
  EXPECT_EQ(disk_->Contents(0, 1536), [] {
    Bytes expected(1536, 'a');
    std::fill_n(expected.begin() + 1024, 512, 0);
    return expected;
  }());
  header = Write(2, 8, 4);
  header.SetField32(20, 700);
  ASSERT_OK(Give(header, Bytes(700, 'b')));
  pdu = Next();
  EXPECT_EQ(pdu.header.flags() & 0x06, 0x04) << "overflow";
  EXPECT_EQ(pdu.header.Field32(44), 2048u - 700);
  EXPECT_EQ(disk_->Contents(8 * 512, 512), Bytes(512, 'b')) << "whole blocks only";
  EXPECT_EQ(disk_->Contents(9 * 512, 512), Bytes(512));
}

TEST_F(SessionAnswers, ResidualsOfACheckConditionSayThatNothingWasMoved) {
  Open();
  ASSERT_OK(Give(Read(1, 0xffffff, 3)));
  OutPdu pdu = Next();
  EXPECT_EQ(pdu.header.opcode(), Opcode::kScsiResponse);
  EXPECT_EQ(pdu.header.bytes[3], static_cast<uint8_t>(ScsiStatus::kCheckCondition));
  EXPECT_EQ(pdu.header.flags() & 0x06, 0x02) << "underflow";
  EXPECT_EQ(pdu.header.Field32(44), 1536u);
  EXPECT_EQ(pdu.header.Field32(36), 0u) << "no data came";
  // Its data was taken, whatever became of it.
  ASSERT_OK(Give(Write(2, 0xffffff, 2), Bytes(1024, 'a')));
  pdu = Next();
  EXPECT_EQ(pdu.header.bytes[3], static_cast<uint8_t>(ScsiStatus::kCheckCondition));
  EXPECT_EQ(pdu.header.flags() & 0x06, 0);
  EXPECT_EQ(pdu.header.Field32(44), 0u);
}

TEST_F(SessionAnswers, WhatIsBeforeALostBlockIsSentAndTheRestIsResidual) {
  Open();
  ASSERT_OK(Give(Write(1, 0, 16), Bytes(8192, 'a')));
  ExpectStatus(1, ScsiStatus::kGood);
  disk_->Rot(12 * 512);
  ASSERT_OK(Give(Read(2, 2, 20)));  // six blocks can be read
  const OutPdu data = Next();
  EXPECT_EQ(data.header.opcode(), Opcode::kDataIn);
  EXPECT_EQ(data.header.flags(), 0x80) << "the last, without a status";
  EXPECT_EQ(data.data().size(), 6u * 512);
  EXPECT_TRUE(std::all_of(data.data().begin(), data.data().end(), [](auto c) { return c == 'a'; }));
  const OutPdu status = Next();
  EXPECT_EQ(status.header.opcode(), Opcode::kScsiResponse);
  EXPECT_EQ(status.header.bytes[3], static_cast<uint8_t>(ScsiStatus::kCheckCondition));
  EXPECT_EQ(status.header.flags() & 0x06, 0x02);
  EXPECT_EQ(status.header.Field32(44), 14u * 512);
  EXPECT_EQ(status.header.Field32(36), 1u) << "ExpDataSN";
  const auto sense = status.data();
  ASSERT_EQ(sense.size(), 20u);
  EXPECT_EQ(sense[2], 0xf0) << "fixed, and the information is valid";
  EXPECT_EQ(sense[4], 0x03) << "MEDIUM ERROR";
  EXPECT_EQ(Get32(&sense[5]), 8u) << "the LBA";
  EXPECT_TRUE(sent_.empty());
}

// --- Digests
// -----------------------------------------------------------------------------------------

TEST_F(SessionAnswers, EveryWrongDigestIsCountedAndNothingElse) {
  Open();
  session_->HeaderDamaged();
  EXPECT_EQ(session_->stats().digests, 1u);
  ASSERT_OK(Give(Write(1, 0, 1), Bytes(512, 'x'), false));
  EXPECT_EQ(session_->stats().digests, 2u);
  EXPECT_EQ(session_->stats().damaged, 2u);
  // A number out of turn.
  ASSERT_OK(Give(Write(2, 0, 4, false)));
  ASSERT_OK(Give(DataOut(2, kNoTag, 1, 0, true), Bytes(2048, 'x')));
  EXPECT_EQ(session_->stats().digests, 2u);
  EXPECT_EQ(session_->stats().damaged, 3u);
  // Also of data that nobody waits for.
  ASSERT_OK(Give(DataOut(99, kNoTag, 0, 0, true), Bytes(512, 'x'), false));
  EXPECT_EQ(session_->stats().digests, 3u);
}

// --- Text ---------------------------------------------------------------------------------------

TEST_F(SessionAnswers, WhatTheInitiatorTakesAtATimeMayBeDeclaredAnew) {
  Open();
  ASSERT_OK(Give(Text(0x80), Limit("1024")));
  OutPdu pdu = Next();
  EXPECT_EQ(pdu.header.opcode(), Opcode::kTextResponse);
  EXPECT_EQ(pdu.text, "") << "a declaration wants no answer";
  ASSERT_OK(Give(Read(1, 0, 6)));
  for (int i = 0; i < 3; ++i) {
    pdu = Next();
    EXPECT_EQ(pdu.header.opcode(), Opcode::kDataIn);
    EXPECT_EQ(pdu.data().size(), 1024u);
  }
  ASSERT_OK(Give(Text(0x80), Limit("0x2000")));
  Next();
  ASSERT_OK(Give(Read(2, 0, 16)));
  EXPECT_EQ(Next().data().size(), 8192u);
  EXPECT_TRUE(sent_.empty());
}

TEST_F(SessionAnswers, NonsenseIsNoLimit) {
  Open();
  for (const char* value : {"511", "16777216", "many", ""}) {
    ASSERT_OK(Give(Text(0x80), Limit(value)));
    EXPECT_EQ(Next().text, std::string("MaxRecvDataSegmentLength=Reject\0", 32)) << value;
  }
  ASSERT_OK(Give(Read(1, 0, 16)));
  EXPECT_EQ(Next().data().size(), 4096u) << "as agreed on at login";
}

// F in a response to a request without it would be a protocol error (11.11.1).
TEST_F(SessionAnswers, WhoHasMoreToSayIsNotToldThatItIsOver) {
  Open();
  ASSERT_OK(Give(Text(0x00), Keys(std::string("X-first=1\0", 10))));
  OutPdu pdu = Next();
  EXPECT_EQ(pdu.header.flags(), 0x00) << "neither F nor C";
  EXPECT_EQ(pdu.text, std::string("X-first=NotUnderstood\0", 22));
  const uint32_t transfer = pdu.header.transfer_tag();
  ASSERT_NE(transfer, kNoTag);
  ASSERT_OK(Give(Text(0x80, transfer), Keys(std::string("X-second=1\0", 11))));
  pdu = Next();
  EXPECT_EQ(pdu.header.flags(), 0x80);
  EXPECT_EQ(pdu.header.transfer_tag(), kNoTag);
  EXPECT_EQ(pdu.text, std::string("X-second=NotUnderstood\0", 23));
}

TEST_F(SessionAnswers, ALongAnswerToWhoHasMoreToSayEndsWhenThatOneSaysSo) {
  targets_ = std::string(5000, 't');
  parameters_.discovery = true;
  Open();
  ASSERT_OK(Give(Text(0x00), Keys(std::string("SendTargets=All\0", 16))));
  OutPdu pdu = Next();
  EXPECT_EQ(pdu.header.flags(), 0x40) << "more of the answer";
  EXPECT_EQ(pdu.text.size(), 4096u);
  ASSERT_OK(Give(Text(0x00, pdu.header.transfer_tag())));
  pdu = Next();
  EXPECT_EQ(pdu.header.flags(), 0x00);
  EXPECT_EQ(pdu.text.size(), 5000u - 4096);
  ASSERT_OK(Give(Text(0x80, pdu.header.transfer_tag())));
  pdu = Next();
  EXPECT_EQ(pdu.header.flags(), 0x80);
  EXPECT_EQ(pdu.text, "");
}

// --- Order --------------------------------------------------------------------------------------

TEST_F(SessionAnswers, TheHeadOfTheQueueWaitsForNoneAndAllWaitForIt) {
  Open();
  disk_->Hold();
  ASSERT_OK(Give(ReadAs(1, 1)));
  ASSERT_OK(Give(ReadAs(2, kOrdered)));
  ASSERT_OK(Give(ReadAs(3, 1)));
  EXPECT_EQ(disk_->held(), 1u);
  ASSERT_OK(Give(ReadAs(4, kHeadOfQueue)));
  ASSERT_OK(Give(ReadAs(5, kHeadOfQueue)));
  ASSERT_OK(Give(ReadAs(6, 1)));
  EXPECT_EQ(disk_->held(), 3u) << "1, 4 and 5";
  disk_->ReleaseOne();
  EXPECT_EQ(Next().header.task_tag(), 1u);
  EXPECT_EQ(disk_->held(), 2u) << "2 was next";
  disk_->ReleaseOne();
  EXPECT_EQ(Next().header.task_tag(), 4u);
  EXPECT_EQ(disk_->held(), 1u);
  disk_->ReleaseOne();
  EXPECT_EQ(Next().header.task_tag(), 5u);
  EXPECT_EQ(disk_->held(), 1u) << "2, and neither 3 nor 6";
  disk_->Release();
  for (const uint32_t tag : {2, 3, 6}) EXPECT_EQ(Next().header.task_tag(), tag);
}

TEST_F(SessionAnswers, ASimpleTaskWaitsForTheHeadOfTheQueue) {
  Open();
  disk_->Hold();
  ASSERT_OK(Give(ReadAs(1, kHeadOfQueue)));
  ASSERT_OK(Give(ReadAs(2, 1)));
  EXPECT_EQ(disk_->held(), 1u);
  disk_->ReleaseOne();
  EXPECT_EQ(Next().header.task_tag(), 1u);
  EXPECT_EQ(disk_->held(), 1u);
  disk_->Release();
  EXPECT_EQ(Next().header.task_tag(), 2u);
}

TEST_F(SessionAnswers, AnAbortedHeadOfTheQueueHoldsNobodyUp) {
  Open();
  Header head = Write(1, 0, 4, false);  // its data does not come
  head.bytes[1] = 0x20 | kHeadOfQueue;
  ASSERT_OK(Give(head));
  ASSERT_OK(Give(Read(2, 0, 1)));
  EXPECT_TRUE(sent_.empty());
  ASSERT_OK(Give(TaskRequest(1, 1, kFirstCommand)));
  EXPECT_EQ(Next().header.opcode(), Opcode::kTaskResponse);
  EXPECT_EQ(Next().header.task_tag(), 2u);
}

// --- Immediate commands -------------------------------------------------------------------------

TEST_F(SessionAnswers, TooManyImmediateCommandsAreRejectedAndTheSessionGoesOn) {
  Open();
  disk_->Hold();
  const auto immediate = [&](uint32_t tag) {
    Header header = Read(tag, 0, 1);
    --next_sn_;
    header.bytes[0] |= 0x40;
    return header;
  };
  for (uint32_t i = 0; i < Session::kWindow; ++i) ASSERT_OK(Give(immediate(i)));
  EXPECT_TRUE(sent_.empty());
  ASSERT_OK(Give(immediate(5000)));
  const OutPdu reject = Next();
  EXPECT_EQ(reject.header.opcode(), Opcode::kReject);
  EXPECT_EQ(reject.header.bytes[2], 0x06);
  EXPECT_EQ(Get32(reinterpret_cast<const uint8_t*>(reject.text.data()) + 16), 5000u) << "which";
  // One with data, of which more follows: all of it is dropped.
  Header write = Write(5001, 0, 4, false);
  --next_sn_;
  write.bytes[0] |= 0x40;
  ASSERT_OK(Give(write, Bytes(512, 'x')));
  EXPECT_EQ(Next().header.opcode(), Opcode::kReject);
  ASSERT_OK(Give(DataOut(5001, kNoTag, 0, 512, true), Bytes(1536, 'x')));
  EXPECT_TRUE(sent_.empty());
  EXPECT_EQ(closed_, "");
  ASSERT_OK(Give(Read(6000, 0, 1)));  // in its turn
  EXPECT_EQ(session_->tasks(), Session::kWindow + 1);
  disk_->Release();
  EXPECT_EQ(sent_.size(), Session::kWindow + 1u);
  sent_.clear();
  ASSERT_OK(Give(immediate(5002)));
  EXPECT_EQ(Next().header.task_tag(), 5002u) << "there is room again";
  EXPECT_EQ(disk_->Contents(0, 2048), Bytes(2048));
}

}  // namespace
}  // namespace hydra::iscsi
