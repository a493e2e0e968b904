// SPDX-License-Identifier: Apache-2.0
#include "client/io_codec.h"

#include <cstring>
#include <limits>
#include <span>
#include <utility>

#include "base/coding.h"

namespace hydra {
namespace {

// That are written here: more go protobuf's way, where the work for each outweighs that for the
// message.
constexpr int kMaxBlocks = 64;
// The fields of one message: 15 numbers of at most 12 bytes, and 15 bytes for each block.
constexpr size_t kMaxBytes = 2048;
static_assert(15 * (2 + kMaxVarint64Bytes) + 3 * 4 + kMaxBlocks * 15 < kMaxBytes);
// Before them, of a request: the tag of the Io and its length.
constexpr size_t kPrefixBytes = 3;

constexpr uint32_t Tag(uint32_t field, uint32_t wire_type) { return field << 3 | wire_type; }
constexpr uint32_t Number(uint32_t field) { return Tag(field, 0); }
constexpr uint32_t Bytes(uint32_t field) { return Tag(field, 2); }

constexpr uint8_t kIoTag = Bytes(rpc::Request::kIoFieldNumber);

// Writes fields in ascending order. What is 0 or empty is left out.
class Writer {
 public:
  void Put(uint32_t field, uint64_t value) {
    if (value == 0) return;
    end_ = EncodeVarint64(end_, Number(field));
    end_ = EncodeVarint64(end_, value);
  }

  void PutBytes(uint32_t field, const void* bytes, size_t length) {
    if (length == 0) return;
    Head(field, length);
    std::memcpy(end_, bytes, length);
    end_ += length;
  }

  void PutPacked(uint32_t field, std::span<const uint64_t> values) {
    if (values.empty()) return;
    size_t length = 0;
    for (const uint64_t value : values) length += VarintLength(value);
    Head(field, length);
    for (const uint64_t value : values) end_ = EncodeVarint64(end_, value);
  }

  std::string Take() { return {reinterpret_cast<const char*>(fields()), Length()}; }

  // As the only field of a message.
  std::string TakeWithin(uint8_t tag) {
    const size_t length = Length();
    uint8_t* const begin = fields() - 1 - VarintLength(length);
    *begin = tag;
    EncodeVarint64(begin + 1, length);
    return {reinterpret_cast<const char*>(begin), reinterpret_cast<const char*>(end_)};
  }

 private:
  void Head(uint32_t field, size_t length) {
    end_ = EncodeVarint64(end_, Bytes(field));
    end_ = EncodeVarint64(end_, length);
  }

  // Of what was written.
  size_t Length() { return static_cast<size_t>(end_ - fields()); }

  uint8_t* fields() { return bytes_ + kPrefixBytes; }

  uint8_t bytes_[kPrefixBytes + kMaxBytes];
  uint8_t* end_ = fields();
};

// Reads fields as Writer writes them, and is no longer good() once it met anything else: that may
// be a message all the same.
class Reader {
 public:
  explicit Reader(std::span<const uint8_t> bytes)
      : at_(bytes.data()), end_(bytes.data() + bytes.size()) {}

  // False at the end, whichever it is.
  bool Next(uint32_t* tag) {
    if (at_ == end_ || !good_) return false;
    const uint32_t last = std::exchange(tag_, GetShort());
    good_ = good_ && tag_ > last;
    *tag = tag_;
    return good_;
  }

  template <typename T>
  T Get() {
    const uint64_t value = GetVarint();
    good_ = good_ && value <= static_cast<uint64_t>(std::numeric_limits<T>::max());
    return static_cast<T>(value);
  }

  std::span<const uint8_t> GetBytes() {
    const uint32_t length = GetShort();
    good_ = good_ && length <= static_cast<size_t>(end_ - at_);
    if (!good_) return {};
    at_ += length;
    return {at_ - length, length};
  }

  void GetPacked(google::protobuf::RepeatedField<uint32_t>* values) {
    const std::span<const uint8_t> bytes = GetBytes();
    const size_t count = bytes.size() / sizeof(uint32_t);
    good_ = good_ && bytes.size() % sizeof(uint32_t) == 0;
    if (!good_ || count == 0) return;
    values->Resize(static_cast<int>(count), 0);
    std::memcpy(values->mutable_data(), bytes.data(), bytes.size());
  }

  void GetPacked(google::protobuf::RepeatedField<uint64_t>* values) {
    Reader in(GetBytes());
    while (in.good_ && in.at_ < in.end_) values->Add(in.GetVarint());
    good_ = good_ && in.good_;
  }

  void Fail() { good_ = false; }
  bool good() const { return good_; }

 private:
  // Tags and lengths: of at most two bytes.
  uint32_t GetShort() {
    if (at_ < end_ && at_[0] < 0x80) return *at_++;
    good_ = good_ && end_ - at_ >= 2 && at_[1] > 0 && at_[1] < 0x80;
    if (!good_) return 0;
    at_ += 2;
    return (at_[-2] & 0x7fu) | uint32_t{at_[-1]} << 7;
  }

  uint64_t GetVarint() {
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64 && at_ < end_; shift += 7) {
      const uint8_t byte = *at_++;
      value |= uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return value;
    }
    good_ = false;
    return 0;
  }

  const uint8_t* at_;
  const uint8_t* const end_;
  uint32_t tag_ = 0;
  bool good_ = true;
};

template <typename T>
std::span<const T> SpanOf(const google::protobuf::RepeatedField<T>& values) {
  return {values.data(), static_cast<size_t>(values.size())};
}

// An enum is as wide as an int in the bytes, but numbers are widened with their sign.
uint64_t Widened(int value) { return static_cast<uint64_t>(int64_t{value}); }

}  // namespace

std::string EncodeIo(const rpc::Io& io) {
  using I = rpc::Io;
  if (io.crcs_size() > kMaxBlocks || io.extents_size() > 0) {
    rpc::Request request;
    *request.mutable_io() = io;
    return request.SerializeAsString();
  }
  Writer out;
  out.Put(I::kKindFieldNumber, Widened(io.kind()));
  out.Put(I::kGroupFieldNumber, io.group());
  out.Put(I::kLbaFieldNumber, io.lba());
  out.Put(I::kCountFieldNumber, io.count());
  out.PutBytes(I::kCrcsFieldNumber, io.crcs().data(), SpanOf(io.crcs()).size_bytes());
  out.Put(I::kPartOffsetFieldNumber, io.part_offset());
  out.Put(I::kPartBytesFieldNumber, io.part_bytes());
  out.Put(I::kSessionFieldNumber, io.session());
  out.Put(I::kSeqFieldNumber, io.seq());
  out.Put(I::kLowestUnansweredFieldNumber, io.lowest_unanswered());
  out.Put(I::kSeenFieldNumber, io.seen());
  out.Put(I::kEpochFieldNumber, io.epoch());
  out.Put(I::kLocalFieldNumber, io.local() ? 1 : 0);
  out.Put(I::kRequestFieldNumber, io.request());
  out.Put(I::kMapOnlyFieldNumber, io.map_only() ? 1 : 0);
  return out.TakeWithin(kIoTag);
}

bool DecodeIo(std::string_view request, rpc::Io* io) {
  using I = rpc::Io;
  Reader whole(AsBytes(request));
  uint32_t tag = 0;
  if (!whole.Next(&tag) || tag != kIoTag) return false;
  Reader in(whole.GetBytes());
  if (whole.Next(&tag) || !whole.good()) return false;
  io->Clear();
  while (in.Next(&tag)) {
    switch (tag) {
      case Number(I::kKindFieldNumber): io->set_kind(static_cast<I::Kind>(in.Get<int>())); break;
      case Number(I::kGroupFieldNumber): io->set_group(in.Get<uint32_t>()); break;
      case Number(I::kLbaFieldNumber): io->set_lba(in.Get<uint64_t>()); break;
      case Number(I::kCountFieldNumber): io->set_count(in.Get<uint64_t>()); break;
      case Bytes(I::kCrcsFieldNumber): in.GetPacked(io->mutable_crcs()); break;
      case Number(I::kPartOffsetFieldNumber): io->set_part_offset(in.Get<uint32_t>()); break;
      case Number(I::kPartBytesFieldNumber): io->set_part_bytes(in.Get<uint32_t>()); break;
      case Number(I::kSessionFieldNumber): io->set_session(in.Get<uint64_t>()); break;
      case Number(I::kSeqFieldNumber): io->set_seq(in.Get<uint64_t>()); break;
      case Number(I::kLowestUnansweredFieldNumber): {
        io->set_lowest_unanswered(in.Get<uint64_t>());
        break;
      }
      case Number(I::kSeenFieldNumber): io->set_seen(in.Get<uint64_t>()); break;
      case Number(I::kEpochFieldNumber): io->set_epoch(in.Get<uint64_t>()); break;
      case Number(I::kLocalFieldNumber): io->set_local(in.Get<bool>()); break;
      case Number(I::kRequestFieldNumber): io->set_request(in.Get<uint64_t>()); break;
      case Number(I::kMapOnlyFieldNumber): io->set_map_only(in.Get<bool>()); break;
      default: in.Fail();
    }
  }
  return in.good();
}

std::string EncodeReply(const rpc::Reply& reply) {
  using R = rpc::Reply;
  const bool common = reply.message().empty() && reply.crcs_size() <= kMaxBlocks &&
                      reply.kinds().size() <= kMaxBlocks && reply.versions_size() <= kMaxBlocks &&
                      reply.catalogue().empty() && !reply.has_status() && !reply.has_purge();
  if (!common) return reply.SerializeAsString();
  Writer out;
  out.Put(R::kAnswerFieldNumber, Widened(reply.answer()));
  out.Put(R::kCodeFieldNumber, reply.code());
  out.Put(R::kMasterFieldNumber, reply.master());
  out.Put(R::kCommitFieldNumber, reply.commit());
  out.Put(R::kVersionFieldNumber, reply.version());
  out.PutBytes(R::kCrcsFieldNumber, reply.crcs().data(), SpanOf(reply.crcs()).size_bytes());
  out.PutBytes(R::kKindsFieldNumber, reply.kinds().data(), reply.kinds().size());
  out.PutPacked(R::kVersionsFieldNumber, SpanOf(reply.versions()));
  out.Put(R::kSessionFieldNumber, reply.session());
  return out.Take();
}

bool DecodeCommonReply(std::string_view bytes, rpc::Reply* reply) {
  using R = rpc::Reply;
  Reader in(AsBytes(bytes));
  reply->Clear();
  for (uint32_t tag = 0; in.Next(&tag);) {
    switch (tag) {
      case Number(R::kAnswerFieldNumber): {
        reply->set_answer(static_cast<R::Answer>(in.Get<int>()));
        break;
      }
      case Number(R::kCodeFieldNumber): reply->set_code(in.Get<uint32_t>()); break;
      case Number(R::kMasterFieldNumber): reply->set_master(in.Get<uint32_t>()); break;
      case Number(R::kCommitFieldNumber): reply->set_commit(in.Get<uint64_t>()); break;
      case Number(R::kVersionFieldNumber): reply->set_version(in.Get<uint64_t>()); break;
      case Bytes(R::kCrcsFieldNumber): in.GetPacked(reply->mutable_crcs()); break;
      case Bytes(R::kKindsFieldNumber): {
        const std::span<const uint8_t> kinds = in.GetBytes();
        reply->mutable_kinds()->assign(kinds.begin(), kinds.end());
        break;
      }
      case Bytes(R::kVersionsFieldNumber): in.GetPacked(reply->mutable_versions()); break;
      case Number(R::kSessionFieldNumber): reply->set_session(in.Get<uint64_t>()); break;
      default: in.Fail();
    }
  }
  return in.good();
}

bool DecodeReply(std::string_view bytes, rpc::Reply* reply) {
  return DecodeCommonReply(bytes, reply) ||
         reply->ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
}

}  // namespace hydra
