// SPDX-License-Identifier: Apache-2.0
//
// Rot: one bit of every byte of chosen batches is flipped, one at a time, on a copy of the disk.
// Whatever the byte, nothing acknowledged is silently lost or wrong: a block reads right or
// as kCorruption, an entry is there, faulty, or missing from a group that says it is suspect. Only
// damage to the very last batch of a store that died before the next seal may pass for a tear.
// A header before the checkpoint is not looked at by the engine, unless what it tells of is still
// needed; the offline inspector reports it all the same.
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/crc32c.h"
#include "daemon/store_reader_verify.h"
#include "tests/support/store_fixture.h"

namespace hydra::test {
namespace {

enum class Death {
  kClosed,    // in order: sealed and checkpointed
  kSealed,    // after an idle moment
  kUnsealed,  // right behind the last batch
};

enum class Place { kBeforeCheckpoint, kAfterCheckpoint, kThirdLast, kSecondLast, kLast };

constexpr uint64_t kBlocksWritten = 12;

// Two groups, one block per batch; a checkpoint in the middle; the last entry of group 2 accepted,
// but not applied.
std::unique_ptr<Store> BuildStore(Death death) {
  Store::Options options;
  options.segment_bytes = 512 * 1024;
  options.engine.spare_segments = 0;
  auto store = std::make_unique<Store>(options);
  store->MustStart();
  EXPECT_TRUE(store->CreateGroup(2, 1).ok());
  EXPECT_TRUE(store->Flush().ok());
  for (uint64_t b = 0; b < kBlocksWritten; ++b) {
    const GroupId group = 1 + b % 2;
    EXPECT_TRUE(store->Write(group, b).ok());
    EXPECT_TRUE(store->Flush().ok());
    if (b == kBlocksWritten - 1) break;
    EXPECT_TRUE(store->Apply(group).ok());
    if (b == kBlocksWritten / 2) {
      EXPECT_TRUE(store->SaveHardState(1, {5, 1}, "promise").ok());
      EXPECT_TRUE(store->Flush().ok());
      EXPECT_TRUE(store->Checkpoint().ok());
    }
  }
  if (death == Death::kSealed) {
    store->clock().Advance(store->options().engine.seal_after * 2);
    EXPECT_TRUE(store->Flush().ok());
  }
  EXPECT_EQ(store->Problems(), "");
  if (death == Death::kClosed) {
    EXPECT_TRUE(store->Close().ok());
  } else {
    store->Crash();
  }
  return store;
}

// The batch of block `b`, by what its payload says.
FoundBatch BatchOfBlock(Store* store, uint64_t b) {
  for (const FoundBatch& batch : store->Batches()) {
    if (batch.header.payload_pages != 1) continue;
    const std::string file = store->ReadFile(batch.path);
    const auto* page = reinterpret_cast<const uint8_t*>(file.data()) + batch.payload_offset();
    const std::string author = DescribeBlock({page, kPageSize});
    if (author.starts_with(fmt::format("group {} block {} ", 1 + b % 2, b))) return batch;
  }
  ADD_FAILURE() << "no batch holds block " << b;
  return {};
}

uint64_t BlockAt(Place place) {
  switch (place) {
    case Place::kBeforeCheckpoint: return 3;
    case Place::kAfterCheckpoint: return kBlocksWritten / 2 + 2;
    case Place::kThirdLast: return kBlocksWritten - 3;
    case Place::kSecondLast: return kBlocksWritten - 2;
    case Place::kLast: return kBlocksWritten - 1;
  }
  return 0;
}

// What a damaged store shows.
struct Findings {
  bool opened = false;
  bool torn = false;
  uint64_t gaps = 0;
  uint64_t faulty = 0;
  bool all_suspect = true;
  std::set<std::pair<GroupId, Lba>> rotten_blocks;        // kCorruption when read
  std::set<std::pair<GroupId, Instance>> rotten_entries;  // ... or faulty
  std::vector<Damage> scrubbed;
  std::string lost;      // acknowledged, and missing from a group that is suspect
  std::string denied;    // ... from a group that is not
  std::string problems;  // wrong
};

void LookAtLog(Store* store, const GroupInfo& info, Findings* found) {
  const GroupModel& group = store->model().group(info.group);
  std::set<Instance> listed;
  for (const LogEntryInfo& entry : (*store)->LogEntries(info.group, 1, kMaxInstance)) {
    listed.insert(entry.instance);
    const Result<LogEntry> read = (*store)->ReadLogEntry(info.group, entry.instance);
    if (entry.faulty || (!read.ok() && read.status().code() == Code::kCorruption)) {
      found->rotten_entries.emplace(info.group, entry.instance);
      continue;
    }
    if (!read.ok() && read.status().code() == Code::kIoError) continue;  // injected
    const AcceptState* state = group.Newest(entry.instance);
    found->problems += state == nullptr ? "an entry that was never accepted\n"
                       : !read.ok()
                           ? read.status().ToString() + "\n"
                           : StoreModel::CompareEntry(group, entry.instance, *state, *read);
  }
  for (const auto& [instance, states] : group.log) {
    if (instance <= info.applied || listed.contains(instance)) continue;
    const std::string text = fmt::format("group {} lost {}\n", info.group, instance);
    (info.suspect ? found->lost : found->denied) += text;
  }
}

void LookAtBlocks(Store* store, const GroupInfo& info, Findings* found) {
  GroupModel group = store->model().group(info.group);
  if (info.applied > group.chosen.size()) {
    found->problems += "applied what nobody chose\n";
    return;
  }
  group.blocks = StoreModel::Replay(group, info.applied);
  for (Lba lba = 0; lba < kBlocksWritten; ++lba) {
    const Result<ReadResult> read = (*store)->Read(info.group, lba, 1);
    if (read.ok()) {
      found->problems += StoreModel::CompareRead(group, lba, *read);
    } else if (read.status().code() == Code::kCorruption) {
      found->rotten_blocks.emplace(info.group, lba);
    } else {
      found->problems += read.status().ToString() + "\n";
    }
  }
}

Findings LookAt(Store* store) {
  Findings found;
  const Status opened = store->OpenUnchecked();
  if (!opened.ok()) {
    if (opened.code() != Code::kCorruption || opened.message().empty()) {
      found.problems = "open: " + opened.ToString();
    }
    return found;
  }
  found.opened = true;
  found.torn = (*store)->recovery().torn;
  found.gaps = (*store)->recovery().gaps;
  found.faulty = (*store)->recovery().faulty;
  for (const GroupId id : {1u, 2u}) {
    const Result<GroupInfo> info = (*store)->Info(id);
    if (!info.ok()) {
      found.problems += "a group is gone\n";
      continue;
    }
    found.all_suspect &= info->suspect;
    LookAtLog(store, *info, &found);
    LookAtBlocks(store, *info, &found);
  }
  for (int round = 0; round < 100; ++round) {
    const Result<bool> done = (*store)->Scrub(1 << 20, &found.scrubbed);
    if (!done.ok()) found.problems += "scrub: " + done.status().ToString() + "\n";
    if (!done.ok() || *done) break;
  }
  return found;
}

bool Scrubbed(const Findings& found, GroupId group, Lba lba, Instance instance) {
  for (const Damage& damage : found.scrubbed) {
    if (damage.group != group) continue;
    if (damage.what == Damage::What::kBlock && damage.lba == lba) return true;
    if (damage.what == Damage::What::kRecordPayload && damage.instance == instance) return true;
  }
  return false;
}

// Whether the engine replays the batch when it is opened.
bool IsReplayed(Death death, Place place) {
  return death != Death::kClosed && place != Place::kBeforeCheckpoint;
}

// "" if the offline inspector says that this header is rotten.
std::string Inspect(Store* store, const BatchHeader& header) {
  const auto report = store_reader::VerifyStore(&store->disk(), kStoreDirectory, {});
  if (!report.ok()) return "inspect: " + report.status().ToString();
  for (const store_reader::Finding& finding : report->findings) {
    if (finding.kind == store_reader::FindingKind::kBatchHeader &&
        finding.segment == header.segment && finding.page == header.page) {
      return "";
    }
  }
  return "the inspector does not report a rotten header";
}

// Checks one flip; "" if the store behaved.
std::string Judge(Death death, Place place, bool in_header, const Findings& found) {
  if (!found.problems.empty()) return found.problems;
  if (!found.opened) return "";
  const bool tail = place == Place::kLast && death == Death::kUnsealed;
  if (tail) return found.gaps == 0 ? "" : "a tear reported as rot";
  if (found.torn) return "rot taken for a tear";
  if (!found.denied.empty()) return found.denied;
  const bool replayed = IsReplayed(death, place);
  const uint64_t block = BlockAt(place);
  const GroupId group = 1 + block % 2;
  const Instance instance = 1 + block / 2;
  if (in_header) {
    if (replayed && (found.gaps == 0 || !found.all_suspect)) return "a lost header not reported";
    // The entry that was never applied is needed, wherever replay starts.
    if (death == Death::kClosed && place == Place::kLast &&
        !found.rotten_entries.contains({group, instance})) {
      return "an open entry's lost header not reported";
    }
    if (!replayed && !found.lost.empty()) return found.lost;
    return "";
  }
  if (!found.lost.empty()) return found.lost;
  // As a block if it was applied, else as an entry.
  if (!found.rotten_blocks.contains({group, block}) &&
      !found.rotten_entries.contains({group, instance})) {
    return "rotten payload not noticed when read";
  }
  if (!Scrubbed(found, group, block, instance)) return "rotten payload not found by scrub";
  return "";
}

void FlipEveryByte(Death death, Place place, uint64_t stride) {
  const std::unique_ptr<Store> store = BuildStore(death);
  const FoundBatch batch = BatchOfBlock(store.get(), BlockAt(place));
  ASSERT_FALSE(batch.path.empty());
  // Undamaged, it holds everything.
  std::unique_ptr<Store> whole = store->Fork(1);
  const Findings fine = LookAt(whole.get());
  ASSERT_TRUE(fine.opened);
  ASSERT_EQ(fine.problems + fine.lost + fine.denied, "");
  ASSERT_EQ(fine.gaps + fine.faulty + fine.rotten_blocks.size() + fine.scrubbed.size(), 0u);
  // (The inspector copies the map to look at it: where every byte is flipped, some have to do.)
  const uint64_t inspect_every = stride == 1 ? 16 : 1;
  uint64_t flips = 0;
  for (uint64_t at = batch.offset(); at < batch.end(); at += stride) {
    SCOPED_TRACE(
        fmt::format("byte {} of the batch of block {}", at - batch.offset(), BlockAt(place)));
    const bool in_header = at < batch.payload_offset();
    std::unique_ptr<Store> fork = store->Fork(at);
    fork->disk().FlipBit(batch.path, at, static_cast<unsigned>(at / stride % 8));
    if (in_header && !IsReplayed(death, place) && flips++ % inspect_every == 0) {
      ASSERT_EQ(Inspect(fork.get(), batch.header), "");
    }
    const Findings found = LookAt(fork.get());
    ASSERT_EQ(Judge(death, place, in_header, found), "");
  }
}

using RotParam = std::tuple<Death, Place>;

class Rot : public testing::TestWithParam<RotParam> {};
TEST_P(Rot, AFlippedBitIsNeverPassedOnNorTakenForATear) {
  FlipEveryByte(std::get<0>(GetParam()), std::get<1>(GetParam()), 61);
}

class SoakRot : public testing::TestWithParam<RotParam> {};
TEST_P(SoakRot, EveryByteFlippedIsNeverPassedOnNorTakenForATear) {
  FlipEveryByte(std::get<0>(GetParam()), std::get<1>(GetParam()), 1);
}

const auto kDeaths = testing::Values(Death::kClosed, Death::kSealed, Death::kUnsealed);
const auto kPlaces = testing::Values(Place::kBeforeCheckpoint, Place::kAfterCheckpoint,
                                     Place::kThirdLast, Place::kSecondLast, Place::kLast);
std::string ParamName(const testing::TestParamInfo<RotParam>& info) {
  static const char* const kDeathNames[] = {"Closed", "Sealed", "Unsealed"};
  static const char* const kPlaceNames[] = {"BeforeCheckpoint", "AfterCheckpoint", "ThirdLast",
                                            "SecondLast", "Last"};
  return std::string(kDeathNames[static_cast<int>(std::get<0>(info.param))]) +
         kPlaceNames[static_cast<int>(std::get<1>(info.param))];
}
INSTANTIATE_TEST_SUITE_P(Sampled, Rot, testing::Combine(kDeaths, kPlaces), ParamName);
INSTANTIATE_TEST_SUITE_P(All, SoakRot, testing::Combine(kDeaths, kPlaces), ParamName);

// The seal proves that what is before it was whole. Damage to the seal itself costs nothing.
TEST(RotTail, ADamagedSealLosesNothing) {
  const std::unique_ptr<Store> store = BuildStore(Death::kSealed);
  const FoundBatch seal = store->Batches().back();
  ASSERT_TRUE(seal.header.seal);
  for (uint64_t at = seal.offset(); at < seal.end(); at += 7) {
    std::unique_ptr<Store> fork = store->Fork(at);
    fork->disk().FlipBit(seal.path, at, at % 8);
    ASSERT_TRUE(fork->Open().ok());
    ASSERT_EQ(fork->Problems(), "") << "byte " << at - seal.offset();
  }
}

TEST(RotTail, ATornTailIsCutAndNothingAckedIsLost) {
  unsigned cut = 0;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    Store::Options options;
    options.disk.seed = seed;
    Store store(options);
    store.MustStart();
    ASSERT_TRUE(store.Write(1, 0, 4).ok());
    ASSERT_TRUE(store.Flush().ok());
    ASSERT_TRUE(store.Write(1, 8, 8).ok());
    store.disk().CutPowerAfter(1);
    ASSERT_FALSE(store.Flush().ok());
    store.PowerLoss();
    ASSERT_TRUE(store.Open().ok());
    ASSERT_EQ(store.Problems(), "") << "seed " << seed;
    EXPECT_EQ(store->recovery().gaps, 0u) << "seed " << seed;
    cut += store->recovery().torn;
    // And it is appended behind, not after, the cut.
    ASSERT_TRUE(store.Write(1, 20, 4).ok());
    ASSERT_TRUE(store.Settle().ok());
    store.PowerLoss();
    ASSERT_TRUE(store.Open().ok());
    ASSERT_TRUE(store.ApplyAll().ok());
    ASSERT_EQ(store.Problems() + store.VerifyAll(), "") << "seed " << seed;
  }
  EXPECT_GT(cut, 0u) << "no seed tore the batch so that its header survived";
}

// A device that does not return the tail is not a device on which nothing was written.
TEST(RotTail, AnUnreadableTailIsNeverCalledTorn) {
  const std::unique_ptr<Store> store = BuildStore(Death::kSealed);
  unsigned failed = 0;
  for (uint64_t n = 1; n <= 60; ++n) {
    std::unique_ptr<Store> fork = store->Fork(n);
    fork->disk().FailNth(IoKind::kRead, n);
    const Status opened = fork->OpenUnchecked();
    if (!opened.ok()) {
      ++failed;
      EXPECT_TRUE(opened.code() == Code::kIoError || opened.code() == Code::kCorruption)
          << opened.ToString();
      continue;
    }
    EXPECT_FALSE((*fork)->recovery().torn) << "read " << n;
    for (const GroupId id : {1u, 2u}) {
      Findings found;
      const Result<GroupInfo> info = (*fork)->Info(id);
      ASSERT_TRUE(info.ok());
      LookAtLog(fork.get(), *info, &found);
      EXPECT_EQ(found.problems + found.denied, "") << "read " << n;
    }
  }
  EXPECT_GT(failed, 0u);
}

}  // namespace
}  // namespace hydra::test
