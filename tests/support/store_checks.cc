// SPDX-License-Identifier: Apache-2.0
//
// StoreModel's comparisons with a running engine.
#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include <fmt/format.h>

#include "base/crc32c.h"
#include "tests/support/store_model.h"

namespace hydra::test {
namespace {

const char* KindName(BlockKind kind) {
  switch (kind) {
    case BlockKind::kData: return "data";
    case BlockKind::kZero: return "zero";
    case BlockKind::kUnmapped: return "unmapped";
  }
  return "?";
}

// Most of what tests read is holes, so this is much of their time: memcmp instead of a loop over
// bytes, and the CRC of zeroes only once for each size.
bool IsHole(uint32_t crc, std::span<const uint8_t> contents) {
  static const std::vector<uint32_t> kCrcs = [] {
    std::vector<uint32_t> crcs;
    const std::vector<uint8_t> zeroes(kMaxBlockPages * kPageSize);
    for (uint32_t pages = 0; pages <= kMaxBlockPages; ++pages) {
      crcs.push_back(Crc32c(zeroes.data(), pages * kPageSize));
    }
    return crcs;
  }();
  return crc == kCrcs.at(contents.size() / kPageSize) && contents.front() == 0 &&
         std::memcmp(contents.data(), contents.data() + 1, contents.size() - 1) == 0;
}

// A read tells data from holes; of holes it does not say whether they were zeroed or deleted.
bool Matches(const BlockState& expected, const BlockInfo& found, std::span<const uint8_t> contents,
             bool owed) {
  if (expected.kind == BlockKind::kData) {
    return found.kind == BlockKind::kData && found.version == expected.version &&
           found.crc == expected.crc && (owed || Crc32c(contents) == expected.crc);
  }
  return found.kind != BlockKind::kData && found.version == 0 && IsHole(found.crc, contents);
}

std::string ReadableVersion(Version version) {
  return fmt::format("{}.{}", VersionInstance(version), version & 0xffff);
}

}  // namespace

std::string StoreModel::CompareEntry(const GroupModel& group, Instance instance,
                                     const AcceptState& state, const LogEntry& entry) {
  const auto problem = [&](const char* text) {
    return fmt::format("group {} instance {}: {}\n", group.id, instance, text);
  };
  const AcceptRecord& record = entry.record;
  if (record.group != group.id || record.instance != instance || record.ballot != state.ballot) {
    return problem("the log entry is another one");
  }
  if (!record.understood || record.entry != state.value->entry) {
    return problem("the log entry holds other operations");
  }
  size_t bytes = 0;
  for (const BufferSlice& slice : entry.payload) bytes += slice.length;
  if (bytes != record.entry.PayloadPages() * kPageSize || entry.payload.size() > 1) {
    return problem("the log entry's payload has another size");
  }
  const uint8_t* data = entry.payload.empty() ? nullptr : entry.payload.front().data();
  for (const Operation& op : state.value->entry.operations) {
    if (op.kind != OpKind::kWrite) continue;
    for (uint32_t crc : op.crcs) {
      if (Crc32c(data, op.block_pages * kPageSize) != crc) {
        return problem("the log entry's payload is not what was accepted");
      }
      data += op.block_pages * kPageSize;
    }
  }
  return "";
}

std::string StoreModel::CompareRead(const GroupModel& group, Lba lba, const ReadResult& read,
                                    const std::vector<Lba>& owed) {
  std::string problems;
  for (const Lba block : owed) {
    const auto delivered = group.delivered.find(block);
    if (delivered == group.delivered.end() ||
        delivered->second != read.blocks[block - lba].version) {
      continue;
    }
    problems += fmt::format("group {} block {}: owed, though it was delivered\n", group.id, block);
  }
  const auto first = group.blocks.lower_bound(lba);
  return problems + CompareReadSince(group, group.applied,
                                     {first, group.blocks.lower_bound(lba + read.blocks.size())},
                                     lba, read, owed);
}

std::string StoreModel::CompareReadSince(const GroupModel& group, Instance since,
                                         std::map<Lba, BlockState> blocks, Lba lba,
                                         const ReadResult& read, const std::vector<Lba>& owed) {
  if (!owed.empty() && !group.bare) return fmt::format("group {} owes blocks\n", group.id);
  const size_t bytes = group.block_pages * kPageSize;
  if (read.data.size() < read.blocks.size() * bytes) return "short read\n";
  const auto contents = [&](size_t b) {
    return std::span<const uint8_t>(read.data.data() + b * bytes, bytes);
  };
  std::vector<bool> right(read.blocks.size());
  for (Instance i = since;; ++i) {
    for (size_t b = 0; b < right.size(); ++b) {
      if (right[b]) continue;
      const auto state = blocks.find(lba + b);
      right[b] = Matches(state == blocks.end() ? BlockState() : state->second, read.blocks[b],
                         contents(b), std::ranges::binary_search(owed, lba + b));
    }
    if (i >= group.applied) break;
    ApplyEntry(*group.chosen[i], i + 1, group.extent_blocks(), &blocks);
  }
  std::string problems;
  for (size_t b = 0; b < right.size() && problems.size() < 2000; ++b) {
    if (right[b]) continue;
    const BlockState expected = group.At(lba + b);
    problems += fmt::format("group {} block {}: read {} version {} ({}), expected {} version {}\n",
                            group.id, lba + b, KindName(read.blocks[b].kind),
                            ReadableVersion(read.blocks[b].version), DescribeBlock(contents(b)),
                            KindName(expected.kind), ReadableVersion(expected.version));
  }
  return problems;
}

Result<ReadResult> StoreModel::FinishRead(Engine* engine, std::unique_ptr<ReadJob> job,
                                          std::vector<Lba>* owed) {
  DamagedRead damaged;
  Result<ReadResult> read = engine->FinishRead(std::move(job), &damaged);
  if (read.ok() || damaged.blocks.empty()) return read;
  for (const Damage& block : damaged.blocks) {
    if (!block.owed()) return read.status();
    owed->push_back(block.lba);
  }
  return std::move(damaged.rest);
}

std::string StoreModel::VerifyBlocks(Engine* engine) const {
  std::string problems;
  for (GroupId id : Usable()) problems += VerifyBlocks(engine, id);
  return problems;
}

std::string StoreModel::VerifyBlocks(Engine* engine, GroupId id) const {
  std::string problems;
  const GroupModel& group = groups_.at(id);
  if (Mixed(engine, id)) return "";
  for (Extent extent : group.touched) {
    const Lba lba = extent * group.extent_blocks();
    // The very last block of all has no successor, and so cannot be part of a range.
    const uint64_t count =
        std::min<uint64_t>(group.extent_blocks(), std::numeric_limits<Lba>::max() - lba);
    Result<std::unique_ptr<ReadJob>> job = engine->PlanRead(id, lba, count);
    if (!job.ok()) return job.status().ToString() + "\n";
    (*job)->Run();
    std::vector<Lba> owed;
    const Result<ReadResult> read = FinishRead(engine, std::move(*job), &owed);
    if (!read.ok()) {
      return fmt::format("group {} extent {}: {}\n", id, extent, read.status().ToString());
    }
    if (read->blocks.size() != count) return "a read of another length\n";
    problems += CompareRead(group, lba, *read, owed);
  }
  return problems;
}

std::string StoreModel::VerifyLog(Engine* engine, GroupId id) const {
  std::string problems;
  const GroupModel& group = groups_.at(id);
  const Result<GroupInfo> info = engine->Info(id);
  if (!info.ok()) return info.status().ToString() + "\n";
  std::set<Instance> listed;
  for (const LogEntryInfo& found : engine->LogEntries(id, 1, kMaxInstance)) {
    listed.insert(found.instance);
    const auto it = group.log.find(found.instance);
    const AcceptState* state = nullptr;
    if (it != group.log.end()) {
      for (const AcceptState& s : it->second) {
        if (s.ballot == found.ballot) state = &s;
      }
    }
    if (state == nullptr || found.faulty) {
      problems += fmt::format("group {} instance {}: {}\n", id, found.instance,
                              found.faulty ? "faulty" : "listed, but never accepted so");
      continue;
    }
    Result<LogEntry> entry = engine->ReadLogEntry(id, found.instance);
    problems += entry.ok() ? CompareEntry(group, found.instance, *state, *entry)
                           : fmt::format("group {} instance {}: {}\n", id, found.instance,
                                         entry.status().ToString());
  }
  for (const auto& [i, states] : group.log) {
    const bool done =
        std::any_of(states.begin(), states.end(), [](const AcceptState& s) { return s.done; });
    if (done && i > info->stable && !listed.contains(i)) {
      problems += fmt::format("group {} instance {}: durable, but not in the log\n", id, i);
    }
  }
  return problems;
}

std::string StoreModel::VerifyInfo(Engine* engine, GroupId id) const {
  const GroupModel& group = groups_.at(id);
  const Result<GroupInfo> info = engine->Info(id);
  if (!info.ok()) return fmt::format("group {}: {}\n", id, info.status().ToString());
  std::string problems;
  const auto expect = [&](bool right, const char* what) {
    if (!right) problems += fmt::format("group {}: Info is wrong about {}\n", id, what);
  };
  expect(info->group == id && info->block_pages == group.block_pages, "the group");
  expect(info->applied == group.applied, "applied");
  expect(info->stable <= info->applied && info->stable >= group.covered, "stable");
  expect(info->truncated <= info->stable, "truncated");
  expect(!info->suspect && !info->halted, "health");
  expect(info->installing == group.installing && info->install.active() == info->installing,
         "installing");
  expect(info->mixed_until == 0 || group.installed, "being mixed");
  const HardState* durable = nullptr;
  for (const HardState& state : group.hard_states) {
    if (state.done) durable = &state;
  }
  expect(durable == nullptr
             ? info->promised == Ballot() && info->opaque.empty()
             : info->promised == durable->promised && info->opaque == durable->opaque,
         "the durable hard state");
  return problems;
}

namespace {

using Scan = std::vector<Change>;

template <typename Call>
Result<Scan> Collect(const Call& call) {
  constexpr size_t kLimit = 100;
  Scan all;
  std::string cursor;
  for (;;) {
    Result<ChangeBatch> batch = call(cursor, kLimit);
    if (!batch.ok()) return batch.status();
    all.insert(all.end(), batch->changes.begin(), batch->changes.end());
    if (batch->done) return all;
    if (batch->next == cursor) return Status::Aborted("a scan that stands still");
    cursor = batch->next;
  }
}

std::string CompareImage(const GroupModel& group, const Scan& image) {
  auto expected = group.blocks.begin();
  const auto skip = [&] {
    while (expected != group.blocks.end() && expected->second.kind != BlockKind::kData) ++expected;
  };
  skip();
  for (const Change& row : image) {
    if (expected == group.blocks.end() || row.lba != expected->first || row.whole_extent ||
        row.kind != BlockKind::kData || row.version != expected->second.version ||
        row.crc != expected->second.crc) {
      return fmt::format(
          "group {}: image has block {} version {}, expected {}\n", group.id, row.lba,
          ReadableVersion(row.version),
          expected == group.blocks.end() ? "the end" : std::to_string(expected->first));
    }
    ++expected;
    skip();
  }
  if (expected == group.blocks.end()) return "";
  return fmt::format("group {}: block {} is missing in the image\n", group.id, expected->first);
}

std::string CompareChanges(const GroupModel& group, Version since, const Scan& changes) {
  std::map<std::pair<bool, Lba>, Version> seen;
  Version previous = since;
  for (const Change& row : changes) {
    if (row.version <= since || row.version < previous) {
      return fmt::format("group {}: changes since {} are out of order at {}\n", group.id,
                         ReadableVersion(since), ReadableVersion(row.version));
    }
    previous = row.version;
    seen[{row.whole_extent, row.lba}] = row.version;
  }
  const std::map<Lba, BlockState> at_since =
      group.raced ? StoreModel::Replay(group, VersionInstance(since)) : std::map<Lba, BlockState>();
  for (const auto& [lba, state] : group.blocks) {
    if (state.version <= since) continue;
    if (group.raced && state.kind != BlockKind::kData) {
      // What a receiver that stands at `since` has to hear: that its data is gone.
      const auto before = at_since.find(lba);
      const bool was_data = before != at_since.end() && before->second.kind == BlockKind::kData;
      if (was_data && !seen.contains({true, lba / group.extent_blocks()}) &&
          !seen.contains({false, lba})) {
        return fmt::format("group {}: changes since {} do not say that block {} is gone\n",
                           group.id, ReadableVersion(since), lba);
      }
      continue;
    }
    const auto it =
        seen.find({state.whole_extent, state.whole_extent ? lba / group.extent_blocks() : lba});
    if (it == seen.end() || it->second != state.version) {
      return fmt::format("group {}: changes since {} miss block {} version {}\n", group.id,
                         ReadableVersion(since), lba, ReadableVersion(state.version));
    }
  }
  return "";
}

}  // namespace

std::string StoreModel::VerifyScans(Engine* engine, GroupId id) const {
  const GroupModel& group = groups_.at(id);
  const Result<GroupInfo> info = engine->Info(id);
  if (!info.ok()) return info.status().ToString() + "\n";
  const Result<Scan> image = Collect([&](const std::string& cursor, size_t limit) {
    return engine->ScanImage(id, cursor, limit);
  });
  if (!image.ok()) return fmt::format("image of {}: {}\n", id, image.status().ToString());
  std::string problems = CompareImage(group, *image);
  for (const Version since : {Version{0}, info->horizon, MakeVersion(group.applied / 2, 0),
                              MakeVersion(group.applied, 0)}) {
    const Result<Scan> changes = Collect([&](const std::string& cursor, size_t limit) {
      return engine->ScanChanges(id, since, cursor, limit);
    });
    if (since < info->horizon) {
      if (changes.ok() || changes.status().code() != Code::kOutOfRange) {
        problems += fmt::format("group {}: changes behind the horizon are not refused\n", id);
      }
    } else if (!changes.ok()) {
      problems += fmt::format("changes of {}: {}\n", id, changes.status().ToString());
    } else {
      problems += CompareChanges(group, since, *changes);
    }
  }
  return problems;
}

std::string StoreModel::VerifyAccounting(Engine* engine) const {
  std::string problems;
  uint64_t expected = 0;
  for (GroupId id : Usable()) {
    const GroupModel& group = groups_.at(id);
    const uint64_t blocks = group.DataBlocks();
    const Result<GroupInfo> info = engine->Info(id);
    expected += (blocks - (info.ok() ? info->owed_blocks : 0)) * group.block_pages;
    if (!info.ok() || info->data_blocks != blocks) {
      problems += fmt::format("group {}: {} data blocks counted, {} expected\n", id,
                              info.ok() ? info->data_blocks : 0, blocks);
    }
  }
  const EngineStats stats = engine->Stats();
  if (!stats.accounting_complete) return problems;
  uint64_t live = 0;
  for (const SegmentStats& segment : stats.segments) {
    live += segment.live_pages;
    if (segment.live_pages > segment.used_pages) {
      problems += fmt::format("segment {}: {} of {} pages live\n", segment.segment,
                              segment.live_pages, segment.used_pages);
    }
  }
  if (live != expected) {
    problems += fmt::format("{} pages are counted as live, {} are\n", live, expected);
  }
  for (GroupId id : Usable()) problems += VerifyOwed(engine, id);
  return problems;
}

std::string StoreModel::VerifyOwed(Engine* engine, GroupId id) const {
  const GroupModel& group = groups_.at(id);
  const uint64_t count = engine->OwedCount(id);
  const Result<std::vector<BlockName>> owed = engine->OwedBlocks(id, 0, count + 1);
  if (!owed.ok()) return fmt::format("owed of {}: {}\n", id, owed.status().ToString());
  std::string problems;
  if (owed->size() != count) {
    problems +=
        fmt::format("group {}: {} owed blocks counted, {} listed\n", id, count, owed->size());
  }
  for (const BlockName& block : *owed) {
    const BlockState expected = group.At(block.lba);
    const bool right = expected.kind == BlockKind::kData && expected.version == block.version &&
                       expected.crc == block.crc;
    if (!right && !Mixed(engine, id)) {
      problems += fmt::format("group {} block {}: owed in version {}, expected {}\n", id, block.lba,
                              ReadableVersion(block.version), ReadableVersion(expected.version));
    }
  }
  return problems;
}

}  // namespace hydra::test
