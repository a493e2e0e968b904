// SPDX-License-Identifier: Apache-2.0
#include "daemon/operation.h"

#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include "base/coding.h"
#include "blockstore/batch_format.h"
#include "blockstore/record.h"
#include "tests/support/gtest_status.h"

namespace hydra {
namespace {

constexpr int kKinds = 13;
constexpr int kOpKinds = 6;

Operation WriteOp(Lba lba, uint64_t count) {
  Operation op;
  op.kind = OpKind::kWrite;
  op.lba = lba;
  op.count = count;
  for (uint64_t i = 0; i < count; ++i) op.crcs.push_back(static_cast<uint32_t>(lba + i) * 7);
  return op;
}

Operation RangeOp(OpKind kind, Lba lba, uint64_t count) {
  Operation op;
  op.kind = kind;
  op.lba = lba;
  op.count = count;
  return op;
}

Operation ExtentsOp(std::vector<Extent> extents) {
  Operation op;
  op.kind = OpKind::kZeroExtents;
  op.extents = std::move(extents);
  return op;
}

Operation PlainOp(OpKind kind) {
  Operation op;
  op.kind = kind;
  return op;
}

bool IsDataKind(RequestKind kind) {
  return kind >= RequestKind::kWrite && kind <= RequestKind::kCompareAndWrite;
}

// A request of that kind with every field of its kind set, and the operation it rides in.
RequestContext Sample(RequestKind kind) {
  RequestContext c;
  c.kind = kind;
  if (IsDataKind(kind)) {
    c.session = 77;
    c.seq = 300;
    c.lowest_unanswered = 290;
    c.epoch = 5;
  }
  switch (kind) {
    case RequestKind::kCompareAndWrite: c.outcome = Outcome{Code::kOk, 0, ""}; break;
    case RequestKind::kOpenSession: c.timeout = 30 * kSecond; break;
    case RequestKind::kCloseSession: c.session = 77; break;
    case RequestKind::kKeepAlive:
      c.session = 77;
      c.lowest_unanswered = 8;
      break;
    case RequestKind::kCancel:
      c.session = 77;
      c.seq = 9;
      c.lowest_unanswered = 8;
      break;
    case RequestKind::kFence: c.epoch = 6; break;
    case RequestKind::kConfig: c.body = "members"; break;
    case RequestKind::kMaster: c.body = "ballot"; break;
    default: break;
  }
  return c;
}

Operation OpFor(RequestKind kind) {
  switch (kind) {
    case RequestKind::kNoop:
    case RequestKind::kMaster: return PlainOp(OpKind::kNoop);
    case RequestKind::kWrite:
    case RequestKind::kCompareAndWrite: return WriteOp(8, 2);
    case RequestKind::kZero: return RangeOp(OpKind::kZero, 8, 2);
    case RequestKind::kUnmap: return RangeOp(OpKind::kUnmap, 8, 2);
    case RequestKind::kZeroExtents: return ExtentsOp({3, 9});
    default: return PlainOp(OpKind::kOpaque);
  }
}

RequestContext Miscompare() {
  RequestContext c = Sample(RequestKind::kCompareAndWrite);
  c.outcome = Outcome{Code::kFailedPrecondition, 0, "at 17"};
  return c;
}

Status DecodeStatus(const std::string& bytes) { return DecodeContext(AsBytes(bytes)).status(); }

// --- Contexts -----------------------------------------------------------------------------------

TEST(Context, BytesAreWhatTheHeaderSays) {
  RequestContext write = Sample(RequestKind::kWrite);
  EXPECT_EQ(EncodeContext(write), std::string("\x01\x01\x00\x4d\xac\x02\xa2\x02\x05", 9));
  write.interval = 200;
  EXPECT_EQ(EncodeContext(write), std::string("\x01\x01\x01\xc8\x01\x4d\xac\x02\xa2\x02\x05", 11));
  EXPECT_EQ(EncodeContext(Miscompare()),
            std::string("\x01\x05\x00\x4d\xac\x02\xa2\x02\x05\x05\x00\x05"
                        "at 17",
                        17));
  EXPECT_EQ(EncodeContext(Sample(RequestKind::kConfig)),
            std::string("\x01\x0b\x00\x07members", 11));
}

TEST(Context, EveryKindComesBackAsItWasAndFitsItsOperation) {
  for (int k = 0; k < kKinds; ++k) {
    const auto kind = static_cast<RequestKind>(k);
    for (const Nanos interval : {Nanos{0}, Nanos{1}, SessionTable::kMaxInterval}) {
      RequestContext context = Sample(kind);
      context.interval = interval;
      ASSERT_OK(ValidateContext(context, OpFor(kind)));
      const std::string bytes = EncodeContext(context);
      const Result<RequestContext> back = DecodeContext(AsBytes(bytes));
      ASSERT_OK(back.status());
      EXPECT_EQ(*back, context) << k;
    }
    EXPECT_EQ(IsMutation(kind), IsDataKind(kind));
  }
}

TEST(Context, AnEmptyOneIsANoop) {
  const Result<RequestContext> context = DecodeContext({});
  ASSERT_OK(context.status());
  EXPECT_EQ(*context, RequestContext{});
}

TEST(Context, NoPieceAndNoExtensionOfAContextIsAContext) {
  for (int k = 0; k < kKinds; ++k) {
    RequestContext context = Sample(static_cast<RequestKind>(k));
    context.interval = 5;
    const std::string bytes = EncodeContext(context);
    for (size_t length = 1; length < bytes.size(); ++length) {
      EXPECT_CODE(DecodeStatus(bytes.substr(0, length)), Code::kCorruption);
    }
    EXPECT_CODE(DecodeStatus(bytes + '\0'), Code::kCorruption);
  }
}

TEST(Context, WhatANewerVersionWroteIsNotGuessedAt) {
  EXPECT_CODE(DecodeStatus({"\x02\x00\x00", 3}), Code::kUnsupported);
  EXPECT_CODE(DecodeStatus({"\x01\x0d\x00", 3}), Code::kUnsupported);
  EXPECT_CODE(DecodeStatus({"\x01\x00\x02", 3}), Code::kUnsupported);
}

TEST(Context, FieldsBeyondTheirLimitsAreRefused) {
  const auto varints = [](std::initializer_list<uint64_t> values) {
    std::string bytes;
    for (const uint64_t value : values) PutVarint64(&bytes, value);
    return bytes;
  };
  EXPECT_OK(DecodeStatus("\x01\x01" + varints({0, 1, 1, 0, 0})));
  EXPECT_OK(DecodeStatus("\x01\x01" + varints({0, kMaxInstance, ~0ull, ~0ull, ~0ull})));
  const std::vector<std::string> bad = {
      "\x01\x01" + varints({0, 0, 1, 0, 0}),                 // session 0
      "\x01\x01" + varints({0, kMaxInstance + 1, 1, 0, 0}),  // no instance
      "\x01\x01" + varints({0, 1, 0, 0, 0}),                 // seq 0
      "\x01\x01" + varints({1, 0, 1, 1, 0, 0}),              // interval 0, yet there
      "\x01\x01" + varints({1, SessionTable::kMaxInterval + 1, 1, 1, 0, 0}),
      "\x01\x06" + varints({0, SessionTable::kMaxTimeout + 1}),
      "\x01\x05" + varints({0, 1, 1, 0, 0}) + "\x0e" + varints({0, 0}),  // unknown code
      "\x01\x05" + varints({0, 1, 1, 0, 0}) + "\x05" + varints({1, 0}),  // a version already
      "\x01\x05" + varints({0, 1, 1, 0, 0}) + "\x05" + varints({0, 257}) + std::string(257, 'x'),
      "\x01\x0b" + varints({0, kMaxConfigBytes + 1}) + std::string(kMaxConfigBytes + 1, 'x'),
      "\x01\x0b" + varints({0, ~0ull}),
      "\x01\x0b" + varints({0, 7}) + std::string(kMaxContextBytes, 'x'),
  };
  for (const std::string& bytes : bad) EXPECT_CODE(DecodeStatus(bytes), Code::kCorruption);
}

TEST(Context, AKindRidesOnlyInItsOwnOperations) {
  for (int k = 0; k < kKinds; ++k) {
    const auto kind = static_cast<RequestKind>(k);
    for (int o = 0; o < kOpKinds; ++o) {
      const Operation op = PlainOp(static_cast<OpKind>(o));
      EXPECT_EQ(ValidateContext(Sample(kind), op).ok(), op.kind == OpFor(kind).kind)
          << k << " in " << o;
    }
  }
  EXPECT_CODE(ValidateContext(Sample(RequestKind::kWrite), PlainOp(static_cast<OpKind>(6))),
              Code::kInvalidArgument);
  RequestContext unknown;
  unknown.kind = static_cast<RequestKind>(kKinds);
  EXPECT_CODE(ValidateContext(unknown, {}), Code::kUnsupported);
}

TEST(Context, ACompareAndWriteWritesExactlyIfItComparedEqual) {
  const RequestContext equal = Sample(RequestKind::kCompareAndWrite);
  EXPECT_OK(ValidateContext(equal, WriteOp(8, 1)));
  EXPECT_CODE(ValidateContext(equal, PlainOp(OpKind::kOpaque)), Code::kInvalidArgument);
  EXPECT_OK(ValidateContext(Miscompare(), PlainOp(OpKind::kOpaque)));
  EXPECT_CODE(ValidateContext(Miscompare(), WriteOp(8, 1)), Code::kInvalidArgument);
  RequestContext unresolved = equal;
  unresolved.outcome.reset();
  EXPECT_CODE(ValidateContext(unresolved, WriteOp(8, 1)), Code::kInvalidArgument);
}

TEST(Context, AFieldThatItsKindDoesNotHaveIsRefusedNotDropped) {
  using Set = std::function<void(RequestContext*)>;
  const std::vector<Set> sets = {[](RequestContext* c) { c->session = 1; },
                                 [](RequestContext* c) { c->seq = 1; },
                                 [](RequestContext* c) { c->lowest_unanswered = 1; },
                                 [](RequestContext* c) { c->epoch = 1; },
                                 [](RequestContext* c) { c->timeout = 1; },
                                 [](RequestContext* c) { c->outcome = Outcome{}; },
                                 [](RequestContext* c) { c->body = "x"; }};
  for (int k = 0; k < kKinds; ++k) {
    const auto kind = static_cast<RequestKind>(k);
    for (size_t i = 0; i < sets.size(); ++i) {
      RequestContext context = Sample(kind);
      sets[i](&context);
      const Status valid = ValidateContext(context, OpFor(kind));
      if (valid.ok()) {
        const Result<RequestContext> back = DecodeContext(AsBytes(EncodeContext(context)));
        ASSERT_OK(back.status());
        EXPECT_EQ(*back, context) << k << " field " << i;
      } else {
        EXPECT_CODE(valid, Code::kInvalidArgument);
        EXPECT_DEATH((void)EncodeContext(context), "check failed");
      }
    }
  }
}

TEST(Context, ValuesThatAClientCanSendAreRefusedBeforeTheyAreProposed) {
  const std::vector<std::function<void(RequestContext*)>> sets = {
      [](RequestContext* c) { c->session = 0; },
      [](RequestContext* c) { c->session = kMaxInstance + 1; },
      [](RequestContext* c) { c->seq = 0; },
      [](RequestContext* c) { c->interval = -1; },
      [](RequestContext* c) { c->interval = SessionTable::kMaxInterval + 1; },
      [](RequestContext* c) { c->outcome->version = 1; },
      [](RequestContext* c) { c->outcome->detail.assign(kMaxDetailBytes + 1, 'x'); }};
  for (const auto& set : sets) {
    RequestContext context = Sample(RequestKind::kCompareAndWrite);
    set(&context);
    EXPECT_CODE(ValidateContext(context, WriteOp(1, 1)), Code::kInvalidArgument);
  }
  RequestContext open = Sample(RequestKind::kOpenSession);
  for (const Nanos timeout : {Nanos{-1}, SessionTable::kMaxTimeout + 1}) {
    open.timeout = timeout;
    EXPECT_CODE(ValidateContext(open, PlainOp(OpKind::kOpaque)), Code::kInvalidArgument);
  }
}

TEST(Context, TheOutcomeOfAMutationNamesTheVersionItWrote) {
  EXPECT_EQ(OutcomeOf(Sample(RequestKind::kUnmap), 40, 2),
            (Outcome{Code::kOk, MakeVersion(40, 2), ""}));
  EXPECT_EQ(OutcomeOf(Sample(RequestKind::kCompareAndWrite), 40, 0),
            (Outcome{Code::kOk, MakeVersion(40, 0), ""}));
  EXPECT_EQ(OutcomeOf(Miscompare(), 40, 2), (Outcome{Code::kFailedPrecondition, 0, "at 17"}));
}

// --- Entries ------------------------------------------------------------------------------------

Entry Build(const std::vector<RequestKind>& kinds, Nanos interval = 0) {
  EntryBuilder builder(1);
  for (const RequestKind kind : kinds) EXPECT_OK(builder.Add(OpFor(kind), Sample(kind)));
  return builder.Build(interval);
}

TEST(EntryBuilder, WhatItBuildsIsUnderstoodAndTakenByTheEngine) {
  std::vector<RequestKind> kinds;
  for (int k = 0; k < static_cast<int>(RequestKind::kConfig); ++k) {  // a config comes alone
    kinds.push_back(static_cast<RequestKind>(k));
  }
  const Entry entry = Build(kinds, 123);
  EXPECT_OK(ValidateEntry(entry, 1));
  const Result<DecodedEntry> decoded = DecodeEntry(entry);
  ASSERT_OK(decoded.status());
  EXPECT_EQ(decoded->interval, 123);
  ASSERT_EQ(decoded->requests.size(), kinds.size());
  for (size_t i = 0; i < kinds.size(); ++i) {
    RequestContext expected = Sample(kinds[i]);
    expected.interval = i == 0 ? 123 : 0;
    EXPECT_EQ(decoded->requests[i], expected);
  }
}

TEST(EntryBuilder, AnEntryWithoutOperationsStillMovesTime) {
  const Result<DecodedEntry> decoded = DecodeEntry(EntryBuilder(1).Build(55));
  ASSERT_OK(decoded.status());
  EXPECT_EQ(decoded->interval, 55);
  ASSERT_EQ(decoded->requests.size(), 1u);
  EXPECT_EQ(decoded->requests[0].kind, RequestKind::kNoop);
}

TEST(EntryBuilder, IntervalsAreBroughtWithinTheLimits) {
  EXPECT_EQ(DecodeEntry(EntryBuilder(1).Build(-1))->interval, 0);
  EXPECT_EQ(DecodeEntry(EntryBuilder(1).Build(SessionTable::kMaxInterval + 1))->interval,
            SessionTable::kMaxInterval);
}

TEST(EntryBuilder, AFullEntryIsTakenByTheEngineAndTheNextOperationWaits) {
  const std::vector<std::pair<Operation, RequestKind>> ways_to_fill = {
      {WriteOp(0, 1), RequestKind::kWrite},                        // payload
      {WriteOp(0, 256), RequestKind::kWrite},                      // payload at once
      {RangeOp(OpKind::kZero, ~0ull - 9, 1), RequestKind::kZero},  // bytes
      {PlainOp(OpKind::kNoop), RequestKind::kNoop},                // operations or bytes
      {ExtentsOp({1, 2, 3, 4, 5, 6, 7}), RequestKind::kZeroExtents},
  };
  for (const auto& [op, kind] : ways_to_fill) {
    EntryBuilder builder(1);
    RequestContext context = Sample(kind);
    if (IsDataKind(kind)) context.lowest_unanswered = ~0ull;
    Status added;
    while ((added = builder.Add(op, context)).ok())
      ASSERT_LE(builder.operations(), kMaxOpsPerEntry);
    EXPECT_CODE(added, Code::kBusy);
    EXPECT_LE(builder.payload_pages(), kMaxPayloadPages);
    const Entry entry = builder.Build(SessionTable::kMaxInterval);
    EXPECT_TRUE(builder.empty());
    EXPECT_EQ(builder.payload_pages(), 0u);
    EXPECT_OK(builder.Add(op, context)) << "the next one begins";
    EXPECT_OK(ValidateEntry(entry, 1));
    EXPECT_OK(DecodeEntry(entry).status());
    const AcceptRecord record{~0u, kMaxInstance, {~0ull, ~0u}, kMaxInstance, entry, true};
    EXPECT_LE(Encode(record).size(), kMaxRecordAreaBytes);
  }
}

TEST(EntryBuilder, TheLargestOperationsFitAlone) {
  std::vector<Extent> extents;
  for (Extent e = 0; e < kMaxExtentsPerEntry; ++e) extents.push_back((e << 40) + (1ull << 53));
  EntryBuilder builder(1);
  ASSERT_OK(builder.Add(ExtentsOp(extents), Sample(RequestKind::kZeroExtents)));
  EXPECT_CODE(builder.Add(ExtentsOp({1}), Sample(RequestKind::kZeroExtents)), Code::kBusy);
  (void)builder.Build(0);
  RequestContext config = Sample(RequestKind::kConfig);
  config.body.assign(kMaxConfigBytes, 'c');
  ASSERT_OK(builder.Add(PlainOp(OpKind::kOpaque), config));
  EXPECT_OK(DecodeEntry(builder.Build(0)).status());
}

TEST(EntryBuilder, WhatCanNeverWorkIsRefusedWithNothingAdded) {
  EntryBuilder builder(2);
  EXPECT_CODE(builder.Add(WriteOp(0, 1), Sample(RequestKind::kWrite)), Code::kInvalidArgument);
  EXPECT_CODE(builder.Add(RangeOp(OpKind::kZero, 0, 129), Sample(RequestKind::kZero)),
              Code::kInvalidArgument);
  EXPECT_CODE(builder.Add(ExtentsOp({2, 1}), Sample(RequestKind::kZeroExtents)),
              Code::kInvalidArgument);
  EXPECT_CODE(builder.Add(RangeOp(OpKind::kZero, 0, 1), Sample(RequestKind::kUnmap)),
              Code::kInvalidArgument);
  EXPECT_TRUE(builder.empty());
}

TEST(EntryBuilder, OneSessionPerEntryAndConfigsAlone) {
  EntryBuilder builder(1);
  const Operation op = PlainOp(OpKind::kOpaque);
  const RequestContext open = Sample(RequestKind::kOpenSession);
  const RequestContext config = Sample(RequestKind::kConfig);
  ASSERT_OK(builder.Add(op, open));
  EXPECT_CODE(builder.Add(op, open), Code::kBusy);
  EXPECT_CODE(builder.Add(op, config), Code::kBusy);
  EXPECT_OK(builder.Add(op, Sample(RequestKind::kFence)));
  (void)builder.Build(0);
  ASSERT_OK(builder.Add(op, config));
  EXPECT_CODE(builder.Add(op, open), Code::kBusy);
  (void)builder.Build(0);
  EXPECT_OK(builder.Add(op, open));
}

TEST(DecodeEntry, RefusesWhatNoMasterBuilds) {
  EXPECT_OK(DecodeEntry({}).status());
  Entry two_times = Build({RequestKind::kWrite, RequestKind::kZero}, 5);
  RequestContext timed = Sample(RequestKind::kZero);
  timed.interval = 5;
  two_times.operations[1].context = EncodeContext(timed);
  EXPECT_CODE(DecodeEntry(two_times).status(), Code::kCorruption);

  Entry two_opens = Build({RequestKind::kOpenSession});
  two_opens.operations.push_back(two_opens.operations[0]);
  EXPECT_CODE(DecodeEntry(two_opens).status(), Code::kCorruption);

  Entry config = Build({RequestKind::kConfig});
  EXPECT_OK(DecodeEntry(config).status());
  config.operations.push_back(PlainOp(OpKind::kNoop));
  EXPECT_CODE(DecodeEntry(config).status(), Code::kCorruption);
  std::swap(config.operations[0], config.operations[1]);
  EXPECT_CODE(DecodeEntry(config).status(), Code::kCorruption);

  Entry nobody = Build({RequestKind::kWrite});
  nobody.operations[0].context.clear();
  EXPECT_CODE(DecodeEntry(nobody).status(), Code::kCorruption) << "a write that nobody asked for";

  Entry newer = Build({RequestKind::kWrite});
  newer.operations[0].context[0] = 2;
  EXPECT_CODE(DecodeEntry(newer).status(), Code::kUnsupported);
}

// --- Ranges -------------------------------------------------------------------------------------

std::vector<std::pair<Lba, uint64_t>> Ranges(const Operation& op, uint32_t block_pages) {
  std::vector<std::pair<Lba, uint64_t>> ranges;
  ForEachRange(op, block_pages, [&](Lba lba, uint64_t count) { ranges.emplace_back(lba, count); });
  return ranges;
}

TEST(Ranges, AreWhatTheOperationChanges) {
  using testing::ElementsAre;
  using testing::IsEmpty;
  using testing::Pair;
  EXPECT_THAT(Ranges(WriteOp(8, 3), 1), ElementsAre(Pair(8, 3)));
  EXPECT_THAT(Ranges(RangeOp(OpKind::kUnmap, 8, 3), 4), ElementsAre(Pair(8, 3)));
  EXPECT_THAT(Ranges(PlainOp(OpKind::kOpaque), 1), IsEmpty());
  EXPECT_THAT(Ranges(ExtentsOp({2, 3, 4, 7, 9, 10}), 1),
              ElementsAre(Pair(512, 768), Pair(1792, 256), Pair(2304, 512)));
  EXPECT_THAT(Ranges(ExtentsOp({2}), 4), ElementsAre(Pair(128, 64)));
}

// --- Digests ------------------------------------------------------------------------------------

TEST(EntryDigest, IsTheSameForEver) {
  Entry entry;
  entry.operations = {WriteOp(5, 2), RangeOp(OpKind::kZero, 9, 1), ExtentsOp({1, 4}), {}};
  entry.operations[0].context = "context";
  EXPECT_EQ(EntryDigest(entry), 0xf3119b114543f4e8);
}

TEST(EntryDigest, SeesWhateverReplicasMustAgreeOn) {
  Entry entry;
  entry.operations = {WriteOp(5, 2), RangeOp(OpKind::kZero, 9, 1), ExtentsOp({1, 4}), {}};
  entry.operations[0].context = "context";
  const std::vector<std::function<void(std::vector<Operation>*)>> changes = {
      [](auto*) {},
      [](auto* ops) { (*ops)[0].lba ^= 1; },
      [](auto* ops) { (*ops)[0].crcs[1] ^= 1u << 31; },
      [](auto* ops) { std::swap((*ops)[0].crcs[0], (*ops)[0].crcs[1]); },
      [](auto* ops) { (*ops)[0].block_pages = 2; },
      [](auto* ops) { (*ops)[0].context += '\0'; },
      [](auto* ops) { (*ops)[0].context[3] ^= 1; },
      [](auto* ops) { (*ops)[0].version = 2; },
      [](auto* ops) { (*ops)[1].kind = OpKind::kUnmap; },
      [](auto* ops) { (*ops)[1].count = 2; },
      [](auto* ops) { (*ops)[1].context = (*ops)[0].context; },
      [](auto* ops) { std::swap((*ops)[1].context, (*ops)[0].context); },
      [](auto* ops) { (*ops)[2].extents[1] = 5; },
      [](auto* ops) { (*ops)[2].extents.pop_back(); },
      [](auto* ops) { ops->pop_back(); },
      [](auto* ops) { ops->emplace_back(); },
      [](auto* ops) { (*ops)[3].kind = OpKind::kOpaque; },
      [](auto* ops) { std::swap((*ops)[0], (*ops)[1]); },
  };
  std::set<uint64_t> digests;
  for (const auto& change : changes) {
    Entry changed = entry;
    change(&changed.operations);
    digests.insert(EntryDigest(changed));
  }
  EXPECT_EQ(digests.size(), changes.size());
}

TEST(EntryDigest, IgnoresFieldsThatDoNotCount) {
  Entry entry = Build({RequestKind::kFence, RequestKind::kZero});
  const uint64_t digest = EntryDigest(entry);
  entry.operations[0].lba = 5;
  entry.operations[0].crcs = {1};
  entry.operations[1].extents = {4};
  EXPECT_EQ(EntryDigest(entry), digest);
}

Entry AnyEntry() {
  EntryBuilder builder(1);
  const int n = *rc::gen::inRange(0, 12);
  for (int i = 0; i < n; ++i) {
    const auto kind = static_cast<RequestKind>(*rc::gen::inRange(0, kKinds));
    RequestContext context = Sample(kind);
    if (context.session != 0) context.session = 1 + *rc::gen::arbitrary<uint32_t>();
    if (context.seq != 0) context.seq = 1 + *rc::gen::arbitrary<uint32_t>();
    if (kind == RequestKind::kConfig || kind == RequestKind::kMaster) {
      context.body = *rc::gen::arbitrary<std::string>();
    }
    Operation op = OpFor(kind);
    if (kind == RequestKind::kCompareAndWrite && *rc::gen::arbitrary<bool>()) {
      op = PlainOp(OpKind::kOpaque);
      context.outcome = Outcome{Code::kFailedPrecondition, 0, *rc::gen::arbitrary<std::string>()};
      context.outcome->detail.resize(std::min(context.outcome->detail.size(), kMaxDetailBytes));
    }
    if (op.kind == OpKind::kWrite) {
      op = WriteOp(*rc::gen::arbitrary<uint32_t>(), *rc::gen::inRange<uint64_t>(1, 20));
    }
    const Status added = builder.Add(std::move(op), context);
    RC_ASSERT(added.ok() || added.code() == Code::kBusy);
  }
  return builder.Build(*rc::gen::inRange<Nanos>(0, SessionTable::kMaxInterval + 1));
}

RC_GTEST_PROP(EntryModel, AnEntryReadBackFromTheLogIsTheSameEntry, ()) {
  const Entry entry = AnyEntry();
  const Result<DecodedEntry> decoded = DecodeEntry(entry);
  RC_ASSERT(decoded.ok());
  const std::string bytes = Encode(AcceptRecord{1, 2, {3, 4}, 0, entry, true});
  const auto views = SplitRecords(AsBytes(bytes), 1, entry.PayloadPages(), 0);
  RC_ASSERT(views.ok());
  const Result<AcceptRecord> record = DecodeAccept(views->front());
  RC_ASSERT(record.ok());
  RC_ASSERT(EntryDigest(record->entry) == EntryDigest(entry));
  const Result<DecodedEntry> again = DecodeEntry(record->entry);
  RC_ASSERT(again.ok());
  RC_ASSERT(again->interval == decoded->interval);
  RC_ASSERT(again->requests == decoded->requests);
  for (size_t i = 0; i < again->requests.size(); ++i) {
    RC_ASSERT(EncodeContext(again->requests[i]) == entry.operations[i].context);
  }
}

}  // namespace
}  // namespace hydra
