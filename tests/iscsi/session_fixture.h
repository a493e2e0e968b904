// SPDX-License-Identifier: Apache-2.0
//
// A session without a socket: PDUs in, PDUs out.
#pragma once

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "iscsi/session.h"
#include "tests/iscsi/support/memory_disk.h"
#include "tests/support/gtest_status.h"

namespace hydra::iscsi {

class SessionTest : public testing::Test, public Session::Output {
 protected:
  using Bytes = std::vector<uint8_t>;
  static constexpr uint32_t kFirstCommand = 1000;

  SessionTest() {
    auto disk = std::make_unique<MemoryDisk>(16 << 20, "disk");
    disk_ = disk.get();
    UnitOptions options;
    options.target_name = "iqn.2026-11.io.hydra:disk";
    unit_ = std::make_shared<LogicalUnit>(std::move(disk), std::move(options));
    parameters_.initiator = "iqn.a";
    parameters_.target = "iqn.2026-11.io.hydra:disk";
    parameters_.command_sn = kFirstCommand;
    parameters_.stat_sn = 50;
    parameters_.max_send_data = 4096;
    parameters_.max_burst = 16384;
    parameters_.first_burst = 8192;
    parameters_.max_outstanding_r2t = 2;
    parameters_.initial_r2t = false;
  }
  ~SessionTest() override {
    disk_->Release();
    if (session_) session_->Closed();
  }

  // An initiator asks first what it is to be told: that it is new.
  void Open() {
    const bool asks = !parameters_.discovery;
    if (asks) --parameters_.stat_sn;
    Session::Environment environment;
    environment.unit = parameters_.discovery ? nullptr : unit_;
    environment.memory = memory_;
    environment.list_targets = [this](const std::string& one) {
      asked_for_ = one;
      return targets_;
    };
    session_ = Session::Create(parameters_, std::move(environment), this, 0);
    if (asks) ++parameters_.stat_sn;
    if (!asks || !closed_.empty()) return;
    Header sense = CommandHeader(0x7fff0000, {0x03, 0, 0, 0, 18, 0}, 0xc1, 18);
    sense.SetField32(24, --next_sn_);
    sense.bytes[0] |= 0x40;
    EXPECT_TRUE(Give(sense).ok());
    const std::string told = Next().text;
    ASSERT_EQ(told.size(), 18u);
    EXPECT_EQ(told[2], 0x06) << "UNIT ATTENTION";
    EXPECT_EQ(told[12], 0x29);
    EXPECT_EQ(told[13], 0x00);
  }

  void Send(OutPdu pdu) override { sent_.push_back(std::move(pdu)); }
  void Close(const std::string& why) override { closed_ = why; }
  std::optional<Nanos> StuckSince() const override { return stuck_; }

  // As a reader would, data and all.
  Status Give(Header header, const Bytes& data = {}, bool intact = true) {
    header.set_data_bytes(static_cast<uint32_t>(data.size()));
    HYDRA_ASSIGN_OR_RETURN(const std::span<uint8_t> place, session_->Begin(header, {}));
    if (!place.empty()) std::copy(data.begin(), data.end(), place.begin());
    return session_->End(intact);
  }

  Header CommandHeader(uint32_t tag, const Bytes& cdb, uint8_t flags, uint32_t expected) {
    Header header(Opcode::kScsiCommand, flags);
    header.set_task_tag(tag);
    header.SetField32(20, expected);
    header.SetField32(24, next_sn_++);
    std::copy(cdb.begin(), cdb.end(), &header.bytes[32]);
    return header;
  }
  Header Read(uint32_t tag, uint32_t lba, uint16_t blocks) {
    return CommandHeader(tag, Cdb(0x28, lba, blocks), 0xc1, blocks * 512u);
  }
  // F: everything that comes unasked is in this PDU.
  Header Write(uint32_t tag, uint32_t lba, uint16_t blocks, bool final = true) {
    return CommandHeader(tag, Cdb(0x2a, lba, blocks), final ? 0xa1 : 0x21, blocks * 512u);
  }
  Header DataOut(uint32_t tag, uint32_t transfer, uint32_t sn, uint32_t offset, bool final) {
    Header header(Opcode::kDataOut, final ? 0x80 : 0);
    header.set_task_tag(tag);
    header.set_transfer_tag(transfer);
    header.SetField32(36, sn);
    header.SetField32(40, offset);
    return header;
  }
  Header TaskRequest(uint8_t function, uint32_t tag = 0, uint32_t sn = 0) {
    Header header(Opcode::kTaskRequest, static_cast<uint8_t>(0x80 | function));
    header.bytes[0] |= 0x40;
    header.set_task_tag(0x7000);
    header.SetField32(20, tag);
    header.SetField32(24, next_sn_);
    header.SetField32(32, sn);
    return header;
  }
  static Bytes Cdb(uint8_t opcode, uint32_t lba, uint16_t count) {
    Bytes cdb(10);
    cdb[0] = opcode;
    Put32(&cdb[2], lba);
    Put16(&cdb[7], count);
    return cdb;
  }

  OutPdu Next() {
    EXPECT_FALSE(sent_.empty()) << "nothing was sent";
    if (sent_.empty()) return {};
    OutPdu pdu = std::move(sent_.front());
    sent_.pop_front();
    return pdu;
  }
  void ExpectStatus(uint32_t tag, ScsiStatus status) {
    const OutPdu pdu = Next();
    EXPECT_EQ(pdu.header.opcode(), Opcode::kScsiResponse);
    EXPECT_EQ(pdu.header.task_tag(), tag);
    EXPECT_EQ(pdu.header.bytes[3], static_cast<uint8_t>(status));
  }

  SessionParameters parameters_;
  std::shared_ptr<BufferPool> memory_ = std::make_shared<BufferPool>(64 << 20);
  std::optional<Nanos> stuck_;
  MemoryDisk* disk_ = nullptr;
  std::shared_ptr<LogicalUnit> unit_;
  std::shared_ptr<Session> session_;
  std::deque<OutPdu> sent_;
  std::string closed_;
  std::string targets_;
  std::string asked_for_;
  uint32_t next_sn_ = kFirstCommand;
};

}  // namespace hydra::iscsi
