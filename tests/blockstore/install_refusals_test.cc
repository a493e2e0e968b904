// SPDX-License-Identifier: Apache-2.0
//
// What an install refuses: everything that comes from a peer is checked before anything is queued.
#include <algorithm>
#include <string>

#include <gtest/gtest.h>

#include "blockstore/install_check.h"
#include "tests/blockstore/install_fixture.h"

namespace hydra::test {
namespace {

class BadChunk : public InstallTest {
 protected:
  void SetUp() override {
    AtSource({WriteOp(0, 6), WriteOp(256, 1)});
    ASSERT_OK(Follow(&source_, &target_, 1, 1));
    AtSource({WriteOp(2, 2), ZeroOp(30, 1)});
  }

  void Start(InstallMode mode) {
    ASSERT_OK(target_.InstallBegin(1, mode, 2));
    ASSERT_OK(target_.Flush());
    InstallDriver::Options options;
    options.mode = mode;
    good_ = *Driver(options).Build();
  }

  // The good chunk, spoilt by `spoil`, is refused and nothing has changed.
  template <typename Spoil>
  void ExpectRefused(const char* what, const Spoil& spoil) {
    SCOPED_TRACE(what);
    ImagePiece bad = good_;
    spoil(&bad);
    const GroupInfo before = Info();
    const uint64_t queued = target_->Stats().queued_bytes;
    EXPECT_CODE(target_->InstallChunk(1, bad.chunk, bad.payload, 99), Code::kInvalidArgument);
    EXPECT_EQ(Info().install, before.install);
    EXPECT_EQ(Info().data_blocks, before.data_blocks);
    EXPECT_EQ(target_->Stats().queued_bytes, queued);
  }

  // The first row whose payload travels.
  static ImageRow& Data(ImagePiece* piece) {
    for (ImageRow& row : piece->chunk.rows) {
      if (row.kind == BlockKind::kData && !row.same) return row;
    }
    ADD_FAILURE() << "no data row";
    return piece->chunk.rows.front();
  }

  void ExpectCommonRefusals() {
    ExpectRefused("another block size", [](ImagePiece* p) { p->chunk.block_pages = 2; });
    ExpectRefused("the other mode", [](ImagePiece* p) {
      p->chunk.mode =
          p->chunk.mode == InstallMode::kImage ? InstallMode::kDelta : InstallMode::kImage;
    });
    ExpectRefused("a damaged block", [](ImagePiece* p) {
      BufferSlice& slice = p->payload.front();
      const Buffer copy = Buffer::Allocate(slice.length);
      std::copy(slice.data(), slice.data() + slice.length, copy.data());
      copy.data()[17] ^= 4;
      slice = {copy, 0, copy.size()};
    });
    ExpectRefused("a wrong checksum", [](ImagePiece* p) { Data(p).crc ^= 1; });
    ExpectRefused("payload missing", [](ImagePiece* p) { p->payload.pop_back(); });
    ExpectRefused("payload too much",
                  [](ImagePiece* p) { p->payload.push_back(p->payload.front()); });
    ExpectRefused("ragged payload", [](ImagePiece* p) { p->payload.front().length -= 512; });
    ExpectRefused("payload beyond its buffer",
                  [](ImagePiece* p) { p->payload.front().offset = 1 << 20; });
    ExpectRefused("rows out of order",
                  [](ImagePiece* p) { std::swap(p->chunk.rows.front(), p->chunk.rows.back()); });
    ExpectRefused("a row twice",
                  [](ImagePiece* p) { p->chunk.rows.push_back(p->chunk.rows.back()); });
    ExpectRefused("an unknown kind",
                  [](ImagePiece* p) { p->chunk.rows.back().kind = BlockKind{9}; });
    ExpectRefused("a version of nothing", [](ImagePiece* p) { Data(p).version = 0; });
    ExpectRefused("a version beyond its newest",
                  [](ImagePiece* p) { Data(p).version = MakeVersion(p->chunk.newest + 1, 0); });
    ExpectRefused("a version that was something else here",
                  [](ImagePiece* p) { Data(p).version = MakeVersion(1, 0); });
    ExpectRefused("as of later than its newest", [](ImagePiece* p) { p->chunk.newest = 1; });
    ExpectRefused("instances beyond all bounds",
                  [](ImagePiece* p) { p->chunk.newest = kMaxInstance + 1; });
    ExpectRefused("as of before the floor", [](ImagePiece* p) { p->chunk.as_of = 1; });
    ExpectRefused("too many rows", [](ImagePiece* p) {
      p->chunk.rows.clear();
      for (Lba lba = 0; lba <= kMaxChunkRows; ++lba) {
        p->chunk.rows.push_back({lba, false, BlockKind::kUnmapped, MakeVersion(2, 0), 0, false});
      }
      p->payload.clear();
    });
    ExpectRefused("too many extents", [](ImagePiece* p) {
      p->chunk.rows.clear();
      for (Extent extent = 0; extent <= kMaxChunkExtents; ++extent) {
        p->chunk.rows.push_back({extent, true, BlockKind::kZero, MakeVersion(2, 0), 0, false});
      }
      p->payload.clear();
    });
    ExpectRefused("an extent of data", [](ImagePiece* p) {
      p->chunk.rows.insert(p->chunk.rows.begin(),
                           {0, true, BlockKind::kData, MakeVersion(2, 0), 0, false});
    });
    ExpectRefused("an extent behind blocks", [](ImagePiece* p) {
      p->chunk.rows.push_back({99, true, BlockKind::kZero, MakeVersion(2, 0), 0, false});
    });
    ExpectRefused("an extent past the end", [](ImagePiece* p) {
      p->chunk.rows.insert(p->chunk.rows.begin(), {kEndOfBlocks / 256, true, BlockKind::kZero,
                                                   MakeVersion(2, 0), 0, false});
    });
    ExpectRefused("a deletion without payload", [](ImagePiece* p) {
      p->chunk.rows.push_back({999, false, BlockKind::kUnmapped, MakeVersion(2, 0), 0, true});
    });
    ExpectRefused("a cursor without bound",
                  [](ImagePiece* p) { p->chunk.cursor = std::string(kMaxCursorBytes + 1, 'c'); });
  }

  ImagePiece good_;
};

TEST_F(BadChunk, OfAnImageIsRefusedAndNothingChanges) {
  Start(InstallMode::kImage);
  ExpectCommonRefusals();
  ExpectRefused("an empty range", [](ImagePiece* p) { p->chunk.to = p->chunk.from; });
  ExpectRefused("a range that leaves blocks out", [](ImagePiece* p) { p->chunk.from = 1; });
  ExpectRefused("a row behind its range", [](ImagePiece* p) {
    p->chunk.to = 3;
    p->chunk.cursor = "next";
  });
  ExpectRefused("a last range that is not the last",
                [](ImagePiece* p) { p->chunk.cursor = "next"; });
  ExpectRefused("an end that is not the end", [](ImagePiece* p) { p->chunk.to = 1000; });
  ASSERT_OK(Driver().Run());
  ExpectEqualReplicas();
}

TEST_F(BadChunk, OfADeltaIsRefusedAndNothingChanges) {
  Start(InstallMode::kDelta);
  ExpectCommonRefusals();
  ExpectRefused("changes that start too late",
                [](ImagePiece* p) { p->chunk.since = LastVersionOf(2); });
  ExpectRefused("a change from before its start",
                [](ImagePiece* p) { p->chunk.rows.back().version = MakeVersion(1, 5); });
  ExpectRefused("a range", [](ImagePiece* p) { p->chunk.to = 100; });
  ASSERT_OK(Driver(Delta()).Run());
  ExpectEqualReplicas();
}

// It would say that there are no blocks. A source that has just been made itself has such a
// checkpoint, and the receiver has applied nothing, but may have taken in blocks from another one.
TEST_F(BadChunk, OfAStateInWhichNothingIsAppliedIsRefused) {
  Start(InstallMode::kImage);
  ASSERT_OK(target_.CreateGroup(2, 1));
  ASSERT_OK(target_.Flush());
  EXPECT_CODE(target_->InstallBegin(2, InstallMode::kImage, 0, 99), Code::kInvalidArgument);
  ASSERT_OK(target_.InstallBegin(2, InstallMode::kImage, 1));
  ASSERT_OK(target_.Flush());
  ImageChunk nothing;
  nothing.mode = InstallMode::kImage;
  nothing.to = kEndOfBlocks;
  EXPECT_CODE(target_->InstallChunk(2, nothing, {}, 99), Code::kInvalidArgument);
  EXPECT_CODE(ValidateChunk(nothing), Code::kInvalidArgument);
  nothing.as_of = nothing.newest = 1;
  EXPECT_OK(ValidateChunk(nothing));
  EXPECT_OK(target_->InstallChunk(2, nothing, {}, 99));
}

TEST_F(BadChunk, CallsOutOfOrderAreRefused) {
  EXPECT_CODE(target_->InstallChunk(1, {}, {}, 99), Code::kFailedPrecondition);
  EXPECT_CODE(target_->InstallFinish(1, 2, "", 99), Code::kFailedPrecondition);
  EXPECT_CODE(target_->InstallAbort(1, 99), Code::kFailedPrecondition);
  EXPECT_CODE(target_->InstallBegin(1, InstallMode::kNone, 2, 99), Code::kInvalidArgument);
  EXPECT_CODE(target_->InstallBegin(1, InstallMode::kImage, 0, 99), Code::kInvalidArgument);
  EXPECT_CODE(target_->InstallBegin(1, InstallMode::kImage, kMaxInstance + 1, 99),
              Code::kInvalidArgument);
  EXPECT_CODE(target_->InstallBegin(9, InstallMode::kImage, 2, 99), Code::kNotFound);
  Start(InstallMode::kImage);
  ASSERT_OK(target_.InstallChunk(1, good_.chunk, good_.payload));
  EXPECT_CODE(target_->InstallFinish(1, 2, "", 99), Code::kBusy);
  ASSERT_OK(target_.Flush());
  EXPECT_CODE(target_->InstallChunk(1, good_.chunk, good_.payload, 99), Code::kFailedPrecondition);
  for (const Instance wrong : {1, 3}) {
    EXPECT_CODE(target_->InstallFinish(1, wrong, "", 99), Code::kInvalidArgument);
  }
  EXPECT_CODE(target_->InstallFinish(1, 2, std::string(kMaxInstalledState + 1, 's'), 99),
              Code::kInvalidArgument);
  ASSERT_OK(Driver().Run());
  ExpectEqualReplicas();
}

TEST_F(BadChunk, RequestsThatMakeNoSenseAreRefusedByTheSender) {
  ImageRequest request;
  request.group = 1;
  for (const char* cursor : {"x", "123456789"}) {
    request.cursor = cursor;
    request.mode = InstallMode::kImage;
    EXPECT_CODE(BuildImageChunk(source_.engine(), request).status(), Code::kInvalidArgument);
    request.mode = InstallMode::kDelta;
    EXPECT_CODE(BuildImageChunk(source_.engine(), request).status(), Code::kInvalidArgument);
  }
  request.cursor.clear();
  request.mode = InstallMode::kNone;
  EXPECT_CODE(BuildImageChunk(source_.engine(), request).status(), Code::kInvalidArgument);
  request.group = 5;
  EXPECT_CODE(BuildImageChunk(source_.engine(), request).status(), Code::kNotFound);
  Start(InstallMode::kImage);
  request = {};
  request.group = 1;
  EXPECT_CODE(BuildImageChunk(target_.engine(), request).status(), Code::kFailedPrecondition);
}

TEST(InstallHorizon, ADeltaFromBehindItIsRefusedByTheSender) {
  Store::Options options;
  options.engine.change_retention = 2;
  Store source(options);
  source.MustStart();
  for (int i = 0; i < 6; ++i) {
    ASSERT_OK(source.Write(1, 0, 1));
    ASSERT_OK(source.Settle());
    ASSERT_OK(source.Checkpoint());
  }
  ImageRequest request;
  request.group = 1;
  request.mode = InstallMode::kDelta;
  request.base = LastVersionOf(1);
  EXPECT_CODE(BuildImageChunk(source.engine(), request).status(), Code::kOutOfRange);
}

}  // namespace
}  // namespace hydra::test
