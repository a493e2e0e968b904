// SPDX-License-Identifier: Apache-2.0
//
// Fuzzes the full feature phase: PDUs of an initiator that is logged in. The first byte says what
// was agreed on; then PDU by PDU
//
//   event (1) | length of data (2, little-endian) | header (48) | data
//
// where the bits of the event put right what would hardly ever be right by chance (numbers, tags),
// or make something happen around the session. The header's own length of data does not count; of
// long data only the first kLiteral bytes are there, and the last of them is repeated.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/logging.h"
#include "iscsi/session.h"
#include "tests/iscsi/support/memory_disk.h"

namespace {

using namespace hydra;         // NOLINT: a program of its own
using namespace hydra::iscsi;  // NOLINT: a program of its own

enum Event : uint8_t {
  kRightNumber = 0x01,    // the CmdSN that the target waits for
  kRightTransfer = 0x02,  // of the last R2T: task, tag, number and offset
  kFewTags = 0x04,
  kDamaged = 0x08,
  kDiskWaits = 0x10,  // or goes on
  kTimePasses = 0x20,
  kReset = 0x40,
  kReadWrite = 0x80,  // a command becomes one that moves data
};
constexpr uint32_t kFirstCommand = 0xfffffff0;  // numbers go around their end
constexpr uint64_t kDiskBytes = 1 << 20;
constexpr uint32_t kMaxData = 8192;
constexpr size_t kRecordBytes = 3 + kHeaderBytes;
constexpr size_t kLiteral = 64;
constexpr size_t kMaxPdus = 200;

class Target : public Session::Output {
 public:
  explicit Target(uint8_t mode) : memory_(std::make_shared<BufferPool>(4 << 20)) {
    auto disk = std::make_unique<MemoryDisk>(kDiskBytes, "disk");
    disk_ = disk.get();
    UnitOptions options;
    options.target_name = "iqn.2026-11.io.hydra:disk";
    unit_ = std::make_shared<LogicalUnit>(std::move(disk), std::move(options));
    SessionParameters p;
    p.initiator = "iqn.a";
    p.discovery = (mode & 1) != 0;
    if (!p.discovery) p.target = "iqn.2026-11.io.hydra:disk";
    p.immediate_data = (mode & 2) == 0;
    p.initial_r2t = (mode & 4) != 0;
    p.max_burst = 4096;
    p.first_burst = 2048;
    p.max_outstanding_r2t = (mode & 8) != 0 ? 1 : 4;
    p.max_send_data = 512;
    p.max_recv_data = kMaxData;
    p.command_sn = kFirstCommand;
    p.stat_sn = stat_sn_;
    max_send_ = p.max_send_data;
    Session::Environment environment;
    environment.unit = p.discovery ? nullptr : unit_;
    environment.memory = memory_;
    environment.list_targets = [](const std::string&) { return std::string(1500, 't'); };
    session_ = Session::Create(p, std::move(environment), this, 0);
    if (!p.discovery) TakeAttentions();
  }

  ~Target() override {
    bool drained = false;
    session_->OnDrained([&] { drained = true; });
    session_->Closed();
    disk_->Release();
    HYDRA_CHECK(drained && session_->tasks() == 0);
    session_.reset();
    HYDRA_CHECK(memory_->used_bytes() == 0);
  }

  // False: the connection ends.
  bool Give(uint8_t event, std::span<const uint8_t> bytes, std::span<const uint8_t> data) {
    if ((event & kDiskWaits) != 0) {
      waits_ = !waits_;
      waits_ ? disk_->Hold() : disk_->Release();
    }
    if ((event & kTimePasses) != 0) session_->Tick(now_ += kSecond);
    if ((event & kReset) != 0) unit_->Reset(Asc::kLunReset, [](const Status&) {});
    Header header;
    std::copy(bytes.begin(), bytes.end(), header.bytes.begin());
    header.set_data_bytes(static_cast<uint32_t>(data.size()));
    header.bytes[4] = 0;
    PutRight(event, &header);
    const auto place = session_->Begin(header, {});
    if (!place.ok()) return false;
    HYDRA_CHECK(place->empty() || place->size() == header.data_bytes());
    if (!place->empty()) std::copy_n(data.begin(), place->size(), place->begin());
    if (!session_->End((event & kDamaged) == 0).ok()) return false;
    HYDRA_CHECK(session_->tasks() <= 2 * Session::kWindow);
    return !closed_;
  }

  void Send(OutPdu pdu) override {
    const Header& h = pdu.header;
    HYDRA_CHECK(pdu.data().size() <= max_send_);
    const Opcode opcode = h.opcode();
    const bool ping = opcode == Opcode::kNopIn && h.task_tag() == kNoTag;
    const bool data = opcode == Opcode::kDataIn && (h.flags() & 1) == 0;
    if (!ping && !data && opcode != Opcode::kReadyToTransfer) {
      HYDRA_CHECK(h.Field32(24) == stat_sn_);
      ++stat_sn_;
    }
    expected_sn_ = h.Field32(28);
    HYDRA_CHECK(!SerialLess(h.Field32(32), max_sn_));
    max_sn_ = h.Field32(32);
    HYDRA_CHECK(max_sn_ - expected_sn_ + 1 <= Session::kWindow);
    if (opcode == Opcode::kReadyToTransfer) {
      HYDRA_CHECK(h.Field32(44) > 0 && h.Field32(44) <= 4096);
      HYDRA_CHECK(h.Field32(40) < Session::kMaxExpected);
      request_ = h;
      sent_ = 0;
    }
  }
  void Close(const std::string&) override { closed_ = true; }

 private:
  // By REQUEST SENSE: that it is new would fail its first command.
  void TakeAttentions() {
    Header sense(Opcode::kScsiCommand, 0xc1);
    sense.bytes[0] |= 0x40;
    sense.set_task_tag(0x7fff0000);
    sense.SetField32(20, 18);
    sense.SetField32(24, kFirstCommand);
    sense.bytes[32] = 0x03;
    sense.bytes[36] = 18;
    HYDRA_CHECK(session_->Begin(sense, {}).ok() && session_->End(true).ok());
  }
  void PutRight(uint8_t event, Header* header) {
    if ((event & kReadWrite) != 0) {
      const bool writes = (header->bytes[1] & 0x20) != 0;
      header->bytes[0] = static_cast<uint8_t>((header->bytes[0] & 0x40) | 0x01);
      header->bytes[1] = static_cast<uint8_t>((header->bytes[1] & 0x87) | (writes ? 0x20 : 0x40));
      header->bytes[32] = writes ? 0x2a : 0x28;
      header->set_lun(0);
      std::fill_n(&header->bytes[33], 3, 0);
      header->bytes[36] &= 0x03;
      header->bytes[38] = 0;
      header->bytes[39] = 0;
      header->bytes[40] &= 0x3f;
      header->bytes[41] = 0;
      header->SetField32(20, header->bytes[40] * 512u);
    }
    if ((event & kFewTags) != 0) header->set_task_tag(header->bytes[19] & 7);
    if ((event & kRightNumber) != 0) header->SetField32(24, expected_sn_);
    if ((event & kRightTransfer) == 0) return;
    header->bytes[0] = static_cast<uint8_t>(Opcode::kDataOut);
    header->set_task_tag(request_.task_tag());
    header->set_transfer_tag(request_.transfer_tag());
    const uint32_t left = request_.Field32(44) - std::min(sent_, request_.Field32(44));
    header->SetField32(36, sent_ == 0 ? 0 : 1);
    header->SetField32(40, request_.Field32(40) + sent_);
    header->bytes[1] = header->data_bytes() == left ? 0x80 : 0;
    sent_ += header->data_bytes();
  }

  std::shared_ptr<BufferPool> memory_;
  MemoryDisk* disk_ = nullptr;
  std::shared_ptr<LogicalUnit> unit_;
  std::shared_ptr<Session> session_;
  uint32_t max_send_ = 0;
  bool closed_ = false;
  bool waits_ = false;
  Nanos now_ = 0;
  uint32_t stat_sn_ = 50;
  uint32_t expected_sn_ = kFirstCommand;
  uint32_t max_sn_ = kFirstCommand + Session::kWindow - 1;
  Header request_;  // the last R2T
  uint32_t sent_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  SetLogLevel(LogLevel::kOff);
  Target target(data[0]);
  std::span<const uint8_t> bytes(data + 1, size - 1);
  for (size_t i = 0; i < kMaxPdus && bytes.size() >= kRecordBytes; ++i) {
    const size_t length = std::min<size_t>(bytes[1] | bytes[2] << 8, kMaxData);
    const size_t literal = std::min({length, kLiteral, bytes.size() - kRecordBytes});
    const std::span<const uint8_t> given = bytes.subspan(kRecordBytes, literal);
    std::vector<uint8_t> sent(length, given.empty() ? 0 : given.back());
    std::copy(given.begin(), given.end(), sent.begin());
    if (!target.Give(bytes[0], bytes.subspan(3, kHeaderBytes), sent)) return 0;
    bytes = bytes.subspan(kRecordBytes + literal);
  }
  return 0;
}
