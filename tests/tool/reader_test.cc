// SPDX-License-Identifier: Apache-2.0
//
// Claims about the pure parts: identity, names, the decision table, parsing of garbage.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/coding.h"
#include "base/crc32c.h"
#include "base/rng.h"
#include "daemon/store_reader.h"
#include "daemon/store_reader_map.h"
#include "daemon/store_reader_replay.h"
#include "tests/tool/sample_store.h"

namespace hydra::tool_test {
namespace {

using namespace store_reader;  // NOLINT: nearly every name here is one of its

std::string IdentityText(const std::string& text) {
  return text + fmt::format("crc {:08x}\n", Crc32c(AsBytes(text)));
}

const std::string kLines =
    "hydra-store 1\nstore 1b4e28ba-2fa1-41d2-883f-0016d3cca427\n"
    "cluster 6fa459ea-ee8a-4ca4-894e-db77e160355e\nnode 3\nsegment-bytes 268435456\n";

TEST(ReaderIdentity, TheDocumentsExampleIsRead) {
  auto identity = ParseIdentity(IdentityText(kLines));
  ASSERT_TRUE(identity.ok()) << identity.status().ToString();
  EXPECT_EQ(identity->store.ToString(), "1b4e28ba-2fa1-41d2-883f-0016d3cca427");
  EXPECT_EQ(identity->node, 3u);
  EXPECT_EQ(identity->segment_pages(), 65536u);
}

TEST(ReaderIdentity, EveryFlippedBitAndEveryShorterFileIsRefused) {
  const std::string text = IdentityText(kLines);
  for (size_t i = 0; i < text.size() * 8; ++i) {
    std::string bad = text;
    bad[i / 8] = static_cast<char>(bad[i / 8] ^ (1 << (i % 8)));
    // Hexadecimal digits of the CRC mean the same in upper case.
    if (i / 8 >= text.size() - 9 && i % 8 == 5) continue;
    EXPECT_FALSE(ParseIdentity(bad).ok()) << bad;
  }
  for (size_t n = 0; n < text.size(); ++n) EXPECT_FALSE(ParseIdentity(text.substr(0, n)).ok());
}

TEST(ReaderIdentity, GreaterFormatVersionIsRefusedAsUnsupported) {
  std::string text = kLines;
  text[12] = '2';
  EXPECT_EQ(ParseIdentity(IdentityText(text)).status().code(), Code::kUnsupported);
}

TEST(ReaderSegment, OnlyTenDigitsAndSegAreASegmentsName) {
  EXPECT_EQ(ParseSegmentName("0000000007.seg"), 7u);
  EXPECT_EQ(ParseSegmentName(SegmentName(4294967295)), 4294967295u);
  for (const char* name : {"4294967296.seg", "0000000000.seg", "7.seg", "00000000007.seg",
                           "spare-0000000003", "000000000x.seg", "0000000007.tmp", ""}) {
    EXPECT_EQ(ParseSegmentName(name), 0u) << name;
  }
}

// --- The table -------------------------------------------------------------------------------

// The prose of section 7, as conditions instead of rows.
Verdict Expected(const Evidence& e) {
  if (!e.header_valid || e.older_generation) {
    return e.successor || !e.readable ? Verdict::kHeaderRotten : Verdict::kEnd;
  }
  const bool torn = !e.successor && !e.payload_valid && e.readable;
  if (torn) return e.chain_valid ? Verdict::kTorn : Verdict::kTornAfterGap;
  // With a successor, a broken chain is said of the batch and its payload is not looked at.
  const bool rotten = !e.payload_valid && (e.chain_valid || !e.successor);
  if (e.chain_valid) return rotten ? Verdict::kAcceptPayloadRotten : Verdict::kAccept;
  return rotten ? Verdict::kAcceptAfterGapPayloadRotten : Verdict::kAcceptAfterGap;
}

TEST(ReaderTable, EveryCombinationHasTheVerdictThatTheProseSays) {
  std::set<int> rows;
  for (unsigned bits = 0; bits < 64; ++bits) {
    const auto bit = [&](unsigned i) { return (bits >> i & 1) != 0; };
    const Evidence evidence{bit(0), bit(1), bit(2), bit(3), bit(4), bit(5)};
    const Judgement judgement = Judge(evidence);
    rows.insert(judgement.row);
    EXPECT_EQ(judgement.verdict, Expected(evidence)) << "row " << judgement.row;
  }
  EXPECT_EQ(rows.size(), 14u);  // no row is dead
}

// --- Garbage ---------------------------------------------------------------------------------

TEST(ReaderGarbage, RandomBytesAreRefusedOrReadButNeverCrash) {
  Rng rng(3);
  for (int round = 0; round < 20'000; ++round) {
    std::string bytes;
    for (uint64_t i = rng.Below(60); i > 0; --i) {
      bytes.push_back(static_cast<char>(rng.Percent(40) ? rng.Below(4) : rng.Next()));
    }
    (void)ParseMapKey(bytes).ok();
    (void)ParseBlockRow(bytes).ok();
    (void)ParseVersionRow(bytes).ok();
    (void)ParseMetaRow("\1\1" + bytes).ok();
    (void)ParseMetaRow("\2\1" + bytes).ok();
    (void)ParseCheckpointRow("\1" + bytes).ok();
    (void)ParseIntentRow("\1" + bytes).ok();
    (void)ParseIdentity(bytes).ok();
    (void)CheckLevelDbLog(AsBytes(bytes));
  }
}

TEST(ReaderGarbage, MutatedRecordsUnderAValidCrcNeverCrash) {
  const BatchSpec spec =
      InLane(0)
          .Accept(1, 2, {WriteOp(5, {Block(15)}, "context"), ZeroOp(2, 1), ZeroExtentsOp({7, 9})},
                  Block(15))
          .HardState(1, 1, 3, "opaque")
          .Relocate(1, 0, Version(1), 1, 2, Block(10))
          .InstallBegin(1, 1, 2, 9)
          .Chunk(1, 9, 9, 500, "cursor",
                 {DataRow(3, Version(8), Block(3)), ExtentRow(8, Version(7)),
                  EraseRow(4, 90, Version(9))},
                 Block(3))
          .InstallFinish(1, 9, "state")
          .Stable(1, 2);
  Rng rng(5);
  int accepted = 0;
  for (int round = 0; round < 50'000; ++round) {
    std::string records = spec.records;
    for (uint64_t i = rng.Below(4); i > 0; --i) {
      records[rng.Below(records.size())] = static_cast<char>(rng.Next());
    }
    std::string header = std::string(64, '\0') + records;
    store_reader::BatchHeader batch;
    batch.used_bytes = static_cast<uint32_t>(header.size());
    batch.header_pages = 1;
    batch.payload_pages = static_cast<uint16_t>(spec.payload.size() / kPage);
    batch.records = spec.record_count;
    header.resize(kPage, '\0');
    auto parsed = ParseRecords(batch, AsBytes(header));
    if (!parsed.ok()) continue;
    ++accepted;
    for (const auto& record : *parsed) {
      for (const PayloadBlock& block : PayloadBlocks(record)) {
        EXPECT_GE(block.page, batch.payload_page());
        EXPECT_LE(block.page + block.pages, batch.end_page());
      }
    }
  }
  EXPECT_GT(accepted, 0);
}

// --- LevelDB's log ---------------------------------------------------------------------------

TEST(ReaderLevelDbLog, DamageIsTornOnlyIfNoRecordStartsBehindIt) {
  SampleStore store;
  for (uint64_t i = 0; i < 40; ++i) {
    store.PutRow(StoreWriter::Key(9, 's') + std::to_string(i), Block(i));
  }
  store.WriteMapNow();
  const std::string log = store.ReadFile(store.MapFile(".log"));
  ASSERT_GT(log.size(), 3u * 32768);
  EXPECT_FALSE(CheckLevelDbLog(AsBytes(log)).has_value());
  const auto flipped = [&](size_t at) {
    std::string bad = log;
    bad[at] = static_cast<char>(bad[at] ^ 1);
    return CheckLevelDbLog(AsBytes(bad));
  };
  for (const size_t at : {size_t{8}, size_t{40'000}, size_t{70'000}}) {
    ASSERT_TRUE(flipped(at).has_value());
    EXPECT_TRUE(flipped(at)->rot);
  }
  ASSERT_TRUE(flipped(log.size() - 3).has_value());
  EXPECT_FALSE(flipped(log.size() - 3)->rot);
  const auto cut = CheckLevelDbLog(AsBytes(log).first(log.size() - 5));
  ASSERT_TRUE(cut.has_value());
  EXPECT_FALSE(cut->rot);
}

}  // namespace
}  // namespace hydra::tool_test
