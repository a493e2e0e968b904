// SPDX-License-Identifier: Apache-2.0
//
// An initiator that says whatever a test tells it to, right or wrong: PDUs on a socket, with no
// opinion about what is allowed. It shares no more with the target's codec than the layout of a
// header. Blocking calls with a time limit; one thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "iscsi/login.h"
#include "iscsi/pdu.h"

namespace hydra::iscsi {

// What arrived. Its digests, if any were agreed on, were right.
struct InPdu {
  Header header;
  std::vector<uint8_t> data;

  Opcode opcode() const { return header.opcode(); }
  uint8_t status() const { return header.bytes[3]; }  // of a SCSI response
};

struct LoginAnswer {
  bool answered = false;  // false: the connection ended instead
  LoginStatus status = LoginStatus::kTargetError;
  uint8_t flags = 0;
  std::map<std::string, std::string> keys;

  bool moves_on() const { return answered && (flags & 0x80) != 0; }
};

class RawInitiator {
 public:
  using Keys = std::map<std::string, std::string>;
  static constexpr std::chrono::seconds kPatience{20};

  enum class Damage { kNone, kHeaderDigest, kDataDigest };

  // Connects. Initiators of the same name with other numbers are other ports of one machine.
  explicit RawInitiator(uint16_t port, std::string name = "iqn.2026-11.io.example:raw",
                        uint8_t number = 1);
  ~RawInitiator();
  RawInitiator(const RawInitiator&) = delete;
  RawInitiator& operator=(const RawInitiator&) = delete;

  // --- PDUs ---
  // The header's data length, padding and digests are added. False: the target has hung up.
  bool Send(Header header, std::span<const uint8_t> data = {}, Damage damage = Damage::kNone);
  bool SendBytes(std::span<const uint8_t> bytes);
  // The next PDU that is not a ping; those are answered. Nothing: the connection ended. A target
  // that does neither for too long ends the test.
  std::optional<InPdu> Receive();
  // Reads until the target hangs up; false if it does not.
  bool WaitForEnd();
  // Nothing was said until now. (What was sent before it has been taken in, as a NOP shows.)
  bool IsQuiet();
  // Whether it says something, or hangs up, within that time.
  bool HasInput(std::chrono::milliseconds patience);
  void Drop(bool reset);  // the connection; with a RST or in good order

  // --- Login ---
  void StartAt(uint32_t command_sn) { first_command_ = next_command_ = command_sn; }
  // One request; from `stage` on to `next` unless it is negative.
  LoginAnswer Say(const Keys& keys, int stage, int next);
  void SendLogin(std::span<const uint8_t> text, uint8_t flags);
  LoginAnswer ReceiveLogin();
  // All in one request, with what these tests need of digests, bursts and unsolicited data; and
  // lets itself be told that it is new.
  LoginAnswer LogIn(const std::string& target, Keys more = {});
  // By REQUEST SENSE, which takes no number: after a login, that it is new.
  void TakeAttentions();
  // The keys that name both sides; a discovery without a target.
  Keys Greeting(const std::string& target) const;

  // --- Requests of the full feature phase, each with the next CmdSN ---
  Header Command(uint32_t tag, const std::vector<uint8_t>& cdb, uint8_t flags, uint32_t expected);
  Header Read(uint32_t tag, uint32_t lba, uint16_t blocks);
  // `final`: no unsolicited data follows.
  Header Write(uint32_t tag, uint32_t lba, uint16_t blocks, bool final = true);
  static Header DataOut(uint32_t tag, uint32_t transfer, uint32_t number, uint32_t offset,
                        bool final);
  Header Nop(uint32_t tag) const;  // immediate
  static void SetCommandNumber(Header* header, uint32_t number) { header->SetField32(24, number); }
  uint32_t next_command() const { return next_command_; }

  // Takes note of unit attentions. Nothing: the target has not read them, or is gone.
  std::optional<std::vector<uint8_t>> ReadBlocks(uint32_t lba, uint16_t blocks);

 private:
  bool Fill(std::span<uint8_t> bytes);
  std::optional<InPdu> ReceiveAny();

  int socket_ = -1;
  std::string name_;
  uint8_t number_;
  Digests digests_;
  uint32_t first_command_ = 100;
  uint32_t next_command_ = 100;
  uint32_t next_tag_ = 0x10000;
};

}  // namespace hydra::iscsi
