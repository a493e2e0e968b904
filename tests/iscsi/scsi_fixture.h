// SPDX-License-Identifier: Apache-2.0
//
// A logical unit in memory and a short way to say commands to it.
#pragma once

#include <cstdint>
#include <deque>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "iscsi/pdu.h"
#include "iscsi/scsi/command.h"
#include "iscsi/scsi/unit.h"
#include "tests/iscsi/support/memory_disk.h"

namespace hydra::iscsi {

using Bytes = std::vector<uint8_t>;

class ScsiTest : public testing::Test {
 protected:
  static constexpr uint64_t kBytes = 16 << 20;
  static constexpr uint64_t kBlocks = kBytes / 512;

  ScsiTest() {
    auto disk = std::make_unique<MemoryDisk>(kBytes, "disk");
    disk_ = disk.get();
    UnitOptions options;
    options.target_name = "iqn.2026-11.io.hydra:disk";
    unit_ = std::make_unique<LogicalUnit>(std::move(disk), std::move(options));
    first_.initiator = "iqn.a,i,0x000000000001";
    second_.initiator = "iqn.b,i,0x000000000002";
    unit_->Join(&first_);
    unit_->Join(&second_);
    Settle({&first_, &second_});
  }

  // They have been told that they are new.
  static void Settle(std::initializer_list<Nexus*> nexuses) {
    for (Nexus* nexus : nexuses) {
      EXPECT_EQ(nexus->attentions, std::deque<Asc>{Asc::kResetOccurred});
      nexus->attentions.clear();
    }
  }

  // The expected length of data from the initiator is what there is of it.
  Response Run(Bytes cdb, const Bytes& out = {}) { return RunAs(&first_, std::move(cdb), out); }
  Response RunAs(Nexus* nexus, Bytes cdb, const Bytes& out = {}) {
    Command command;
    command.unit = unit_.get();
    command.nexus = nexus;
    command.lun = lun_;
    std::copy(cdb.begin(), cdb.end(), command.cdb.begin());
    command.out = out;
    command.expected_out = static_cast<uint32_t>(out.size());
    std::optional<Response> response;
    Start<Response>(Execute(command), [&](Response done) { response = std::move(done); });
    EXPECT_TRUE(response.has_value()) << "it has not ended";
    return response.value_or(Response::Status(ScsiStatus::kBusy));
  }

  // CDBs of 10 and 16 bytes with flags in byte 1.
  static Bytes Cdb10(uint8_t opcode, uint32_t lba, uint16_t count, uint8_t flags = 0) {
    Bytes cdb(10);
    cdb[0] = opcode;
    cdb[1] = flags;
    Put32(&cdb[2], lba);
    Put16(&cdb[7], count);
    return cdb;
  }
  static Bytes Cdb12(uint8_t opcode, uint32_t lba, uint32_t count, uint8_t flags = 0) {
    Bytes cdb(12);
    cdb[0] = opcode;
    cdb[1] = flags;
    Put32(&cdb[2], lba);
    Put32(&cdb[6], count);
    return cdb;
  }
  static Bytes Cdb16(uint8_t opcode, uint64_t lba, uint32_t count, uint8_t flags = 0) {
    Bytes cdb(16);
    cdb[0] = opcode;
    cdb[1] = flags;
    Put64(&cdb[2], lba);
    Put32(&cdb[10], count);
    return cdb;
  }
  static Bytes Fill(size_t blocks, uint8_t value) { return Bytes(blocks * 512, value); }

  static Bytes DataOf(const Response& response) {
    if (response.buffer_bytes == 0) return response.in;
    return {response.buffer.data(), response.buffer.data() + response.buffer_bytes};
  }

  static testing::AssertionResult Failed(const Response& response, SenseKey key, Asc asc) {
    if (response.status == ScsiStatus::kCheckCondition && response.sense.key == key &&
        response.sense.asc == asc) {
      return testing::AssertionSuccess();
    }
    return testing::AssertionFailure()
           << std::hex << "status " << int(response.status) << " key " << int(response.sense.key)
           << " asc " << int(response.sense.asc);
  }
  static testing::AssertionResult BadCdb(const Response& response) {
    return Failed(response, SenseKey::kIllegalRequest, Asc::kInvalidFieldInCdb);
  }
  static testing::AssertionResult OutOfRange(const Response& response) {
    return Failed(response, SenseKey::kIllegalRequest, Asc::kLbaOutOfRange);
  }

  MemoryDisk* disk_ = nullptr;
  std::unique_ptr<LogicalUnit> unit_;
  Nexus first_;
  Nexus second_;
  uint64_t lun_ = 0;
};

}  // namespace hydra::iscsi
