// SPDX-License-Identifier: Apache-2.0
//
// Claims about the map: rows that point at the wrong thing, bitmaps, the checkpoint row, and
// LevelDB's own files.
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/coding.h"
#include "base/crc32c.h"
#include "tests/support/store_fixture.h"
#include "tests/tool/sample_store.h"

namespace hydra::tool_test {
namespace {

using store_reader::FindingKind;
using store_reader::VerifyReport;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr uint32_t kNode = 0xFFFFFFFF;

// --- m rows ----------------------------------------------------------------------------------

TEST(VerifyMap, RowWithAnotherBlocksPlaceIsFound) {
  SampleStore store;
  store.PutData(1, 5, Version(2), 1, store.b1.payload_page, Block(15));
  const VerifyReport report = store.Verify();
  ASSERT_THAT(Findings(report), ElementsAre(At("map row", 1, store.b1.payload_page)));
  EXPECT_EQ(report.findings[0].group, 1u);
  EXPECT_EQ(report.findings[0].lba, 5u);
  EXPECT_EQ(report.findings[0].version, Version(2));
}

TEST(VerifyMap, RowWithTheWrongCrcIsFound) {
  SampleStore store;
  store.PutData(1, 5, Version(2), 1, store.b2.payload_page, Block(16));
  EXPECT_THAT(Findings(store.Verify()), ElementsAre(At("map row", 1, store.b2.payload_page)));
}

TEST(VerifyMap, RowIntoAFreedSegmentIsFound) {
  SampleStore store;
  store.PutData(1, 5, Version(2), 77, 3, Block(15));
  const VerifyReport report = store.Verify();
  ASSERT_THAT(Findings(report), ElementsAre(At("map row", 77, 3)));
  EXPECT_THAT(report.findings[0].what, HasSubstr("does not exist"));
}

TEST(VerifyMap, RowOutsideOfItsSegmentIsFound) {
  for (const uint32_t page : {0u, kSegmentPages, 0xFFFFFFFFu}) {
    SampleStore store;
    store.PutData(1, 5, Version(2), 1, page, Block(15));
    EXPECT_THAT(Findings(store.Verify()), ElementsAre(At("map row", 1, page)));
  }
}

TEST(VerifyMap, ZeroedExtentHidesOlderRowsAndNoOthers) {
  SampleStore store;
  store.PutZero(1, 0, Version(2));  // hides lba 0 and 1 (instance 1), not 5 (the same version)
  store.PutData(1, 0, Version(1), 99, 1, Block(0));
  store.PutPresence(1, 0, {5});
  const VerifyReport report = store.Verify();
  EXPECT_THAT(Findings(report), IsEmpty());
  EXPECT_EQ(report.live_blocks, 1u);
}

TEST(VerifyMap, MalformedRowsAreFound) {
  const std::string short_key = StoreWriter::Key(1, 'm') + "abc";
  const std::vector<std::pair<std::string, std::string>> rows = {
      {StoreWriter::Key(1, 'm', 9), "short"},
      {StoreWriter::Key(1, 'm', 9), std::string(9, '\4')},
      {StoreWriter::Key(1, 'z', 9), "short"},
      {StoreWriter::Key(1, 'p', 9), "short"},
      {StoreWriter::Key(1, 'v', 9) + "12345678", "\7"},
      {short_key, "x"},
      {"abc", "x"},
      {StoreWriter::Key(2, 'M'), std::string("\1\1\0\377", 4)},
      {StoreWriter::Key(kNode, 'd') + "1234", ""},
      {StoreWriter::Key(kNode, 'd') + "1234", "\2"},
      {StoreWriter::Key(kNode, 'd') + "1234", "\1\1"},
      {StoreWriter::Key(kNode, 'i'), "\1\1\377\377\377\377\17"},
  };
  for (const auto& [key, value] : rows) {
    SampleStore store;
    store.PutRow(key, value);
    const VerifyReport report = store.Verify();
    ASSERT_THAT(report.findings, SizeIs(1)) << testing::PrintToString(key);
    EXPECT_EQ(report.findings[0].kind, FindingKind::kMapRow) << testing::PrintToString(key);
  }
}

TEST(VerifyMap, RowsOfADroppedGroupMayPointNowhere) {
  SampleStore store;
  store.PutMeta(4, 1, 9);
  store.PutData(4, 0, Version(3), 55, 1, Block(1));
  store.PutDropped(4);
  const VerifyReport report = store.Verify();
  EXPECT_THAT(Findings(report), IsEmpty());
  EXPECT_THAT(report.notes, ElementsAre(HasSubstr("group 4 is dropped")));
}

TEST(VerifyMap, RowsThatAreLeftOfASweptGroupAreFound) {
  SampleStore store;
  store.PutData(4, 0, Version(3), 55, 1, Block(1));
  store.PutDropped(4, true);
  const VerifyReport report = store.Verify();
  ASSERT_THAT(report.findings, SizeIs(1));
  EXPECT_EQ(report.findings[0].kind, FindingKind::kMapRow);
  EXPECT_THAT(report.findings[0].what, HasSubstr("that were swept"));
}

// An inspector that knew d rows only from its own tests called every store damaged that had dropped
// a group.
TEST(VerifyMap, AnEnginesStoreThatDroppedAGroupIsClean) {
  test::Store store({});
  store.MustStart();
  ASSERT_TRUE(store.CreateGroup(2, 1).ok());
  for (Lba lba = 0; lba < 30; ++lba) ASSERT_TRUE(store.Write(2, lba).ok());
  ASSERT_TRUE(store.Settle().ok());
  ASSERT_TRUE(store.Checkpoint().ok());
  ASSERT_TRUE(store.DropGroup(2).ok());
  ASSERT_TRUE(store.Settle().ok());
  for (int sweep = 0; sweep < 3; ++sweep) {
    ASSERT_TRUE(store.Checkpoint().ok());
    const auto report = store_reader::VerifyStore(&store.disk(), test::kStoreDirectory, {});
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    EXPECT_THAT(Findings(*report), IsEmpty());
    const bool sweeping = sweep == 0;
    EXPECT_EQ(report->notes.empty(), !sweeping) << testing::PrintToString(report->notes);
  }
}

TEST(VerifyMap, BlocksOfSeveralPagesAreCheckedWhole) {
  SampleStore store;
  const std::string block = Block(60, 4);
  const Written batch =
      store.Append(InLane(0).Group(6, 1, 4).Accept(6, 1, {WriteOp(65, {block})}, block));
  store.PutMeta(6, 4, 1);
  store.PutData(6, 65, Version(1), batch.segment, batch.payload_page, block);
  store.PutPresence(6, 1, {1}, 8);  // 64 blocks per extent
  store.PutIntent(2);
  store.Checkpoint(2);
  EXPECT_THAT(Findings(store.Verify()), IsEmpty());
  store.FlipPage(batch.segment, batch.payload_page + 3);
  const VerifyReport report = store.Verify();
  ASSERT_THAT(Findings(report), ElementsAre(At("payload", 1, batch.payload_page)));
  EXPECT_TRUE(report.findings[0].live);
}

TEST(VerifyMap, GroupWithoutMetaRowTakesItsBlockSizeFromTheStream) {
  SampleStore store;
  store.PutIntent(2);
  store.PutData(1, 8, Version(4), 1, store.b6.payload_page + 1, Block(18));  // the wrong page
  store.RemoveRow(StoreWriter::Key(1, 'M'));
  EXPECT_THAT(Findings(store.Verify()), ElementsAre(At("map row", 1, store.b6.payload_page + 1)));
}

// --- p rows ----------------------------------------------------------------------------------

TEST(VerifyMap, BitmapThatDiffersFromTheRowsIsFound) {
  for (const std::vector<uint32_t>& blocks :
       {std::vector<uint32_t>{0, 1}, {0, 1, 5, 6}, {0, 1, 5, 2}, {}}) {
    SampleStore store;
    store.PutPresence(1, 0, blocks);
    const VerifyReport report = store.Verify();
    ASSERT_THAT(report.findings, SizeIs(1));
    EXPECT_EQ(report.findings[0].kind, FindingKind::kPresence);
  }
}

TEST(VerifyMap, MissingBitmapIsFound) {
  SampleStore store;
  store.RemoveRow(StoreWriter::Key(1, 'p', 0));
  EXPECT_THAT(Findings(store.Verify()), ElementsAre("presence 0/0"));
}

TEST(VerifyMap, BitmapOfAnExtentWithoutRowsIsFound) {
  SampleStore store;
  store.PutPresence(1, 12, {3});
  const VerifyReport report = store.Verify();
  ASSERT_THAT(Findings(report), ElementsAre("presence 0/0"));
  EXPECT_EQ(report.findings[0].lba, 12u);
}

TEST(VerifyMap, BitmapMayLagBehindTheRowsAfterACrashWithinACheckpoint) {
  SampleStore store;
  store.PutIntent(2);  // row c still says 1
  store.PutData(1, 8, Version(4), 1, store.b6.payload_page, Block(18));
  const VerifyReport report = store.Verify();
  EXPECT_THAT(Findings(report), IsEmpty());
  EXPECT_THAT(report.notes, ElementsAre(HasSubstr("begun and not finished"),
                                        HasSubstr("allowed: a checkpoint was interrupted")));
}

// --- M rows ----------------------------------------------------------------------------------

TEST(VerifyMap, OpenEntryMustBeWhereTheRowSays) {
  struct Case {
    uint64_t instance, round;
    const Written SampleStore::*batch;
    uint32_t offset;
    const char* problem;
  };
  const Case cases[] = {
      {3, 1, &SampleStore::b5, 65, "no accept starts"},
      {3, 2, &SampleStore::b5, 64, "another one"},
      {4, 1, &SampleStore::b5, 64, "another one"},
      {2, 1, &SampleStore::b2, 64, "not above"},
      {4, 1, &SampleStore::b6, 64, "behind the replay position"},
  };
  for (const Case& c : cases) {
    SampleStore store;
    store.PutMeta(1, 1, 2, StoreWriter::OpenEntry(c.instance, c.round, 3, store.*c.batch, c.offset),
                  1);
    const VerifyReport report = store.Verify();
    ASSERT_THAT(report.findings, SizeIs(1)) << c.problem;
    EXPECT_EQ(report.findings[0].kind, FindingKind::kMapRow);
    EXPECT_THAT(report.findings[0].what, HasSubstr(c.problem));
  }
}

TEST(VerifyMap, SuspectAndHaltedGroupsAreNoted) {
  SampleStore store;
  store.PutMeta(1, 1, 2, "", 0, 3);
  const VerifyReport report = store.Verify();
  EXPECT_THAT(Findings(report), IsEmpty());
  EXPECT_THAT(report.notes, ElementsAre(HasSubstr("suspect"), HasSubstr("halted")));
}

// --- Row c -----------------------------------------------------------------------------------

TEST(VerifyMap, CheckpointWithTheWrongChainIsFound) {
  SampleStore store;
  store.PutRow(StoreWriter::Key(kNode, 'c'),
               store.CheckpointValue(1, 6, store.b5.crc + 1,
                                     {std::pair{1u, store.b6.page}, std::pair{2u, store.b7.page}}));
  const VerifyReport report = store.Verify();
  // The row is wrong, and whoever believes it sees a gap.
  EXPECT_THAT(Findings(report), ElementsAre("map row 0/0", At("gap", 1, store.b6.page)));
}

TEST(VerifyMap, CheckpointWhoseSegmentIsGoneIsFound) {
  SampleStore store;
  store.PutRow(StoreWriter::Key(kNode, 'c'),
               store.CheckpointValue(1, 6, store.b5.crc,
                                     {std::pair{1u, store.b6.page}, std::pair{40u, 4u}}));
  const VerifyReport report = store.Verify();
  ASSERT_FALSE(report.clean());
  EXPECT_THAT(Findings(report), testing::Contains("map row 40/4"));
}

TEST(VerifyMap, CheckpointWithACursorInsideABatchIsFound) {
  SampleStore store;
  store.PutRow(
      StoreWriter::Key(kNode, 'c'),
      store.CheckpointValue(1, 6, store.b5.crc,
                            {std::pair{1u, store.b6.page + 1}, std::pair{2u, store.b7.page}}));
  EXPECT_FALSE(store.Verify().clean());
}

TEST(VerifyMap, MalformedCheckpointIsFoundAndTheRestStillChecked) {
  SampleStore store;
  store.PutRow(StoreWriter::Key(kNode, 'c'), "\1\1");
  store.FlipPage(1, store.b2.payload_page);
  const VerifyReport report = store.Verify();
  EXPECT_THAT(Findings(report),
              ElementsAre("map row 0/0", At("payload", 1, store.b2.payload_page)));
  EXPECT_FALSE(report.replayed);
}

TEST(VerifyMap, StoreWithoutCheckpointIsReplayedFromTheFirstBatch) {
  SampleStore store;
  store.RemoveRow(StoreWriter::Key(kNode, 'c'));
  store.RemoveRow(StoreWriter::Key(kNode, 'i'));
  const VerifyReport report = store.Verify();
  EXPECT_EQ(report.replay.accepted, 8u);
  EXPECT_THAT(report.notes, ElementsAre(HasSubstr("no checkpoint row")));
}

// --- LevelDB's files -------------------------------------------------------------------------

TEST(VerifyMap, MissingMapIsDamageAndTheSegmentsAreStillChecked) {
  SampleStore store;
  store.WriteMapNow();
  std::filesystem::remove_all(store.directory() + "/map");
  const VerifyReport report = store.Verify();
  EXPECT_THAT(Findings(report), ElementsAre("map 0/0"));
  EXPECT_EQ(report.batches, 8u);
}

TEST(VerifyMap, RottenTableIsFound) {
  SampleStore store;
  store.WriteMapNow(/*compact=*/true);
  store.Flip(store.MapFile(".ldb"), 30);
  const VerifyReport report = store.Verify();
  ASSERT_FALSE(report.clean());
  EXPECT_EQ(report.findings.back().kind, FindingKind::kMap);
}

TEST(VerifyMap, TornLogTailIsCleanButALogWithRecordsBehindTheDamageIsRotten) {
  SampleStore store;
  store.PutRow(StoreWriter::Key(kNode, 's'), std::string(100, 'x'));  // sorts last: written last
  store.WriteMapNow();
  const std::string log = store.MapFile(".log");
  const uint64_t bytes = std::filesystem::file_size(log);
  store.Flip(log, bytes - 10);
  VerifyReport report = store.Verify();
  EXPECT_THAT(Findings(report), IsEmpty());
  ASSERT_FALSE(report.notes.empty());
  EXPECT_THAT(report.notes[0], HasSubstr("torn tail"));
  store.Flip(log, bytes - 10);
  store.Flip(log, 20);
  report = store.Verify();
  ASSERT_FALSE(report.clean());
  EXPECT_EQ(report.findings[0].kind, FindingKind::kMap);
  EXPECT_THAT(report.findings[0].what, HasSubstr("rotten"));
}

TEST(VerifyMap, AnyDamageToTheMapsFilesIsSurvived) {
  SampleStore store;
  for (const bool compact : {false, true}) {
    for (uint64_t seed = 0; seed < 20; ++seed) {
      store.WriteMapNow(compact);
      for (const char* ending : {compact ? ".ldb" : ".log", "CURRENT", "01"}) {
        if (seed % 3 == 0 && ending[0] == 'C') continue;
        const std::string path =
            ending[0] == '0' ? store.directory() + "/map/CURRENT" : store.MapFile(ending);
        store.Flip(path, Crc32c(&seed, 8) % std::filesystem::file_size(path), 1u << (seed % 8));
      }
      store.Verify();
    }
  }
}

}  // namespace
}  // namespace hydra::tool_test
