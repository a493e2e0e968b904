// SPDX-License-Identifier: Apache-2.0
//
// Commands that read and write blocks.
#include "tests/iscsi/scsi_fixture.h"

namespace hydra::iscsi {
namespace {

class ScsiBlocks : public ScsiTest {};

TEST_F(ScsiBlocks, WhatIsWrittenIsReadByEveryReadAndWrite) {
  struct Pair {
    Bytes write;
    Bytes read;
  };
  const Pair pairs[] = {
      {{0x0a, 0, 0, 9, 2, 0}, {0x08, 0, 0, 9, 2, 0}},
      {Cdb10(0x2a, 20, 2), Cdb10(0x28, 20, 2)},
      {Cdb12(0xaa, 30, 2), Cdb12(0xa8, 30, 2)},
      {Cdb16(0x8a, 40, 2), Cdb16(0x88, 40, 2)},
      {Cdb10(0x2e, 50, 2, 0x02), Cdb10(0x28, 50, 2)},
      {Cdb12(0xae, 60, 2), Cdb12(0xa8, 60, 2, 0x18)},
      {Cdb16(0x8e, 70, 2, 0x10), Cdb16(0x88, 70, 2)},
  };
  uint8_t value = 1;
  for (const Pair& pair : pairs) {
    EXPECT_TRUE(Run(pair.write, Fill(2, ++value)).good()) << int(pair.write[0]);
    const Response read = Run(pair.read);
    EXPECT_TRUE(read.good());
    EXPECT_EQ(DataOf(read), Fill(2, value));
  }
}

TEST_F(ScsiBlocks, ReadSixTakesZeroFor256) {
  EXPECT_EQ(DataOf(Run({0x08, 0, 0, 0, 0, 0})).size(), 256u * 512);
}

TEST_F(ScsiBlocks, RangesEndWithTheUnit) {
  const uint32_t last = kBlocks - 1;
  for (const uint8_t opcode : {0x28, 0x34, 0x35, 0x2f}) {
    EXPECT_TRUE(Run(Cdb10(opcode, last, 1)).good()) << int(opcode);
    EXPECT_TRUE(OutOfRange(Run(Cdb10(opcode, last, 2)))) << int(opcode);
    EXPECT_TRUE(OutOfRange(Run(Cdb10(opcode, 0xffffffff, 1)))) << int(opcode);
    EXPECT_TRUE(OutOfRange(Run(Cdb10(opcode, last + 2, 0)))) << int(opcode);
  }
  for (const uint8_t opcode : {0x88, 0x90, 0x91, 0x8f}) {
    EXPECT_TRUE(OutOfRange(Run(Cdb16(opcode, UINT64_MAX, 1)))) << int(opcode);
    EXPECT_TRUE(OutOfRange(Run(Cdb16(opcode, UINT64_MAX, 0xffffffff)))) << int(opcode);
  }
  EXPECT_TRUE(OutOfRange(Run(Cdb10(0x2a, last, 2), Fill(2, 1))));
  EXPECT_EQ(disk_->Contents(uint64_t{last} * 512, 512), Bytes(512)) << "nothing of it is written";
}

TEST_F(ScsiBlocks, NothingIsMovedForZeroBlocks) {
  EXPECT_TRUE(Run(Cdb10(0x28, 5, 0)).good());
  EXPECT_TRUE(Run(Cdb10(0x2a, 5, 0)).good());
}

TEST_F(ScsiBlocks, TransfersHaveALimit) {
  EXPECT_TRUE(Run(Cdb16(0x88, 0, 16384)).good());
  EXPECT_TRUE(BadCdb(Run(Cdb16(0x88, 0, 16385))));
}

TEST_F(ScsiBlocks, UnknownBitsOfACdbAreRefusedAndPointedAt) {
  const Response response = Run(Cdb10(0x28, 0, 1, 0x20));
  EXPECT_TRUE(BadCdb(response));
  ASSERT_TRUE(response.sense.field.has_value());
  EXPECT_EQ(response.sense.field->byte, 1);
  EXPECT_EQ(response.sense.field->bit, 5);
  Bytes naca = Cdb10(0x28, 0, 1);
  naca[9] = 0x04;
  EXPECT_TRUE(BadCdb(Run(naca)));
}

TEST_F(ScsiBlocks, LessDataThanBlocksWritesWholeBlocksOnly) {
  EXPECT_TRUE(Run(Cdb10(0x2a, 0, 2), Fill(2, 'a')).good());
  Bytes data = Fill(1, 'b');
  data.resize(700, 'b');
  const Response response = Run(Cdb10(0x2a, 0, 2), data);
  EXPECT_TRUE(response.good());
  EXPECT_EQ(response.wanted, 1024u);
  EXPECT_EQ(disk_->Contents(0, 512), Fill(1, 'b'));
  EXPECT_EQ(disk_->Contents(512, 512), Fill(1, 'a'));
}

TEST_F(ScsiBlocks, VerifyComparesOnlyWhenAsked) {
  EXPECT_TRUE(Run(Cdb10(0x2a, 0, 2), Fill(2, 'a')).good());
  EXPECT_TRUE(Run(Cdb10(0x2f, 0, 2, 0x02), Fill(2, 'a')).good());
  EXPECT_TRUE(Run(Cdb10(0x2f, 0, 2, 0x06), Fill(1, 'a')).good()) << "one block for all";
  EXPECT_TRUE(Run(Cdb10(0x2f, 0, 2), {}).good());
  Bytes other = Fill(2, 'a');
  other[600] = 'x';
  const Response response = Run(Cdb10(0x2f, 0, 2, 0x02), other);
  EXPECT_TRUE(Failed(response, SenseKey::kMiscompare, Asc::kMiscompare));
  EXPECT_EQ(response.sense.information, 600u);
  EXPECT_TRUE(BadCdb(Run(Cdb10(0x2f, 0, 2, 0x04), Fill(2, 'a'))));
}

Bytes CompareCdb(uint64_t lba, uint8_t count) {
  Bytes cdb(16);
  cdb[0] = 0x89;
  Put64(&cdb[2], lba);
  cdb[13] = count;
  return cdb;
}

TEST_F(ScsiBlocks, CompareAndWriteWritesOnlyWhatWasExpected) {
  Bytes both = Fill(1, 0);
  both.resize(1024, 'b');
  EXPECT_TRUE(Run(CompareCdb(7, 1), both).good());
  EXPECT_EQ(disk_->Contents(7 * 512, 512), Fill(1, 'b'));
  const Response again = Run(CompareCdb(7, 1), both);
  EXPECT_TRUE(Failed(again, SenseKey::kMiscompare, Asc::kMiscompare));
  EXPECT_EQ(again.sense.information, 0u);
  EXPECT_TRUE(BadCdb(Run(CompareCdb(7, 2), both))) << "not twice as much data as blocks";
  EXPECT_TRUE(BadCdb(Run(CompareCdb(2047, 2), Fill(4, 0)))) << "over the edge of an extent";
  EXPECT_TRUE(Run(CompareCdb(7, 0)).good());
}

TEST_F(ScsiBlocks, OrWriteKeepsBitsThatAreSet) {
  EXPECT_TRUE(Run(Cdb10(0x2a, 2047, 2), Fill(2, 0x0f)).good());
  EXPECT_TRUE(Run(Cdb16(0x8b, 2047, 2), Fill(2, 0x30)).good()) << "over the edge of an extent";
  EXPECT_EQ(disk_->Contents(2047 * 512, 1024), Fill(2, 0x3f));
}

Bytes AtomicCdb(uint64_t lba, uint16_t count) {
  Bytes cdb(16);
  cdb[0] = 0x9c;
  Put64(&cdb[2], lba);
  Put16(&cdb[12], count);
  return cdb;
}

TEST_F(ScsiBlocks, WriteAtomicTakesWholePhysicalBlocksWithinAnExtent) {
  for (const uint64_t lba : {uint64_t{8}, uint64_t{256}, uint64_t{2048 - 256}, kBlocks - 8}) {
    for (uint16_t count = 8; count <= 256 && lba + count <= kBlocks; count += 8) {
      const Response response = Run(AtomicCdb(lba, count), Fill(count, 1));
      EXPECT_EQ(response.good(), lba % 2048 + count <= 2048) << lba << " " << count;
    }
  }
  const Bytes before = disk_->Contents(0, kBytes);
  for (const uint64_t lba : {1, 4, 7, 9}) {
    EXPECT_TRUE(BadCdb(Run(AtomicCdb(lba, 8), Fill(8, 2)))) << "not aligned: " << lba;
  }
  for (const uint16_t count : {1, 7, 9, 255, 257, 264}) {
    EXPECT_TRUE(BadCdb(Run(AtomicCdb(0, count), Fill(count, 2)))) << count;
  }
  EXPECT_TRUE(BadCdb(Run(AtomicCdb(2040, 16), Fill(16, 2)))) << "over the edge of an extent";
  EXPECT_TRUE(OutOfRange(Run(AtomicCdb(kBlocks, 8), Fill(8, 2))));
  EXPECT_EQ(disk_->Contents(0, kBytes), before);
  EXPECT_TRUE(Run(AtomicCdb(2048, 0)).good());
}

// Linux takes the smallest and the largest that it allows from the page, and checks neither's
// alignment if the granularity is one block.
TEST_F(ScsiBlocks, TheAtomicLimitsOfThePageAreThoseThatHold) {
  const Bytes page = DataOf(Run({0x12, 1, 0xb0, 0, 64, 0}));
  ASSERT_EQ(page.size(), 64u);
  const uint32_t most = Get32(&page[44]);
  const uint32_t alignment = Get32(&page[48]);
  const uint32_t granularity = Get32(&page[52]);
  EXPECT_EQ(most, 256u);
  EXPECT_EQ(alignment, 8u);
  EXPECT_EQ(granularity, 8u);
  EXPECT_EQ(Get32(&page[56]), 0u) << "no boundaries within a write";
  for (uint32_t count = granularity; count <= most; count *= 2) {
    for (uint64_t lba = 0; lba + count <= 4096; lba += count) {
      const Response response = Run(AtomicCdb(lba, static_cast<uint16_t>(count)), Fill(count, 'a'));
      ASSERT_TRUE(response.good()) << lba << " " << count;
    }
  }
}

// --- Provisioning -------------------------------------------------------------------------------

TEST_F(ScsiBlocks, WriteSameRepeatsABlock) {
  EXPECT_TRUE(Run(Cdb10(0x41, 3, 20), Fill(1, 'w')).good());
  EXPECT_EQ(disk_->Contents(3 * 512, 20 * 512), Fill(20, 'w'));
  EXPECT_EQ(disk_->Contents(23 * 512, 512), Bytes(512));
  EXPECT_TRUE(Run(Cdb16(0x93, 2000, 5000), Fill(1, 'v')).good()) << "more than one extent";
  EXPECT_EQ(disk_->Contents(2000 * 512, 5000 * 512), Fill(5000, 'v'));
}

TEST_F(ScsiBlocks, WriteSameUnmaps) {
  EXPECT_TRUE(Run(Cdb10(0x2a, 0, 64), Fill(64, 'a')).good());
  EXPECT_TRUE(Run(Cdb16(0x93, 3, 40, 0x08), Fill(1, 0)).good());
  EXPECT_EQ(disk_->Contents(3 * 512, 40 * 512), Fill(40, 0));
  EXPECT_EQ(disk_->Contents(0, 3 * 512), Fill(3, 'a')) << "parts of physical blocks stay";
  EXPECT_TRUE(Run(Cdb16(0x93, 0, 8, 0x09)).good()) << "NDOB: no data at all";
  EXPECT_EQ(disk_->Contents(0, 8 * 512), Fill(8, 0));
  EXPECT_TRUE(Run(Cdb16(0x93, 0, 8, 0x08), Fill(1, 'x')).good()) << "not zero: written";
  EXPECT_EQ(disk_->Contents(0, 512), Fill(1, 'x'));
}

TEST_F(ScsiBlocks, WriteSameOfZeroBlocksGoesToTheEnd) {
  const uint32_t first = kBlocks - 20;
  EXPECT_TRUE(Run(Cdb10(0x41, first, 0), Fill(1, 'e')).good());
  EXPECT_EQ(disk_->Contents(uint64_t{first} * 512, 20 * 512), Fill(20, 'e'));
  EXPECT_TRUE(Run(Cdb16(0x93, first, 0, 0x08), Fill(1, 'f')).good());
  EXPECT_EQ(disk_->Contents(uint64_t{first} * 512, 20 * 512), Fill(20, 0)) << "given back";
  EXPECT_TRUE(OutOfRange(Run(Cdb10(0x41, kBlocks + 1, 0), Fill(1, 0))));
}

TEST_F(ScsiBlocks, WriteSameRefusesWhatItCannotDo) {
  EXPECT_TRUE(BadCdb(Run(Cdb10(0x41, 0, 1, 0x10), Fill(1, 0)))) << "ANCHOR";
  EXPECT_TRUE(BadCdb(Run(Cdb10(0x41, 0, 1, 0x18), Fill(1, 0)))) << "ANCHOR and UNMAP";
  EXPECT_TRUE(BadCdb(Run(Cdb10(0x41, 0, 1), Fill(2, 0)))) << "two blocks of data";
  EXPECT_TRUE(BadCdb(Run(Cdb10(0x41, 0, 1), Bytes(256)))) << "half a block";
}

Bytes UnmapList(std::initializer_list<std::pair<uint64_t, uint32_t>> ranges) {
  Bytes list(8 + 16 * ranges.size());
  Put16(&list[0], static_cast<uint16_t>(list.size() - 2));
  Put16(&list[2], static_cast<uint16_t>(list.size() - 8));
  size_t at = 8;
  for (const auto& [lba, count] : ranges) {
    Put64(&list[at], lba);
    Put32(&list[at + 8], count);
    at += 16;
  }
  return list;
}

Bytes UnmapCdb(size_t length) {
  Bytes cdb(10);
  cdb[0] = 0x42;
  Put16(&cdb[7], static_cast<uint16_t>(length));
  return cdb;
}

TEST_F(ScsiBlocks, UnmapMakesZeroesOfEveryBlockNamed) {
  EXPECT_TRUE(Run(Cdb10(0x2a, 0, 64), Fill(64, 'a')).good());
  const Bytes list = UnmapList({{1, 1}, {8, 16}, {30, 0}});
  EXPECT_TRUE(Run(UnmapCdb(list.size()), list).good());
  EXPECT_EQ(disk_->Contents(512, 512), Fill(1, 0));
  EXPECT_EQ(disk_->Contents(1024, 512), Fill(1, 'a'));
  EXPECT_EQ(disk_->Contents(8 * 512, 16 * 512), Fill(16, 0));
  EXPECT_EQ(disk_->Contents(30 * 512, 512), Fill(1, 'a'));
}

TEST_F(ScsiBlocks, UnmapOfNeighboursIsOneChange) {
  EXPECT_TRUE(Run(Cdb10(0x2a, 0, 64), Fill(64, 1)).good());
  const Bytes list = UnmapList({{9, 1}, {8, 1}, {10, 4}, {12, 8}, {40, 1}});
  disk_->Hold();
  Command command;
  command.unit = unit_.get();
  command.nexus = &first_;
  const Bytes cdb = UnmapCdb(list.size());
  std::copy(cdb.begin(), cdb.end(), command.cdb.begin());
  command.out = list;
  size_t changes = 0;
  bool good = false;
  Start<Response>(Execute(command), [&](const Response& done) { good = done.good(); });
  while (disk_->held() > 0) {
    disk_->ReleaseOne();
    ++changes;
  }
  EXPECT_TRUE(good);
  EXPECT_EQ(changes, 2u);
  Bytes expected = Fill(64, 1);
  std::fill_n(expected.begin() + 8 * 512, 12 * 512, 0);
  std::fill_n(expected.begin() + 40 * 512, 512, 0);
  EXPECT_EQ(disk_->Contents(0, 64 * 512), expected);
}

TEST_F(ScsiBlocks, UnmapChecksAllBeforeAny) {
  EXPECT_TRUE(Run(Cdb10(0x2a, 0, 8), Fill(8, 'a')).good());
  const Bytes list = UnmapList({{0, 8}, {kBlocks, 1}});
  EXPECT_TRUE(OutOfRange(Run(UnmapCdb(list.size()), list)));
  EXPECT_EQ(disk_->Contents(0, 512), Fill(1, 'a'));
  EXPECT_TRUE(Run(UnmapCdb(0)).good());
  EXPECT_TRUE(
      Failed(Run(UnmapCdb(4), Bytes(4)), SenseKey::kIllegalRequest, Asc::kParameterListLength));
}

TEST_F(ScsiBlocks, LbaStatusTellsWhatIsMapped) {
  EXPECT_TRUE(Run(Cdb10(0x2a, 16, 16), Fill(16, 'a')).good());
  Bytes cdb = Cdb16(0x9e, 0, 8 + 3 * 16, 0x12);
  const Bytes data = DataOf(Run(cdb));
  ASSERT_EQ(data.size(), 8u + 3 * 16);
  EXPECT_EQ(Get32(&data[0]), data.size() - 4);
  const uint64_t expected[3][3] = {{0, 16, 1}, {16, 16, 0}, {32, kBlocks - 32, 1}};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(Get64(&data[8 + 16 * i]), expected[i][0]);
    EXPECT_EQ(Get32(&data[16 + 16 * i]), expected[i][1]);
    EXPECT_EQ(data[20 + 16 * i], expected[i][2]);
  }
  EXPECT_TRUE(OutOfRange(Run(Cdb16(0x9e, kBlocks, 24, 0x12))));
}

// --- Failures of the disk -----------------------------------------------------------------------

TEST_F(ScsiBlocks, FailuresBecomeTheRightSense) {
  struct Row {
    Status status;
    SenseKey key;
    Asc asc;
  };
  const Row table[] = {
      {Status::NoSpace("full"), SenseKey::kDataProtect, Asc::kSpaceAllocationFailed},
      {Status::Unavailable("no majority"), SenseKey::kNotReady, Asc::kBecomingReady},
      {Status::Corruption("rot"), SenseKey::kMediumError, Asc::kUnrecoveredReadError},
      {Status::Aborted("unknown"), SenseKey::kAbortedCommand, Asc::kCommunicationFailure},
      {Status::OutOfRange("shrunk"), SenseKey::kIllegalRequest, Asc::kLbaOutOfRange},
      {Status::NotFound("deleted"), SenseKey::kIllegalRequest, Asc::kLogicalUnitNotSupported},
      {Status::IoError("odd"), SenseKey::kHardwareError, Asc::kInternalFailure},
  };
  for (const Row& row : table) {
    disk_->FailWith(row.status);
    EXPECT_TRUE(Failed(Run(Cdb10(0x2a, 0, 1), Fill(1, 1)), row.key, row.asc));
    EXPECT_TRUE(Failed(Run(Cdb10(0x28, 0, 1)), row.key, row.asc));
  }
  disk_->FailWith(Status::Busy("later"));
  EXPECT_EQ(Run(Cdb10(0x28, 0, 1)).status, ScsiStatus::kTaskSetFull);
}

class RottenBlock : public ScsiBlocks {
 protected:
  testing::AssertionResult Lost(const Response& response, uint64_t lba) {
    if (!response.sense.information) return testing::AssertionFailure() << "of no block";
    if (*response.sense.information != lba) {
      return testing::AssertionFailure() << "of block " << *response.sense.information;
    }
    return Failed(response, SenseKey::kMediumError, Asc::kUnrecoveredReadError);
  }
};

TEST_F(RottenBlock, AReadNamesItAndBringsWhatIsBeforeIt) {
  for (uint64_t lba = 0; lba < kBlocks; lba += 64) {
    ASSERT_TRUE(Run(Cdb10(0x2a, static_cast<uint32_t>(lba), 64),
                    Fill(64, static_cast<uint8_t>(1 + lba / 64 % 200)))
                    .good());
  }
  // The physical block of 8000 to 8007, and another behind it.
  disk_->Rot(8003 * 512);
  disk_->Rot(9000 * 512);
  struct Row {
    uint64_t lba;
    uint32_t count;
    uint64_t lost;
  };
  const Row table[] = {{0, 16384, 8000},   {7992, 16, 8000}, {7999, 3, 8000},   {8000, 8, 8000},
                       {8004, 1, 8004},    {8005, 9, 8005},  {8007, 1, 8007},   {8007, 8000, 8007},
                       {8008, 8000, 9000}, {1, 8000, 8000},  {7000, 1001, 8000}};
  for (const Row& row : table) {
    const size_t before = disk_->reads().size();
    const Response response = Run(Cdb16(0x88, row.lba, row.count));
    EXPECT_TRUE(Lost(response, row.lost)) << row.lba << " " << row.count;
    const uint64_t good = (row.lost - row.lba) * 512;
    EXPECT_EQ(response.wanted, good);
    EXPECT_EQ(response.buffer_bytes, good);
    EXPECT_EQ(DataOf(response), disk_->Contents(row.lba * 512, good)) << row.lba;
    // In halves: no more than twice as much as was asked for, and a few times.
    uint64_t bytes = 0;
    for (size_t i = before; i < disk_->reads().size(); ++i) bytes += disk_->reads()[i];
    EXPECT_LE(bytes, uint64_t{row.count} * 512 * 2 + 4096);
    EXPECT_LE(disk_->reads().size() - before, 13u);
  }
  EXPECT_TRUE(Run(Cdb16(0x88, 0, 8000)).good()) << "what is beside it can be read";
  EXPECT_TRUE(Run(Cdb16(0x88, 8008, 100)).good());
  EXPECT_TRUE(Run(Cdb10(0x2a, 8000, 8), Fill(8, 'n')).good()) << "and it is written anew";
  EXPECT_TRUE(Run(Cdb16(0x88, 0, 8192)).good());
}

// By a peer's copy, or a write: then no block is called lost that can be read.
TEST_F(RottenBlock, OneThatWasMendedMeanwhileIsNotLost) {
  ASSERT_TRUE(Run(Cdb10(0x2a, 0, 64), Fill(64, 7)).good());
  for (unsigned reads = 1; reads <= 4; ++reads) {
    disk_->RotForReads(reads);
    EXPECT_EQ(Run(Cdb10(0x28, 0, 64)).status, ScsiStatus::kTaskSetFull) << reads;
    EXPECT_TRUE(Run(Cdb10(0x28, 0, 64)).good()) << "the initiator tries again";
  }
}

TEST_F(RottenBlock, OthersNameItAsWell) {
  disk_->Rot(8000 * 512);
  EXPECT_TRUE(Lost(Run(Cdb10(0x2f, 0, 16384)), 8000)) << "VERIFY, in the fourth step";
  EXPECT_TRUE(Lost(Run(Cdb10(0x2f, 7000, 2000, 0x02), Bytes(2000 * 512)), 8000));
  Bytes compare(16);
  compare[0] = 0x89;
  Put64(&compare[2], 7990);
  compare[13] = 20;
  EXPECT_TRUE(Lost(Run(compare, Bytes(40 * 512)), 8000)) << "COMPARE AND WRITE";
  EXPECT_TRUE(Lost(Run(Cdb16(0x8b, 7000, 2000), Fill(2000, 1)), 8000)) << "ORWRITE";
  EXPECT_TRUE(Lost(Run(Cdb10(0x2a, 7000, 1001), Fill(1001, 1)), 8000)) << "WRITE of a part of it";
  EXPECT_TRUE(Lost(Run(Cdb10(0x2a, 8001, 100), Fill(100, 1)), 8001));
}

TEST_F(RottenBlock, WhatFailsMeanwhileIsWhatIsSaid) {
  disk_->Rot(8000 * 512);
  disk_->Hold();
  Command command;
  command.unit = unit_.get();
  command.nexus = &first_;
  const Bytes cdb = Cdb10(0x28, 7000, 2000);
  std::copy(cdb.begin(), cdb.end(), command.cdb.begin());
  std::optional<Response> response;
  Start<Response>(Execute(command), [&](Response done) { response = std::move(done); });
  disk_->ReleaseOne();
  ASSERT_FALSE(response.has_value());
  disk_->FailWith(Status::Unavailable("no majority"));
  disk_->Release();
  ASSERT_TRUE(response.has_value());
  EXPECT_TRUE(Failed(*response, SenseKey::kNotReady, Asc::kBecomingReady));
  EXPECT_EQ(response->buffer_bytes, 0u);
}

}  // namespace
}  // namespace hydra::iscsi
