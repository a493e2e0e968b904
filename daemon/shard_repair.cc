// SPDX-License-Identifier: Apache-2.0
//
// Rotten blocks: good copies are fetched from peers, given to the reads that wait for them, and
// written in the place of the rotten ones. docs/architecture.md, "Rot".
#include "daemon/shard_repair.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include <fmt/format.h>

#include "base/check.h"
#include "base/crc32c.h"
#include "base/logging.h"
#include "base/probe.h"
#include "base/sabotage.h"

namespace hydra {
namespace {

// What an entry writes there. Another than was chosen may have been accepted, so the sum decides,
// as it does for whoever asked.
std::optional<BufferSlice> BlockOf(const LogEntry& entry, Lba lba, uint32_t crc) {
  size_t offset = 0;
  std::optional<BufferSlice> found;
  if (entry.payload.empty()) return found;
  for (const Operation& op : entry.record.entry.operations) {
    if (op.kind == OpKind::kWrite && lba - op.lba < op.count && op.crcs[lba - op.lba] == crc) {
      const size_t bytes = size_t{op.block_pages} * kPageSize;
      found = entry.payload[0];
      found->offset += offset + (lba - op.lba) * bytes;
      found->length = bytes;
    }
    offset += size_t{op.PayloadPages()} * kPageSize;
  }
  return found;
}

}  // namespace

const RepairStats& Shard::repairs() const {
  const auto is_rot = [](const auto& block) { return !block.second.damage.owed(); };
  repair_->stats.under_way = static_cast<uint64_t>(std::ranges::count_if(repair_->blocks, is_rot));
  return repair_->stats;
}

// --- What is rotten -----------------------------------------------------------------------------

void Shard::OnDamage(const Damage& damage, Nanos now) {
  Touch();
  now_ = std::max(now_, now);
  if (damage.what == Damage::What::kBlock) {
    NoteRotten(damage);
    Repair(now);
  } else if (damage.instance > replica_->applied()) {
    // Its blocks are nobody's yet. Should it be applied as it is, they are looked at then.
    if (repair_->suspects.size() < RepairWork::kMaxSuspects) {
      repair_->suspects.insert(damage.instance);
    }
  } else {
    VerifyBlocksOf(damage.instance);
  }
}

bool Shard::NoteRotten(const Damage& damage) {
  HYDRA_CHECK(damage.group == store_group_);
  const RepairWork::Key key{damage.lba, damage.version};
  if (repair_->blocks.contains(key)) return true;
  if (repair_->blocks.size() >= RepairWork::kMaxBlocks) return false;
  if (!damage.owed()) {
    HYDRA_LOG_WARN("group {} block {}: rotten in segment {}; asking peers for a copy",
                   options_.group, damage.lba, damage.segment);
    ++repair_->stats.found;
  }
  repair_->blocks[key].damage = damage;
  return true;
}

// An entry was rotten in the log: which of its blocks are in the map?
void Shard::VerifyBlocksOf(Instance instance) {
  const auto record = engine_->ReadLogRecord(store_group_, instance);
  if (!record.ok()) return;
  for (const Operation& op : record->entry.operations) {
    if (op.kind != OpKind::kWrite || repair_->verifying.size() >= RepairWork::kMaxVerifying) {
      continue;
    }
    auto job = engine_->PlanRead(store_group_, op.lba, op.count);
    if (!job.ok()) continue;
    HYDRA_PROBE("rot: the blocks of a rotten entry are looked at");
    const uint64_t ticket = next_ticket_++;
    repair_->verifying.insert(ticket);
    out_.reads.push_back({options_.group, ticket, std::move(*job), BytesOf(op.count)});
  }
}

// --- Reads --------------------------------------------------------------------------------------

// What is owed is not lost. A replica that is behind may be owed blocks that were written over
// everywhere else; and who has a copy may be away, or be no further than to have it in its log.
void Shard::ExcuseOwed(const DamagedRead& damaged, Result<ReadResult>* result) const {
  if (result->ok()) return;
  for (const Damage& block : damaged.blocks) {
    if (!block.owed()) continue;
    const auto found = repair_->blocks.find({block.lba, block.version});
    const bool denied =
        found != repair_->blocks.end() && ready() && found->second.denials >= RepairWork::kDenials;
    if (denied || replica_->config().members().size() <= 1) continue;
    *result = Status::Busy(
        fmt::format("group {} block {}: no peer has sent it yet", options_.group, block.lba));
    return;
  }
}

// True: it was not a client's, or it waits for good copies.
bool Shard::TakeRead(uint64_t ticket, const Result<ReadResult>& result, DamagedRead* damaged,
                     Nanos now) {
  bool all = true;
  // What is owed here is not looked for on account of a peer that is owed it too.
  const bool for_peer = repair_->serving.contains(ticket);
  for (const Damage& block : damaged->blocks) {
    if (!for_peer || !block.owed()) all = NoteRotten(block) && all;
  }
  if (!damaged->blocks.empty()) Repair(now);
  if (repair_->verifying.erase(ticket) > 0) return true;
  if (repair_->serving.contains(ticket)) {
    AnswerBlock(ticket, result);
    return true;
  }
  const bool waits = reading_.contains(ticket) || resolving_.contains(ticket);
  if (result.ok() || damaged->blocks.empty() || !all || !waits) return false;
  RepairWork::Held held{std::move(*damaged), result.status(), {}};
  for (const Damage& block : held.read.blocks) {
    const RepairWork::Key key{block.lba, block.version};
    const auto found = repair_->blocks.find(key);
    if (found == repair_->blocks.end()) return false;  // nobody to ask
    // Everybody was asked, as often as for any read. The next time may be far away, and whoever
    // looks for the one bad block of many reads here again and again.
    if (found->second.state == RepairWork::Block::State::kWaiting &&
        found->second.rounds >= RepairWork::kRoundsOfReads) {
      return false;
    }
    held.missing.insert(key);
  }
  // What was fetched for another read is here already.
  for (const RepairWork::Key& key : std::set<RepairWork::Key>(held.missing)) {
    const RepairWork::Block& block = repair_->blocks.at(key);
    if (block.good.length > 0) held.FillIn(key, block.good);
  }
  if (held.missing.empty()) {
    ReadFinished(ticket, std::move(held.read.rest), now);
    return true;
  }
  repair_->held.emplace(ticket, std::move(held));
  return true;
}

void Shard::RepairWork::Held::FillIn(const Key& key, const BufferSlice& good) {
  if (missing.erase(key) == 0) return;
  const size_t offset = (key.first - read.lba) * good.length;
  HYDRA_CHECK(offset + good.length <= read.rest.data.size());
  std::memcpy(read.rest.data.data() + offset, good.data(), good.length);
}

// All that wait for the block, and have everything now, go on.
void Shard::GiveToReads(const RepairWork::Key& key, const BufferSlice& good, Nanos now) {
  std::vector<uint64_t> whole;
  for (auto& [ticket, held] : repair_->held) {
    held.FillIn(key, good);
    if (held.missing.empty()) whole.push_back(ticket);
  }
  for (const uint64_t ticket : whole) {
    if (resolving_.contains(ticket)) HYDRA_PROBE("rot: a compare is decided with a peer's block");
    HYDRA_PROBE("rot: a read is answered with a peer's block");
    auto node = repair_->held.extract(ticket);
    ++repair_->stats.reads;
    ReadFinished(ticket, std::move(node.mapped().read.rest), now);
  }
}

// Nobody has the block.
void Shard::FailReads(const RepairWork::Key& key, Nanos now) {
  for (auto it = repair_->held.begin(); it != repair_->held.end();) {
    if (!it->second.missing.contains(key)) {
      ++it;
      continue;
    }
    HYDRA_PROBE("rot: a read is told of damage that no peer can mend");
    const uint64_t ticket = it->first;
    const Status status = it->second.status;
    it = repair_->held.erase(it);
    ReadFinished(ticket, status, now);
  }
}

// The block is not rotten any more, but another. Reads look again, others are told.
void Shard::ReadAgain(const RepairWork::Key& key, Nanos now) {
  std::vector<uint64_t> tickets;
  for (const auto& [ticket, held] : repair_->held) {
    if (held.missing.contains(key)) tickets.push_back(ticket);
  }
  for (const uint64_t ticket : tickets) {
    const auto reading = reading_.find(ticket);
    if (reading == reading_.end() || reading->second.again >= RepairWork::kMaxReadsAgain ||
        !serves_local()) {
      auto node = repair_->held.extract(ticket);
      ReadFinished(ticket, node.mapped().status, now);
      continue;
    }
    HYDRA_PROBE("rot: a read begins again, because its block changed");
    repair_->held.erase(ticket);
    Reading again = std::move(reading->second);
    reading_.erase(reading);
    StartRead(std::move(again.request), again.again + 1);
  }
}

// --- Fetching -----------------------------------------------------------------------------------

// Whatever is due.
void Shard::Repair(Nanos now) {
  using State = RepairWork::Block::State;
  size_t at_work = repair_->at_work();
  std::vector<RepairWork::Key> due;
  for (const auto& [key, block] : repair_->blocks) {
    if (block.state == State::kWriting || now < block.next) continue;
    if (block.state == State::kWaiting && at_work++ >= RepairWork::kMaxAtATime) continue;
    due.push_back(key);
  }
  for (const RepairWork::Key& key : due) {
    const auto found = repair_->blocks.find(key);
    if (found == repair_->blocks.end()) continue;
    switch (found->second.state) {
      case State::kWaiting: BeginRound(key, now); break;
      case State::kAsking:  // no answer
        found->second.denied = false;
        AskNext(key, now);
        break;
      case State::kFetched: WriteGoodCopy(key, now); break;
      case State::kWriting: break;
    }
  }
}

void Shard::BeginRound(const RepairWork::Key& key, Nanos now) {
  RepairWork::Block& block = repair_->blocks.at(key);
  if (block.rounds > 0) {
    const auto there = engine_->IsStillThere(block.damage);
    if (there.ok() && !*there) {
      HYDRA_PROBE("rot: the block changed before a copy was found");
      repair_->blocks.erase(key);
      return ReadAgain(key, now);
    }
  }
  std::vector<NodeId> silent;
  for (const paxos::Member& member : replica_->config().members()) {
    const NodeId node = member.id.node;
    if (node == options_.node) continue;
    (leases_->Alive(node, now) ? block.peers : silent).push_back(node);
  }
  // Not always the same one first.
  if (!block.peers.empty()) {
    const auto first = static_cast<ptrdiff_t>((key.first + block.rounds) % block.peers.size());
    std::rotate(block.peers.begin(), block.peers.begin() + first, block.peers.end());
  }
  block.peers.insert(block.peers.end(), silent.begin(), silent.end());
  std::reverse(block.peers.begin(), block.peers.end());  // taken from the end
  ++block.rounds;
  block.denied = true;
  AskNext(key, now);
}

void Shard::AskNext(const RepairWork::Key& key, Nanos now) {
  RepairWork::Block& block = repair_->blocks.at(key);
  if (block.peers.empty()) {
    block.state = RepairWork::Block::State::kWaiting;
    block.asked = 0;
    block.denials = block.denied ? block.denials + 1 : 0;
    const Nanos pause = RepairWork::kFirstPause << std::min(block.rounds, 16u);
    block.next = now + std::min(pause, RepairWork::kLongestPause);
    const bool alone = replica_->config().members().size() <= 1;
    if (block.rounds >= RepairWork::kRoundsOfReads || alone) FailReads(key, now);
    if (block.rounds < RepairWork::kMaxRounds && !alone) return;
    if (block.damage.owed()) {
      HYDRA_PROBE("owed: no peer that answers has the block");
      HYDRA_LOG_ERROR(
          "group {} block {}: no node that answers has it; if those that do not are lost, "
          "write it anew or unmap it",
          options_.group, key.first);
    } else {
      HYDRA_LOG_ERROR("group {} block {}: no peer has a good copy; the next scrub tries again",
                      options_.group, key.first);
      HYDRA_PROBE("rot: no peer has the block");
      ++repair_->stats.given_up;
    }
    repair_->blocks.erase(key);
    return;
  }
  block.state = RepairWork::Block::State::kAsking;
  block.asked = block.peers.back();
  block.peers.pop_back();
  block.next = now + RepairWork::kAnswerWithin;
  const Damage& damage = block.damage;
  out_.blocks.push_back({options_.group,
                         options_.node,
                         block.asked,
                         false,
                         false,
                         damage.lba,
                         damage.version,
                         damage.crc,
                         {}});
}

void Shard::OnBlockMessage(BlockMessage message, Nanos now) {
  Touch();
  now_ = std::max(now_, now);
  if (!message.answer) return ServeBlock(message);
  const RepairWork::Key key{message.lba, message.version};
  const auto found = repair_->blocks.find(key);
  using State = RepairWork::Block::State;
  if (found == repair_->blocks.end() || found->second.state != State::kAsking) return;
  RepairWork::Block& block = found->second;
  if (!message.found) {
    if (message.from == block.asked) AskNext(key, now);
    return;
  }
  const size_t bytes = size_t{block_pages_} * kPageSize;
  if (message.data.length != bytes) return;
  if (!HYDRA_SABOTAGE(kRepairAnyVersion) &&
      Crc32c(message.data.data(), bytes) != block.damage.crc) {
    // Damaged on its way, or not what was asked for.
    block.denied = false;
    if (message.from == block.asked) AskNext(key, now);
    return;
  }
  block.good = message.data;
  block.peers.clear();
  block.state = State::kFetched;
  GiveToReads(key, message.data, now);
  WriteGoodCopy(key, now);
}

// --- Writing ------------------------------------------------------------------------------------

void Shard::WriteGoodCopy(const RepairWork::Key& key, Nanos now) {
  const auto found = repair_->blocks.find(key);
  if (found == repair_->blocks.end()) return;
  RepairWork::Block& block = found->second;
  const uint64_t local = kLocalRepair + repair_->next_token++;
  const uint64_t token = tokens_->Add(options_.group, local);
  const Status taken = engine_->Repair(block.damage, {block.good}, token);
  if (taken.ok()) {
    block.state = RepairWork::Block::State::kWriting;
    repair_->writing[local] = key;
    return;
  }
  tokens_->Cancel(token);
  if (taken.code() == Code::kPoisoned) return Fail(taken);
  const bool full = taken.code() == Code::kNoSpace;
  const bool refused = full || taken.code() == Code::kBusy;
  if (refused && repair_->Count(RepairWork::Block::State::kFetched) <= RepairWork::kMaxRefused) {
    HYDRA_PROBE("rot: the engine does not take a good copy yet");
    block.next = now + (full ? RepairWork::kLongestPause : RepairWork::kFirstPause);
    return;
  }
  // Who waited for it has it already.
  if (refused) {
    if (!block.damage.owed()) {
      HYDRA_LOG_WARN("group {} block {}: no room for the good copy; left to the next scrub",
                     options_.group, key.first);
      ++repair_->stats.given_up;
    }
  } else {
    HYDRA_PROBE("rot: the block changed before it was repaired");
  }
  repair_->blocks.erase(found);
}

void Shard::RepairDone(uint64_t local_token, Nanos now) {
  const auto found = repair_->writing.find(local_token);
  if (found == repair_->writing.end()) return;
  HYDRA_PROBE("rot: a good copy of a peer is durable");
  repair_->blocks.erase(found->second);
  repair_->writing.erase(found);
  Repair(now);  // others wait for their turn
}

// --- For peers ----------------------------------------------------------------------------------

void Shard::ServeBlock(const BlockMessage& asked) {
  const size_t serving = repair_->serving.size() + repair_->from_log.size();
  if (serving >= RepairWork::kMaxServing) return;  // it asks again
  BlockMessage answer{asked.group, options_.node, asked.from, true, false,
                      asked.lba,   asked.version, asked.crc,  {}};
  auto job = engine_->PlanRead(store_group_, asked.lba, 1);
  if (!job.ok()) return SearchLog(std::move(answer));
  const uint64_t ticket = next_ticket_++;
  repair_->serving.emplace(ticket, std::move(answer));
  out_.reads.push_back({options_.group, ticket, std::move(*job), BytesOf(1)});
}

void Shard::AnswerBlock(uint64_t ticket, const Result<ReadResult>& read) {
  auto node = repair_->serving.extract(ticket);
  BlockMessage& answer = node.mapped();
  if (read.ok()) {
    const BlockInfo& here = read->blocks[0];
    const bool same =
        here.kind == BlockKind::kData && here.version == answer.version && here.crc == answer.crc;
    if (!same && !HYDRA_SABOTAGE(kRepairAnyVersion)) {
      HYDRA_PROBE("rot: a peer asks for a block that is another here");
      return SearchLog(std::move(answer));
    }
    answer.found = here.kind == BlockKind::kData;
    if (answer.found) answer.data = {read->data, 0, read->data.size()};
  }
  out_.blocks.push_back(std::move(answer));
}

// A replica that is behind, or installs, has not applied what it accepted; and what rotted may be
// what it would have to install.
void Shard::SearchLog(BlockMessage answer) {
  LogReadRequest request;
  request.group = store_group_;
  request.from = VersionInstance(answer.version);
  request.to = request.from;
  auto job = engine_->PlanLogRead(std::move(request));
  if (!job.ok()) {
    out_.blocks.push_back(std::move(answer));
    return;
  }
  const uint64_t ticket = next_ticket_++;
  repair_->from_log.emplace(ticket, std::move(answer));
  out_.reads.push_back({options_.group, ticket, std::move(*job), 0});
}

bool Shard::LogSearched(uint64_t ticket, std::unique_ptr<ReadJob>* job) {
  auto node = repair_->from_log.extract(ticket);
  if (node.empty()) return false;
  BlockMessage& answer = node.mapped();
  const auto entries = engine_->FinishLogRead(std::move(*job));
  if (entries.ok() && !entries->empty()) {
    const auto good = BlockOf(entries->front(), answer.lba, answer.crc);
    if (good) {
      HYDRA_PROBE("rot: a peer has the block in its log alone");
      answer.found = true;
      answer.data = *good;
    }
  }
  out_.blocks.push_back(std::move(answer));
  return true;
}

}  // namespace hydra
