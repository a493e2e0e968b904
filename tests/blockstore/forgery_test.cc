// SPDX-License-Identifier: Apache-2.0
//
// User data that looks like Hydra's own headers: a backup of a store's directory kept inside one of
// its own volumes (hazard 21). Header checksums are seeded with store, segment and page, so no copy
// is valid anywhere else, wherever it lands and whenever power fails.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/support/gtest_status.h"
#include "tests/support/store_fixture.h"

namespace hydra::test {
namespace {

constexpr uint64_t kSegmentBytes = 256 * 1024;
constexpr uint32_t kPagesOfSegment = kSegmentBytes / kPageSize;
constexpr uint64_t kPiece = 8;  // pages per write

Store::Options OptionsOf(uint64_t seed) {
  Store::Options options;
  options.disk.seed = seed;
  options.segment_bytes = kSegmentBytes;
  return options;
}

Buffer Pages(const std::string& file, size_t first, size_t count) {
  Buffer buffer = Buffer::Allocate(count * kPageSize);
  const size_t offset = first * kPageSize;
  if (offset < file.size()) {
    std::copy_n(file.data() + offset, std::min(file.size() - offset, count * kPageSize),
                buffer.data());
  }
  return buffer;
}

// Every page of every segment, headers included, becomes contents of the volume itself.
Status CopySegmentsIntoVolume(Store* store, Lba to) {
  for (const std::string& path : store->SegmentPaths()) {
    const std::string file = store->ReadFile(path);
    for (size_t page = 0; page < file.size() / kPageSize; page += kPiece) {
      HYDRA_RETURN_IF_ERROR(store->WriteBytes(1, to, Pages(file, page, kPiece)));
      HYDRA_RETURN_IF_ERROR(store->Flush());
      HYDRA_RETURN_IF_ERROR(store->ApplyAll());
      to += kPiece;
    }
  }
  return Status::Ok();
}

void StartWithData(Store* store) {
  store->MustStart();
  for (Lba lba = 0; lba < 40; lba += 4) {
    ASSERT_OK(store->Write(1, lba, 4));
    ASSERT_OK(store->Settle());
  }
}

void ExpectWhole(Store* store) {
  ASSERT_OK(store->Open());
  ASSERT_EQ(store->Problems(), "");
  EXPECT_EQ((*store)->recovery().gaps, 0u);
  EXPECT_EQ((*store)->recovery().faulty, 0u);
  ASSERT_OK(store->ApplyAll());
  ASSERT_EQ(store->VerifySettled(), "");
  ASSERT_EQ(store->Problems(), "");
}

TEST(Forgery, ACopyOfTheStoreInItselfIsOnlyData) {
  Store store(OptionsOf(1));
  ASSERT_NO_FATAL_FAILURE(StartWithData(&store));
  ASSERT_OK(CopySegmentsIntoVolume(&store, 1000));
  ASSERT_OK(CopySegmentsIntoVolume(&store, 5000));  // and a copy of the copy
  store.PowerLoss();
  ExpectWhole(&store);
}

TEST(Forgery, ACopyIsOnlyDataWhereverPowerFails) {
  Store whole(OptionsOf(1));
  ASSERT_NO_FATAL_FAILURE(StartWithData(&whole));
  const uint64_t before = whole.disk().io_count();
  ASSERT_OK(CopySegmentsIntoVolume(&whole, 1000));
  const uint64_t ios = whole.disk().io_count() - before;
  for (uint64_t n = 1; n <= ios; ++n) {
    SCOPED_TRACE(fmt::format("power fails at I/O {} of {}", n, ios));
    Store store(OptionsOf(n));
    ASSERT_NO_FATAL_FAILURE(StartWithData(&store));
    store.disk().CutPowerAfter(n);
    ASSERT_FALSE(CopySegmentsIntoVolume(&store, 1000).ok());
    store.PowerLoss();
    ASSERT_NO_FATAL_FAILURE(ExpectWhole(&store));
  }
}

// The copy of page k of an old segment lies at page k of a newer one: magic, page and sizes are
// right, only the seed is not. All of the newer segment, so that a search finds nothing else.
Status WriteAtSamePages(Store* store, const std::string& old_segment, unsigned batches) {
  for (unsigned i = 0; i < batches; ++i) {
    const FoundBatch last = store->Batches().back();
    uint32_t next = last.header.page + last.header.pages();
    if (next + 2 + kPiece >= kPagesOfSegment) next = kFirstBatchPage;  // it goes to a new segment
    // One header page, then the payload.
    HYDRA_RETURN_IF_ERROR(
        store->WriteBytes(1, 2000 + i * kPiece, Pages(old_segment, next + 1, kPiece)));
    HYDRA_RETURN_IF_ERROR(store->Flush());
    HYDRA_RETURN_IF_ERROR(store->ApplyAll());
  }
  return Status::Ok();
}

TEST(Forgery, HeadersCopiedToTheSamePageOfAnotherSegmentAreOnlyData) {
  for (unsigned batches = 1; batches <= 12; ++batches) {
    SCOPED_TRACE(fmt::format("{} batches of copies", batches));
    Store store(OptionsOf(batches));
    ASSERT_NO_FATAL_FAILURE(StartWithData(&store));
    for (Lba lba = 100; store.SegmentPaths().size() < 2 && lba < 1000; ++lba) {
      ASSERT_OK(store.Write(1, lba));  // many headers, one page apart
      ASSERT_OK(store.Settle());
    }
    const std::string old_segment = store.ReadFile(store.SegmentPaths().front());
    ASSERT_OK(WriteAtSamePages(&store, old_segment, batches));
    // The next batch is torn: recovery looks behind it, page by page, for something valid.
    ASSERT_OK(store.WriteBytes(1, 3000, Pages(old_segment, kFirstBatchPage, kPiece)));
    store.disk().CutPowerAfter(1);
    ASSERT_FALSE(store.Flush().ok());
    store.PowerLoss();
    ASSERT_NO_FATAL_FAILURE(ExpectWhole(&store));
  }
}

// With a rotten header in front of it, the copies lie exactly where the search for a successor
// looks. They must not end the gap.
TEST(Forgery, TheSearchForASuccessorIsNotFooled) {
  Store store(OptionsOf(1));
  ASSERT_NO_FATAL_FAILURE(StartWithData(&store));
  ASSERT_OK(store.Checkpoint());
  const std::string segment = store.ReadFile(store.SegmentPaths().back());
  ASSERT_OK(WriteAtSamePages(&store, segment, 3));
  store.Crash();
  const std::vector<FoundBatch> batches = store.Batches();
  ASSERT_GE(batches.size(), 3u);
  // The last batch's header is damaged: without a successor this is a tear, not a gap, although
  // its own payload is full of headers.
  const FoundBatch last = batches.back();
  store.disk().FlipBit(last.path, last.offset() + 100, 3);
  ASSERT_OK(store.OpenUnchecked());
  EXPECT_EQ(store->recovery().gaps, 0u);
  EXPECT_EQ(store->Info(1)->last, store.model().group(1).last() - 1);
}

// Files are recycled: what an earlier life left in them is as foreign as user data.
TEST(Forgery, LeftoversOfARecycledFileAreNotFound) {
  Store::Options options = OptionsOf(7);
  options.engine.capacity_bytes = 10 * kSegmentBytes;
  Store store(options);
  store.MustStart();
  for (int round = 0; round < 60; ++round) {
    ASSERT_OK(store.Write(1, 0, 16));
    ASSERT_OK(store.Settle());
    if (round % 10 == 9) {
      ASSERT_OK(store.Checkpoint());
    }
    if (round % 7 == 6) {
      ASSERT_OK(store.Write(1, 16, 16));
      store.disk().CutPowerAfter(1);
      ASSERT_FALSE(store.Flush().ok());
      store.PowerLoss();
      ASSERT_NO_FATAL_FAILURE(ExpectWhole(&store));
    }
  }
  EXPECT_GT(store->Stats().segments_freed, 0u);
}

}  // namespace
}  // namespace hydra::test
