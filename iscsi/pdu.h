// SPDX-License-Identifier: Apache-2.0
//
// The bytes of iSCSI (RFC 7143, section 11). A PDU is
//
//   basic header (48) | additional headers (4 x TotalAHSLength) | header digest (4, if negotiated)
//   | data segment (DataSegmentLength), padded with zeroes to a multiple of 4 | data digest
//   (likewise)
//
// All numbers are big-endian, the digests (CRC32C) little-endian. Whoever sends a header is
// believed nothing: lengths are compared with what was negotiated before anything is allocated.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/buffer.h"
#include "base/status.h"
#include "iscsi/memory_share.h"

namespace hydra::iscsi {

inline constexpr size_t kHeaderBytes = 48;
inline constexpr size_t kMaxAhsBytes = 255 * 4;
inline constexpr size_t kDigestBytes = 4;
inline constexpr uint32_t kNoTag = 0xffffffff;
// What either side may send before it was told otherwise (RFC 7143, 13.12).
inline constexpr uint32_t kDefaultDataSegment = 8192;
inline constexpr uint32_t kMinDataSegment = 512;
inline constexpr uint32_t kMaxDataSegment = (1u << 24) - 1;

enum class Opcode : uint8_t {
  kNopOut = 0x00,
  kScsiCommand = 0x01,
  kTaskRequest = 0x02,
  kLoginRequest = 0x03,
  kTextRequest = 0x04,
  kDataOut = 0x05,
  kLogoutRequest = 0x06,
  kSnack = 0x10,
  kNopIn = 0x20,
  kScsiResponse = 0x21,
  kTaskResponse = 0x22,
  kLoginResponse = 0x23,
  kTextResponse = 0x24,
  kDataIn = 0x25,
  kLogoutResponse = 0x26,
  kReadyToTransfer = 0x31,
  kAsyncMessage = 0x32,
  kReject = 0x3f,
};

enum class RejectReason : uint8_t {
  kDataDigest = 0x02,
  kSnack = 0x03,
  kProtocolError = 0x04,
  kNotSupported = 0x05,
  kTooManyImmediate = 0x06,
  kInvalidField = 0x09,
  kOutOfResources = 0x0a,
};

inline uint16_t Get16(const uint8_t* p) { return static_cast<uint16_t>(p[0] << 8 | p[1]); }
inline uint32_t Get24(const uint8_t* p) {
  return static_cast<uint32_t>(p[0]) << 16 | static_cast<uint32_t>(p[1]) << 8 | p[2];
}
inline uint32_t Get32(const uint8_t* p) {
  return static_cast<uint32_t>(Get16(p)) << 16 | Get16(p + 2);
}
inline uint64_t Get64(const uint8_t* p) {
  return static_cast<uint64_t>(Get32(p)) << 32 | Get32(p + 4);
}
inline void Put16(uint8_t* p, uint16_t v) {
  p[0] = static_cast<uint8_t>(v >> 8);
  p[1] = static_cast<uint8_t>(v);
}
inline void Put24(uint8_t* p, uint32_t v) {
  p[0] = static_cast<uint8_t>(v >> 16);
  Put16(p + 1, static_cast<uint16_t>(v));
}
inline void Put32(uint8_t* p, uint32_t v) {
  Put16(p, static_cast<uint16_t>(v >> 16));
  Put16(p + 2, static_cast<uint16_t>(v));
}
inline void Put64(uint8_t* p, uint64_t v) {
  Put32(p, static_cast<uint32_t>(v >> 32));
  Put32(p + 4, static_cast<uint32_t>(v));
}

inline size_t Padding(size_t bytes) { return (4 - bytes % 4) % 4; }

// Serial numbers compare modulo 2^32 (RFC 1982).
inline bool SerialLess(uint32_t a, uint32_t b) { return static_cast<int32_t>(a - b) < 0; }

// The 48 bytes, and names for the fields that several kinds of PDU share. Others are read by offset
// where they are used, with the figure of the RFC beside it.
struct Header {
  std::array<uint8_t, kHeaderBytes> bytes{};

  Header() = default;
  explicit Header(Opcode opcode, uint8_t flags = 0x80) {
    bytes[0] = static_cast<uint8_t>(opcode);
    bytes[1] = flags;
  }

  Opcode opcode() const { return static_cast<Opcode>(bytes[0] & 0x3f); }
  bool immediate() const { return (bytes[0] & 0x40) != 0; }
  uint8_t flags() const { return bytes[1]; }
  bool final() const { return (bytes[1] & 0x80) != 0; }
  size_t ahs_bytes() const { return size_t{bytes[4]} * 4; }
  uint32_t data_bytes() const { return Get24(&bytes[5]); }
  void set_data_bytes(uint32_t v) { Put24(&bytes[5], v); }
  uint64_t lun() const { return Get64(&bytes[8]); }
  void set_lun(uint64_t v) { Put64(&bytes[8], v); }
  uint32_t task_tag() const { return Get32(&bytes[16]); }  // Initiator Task Tag
  void set_task_tag(uint32_t v) { Put32(&bytes[16], v); }
  uint32_t transfer_tag() const { return Get32(&bytes[20]); }  // Target Transfer Tag
  void set_transfer_tag(uint32_t v) { Put32(&bytes[20], v); }
  uint32_t command_sn() const { return Get32(&bytes[24]); }  // requests
  uint32_t Field32(size_t offset) const { return Get32(&bytes[offset]); }
  void SetField32(size_t offset, uint32_t v) { Put32(&bytes[offset], v); }
};

// Something to send. Its data is a string, or part of a buffer that it keeps alive.
struct OutPdu {
  Header header;
  std::string text;
  CountedBuffer buffer;
  size_t offset = 0;
  size_t length = 0;

  std::span<const uint8_t> data() const {
    if (length > 0) return {buffer.data() + offset, length};
    return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
  }
};

struct Digests {
  bool header = false;
  bool data = false;
};

// What goes over the wire around the data of a PDU: its head (with the header digest) and its tail
// (padding and data digest). Sets the header's DataSegmentLength.
struct Framing {
  std::array<uint8_t, kHeaderBytes + kDigestBytes> head{};
  size_t head_bytes = 0;
  std::array<uint8_t, 3 + kDigestBytes> tail{};
  size_t tail_bytes = 0;
};
Framing Frame(OutPdu* pdu, Digests digests);

// Takes received bytes apart, without owning a socket: Want() says where the next bytes belong,
// Got() that they are there. Data segments go straight to where the sink wants them.
class PduReader {
 public:
  class Sink {
   public:
    virtual ~Sink() = default;
    // A header that is whole, intact and within the limits; `data_bytes()` bytes of data follow.
    // Returns memory for exactly that many, or nothing to have them dropped. An error ends the
    // connection.
    virtual Result<std::span<uint8_t>> Begin(const Header& header,
                                             std::span<const uint8_t> ahs) = 0;
    // A header was not intact; what comes of it is an error of the reader, which ends the
    // connection.
    virtual void HeaderDamaged() {}
    // The data of the PDU that began last is there; false if its digest says otherwise.
    virtual Status End(bool intact) = 0;
  };

  explicit PduReader(Sink* sink) : sink_(sink) {}

  // From the next PDU on.
  void SetDigests(Digests digests) { digests_ = digests; }
  void SetMaxData(uint32_t bytes) { max_data_ = bytes; }

  std::span<uint8_t> Want();  // never empty
  // How much of what Want() returned was filled. After an error nothing more may be given.
  Status Got(size_t bytes);
  // No byte of a PDU has been taken yet.
  bool at_start() const { return stage_ == Stage::kHeader && filled_ == 0; }
  // The data that is wanted goes to memory of the sink.
  bool in_data() const { return stage_ == Stage::kData; }

 private:
  enum class Stage { kHeader, kRest, kData, kTail };

  Status Finished();
  Status HeadDone();
  Status DataDone();
  void Enter(Stage stage, size_t wanted);

  Sink* sink_;
  Digests digests_;
  uint32_t max_data_ = kDefaultDataSegment;
  Stage stage_ = Stage::kHeader;
  size_t filled_ = 0;
  size_t wanted_ = kHeaderBytes;
  Header header_;
  std::array<uint8_t, kMaxAhsBytes + kDigestBytes> rest_{};  // additional headers and digest
  std::array<uint8_t, 3 + kDigestBytes> tail_{};
  std::array<uint8_t, 4096> dropped_{};
  std::span<uint8_t> place_;
  bool drop_ = false;
  uint32_t crc_ = 0;  // of dropped data
};

}  // namespace hydra::iscsi
