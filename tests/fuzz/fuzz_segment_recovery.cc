// SPDX-License-Identifier: Apache-2.0
//
// Fuzzes recovery: a small store is damaged as the input says and opened. Opening must end, without
// a crash, in a store or a clear refusal. Unless the input also forged checksums (which no disk
// does by accident), every block reads as an error or as it was at the instance that the group says
// is applied. One damaged page, or one file cut short, is also never mistaken for the end: a group
// that is not suspect has lost no entry. (Two may be the last batch and the seal that vouched for
// it.)
//
// The input is a list of mutations, each: u8 what, u8 which file, u16 where / 16, u8 n, n bytes.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/coding.h"
#include "base/crc32c.h"
#include "base/logging.h"
#include "tests/support/store_fixture.h"

namespace {

using namespace hydra;        // NOLINT: a program of its own
using namespace hydra::test;  // NOLINT

constexpr size_t kMaxMutations = 16;
constexpr size_t kHeadBytes = 5;
constexpr size_t kMaxWithinPage =
    16;  // offsets are multiples of that, so no page border is crossed

enum class Mutation : uint8_t { kSegment, kHeader, kForgeHeader, kIdentity, kTruncate, kMap };
constexpr uint8_t kMutations = 6;

void Must(const Status& status) {
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  HYDRA_CHECK(status.ok());
}

// Two groups, a checkpoint in the middle, an unapplied entry, a seal; then process death.
std::unique_ptr<Store> Build() {
  Store::Options options;
  options.segment_bytes = 128 * 1024;
  options.engine.spare_segments = 1;
  auto store = std::make_unique<Store>(options);
  store->MustStart();
  Must(store->CreateGroup(2, 2));
  for (Lba lba = 0; lba < 12; lba += 2) {
    Must(store->Write(1, lba, 2));
    Must(store->Propose(2, {WriteOp(lba, 1), UnmapOp(lba + 1, 1)}));
    Must(store->Settle());
    if (lba == 4) Must(store->Checkpoint());
  }
  Must(store->SaveHardState(1, {4, 2}, "promise"));
  Must(store->Truncate(1, 2));
  Must(store->Write(1, 3, 1));
  Must(store->Flush());
  store->clock().Advance(kSecond);
  Must(store->Flush());
  HYDRA_CHECK(store->Problems().empty());
  store->Crash();
  return store;
}

void Patch(Store* store, const std::string& path, uint64_t offset, std::span<const uint8_t> bytes) {
  std::string contents = store->ReadFile(path);
  for (size_t i = 0; i < bytes.size() && offset + i < contents.size(); ++i) {
    contents[offset + i] = static_cast<char>(bytes[i]);
  }
  store->WriteFile(path, contents);
}

// Applies one mutation; false if the input is used up.
bool Mutate(Decoder* in, const std::vector<FoundBatch>& batches, Store* store, bool* forged) {
  uint8_t what = 0;
  uint8_t which = 0;
  uint16_t where = 0;
  uint8_t count = 0;
  std::span<const uint8_t> bytes;
  if (!in->U8(&what) || !in->U8(&which) || !in->Fixed16(&where) || !in->U8(&count)) return false;
  if (!in->Bytes(std::min<size_t>(count, in->remaining()), &bytes)) return false;
  const std::vector<std::string> segments = store->SegmentPaths();
  const std::string identity = std::string(kStoreDirectory) + "/IDENTITY";
  const std::string map = std::string(kStoreDirectory) + "/map";
  switch (static_cast<Mutation>(what % kMutations)) {
    case Mutation::kSegment:
      if (!segments.empty()) Patch(store, segments[which % segments.size()], where * 16, bytes);
      return true;
    case Mutation::kHeader: {
      const FoundBatch& batch = batches[which % batches.size()];
      if (store->disk().Exists(batch.path)) {
        Patch(store, batch.path, batch.offset() + where * 16 % kPageSize, bytes);
      }
      return true;
    }
    case Mutation::kForgeHeader: {
      const FoundBatch& batch = batches[which % batches.size()];
      *forged = true;
      if (store->ReadFile(batch.path).size() >= batch.end()) {
        store->Forge(batch, where % (batch.header.header_pages * kPageSize), bytes);
      }
      return true;
    }
    case Mutation::kIdentity: Patch(store, identity, where % 256, bytes); return true;
    case Mutation::kTruncate:
      if (!segments.empty()) {
        const std::string& path = segments[which % segments.size()];
        store->WriteFile(path, store->ReadFile(path).substr(0, where * 16));
      }
      return true;
    case Mutation::kMap: {
      const Result<std::vector<std::string>> names = store->disk().List(map);
      if (names.ok() && !names->empty()) {
        Patch(store, map + "/" + (*names)[which % names->size()], where * 16, bytes);
      }
      return true;
    }
  }
  return true;
}

std::string CheckGroup(Store* store, GroupId id, bool one_place) {
  const Result<GroupInfo> info = (*store)->Info(id);
  if (!info.ok()) {
    // Map and stream damaged both: then at least the gap is known.
    return !one_place && (*store)->recovery().gaps > 0 ? "" : "a group is gone\n";
  }
  GroupModel group = store->model().group(id);
  if (info->applied > group.chosen.size()) return "applied what nobody chose";
  group.blocks = StoreModel::Replay(group, info->applied);
  std::string problems;
  for (Lba lba = 0; lba < 16; ++lba) {
    const Result<ReadResult> read = (*store)->Read(id, lba, 1);
    if (read.ok()) problems += StoreModel::CompareRead(group, lba, *read);
  }
  std::set<Instance> listed;
  for (const LogEntryInfo& entry : (*store)->LogEntries(id, 1, kMaxInstance)) {
    listed.insert(entry.instance);
  }
  for (const auto& [instance, states] : group.log) {
    if (instance <= info->applied || listed.contains(instance)) continue;
    if (one_place && !info->suspect) problems += "an entry is denied\n";
  }
  return problems;
}

// Uses the store as if nothing had happened; only crashes count.
void Exercise(Store* store) {
  for (const GroupId id : (*store)->Groups()) {
    for (const LogEntryInfo& entry : (*store)->LogEntries(id, 1, kMaxInstance)) {
      (void)(*store)->ReadLogEntry(id, entry.instance);
    }
    for (Lba lba = 0; lba < 16; ++lba) (void)(*store)->Read(id, lba, 1);
  }
  std::vector<Damage> damage;
  (void)(*store)->Scrub(1 << 20, &damage);
  std::vector<Completion> completions;
  (void)(*store)->SaveHardState(1, {99, 1}, "later", 1);
  (void)(*store)->Drain(&completions);
  (void)(*store)->Close();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::unique_ptr<Store> kStore = Build();
  static const std::vector<FoundBatch> kBatches = kStore->Batches();
  const std::unique_ptr<Store> store = kStore->Fork(1);
  Decoder in({data, size});
  bool forged = false;
  size_t mutations = 0;
  while (mutations < kMaxMutations && Mutate(&in, kBatches, store.get(), &forged)) ++mutations;
  const bool one_place = mutations <= 1 && size <= kHeadBytes + kMaxWithinPage;
  const Status opened = store->OpenUnchecked();
  if (!opened.ok()) {
    HYDRA_CHECK(!opened.message().empty());
    return 0;
  }
  if (!forged) {
    const std::string problems =
        CheckGroup(store.get(), 1, one_place) + CheckGroup(store.get(), 2, one_place);
    if (!problems.empty()) std::fprintf(stderr, "%s\n", problems.c_str());
    HYDRA_CHECK(problems.empty());
  }
  Exercise(store.get());
  return 0;
}
