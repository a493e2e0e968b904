// SPDX-License-Identifier: Apache-2.0
//
// A portal with one disk on a socket, and initiators that may say anything to it.
#pragma once

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/iscsi/support/portal_thread.h"
#include "tests/iscsi/support/raw_initiator.h"

namespace hydra::iscsi {

class PortalTest : public testing::Test {
 protected:
  using Damage = RawInitiator::Damage;
  static constexpr char kDiskName[] = "iqn.2026-11.io.hydra:disk";
  static constexpr uint32_t kWriteTag = 7;
  static constexpr uint8_t kGoodStatus = 0x00;
  static constexpr uint8_t kCheckStatus = 0x02;
  static constexpr uint8_t kConflictStatus = 0x18;

  explicit PortalTest(size_t portals = 1) : portal_(portals) {
    portal_.Run([&] { disk_ = portal_.directory().Add("disk", 16 << 20); });
  }
  ~PortalTest() override {
    portal_.Run([&] { disk_->Release(); });
  }

  std::vector<uint8_t> Contents(uint64_t offset, uint64_t length) {
    std::vector<uint8_t> bytes;
    portal_.Run([&] { bytes = disk_->Contents(offset, length); });
    return bytes;
  }
  void Fill(uint64_t offset, const std::vector<uint8_t>& bytes) {
    portal_.Run([&] {
      disk_->Write(offset, bytes, [](const Status& status) { EXPECT_TRUE(status.ok()); });
    });
  }
  static std::vector<uint8_t> Of(size_t bytes, uint8_t value) {
    return std::vector<uint8_t>(bytes, value);
  }

  // The next thing said is that.
  static testing::AssertionResult Answers(RawInitiator* initiator, uint32_t tag, uint8_t status) {
    const auto pdu = initiator->Receive();
    if (!pdu) return testing::AssertionFailure() << "the connection ended";
    if (pdu->opcode() == Opcode::kScsiResponse && pdu->header.task_tag() == tag &&
        pdu->status() == status) {
      return testing::AssertionSuccess();
    }
    return testing::AssertionFailure()
           << std::hex << "opcode " << int(pdu->header.bytes[0]) << " tag "
           << pdu->header.task_tag() << " status " << int(pdu->status());
  }
  static testing::AssertionResult Rejects(RawInitiator* initiator, RejectReason reason) {
    const auto pdu = initiator->Receive();
    if (!pdu) return testing::AssertionFailure() << "the connection ended";
    if (pdu->opcode() == Opcode::kReject && pdu->header.bytes[2] == static_cast<uint8_t>(reason)) {
      return testing::AssertionSuccess();
    }
    return testing::AssertionFailure() << std::hex << "opcode " << int(pdu->header.bytes[0])
                                       << " with " << int(pdu->header.bytes[2]);
  }
  // The transfer tag of an R2T for that range; 0 if something else was said.
  static uint32_t Requested(RawInitiator* initiator, uint32_t offset, uint32_t length) {
    const auto pdu = initiator->Receive();
    if (!pdu || pdu->opcode() != Opcode::kReadyToTransfer) {
      ADD_FAILURE() << "no R2T";
      return 0;
    }
    EXPECT_EQ(pdu->header.Field32(40), offset);
    EXPECT_EQ(pdu->header.Field32(44), length);
    return pdu->header.transfer_tag();
  }
  // Whoever comes next is served, and nobody is left over.
  void ExpectHealthy() {
    EXPECT_TRUE(portal_.WaitUntil([&] { return disk_->held() == 0; }));
    RawInitiator next(portal_.port(), "iqn.2026-11.io.example:next");
    ASSERT_TRUE(next.LogIn(kDiskName).moves_on());
    next.Send(next.Write(kWriteTag, 30000, 1), Of(512, 'h'));
    EXPECT_TRUE(Answers(&next, kWriteTag, kGoodStatus));
    EXPECT_EQ(next.ReadBlocks(30000, 1), Of(512, 'h'));
  }

  PortalThread portal_;
  MemoryDisk* disk_ = nullptr;
};

}  // namespace hydra::iscsi
