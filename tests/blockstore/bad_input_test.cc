// SPDX-License-Identifier: Apache-2.0
//
// What nobody should do, and what happens then: a clear Status, and an engine that goes on working.
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/crc32c.h"
#include "tests/support/gtest_status.h"
#include "tests/support/store_fixture.h"

namespace hydra::test {
namespace {

using testing::HasSubstr;

constexpr Lba kEnd = std::numeric_limits<Lba>::max();

// --- Directories -----------------------------------------------------------------------------

class BadDirectory : public testing::Test {
 protected:
  BadDirectory() : store_(Store::Options()) {
    store_.MustStart();
    EXPECT_OK(store_.Write(1, 0, 8));
    EXPECT_OK(store_.Settle());
    EXPECT_OK(store_.Checkpoint());
    EXPECT_OK(store_.Write(1, 4, 8));
    EXPECT_OK(store_.Settle());
    EXPECT_OK(store_.Close());
  }

  Status TryOpen(std::optional<Uuid> cluster = std::nullopt,
                 const std::string& dir = kStoreDirectory) {
    EngineOptions options = store_.options().engine;
    options.fs = &store_.disk();
    options.dir = dir;
    Result<std::unique_ptr<Engine>> engine = Engine::Open(options, cluster);
    return engine.ok() ? Status::Ok() : engine.status();
  }

  // Whatever was tried before, the store itself is unharmed.
  void ExpectUnharmed() {
    ASSERT_OK(store_.Open());
    EXPECT_EQ(store_.Problems(), "");
    ASSERT_OK(store_.ApplyAll());
    EXPECT_EQ(store_.VerifySettled(), "");
    ASSERT_OK(store_.Close());
  }

  std::string Path(const std::string& name) const {
    return std::string(kStoreDirectory) + "/" + name;
  }

  Store store_;
};

TEST_F(BadDirectory, MissingIsRefused) {
  const Status status = TryOpen(std::nullopt, "/nowhere");
  EXPECT_CODE(status, Code::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("/nowhere"));
  EXPECT_FALSE(store_.disk().Exists("/nowhere")) << "opening must not create";
}

TEST_F(BadDirectory, EmptyIsRefusedForOpeningAndFineForCreating) {
  ASSERT_OK(store_.disk().CreateDirectory("/empty"));
  EXPECT_CODE(TryOpen(std::nullopt, "/empty"), Code::kNotFound);
  CreateOptions create;
  create.segment_bytes = 256 * 1024;
  EXPECT_OK(Engine::Create(&store_.disk(), "/empty", create));
  EXPECT_OK(TryOpen(std::nullopt, "/empty"));
}

TEST_F(BadDirectory, CreatingOverAStoreOrOverFilesIsRefused) {
  EXPECT_CODE(store_.Create(), Code::kAlreadyExists);
  ASSERT_OK(store_.disk().CreateDirectory("/photos"));
  store_.WriteFile("/photos/cat", "meow");
  const Status status = Engine::Create(&store_.disk(), "/photos", {});
  EXPECT_CODE(status, Code::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("cat"));
  EXPECT_EQ(store_.ReadFile("/photos/cat"), "meow");
  ExpectUnharmed();
}

TEST_F(BadDirectory, SenselessCreateOptionsAreRefused) {
  CreateOptions create;
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{4096}, uint64_t{1000001}, ~uint64_t{0}}) {
    create.segment_bytes = bytes;
    EXPECT_CODE(Engine::Create(&store_.disk(), "/new", create), Code::kInvalidArgument);
  }
  create = CreateOptions();
  for (const uint32_t node : {0u, 65'536u}) {
    create.node = node;
    EXPECT_CODE(Engine::Create(&store_.disk(), "/new", create), Code::kInvalidArgument);
  }
}

TEST_F(BadDirectory, AForeignClusterIsRefusedByName) {
  const Uuid other = Uuid::Random();
  const Status status = TryOpen(other);
  EXPECT_CODE(status, Code::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr(other.ToString()));
  ExpectUnharmed();
}

TEST_F(BadDirectory, AnyDamageToIdentityIsRefused) {
  const std::string path = Path("IDENTITY");
  const std::string good = store_.ReadFile(path);
  for (size_t keep = 0; keep < good.size(); ++keep) {
    store_.WriteFile(path, good.substr(0, keep));
    ASSERT_FALSE(TryOpen().ok()) << "cut to " << keep << " bytes";
  }
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ (1 << i % 5));  // more than upper or lower case
    store_.WriteFile(path, bad);
    const Status status = TryOpen();
    ASSERT_FALSE(status.ok()) << "byte " << i;
    ASSERT_FALSE(status.message().empty());
  }
  store_.WriteFile(path, good + "more\n");
  EXPECT_FALSE(TryOpen().ok());
  store_.WriteFile(path, std::string(1 << 20, 'x'));
  EXPECT_FALSE(TryOpen().ok());
  store_.WriteFile(path, good);
  ExpectUnharmed();
}

TEST_F(BadDirectory, ANewerFormatAsksForAnUpgrade) {
  std::string text = store_.ReadFile(Path("IDENTITY"));
  const size_t line = text.find('\n');
  text.replace(0, line, "hydra-store 2");
  store_.WriteFile(Path("IDENTITY"), text);
  const Status status = TryOpen();
  EXPECT_CODE(status, Code::kUnsupported);
  EXPECT_THAT(std::string(status.message()), HasSubstr("pgrade"));
}

TEST_F(BadDirectory, AReadOnlyDiskIsRefused) {
  for (const IoKind kind : {IoKind::kWrite, IoKind::kSync, IoKind::kOpen, IoKind::kRename,
                            IoKind::kUnlink, IoKind::kSyncDirectory}) {
    store_.disk().FailAll(kind, kind == IoKind::kOpen ? "/store/" : "store");
  }
  const Status status = TryOpen();
  EXPECT_FALSE(status.ok());
  EXPECT_FALSE(status.message().empty());
  for (unsigned kind = 0; kind < kIoKinds; ++kind) {
    store_.disk().FailAll(static_cast<IoKind>(kind), "");
  }
  ExpectUnharmed();
}

TEST_F(BadDirectory, ASecondEngineIsRefusedWhileTheFirstRuns) {
  ASSERT_OK(store_.Open());
  const Status status = TryOpen();
  EXPECT_CODE(status, Code::kBusy);
  EXPECT_THAT(std::string(status.message()), HasSubstr("in use"));
  ASSERT_OK(store_.Write(1, 0, 4));
  EXPECT_EQ(store_.VerifySettled(), "") << "the first one was disturbed";
  ASSERT_OK(store_.Close());
  ExpectUnharmed();
}

// Files that somebody cut or removed. The acknowledged blocks read right, or the damage is
// reported: when opening, when reading, or by groups that call themselves suspect.
void ExpectNothingSilentlyLost(Store* store) {
  const Status opened = store->OpenUnchecked();
  if (!opened.ok()) {
    EXPECT_FALSE(opened.message().empty());
    return;
  }
  const Result<GroupInfo> info = (*store)->Info(1);
  ASSERT_TRUE(info.ok());
  GroupModel group = store->model().group(1);
  std::set<Instance> listed;
  for (const LogEntryInfo& entry : (*store)->LogEntries(1, 1, kMaxInstance)) {
    listed.insert(entry.instance);
  }
  for (const auto& [instance, states] : group.log) {
    EXPECT_TRUE(instance <= info->applied || listed.contains(instance) || info->suspect)
        << "instance " << instance << " is denied";
  }
  group.blocks = StoreModel::Replay(group, info->applied);
  for (Lba lba = 0; lba < 16; ++lba) {
    const Result<ReadResult> read = (*store)->Read(1, lba, 1);
    if (read.ok()) {
      EXPECT_EQ(StoreModel::CompareRead(group, lba, *read), "");
    } else {
      EXPECT_TRUE(read.status().code() == Code::kCorruption ||
                  read.status().code() == Code::kIoError)
          << read.status().ToString();
    }
  }
}

// `last_too`: also removes the last one, which leaves no trace if it is younger than the checkpoint
// (peers notice: the store reports fewer batches than they have seen).
void DamageEachSegment(Store* store, bool last_too) {
  const std::vector<std::string> paths = store->SegmentPaths();
  for (const std::string& path : paths) {
    const std::string contents = store->ReadFile(path);
    for (const size_t keep : {size_t{0}, size_t{100}, size_t{4096}, size_t{12'288},
                              contents.size() / 2, contents.size() - 1}) {
      SCOPED_TRACE(path + " cut to " + std::to_string(keep));
      std::unique_ptr<Store> fork = store->Fork(keep);
      fork->WriteFile(path, contents.substr(0, keep));
      ExpectNothingSilentlyLost(fork.get());
    }
    if (path == paths.back() && !last_too) continue;
    SCOPED_TRACE(path + " removed");
    std::unique_ptr<Store> fork = store->Fork(1);
    ASSERT_OK(fork->disk().Unlink(path));
    ExpectNothingSilentlyLost(fork.get());
  }
}

TEST_F(BadDirectory, ATruncatedOrMissingSegmentIsNeverSilent) {
  DamageEachSegment(&store_, true);
  ExpectUnharmed();
}

// The same for a store that died: what it acknowledged since the checkpoint is in the stream alone.
TEST_F(BadDirectory, ATruncatedOrMissingSegmentIsNeverSilentAfterACrash) {
  ASSERT_OK(store_.Open());
  for (Lba lba = 0; lba < 200; lba += 8) {  // into a second segment
    ASSERT_OK(store_.Write(1, lba, 8));
    ASSERT_OK(store_.Flush());
  }
  store_.clock().Advance(kSecond);
  ASSERT_OK(store_.Flush());  // sealed
  ASSERT_GE(store_.SegmentPaths().size(), 2u);
  store_.Crash();
  DamageEachSegment(&store_, false);
}

TEST_F(BadDirectory, AMissingMapIsRefusedNotTakenForANewStore) {
  const std::string map = Path("map");
  const Result<std::vector<std::string>> names = store_.disk().List(map);
  ASSERT_TRUE(names.ok());
  for (const std::string& name : *names) ASSERT_OK(store_.disk().Unlink(map + "/" + name));
  EXPECT_FALSE(TryOpen().ok()) << "with an empty map directory";
  // The attempt may have left something.
  const Result<std::vector<std::string>> left = store_.disk().List(map);
  ASSERT_TRUE(left.ok());
  for (const std::string& name : *left) {
    ASSERT_OK(store_.disk().Unlink(map + "/" + name));
  }
  ASSERT_OK(store_.disk().RemoveDirectory(map));
  const Status status = TryOpen();
  EXPECT_FALSE(status.ok()) << "without a map directory";
  EXPECT_FALSE(status.message().empty());
}

TEST_F(BadDirectory, GarbageInTheMapIsNeverSilent) {
  const std::string map = Path("map");
  const Result<std::vector<std::string>> names = store_.disk().List(map);
  ASSERT_TRUE(names.ok());
  for (const std::string& name : *names) {
    const std::string path = map + "/" + name;
    const std::string contents = store_.ReadFile(path);
    if (contents.empty()) continue;
    for (size_t i = 0; i < 16; ++i) {
      const size_t at = contents.size() * i / 16;
      SCOPED_TRACE(path + " damaged at " + std::to_string(at));
      std::unique_ptr<Store> fork = store_.Fork(i);
      std::string bad = contents;
      bad[at] = static_cast<char>(bad[at] ^ 0x55);
      fork->WriteFile(path, bad);
      ExpectNothingSilentlyLost(fork.get());
    }
    SCOPED_TRACE(path + " removed");
    std::unique_ptr<Store> fork = store_.Fork(1);
    ASSERT_OK(fork->disk().Unlink(path));
    ExpectNothingSilentlyLost(fork.get());
  }
}

// --- Calls -----------------------------------------------------------------------------------

class BadCall : public testing::Test {
 protected:
  BadCall() : store_(Store::Options()) {
    store_.MustStart();
    EXPECT_OK(store_.CreateGroup(2, 4));
    EXPECT_OK(store_.Write(1, 0, 8));
    EXPECT_OK(store_.Write(2, 0, 2));
    EXPECT_OK(store_.Settle());
  }

  ~BadCall() override {
    // Whatever was refused left no trace.
    EXPECT_OK(store_.Write(1, 3, 4));
    EXPECT_EQ(store_.VerifySettled(), "");
    EXPECT_EQ(store_.Problems(), "");
    store_.PowerLoss();
    EXPECT_OK(store_.Open());
    EXPECT_EQ(store_.Problems(), "");
  }

  // An accept at the next instance, past the model, which must be refused.
  Status Accept(Operation op, std::optional<size_t> pages = std::nullopt, GroupId group = 1,
                Instance instance = 2, Ballot ballot = {1, 1}) {
    const bool write = op.kind == OpKind::kWrite;
    const size_t bytes = pages.value_or(write ? op.PayloadPages() : 0) * kPageSize;
    Payload payload;
    if (bytes > 0) {
      Buffer buffer = Buffer::Allocate(bytes);
      payload = {BufferSlice{buffer, 0, bytes}};
      for (uint64_t b = 0; write && op.crcs.empty() && b < op.count && op.count < 5000; ++b) {
        crcs_.push_back(Crc32c(buffer.data(), op.block_pages * kPageSize));
      }
    }
    if (op.crcs.empty()) op.crcs.assign(crcs_.begin(), crcs_.end());
    crcs_.clear();
    Entry entry;
    entry.operations = {op};
    return store_->Accept(group, instance, ballot, entry, payload, store_.NextToken());
  }

  static Operation Sized(Operation op, uint32_t block_pages) {
    op.block_pages = block_pages;
    return op;
  }

  Store store_;
  std::vector<uint32_t> crcs_;
};

TEST_F(BadCall, RangesPastTheEndOrOfNothing) {
  EXPECT_CODE(Accept(WriteOp(kEnd, 2)), Code::kInvalidArgument);
  EXPECT_CODE(Accept(WriteOp(0, 0)), Code::kInvalidArgument);
  EXPECT_CODE(Accept(UnmapOp(kEnd, 2)), Code::kInvalidArgument);
  EXPECT_CODE(Accept(ZeroOp(kEnd - 5, 200)), Code::kInvalidArgument);
  EXPECT_CODE(Accept(UnmapOp(0, 0)), Code::kInvalidArgument);
  EXPECT_CODE(Accept(ZeroExtentsOp({})), Code::kInvalidArgument);
  EXPECT_CODE(Accept(ZeroExtentsOp({kEnd / 2})), Code::kInvalidArgument);
  EXPECT_CODE(Accept(ZeroExtentsOp({7, 7})), Code::kInvalidArgument);
  EXPECT_CODE(store_->Read(1, 0, 0).status(), Code::kInvalidArgument);
  EXPECT_CODE(store_->Read(1, kEnd, 2).status(), Code::kInvalidArgument);
  EXPECT_CODE(store_->PlanRead(1, kEnd - 1, 3).status(), Code::kInvalidArgument);
}

TEST_F(BadCall, AReadWithoutBound) {
  EXPECT_CODE(store_->Read(1, 0, kEnd / 2).status(), Code::kInvalidArgument);
}

TEST_F(BadCall, TheVeryLastBlocksWork) {
  ASSERT_OK(store_.Write(1, kEnd - 1, 1));
  ASSERT_OK(store_.Settle());
  const Result<ReadResult> read = store_->Read(1, kEnd - 1, 1);
  ASSERT_OK(read.ok() ? Status::Ok() : read.status());
  EXPECT_EQ(StoreModel::CompareRead(store_.model().group(1), kEnd - 1, *read), "");
}

TEST_F(BadCall, MoreThanOneMebibyte) {
  EXPECT_CODE(Accept(WriteOp(0, 257)), Code::kInvalidArgument);
  EXPECT_CODE(Accept(Sized(WriteOp(0, 65), 4), std::nullopt, 2), Code::kInvalidArgument);
}

TEST_F(BadCall, AWrongChecksum) {
  Operation op = WriteOp(0, 2);
  op.crcs = {1, 2};
  EXPECT_CODE(Accept(op, 2), Code::kInvalidArgument);
}

TEST_F(BadCall, PayloadOfAnotherSize) {
  EXPECT_CODE(Accept(WriteOp(0, 2), 1), Code::kInvalidArgument);
  EXPECT_CODE(Accept(WriteOp(0, 2), 3), Code::kInvalidArgument);
  EXPECT_CODE(Accept(WriteOp(0, 2), 0), Code::kInvalidArgument);
  EXPECT_CODE(Accept(UnmapOp(0, 2), 1), Code::kInvalidArgument);
}

TEST_F(BadCall, AnotherBlockSize) {
  EXPECT_CODE(Accept(WriteOp(0, 4), std::nullopt, 2), Code::kInvalidArgument);
  EXPECT_CODE(Accept(Sized(WriteOp(0, 1), 4)), Code::kInvalidArgument);
}

TEST_F(BadCall, InstancesThatCannotBe) {
  EXPECT_CODE(Accept(Operation(), 0, 1, 0), Code::kInvalidArgument);
  EXPECT_CODE(Accept(Operation(), 0, 1, kMaxInstance + 1), Code::kInvalidArgument);
  EXPECT_CODE(Accept(Operation(), 0, 1, 1), Code::kFailedPrecondition) << "applied already";
}

TEST_F(BadCall, ALowerBallotThanTheAcceptedOne) {
  ASSERT_OK(store_.Accept(1, 2, {5, 1}, store_.model().NewProposal(store_.model().group(1), {})));
  EXPECT_CODE(Accept(Operation(), 0, 1, 2, {4, 9}), Code::kFailedPrecondition);
  EXPECT_CODE(Accept(Operation(), 0, 1, 2, {5, 0}), Code::kFailedPrecondition);
  ASSERT_OK(store_.Flush());
  EXPECT_CODE(Accept(Operation(), 0, 1, 2, {4, 9}), Code::kFailedPrecondition) << "when durable";
}

TEST_F(BadCall, ALowerBallotThanTheRecoveredOne) {
  ASSERT_OK(store_.Accept(1, 2, {5, 1}, store_.model().NewProposal(store_.model().group(1), {})));
  ASSERT_OK(store_.Flush());
  store_.PowerLoss();
  ASSERT_OK(store_.Open());
  ASSERT_OK(store_.ApplyAll());
  ASSERT_OK(store_.Accept(1, 3, {6, 1}, store_.model().NewProposal(store_.model().group(1), {})));
  ASSERT_OK(store_.Flush());
  store_.PowerLoss();
  ASSERT_OK(store_.Open());
  EXPECT_CODE(Accept(Operation(), 0, 1, 3, {5, 1}), Code::kFailedPrecondition);
  ASSERT_OK(store_.ApplyAll());
}

TEST_F(BadCall, ApplyingOutOfOrderOrWhatWasNotAccepted) {
  EXPECT_CODE(store_->Apply(1, 2, {1, 1}), Code::kFailedPrecondition) << "not accepted";
  EXPECT_CODE(store_->Apply(1, 1, {1, 1}), Code::kFailedPrecondition) << "applied already";
  ASSERT_OK(store_.Write(1, 0));
  ASSERT_OK(store_.Write(1, 1));
  EXPECT_CODE(store_->Apply(1, 3, {1, 1}), Code::kFailedPrecondition) << "out of order";
  EXPECT_CODE(store_->Apply(1, 2, {2, 1}), Code::kFailedPrecondition) << "in another ballot";
  EXPECT_CODE(store_->Apply(1, 2, {0, 1}), Code::kFailedPrecondition) << "in another ballot";
  ASSERT_OK(store_.ApplyAll());
}

TEST_F(BadCall, AnUnknownOperation) {
  Operation op;
  op.kind = static_cast<OpKind>(99);
  EXPECT_CODE(Accept(op), Code::kUnsupported);
}

TEST_F(BadCall, UnknownGroups) {
  EXPECT_CODE(Accept(Operation(), 0, 77, 1), Code::kNotFound);
  EXPECT_CODE(store_->SaveHardState(77, {1, 1}, "", 1000), Code::kNotFound);
  EXPECT_CODE(store_->DropGroup(77, 1001), Code::kNotFound);
  EXPECT_CODE(store_->TruncateLog(77, 1, 1002), Code::kNotFound);
  EXPECT_CODE(store_->Apply(77, 1, {1, 1}), Code::kNotFound);
  EXPECT_CODE(store_->Readmit(77), Code::kNotFound);
  EXPECT_CODE(store_->Info(77).status(), Code::kNotFound);
  EXPECT_CODE(store_->Read(77, 0, 1).status(), Code::kNotFound);
  EXPECT_CODE(store_->ReadLogEntry(77, 1).status(), Code::kNotFound);
  EXPECT_CODE(store_->ScanImage(77, "", 10).status(), Code::kNotFound);
  EXPECT_CODE(store_->ScanChanges(77, 0, "", 10).status(), Code::kNotFound);
  EXPECT_CODE(store_->Digest(77).status(), Code::kNotFound);
  EXPECT_TRUE(store_->LogEntries(77, 1, 100).empty());
}

TEST_F(BadCall, GroupsThatCannotBeCreated) {
  EXPECT_CODE(store_->CreateGroup(kNodeGroup, 1, 1000), Code::kInvalidArgument);
  EXPECT_CODE(store_->CreateGroup(1, 1, 1001), Code::kAlreadyExists);
  for (const uint32_t pages : {0u, 3u, 17u, 256u}) {
    EXPECT_CODE(store_->CreateGroup(9, pages, 1002), Code::kInvalidArgument);
  }
}

TEST_F(BadCall, ADroppedIdIsNeverUsedAgain) {
  ASSERT_OK(store_.DropGroup(2));
  ASSERT_OK(store_.Settle());
  EXPECT_CODE(store_->CreateGroup(2, 1, 1000), Code::kFailedPrecondition);
  EXPECT_CODE(store_->Read(2, 0, 1).status(), Code::kNotFound);
  store_.PowerLoss();
  ASSERT_OK(store_.Open());
  EXPECT_CODE(store_->CreateGroup(2, 1, 1001), Code::kFailedPrecondition) << "after a restart";
  ASSERT_OK(store_.Settle());
  ASSERT_OK(store_.Checkpoint());
  ASSERT_OK(store_.RunJobs());
  ASSERT_OK(store_.Close());
  ASSERT_OK(store_.Open());
  EXPECT_CODE(store_->CreateGroup(2, 1, 1002), Code::kFailedPrecondition) << "after sweeping";
  ASSERT_OK(store_.ApplyAll());
}

TEST_F(BadCall, ContextsWithoutBound) {
  EXPECT_CODE(Accept(OpaqueOp(std::string(1 << 20, 'x'))), Code::kInvalidArgument);
  EXPECT_CODE(store_->SaveHardState(1, {1, 1}, std::string(1 << 20, 'x'), 1000),
              Code::kInvalidArgument);
  // Each within its limit, but too much for one batch.
  Entry entry;
  for (int i = 0; i < 100; ++i) entry.operations.push_back(OpaqueOp(std::string(4096, 'x')));
  EXPECT_CODE(store_->Accept(1, 2, {1, 1}, entry, {}, 1001), Code::kInvalidArgument);
}

TEST_F(BadCall, TruncatingWhatIsNotStable) {
  EXPECT_CODE(store_->TruncateLog(1, 2, 1000), Code::kFailedPrecondition);
  ASSERT_OK(store_.Write(1, 0));
  ASSERT_OK(store_.Apply(1));
  EXPECT_CODE(store_->TruncateLog(1, 2, 1001), Code::kFailedPrecondition) << "not yet durable";
  ASSERT_OK(store_.Flush());
  EXPECT_CODE(store_->TruncateLog(1, 2, 1002), Code::kFailedPrecondition) << "not in a checkpoint";
  ASSERT_OK(store_.Checkpoint());
  EXPECT_OK(store_.Truncate(1, 2));
}

TEST_F(BadCall, LogEntriesThatAreNotThere) {
  EXPECT_CODE(store_->ReadLogEntry(1, 0).status(), Code::kNotFound);
  EXPECT_CODE(store_->ReadLogEntry(1, 2).status(), Code::kNotFound);
  EXPECT_TRUE(store_->LogEntries(1, 5, 2).empty());
  ASSERT_OK(store_.Checkpoint());
  ASSERT_OK(store_.Truncate(1, 1));
  ASSERT_OK(store_.Flush());
  EXPECT_CODE(store_->ReadLogEntry(1, 1).status(), Code::kNotFound);
}

TEST_F(BadCall, ForeignScanCursors) {
  for (const std::string& cursor : {std::string("nonsense"), std::string(1000, '\xff')}) {
    const Result<ChangeBatch> image = store_->ScanImage(1, cursor, 10);
    EXPECT_TRUE(!image.ok() || image->changes.size() <= 10);
    const Result<ChangeBatch> changes = store_->ScanChanges(1, 0, cursor, 10);
    EXPECT_TRUE(!changes.ok() || changes->changes.size() <= 10);
  }
}

}  // namespace
}  // namespace hydra::test
