// SPDX-License-Identifier: Apache-2.0
#include "client/io_codec.h"

#include <string>
#include <utility>

#include <google/protobuf/stubs/logging.h>
#include <gtest/gtest.h>

#include "base/coding.h"
#include "base/rng.h"

namespace hydra {
namespace {

constexpr int kMessages = 20'000;

// 0 often, else of any length in bytes.
uint64_t AnyNumber(Rng* rng) { return rng->Percent(30) ? 0 : rng->Next() >> rng->Below(64); }

bool Any(Rng* rng) { return rng->Percent(50); }

uint32_t AnyNumber32(Rng* rng) { return static_cast<uint32_t>(AnyNumber(rng)); }

// Of blocks: mostly a few, now and then more than the codec takes itself.
uint64_t AnyCount(Rng* rng) { return rng->Percent(10) ? rng->Below(300) : rng->Below(4); }

rpc::Io AnyIo(Rng* rng) {
  rpc::Io io;
  io.set_kind(static_cast<rpc::Io::Kind>(rng->Percent(5) ? static_cast<int>(AnyNumber32(rng))
                                                         : static_cast<int>(rng->Below(8))));
  io.set_group(AnyNumber32(rng));
  io.set_lba(AnyNumber(rng));
  io.set_count(AnyNumber(rng));
  for (uint64_t i = AnyCount(rng); i > 0; --i) io.add_crcs(AnyNumber32(rng));
  if (rng->Percent(5)) io.add_extents(AnyNumber(rng));
  io.set_part_offset(AnyNumber32(rng));
  io.set_part_bytes(AnyNumber32(rng));
  io.set_session(AnyNumber(rng));
  io.set_seq(AnyNumber(rng));
  io.set_lowest_unanswered(AnyNumber(rng));
  io.set_seen(AnyNumber(rng));
  io.set_epoch(AnyNumber(rng));
  io.set_local(Any(rng));
  io.set_request(AnyNumber(rng));
  io.set_map_only(Any(rng));
  return io;
}

rpc::Reply AnyReply(Rng* rng) {
  rpc::Reply reply;
  reply.set_answer(static_cast<rpc::Reply::Answer>(
      rng->Percent(5) ? static_cast<int>(AnyNumber32(rng)) : static_cast<int>(rng->Below(16))));
  if (rng->Percent(10)) reply.set_message("why not");
  reply.set_code(AnyNumber32(rng));
  reply.set_master(AnyNumber32(rng));
  reply.set_commit(AnyNumber(rng));
  reply.set_version(AnyNumber(rng));
  for (uint64_t i = AnyCount(rng); i > 0; --i) reply.add_crcs(AnyNumber32(rng));
  reply.set_kinds(std::string(AnyCount(rng), static_cast<char>(rng->Below(256))));
  for (uint64_t i = AnyCount(rng); i > 0; --i) reply.add_versions(AnyNumber(rng));
  reply.set_session(AnyNumber(rng));
  if (rng->Percent(5)) reply.set_catalogue("catalogue");
  if (rng->Percent(5)) reply.mutable_status()->set_node(3);
  if (rng->Percent(5)) reply.mutable_purge();
  return reply;
}

std::string BytesOf(const rpc::Io& io) {
  rpc::Request request;
  *request.mutable_io() = io;
  return request.SerializeAsString();
}

// Bytes that are close to a message.
std::string Damaged(std::string bytes, Rng* rng) {
  for (uint64_t i = rng->Below(3); i > 0 && !bytes.empty(); --i) {
    bytes[rng->Below(bytes.size())] = static_cast<char>(rng->Below(256));
  }
  if (Any(rng)) bytes.resize(rng->Below(bytes.size() + 1));
  if (rng->Percent(30)) bytes += static_cast<char>(rng->Below(256));
  return bytes;
}

// What the codec has to take itself.
bool IsCommon(const rpc::Io& io) {
  return rpc::Io::Kind_IsValid(io.kind()) && io.extents_size() == 0;
}
bool IsCommon(const rpc::Reply& reply) {
  return rpc::Reply::Answer_IsValid(reply.answer()) && reply.message().empty() &&
         reply.catalogue().empty() && !reply.has_status() && !reply.has_purge();
}

// What the codec takes for an Io is one for protobuf as well, and the same one. Counts those.
void ExpectSameIo(const std::string& bytes, rpc::Io* io, int* understood) {
  if (!DecodeIo(bytes, io)) return;
  ++*understood;
  rpc::Request request;
  ASSERT_TRUE(request.ParseFromString(bytes));
  ASSERT_TRUE(request.has_io());
  ASSERT_EQ(io->SerializeAsString(), request.io().SerializeAsString());
}

// Counts those that needed no protobuf.
void ExpectSameReply(const std::string& bytes, int* understood) {
  rpc::Reply reply;
  rpc::Reply expected;
  if (DecodeCommonReply(bytes, &reply)) ++*understood;
  const bool decoded = DecodeReply(bytes, &reply);
  ASSERT_EQ(decoded, expected.ParseFromString(bytes));
  if (!decoded) return;
  ASSERT_EQ(reply.SerializeAsString(), expected.SerializeAsString());
}

// What can stand behind a tag, by its wire type, and is not what a field is without it. The bytes
// are a string, a message, and a list of numbers of any kind.
const std::pair<uint64_t, std::string> kValues[] = {{0, std::string("\x01", 1)},
                                                    {1, std::string("\x01\0\0\0\0\0\0\0", 8)},
                                                    {2, "\x08\x08\x01\x10\x01\x08\x01\x10\x01"},
                                                    {5, std::string("\x01\0\0\0", 4)}};

TEST(IoCodec, WritesTheBytesThatProtobufWrites) {
  Rng rng(1);
  for (int i = 0; i < kMessages; ++i) {
    const rpc::Io io = AnyIo(&rng);
    ASSERT_EQ(EncodeIo(io), BytesOf(io));
    const rpc::Reply reply = AnyReply(&rng);
    ASSERT_EQ(EncodeReply(reply), reply.SerializeAsString());
  }
  EXPECT_EQ(EncodeIo({}), BytesOf({}));
  EXPECT_EQ(EncodeReply({}), "");
}

// The highest number of a field whose tag has two bytes; nothing is looked for above it.
constexpr uint64_t kMaxFieldNumber = (1u << 14 >> 3) - 1;

// Whether it is of a field that protobuf knows: it writes what it does not know last, and as it
// came, here behind a field that nothing knows.
template <typename T>
bool IsKnown(const std::string& field, T* message) {
  std::string unknown;
  PutVarint64(&unknown, uint64_t{(1u << 29) - 1} << 3);
  unknown += '\x01';
  EXPECT_TRUE(message->ParseFromString(unknown + field));
  const bool known = !message->SerializeAsString().starts_with(unknown);
  EXPECT_TRUE(message->ParseFromString(field));
  return known;
}

// A field that is new in protocol.proto and not known to the codec would be lost here.
TEST(IoCodec, LosesNoFieldThatProtobufKnows) {
  int known = 0;
  for (uint64_t number = 1; number <= kMaxFieldNumber; ++number) {
    for (const auto& [wire_type, value] : kValues) {
      std::string field;
      PutVarint64(&field, number << 3 | wire_type);
      field += value;
      rpc::Io io;
      if (IsKnown(field, &io)) {
        ++known;
        EXPECT_EQ(EncodeIo(io), BytesOf(io)) << "field " << number;
      }
      rpc::Reply reply;
      if (IsKnown(field, &reply)) {
        ++known;
        EXPECT_EQ(EncodeReply(reply), reply.SerializeAsString()) << "field " << number;
      }
    }
  }
  EXPECT_GE(known, 16 + 13);
}

TEST(IoCodec, ReadsWhatProtobufReads) {
  Rng rng(2);
  rpc::Io decoded;  // never cleared by the caller
  int common = 0;
  for (int i = 0; i < kMessages; ++i) {
    const rpc::Io io = AnyIo(&rng);
    int taken = 0;
    ASSERT_NO_FATAL_FAILURE(ExpectSameIo(BytesOf(io), &decoded, &taken));
    if (IsCommon(io)) {
      ++common;
      ASSERT_EQ(taken, 1);
    }
    const rpc::Reply reply = AnyReply(&rng);
    taken = 0;
    ASSERT_NO_FATAL_FAILURE(ExpectSameReply(reply.SerializeAsString(), &taken));
    if (IsCommon(reply)) {
      ++common;
      ASSERT_EQ(taken, 1);
    }
  }
  EXPECT_GT(common, kMessages);
}

TEST(IoCodec, TakesNoMoreThanProtobufOfWhatIsDamaged) {
  const google::protobuf::LogSilencer quiet;  // it says what it does not like
  Rng rng(3);
  rpc::Io io;
  int understood = 0;
  int understood_replies = 0;
  for (int i = 0; i < kMessages; ++i) {
    ASSERT_NO_FATAL_FAILURE(ExpectSameIo(Damaged(BytesOf(AnyIo(&rng)), &rng), &io, &understood));
    const std::string reply = AnyReply(&rng).SerializeAsString();
    ASSERT_NO_FATAL_FAILURE(ExpectSameReply(Damaged(reply, &rng), &understood_replies));
  }
  EXPECT_GT(understood, 3'000);
  EXPECT_GT(understood_replies, 3'000);
}

TEST(IoCodec, TakesACommonWriteAndItsAnswerWithoutProtobuf) {
  rpc::Io io;
  io.set_kind(rpc::Io::WRITE);
  io.set_group(7);
  io.set_lba(1u << 20);
  io.set_count(1);
  io.add_crcs(0xdeadbeef);
  io.set_session(300);
  io.set_seq(70'000);
  rpc::Io decoded;
  ASSERT_TRUE(DecodeIo(BytesOf(io), &decoded));
  EXPECT_EQ(decoded.SerializeAsString(), io.SerializeAsString());
  rpc::Reply reply;
  reply.set_answer(rpc::Reply::DONE);
  reply.set_commit(1ull << 40);
  reply.set_version(1ull << 40);
  rpc::Reply answer;
  ASSERT_TRUE(DecodeCommonReply(reply.SerializeAsString(), &answer));
  EXPECT_EQ(answer.SerializeAsString(), reply.SerializeAsString());
}

TEST(IoCodec, LeavesOtherRequestsToProtobuf) {
  rpc::Io io;
  rpc::Request request;
  EXPECT_FALSE(DecodeIo(request.SerializeAsString(), &io));
  request.mutable_keep_alive()->set_group(1);
  EXPECT_FALSE(DecodeIo(request.SerializeAsString(), &io));
  // Of a newer version: a field that is not known here.
  std::string newer = BytesOf({});
  newer[1] = 3;
  newer += std::string("\xf8\x01\x01", 3);
  EXPECT_FALSE(DecodeIo(newer, &io));
  EXPECT_TRUE(request.ParseFromString(newer));
}

}  // namespace
}  // namespace hydra
