// SPDX-License-Identifier: Apache-2.0
//
// What one session may take from the others: memory, and for how long.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "tests/iscsi/session_fixture.h"

namespace hydra::iscsi {
namespace {

class GreedyTest : public SessionTest {
 protected:
  static constexpr uint32_t kLarge = 8 << 20;

  Header LargeWrite(uint32_t tag) {
    return CommandHeader(tag, Cdb(0x2a, 0, kLarge / 512), 0xa1, kLarge);
  }
  Header NopOut(uint32_t tag, bool immediate) {
    Header nop(Opcode::kNopOut);
    if (immediate) nop.bytes[0] |= 0x40;
    nop.set_task_tag(tag);
    nop.SetField32(24, next_sn_);
    return nop;
  }
  bool Full(const OutPdu& pdu) {
    return pdu.header.opcode() == Opcode::kScsiResponse &&
           pdu.header.bytes[3] == static_cast<uint8_t>(ScsiStatus::kTaskSetFull);
  }
  // Seconds up to that one, in which the initiator says that it is there.
  void PassUntil(int second) {
    for (; second_ <= second && closed_.empty(); ++second_) {
      session_->Tick(second_ * kSecond);
      ASSERT_OK(Give(NopOut(0x900, true)));
    }
  }

  int second_ = 1;
};

TEST_F(GreedyTest, WritesWithoutDataLeaveMemoryToOthers) {
  Open();
  for (uint32_t tag = 0; tag < 8; ++tag) ASSERT_OK(Give(LargeWrite(tag)));
  EXPECT_EQ(memory_->used_bytes(), memory_->limit_bytes() / 4);
  EXPECT_EQ(std::count_if(sent_.begin(), sent_.end(), [&](const auto& pdu) { return Full(pdu); }),
            6);
  // Another session of the same portal.
  sent_.clear();
  std::shared_ptr<Session> first = std::exchange(session_, nullptr);
  parameters_.initiator = "iqn.b";
  next_sn_ = kFirstCommand;
  Open();
  ASSERT_OK(Give(LargeWrite(1)));
  EXPECT_EQ(Next().header.opcode(), Opcode::kReadyToTransfer);
  ASSERT_OK(Give(Write(2, 0, 1), Bytes(512, 'n')));
  EXPECT_EQ(Next().header.opcode(), Opcode::kReadyToTransfer);
  ExpectStatus(2, ScsiStatus::kGood);
  first->Closed();
  session_->Closed();
  EXPECT_EQ(memory_->used_bytes(), 0u);
}

TEST_F(GreedyTest, AnswersThatNobodyTakesCountAsWell) {
  parameters_.max_send_data = parameters_.max_burst = 1 << 20;
  Open();
  for (uint32_t tag = 0; tag < 2; ++tag) ASSERT_OK(Give(Read(tag, 0, kLarge / 512)));
  EXPECT_EQ(memory_->used_bytes(), memory_->limit_bytes() / 4);
  ASSERT_OK(Give(Read(2, 0, 1)));
  EXPECT_TRUE(Full(sent_.back()));
  sent_.clear();  // they were taken
  EXPECT_EQ(memory_->used_bytes(), 0u);
  ASSERT_OK(Give(Read(3, 0, 1)));
  EXPECT_EQ(Next().header.opcode(), Opcode::kDataIn);
}

TEST_F(GreedyTest, InASmallMemoryALargeCommandIsStillCarriedOut) {
  memory_ = std::make_shared<BufferPool>(kLarge);
  Open();
  ASSERT_OK(Give(LargeWrite(1)));
  EXPECT_EQ(Next().header.opcode(), Opcode::kReadyToTransfer);
}

TEST_F(GreedyTest, WhoNeverSendsTheDataIsGivenUp) {
  Open();
  PassUntil(40);
  ASSERT_OK(Give(LargeWrite(1)));
  const int asked = second_ - 1;
  PassUntil(asked + 29);
  EXPECT_EQ(closed_, "");
  PassUntil(asked + 30);
  EXPECT_NE(closed_, "");
  session_->Closed();
  EXPECT_EQ(memory_->used_bytes(), 0u);
}

TEST_F(GreedyTest, UnsolicitedDataThatWasPromisedIsNotWaitedForForever) {
  Open();
  ASSERT_OK(Give(Write(1, 0, 80, false)));
  PassUntil(30);
  EXPECT_NE(closed_, "");
}

// Whichever of its commands it is for.
TEST_F(GreedyTest, WhoSendsDataSlowlyIsNotGivenUp) {
  Open();
  ASSERT_OK(Give(LargeWrite(1)));
  const uint32_t transfer = Next().header.transfer_tag();
  ASSERT_OK(Give(LargeWrite(2)));
  for (uint32_t piece = 0; piece < 10; ++piece) {
    PassUntil(second_ + 25);
    ASSERT_OK(Give(DataOut(1, transfer, piece, piece * 512, false), Bytes(512, 'x')));
  }
  EXPECT_EQ(closed_, "");
  PassUntil(second_ + 30);
  EXPECT_NE(closed_, "");
}

// What was sent meanwhile has not been read yet.
TEST_F(GreedyTest, WhoWaitedForAPortalThatStoodStillIsNotGivenUp) {
  Open();
  ASSERT_OK(Give(LargeWrite(1)));
  const uint32_t transfer = Next().header.transfer_tag();
  stuck_ = 0;
  PassUntil(1);
  second_ = 60;
  session_->Tick(60 * kSecond);
  EXPECT_EQ(closed_, "");
  stuck_ = 60 * kSecond;
  ASSERT_OK(Give(DataOut(1, transfer, 0, 0, false), Bytes(512, 'x')));
  PassUntil(80);
  EXPECT_EQ(closed_, "");
}

TEST_F(GreedyTest, WhoTakesNoAnswersIsGivenUp) {
  Open();
  PassUntil(5);
  stuck_ = 5 * kSecond;
  PassUntil(34);
  EXPECT_EQ(closed_, "");
  PassUntil(35);
  EXPECT_NE(closed_, "");
}

TEST_F(GreedyTest, OfALongNopOnlyTheBeginningIsSentBack) {
  parameters_.max_send_data = 256 << 10;
  Open();
  Bytes data(256 << 10, 'n');
  data[0] = 'f';
  ASSERT_OK(Give(NopOut(3, true), data));
  const OutPdu answer = Next();
  EXPECT_EQ(answer.header.opcode(), Opcode::kNopIn);
  EXPECT_EQ(answer.text, std::string(data.begin(), data.begin() + Session::kMaxEchoBytes));
}

TEST_F(GreedyTest, OtherRequestsBringNoMoreDataThanTextDoes) {
  Open();
  for (const Opcode opcode : {Opcode::kTextRequest, Opcode::kTaskRequest, Opcode::kLogoutRequest,
                              Opcode::kSnack, Opcode::kLoginRequest, static_cast<Opcode>(0x1d)}) {
    Header header(opcode);
    header.bytes[0] |= 0x40;
    EXPECT_FALSE(Give(header, Bytes(kMaxTextBytes + 1)).ok()) << int(header.bytes[0]);
  }
  Header odd(static_cast<Opcode>(0x1d));
  odd.bytes[0] |= 0x40;
  ASSERT_OK(Give(odd, Bytes(kMaxTextBytes)));
  EXPECT_EQ(Next().header.opcode(), Opcode::kReject);
}

TEST_F(GreedyTest, WhatWaitsBehindAGapHasALimit) {
  Open();
  const auto give = [&](uint32_t number) {
    Header nop = NopOut(number, false);
    nop.SetField32(24, kFirstCommand + number);
    return Give(nop, Bytes(256 << 10));
  };
  const uint32_t most = Session::kMaxHeldBytes / Session::kMaxEchoBytes;
  for (uint32_t i = 1; i <= most; ++i) ASSERT_OK(give(i));
  ASSERT_OK(give(0));  // all have their turn
  EXPECT_EQ(sent_.size(), most + 1);
  for (uint32_t i = 2; i <= most + 1; ++i) ASSERT_OK(give(most + i));
  EXPECT_FALSE(give(most + most + 2).ok());
}

}  // namespace
}  // namespace hydra::iscsi
