// SPDX-License-Identifier: Apache-2.0
#include "tests/support/store_model.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "base/check.h"
#include "base/coding.h"
#include "base/crc32c.h"

namespace hydra::test {
namespace {

constexpr uint64_t kContentMagic = 0x6b636f6c62797268;  // "hyrblock"

uint64_t Mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

uint64_t AuthorOf(uint64_t proposal, size_t operation) { return proposal << 12 | operation; }

void ApplyOperation(const Operation& op, Version version, uint32_t extent_blocks,
                    std::map<Lba, BlockState>* blocks) {
  BlockState state;
  state.version = version;
  switch (op.kind) {
    case OpKind::kNoop:
    case OpKind::kOpaque: return;
    case OpKind::kWrite:
      state.kind = BlockKind::kData;
      for (uint64_t b = 0; b < op.count; ++b) {
        state.crc = op.crcs[b];
        (*blocks)[op.lba + b] = state;
      }
      return;
    case OpKind::kZero:
    case OpKind::kUnmap:
      state.kind = op.kind == OpKind::kZero ? BlockKind::kZero : BlockKind::kUnmapped;
      for (uint64_t b = 0; b < op.count; ++b) (*blocks)[op.lba + b] = state;
      return;
    case OpKind::kZeroExtents:
      state.kind = BlockKind::kZero;
      state.whole_extent = true;
      for (Extent extent : op.extents) {
        for (uint64_t b = 0; b < extent_blocks; ++b) (*blocks)[extent * extent_blocks + b] = state;
      }
      return;
  }
}

// Index of the last completed element, or -1.
template <typename T>
ptrdiff_t LastDone(const std::vector<T>& states) {
  ptrdiff_t i = static_cast<ptrdiff_t>(states.size()) - 1;
  while (i >= 0 && !states[i].done) --i;
  return i;
}

}  // namespace

void FillBlock(GroupId group, Lba lba, uint64_t author, std::span<uint8_t> block) {
  HYDRA_CHECK(block.size() % kPageSize == 0);
  const uint64_t key = Mix(Mix(Mix(group + 1) ^ lba) ^ author);
  for (size_t at = 0; at < block.size(); at += sizeof(uint64_t)) {
    uint64_t word = Mix(key + at);
    switch (at % kPageSize / sizeof(uint64_t)) {
      case 0: word = kContentMagic; break;
      case 1: word = group; break;
      case 2: word = lba; break;
      case 3: word = author; break;
      default: break;
    }
    EncodeFixed64(block.data() + at, word);
  }
}

std::string DescribeBlock(std::span<const uint8_t> block) {
  if (std::all_of(block.begin(), block.end(), [](uint8_t b) { return b == 0; })) return "zeroes";
  if (block.size() < kPageSize || DecodeFixed64(block.data()) != kContentMagic) {
    return "foreign bytes";
  }
  return fmt::format("group {} block {} author {}.{}", DecodeFixed64(block.data() + 8),
                     DecodeFixed64(block.data() + 16), DecodeFixed64(block.data() + 24) >> 12,
                     DecodeFixed64(block.data() + 24) & 0xfff);
}

Operation WriteOp(Lba lba, uint64_t count) {
  Operation op;
  op.kind = OpKind::kWrite;
  op.lba = lba;
  op.count = count;
  return op;
}

Operation ZeroOp(Lba lba, uint64_t count) {
  Operation op = WriteOp(lba, count);
  op.kind = OpKind::kZero;
  return op;
}

Operation UnmapOp(Lba lba, uint64_t count) {
  Operation op = WriteOp(lba, count);
  op.kind = OpKind::kUnmap;
  return op;
}

Operation ZeroExtentsOp(std::vector<Extent> extents) {
  Operation op;
  op.kind = OpKind::kZeroExtents;
  op.extents = std::move(extents);
  return op;
}

Operation OpaqueOp(std::string context) {
  Operation op;
  op.kind = OpKind::kOpaque;
  op.context = std::move(context);
  return op;
}

std::string LayerState(GroupId group, Instance applied) {
  return fmt::format("state of group {} at {}", group, applied);
}

Payload Proposal::MakePayload() const {
  const size_t pages = entry.PayloadPages();
  if (pages == 0) return {};
  Buffer buffer = contents.has_value() ? *contents : Buffer::Allocate(pages * kPageSize);
  HYDRA_CHECK(buffer.size() == pages * kPageSize);
  if (!contents.has_value()) {
    size_t offset = 0;
    for (size_t k = 0; k < entry.operations.size(); ++k) {
      const Operation& op = entry.operations[k];
      if (op.kind != OpKind::kWrite) continue;
      const size_t bytes = op.block_pages * kPageSize;
      for (uint64_t b = 0; b < op.count; ++b, offset += bytes) {
        FillBlock(group, op.lba + b, AuthorOf(id, k), buffer.span().subspan(offset, bytes));
      }
    }
  }
  return {BufferSlice{buffer, 0, pages * kPageSize}};
}

BlockState GroupModel::At(Lba lba) const {
  const auto it = blocks.find(lba);
  return it == blocks.end() ? BlockState() : it->second;
}

Instance GroupModel::last() const {
  const Instance accepted = log.empty() ? 0 : log.rbegin()->first;
  return std::max<Instance>({accepted, chosen.size(), applied});
}

uint64_t GroupModel::DataBlocks() const {
  return static_cast<uint64_t>(std::count_if(blocks.begin(), blocks.end(), [](const auto& row) {
    return row.second.kind == BlockKind::kData;
  }));
}

const AcceptState* GroupModel::Newest(Instance instance) const {
  const auto it = log.find(instance);
  return it == log.end() || it->second.empty() ? nullptr : &it->second.back();
}

const Proposal* StoreModel::NewProposal(const GroupModel& group, std::vector<Operation> operations,
                                        std::optional<Buffer> contents) {
  Proposal& value = proposals_->emplace_back();
  value.group = group.id;
  value.id = proposals_->size();
  value.entry.operations = std::move(operations);
  value.contents = std::move(contents);
  for (Operation& op : value.entry.operations) {
    if (op.kind == OpKind::kWrite) op.block_pages = group.block_pages;
  }
  const Payload payload = value.MakePayload();
  const uint8_t* data = payload.empty() ? nullptr : payload.front().data();
  const size_t bytes = group.block_pages * kPageSize;
  for (Operation& op : value.entry.operations) {
    if (op.kind != OpKind::kWrite) continue;
    for (uint64_t b = 0; b < op.count; ++b, data += bytes) op.crcs.push_back(Crc32c(data, bytes));
  }
  return &value;
}

void StoreModel::Created(GroupId id, uint32_t block_pages, uint64_t token) {
  GroupModel& group = groups_[id];
  group.id = id;
  group.block_pages = block_pages;
  pending_[token] = {What::kCreate, id, 0, 0};
}

void StoreModel::DropQueued(GroupId id, uint64_t token) {
  groups_.at(id).drop_queued = true;
  pending_[token] = {What::kDrop, id, 0, 0};
}

void StoreModel::Accepted(GroupId id, Instance instance, const Ballot& ballot,
                          const Proposal* value, uint64_t token) {
  GroupModel& group = groups_.at(id);
  std::vector<AcceptState>& states = group.log[instance];
  pending_[token] = {What::kAccept, id, instance, states.size()};
  states.push_back({ballot, value, false});
  for (const Operation& op : value->entry.operations) {
    if (op.kind == OpKind::kZeroExtents) group.touched.insert(op.extents.begin(), op.extents.end());
    if (op.count == 0) continue;
    group.touched.insert(op.lba / group.extent_blocks());
    group.touched.insert((op.lba + op.count - 1) / group.extent_blocks());
  }
}

void StoreModel::HardStateQueued(GroupId id, const Ballot& promised, std::string opaque,
                                 uint64_t token) {
  std::vector<HardState>& states = groups_.at(id).hard_states;
  pending_[token] = {What::kHardState, id, 0, states.size()};
  states.push_back({promised, std::move(opaque), false});
}

void StoreModel::TruncateQueued(GroupId id, Instance instance, uint64_t token) {
  std::vector<TruncateState>& states = groups_.at(id).truncates;
  pending_[token] = {What::kTruncate, id, instance, states.size()};
  states.push_back({instance, false});
}

void StoreModel::Learned(GroupId id, const GroupModel& elsewhere) {
  GroupModel& group = groups_.at(id);
  const size_t common = std::min(group.chosen.size(), elsewhere.chosen.size());
  HYDRA_CHECK(std::equal(group.chosen.begin(),
                         group.chosen.begin() + static_cast<ptrdiff_t>(common),
                         elsewhere.chosen.begin()));
  if (elsewhere.chosen.size() > common) group.chosen = elsewhere.chosen;
  group.touched.insert(elsewhere.touched.begin(), elsewhere.touched.end());
}

void StoreModel::InstallQueued(GroupId id, bool installing, Instance to, uint64_t token) {
  GroupModel& group = groups_.at(id);
  group.installing_next = installing;
  group.install_to = to;
  group.installed = true;
  pending_[token] = {What::kInstall, id, to, 0};
}

void StoreModel::DeliverQueued(GroupId id, std::vector<BlockName> blocks, uint64_t token) {
  pending_[token] = {What::kDeliver, id, 0, 0, std::move(blocks)};
}

void StoreModel::Applied(GroupId id, Instance instance) {
  GroupModel& group = groups_.at(id);
  HYDRA_CHECK(instance == group.applied + 1);
  const Proposal* value = group.Newest(instance)->value;
  if (instance > group.chosen.size()) group.chosen.push_back(value);
  HYDRA_CHECK(group.chosen[instance - 1] == value);
  group.applied = instance;
  ApplyEntry(*value, instance, group.extent_blocks(), &group.blocks);
}

void StoreModel::Covered(GroupId id, Instance instance) {
  GroupModel& group = groups_.at(id);
  group.covered = std::max(group.covered, instance);
}

std::string StoreModel::Completed(uint64_t token, Engine* engine) {
  const auto it = pending_.find(token);
  if (it == pending_.end()) return fmt::format("token {} completed, but was not pending\n", token);
  const Pending what = it->second;
  pending_.erase(it);
  if (!groups_.contains(what.group)) return "";
  GroupModel& group = groups_.at(what.group);
  switch (what.what) {
    case What::kCreate: group.created = true; return "";
    case What::kDrop:
      group.dropped = true;
      dropped_.insert(what.group);
      return "";
    case What::kHardState: group.hard_states[what.index].done = true; return "";
    case What::kTruncate: group.truncates[what.index].done = true; return "";
    case What::kDeliver:
      for (const BlockName& block : what.blocks) {
        if (engine == nullptr) break;
        const auto owed = engine->OwedBlocks(what.group, block.lba, 1);
        const bool left_out = owed.ok() && !owed->empty() && owed->front() == block;
        if (owed.ok() && !left_out) group.delivered[block.lba] = block.version;
      }
      return "";
    case What::kInstall:
      group.installing = *group.installing_next;
      group.installing_next.reset();
      if (what.instance == 0) return "";
      group.install_to = 0;
      group.applied = group.covered = what.instance;
      group.log.erase(group.log.begin(), group.log.upper_bound(what.instance));
      group.blocks = Replay(group, what.instance);
      return "";
    case What::kAccept: break;
  }
  if (!group.log.contains(what.instance)) return "";  // an install went past it
  std::vector<AcceptState>& states = group.log.at(what.instance);
  states[what.index].done = true;
  if (LastDone(states) != static_cast<ptrdiff_t>(what.index)) {
    return fmt::format("group {} instance {}: an older accept completed after a newer one\n",
                       what.group, what.instance);
  }
  return "";
}

void StoreModel::CompletedAll() {
  while (!pending_.empty()) (void)Completed(pending_.begin()->first);
}

std::vector<GroupId> StoreModel::Usable() const {
  std::vector<GroupId> ids;
  for (const auto& [id, group] : groups_) {
    if (!group.drop_queued && !group.dropped) ids.push_back(id);
  }
  return ids;
}

void StoreModel::ApplyEntry(const Proposal& value, Instance instance, uint32_t extent_blocks,
                            std::map<Lba, BlockState>* blocks) {
  for (size_t k = 0; k < value.entry.operations.size(); ++k) {
    ApplyOperation(value.entry.operations[k], MakeVersion(instance, static_cast<uint32_t>(k)),
                   extent_blocks, blocks);
  }
}

std::map<Lba, BlockState> StoreModel::Replay(const GroupModel& group, Instance applied) {
  HYDRA_CHECK(applied <= group.chosen.size());
  std::map<Lba, BlockState> blocks;
  for (Instance i = 1; i <= applied; ++i) {
    ApplyEntry(*group.chosen[i - 1], i, group.extent_blocks(), &blocks);
  }
  return blocks;
}

// --- After a crash ---------------------------------------------------------------------------

std::string StoreModel::Recover(Engine* engine) {
  std::string problems;
  pending_.clear();
  const std::vector<GroupId> found = engine->Groups();
  for (GroupId id : found) {
    if (!groups_.contains(id)) problems += fmt::format("group {} was never created\n", id);
  }
  for (auto it = groups_.begin(); it != groups_.end();) {
    GroupModel& group = it->second;
    const bool there = std::find(found.begin(), found.end(), group.id) != found.end();
    if (there && group.dropped) problems += fmt::format("dropped group {} is back\n", group.id);
    if (!there && group.created && !group.drop_queued) {
      problems += fmt::format("group {} is gone\n", group.id);
    }
    if (!there) {
      // A group that was never durable may be created again; a dropped one may not.
      if (group.drop_queued && group.created) dropped_.insert(group.id);
      it = groups_.erase(it);
      continue;
    }
    problems += RecoverGroup(engine, &group);
    ++it;
  }
  return problems;
}

std::string StoreModel::RecoverGroup(Engine* engine, GroupModel* group) {
  const Result<GroupInfo> result = engine->Info(group->id);
  if (!result.ok()) return fmt::format("group {}: {}\n", group->id, result.status().ToString());
  const GroupInfo& info = *result;
  std::string problems;
  const auto problem = [&](const std::string& text) {
    problems += fmt::format("group {}: {}\n", group->id, text);
  };
  if (info.block_pages != group->block_pages) problem("another block size");
  if (info.suspect || info.halted) problem("suspect or halted without rot");
  if (info.applied < group->covered || info.applied > group->chosen.size()) {
    problem(fmt::format("applied is {}: a checkpoint covered {}, {} were chosen", info.applied,
                        group->covered, group->chosen.size()));
    return problems;
  }
  if (info.stable > info.applied) problem("stable is beyond applied");
  if (!info.state.empty() && info.state != LayerState(group->id, info.state_at)) {
    problem(fmt::format("'{}' is not the state at {}", info.state, info.state_at));
  }
  if (info.state_at > info.applied) problem("the layer's state is newer than the map");
  if (info.state_at < group->covered) problem("the layer's state is older than the checkpoint");
  problems += RecoverInstall(info, group);
  problems += RecoverHardState(info, group);
  problems += RecoverLog(engine, info, group);
  group->created = true;
  group->drop_queued = false;
  group->applied = info.applied;
  group->blocks = Replay(*group, info.applied);
  problems += VerifyBlocks(engine, group->id);
  return problems;
}

bool StoreModel::Mixed(Engine* engine, GroupId id) const {
  const Result<GroupInfo> info = engine->Info(id);
  return groups_.at(id).installed && info.ok() &&
         (info->installing || info->mixed_until > info->applied);
}

std::string StoreModel::RecoverInstall(const GroupInfo& info, GroupModel* group) const {
  std::string problems;
  const auto problem = [&](const char* text) {
    problems += fmt::format("group {}: {}\n", group->id, text);
  };
  const bool known =
      info.installing == group->installing || info.installing == group->installing_next;
  if (!known) {
    problem(info.installing ? "installing, though it is not" : "forgot that it was installing");
  }
  if (group->installing && !info.installing && group->install_to != 0 &&
      info.applied < group->install_to) {
    problem("finished an install, but not to its end");
  }
  if (info.mixed_until > 0 && !group->installed) problem("mixed without an install");
  group->installing = info.installing;
  group->installing_next.reset();
  group->install_to = 0;
  return problems;
}

std::string StoreModel::RecoverHardState(const GroupInfo& info, GroupModel* group) const {
  std::vector<HardState>& states = group->hard_states;
  const ptrdiff_t oldest = LastDone(states);
  const HardState found{info.promised, info.opaque, true};
  for (ptrdiff_t i = static_cast<ptrdiff_t>(states.size()) - 1; i >= std::max<ptrdiff_t>(oldest, 0);
       --i) {
    if (states[i].promised == found.promised && states[i].opaque == found.opaque) {
      states = {found};
      return "";
    }
  }
  if (oldest < 0 && found.promised == Ballot() && found.opaque.empty()) {
    states.clear();
    return "";
  }
  return fmt::format(
      "group {}: hard state ({}.{}, '{}') is neither the last durable one nor newer\n", group->id,
      info.promised.round, info.promised.node, info.opaque);
}

std::string StoreModel::RecoverLog(Engine* engine, const GroupInfo& info, GroupModel* group) const {
  std::string problems;
  const auto problem = [&](Instance i, const std::string& text) {
    problems += fmt::format("group {} instance {}: {}\n", group->id, i, text);
  };
  for (const TruncateState& truncate : group->truncates) {
    if (truncate.done && info.truncated < truncate.instance) {
      problem(truncate.instance, fmt::format("was cut; truncated is {}", info.truncated));
    }
  }
  if (info.truncated > info.applied) problem(info.truncated, "cut, but not applied");
  group->truncates = {{info.truncated, true}};

  std::map<Instance, std::vector<AcceptState>> log;
  for (const LogEntryInfo& found : engine->LogEntries(group->id, 1, kMaxInstance)) {
    const Instance i = found.instance;
    if (i <= info.truncated) problem(i, "is listed although it was cut");
    if (found.faulty) problem(i, "is faulty without rot");
    if (!group->log.contains(i)) {
      problem(i, "was never accepted");
      continue;
    }
    const std::vector<AcceptState>& states = group->log.at(i);
    ptrdiff_t at = static_cast<ptrdiff_t>(states.size()) - 1;
    while (at >= 0 && states[at].ballot != found.ballot) --at;
    if (at < 0 || at < LastDone(states)) {
      problem(i, fmt::format("ballot {}.{} is older than the acknowledged one", found.ballot.round,
                             found.ballot.node));
      continue;
    }
    if (i <= info.applied && states[at].value != group->chosen[i - 1]) {
      problem(i, "applied a value that was not chosen");
    }
    Result<LogEntry> entry = engine->ReadLogEntry(group->id, i);
    problems += entry.ok() ? CompareEntry(*group, i, states[at], *entry)
                           : fmt::format("group {} instance {}: {}\n", group->id, i,
                                         entry.status().ToString());
    log[i] = {{states[at].ballot, states[at].value, true}};
  }
  for (const auto& [i, states] : group->log) {
    if (i > info.applied && LastDone(states) >= 0 && !log.contains(i)) {
      problem(i, "was acknowledged and is gone");
    }
  }
  if (!log.empty() && info.last != log.rbegin()->first) {
    problem(log.rbegin()->first, fmt::format("is the last entry, but Info says {}", info.last));
  }
  group->log = std::move(log);
  return problems;
}

}  // namespace hydra::test
