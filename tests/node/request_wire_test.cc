// SPDX-License-Identifier: Apache-2.0
#include "daemon/request_wire.h"

#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/crc32c.h"
#include "tests/support/gtest_status.h"

namespace hydra {
namespace {

Frame WithPayload(size_t bytes) {
  Frame frame;
  frame.payload_bytes = static_cast<uint32_t>(bytes);
  if (bytes > 0) frame.payload = Buffer::Allocate(bytes);
  return frame;
}

rpc::Io Mutation(rpc::Io::Kind kind, uint64_t lba, uint64_t count) {
  rpc::Io io;
  io.set_kind(kind);
  io.set_lba(lba);
  io.set_count(count);
  io.set_session(4);
  io.set_seq(1);
  return io;
}

TEST(RequestWire, TakesAWrite) {
  rpc::Io io = Mutation(rpc::Io::WRITE, 10, 2);
  io.add_crcs(1);
  io.add_crcs(2);
  io.set_seen(33);
  const auto request = ToShardRequest(io, WithPayload(2 * kPageSize), 1);
  ASSERT_OK(request.status());
  EXPECT_EQ(request->context.kind, RequestKind::kWrite);
  EXPECT_THAT(request->op.crcs, testing::ElementsAre(1, 2));
  EXPECT_EQ(request->seen, 33u);
  EXPECT_EQ(request->payload.size(), 1u);
}

TEST(RequestWire, WithoutSeenNothingIsChecked) {
  rpc::Io io = Mutation(rpc::Io::UNMAP, 10, 2);
  const auto request = ToShardRequest(io, {}, 1);
  ASSERT_OK(request.status());
  EXPECT_EQ(request->seen, ShardRequest::kAnySeen);
}

TEST(RequestWire, SplitsACompareAndItsData) {
  rpc::Io io = Mutation(rpc::Io::COMPARE_AND_WRITE, 10, 1);
  io.add_crcs(1);
  const auto request = ToShardRequest(io, WithPayload(2 * kPageSize), 1);
  ASSERT_OK(request.status());
  EXPECT_EQ(request->compare.offset, 0u);
  EXPECT_EQ(request->payload[0].offset, kPageSize);
}

TEST(RequestWire, TakesAPartOfABlock) {
  Frame frame = WithPayload(kPageSize);
  std::memset(frame.payload.data(), 7, 512);
  rpc::Io io = Mutation(rpc::Io::WRITE_PART, 10, 1);
  io.set_part_offset(512);
  io.set_part_bytes(512);
  EXPECT_CODE(ToShardRequest(io, frame, 1).status(), Code::kInvalidArgument);  // no checksum
  io.add_crcs(Crc32c(frame.payload.data(), 512));
  ASSERT_OK(ToShardRequest(io, frame, 1).status());
  io.set_part_offset(4096 - 256);
  EXPECT_CODE(ToShardRequest(io, frame, 1).status(), Code::kInvalidArgument);
}

TEST(RequestWire, RefusesWhatMakesNoSense) {
  const auto code = [](const rpc::Io& io, size_t payload) {
    return ToShardRequest(io, WithPayload(payload), 1).status();
  };
  rpc::Io io = Mutation(rpc::Io::WRITE, 10, 2);
  EXPECT_CODE(code(io, 2 * kPageSize), Code::kInvalidArgument);  // no checksums
  io.add_crcs(1);
  io.add_crcs(2);
  EXPECT_CODE(code(io, kPageSize), Code::kInvalidArgument);
  EXPECT_CODE(code(io, 3 * kPageSize), Code::kInvalidArgument);
  io.set_lba(255);  // crosses an extent
  EXPECT_CODE(code(io, 2 * kPageSize), Code::kInvalidArgument);
  io.set_lba(UINT64_MAX);
  EXPECT_CODE(code(io, 2 * kPageSize), Code::kInvalidArgument);
  io.set_lba(10);
  io.set_session(0);
  EXPECT_CODE(code(io, 2 * kPageSize), Code::kInvalidArgument);
  for (const uint64_t count : {uint64_t{0}, uint64_t{257}, UINT64_MAX}) {
    EXPECT_CODE(code(Mutation(rpc::Io::READ, 0, count), 0), Code::kInvalidArgument) << count;
    EXPECT_CODE(code(Mutation(rpc::Io::ZERO, 0, count), 0), Code::kInvalidArgument) << count;
  }
  io = Mutation(rpc::Io::WRITE, 0, 1);
  io.set_kind(static_cast<rpc::Io::Kind>(99));
  EXPECT_CODE(code(io, 0), Code::kUnsupported);
}

TEST(RequestWire, AnswersAReadWithoutItsZeroes) {
  ShardReply reply;
  reply.data.emplace();
  reply.data->data = Buffer::Allocate(4 * kPageSize);
  reply.data->blocks = {{7, BlockKind::kData, 1},
                        {8, BlockKind::kData, 2},
                        {0, BlockKind::kUnmapped, 3},
                        {9, BlockKind::kData, 4}};
  rpc::Reply out;
  std::vector<BufferSlice> payload;
  FillReply(reply, &out, &payload);
  EXPECT_EQ(out.kinds(), std::string("\1\1\3\1"));
  ASSERT_EQ(payload.size(), 2u);
  EXPECT_EQ(payload[0].length, 2 * kPageSize);
  EXPECT_EQ(payload[1].offset, 3 * kPageSize);
}

}  // namespace
}  // namespace hydra
