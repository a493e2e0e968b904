// SPDX-License-Identifier: Apache-2.0
//
// A stream that a newer Hydra has written to (a node that was downgraded). Record versions and
// types that this build does not know make it refuse to open, wherever they stand, and leave
// everything as it is: what cannot be read is neither torn nor rotten. An unknown operation halts
// its group alone. Header CRCs are right throughout; where they are not, rot_test.cc has its say.
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/gtest_status.h"
#include "tests/support/store_fixture.h"

namespace hydra::test {
namespace {

constexpr uint64_t kTypeOffset = 0;  // in a record
constexpr uint64_t kVersionOffset = 1;
constexpr uint8_t kNewer = 2;
constexpr uint8_t kUnknown = 99;

std::map<std::string, std::string> SegmentContents(Store* store) {
  std::map<std::string, std::string> contents;
  for (const std::string& path : store->SegmentPaths()) contents[path] = store->ReadFile(path);
  return contents;
}

void ExpectRefusedAndLeftAlone(Store* store) {
  const auto before = SegmentContents(store);
  const Status opened = store->OpenUnchecked();
  EXPECT_CODE(opened, Code::kUnsupported);
  EXPECT_NE(opened.message().find("newer Hydra; upgrade this node"), std::string::npos)
      << opened.ToString();
  EXPECT_TRUE(SegmentContents(store) == before) << "the stream was changed";
}

// Two groups, a checkpoint, more entries; the last batch holds one record of the kind.
struct LastRecord {
  RecordType type;
  std::function<Status(Store*)> queue;
};

const std::vector<LastRecord>& LastRecords() {
  static const std::vector<LastRecord> kRecords = {
      {RecordType::kAccept, [](Store* s) { return s->Write(1, 10, 2); }},
      {RecordType::kHardState,
       [](Store* s) {
         return s->SaveHardState(1, {5, 2}, "promise");
       }},
      {RecordType::kTruncate, [](Store* s) { return s->Truncate(1, 1); }},
      {RecordType::kGroup, [](Store* s) { return s->CreateGroup(7, 1); }},
      {RecordType::kInstall, [](Store* s) { return s->InstallBegin(2, InstallMode::kImage, 9); }},
  };
  return kRecords;
}

std::unique_ptr<Store> BuildWith(const LastRecord& last) {
  auto store = std::make_unique<Store>(Store::Options());
  store->MustStart();
  EXPECT_OK(store->CreateGroup(2, 1));
  EXPECT_OK(store->Write(1, 0, 4));
  EXPECT_OK(store->Write(2, 0, 4));
  EXPECT_OK(store->Settle());
  EXPECT_OK(store->Checkpoint());
  EXPECT_OK(store->Write(1, 4, 4));
  EXPECT_OK(store->Settle());
  EXPECT_OK(last.queue(store.get()));
  EXPECT_OK(store->Flush());
  return store;
}

void ForgeLast(Store* store, const FoundBatch& batch, RecordType type, uint64_t at, uint8_t to) {
  const std::vector<uint64_t> records = RecordsIn(&store->disk(), batch, type);
  ASSERT_EQ(records.size(), 1u);
  store->ForgeInChain(batch, records[0] + at, {&to, 1});
}

void ExpectRefused(uint64_t at, uint8_t forged, bool sealed) {
  for (const LastRecord& last : LastRecords()) {
    SCOPED_TRACE(static_cast<unsigned>(last.type));
    const std::unique_ptr<Store> store = BuildWith(last);
    const FoundBatch batch = store->Batches().back();
    const auto right = at == kTypeOffset ? static_cast<uint8_t>(last.type) : uint8_t{1};
    if (sealed) {
      store->clock().Advance(kSecond);
      ASSERT_OK(store->Flush());
    }
    store->Crash();
    ASSERT_NO_FATAL_FAILURE(ForgeLast(store.get(), batch, last.type, at, forged));
    ExpectRefusedAndLeftAlone(store.get());
    // A Hydra that knows it finds everything.
    const auto now =
        static_cast<RecordType>(at == kTypeOffset ? forged : static_cast<uint8_t>(last.type));
    ASSERT_NO_FATAL_FAILURE(ForgeLast(store.get(), batch, now, at, right));
    ASSERT_OK(store->Open());
    EXPECT_EQ(store->Problems(), "");
    EXPECT_FALSE((*store)->recovery().torn);
  }
}

TEST(NewerVersion, OfARecordInTheLastBatchIsRefused) {
  ExpectRefused(kVersionOffset, kNewer, false);
}

TEST(NewerVersion, OfARecordBeforeTheSealIsRefused) { ExpectRefused(kVersionOffset, kNewer, true); }

TEST(NewerVersion, AnUnknownTypeOfRecordIsRefused) {
  ExpectRefused(kTypeOffset, kUnknown, false);
  ExpectRefused(kTypeOffset, kUnknown, true);
}

// Whether such a batch is torn, only the newer Hydra can tell.
TEST(NewerVersion, OfARecordInATornBatchIsRefused) {
  const LastRecord& accept = LastRecords().front();
  const std::unique_ptr<Store> store = BuildWith(accept);
  store->Crash();
  const FoundBatch batch = store->Batches().back();
  ASSERT_NO_FATAL_FAILURE(ForgeLast(store.get(), batch, accept.type, kVersionOffset, kNewer));
  store->disk().FlipBit(batch.path, batch.payload_offset(), 3);
  ExpectRefusedAndLeftAlone(store.get());
}

// Version 0 was never written: that is no newer Hydra's.
TEST(NewerVersion, ZeroIsDamage) {
  const LastRecord& hard_state = LastRecords()[1];
  const std::unique_ptr<Store> store = BuildWith(hard_state);
  store->Crash();
  const FoundBatch batch = store->Batches().back();
  ASSERT_NO_FATAL_FAILURE(ForgeLast(store.get(), batch, hard_state.type, kVersionOffset, 0));
  EXPECT_CODE(store->OpenUnchecked(), Code::kCorruption);
}

// An entry that was open at the checkpoint is read from where the checkpoint says.
TEST(NewerVersion, OfAnOpenEntryIsRefused) {
  Store store{Store::Options()};
  store.MustStart();
  ASSERT_OK(store.Write(1, 0, 4));
  ASSERT_OK(store.Flush());
  const FoundBatch batch = store.Batches().back();
  ASSERT_OK(store.Checkpoint());
  store.Crash();
  ASSERT_NO_FATAL_FAILURE(ForgeLast(&store, batch, RecordType::kAccept, kVersionOffset, kNewer));
  ExpectRefusedAndLeftAlone(&store);
}

// --- Operations -------------------------------------------------------------------------------

// Group 1 has applied two entries, the second of which has an operation; a seal says so.
std::unique_ptr<Store> BuildApplied(FoundBatch* second) {
  auto store = std::make_unique<Store>(Store::Options());
  store->MustStart();
  EXPECT_OK(store->CreateGroup(2, 1));
  EXPECT_OK(store->Write(1, 0, 4));
  EXPECT_OK(store->Write(2, 0, 4));
  EXPECT_OK(store->Settle());
  EXPECT_OK(store->Propose(1, {OpaqueOp("from the future")}));
  EXPECT_OK(store->Settle());
  *second = store->Batches().back();
  store->clock().Advance(kSecond);
  EXPECT_OK(store->Flush());
  store->Crash();
  return store;
}

void ForgeOperation(Store* store, const FoundBatch& batch, uint8_t kind, uint8_t was) {
  // Group, instance, round, node, stable, number of operations: a byte each.
  constexpr uint64_t kOperation = kRecordHeadBytes + 6;
  const std::vector<uint64_t> records = RecordsIn(&store->disk(), batch, RecordType::kAccept);
  ASSERT_EQ(records.size(), 1u);
  const uint64_t at = records[0] + kOperation;
  const std::string file = store->ReadFile(batch.path);
  ASSERT_EQ(static_cast<uint8_t>(file[batch.offset() + at]), was);
  store->ForgeInChain(batch, at, {&kind, 1});
}

TEST(NewerVersion, AnUnknownOperationInAStableEntryHaltsItsGroupAlone) {
  constexpr auto kOpaque = static_cast<uint8_t>(OpKind::kOpaque);
  FoundBatch batch;
  const std::unique_ptr<Store> store = BuildApplied(&batch);
  ASSERT_NO_FATAL_FAILURE(ForgeOperation(store.get(), batch, kUnknown, kOpaque));
  ASSERT_OK(store->OpenUnchecked());
  Engine* engine = store->engine();
  EXPECT_TRUE(engine->Info(1)->halted);
  EXPECT_EQ(engine->Info(1)->applied, 1u);
  EXPECT_EQ(engine->Info(1)->last, 2u) << "it was accepted, and must not be denied";
  EXPECT_FALSE(engine->Info(1)->suspect);
  EXPECT_CODE(engine->Apply(1, 2, kFirstBallot), Code::kUnsupported);
  EXPECT_FALSE(engine->ReadLogRecord(1, 2)->understood);

  EXPECT_FALSE(engine->Info(2)->halted);
  ASSERT_OK(store->Write(2, 2, 4));
  ASSERT_OK(store->Flush());
  ASSERT_OK(store->Apply(2));
  EXPECT_OK(engine->Read(2, 0, 6).status());
  EXPECT_OK(store->Checkpoint());
  EXPECT_TRUE(engine->poisoned().ok());

  // A Hydra that knows it goes on with it, although a checkpoint was written meanwhile.
  store->Crash();
  ASSERT_NO_FATAL_FAILURE(ForgeOperation(store.get(), batch, kOpaque, kUnknown));
  ASSERT_OK(store->OpenUnchecked());
  EXPECT_FALSE((*store)->Info(1)->halted);
  ASSERT_OK((*store)->Apply(1, 2, kFirstBallot));
  EXPECT_EQ(store->model().VerifyBlocks(store->engine()), "");
}

}  // namespace
}  // namespace hydra::test
