// SPDX-License-Identifier: Apache-2.0
//
// What SimDisk promises as a file system, and what power loss may and may not take.
#include "base/sim_disk.h"

#include <set>
#include <thread>

#include <gtest/gtest.h>

#include "base/rng.h"
#include "tests/base/sim_disk_fixture.h"

namespace hydra {
namespace {

using Strings = std::vector<std::string>;

TEST(SimDisk, ReadsWhatWasWrittenAndZeroesBetween) {
  SimDisk disk(Seed(1));
  auto file = OpenFile(&disk, "f");
  ASSERT_TRUE(WriteText(file.get(), 3 * kPageSize - 1, "ab").ok());
  EXPECT_EQ(ReadText(file.get()), std::string(3 * kPageSize - 1, '\0') + "ab");
  uint8_t byte;
  EXPECT_EQ(file->PRead(3 * kPageSize + 1, {&byte, 1}).value(), 0u);
  const IoSlice slices[] = {{reinterpret_cast<const uint8_t*>("xy"), 2},
                            {nullptr, 0},
                            {reinterpret_cast<const uint8_t*>("z"), 1}};
  ASSERT_TRUE(file->PWriteV(1, slices, Durability::kBuffered).ok());
  EXPECT_EQ(ReadText(file.get()).substr(0, 5), std::string("\0xyz\0", 5));
}

TEST(SimDisk, TruncateCutsAndExtendsWithZeroes) {
  SimDisk disk(Seed(1));
  auto file = OpenFile(&disk, "f");
  ASSERT_TRUE(WriteText(file.get(), 0, "abcdef").ok());
  ASSERT_TRUE(file->Truncate(2).ok());
  ASSERT_TRUE(file->Truncate(4).ok());
  EXPECT_EQ(ReadText(file.get()), std::string("ab\0\0", 4));
}

TEST(SimDisk, OpenFollowsItsOptions) {
  SimDisk disk(Seed(1));
  EXPECT_EQ(disk.Open("f", {}).status().code(), Code::kNotFound);
  EXPECT_EQ(disk.Open("none/f", CreateIt()).status().code(), Code::kNotFound);
  MakeDurable(&disk, "f", "abc");
  OpenOptions exclusive = CreateIt();
  exclusive.exclusive = true;
  EXPECT_EQ(disk.Open("f", exclusive).status().code(), Code::kAlreadyExists);
  OpenOptions reading;
  reading.read_only = true;
  auto file = OpenFile(&disk, "f", reading);
  EXPECT_EQ(WriteText(file.get(), 0, "x").code(), Code::kIoError);
  OpenOptions truncating;
  truncating.truncate = true;
  EXPECT_EQ(ReadText(OpenFile(&disk, "/f", truncating).get()), "");
}

TEST(SimDisk, DirectoriesHoldFilesAndDirectories) {
  SimDisk disk(Seed(1));
  ASSERT_TRUE(disk.CreateDirectory("d").ok());
  EXPECT_EQ(disk.CreateDirectory("d").code(), Code::kAlreadyExists);
  EXPECT_EQ(disk.CreateDirectory("x/y").code(), Code::kNotFound);
  ASSERT_TRUE(disk.CreateDirectory("d/sub").ok());
  OpenFile(&disk, "d/b");
  OpenFile(&disk, "d/a");
  EXPECT_EQ(disk.List("d").value(), (Strings{"a", "b", "sub"}));
  EXPECT_EQ(disk.List("").value(), (Strings{"d"}));
  EXPECT_EQ(disk.List("none").status().code(), Code::kNotFound);
  EXPECT_EQ(disk.RemoveDirectory("d").code(), Code::kFailedPrecondition);
  EXPECT_TRUE(disk.RemoveDirectory("d/sub").ok());
  EXPECT_TRUE(disk.Unlink("d/a").ok());
  EXPECT_EQ(disk.Unlink("d/a").code(), Code::kNotFound);
  EXPECT_EQ(disk.Rename("d/a", "d/c").code(), Code::kNotFound);
  EXPECT_EQ(disk.Rename("d", "d/inside").code(), Code::kInvalidArgument);
  EXPECT_TRUE(disk.Rename("d/b", "b").ok());
  EXPECT_TRUE(disk.RemoveDirectory("d").ok());
  EXPECT_EQ(disk.List("/").value(), (Strings{"b"}));
}

TEST(SimDisk, UnlinkedAndReplacedFilesStayReadableThroughOpenHandles) {
  SimDisk disk(Seed(1));
  MakeDurable(&disk, "gone", "old");
  MakeDurable(&disk, "new", "new");
  auto unlinked = OpenFile(&disk, "gone");
  auto replaced = OpenFile(&disk, "new");
  ASSERT_TRUE(disk.Unlink("gone").ok());
  MakeDurable(&disk, "other", "other");
  ASSERT_TRUE(disk.Rename("other", "new").ok());
  EXPECT_EQ(ReadText(unlinked.get()), "old");
  EXPECT_EQ(ReadText(replaced.get()), "new");
  EXPECT_EQ(Contents(&disk, "new"), "other");
  disk.Crash();
  EXPECT_EQ(unlinked->Size().status().code(), Code::kIoError);
}

TEST(SimDisk, SpaceIsCountedByPageAndComesBackWithTheLastHandle) {
  SimDisk disk(Seed(1));
  disk.SetCapacity(10 * kPageSize);
  auto file = OpenFile(&disk, "f");
  ASSERT_TRUE(WriteText(file.get(), 5 * kPageSize, "x").ok());
  EXPECT_EQ(disk.used_bytes(), kPageSize);
  ASSERT_TRUE(file->Allocate(4 * kPageSize).ok());
  EXPECT_EQ(file->Size().value(), 5 * kPageSize + 1);
  EXPECT_EQ(disk.used_bytes(), 5 * kPageSize);
  ASSERT_TRUE(WriteText(file.get(), 0, "x").ok());
  EXPECT_EQ(disk.used_bytes(), 5 * kPageSize);
  EXPECT_EQ(disk.FreeBytes("").value(), 5 * kPageSize);
  ASSERT_TRUE(disk.Unlink("f").ok());
  EXPECT_EQ(disk.used_bytes(), 5 * kPageSize);
  file.reset();
  EXPECT_EQ(disk.used_bytes(), 0u);
}

TEST(SimDisk, SpaceIsBookedAsARecountFindsIt) {
  for (uint64_t seed = 1; seed <= kSeeds / 4; ++seed) {
    Rng rng(seed);
    SimDisk disk(Seed(seed));
    disk.SetCapacity(40 * kPageSize);
    for (int step = 0; step < 100; ++step) {
      const std::string name(1, static_cast<char>('a' + rng.Below(4)));
      auto file = OpenFile(&disk, name);
      const uint64_t where = rng.Below(20 * kPageSize);
      switch (rng.Below(8)) {
        case 0: ASSERT_TRUE(file->Truncate(where).ok()); break;
        case 1: file->Allocate(where).IgnoreError(); break;
        case 2: ASSERT_TRUE(file->Sync().ok()); break;
        case 3: ASSERT_TRUE(disk.Unlink(name).ok()); break;
        case 4: ASSERT_TRUE(disk.Rename(name, "a").ok()); break;
        case 5: LosePowerAndRestart(&disk); break;
        default: WriteText(file.get(), where, std::string(9000, 'x')).IgnoreError(); break;
      }
      file.reset();
      ASSERT_EQ(disk.used_bytes(), disk.Clone(1)->used_bytes()) << "seed " << seed;
    }
  }
}

TEST(SimDisk, LocksExcludeUntilReleasedOrTheProcessDies) {
  SimDisk disk(Seed(1));
  auto lock = disk.Lock("LOCK");
  ASSERT_TRUE(lock.ok());
  EXPECT_EQ(disk.Lock("/LOCK").status().code(), Code::kBusy);
  lock->reset();
  auto again = disk.Lock("LOCK");
  ASSERT_TRUE(again.ok());
  disk.Crash();
  auto next = disk.Lock("LOCK");
  ASSERT_TRUE(next.ok());
  again->reset();  // the dead process's lock is not this one
  EXPECT_EQ(disk.Lock("LOCK").status().code(), Code::kBusy);
  LosePowerAndRestart(&disk);
  EXPECT_TRUE(disk.Lock("LOCK").ok());
}

TEST(SimDisk, DirectFilesInsistOnAlignment) {
  SimDisk disk(Seed(1));
  OpenOptions options = CreateIt();
  options.direct = true;
  auto file = OpenFile(&disk, "f", options);
  const Buffer buffer = Buffer::Allocate(2 * kPageSize);
  const auto write = [&](uint64_t offset, size_t skip, size_t length) {
    const IoSlice slice{buffer.data() + skip, length};
    return file->PWriteV(offset, {&slice, 1}, Durability::kDsync).code();
  };
  EXPECT_EQ(write(kPageSize, 0, kPageSize), Code::kOk);
  EXPECT_EQ(write(512, 0, kPageSize), Code::kInvalidArgument);
  EXPECT_EQ(write(0, 512, kPageSize), Code::kInvalidArgument);
  EXPECT_EQ(write(0, 0, 512), Code::kInvalidArgument);
  EXPECT_EQ(file->PRead(0, buffer.span()).value(), 2 * kPageSize);
  EXPECT_EQ(file->PRead(1, buffer.span()).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(file->PRead(0, buffer.span().subspan(1)).status().code(), Code::kInvalidArgument);

  SimDisk::Options no_direct = Seed(1);
  no_direct.supports_direct = false;
  EXPECT_EQ(SimDisk(no_direct).Open("f", options).status().code(), Code::kUnsupported);
}

TEST(SimDisk, CallsTakeTheTimeTheyAreToldTo) {
  ManualClock clock;
  SimDisk::Options options = Seed(1);
  options.clock = &clock;
  options.latency = kMillisecond;
  SimDisk disk(options);
  auto file = OpenFile(&disk, "f");
  ASSERT_TRUE(WriteText(file.get(), 0, "x").ok());
  ASSERT_TRUE(file->Sync().ok());
  EXPECT_EQ(clock.Now(), 3 * kMillisecond);
}

TEST(SimDisk, OpenFilesMayOutliveIt) {
  auto disk = std::make_unique<SimDisk>(Seed(1));
  auto file = OpenFile(disk.get(), "f");
  auto lock = disk->Lock("LOCK");
  disk.reset();
  EXPECT_TRUE(WriteText(file.get(), 0, "x").ok());
}

TEST(SimDisk, ThreadsMayShareIt) {
  SimDisk disk(Seed(1));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&disk, name = std::to_string(t)] {
      auto file = OpenFile(&disk, name);
      for (int i = 0; i < 500; ++i) {
        ASSERT_TRUE(WriteText(file.get(), i * 100, name, Durability::kDsync).ok());
        ASSERT_TRUE(disk.SyncDirectory("").ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(disk.List("").value().size(), 4u);
}

// --- Power loss ------------------------------------------------------------------------------

TEST(PowerLoss, NeverTakesWhatWasSynced) {
  const std::string text(3 * kPageSize + 77, 's');
  const auto outcomes = Outcomes([&](SimDisk* disk) {
    MakeDurable(disk, "synced", text);
    auto file = OpenFile(disk, "dsync");
    EXPECT_TRUE(disk->SyncDirectory("").ok());
    EXPECT_TRUE(WriteText(file.get(), 10, text, Durability::kDsync).ok());
    LosePowerAndRestart(disk);
    const bool intact =
        Contents(disk, "synced") == text && Contents(disk, "dsync") == std::string(10, '\0') + text;
    return std::string(intact ? "intact" : "broken");
  });
  EXPECT_EQ(Keys(outcomes), (Strings{"intact"}));
}

TEST(PowerLoss, SparesSyncedBytesOfASectorThatIsAppendedTo) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    SimDisk disk(Seed(seed));
    MakeDurable(&disk, "log", "synced record;");
    auto file = OpenFile(&disk, "log");
    ASSERT_TRUE(WriteText(file.get(), 14, "unsynced record").ok());
    LosePowerAndRestart(&disk);
    EXPECT_EQ(Contents(&disk, "log").substr(0, 14), "synced record;") << seed;
  }
}

TEST(PowerLoss, LosesKeepsOrGarblesEachUnsyncedSectorByItself) {
  int lost = 0, kept = 0, garbled = 0, mixed_files = 0;
  const std::string before(16 * kSector, 'o'), after(16 * kSector, 'n');
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    SimDisk disk(Seed(seed));
    MakeDurable(&disk, "f", before);
    auto file = OpenFile(&disk, "f");
    ASSERT_TRUE(WriteText(file.get(), 0, after).ok());
    LosePowerAndRestart(&disk);
    const std::string found = Contents(&disk, "f");
    std::set<int> kinds;
    for (size_t s = 0; s < 16; ++s) {
      const std::string sector = found.substr(s * kSector, kSector);
      const bool is_old = sector == before.substr(0, kSector);
      const bool is_new = sector == after.substr(0, kSector);
      lost += is_old;
      kept += is_new;
      garbled += !is_old && !is_new;
      kinds.insert(is_old ? 0 : is_new ? 1 : 2);
    }
    mixed_files += kinds.size() > 1;
  }
  const int sectors = 16 * static_cast<int>(kSeeds);
  EXPECT_NEAR(lost, sectors * 40 / 100, sectors / 20);
  EXPECT_NEAR(garbled, sectors * 20 / 100, sectors / 20);
  EXPECT_NEAR(kept, sectors * 40 / 100, sectors / 20);
  EXPECT_GT(mixed_files, static_cast<int>(kSeeds) / 2);
}

TEST(PowerLoss, KeepsOrLosesAnUnsyncedLength) {
  const auto outcomes = Outcomes([](SimDisk* disk) {
    MakeDurable(disk, "f", "abc");
    auto file = OpenFile(disk, "f");
    EXPECT_TRUE(file->Truncate(100).ok());
    LosePowerAndRestart(disk);
    return std::to_string(Contents(disk, "f").size());
  });
  EXPECT_EQ(Keys(outcomes), (Strings{"100", "3"}));
}

TEST(PowerLoss, UndoesAnUnsyncedShrinkWholeOrNotAtAll) {
  const std::string text(2 * kPageSize, 't');
  const auto outcomes = Outcomes([&](SimDisk* disk) {
    MakeDurable(disk, "f", text);
    auto file = OpenFile(disk, "f");
    EXPECT_TRUE(file->Truncate(700).ok());
    LosePowerAndRestart(disk);
    const std::string found = Contents(disk, "f");
    return std::string(found == text                  ? "undone"
                       : found == text.substr(0, 700) ? "shrunk"
                                                      : "damaged");
  });
  EXPECT_EQ(Keys(outcomes), (Strings{"shrunk", "undone"}));
}

TEST(PowerLoss, DoesNotBringBackWhatWasCutOffBeforeADurableWrite) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    SimDisk disk(Seed(seed));
    MakeDurable(&disk, "f", std::string(3 * kPageSize, 'o'));
    auto file = OpenFile(&disk, "f");
    ASSERT_TRUE(file->Truncate(0).ok());
    ASSERT_TRUE(WriteText(file.get(), kPageSize, "n", Durability::kDsync).ok());
    LosePowerAndRestart(&disk);
    ASSERT_EQ(Contents(&disk, "f"), std::string(kPageSize, '\0') + "n") << seed;
  }
}

TEST(PowerLoss, MayTakeAFileWhoseNameWasNotSynced) {
  const auto outcomes = Outcomes([](SimDisk* disk) {
    auto file = OpenFile(disk, "f");
    EXPECT_TRUE(WriteText(file.get(), 0, "abc").ok());
    EXPECT_TRUE(file->Sync().ok());
    LosePowerAndRestart(disk);
    return Contents(disk, "f");
  });
  EXPECT_EQ(Keys(outcomes), (Strings{"-", "abc"}));
}

TEST(PowerLoss, MayTakeADirectoryWhoseNameWasNotSyncedWithAllItHolds) {
  const auto outcomes = Outcomes([](SimDisk* disk) {
    EXPECT_TRUE(disk->CreateDirectory("d").ok());
    MakeDurable(disk, "d/f", "abc");
    LosePowerAndRestart(disk);
    return Contents(disk, "d/f");
  });
  EXPECT_EQ(Keys(outcomes), (Strings{"-", "abc"}));
}

TEST(PowerLoss, KeepsOrUndoesAnUnsyncedRenameButNeverHalf) {
  const auto outcomes = Outcomes([](SimDisk* disk) {
    MakeDurable(disk, "a", "new");
    MakeDurable(disk, "b", "old");
    EXPECT_TRUE(disk->Rename("a", "b").ok());
    LosePowerAndRestart(disk);
    return Contents(disk, "a") + "," + Contents(disk, "b");
  });
  EXPECT_EQ(Keys(outcomes), (Strings{"-,new", "new,old"}));
}

TEST(PowerLoss, KeepsOrUndoesAMoveBetweenDirectoriesButNeverHalf) {
  const auto outcomes = Outcomes([](SimDisk* disk) {
    EXPECT_TRUE(disk->CreateDirectory("x").ok());
    EXPECT_TRUE(disk->CreateDirectory("y").ok());
    EXPECT_TRUE(disk->SyncDirectory("").ok());
    MakeDurable(disk, "x/a", "A");
    OpenFile(disk, "y/before");
    EXPECT_TRUE(disk->Rename("x/a", "y/a").ok());
    OpenFile(disk, "x/after");
    LosePowerAndRestart(disk);
    return Contents(disk, "x/a") + "," + Contents(disk, "y/a");
  });
  EXPECT_EQ(Keys(outcomes), (Strings{"-,A", "A,-"}));
}

TEST(PowerLoss, SyncingOneSideOfAMoveKeepsBoth) {
  const auto outcomes = Outcomes([](SimDisk* disk) {
    EXPECT_TRUE(disk->CreateDirectory("x").ok());
    EXPECT_TRUE(disk->CreateDirectory("y").ok());
    EXPECT_TRUE(disk->SyncDirectory("").ok());
    MakeDurable(disk, "x/a", "A");
    OpenFile(disk, "x/before");
    EXPECT_TRUE(disk->Rename("x/a", "y/a").ok());
    EXPECT_TRUE(disk->SyncDirectory("y").ok());
    LosePowerAndRestart(disk);
    return Contents(disk, "x/before") + "," + Contents(disk, "x/a") + "," + Contents(disk, "y/a");
  });
  EXPECT_EQ(Keys(outcomes), (Strings{",-,A"}));
}

TEST(PowerLoss, KeepsAPrefixOfADirectorysChanges) {
  const auto outcomes = Outcomes([](SimDisk* disk) {
    MakeDurable(disk, "old", "");
    OpenFile(disk, "1");
    OpenFile(disk, "2");
    EXPECT_TRUE(disk->Unlink("old").ok());
    OpenFile(disk, "3");
    LosePowerAndRestart(disk);
    std::string names;
    const Strings found = disk->List("").value();
    for (const std::string& name : found) names += name + " ";
    return names;
  });
  EXPECT_EQ(Keys(outcomes), (Strings{"1 2 ", "1 2 3 ", "1 2 old ", "1 old ", "old "}));
}

TEST(PowerLoss, NeverUndoesSyncedNames) {
  const auto outcomes = Outcomes([](SimDisk* disk) {
    MakeDurable(disk, "a", "A");
    MakeDurable(disk, "b", "B");
    EXPECT_TRUE(disk->Rename("a", "c").ok());
    EXPECT_TRUE(disk->Unlink("b").ok());
    EXPECT_TRUE(disk->SyncDirectory("").ok());
    LosePowerAndRestart(disk);
    return Contents(disk, "a") + Contents(disk, "b") + Contents(disk, "c");
  });
  EXPECT_EQ(Keys(outcomes), (Strings{"--A"}));
}

TEST(PowerLoss, ReplaceFileLeavesTheOldOrTheNewContentsWhole) {
  std::set<std::string> seen;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    for (uint64_t cut = 1; cut <= 6; ++cut) {
      SimDisk disk(Seed(seed * 100 + cut));
      ASSERT_TRUE(disk.CreateDirectory("d").ok());
      ASSERT_TRUE(disk.SyncDirectory("").ok());
      ASSERT_TRUE(disk.ReplaceFile("d", "f", "old contents").ok());
      disk.CutPowerAfter(cut);
      const Status status = disk.ReplaceFile("d", "f", "new and longer contents");
      disk.PowerLoss();
      disk.Restart();
      const std::string found = Contents(&disk, "d/f");
      EXPECT_TRUE(found == "old contents" || found == "new and longer contents") << found;
      EXPECT_TRUE(!status.ok() || found == "new and longer contents");
      seen.insert(found);
    }
  }
  EXPECT_EQ(seen.size(), 2u);
}

TEST(PowerLoss, EverythingFailsUntilRestartAndOldFilesStayDead) {
  SimDisk disk(Seed(1));
  MakeDurable(&disk, "f", "abc");
  auto file = OpenFile(&disk, "f");
  disk.PowerLoss();
  EXPECT_FALSE(disk.powered());
  uint8_t byte;
  EXPECT_EQ(file->PRead(0, {&byte, 1}).status().code(), Code::kIoError);
  EXPECT_EQ(WriteText(file.get(), 0, "x").code(), Code::kIoError);
  EXPECT_EQ(disk.Open("f", {}).status().code(), Code::kIoError);
  EXPECT_EQ(disk.List("").status().code(), Code::kIoError);
  EXPECT_EQ(disk.Unlink("f").code(), Code::kIoError);
  EXPECT_EQ(disk.Lock("LOCK").status().code(), Code::kIoError);
  EXPECT_FALSE(disk.Exists("f"));
  disk.Restart();
  EXPECT_EQ(file->PRead(0, {&byte, 1}).status().code(), Code::kIoError);
  EXPECT_EQ(file->Sync().code(), Code::kIoError);
  EXPECT_EQ(Contents(&disk, "f"), "abc");
}

TEST(Crash, KeepsUnsyncedDataThatPowerLossMayStillTake) {
  const auto outcomes = Outcomes([](SimDisk* disk) {
    MakeDurable(disk, "f", "o");
    auto file = OpenFile(disk, "f");
    EXPECT_TRUE(WriteText(file.get(), 0, "n").ok());
    OpenFile(disk, "g");
    disk->Crash();
    EXPECT_TRUE(disk->powered());
    EXPECT_EQ(file->Size().status().code(), Code::kIoError);
    EXPECT_EQ(Contents(disk, "f") + Contents(disk, "g"), "n");
    LosePowerAndRestart(disk);
    const std::string found = Contents(disk, "f");
    return std::string(found == "o"   ? "lost"
                       : found == "n" ? "kept"
                                      : "garbled") +
           Contents(disk, "g");
  });
  EXPECT_EQ(Keys(outcomes), (Strings{"garbled", "garbled-", "kept", "kept-", "lost", "lost-"}));
}

TEST(Determinism, TheSameSeedAndCallsGiveTheSameBytes) {
  const auto run = [](uint64_t seed) {
    SimDisk disk(Seed(seed));
    auto file = OpenFile(&disk, "f");
    std::string all;
    for (int round = 0; round < 3; ++round) {
      EXPECT_TRUE(WriteText(file.get(), 100 * round, std::string(9000, 'a' + round)).ok());
      EXPECT_TRUE(disk.SyncDirectory("").ok());
      OpenFile(&disk, "g" + std::to_string(round));
      LosePowerAndRestart(&disk);
      const Strings names = disk.List("").value();
      for (const std::string& name : names) all += name + "=" + Contents(&disk, name);
      file = OpenFile(&disk, "f");
    }
    return all;
  };
  EXPECT_EQ(run(5), run(5));
  EXPECT_NE(run(5), run(6));
}

TEST(Clone, IsIndependentAndKeepsUnsyncedDataUnsynced) {
  SimDisk disk(Seed(1));
  MakeDurable(&disk, "f", "o");
  auto file = OpenFile(&disk, "f");
  ASSERT_TRUE(WriteText(file.get(), 0, "n").ok());
  OpenFile(&disk, "g");
  disk.FailAll(IoKind::kWrite, "f");
  std::set<std::string> seen;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    auto copy = disk.Clone(seed);
    EXPECT_EQ(Contents(copy.get(), "f"), "n");
    EXPECT_EQ(copy->used_bytes(), disk.used_bytes());
    LosePowerAndRestart(copy.get());
    seen.insert(Contents(copy.get(), "f"));
    EXPECT_TRUE(WriteText(OpenFile(copy.get(), "f").get(), 5, "other").ok());
    EXPECT_EQ(ReadText(file.get()), "n");
    EXPECT_TRUE(disk.Exists("g"));
  }
  EXPECT_TRUE(seen.contains("o") && seen.contains("n") && seen.size() > 2);
}

// Random writes, syncs and power losses against a model that knows which bytes are promised.
TEST(PowerLoss, KeepsItsPromisesUnderRandomUse) {
  constexpr size_t kLength = 3 * kPageSize;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    Rng rng(seed);
    SimDisk disk(Seed(seed));
    MakeDurable(&disk, "f", std::string(kLength, '.'));
    auto file = OpenFile(&disk, "f");
    std::string seen(kLength, '.');
    std::vector<bool> risky(kLength, false);
    for (int step = 0; step < 60; ++step) {
      const uint64_t roll = rng.Below(10);
      if (roll < 7) {
        const size_t offset = rng.Below(kLength);
        const size_t length = std::min(kLength - offset, rng.Between(1, 2 * kPageSize));
        const std::string text(length, static_cast<char>('a' + step % 26));
        const bool dsync = roll < 3;
        ASSERT_TRUE(
            WriteText(file.get(), offset, text, dsync ? Durability::kDsync : Durability::kBuffered)
                .ok());
        seen.replace(offset, length, text);
        std::fill_n(risky.begin() + static_cast<ptrdiff_t>(offset), length, !dsync);
      } else if (roll < 8) {
        ASSERT_TRUE(file->Sync().ok());
        risky.assign(kLength, false);
      } else if (roll < 9) {
        ASSERT_EQ(ReadText(file.get()), seen);
      } else {
        LosePowerAndRestart(&disk);
        file = OpenFile(&disk, "f");
        const std::string found = ReadText(file.get());
        ASSERT_EQ(found.size(), kLength);
        for (size_t i = 0; i < kLength; ++i) {
          ASSERT_TRUE(risky[i] || found[i] == seen[i]) << "seed " << seed << " byte " << i;
        }
        seen = found;
        risky.assign(kLength, false);
      }
    }
  }
}

}  // namespace
}  // namespace hydra
