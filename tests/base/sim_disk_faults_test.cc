// SPDX-License-Identifier: Apache-2.0
//
// One test per fault that SimDisk can be told to have.
#include <set>

#include <gtest/gtest.h>

#include "base/sim_disk.h"
#include "tests/base/sim_disk_fixture.h"

namespace hydra {
namespace {

TEST(CutPower, HitsExactlyTheChangingCallItWasToldTo) {
  for (uint64_t n = 1; n <= 4; ++n) {
    SimDisk disk(Seed(n));
    MakeDurable(&disk, "f", "abc");
    auto file = OpenFile(&disk, "f");
    const uint64_t before = disk.io_count();
    disk.CutPowerAfter(n);
    int worked = 0;
    for (int i = 0; i < 6; ++i) {
      uint8_t byte;
      (void)file->PRead(0, {&byte, 1});  // reads do not count
      worked += WriteText(file.get(), 0, "x").ok();
    }
    EXPECT_EQ(worked, static_cast<int>(n) - 1);
    EXPECT_FALSE(disk.powered());
    EXPECT_EQ(disk.io_count() - before, n);
  }
}

TEST(CutPower, CanBeTakenBack) {
  SimDisk disk(Seed(1));
  disk.CutPowerAfter(1);
  disk.CutPowerAfter(0);
  OpenFile(&disk, "f");
  EXPECT_TRUE(disk.powered());
}

TEST(CutPower, CountsEveryKindOfChange) {
  SimDisk disk(Seed(1));
  ASSERT_TRUE(disk.CreateDirectory("d").ok());
  auto file = OpenFile(&disk, "d/f");
  OpenFile(&disk, "d/f");  // exists already: no change
  ASSERT_TRUE(WriteText(file.get(), 0, "x").ok());
  ASSERT_TRUE(file->Sync().ok());
  ASSERT_TRUE(file->Allocate(10).ok());
  ASSERT_TRUE(file->Truncate(0).ok());
  ASSERT_TRUE(disk.Rename("d/f", "d/g").ok());
  ASSERT_TRUE(disk.SyncDirectory("d").ok());
  ASSERT_TRUE(disk.Unlink("d/g").ok());
  ASSERT_TRUE(disk.RemoveDirectory("d").ok());
  EXPECT_EQ(disk.io_count(), 10u);
}

TEST(CutPower, TearsEvenADurableWriteAtSectorGranularity) {
  std::set<std::string> seen;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    SimDisk disk(Seed(seed));
    MakeDurable(&disk, "f", std::string(4 * kSector, 'o'));
    auto file = OpenFile(&disk, "f");
    disk.CutPowerAfter(1);
    const std::string text(4 * kSector, 'n');
    EXPECT_EQ(WriteText(file.get(), 0, text, Durability::kDsync).code(), Code::kIoError);
    disk.Restart();
    const std::string found = Contents(&disk, "f");
    std::string shape;
    for (size_t s = 0; s < 4; ++s) {
      const std::string sector = found.substr(s * kSector, kSector);
      shape += sector == std::string(kSector, 'o')   ? 'o'
               : sector == std::string(kSector, 'n') ? 'n'
                                                     : '?';
    }
    seen.insert(shape);
  }
  EXPECT_TRUE(seen.contains("onon") || seen.contains("nono") || seen.contains("noon"));
  EXPECT_GT(seen.size(), 20u);
}

TEST(CutPower, LetsAnInterruptedSyncOrRenameHappenOrNot) {
  const auto outcomes = Outcomes([](SimDisk* disk) {
    MakeDurable(disk, "a", "A");
    disk->CutPowerAfter(1);
    EXPECT_EQ(disk->Rename("a", "b").code(), Code::kIoError);
    disk->Restart();
    return Contents(disk, "a") + Contents(disk, "b");
  });
  EXPECT_EQ(Keys(outcomes), (std::vector<std::string>{"-A", "A-"}));

  const auto created = Outcomes([](SimDisk* disk) {
    OpenFile(disk, "f");
    disk->CutPowerAfter(1);
    EXPECT_EQ(disk->SyncDirectory("").code(), Code::kIoError);
    disk->Restart();
    return Contents(disk, "f");
  });
  EXPECT_EQ(Keys(created), (std::vector<std::string>{"", "-"}));
}

TEST(FailNth, FailsThatCallOnlyAndDoesNothing) {
  SimDisk disk(Seed(1));
  MakeDurable(&disk, "f", "abc");
  auto file = OpenFile(&disk, "f");
  uint8_t byte;
  disk.FailNth(IoKind::kRead, 2);
  EXPECT_TRUE(file->PRead(0, {&byte, 1}).ok());
  EXPECT_EQ(file->PRead(0, {&byte, 1}).status().code(), Code::kIoError);
  EXPECT_TRUE(file->PRead(0, {&byte, 1}).ok());

  for (const IoKind kind : {IoKind::kSync, IoKind::kSyncDirectory, IoKind::kOpen, IoKind::kRename,
                            IoKind::kUnlink, IoKind::kAllocate, IoKind::kTruncate}) {
    disk.FailNth(kind, 1);
  }
  EXPECT_EQ(file->Sync().code(), Code::kIoError);
  EXPECT_EQ(disk.SyncDirectory("").code(), Code::kIoError);
  EXPECT_EQ(disk.Open("g", CreateIt()).status().code(), Code::kIoError);
  EXPECT_EQ(disk.Rename("f", "h").code(), Code::kIoError);
  EXPECT_EQ(disk.Unlink("f").code(), Code::kIoError);
  EXPECT_EQ(file->Allocate(kPageSize * 10).code(), Code::kIoError);
  EXPECT_EQ(file->Truncate(0).code(), Code::kIoError);
  EXPECT_EQ(disk.List("").value(), (std::vector<std::string>{"f"}));
  EXPECT_EQ(ReadText(file.get()), "abc");
  EXPECT_EQ(disk.used_bytes(), kPageSize);
  EXPECT_TRUE(file->Sync().ok());
  EXPECT_TRUE(disk.Rename("f", "h").ok());
}

TEST(FailNth, TearsAWriteAtARandomSector) {
  std::set<size_t> written;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    SimDisk disk(Seed(seed));
    MakeDurable(&disk, "f", std::string(4 * kSector, 'o'));
    auto file = OpenFile(&disk, "f");
    disk.FailNth(IoKind::kWrite, 1);
    EXPECT_EQ(WriteText(file.get(), 0, std::string(4 * kSector, 'n')).code(), Code::kIoError);
    const std::string found = ReadText(file.get());
    const size_t border = found.find('o');
    EXPECT_EQ(found, std::string(border, 'n') + std::string(4 * kSector - border, 'o'));
    written.insert(border);
    EXPECT_TRUE(WriteText(file.get(), 0, "x").ok());
  }
  EXPECT_EQ(written, (std::set<size_t>{0, kSector, 2 * kSector, 3 * kSector}));
}

TEST(FailNth, ALaterSyncDoesNotSaveWhatAFailedSyncShouldHave) {
  const auto outcomes = Outcomes([](SimDisk* disk) {
    MakeDurable(disk, "f", std::string(2 * kSector, 'o'));
    auto file = OpenFile(disk, "f");
    EXPECT_TRUE(WriteText(file.get(), 0, std::string(2 * kSector, 'n')).ok());
    disk->FailNth(IoKind::kSync, 1);
    EXPECT_FALSE(file->Sync().ok());
    EXPECT_TRUE(WriteText(file.get(), kSector, std::string(kSector, 'r')).ok());
    EXPECT_TRUE(file->Sync().ok());
    LosePowerAndRestart(disk);
    const std::string found = Contents(disk, "f");
    EXPECT_EQ(found.substr(kSector), std::string(kSector, 'r'));
    const std::string first = found.substr(0, kSector);
    return std::string(first == std::string(kSector, 'n') ? "kept" : "not kept");
  });
  EXPECT_EQ(Keys(outcomes), (std::vector<std::string>{"kept", "not kept"}));
}

TEST(FailAll, FailsMatchingPathsUntilCleared) {
  SimDisk disk(Seed(1));
  auto segment = OpenFile(&disk, "segment-1");
  auto other = OpenFile(&disk, "other");
  disk.FailAll(IoKind::kWrite, "segment");
  EXPECT_EQ(WriteText(segment.get(), 0, "x").code(), Code::kIoError);
  EXPECT_EQ(WriteText(segment.get(), 0, "x").code(), Code::kIoError);
  EXPECT_TRUE(WriteText(other.get(), 0, "x").ok());
  EXPECT_TRUE(segment->Sync().ok());
  disk.FailAll(IoKind::kWrite, "");
  EXPECT_TRUE(WriteText(segment.get(), 0, "x").ok());
  disk.FailAll(IoKind::kRename, "target");
  EXPECT_EQ(disk.Rename("other", "target").code(), Code::kIoError);
}

TEST(FlipBit, ChangesOneBitForGood) {
  SimDisk disk(Seed(1));
  MakeDurable(&disk, "f", "abc");
  disk.FlipBit("f", 1, 0);
  EXPECT_EQ(Contents(&disk, "f"), "acc");
  LosePowerAndRestart(&disk);
  EXPECT_EQ(Contents(&disk, "f"), "acc");
  auto file = OpenFile(&disk, "f");
  ASSERT_TRUE(file->Truncate(2 * kPageSize).ok());
  disk.FlipBit("f", kPageSize + 5, 7);
  EXPECT_EQ(ReadText(file.get())[kPageSize + 5], '\x80');
}

TEST(DropNthWrite, ClaimsSuccessAndGoesNowhere) {
  SimDisk disk(Seed(1));
  MakeDurable(&disk, "f", "old");
  auto file = OpenFile(&disk, "f");
  const uint64_t bytes = disk.bytes_written();
  disk.DropNthWrite(2);
  EXPECT_TRUE(WriteText(file.get(), 0, "1").ok());
  EXPECT_TRUE(WriteText(file.get(), 1, "dropped", Durability::kDsync).ok());
  EXPECT_TRUE(WriteText(file.get(), 2, "3").ok());
  EXPECT_EQ(ReadText(file.get()), std::string("1l3\0\0\0\0\0", 8));
  EXPECT_EQ(disk.bytes_written() - bytes, 2u);
}

TEST(MisdirectNthWrite, LandsElsewhereInTheSameFile) {
  SimDisk disk(Seed(1));
  MakeDurable(&disk, "f", "0123456789");
  auto file = OpenFile(&disk, "f");
  disk.MisdirectNthWrite(1, 6);
  EXPECT_TRUE(WriteText(file.get(), 1, "ab", Durability::kDsync).ok());
  EXPECT_EQ(ReadText(file.get()), "012345ab89");
  LosePowerAndRestart(&disk);
  EXPECT_EQ(Contents(&disk, "f"), "012345ab89");
}

TEST(Capacity, RefusesGrowthAndAllowsOverwriting) {
  SimDisk disk(Seed(1));
  const std::string page(kPageSize, 'x');
  MakeDurable(&disk, "f", page + page);
  auto file = OpenFile(&disk, "f");
  disk.SetCapacity(kPageSize);
  EXPECT_EQ(disk.FreeBytes("").value(), 0u);
  EXPECT_TRUE(WriteText(file.get(), kPageSize, "overwritten").ok());
  EXPECT_EQ(WriteText(file.get(), 2 * kPageSize, "x").code(), Code::kNoSpace);
  EXPECT_EQ(file->Allocate(3 * kPageSize).code(), Code::kNoSpace);
  EXPECT_TRUE(file->Sync().ok());
  ASSERT_TRUE(disk.Unlink("f").ok());
  file.reset();
  EXPECT_EQ(disk.used_bytes(), 0u);
  auto next = OpenFile(&disk, "g");
  EXPECT_TRUE(WriteText(next.get(), 0, page).ok());
}

TEST(Capacity, AWriteThatDoesNotFitMayArriveInPart) {
  SimDisk disk(Seed(1));
  disk.SetCapacity(2 * kPageSize);
  auto file = OpenFile(&disk, "f");
  EXPECT_EQ(WriteText(file.get(), 0, std::string(3 * kPageSize, 'x')).code(), Code::kNoSpace);
  EXPECT_EQ(ReadText(file.get()), std::string(2 * kPageSize, 'x'));
}

TEST(Capacity, AllocatedPagesCanAlwaysBeWritten) {
  SimDisk disk(Seed(1));
  disk.SetCapacity(4 * kPageSize);
  auto file = OpenFile(&disk, "f");
  ASSERT_TRUE(file->Allocate(4 * kPageSize).ok());
  EXPECT_EQ(file->Size().value(), 0u);
  auto other = OpenFile(&disk, "other");
  EXPECT_EQ(WriteText(other.get(), 0, "x").code(), Code::kNoSpace);
  EXPECT_TRUE(WriteText(file.get(), 0, std::string(4 * kPageSize, 'x')).ok());
  EXPECT_EQ(disk.used_bytes(), 4 * kPageSize);
}

TEST(IgnoreSyncs, MakesSyncedDataAndNamesLosable) {
  const auto outcomes = Outcomes([](SimDisk* disk) {
    MakeDurable(disk, "f", "o");
    auto file = OpenFile(disk, "f");
    disk->IgnoreSyncs("f");
    EXPECT_TRUE(WriteText(file.get(), 0, "n", Durability::kDsync).ok());
    EXPECT_TRUE(file->Sync().ok());
    LosePowerAndRestart(disk);
    const std::string found = Contents(disk, "f");
    return std::string(found == "o" ? "lost" : found == "n" ? "kept" : "garbled");
  });
  EXPECT_EQ(Keys(outcomes), (std::vector<std::string>{"garbled", "kept", "lost"}));

  const auto names = Outcomes([](SimDisk* disk) {
    EXPECT_TRUE(disk->CreateDirectory("d").ok());
    EXPECT_TRUE(disk->SyncDirectory("").ok());
    disk->IgnoreSyncs("d");
    OpenFile(disk, "d/f");
    EXPECT_TRUE(disk->SyncDirectory("d").ok());
    disk->IgnoreSyncs("");
    LosePowerAndRestart(disk);
    return Contents(disk, "d/f");
  });
  EXPECT_EQ(Keys(names), (std::vector<std::string>{"", "-"}));
}

}  // namespace
}  // namespace hydra
