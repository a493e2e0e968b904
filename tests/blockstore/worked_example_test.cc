// SPDX-License-Identifier: Apache-2.0
//
// The worked example of the document that Hydra comes from (its figure 6.6): the physical state of
// a block store after each of six operations. Physical order is the order of writes, whatever the
// logical order; deleting touches the map alone.
//
// The example writes 6 KiB at block 1 of a store with blocks of 4 KiB. A user expects the bytes
// that were not written to keep their old contents, so the layer above completes the last block
// before it proposes: blocks 1 and 2, the tail of 2 as it was (zeroes here). The engine itself
// takes whole blocks only.
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/crc32c.h"
#include "blockstore/record.h"
#include "tests/support/store_fixture.h"

namespace hydra::test {
namespace {

using Blocks = std::vector<Lba>;
using Map = std::map<Lba, Instance>;  // mapped blocks and the instance that wrote them

class WorkedExample : public testing::Test {
 protected:
  WorkedExample() : store_(Store::Options()) { store_.MustStart(); }

  void Do(const Status& queued) {
    ASSERT_TRUE(queued.ok()) << queued.ToString();
    ASSERT_TRUE(store_.Flush().ok());
    ASSERT_TRUE(store_.ApplyAll().ok());
    EXPECT_EQ(store_.Problems(), "");
    EXPECT_EQ(store_.VerifyAll(), "");
  }

  // Block numbers in the order in which their payload lies in the stream; each page is checked
  // against the checksum in its record.
  Blocks PhysicalOrder() {
    Blocks order;
    for (const FoundBatch& batch : store_.Batches()) {
      const std::string file = store_.ReadFile(batch.path);
      const auto* bytes = reinterpret_cast<const uint8_t*>(file.data());
      Result<std::vector<RecordView>> records = SplitRecords(
          {bytes + batch.offset() + kBatchFixedBytes, batch.header.header_bytes - kBatchFixedBytes},
          batch.header.record_count, batch.header.payload_pages, kBatchFixedBytes);
      EXPECT_TRUE(records.ok());
      uint64_t at = batch.payload_offset();
      for (const RecordView& view : *records) {
        if (view.type != static_cast<uint8_t>(RecordType::kAccept)) continue;
        const Result<AcceptRecord> accept = DecodeAccept(view);
        EXPECT_TRUE(accept.ok());
        for (const Operation& op : accept->entry.operations) {
          for (size_t b = 0; b < op.crcs.size(); ++b, at += kPageSize) {
            EXPECT_EQ(Crc32c(bytes + at, kPageSize), op.crcs[b]) << "block " << op.lba + b;
            order.push_back(op.lba + b);
          }
        }
      }
    }
    return order;
  }

  Map Mapped() {
    Map mapped;
    const Result<ReadResult> read = store_->Read(1, 0, 20);
    EXPECT_TRUE(read.ok());
    for (Lba lba = 0; lba < read->blocks.size(); ++lba) {
      if (read->blocks[lba].kind == BlockKind::kData) {
        mapped[lba] = VersionInstance(read->blocks[lba].version);
      }
    }
    return mapped;
  }

  static Buffer SixKilobytesAndOldTail() {
    Buffer buffer = Buffer::Allocate(2 * kPageSize);
    std::fill_n(buffer.data(), 6 * 1024, uint8_t{0x6b});
    return buffer;
  }

  Store store_;
};

TEST_F(WorkedExample, MapAndStreamAfterEachStep) {
  Do(store_.Write(1, 5, 1));
  EXPECT_EQ(PhysicalOrder(), (Blocks{5}));
  EXPECT_EQ(Mapped(), (Map{{5, 1}}));

  Do(store_.Write(1, 7, 3));  // 12 KiB
  EXPECT_EQ(PhysicalOrder(), (Blocks{5, 7, 8, 9}));
  EXPECT_EQ(Mapped(), (Map{{5, 1}, {7, 2}, {8, 2}, {9, 2}}));

  Do(store_.WriteBytes(1, 1, SixKilobytesAndOldTail()));
  EXPECT_EQ(PhysicalOrder(), (Blocks{5, 7, 8, 9, 1, 2}));
  EXPECT_EQ(Mapped(), (Map{{1, 3}, {2, 3}, {5, 1}, {7, 2}, {8, 2}, {9, 2}}));

  Do(store_.Unmap(1, 8));
  EXPECT_EQ(PhysicalOrder(), (Blocks{5, 7, 8, 9, 1, 2})) << "deleting moves nothing";
  EXPECT_EQ(Mapped(), (Map{{1, 3}, {2, 3}, {5, 1}, {7, 2}, {9, 2}}));

  Do(store_.Write(1, 1, 1));
  EXPECT_EQ(PhysicalOrder(), (Blocks{5, 7, 8, 9, 1, 2, 1})) << "an overwrite is appended";
  EXPECT_EQ(Mapped(), (Map{{1, 5}, {2, 3}, {5, 1}, {7, 2}, {9, 2}}));

  Do(store_.Write(1, 15, 1));
  EXPECT_EQ(PhysicalOrder(), (Blocks{5, 7, 8, 9, 1, 2, 1, 15}));
  EXPECT_EQ(Mapped(), (Map{{1, 5}, {2, 3}, {5, 1}, {7, 2}, {9, 2}, {15, 6}}));
}

TEST_F(WorkedExample, TheUnwrittenTailOfAPartialBlockKeepsItsContents) {
  Do(store_.WriteBytes(1, 1, SixKilobytesAndOldTail()));
  const Result<ReadResult> read = store_->Read(1, 1, 2);
  ASSERT_TRUE(read.ok());
  const uint8_t* data = read->data.data();
  EXPECT_TRUE(std::all_of(data, data + 6 * 1024, [](uint8_t b) { return b == 0x6b; }));
  EXPECT_TRUE(std::all_of(data + 6 * 1024, data + 8 * 1024, [](uint8_t b) { return b == 0; }));
}

// Two blocks of the six written are dead by then: the delete and the overwrite left them behind.
TEST_F(WorkedExample, DeadBlocksAreCountedForTheVacuum) {
  Do(store_.Write(1, 5, 1));
  Do(store_.Write(1, 7, 3));
  Do(store_.WriteBytes(1, 1, SixKilobytesAndOldTail()));
  Do(store_.Unmap(1, 8));
  Do(store_.Write(1, 1, 1));
  Do(store_.Write(1, 15, 1));
  EXPECT_EQ(store_.VerifySettled(), "");
  uint64_t used = 0;
  uint64_t live = 0;
  for (const SegmentStats& segment : store_->Stats().segments) {
    used += segment.used_pages;
    live += segment.live_pages;
  }
  EXPECT_EQ(used, 8u);
  EXPECT_EQ(live, 6u);
}

TEST_F(WorkedExample, SurvivesPowerLossAndReopening) {
  Do(store_.Write(1, 5, 1));
  Do(store_.Write(1, 7, 3));
  Do(store_.Unmap(1, 8));
  Do(store_.Write(1, 15, 1));
  store_.PowerLoss();
  ASSERT_TRUE(store_.Open().ok());
  ASSERT_TRUE(store_.ApplyAll().ok());
  EXPECT_EQ(store_.Problems(), "");
  EXPECT_EQ(Mapped(), (Map{{5, 1}, {7, 2}, {9, 2}, {15, 4}}));
  EXPECT_EQ(PhysicalOrder(), (Blocks{5, 7, 8, 9, 15}));
}

}  // namespace
}  // namespace hydra::test
