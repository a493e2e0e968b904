// SPDX-License-Identifier: Apache-2.0
#include "blockstore/record.h"

#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include "base/check.h"
#include "base/coding.h"
#include "blockstore/batch_format.h"

namespace hydra {
namespace {

// --- Generators ------------------------------------------------------------------------------

rc::Gen<uint64_t> AnyU64() {
  // All magnitudes: rapidcheck's own integers stay small.
  return rc::gen::map(rc::gen::pair(rc::gen::arbitrary<uint64_t>(), rc::gen::inRange(0, 64)),
                      [](const std::pair<uint64_t, int>& p) { return p.first >> p.second; });
}

rc::Gen<Ballot> AnyBallot() {
  return rc::gen::map(rc::gen::pair(AnyU64(), rc::gen::arbitrary<uint32_t>()),
                      [](const std::pair<uint64_t, uint32_t>& p) {
                        return Ballot{p.first, p.second};
                      });
}

Operation AnyOperation() {
  Operation op;
  op.kind = static_cast<OpKind>(*rc::gen::inRange(0, 6));
  if (*rc::gen::arbitrary<bool>()) op.context = *rc::gen::nonEmpty<std::string>();
  switch (op.kind) {
    case OpKind::kNoop:
    case OpKind::kOpaque: break;
    case OpKind::kWrite:
      op.block_pages = static_cast<uint32_t>(*rc::gen::inRange(1, 17));
      op.count = static_cast<uint64_t>(*rc::gen::inRange(1, 9));
      op.lba = *AnyU64();
      op.crcs.resize(op.count);
      for (uint32_t& crc : op.crcs) crc = *rc::gen::arbitrary<uint32_t>();
      break;
    case OpKind::kZero:
    case OpKind::kUnmap:
      op.lba = *AnyU64();
      op.count = *AnyU64();
      break;
    case OpKind::kZeroExtents: {
      const int n = *rc::gen::inRange(1, 20);
      Extent at = *AnyU64() / 2;
      for (int i = 0; i < n; ++i) {
        op.extents.push_back(at);
        at += 1 + *AnyU64() / 64;
      }
      break;
    }
  }
  return op;
}

AcceptRecord AnyAccept() {
  AcceptRecord record;
  record.group = *rc::gen::arbitrary<uint32_t>();
  record.instance = *AnyU64() & kMaxInstance;
  record.ballot = *AnyBallot();
  record.stable = *AnyU64();
  const int operations = *rc::gen::inRange(0, 5);
  for (int i = 0; i < operations; ++i) record.entry.operations.push_back(AnyOperation());
  return record;
}

// The view of a record that lies alone in its batch.
RecordView ViewOf(const std::string& bytes) {
  Result<std::vector<RecordView>> views =
      SplitRecords(AsBytes(bytes), 1, DecodeFixed16(AsBytes(bytes).data() + 2), kBatchFixedBytes);
  HYDRA_CHECK(views.ok());
  return views->front();
}

// --- Round trips -----------------------------------------------------------------------------

RC_GTEST_PROP(Record, AcceptComesBackAsItWas, ()) {
  const AcceptRecord record = AnyAccept();
  const std::string bytes = Encode(record);
  const Result<AcceptRecord> back = DecodeAccept(ViewOf(bytes));
  RC_ASSERT(back.ok());
  RC_ASSERT(back->understood);
  RC_ASSERT(back->group == record.group);
  RC_ASSERT(back->instance == record.instance);
  RC_ASSERT(back->ballot == record.ballot);
  RC_ASSERT(back->stable == record.stable);
  RC_ASSERT(back->entry == record.entry);
  RC_ASSERT(Encode(*back) == bytes);
}

RC_GTEST_PROP(Record, HardStateComesBackAsItWas, ()) {
  const HardStateRecord record{*rc::gen::arbitrary<uint32_t>(), *AnyBallot(),
                               *rc::gen::arbitrary<std::string>()};
  const Result<HardStateRecord> back = DecodeHardState(ViewOf(Encode(record)));
  RC_ASSERT(back.ok());
  RC_ASSERT(back->group == record.group);
  RC_ASSERT(back->promised == record.promised);
  RC_ASSERT(back->opaque == record.opaque);
}

RC_GTEST_PROP(Record, SmallRecordsComeBackAsTheyWere, ()) {
  const TruncateRecord truncate{*rc::gen::arbitrary<uint32_t>(), *AnyU64()};
  const Result<TruncateRecord> cut = DecodeTruncate(ViewOf(Encode(truncate)));
  RC_ASSERT(cut.ok());
  RC_ASSERT(cut->group == truncate.group);
  RC_ASSERT(cut->instance == truncate.instance);

  const CheckpointRecord checkpoint{*AnyU64(), *AnyU64()};
  const Result<CheckpointRecord> point = DecodeCheckpoint(ViewOf(Encode(checkpoint)));
  RC_ASSERT(point.ok());
  RC_ASSERT(point->id == checkpoint.id);
  RC_ASSERT(point->replay_from == checkpoint.replay_from);

  const GroupRecord group{*rc::gen::arbitrary<uint32_t>(),
                          *rc::gen::arbitrary<bool>() ? GroupAction::kCreate : GroupAction::kDrop,
                          static_cast<uint32_t>(*rc::gen::inRange(1, 17))};
  const Result<GroupRecord> same = DecodeGroup(ViewOf(Encode(group)));
  RC_ASSERT(same.ok());
  RC_ASSERT(same->group == group.group);
  RC_ASSERT(same->action == group.action);
  RC_ASSERT(same->block_pages == group.block_pages);
}

RC_GTEST_PROP(Record, RelocateComesBackAsItWas, ()) {
  RelocateRecord record;
  record.group = *rc::gen::arbitrary<uint32_t>();
  record.lba = *AnyU64();
  record.version = *AnyU64();
  record.old_reference = {*rc::gen::arbitrary<uint32_t>(), *rc::gen::arbitrary<uint32_t>(),
                          *rc::gen::arbitrary<uint32_t>()};
  record.block_pages = static_cast<uint32_t>(*rc::gen::inRange(1, 17));
  const Result<RelocateRecord> back = DecodeRelocate(ViewOf(Encode(record)));
  RC_ASSERT(back.ok());
  RC_ASSERT(back->group == record.group);
  RC_ASSERT(back->lba == record.lba);
  RC_ASSERT(back->version == record.version);
  RC_ASSERT(back->old_reference == record.old_reference);
  RC_ASSERT(back->block_pages == record.block_pages);
}

RC_GTEST_PROP(Record, StableComesBackAsItWas, ()) {
  StableRecord record;
  const int groups = *rc::gen::inRange(0, 50);
  for (int i = 0; i < groups; ++i) {
    record.groups.emplace_back(*rc::gen::arbitrary<uint32_t>(), *AnyU64());
  }
  const Result<StableRecord> back = DecodeStable(ViewOf(Encode(record)));
  RC_ASSERT(back.ok());
  RC_ASSERT(back->groups == record.groups);
}

InstallRecord AnyInstall() {
  InstallRecord record;
  record.group = *rc::gen::arbitrary<uint32_t>();
  record.action = static_cast<InstallAction>(*rc::gen::inRange(1, 4));
  if (record.action == InstallAction::kBegin) {
    record.mode = static_cast<InstallMode>(*rc::gen::inRange(1, 3));
    record.floor = *AnyU64() & kMaxInstance;
  }
  if (record.action != InstallAction::kAbort) record.instance = *AnyU64() & kMaxInstance;
  if (record.action == InstallAction::kFinish) {
    record.state_bytes = static_cast<uint32_t>(*rc::gen::inRange<size_t>(0, kMaxInstalledState));
    record.state_crc = *rc::gen::arbitrary<uint32_t>();
  }
  return record;
}

ChunkRecord AnyChunk() {
  ChunkRecord record;
  record.group = *rc::gen::arbitrary<uint32_t>();
  record.as_of = *AnyU64() & kMaxInstance;
  record.newest = *AnyU64() & kMaxInstance;
  record.covered = *AnyU64();
  record.cursor = *rc::gen::arbitrary<std::string>();
  record.last = *rc::gen::arbitrary<bool>();
  record.block_pages = static_cast<uint32_t>(*rc::gen::inRange(1, 17));
  const int rows = *rc::gen::inRange(0, 20);
  for (int i = 0; i < rows; ++i) {
    ChunkRow row;
    row.kind = static_cast<ChunkRow::Kind>(*rc::gen::inRange(1, 7));
    row.number = *AnyU64() / 512;
    row.version = *AnyU64();
    if (row.kind == ChunkRow::Kind::kErase) row.count = *AnyU64() / 2;
    const bool has_crc = row.kind == ChunkRow::Kind::kData || row.kind == ChunkRow::Kind::kBare;
    if (has_crc) row.crc = *rc::gen::arbitrary<uint32_t>();
    record.rows.push_back(row);
  }
  return record;
}

RC_GTEST_PROP(Record, InstallComesBackAsItWas, ()) {
  const InstallRecord record = AnyInstall();
  const std::string bytes = Encode(record);
  const Result<InstallRecord> back = DecodeInstall(ViewOf(bytes));
  RC_ASSERT(back.ok());
  RC_ASSERT(back->group == record.group);
  RC_ASSERT(back->action == record.action);
  RC_ASSERT(back->mode == record.mode);
  RC_ASSERT(back->instance == record.instance);
  RC_ASSERT(back->floor == record.floor);
  RC_ASSERT(back->state_bytes == record.state_bytes);
  RC_ASSERT(back->state_crc == record.state_crc);
  RC_ASSERT(Encode(*back) == bytes);
}

RC_GTEST_PROP(Record, ChunkComesBackAsItWas, ()) {
  const ChunkRecord record = AnyChunk();
  const std::string bytes = Encode(record);
  const Result<ChunkRecord> back = DecodeChunk(ViewOf(bytes));
  RC_ASSERT(back.ok());
  RC_ASSERT(back->group == record.group);
  RC_ASSERT(back->as_of == record.as_of);
  RC_ASSERT(back->newest == record.newest);
  RC_ASSERT(back->covered == record.covered);
  RC_ASSERT(back->cursor == record.cursor);
  RC_ASSERT(back->last == record.last);
  RC_ASSERT(back->block_pages == record.block_pages);
  RC_ASSERT(back->rows == record.rows);
  RC_ASSERT(Encode(*back) == bytes);
}

RC_GTEST_PROP(Record, ACutChunkIsRefused, ()) {
  const std::string bytes = Encode(AnyChunk());
  const RecordView whole = ViewOf(bytes);
  RecordView cut = whole;
  cut.body = whole.body.first(*rc::gen::inRange<size_t>(0, whole.body.size()));
  RC_ASSERT(DecodeChunk(cut).status().code() == Code::kCorruption);
}

ChunkRecord ChunkOf(std::vector<ChunkRow> rows) {
  ChunkRecord record;
  record.rows = std::move(rows);
  return record;
}

TEST(Record, OnlyAChunkWithBareRowsIsOfTheNewerVersion) {
  using Kind = ChunkRow::Kind;
  const ChunkRow data{Kind::kData, 1, 0, 5, 7};
  const ChunkRow bare{Kind::kBare, 2, 0, 6, 8};
  EXPECT_EQ(ViewOf(Encode(ChunkOf({}))).version, 1);
  EXPECT_EQ(ViewOf(Encode(ChunkOf({data, {Kind::kErase, 3, 4, 5, 0}}))).version, 1);
  const std::string bytes = Encode(ChunkOf({data, bare}));
  EXPECT_EQ(ViewOf(bytes).version, 2);
  EXPECT_EQ(ViewOf(bytes).payload_pages, 1) << "a bare row has none";
  EXPECT_EQ(DecodeChunk(ViewOf(bytes))->rows[1], bare);
}

TEST(Record, ABareRowInAnOldChunkIsMalformedAndAChunkOfTheFutureIsLeftAlone) {
  std::string bytes = Encode(ChunkOf({{ChunkRow::Kind::kBare, 2, 0, 6, 8}}));
  bytes[1] = 1;
  EXPECT_EQ(DecodeChunk(ViewOf(bytes)).status().code(), Code::kCorruption);
  bytes[1] = 3;
  EXPECT_EQ(DecodeChunk(ViewOf(bytes)).status().code(), Code::kUnsupported);
  bytes[1] = 0;
  EXPECT_EQ(DecodeChunk(ViewOf(bytes)).status().code(), Code::kCorruption);
  bytes[1] = 2;
  bytes[kRecordHeadBytes + 8] = 7;  // the row's kind
  EXPECT_EQ(DecodeChunk(ViewOf(bytes)).status().code(), Code::kCorruption);
}

TEST(Record, ARelocationMayNameTheOwedSegment) {
  const RelocateRecord record{1, 2, 3, {kOwedSegment, 0, 4}, 1};
  EXPECT_EQ(DecodeRelocate(ViewOf(Encode(record)))->old_reference, record.old_reference);
}

TEST(Record, AChunkThatReachesPastTheEndIsRefused) {
  for (const ChunkRow::Kind kind : {ChunkRow::Kind::kErase, ChunkRow::Kind::kExtent}) {
    ChunkRecord record;
    record.rows = {{kind, std::numeric_limits<uint64_t>::max() - 1, 2, 1, 0}};
    EXPECT_FALSE(DecodeChunk(ViewOf(Encode(record))).ok());
  }
}

// --- Bytes that nobody vouches for -----------------------------------------------------------

// Every decoder, on whatever type the bytes claim; only crashes and over-reads count.
void DecodeAnything(const RecordView& view) {
  (void)DecodeAccept(view);
  (void)DecodeHardState(view);
  (void)DecodeTruncate(view);
  (void)DecodeCheckpoint(view);
  (void)DecodeRelocate(view);
  (void)DecodeGroup(view);
  (void)DecodeStable(view);
  (void)DecodeInstall(view);
  (void)DecodeChunk(view);
}

RC_GTEST_PROP(Record, ACutRecordIsRefused, ()) {
  const std::string bytes = Encode(AnyAccept());
  const RecordView whole = ViewOf(bytes);
  const size_t keep = *rc::gen::inRange<size_t>(0, whole.body.size());
  RecordView cut = whole;
  cut.body = whole.body.first(keep);
  const Result<AcceptRecord> back = DecodeAccept(cut);
  RC_ASSERT(!back.ok());
  RC_ASSERT(back.status().code() == Code::kCorruption);
}

RC_GTEST_PROP(Record, RandomChangesAreRefusedOrDecodedToWhatEncodesThem, ()) {
  std::string bytes = Encode(AnyAccept());
  const size_t at = *rc::gen::inRange<size_t>(kRecordHeadBytes, bytes.size());
  bytes[at] = static_cast<char>(*rc::gen::arbitrary<uint8_t>());
  RecordView view = ViewOf(bytes);
  DecodeAnything(view);
  std::string chunk = Encode(AnyChunk());
  chunk[*rc::gen::inRange<size_t>(kRecordHeadBytes, chunk.size())] =
      static_cast<char>(*rc::gen::arbitrary<uint8_t>());
  const Result<ChunkRecord> rows = DecodeChunk(ViewOf(chunk));
  if (rows.ok()) RC_ASSERT(Encode(*rows).size() <= chunk.size());
  const Result<AcceptRecord> back = DecodeAccept(view);
  // Unknown flag bits of an operation are the only thing that decoding forgets.
  if (back.ok() && back->understood) RC_ASSERT(Encode(*back).size() <= bytes.size());
}

TEST(Record, EveryDecoderRefusesEveryOtherType) {
  const std::vector<std::string> all = {
      Encode(AcceptRecord()),         Encode(HardStateRecord()), Encode(TruncateRecord()),
      Encode(CheckpointRecord()),     Encode(RelocateRecord()),  Encode(GroupRecord()),
      Encode(StableRecord{{{1, 2}}}), Encode(InstallRecord()),   Encode(ChunkRecord())};
  for (size_t i = 0; i < all.size(); ++i) {
    const RecordView view = ViewOf(all[i]);
    const std::vector<bool> accepted = {
        DecodeAccept(view).ok(),     DecodeHardState(view).ok(), DecodeTruncate(view).ok(),
        DecodeCheckpoint(view).ok(), DecodeRelocate(view).ok(),  DecodeGroup(view).ok(),
        DecodeStable(view).ok(),     DecodeInstall(view).ok(),   DecodeChunk(view).ok()};
    for (size_t k = 0; k < accepted.size(); ++k) EXPECT_EQ(accepted[k], k == i) << i << " " << k;
  }
}

TEST(Record, AnotherRecordVersionIsRefused) {
  std::string bytes = Encode(TruncateRecord{1, 2});
  bytes[1] = 2;
  EXPECT_FALSE(DecodeTruncate(ViewOf(bytes)).ok());
}

TEST(Record, AnUnknownOperationIsKeptButNotUnderstood) {
  AcceptRecord record;
  record.group = 3;
  record.instance = 9;
  record.entry.operations = {Operation(), Operation()};
  std::string bytes = Encode(record);
  bytes[bytes.size() - 3] = 77;  // the kind of the second operation
  const Result<AcceptRecord> back = DecodeAccept(ViewOf(bytes));
  ASSERT_TRUE(back.ok());
  EXPECT_FALSE(back->understood);
  EXPECT_EQ(back->instance, 9u);
  EXPECT_EQ(back->entry.operations.size(), 1u);
}

// --- Splitting a batch -----------------------------------------------------------------------

TEST(Record, SplitGivesBackEachRecordAndItsPlace) {
  const std::string first = Encode(TruncateRecord{1, 2});
  const std::string second = Encode(RelocateRecord());
  const std::string both = first + second;
  const Result<std::vector<RecordView>> views = SplitRecords(AsBytes(both), 2, 1, 64);
  ASSERT_TRUE(views.ok());
  ASSERT_EQ(views->size(), 2u);
  EXPECT_EQ((*views)[0].offset, 64u);
  EXPECT_EQ((*views)[1].offset, 64u + first.size());
  EXPECT_EQ((*views)[1].payload_pages, 1u);
}

TEST(Record, SplitRefusesWhatDoesNotAddUp) {
  const std::string record = Encode(RelocateRecord());
  const auto code = [](const std::string& bytes, uint32_t count, uint32_t pages) {
    const Result<std::vector<RecordView>> views = SplitRecords(AsBytes(bytes), count, pages, 64);
    return views.ok() ? Code::kOk : views.status().code();
  };
  EXPECT_EQ(code(record, 1, 1), Code::kOk);
  EXPECT_EQ(code("", 0, 0), Code::kOk);
  EXPECT_EQ(code(record, 1, 0), Code::kCorruption) << "payload pages";
  EXPECT_EQ(code(record, 2, 1), Code::kCorruption) << "a record is missing";
  EXPECT_EQ(code(record, 0, 0), Code::kCorruption) << "a record too many";
  EXPECT_EQ(code(record + "x", 1, 1), Code::kCorruption) << "trailing bytes";
  for (size_t keep = 0; keep < record.size(); ++keep) {
    EXPECT_EQ(code(record.substr(0, keep), 1, 1), Code::kCorruption) << keep;
  }
  for (const uint32_t length : {0u, 7u, 8u, 0xffffffffu}) {
    std::string bad = record;
    EncodeFixed32(reinterpret_cast<uint8_t*>(bad.data()) + 4, length);
    EXPECT_EQ(code(bad, 1, 1), Code::kCorruption) << "length " << length;
  }
}

// --- What may be appended --------------------------------------------------------------------

Operation Range(OpKind kind, Lba lba, uint64_t count) {
  Operation op;
  op.kind = kind;
  op.lba = lba;
  op.count = count;
  if (kind == OpKind::kWrite) op.crcs.resize(count);
  return op;
}

Code Verdict(std::vector<Operation> operations, uint32_t block_pages = 1) {
  const Status status = ValidateEntry(Entry{std::move(operations)}, block_pages);
  EXPECT_TRUE(status.ok() || !status.message().empty());
  return status.code();
}

TEST(ValidateEntry, TakesWhatIsWithinTheLimits) {
  EXPECT_EQ(Verdict({}), Code::kOk);
  EXPECT_EQ(Verdict({Range(OpKind::kWrite, 0, 256)}), Code::kOk);
  EXPECT_EQ(Verdict({Range(OpKind::kUnmap, std::numeric_limits<Lba>::max() - 1, 1)}), Code::kOk);
}

TEST(ValidateEntry, RefusesRangesOfNothingAndPastTheEnd) {
  for (const OpKind kind : {OpKind::kWrite, OpKind::kZero, OpKind::kUnmap}) {
    EXPECT_EQ(Verdict({Range(kind, 0, 0)}), Code::kInvalidArgument);
    EXPECT_EQ(Verdict({Range(kind, 0, 257)}), Code::kInvalidArgument);
    EXPECT_EQ(Verdict({Range(kind, std::numeric_limits<Lba>::max(), 2)}), Code::kInvalidArgument);
  }
}

TEST(ValidateEntry, RefusesWritesThatDoNotFitTheGroup) {
  EXPECT_EQ(Verdict({Range(OpKind::kWrite, 0, 1)}, 2), Code::kInvalidArgument) << "block size";
  Operation op = Range(OpKind::kWrite, 0, 2);
  op.crcs.pop_back();
  EXPECT_EQ(Verdict({op}), Code::kInvalidArgument) << "a checksum is missing";
  EXPECT_EQ(Verdict({Range(OpKind::kWrite, 0, 200), Range(OpKind::kWrite, 300, 57)}),
            Code::kInvalidArgument)
      << "more than 1 MiB in all";
}

TEST(ValidateEntry, RefusesExtentsOutOfOrderOrPastTheEnd) {
  Operation op;
  op.kind = OpKind::kZeroExtents;
  EXPECT_EQ(Verdict({op}), Code::kInvalidArgument) << "none";
  op.extents = {5, 5};
  EXPECT_EQ(Verdict({op}), Code::kInvalidArgument);
  op.extents = {6, 5};
  EXPECT_EQ(Verdict({op}), Code::kInvalidArgument);
  op.extents = {std::numeric_limits<Extent>::max() / 2};
  EXPECT_EQ(Verdict({op}), Code::kInvalidArgument);
  op.extents.clear();
  for (Extent e = 0; e <= kMaxExtentsPerEntry; ++e) op.extents.push_back(e);
  EXPECT_EQ(Verdict({op}), Code::kInvalidArgument) << "too many";
  op.extents.pop_back();
  EXPECT_EQ(Verdict({op}), Code::kOk);
}

TEST(ValidateEntry, RefusesTooManyOperationsAndUnknownOnes) {
  EXPECT_EQ(Verdict(std::vector<Operation>(kMaxOpsPerEntry)), Code::kOk);
  EXPECT_EQ(Verdict(std::vector<Operation>(kMaxOpsPerEntry + 1)), Code::kInvalidArgument);
  Operation op;
  op.kind = static_cast<OpKind>(42);
  EXPECT_EQ(Verdict({op}), Code::kUnsupported);
  op = Operation();
  op.version = 2;
  EXPECT_EQ(Verdict({op}), Code::kUnsupported);
}

}  // namespace
}  // namespace hydra
