// SPDX-License-Identifier: Apache-2.0
//
// Claims about segments, batches and the stream: each kind of damage is named as what it is, and
// what power loss leaves is not called damage.
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/rng.h"
#include "base/sim_disk.h"
#include "tests/tool/sample_store.h"

namespace hydra::tool_test {
namespace {

using store_reader::FindingKind;
using store_reader::VerifyReport;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TEST(VerifyStream, HealthyStoreIsCleanAndEveryBatchIsCounted) {
  SampleStore store;
  const VerifyReport report = store.Verify();
  EXPECT_THAT(Findings(report), IsEmpty());
  EXPECT_THAT(report.notes, IsEmpty());
  EXPECT_EQ(report.batches, 8u);
  EXPECT_EQ(report.payload_blocks, 8u);
  EXPECT_EQ(report.live_blocks, 3u);
  EXPECT_EQ(report.replay.accepted, 3u);
  EXPECT_EQ(report.replay.next_batch, 9u);
  EXPECT_FALSE(report.replay.torn);
  EXPECT_FALSE(report.replay.gap);
  EXPECT_THAT(Rows(report), IsEmpty());
}

TEST(VerifyStream, TheSameStoreOnAnotherFileSystemIsCleanToo) {
  SampleStore store;
  store.WriteMapNow();
  SimDisk disk({});
  for (const std::string part : {"", "/segments", "/map"}) {
    ASSERT_TRUE(disk.CreateDirectory("/store" + part).ok());
    for (const auto& entry : std::filesystem::directory_iterator(store.directory() + part)) {
      if (!entry.is_regular_file()) continue;
      const std::string path = "/store" + part + "/" + entry.path().filename().string();
      OpenOptions options;
      options.create = true;
      auto file = disk.Open(path, options);
      ASSERT_TRUE(file.ok()) << file.status().ToString();
      const std::string bytes = store.ReadFile(entry.path().string());
      const IoSlice slice{reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()};
      ASSERT_TRUE((*file)->PWriteV(0, {&slice, 1}, Durability::kDsync).ok());
    }
  }
  auto report = store_reader::VerifyStore(&disk, "/store", {});
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_THAT(Findings(*report), IsEmpty());
  EXPECT_EQ(report->batches, 8u);
}

TEST(VerifyStream, VerifyingChangesNothing) {
  SampleStore store;
  store.FlipPage(1, store.b2.page);
  store.WriteMapNow();
  const auto before = Snapshot(store.directory());
  store.Verify();
  EXPECT_EQ(before, Snapshot(store.directory()));
}

// --- Segments --------------------------------------------------------------------------------

TEST(VerifyStream, FlippedSegmentHeaderIsNamedAndItsBatchesAreStillRead) {
  SampleStore store;
  store.FlipPage(1, 0, 45);
  const VerifyReport report = store.Verify();
  EXPECT_THAT(Findings(report), ElementsAre("segment header 1/0"));
  EXPECT_EQ(report.batches, 8u);
}

TEST(VerifyStream, FlippedPaddingOfASegmentHeaderIsFound) {
  SampleStore store;
  store.FlipPage(2, 0, 4095);
  EXPECT_THAT(Findings(store.Verify()), ElementsAre("segment header 2/0"));
}

TEST(VerifyStream, SegmentUnderAnotherNumberIsForeign) {
  SampleStore store;
  store.Checkpoint(1);  // nothing is to be replayed
  std::filesystem::copy_file(store.SegmentPath(2), store.SegmentPath(9));
  const VerifyReport report = store.Verify();
  EXPECT_THAT(Findings(report), ElementsAre("segment header 9/0"));
  EXPECT_EQ(report.batches, 8u);  // none of the copy's
}

TEST(VerifyStream, SegmentWhoseHeaderIsChainedToAnotherStreamIsNamed) {
  SampleStore store;
  store.Cut(store.b8, 0, store.b7.crc + 1);
  const uint32_t segment = store.OpenSegment(0);  // chained to a b7 that never was
  store.Cut({8, segment, 1, 1, 1, 0}, 0, store.b7.crc);
  store.Append(InLane(0).Accept(1, 5, {NoOp()}));
  store.Overwrite(store.SegmentPath(1), uint64_t{store.b8.page} * kPage, Block(88, 2));
  EXPECT_THAT(Findings(store.Verify()), ElementsAre(At("segment header", segment, 0)));
}

TEST(VerifyStream, ShortSegmentFileIsNamed) {
  SampleStore store;
  std::filesystem::resize_file(store.SegmentPath(2), 20 * kPage);
  const VerifyReport report = store.Verify();
  EXPECT_THAT(Findings(report), ElementsAre("segment header 2/0"));
  EXPECT_THAT(report.findings[0].what, HasSubstr("bytes where IDENTITY says"));
}

TEST(VerifyStream, NewlyOpenedSegmentWithoutBatchesIsClean) {
  SampleStore store;
  store.OpenSegment(0);
  const VerifyReport report = store.Verify();
  EXPECT_THAT(Findings(report), IsEmpty());
  EXPECT_EQ(report.replay.next_batch, 9u);
}

TEST(VerifyStream, StreamGoesOnInTheLanesNextSegment) {
  SampleStore store;
  store.OpenSegment(0);
  store.Append(InLane(0).Accept(1, 6, {WriteOp(1, {Block(31)})}, Block(31)));
  store.Append(InLane(1).Relocate(1, 1, Version(6), 3, 2, Block(31)));
  store.Append(InLane(0).Accept(1, 7, {NoOp()}));
  const VerifyReport report = store.Verify();
  EXPECT_THAT(Findings(report), IsEmpty());
  EXPECT_EQ(report.replay.accepted, 6u);
}

TEST(VerifyStream, SegmentOpenedForABatchThatTheOtherLaneWroteIsClean) {
  SampleStore store;
  store.OpenSegment(1);  // names 9; then a crash, and 9 goes to lane 0
  store.NextGeneration();
  store.Append(InLane(0).Accept(1, 6, {NoOp()}));
  store.Append(InLane(1).Relocate(1, 1, Version(1), 2, 4, Block(11)));
  const VerifyReport report = store.Verify();
  EXPECT_THAT(Findings(report), IsEmpty());
  EXPECT_EQ(report.replay.accepted, 5u);
  EXPECT_THAT(report.notes, ElementsAre(HasSubstr("names batch 9 as the first")));
}

TEST(VerifyStream, StrangersAmongTheSegmentsAreNoted) {
  SampleStore store;
  store.WriteMapNow();
  for (const char* name : {"spare-0000000001", "x.tmp", "core"}) {
    std::filesystem::copy_file(store.SegmentPath(1), store.directory() + "/segments/" + name);
  }
  const VerifyReport report = store.Verify();
  EXPECT_THAT(Findings(report), IsEmpty());
  EXPECT_THAT(report.notes, ElementsAre(HasSubstr("core")));
}

// --- Before the checkpoint -------------------------------------------------------------------

TEST(VerifyStream, RottenHeaderBeforeTheCheckpointIsFoundWhereItIs) {
  SampleStore store;
  store.FlipPage(1, store.b2.page);
  const VerifyReport report = store.Verify();
  EXPECT_THAT(Findings(report), ElementsAre(At("header", 1, store.b2.page)));
  EXPECT_EQ(report.replay.accepted, 3u);  // the tail does not care
  EXPECT_FALSE(report.replay.gap);
}

TEST(VerifyStream, RottenFirstBatchOfASegmentIsFound) {
  SampleStore store;
  store.FlipPage(2, 1);
  const VerifyReport report = store.Verify();
  EXPECT_THAT(Findings(report), ElementsAre(At("header", 2, 1)));
}

TEST(VerifyStream, RottenLastBatchBeforeTheCursorIsFound) {
  SampleStore store;
  store.Checkpoint(2);  // behind b8
  store.PutIntent(2);
  store.FlipPage(1, store.b8.page);
  EXPECT_THAT(Findings(store.Verify()), ElementsAre(At("header", 1, store.b8.page)));
}

TEST(VerifyStream, FreedSegmentsLeaveHolesThatAreNoDamage) {
  SampleStore store;
  store.OpenSegment(0);
  const Written moved = store.Append(InLane(0).Accept(
      1, 6, {WriteOp(0, {Block(40)}), WriteOp(1, {Block(41)}), WriteOp(5, {Block(45)})},
      Block(40) + Block(41) + Block(45)));
  store.PutData(1, 0, Version(6, 0), moved.segment, moved.payload_page, Block(40));
  store.PutData(1, 1, Version(6, 1), moved.segment, moved.payload_page + 1, Block(41));
  store.PutData(1, 5, Version(6, 2), moved.segment, moved.payload_page + 2, Block(45));
  store.PutMeta(1, 1, 6);
  store.PutIntent(2);
  store.Checkpoint(2);
  std::filesystem::rename(store.SegmentPath(1), store.directory() + "/segments/spare-0000000001");
  const VerifyReport report = store.Verify();
  EXPECT_THAT(Findings(report), IsEmpty());  // 3 and 7 are in lane 1, all around them is gone
  EXPECT_EQ(report.batches, 3u);
}

TEST(VerifyStream, LostBatchIsDamageWhereNoSegmentWasFreed) {
  SampleStore store;
  store.OpenSegment(0);
  store.Append(InLane(0).Accept(1, 6, {NoOp()}));
  store.PutIntent(2);
  store.Checkpoint(2);
  // The last batch of segment 1 vanishes without a trace.
  store.Overwrite(store.SegmentPath(1), uint64_t{store.b8.page} * kPage, Block(77, 2));
  EXPECT_THAT(Findings(store.Verify()), ElementsAre(At("gap", 1, store.b8.page)));
}

TEST(VerifyStream, BatchOfAnotherChainBeforeTheCheckpointIsAGap) {
  SampleStore store;
  // b2 again, valid in itself but not what b3 was chained to.
  const uint64_t next = store.next_number();
  const uint32_t chain = store.chain();
  SampleStore other;
  StoreWriter& writer = store;
  writer.Cut(store.b2, 0, store.b1.crc);
  writer.Append(InLane(0).Accept(1, 2, {WriteOp(5, {Block(15)})}, Block(15), 0));
  EXPECT_EQ(writer.next_number() + 6, next);
  EXPECT_NE(writer.chain(), chain);
  EXPECT_THAT(Findings(store.Verify()), ElementsAre(At("gap", 2, store.b3.page)));
}

TEST(VerifyStream, OlderGenerationInTheMiddleIsDamage) {
  SampleStore store;
  store.NextGeneration();
  store.Append(InLane(0).Accept(1, 6, {NoOp()}));
  BatchSpec older = InLane(0).Accept(1, 7, {NoOp()});
  older.generation = 1;
  const Written bad = store.Append(older);
  store.Append(InLane(0).Accept(1, 8, {NoOp()}));
  store.PutIntent(2);
  store.Checkpoint(2);
  EXPECT_THAT(Findings(store.Verify()), Contains(At("gap", 1, bad.page)));
}

// --- Payload ---------------------------------------------------------------------------------

TEST(VerifyStream, RottenPayloadIsNamedByBlockAndKnownToBeLive) {
  SampleStore store;
  store.FlipPage(1, store.b2.payload_page);
  const VerifyReport report = store.Verify();
  ASSERT_THAT(Findings(report), ElementsAre(At("payload", 1, store.b2.payload_page)));
  EXPECT_EQ(report.findings[0].group, 1u);
  EXPECT_EQ(report.findings[0].lba, 5u);
  EXPECT_EQ(report.findings[0].version, Version(2));
  EXPECT_EQ(report.findings[0].batch, 2u);
  EXPECT_TRUE(report.findings[0].live);
}

TEST(VerifyStream, RottenPayloadOfADeadBlockIsNotLive) {
  SampleStore store;
  store.FlipPage(1, store.b1.payload_page);  // lba 0, moved since
  const VerifyReport report = store.Verify();
  ASSERT_THAT(Findings(report), ElementsAre(At("payload", 1, store.b1.payload_page)));
  EXPECT_FALSE(report.findings[0].live);
}

TEST(VerifyStream, RottenPayloadOfARelocationIsFound) {
  SampleStore store;
  store.FlipPage(2, store.b3.payload_page);
  const VerifyReport report = store.Verify();
  ASSERT_THAT(Findings(report), ElementsAre(At("payload", 2, store.b3.payload_page)));
  EXPECT_EQ(report.findings[0].lba, 0u);
  EXPECT_TRUE(report.findings[0].live);
}

TEST(VerifyStream, RottenPayloadBehindTheCheckpointWithASuccessorIsRow8) {
  SampleStore store;
  store.FlipPage(1, store.b6.payload_page + 1);
  const VerifyReport report = store.Verify();
  EXPECT_THAT(Findings(report), ElementsAre(At("payload", 1, store.b6.payload_page + 1)));
  EXPECT_THAT(Rows(report), ElementsAre(8));
  EXPECT_EQ(report.replay.accepted, 3u);
}

TEST(VerifyStream, LastBatchOfALaneIsNotTornIfTheOtherLaneWentOn) {
  SampleStore store;
  store.FlipPage(2, store.b7.payload_page);  // the last of its segment, but b8 follows
  const VerifyReport report = store.Verify();
  EXPECT_THAT(Findings(report), ElementsAre(At("payload", 2, store.b7.payload_page)));
  EXPECT_THAT(Rows(report), ElementsAre(8));
  EXPECT_FALSE(report.replay.torn);
}

TEST(VerifyStream, UnreadablePayloadIsNamed) {
  SampleStore store;
  UnreadablePages fs;
  fs.Break(store.SegmentPath(1), store.b2.payload_page);
  const VerifyReport report = store.Verify(&fs);
  ASSERT_THAT(Findings(report), ElementsAre(At("payload", 1, store.b2.payload_page)));
  EXPECT_THAT(report.findings[0].what, HasSubstr("does not return"));
}

// --- The tail --------------------------------------------------------------------------------

TEST(VerifyStream, TornHeaderAtTheEndIsATailAndClean) {
  SampleStore store;
  store.FlipPage(1, store.b8.page);
  const VerifyReport report = store.Verify();
  EXPECT_THAT(Findings(report), IsEmpty());
  EXPECT_TRUE(report.replay.torn);
  EXPECT_EQ(report.replay.torn_segment, 1u);
  EXPECT_EQ(report.replay.torn_page, store.b8.page);
  EXPECT_EQ(report.replay.next_batch, 8u);
}

TEST(VerifyStream, TornPayloadAtTheEndIsRow9AndClean) {
  SampleStore store;
  store.FlipPage(1, store.b8.payload_page);
  const VerifyReport report = store.Verify();
  EXPECT_THAT(Findings(report), IsEmpty());
  EXPECT_THAT(Rows(report), ElementsAre(9));
  EXPECT_TRUE(report.replay.torn);
  EXPECT_EQ(report.replay.torn_page, store.b8.page);
  EXPECT_EQ(report.replay.next_batch, 8u);
}

TEST(VerifyStream, ASealBehindThePayloadTurnsTheTearIntoRot) {
  SampleStore store;
  store.FlipPage(1, store.b8.payload_page);
  BatchSpec seal = InLane(0);
  seal.seal = true;
  store.Append(seal);
  const VerifyReport report = store.Verify();
  EXPECT_THAT(Findings(report), ElementsAre(At("payload", 1, store.b8.payload_page)));
}

TEST(VerifyStream, ANewSegmentsHeaderSealsAsWell) {
  SampleStore store;
  store.OpenSegment(0);  // names 9
  store.FlipPage(1, store.b8.page);
  const VerifyReport report = store.Verify();
  EXPECT_TRUE(report.replay.gap);
  EXPECT_THAT(Rows(report), ElementsAre(1));
  ASSERT_EQ(report.findings.size(), 1u);
  EXPECT_EQ(report.findings[0].kind, FindingKind::kBatchHeader);
  EXPECT_EQ(report.findings[0].batch, 8u);
}

TEST(VerifyStream, UnreadablePayloadAtTheEndIsRow10AndNeverTorn) {
  SampleStore store;
  UnreadablePages fs;
  fs.Break(store.SegmentPath(1), store.b8.payload_page);
  const VerifyReport report = store.Verify(&fs);
  EXPECT_THAT(Findings(report), ElementsAre(At("payload", 1, store.b8.payload_page)));
  EXPECT_THAT(Rows(report), ElementsAre(10));
  EXPECT_FALSE(report.replay.torn);
  EXPECT_EQ(report.replay.next_batch, 9u);
}

TEST(VerifyStream, UnreadableHeaderAtTheEndIsRow3AndNeverTorn) {
  SampleStore store;
  UnreadablePages fs;
  fs.Break(store.SegmentPath(1), store.b8.page);
  const VerifyReport report = store.Verify(&fs);
  EXPECT_THAT(Findings(report), ElementsAre(At("header", 1, store.b8.page)));
  EXPECT_THAT(Rows(report), ElementsAre(3));
  EXPECT_FALSE(report.replay.torn);
  EXPECT_TRUE(report.replay.gap);
}

TEST(VerifyStream, RottenHeaderBehindTheCheckpointIsAGapUpToItsSuccessor) {
  SampleStore store;
  store.FlipPage(1, store.b6.page);
  const VerifyReport report = store.Verify();
  EXPECT_THAT(Findings(report), ElementsAre(At("header", 1, store.b6.page)));
  EXPECT_THAT(Rows(report), ElementsAre(1));
  EXPECT_TRUE(report.replay.gap);
  EXPECT_EQ(report.replay.accepted, 2u);
  EXPECT_EQ(report.replay.next_batch, 9u);
}

TEST(VerifyStream, RottenHeaderAtALanesEndIsFoundThroughTheOtherLane) {
  SampleStore store;
  store.FlipPage(2, store.b7.page);  // nothing behind it in lane 1; b8 is in lane 0
  const VerifyReport report = store.Verify();
  EXPECT_THAT(Findings(report), ElementsAre(At("header", 2, store.b7.page)));
  EXPECT_THAT(Rows(report), ElementsAre(1));
  EXPECT_EQ(report.replay.next_batch, 9u);
}

TEST(VerifyStream, ImpostorBehindTheCheckpointBreaksTheChainOfItsSuccessor) {
  SampleStore store;
  store.Cut(store.b6, 0, store.b5.crc);
  store.Append(
      InLane(0).Accept(1, 4, {WriteOp(8, {Block(18), Block(20)})}, Block(18) + Block(20), 3));
  const VerifyReport report = store.Verify();
  EXPECT_THAT(Findings(report), ElementsAre(At("gap", 2, store.b7.page)));
  EXPECT_THAT(Rows(report), ElementsAre(11));
  EXPECT_TRUE(report.replay.gap);
}

TEST(VerifyStream, LostRewriteOfACutBatchIsSeenThroughTheBatchInItsPayload) {
  SampleStore store;
  // b8 is torn and cut; its shorter replacement is dropped by the disk, the next one is not.
  store.FlipPage(1, store.b8.payload_page);
  const std::string torn =
      store.ReadFile(store.SegmentPath(1)).substr(uint64_t{store.b8.page} * kPage, kPage);
  store.Cut(store.b8, 0, store.b7.crc);
  store.NextGeneration();
  store.Append(InLane(0).Accept(1, 5, {NoOp()}));
  const Written behind = store.Append(InLane(0).Accept(1, 6, {NoOp()}));
  ASSERT_EQ(behind.page, store.b8.payload_page);
  store.Overwrite(store.SegmentPath(1), uint64_t{store.b8.page} * kPage, torn);
  const VerifyReport report = store.Verify();
  EXPECT_THAT(Findings(report),
              ElementsAre(At("header", 1, store.b8.page), At("gap", 1, behind.page)));
  EXPECT_TRUE(report.replay.gap);
  EXPECT_EQ(report.replay.next_batch, 10u);
}

TEST(VerifyStream, LeftoverOfAnEarlierRunAtTheEndIsCutByRow5) {
  SampleStore store;
  store.NextGeneration();
  store.Append(InLane(0).Accept(1, 6, {NoOp()}));
  BatchSpec older = InLane(0).Accept(1, 7, {NoOp()});
  older.generation = 1;
  store.Append(older);
  const VerifyReport report = store.Verify();
  EXPECT_THAT(Findings(report), IsEmpty());
  EXPECT_THAT(Rows(report), ElementsAre(5));
  EXPECT_EQ(report.replay.next_batch, 10u);
}

TEST(VerifyStream, LeftoverWhereALaterBatchWasLostIsRow4) {
  SampleStore store;
  store.NextGeneration();
  store.Append(InLane(0).Accept(1, 6, {NoOp()}));
  BatchSpec older = InLane(0).Accept(1, 7, {NoOp()});
  older.generation = 1;
  const Written bad = store.Append(older);
  store.Append(InLane(0).Accept(1, 8, {NoOp()}));
  const VerifyReport report = store.Verify();
  EXPECT_THAT(Findings(report), ElementsAre(At("header", 1, bad.page)));
  EXPECT_THAT(Rows(report), ElementsAre(4));
  EXPECT_TRUE(report.replay.gap);
}

TEST(VerifyStream, TornBatchWhoseNumberTheOtherLaneTookIsALeftoverAndClean) {
  SampleStore store;
  const uint32_t chain = store.chain();
  const Written torn = store.Append(InLane(1).Relocate(1, 5, Version(2), 1, 7, Block(15)));
  store.FlipPage(2, torn.payload_page);
  store.Cut(torn, 1, chain);
  store.NextGeneration();
  store.Append(InLane(0).Accept(1, 6, {NoOp()}));
  VerifyReport report = store.Verify();
  EXPECT_THAT(Findings(report), IsEmpty());
  EXPECT_FALSE(report.replay.torn);
  EXPECT_EQ(report.replay.next_batch, 10u);
  EXPECT_THAT(report.notes, ElementsAre(HasSubstr("leftover of a cut")));

  // It is no damage after the next checkpoint either.
  store.Append(InLane(0).Accept(1, 7, {NoOp()}));
  store.PutIntent(2);
  store.Checkpoint(2);
  store.WriteMapNow();
  report = store.Verify();
  EXPECT_THAT(Findings(report), IsEmpty());
  EXPECT_FALSE(report.replay.torn);
}

TEST(VerifyStream, RewrittenBatchAfterACutIsClean) {
  SampleStore store;
  store.FlipPage(1, store.b8.payload_page);
  store.Cut(store.b8, 0, store.b7.crc);
  store.NextGeneration();
  store.Append(InLane(0).Accept(1, 5, {NoOp()}));
  const VerifyReport report = store.Verify();
  EXPECT_THAT(Findings(report), IsEmpty());
  EXPECT_EQ(report.replay.next_batch, 9u);
}

// --- Contents under a valid CRC --------------------------------------------------------------

TEST(VerifyStream, RecordsThatBreakTheFormatAreTheWritersFault) {
  SampleStore store;
  BatchSpec bad = InLane(0).Accept(1, 6, {NoOp()});
  bad.record_count = 2;
  const Written place = store.Append(bad);
  EXPECT_THAT(Findings(store.Verify()), ElementsAre(At("record", 1, place.page)));
}

TEST(VerifyStream, PayloadPagesThatDoNotAddUpAreTheWritersFault) {
  SampleStore store;
  BatchSpec bad = InLane(0).Accept(1, 6, {NoOp()});
  bad.extra_payload_pages = 1;
  const Written place = store.Append(bad);
  EXPECT_THAT(Findings(store.Verify()), ElementsAre(At("record", 1, place.page)));
}

TEST(VerifyStream, UnknownRecordsAndOperationsAreSkippedWithANote) {
  SampleStore store;
  store.Append(InLane(0).Record(99, "whatever", Block(1)).Truncate(1, 1));
  store.Append(InLane(0).Record(3, "whatever", "", 2));
  const std::string unknown("\x09\x01\x00...", 6);
  store.Append(InLane(0).Accept(1, 6, {NoOp(), unknown}, Block(2)));
  const VerifyReport report = store.Verify();
  EXPECT_THAT(Findings(report), IsEmpty());
  EXPECT_THAT(report.notes,
              ElementsAre(HasSubstr("unknown type 99"), HasSubstr("version 2"),
                          HasSubstr("group 1 instance 6 has an operation of unknown kind")));
}

TEST(VerifyStream, OnlyASealMayUseTheLastPage) {
  SampleStore store;
  store.OpenSegment(0);
  store.Append(InLane(0).Accept(1, 6, {WriteOp(0, std::vector<std::string>(61, Block(1)))}, [] {
    std::string payload;
    for (int i = 0; i < 61; ++i) payload += Block(1);
    return payload;
  }()));
  BatchSpec seal = InLane(0);
  seal.seal = true;
  const Written last = store.Append(seal);
  ASSERT_EQ(last.page, kSegmentPages - 1);
  EXPECT_THAT(Findings(store.Verify()), IsEmpty());
  store.Cut(last, 0, seal.lane);
  const VerifyReport report = (store.Append(InLane(0).Truncate(1, 1)), store.Verify());
  EXPECT_EQ(report.replay.next_batch, 10u);
}

// --- Anything --------------------------------------------------------------------------------

TEST(VerifyStream, EveryBitFlipInWhatIsUsedIsFoundOrIsTheTornTail) {
  SampleStore store;
  store.WriteMapNow();
  Rng rng(7);
  for (int round = 0; round < 150; ++round) {
    const uint32_t segment = static_cast<uint32_t>(rng.Between(1, 2));
    const uint32_t pages = segment == 1 ? store.b8.end_page : store.b7.end_page;
    const uint64_t byte = rng.Below(uint64_t{pages} * kPage);
    const auto mask = static_cast<uint8_t>(1u << rng.Below(8));
    store.Flip(store.SegmentPath(segment), byte, mask);
    const VerifyReport report = store.Verify();
    const bool in_last = segment == 1 && byte >= uint64_t{store.b8.page} * kPage;
    EXPECT_EQ(report.clean(), in_last) << "segment " << segment << " byte " << byte;
    EXPECT_EQ(report.replay.torn, in_last);
    store.Flip(store.SegmentPath(segment), byte, mask);
  }
  EXPECT_TRUE(store.Verify().clean());
}

TEST(VerifyStream, GarbagePagesNeverCrashTheReader) {
  Rng rng(11);
  for (int round = 0; round < 40; ++round) {
    SampleStore store;
    for (uint64_t i = rng.Between(1, 6); i > 0; --i) {
      const auto segment = static_cast<uint32_t>(rng.Between(1, 2));
      const uint64_t from = rng.Below(20);
      // Some of it is other pages of the store: misdirected writes.
      const std::string bytes =
          rng.Percent(50)
              ? Block(rng.Next())
              : store.ReadFile(store.SegmentPath(1)).substr(rng.Below(20) * kPage, kPage);
      store.Overwrite(store.SegmentPath(segment), from * kPage, bytes);
    }
    store.Verify();
  }
}

}  // namespace
}  // namespace hydra::tool_test
