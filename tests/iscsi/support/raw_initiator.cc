// SPDX-License-Identifier: Apache-2.0
#include "tests/iscsi/support/raw_initiator.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/check.h"
#include "base/crc32c.h"
#include "iscsi/text.h"

namespace hydra::iscsi {
namespace {

constexpr uint8_t kCheckCondition = 2;
constexpr int kUnitAttention = 6;

void AppendDigest(std::span<const uint8_t> bytes, bool damage, std::vector<uint8_t>* out) {
  uint32_t crc = Crc32c(bytes);
  if (damage) crc ^= 0x10;
  for (int i = 0; i < 4; ++i) out->push_back(static_cast<uint8_t>(crc >> 8 * i));
}

bool RightDigest(std::span<const uint8_t> bytes, const uint8_t* digest) {
  std::vector<uint8_t> right;
  AppendDigest(bytes, false, &right);
  return std::equal(right.begin(), right.end(), digest);
}

std::vector<uint8_t> Cdb10(uint8_t opcode, uint32_t lba, uint16_t blocks) {
  std::vector<uint8_t> cdb(10);
  cdb[0] = opcode;
  Put32(&cdb[2], lba);
  Put16(&cdb[7], blocks);
  return cdb;
}

}  // namespace

RawInitiator::RawInitiator(uint16_t port, std::string name, uint8_t number)
    : name_(std::move(name)), number_(number) {
  socket_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  HYDRA_CHECK(socket_ >= 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  HYDRA_CHECK(connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
  const int yes = 1;
  setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
}

RawInitiator::~RawInitiator() { Drop(false); }

void RawInitiator::Drop(bool reset) {
  if (socket_ < 0) return;
  if (reset) {
    const linger now{1, 0};
    setsockopt(socket_, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
  }
  close(socket_);
  socket_ = -1;
}

// --- PDUs ---------------------------------------------------------------------------------------

bool RawInitiator::SendBytes(std::span<const uint8_t> bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(sent));
  }
  return true;
}

bool RawInitiator::Send(Header header, std::span<const uint8_t> data, Damage damage) {
  header.set_data_bytes(static_cast<uint32_t>(data.size()));
  std::vector<uint8_t> bytes(header.bytes.begin(), header.bytes.end());
  if (digests_.header) AppendDigest(header.bytes, damage == Damage::kHeaderDigest, &bytes);
  if (!data.empty()) {
    std::vector<uint8_t> padded(data.begin(), data.end());
    padded.resize(data.size() + Padding(data.size()));
    bytes.insert(bytes.end(), padded.begin(), padded.end());
    if (digests_.data) AppendDigest(padded, damage == Damage::kDataDigest, &bytes);
  }
  return SendBytes(bytes);
}

// False: the connection ended, or it took too long.
bool RawInitiator::Fill(std::span<uint8_t> bytes) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!bytes.empty()) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    pollfd ready{socket_, POLLIN, 0};
    const int polled = poll(&ready, 1, static_cast<int>(std::max<int64_t>(0, left.count())));
    if (polled < 0 && errno == EINTR) continue;
    HYDRA_CHECK(polled != 0);  // a target that says nothing and does not hang up
    const ssize_t got = recv(socket_, bytes.data(), bytes.size(), 0);
    if (got <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(got));
  }
  return true;
}

std::optional<InPdu> RawInitiator::ReceiveAny() {
  InPdu pdu;
  if (!Fill(pdu.header.bytes)) return std::nullopt;
  HYDRA_CHECK(pdu.header.ahs_bytes() == 0);  // a target has no reason to send any
  uint8_t digest[kDigestBytes];
  if (digests_.header) {
    if (!Fill(digest)) return std::nullopt;
    HYDRA_CHECK(RightDigest(pdu.header.bytes, digest));
  }
  const size_t length = pdu.header.data_bytes();
  pdu.data.resize(length + Padding(length));
  if (!Fill(pdu.data)) return std::nullopt;
  if (digests_.data && length > 0) {
    if (!Fill(digest)) return std::nullopt;
    HYDRA_CHECK(RightDigest(pdu.data, digest));
  }
  pdu.data.resize(length);
  return pdu;
}

std::optional<InPdu> RawInitiator::Receive() {
  while (true) {
    std::optional<InPdu> pdu = ReceiveAny();
    if (!pdu || pdu->opcode() != Opcode::kNopIn || pdu->header.task_tag() != kNoTag) return pdu;
    Header answer = Nop(kNoTag);
    answer.set_transfer_tag(pdu->header.transfer_tag());
    Send(answer);
  }
}

bool RawInitiator::WaitForEnd() {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (Receive()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
  }
  return true;
}

bool RawInitiator::HasInput(std::chrono::milliseconds patience) {
  pollfd ready{socket_, POLLIN, 0};
  return poll(&ready, 1, static_cast<int>(patience.count())) > 0;
}

bool RawInitiator::IsQuiet() {
  constexpr uint32_t kTag = 0x9999;
  Send(Nop(kTag));
  const std::optional<InPdu> next = Receive();
  return next && next->opcode() == Opcode::kNopIn && next->header.task_tag() == kTag;
}

// --- Login --------------------------------------------------------------------------------------

RawInitiator::Keys RawInitiator::Greeting(const std::string& target) const {
  if (target.empty()) return {{"InitiatorName", name_}, {"SessionType", "Discovery"}};
  return {{"InitiatorName", name_}, {"TargetName", target}};
}

void RawInitiator::SendLogin(std::span<const uint8_t> text, uint8_t flags) {
  Header header(Opcode::kLoginRequest, flags);
  header.bytes[0] |= 0x40;
  header.bytes[8] = 0x80;  // ISID: random
  header.bytes[13] = number_;
  header.set_task_tag(1);
  SetCommandNumber(&header, first_command_);
  Send(header, text);
}

LoginAnswer RawInitiator::ReceiveLogin() {
  LoginAnswer answer;
  const std::optional<InPdu> pdu = Receive();
  if (!pdu || pdu->opcode() != Opcode::kLoginResponse) return answer;
  answer.answered = true;
  answer.status = static_cast<LoginStatus>(Get16(&pdu->header.bytes[36]));
  answer.flags = pdu->header.flags();
  const auto keys = ParseText(pdu->data);
  HYDRA_CHECK(keys.ok());
  for (const KeyValue& pair : *keys) answer.keys[pair.key] = pair.value;
  // From the full feature phase on.
  if ((answer.flags & 0x83) == 0x83) {
    digests_ = {answer.keys["HeaderDigest"] == "CRC32C", answer.keys["DataDigest"] == "CRC32C"};
  }
  return answer;
}

LoginAnswer RawInitiator::Say(const Keys& keys, int stage, int next) {
  std::string text;
  for (const auto& [key, value] : keys) AppendText(key, value, &text);
  SendLogin({reinterpret_cast<const uint8_t*>(text.data()), text.size()},
            static_cast<uint8_t>(stage << 2 | (next < 0 ? 0 : 0x80 | next)));
  return ReceiveLogin();
}

LoginAnswer RawInitiator::LogIn(const std::string& target, Keys more) {
  Keys keys = Greeting(target);
  keys.merge(more);
  if (!target.empty()) {
    keys.merge(Keys{{"InitialR2T", "No"},
                    {"ImmediateData", "Yes"},
                    {"FirstBurstLength", "4096"},
                    {"MaxBurstLength", "8192"},
                    {"MaxOutstandingR2T", "1"}});
  }
  const LoginAnswer answer = Say(keys, 1, 3);
  if (answer.moves_on() && !target.empty()) TakeAttentions();
  return answer;
}

void RawInitiator::TakeAttentions() {
  const uint32_t number = next_command_;
  Header sense = Command(next_tag_++, {0x03, 0, 0, 0, 18, 0}, 0xc1, 18);
  next_command_ = number;
  sense.bytes[0] |= 0x40;
  Send(sense);
  const std::optional<InPdu> told = Receive();
  HYDRA_CHECK(!told || (told->opcode() == Opcode::kDataIn && told->data.size() == 18));
}

// --- Requests -----------------------------------------------------------------------------------

Header RawInitiator::Command(uint32_t tag, const std::vector<uint8_t>& cdb, uint8_t flags,
                             uint32_t expected) {
  Header header(Opcode::kScsiCommand, flags);
  header.set_task_tag(tag);
  header.SetField32(20, expected);
  SetCommandNumber(&header, next_command_++);
  std::copy(cdb.begin(), cdb.end(), &header.bytes[32]);
  return header;
}

Header RawInitiator::Read(uint32_t tag, uint32_t lba, uint16_t blocks) {
  return Command(tag, Cdb10(0x28, lba, blocks), 0xc1, blocks * 512u);
}

Header RawInitiator::Write(uint32_t tag, uint32_t lba, uint16_t blocks, bool final) {
  return Command(tag, Cdb10(0x2a, lba, blocks), final ? 0xa1 : 0x21, blocks * 512u);
}

Header RawInitiator::DataOut(uint32_t tag, uint32_t transfer, uint32_t number, uint32_t offset,
                             bool final) {
  Header header(Opcode::kDataOut, final ? 0x80 : 0);
  header.set_task_tag(tag);
  header.set_transfer_tag(transfer);
  header.SetField32(36, number);
  header.SetField32(40, offset);
  return header;
}

Header RawInitiator::Nop(uint32_t tag) const {
  Header header(Opcode::kNopOut);
  header.bytes[0] |= 0x40;
  header.set_task_tag(tag);
  header.set_transfer_tag(kNoTag);
  SetCommandNumber(&header, next_command_);
  return header;
}

std::optional<std::vector<uint8_t>> RawInitiator::ReadBlocks(uint32_t lba, uint16_t blocks) {
  for (int attempt = 0; attempt < 5; ++attempt) {
    const uint32_t tag = next_tag_++;
    Send(Read(tag, lba, blocks));
    std::vector<uint8_t> data;
    std::optional<InPdu> pdu = Receive();
    while (pdu && pdu->opcode() == Opcode::kDataIn && pdu->header.task_tag() == tag) {
      data.insert(data.end(), pdu->data.begin(), pdu->data.end());
      if ((pdu->header.flags() & 1) != 0) return data;
      pdu = Receive();
    }
    const bool attention = pdu && pdu->opcode() == Opcode::kScsiResponse &&
                           pdu->status() == kCheckCondition && pdu->data.size() > 4 &&
                           (pdu->data[4] & 0xf) == kUnitAttention;
    if (!attention) return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace hydra::iscsi
