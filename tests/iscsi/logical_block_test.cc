// SPDX-License-Identifier: Apache-2.0
//
// A unit whose logical blocks have 4096 bytes.
#include "tests/iscsi/scsi_fixture.h"

namespace hydra::iscsi {
namespace {

constexpr uint32_t kLarge = 4096;

class ScsiLargeBlocks : public ScsiTest {
 protected:
  ScsiLargeBlocks() { Use(kLarge); }

  // A unit on a disk with physical blocks of that size.
  void Use(uint32_t physical) {
    unit_->Leave(&first_);
    unit_->Leave(&second_);
    auto disk = std::make_unique<MemoryDisk>(kBytes, "disk", physical);
    disk_ = disk.get();
    UnitOptions options;
    options.logical_block = kLarge;
    options.target_name = "iqn.2026-11.io.hydra:disk";
    unit_ = std::make_unique<LogicalUnit>(std::move(disk), std::move(options));
    unit_->Join(&first_);
    unit_->Join(&second_);
    Settle({&first_, &second_});
  }

  static constexpr uint64_t kLargeBlocks = kBytes / kLarge;
};

TEST_F(ScsiLargeBlocks, CapacityAndLimitsAreToldInThem) {
  const Bytes ten = DataOf(Run(Cdb10(0x25, 0, 0)));
  EXPECT_EQ(Get32(&ten[0]), kLargeBlocks - 1);
  EXPECT_EQ(Get32(&ten[4]), kLarge);
  for (const auto& [physical, exponent] : {std::pair(kLarge, 0), std::pair(65536u, 4)}) {
    Use(physical);
    const Bytes sixteen = DataOf(Run(Cdb16(0x9e, 0, 32, 0x10)));
    EXPECT_EQ(Get64(&sixteen[0]), kLargeBlocks - 1);
    EXPECT_EQ(Get32(&sixteen[8]), kLarge);
    EXPECT_EQ(sixteen[13], exponent);
    const Bytes limits = DataOf(Run({0x12, 0x01, 0xb0, 0, 0xff, 0}));
    EXPECT_EQ(Get16(&limits[6]), physical / kLarge) << "granularity";
    EXPECT_EQ(Get32(&limits[8]), LogicalUnit::kMaxTransferBytes / kLarge);
    EXPECT_EQ(Get32(&limits[12]), (1u << 20) / kLarge) << "optimal";
    EXPECT_EQ(Get32(&limits[28]), 0u) << "granularity of UNMAP";
    EXPECT_EQ(Get32(&limits[44]), LogicalUnit::kMaxAtomicBlocks);
  }
  const Bytes mode = DataOf(Run({0x5a, 0x00, 0x3f, 0, 0, 0, 0, 1, 0, 0}));
  EXPECT_EQ(Get32(&mode[8]), kLargeBlocks);
  EXPECT_EQ(Get32(&mode[12]), kLarge) << "three bytes, and one that is reserved";
  const Bytes copy = DataOf(Run({0x84, 0x03, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0}));
  EXPECT_EQ(copy[37], 12) << "granularity of copies";
}

TEST_F(ScsiLargeBlocks, AddressesCountThem) {
  ASSERT_TRUE(Run(Cdb10(0x2a, 3, 2), Fill(16, 'a')).good());
  EXPECT_EQ(disk_->Contents(3 * kLarge, 2 * kLarge), Fill(16, 'a'));
  EXPECT_EQ(disk_->Contents(2 * kLarge, kLarge), Fill(8, 0));
  EXPECT_EQ(DataOf(Run(Cdb16(0x88, 4, 1))), Fill(8, 'a'));
  EXPECT_TRUE(Run(Cdb10(0x2a, kLargeBlocks - 1, 1), Fill(8, 'b')).good());
  EXPECT_TRUE(OutOfRange(Run(Cdb10(0x2a, kLargeBlocks, 1), Fill(8, 'b'))));
  EXPECT_TRUE(OutOfRange(Run(Cdb10(0x28, kLargeBlocks - 1, 2))));
  EXPECT_TRUE(BadCdb(Run(Cdb16(0x88, 0, LogicalUnit::kMaxTransferBytes / kLarge + 1))));
}

TEST_F(ScsiLargeBlocks, WhatChangesBlocksTakesThemWhole) {
  ASSERT_TRUE(Run(Cdb16(0x93, 0, 8), Fill(8, 'a')).good()) << "WRITE SAME";
  EXPECT_EQ(disk_->Contents(0, 8 * kLarge), Fill(64, 'a'));
  EXPECT_FALSE(Run(Cdb16(0x93, 0, 8), Fill(1, 'a')).good()) << "a block is not 512 bytes";
  Bytes both = Fill(8, 'a');
  const Bytes next = Fill(8, 'b');
  both.insert(both.end(), next.begin(), next.end());
  Bytes compare = Cdb16(0x89, 1, 0);
  compare[13] = 1;
  EXPECT_TRUE(Run(compare, both).good());
  EXPECT_TRUE(Failed(Run(compare, both), SenseKey::kMiscompare, Asc::kMiscompare));
  EXPECT_EQ(disk_->Contents(0, 3 * kLarge)[kLarge], 'b');
  Bytes list(8 + 16);
  Put16(&list[2], 16);
  Put64(&list[8], 2);
  Put32(&list[16], 3);
  Bytes unmap(10);
  unmap[0] = 0x42;
  Put16(&unmap[7], static_cast<uint16_t>(list.size()));
  EXPECT_TRUE(Run(unmap, list).good());
  EXPECT_EQ(disk_->Contents(2 * kLarge, 3 * kLarge), Fill(24, 0));
  EXPECT_EQ(disk_->Contents(5 * kLarge, kLarge), Fill(8, 'a'));
  // GET LBA STATUS, from the middle of what is mapped.
  const Bytes status = DataOf(Run(Cdb16(0x9e, 1, 8 + 3 * 16, 0x12)));
  const uint64_t expected[3][3] = {{1, 1, 0}, {2, 3, 1}, {5, 3, 0}};
  ASSERT_EQ(status.size(), 8u + 3 * 16);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(Get64(&status[8 + 16 * i]), expected[i][0]);
    EXPECT_EQ(Get32(&status[16 + 16 * i]), expected[i][1]);
    EXPECT_EQ(status[20 + 16 * i], expected[i][2]);
  }
}

}  // namespace
}  // namespace hydra::iscsi
