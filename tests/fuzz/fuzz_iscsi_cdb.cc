// SPDX-License-Identifier: Apache-2.0
//
// Fuzzes SCSI commands of several initiators to one unit. The first byte chooses the logical block;
// then command by command
//
//   event (1) | CDB (16) | length of data (2, little-endian) | data
//
// where the event says whose command it is, and what happens to the unit before. Of long data only
// the first kLiteral bytes are there; the last of them is repeated. The disk itself checks that
// nothing is read or written outside it.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "base/check.h"
#include "base/logging.h"
#include "iscsi/pdu.h"
#include "iscsi/scsi/command.h"
#include "iscsi/scsi/unit.h"
#include "tests/iscsi/support/memory_disk.h"

namespace {

using namespace hydra;         // NOLINT: a program of its own
using namespace hydra::iscsi;  // NOLINT: a program of its own

constexpr uint64_t kDiskBytes = 256 << 10;
constexpr size_t kMemoryBytes = 16 << 20;
constexpr size_t kNexuses = 3;
constexpr size_t kMaxCommands = 64;
constexpr size_t kRecordBytes = 19;
constexpr size_t kLiteral = 192;

enum Event : uint8_t {
  kWhose = 0x03,
  kElsewhere = 0x04,  // another unit is meant
  kOvertaken = 0x08,
  kDiskFails = 0x10,
  kPathGone = 0x20,
  kReset = 0x40,
  kResize = 0x80,
};

// Notes whether anything was changed.
class WatchedDisk : public MemoryDisk {
 public:
  using MemoryDisk::MemoryDisk;

  uint32_t atomic_bytes() const override { return 128 << 10; }
  void Write(uint64_t offset, std::span<const uint8_t> data, Done done) override {
    MemoryDisk::Write(offset, data, Watch(std::move(done)));
  }
  void WriteZeroes(uint64_t offset, uint64_t length, Done done) override {
    MemoryDisk::WriteZeroes(offset, length, Watch(std::move(done)));
  }
  void Unmap(uint64_t offset, uint64_t length, Done done) override {
    MemoryDisk::Unmap(offset, length, Watch(std::move(done)));
  }
  void CompareAndWrite(uint64_t offset, std::span<const uint8_t> expected,
                       std::span<const uint8_t> desired,
                       std::function<void(Result<bool>)> done) override {
    HYDRA_CHECK(expected.size() == desired.size());
    HYDRA_CHECK(offset / atomic_bytes() == (offset + expected.size() - 1) / atomic_bytes());
    MemoryDisk::CompareAndWrite(offset, expected, desired,
                                [this, done = std::move(done)](const Result<bool>& same) {
                                  changed = changed || (same.ok() && *same);
                                  done(same);
                                });
  }

  bool changed = false;

 private:
  Done Watch(Done done) {
    return [this, done = std::move(done)](const Status& status) {
      changed = changed || status.ok();
      done(status);
    };
  }
};

class Machine {
 public:
  explicit Machine(uint8_t mode) : memory_(kMemoryBytes) {
    auto disk = std::make_unique<WatchedDisk>(kDiskBytes, "disk");
    disk_ = disk.get();
    UnitOptions options;
    options.target_name = "iqn.2026-11.io.hydra:disk";
    options.logical_block = (mode & 1) != 0 ? 4096 : 512;
    unit_ = std::make_unique<LogicalUnit>(std::move(disk), std::move(options));
    for (size_t i = 0; i < kNexuses; ++i) {
      nexuses_[i].initiator = "iqn.a,i,0x00000000000" + std::to_string(i);
      nexuses_[i].portal_group = static_cast<uint16_t>(i + 1);
      nexuses_[i].abort_tasks = [](std::function<void()> done) { done(); };
      unit_->Join(&nexuses_[i]);
      nexuses_[i].attentions.clear();  // that it is new
    }
  }

  void Step(uint8_t event, std::span<const uint8_t> cdb, std::span<const uint8_t> out) {
    Nexus* nexus = &nexuses_[(event & kWhose) % kNexuses];
    Happen(event, nexus);
    disk_->changed = false;
    const bool was_protected = unit_->write_protected;
    Command command;
    command.unit = unit_.get();
    command.nexus = nexus;
    command.lun = (event & kElsewhere) != 0 ? 1 : 0;
    std::copy(cdb.begin(), cdb.end(), command.cdb.begin());
    command.out = out;
    command.expected_out = static_cast<uint32_t>(out.size());
    command.expected_in = 1 << 20;
    command.memory = &memory_;
    command.epoch = unit_->epoch();
    command.resets = unit_->resets();
    command.arrived = disk_->Arrive(command.epoch);
    std::optional<Response> response;
    Start<Response>(Execute(command), [&](Response done) {
      HYDRA_CHECK(!response.has_value());
      response = std::move(done);
    });
    HYDRA_CHECK(response.has_value());  // the disk lets nobody wait
    disk_->FailWith(Status::Ok());
    CheckResponse(*response);
    if (disk_->changed) CheckChange(command, *response, was_protected);
  }

 private:
  void Happen(uint8_t event, Nexus* nexus) {
    if ((event & kPathGone) != 0) {
      unit_->Leave(nexus);
      unit_->Release(nexus->id(), [] {});
      unit_->Join(nexus);
      nexus->attentions.clear();
    }
    if ((event & kReset) != 0) unit_->Reset(Asc::kLunReset, [](const Status&) {});
    if ((event & kResize) != 0) {
      disk_->Resize(disk_->size() == kDiskBytes ? 2 * kDiskBytes : kDiskBytes);
    }
    if ((event & kOvertaken) != 0) disk_->Overtake(2);
    if ((event & kDiskFails) != 0) disk_->FailWith(Status::Unavailable("not now"));
  }

  static void CheckResponse(const Response& response) {
    HYDRA_CHECK(response.buffer_bytes <= response.buffer.size());
    HYDRA_CHECK(std::max(response.buffer_bytes, response.in.size()) <=
                LogicalUnit::kMaxTransferBytes);
    HYDRA_CHECK(!response.overtaken);  // whoever is overtaken is carried out anew
    switch (response.status) {
      case ScsiStatus::kGood:
      case ScsiStatus::kCheckCondition:
      case ScsiStatus::kBusy:
      case ScsiStatus::kReservationConflict:
      case ScsiStatus::kTaskSetFull:
      case ScsiStatus::kTaskAborted: break;
      default: HYDRA_CHECK(false);
    }
    if (response.status != ScsiStatus::kCheckCondition) return;
    HYDRA_CHECK(response.sense.key != SenseKey::kNone);
    const std::vector<uint8_t> fixed = EncodeSense(response.sense, false);
    HYDRA_CHECK(fixed.size() == 18 && (fixed[0] & 0x7f) == 0x70 && fixed[7] == 10);
    HYDRA_CHECK((fixed[2] & 0xf) == static_cast<uint8_t>(response.sense.key));
    HYDRA_CHECK(Get16(&fixed[12]) == static_cast<uint16_t>(response.sense.asc));
    const std::vector<uint8_t> descriptors = EncodeSense(response.sense, true);
    HYDRA_CHECK(descriptors.size() >= 8 && descriptors.size() <= 252);
    HYDRA_CHECK(descriptors[0] == 0x72 && descriptors[7] == descriptors.size() - 8);
    if (!response.sense.field) return;
    // It points at something that there is.
    HYDRA_CHECK(response.sense.field->bit <= 8);
    HYDRA_CHECK(!response.sense.field->in_cdb || response.sense.field->byte < 32);
  }

  // What was refused, or is no write, has changed nothing.
  static void CheckChange(const Command& command, const Response& response, bool was_protected) {
    bool known = false;
    const CommandRow* row = FindCommand(command.opcode(), ServiceActionOf(command.cdb), &known);
    HYDRA_CHECK(row != nullptr && row->access == Access::kWrites);
    HYDRA_CHECK(command.lun == 0 && !was_protected);
    HYDRA_CHECK(response.status != ScsiStatus::kReservationConflict);
    // A copy has several steps, of which the first may have been right.
    if (row->opcode == 0x83) return;
    HYDRA_CHECK(response.good());
  }

  BufferPool memory_;
  WatchedDisk* disk_ = nullptr;
  std::unique_ptr<LogicalUnit> unit_;
  std::array<Nexus, kNexuses> nexuses_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  SetLogLevel(LogLevel::kOff);
  Machine machine(data[0]);
  std::span<const uint8_t> bytes(data + 1, size - 1);
  for (size_t i = 0; i < kMaxCommands && bytes.size() >= kRecordBytes; ++i) {
    const size_t length = bytes[17] | bytes[18] << 8;
    const size_t literal = std::min({length, kLiteral, bytes.size() - kRecordBytes});
    const std::span<const uint8_t> given = bytes.subspan(kRecordBytes, literal);
    // Of exactly that size, so that nothing beyond it can be read unnoticed.
    std::vector<uint8_t> out(length, given.empty() ? 0 : given.back());
    std::copy(given.begin(), given.end(), out.begin());
    machine.Step(bytes[0], bytes.subspan(1, 16), out);
    bytes = bytes.subspan(kRecordBytes + literal);
  }
  return 0;
}
