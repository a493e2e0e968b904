// SPDX-License-Identifier: Apache-2.0
//
// How integers become bytes. Everything on disk and wire is little-endian ("Fixed"), except keys
// that must sort as numbers, which are big-endian ("Big"). A varint64 holds seven bits per byte,
// low bits first, and has exactly one valid encoding: the shortest.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <string_view>

namespace hydra {

static_assert(std::endian::native == std::endian::little,
              "the fixed codecs below copy memory; port them before building here");

inline constexpr size_t kMaxVarint64Bytes = 10;

// --- Into memory that the caller knows is large enough ---------------------------------------

inline void EncodeFixed16(uint8_t* to, uint16_t v) { std::memcpy(to, &v, sizeof(v)); }
inline void EncodeFixed32(uint8_t* to, uint32_t v) { std::memcpy(to, &v, sizeof(v)); }
inline void EncodeFixed64(uint8_t* to, uint64_t v) { std::memcpy(to, &v, sizeof(v)); }
inline void EncodeBig32(uint8_t* to, uint32_t v) { EncodeFixed32(to, __builtin_bswap32(v)); }
inline void EncodeBig64(uint8_t* to, uint64_t v) { EncodeFixed64(to, __builtin_bswap64(v)); }

inline uint16_t DecodeFixed16(const uint8_t* from) {
  uint16_t v;
  std::memcpy(&v, from, sizeof(v));
  return v;
}

inline uint32_t DecodeFixed32(const uint8_t* from) {
  uint32_t v;
  std::memcpy(&v, from, sizeof(v));
  return v;
}

inline uint64_t DecodeFixed64(const uint8_t* from) {
  uint64_t v;
  std::memcpy(&v, from, sizeof(v));
  return v;
}

inline uint32_t DecodeBig32(const uint8_t* from) { return __builtin_bswap32(DecodeFixed32(from)); }
inline uint64_t DecodeBig64(const uint8_t* from) { return __builtin_bswap64(DecodeFixed64(from)); }

// Writes at most kMaxVarint64Bytes and returns the end.
inline uint8_t* EncodeVarint64(uint8_t* to, uint64_t v) {
  while (v >= 0x80) {
    *to++ = static_cast<uint8_t>(v) | 0x80;
    v >>= 7;
  }
  *to++ = static_cast<uint8_t>(v);
  return to;
}

constexpr size_t VarintLength(uint64_t v) {
  return 1 + (static_cast<size_t>(std::bit_width(v | 1)) - 1) / 7;
}

// --- Appended to a string --------------------------------------------------------------------

namespace coding_internal {
inline void Append(std::string* to, const uint8_t* bytes, size_t length) {
  to->append(reinterpret_cast<const char*>(bytes), length);
}
}  // namespace coding_internal

inline void PutU8(std::string* to, uint8_t v) { to->push_back(static_cast<char>(v)); }

inline void PutFixed16(std::string* to, uint16_t v) {
  uint8_t bytes[sizeof(v)];
  EncodeFixed16(bytes, v);
  coding_internal::Append(to, bytes, sizeof(v));
}

inline void PutFixed32(std::string* to, uint32_t v) {
  uint8_t bytes[sizeof(v)];
  EncodeFixed32(bytes, v);
  coding_internal::Append(to, bytes, sizeof(v));
}

inline void PutFixed64(std::string* to, uint64_t v) {
  uint8_t bytes[sizeof(v)];
  EncodeFixed64(bytes, v);
  coding_internal::Append(to, bytes, sizeof(v));
}

inline void PutBig32(std::string* to, uint32_t v) {
  uint8_t bytes[sizeof(v)];
  EncodeBig32(bytes, v);
  coding_internal::Append(to, bytes, sizeof(v));
}

inline void PutBig64(std::string* to, uint64_t v) {
  uint8_t bytes[sizeof(v)];
  EncodeBig64(bytes, v);
  coding_internal::Append(to, bytes, sizeof(v));
}

inline void PutVarint64(std::string* to, uint64_t v) {
  uint8_t bytes[kMaxVarint64Bytes];
  coding_internal::Append(to, bytes, static_cast<size_t>(EncodeVarint64(bytes, v) - bytes));
}

inline void PutLengthPrefixed(std::string* to, std::string_view bytes) {
  PutVarint64(to, bytes.size());
  to->append(bytes);
}

inline void PutBytes(std::string* to, std::span<const uint8_t> bytes) {
  coding_internal::Append(to, bytes.data(), bytes.size());
}

// The bytes of a string as the decoders want them. The string must outlive the result.
inline std::span<const uint8_t> AsBytes(std::string_view s) {
  return {reinterpret_cast<const uint8_t*>(s.data()), s.size()};
}

// --- Out of bytes that nobody vouches for ----------------------------------------------------

// Reads values one after the other and never beyond its span. A failed call leaves its output
// untouched, and every later call fails too, so that one check after the last call is enough.
// Does not own the bytes.
class Decoder {
 public:
  explicit Decoder(std::span<const uint8_t> bytes) : bytes_(bytes) {}

  bool U8(uint8_t* v) {
    if (!Need(1)) return false;
    *v = bytes_[position_++];
    return true;
  }

  bool Fixed16(uint16_t* v) { return Whole<uint16_t, DecodeFixed16>(v); }
  bool Fixed32(uint32_t* v) { return Whole<uint32_t, DecodeFixed32>(v); }
  bool Fixed64(uint64_t* v) { return Whole<uint64_t, DecodeFixed64>(v); }
  bool Big32(uint32_t* v) { return Whole<uint32_t, DecodeBig32>(v); }
  bool Big64(uint64_t* v) { return Whole<uint64_t, DecodeBig64>(v); }

  bool Varint64(uint64_t* v) {
    if (!failed_ && position_ < bytes_.size() && bytes_[position_] < 0x80) {  // mostly
      *v = bytes_[position_++];
      return true;
    }
    uint64_t value = 0;
    for (unsigned i = 0; i < kMaxVarint64Bytes; ++i) {
      if (!Need(i + 1)) return false;
      const uint8_t byte = bytes_[position_ + i];
      // The tenth byte has room for one bit; a last byte of zero says the encoding was not the
      // shortest.
      if (i == kMaxVarint64Bytes - 1 && byte > 1) return Fail();
      if (i > 0 && byte == 0) return Fail();
      value |= static_cast<uint64_t>(byte & 0x7f) << (7 * i);
      if (byte < 0x80) {
        position_ += i + 1;
        *v = value;
        return true;
      }
    }
    return Fail();
  }

  bool Varint32(uint32_t* v) {
    const size_t start = position_;
    uint64_t wide = 0;
    if (!Varint64(&wide)) return false;
    if (wide > std::numeric_limits<uint32_t>::max()) {
      position_ = start;
      return Fail();
    }
    *v = static_cast<uint32_t>(wide);
    return true;
  }

  // A view into the span given to the constructor, not a copy.
  bool Bytes(size_t n, std::span<const uint8_t>* out) {
    if (!Need(n)) return false;
    *out = bytes_.subspan(position_, n);
    position_ += n;
    return true;
  }

  bool LengthPrefixed(std::string* out) {
    uint64_t length = 0;
    std::span<const uint8_t> bytes;
    if (!Varint64(&length) || !Bytes(length, &bytes)) return false;
    out->assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return true;
  }

  bool Skip(size_t n) {
    if (!Need(n)) return false;
    position_ += n;
    return true;
  }

  bool ok() const { return !failed_; }
  size_t remaining() const { return bytes_.size() - position_; }
  size_t position() const { return position_; }  // after a failure: of what could not be read

 private:
  bool Fail() {
    failed_ = true;
    return false;
  }

  bool Need(size_t n) {
    if (failed_ || n > remaining()) return Fail();
    return true;
  }

  template <typename T, T (*kDecode)(const uint8_t*)>
  bool Whole(T* v) {
    if (!Need(sizeof(T))) return false;
    *v = kDecode(bytes_.data() + position_);
    position_ += sizeof(T);
    return true;
  }

  std::span<const uint8_t> bytes_;
  size_t position_ = 0;
  bool failed_ = false;
};

}  // namespace hydra
