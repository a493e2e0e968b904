// SPDX-License-Identifier: Apache-2.0
//
// Owed blocks (docs/architecture.md): fetching the payload that an install left out, and serving
// it.
#include "daemon/shard_owed.h"

#include <algorithm>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/logging.h"
#include "base/probe.h"
#include "daemon/shard_recovery.h"
#include "daemon/shard_repair.h"

namespace hydra {

bool Shard::HasOwedWork() const { return !owed_->questions.empty(); }

uint64_t Shard::OwedBytes() const { return BytesOf(engine_->OwedCount(store_group_)); }

// --- Asking -------------------------------------------------------------------------------------

// Before a row without payload is taken in, it is durable that there may be some: only then does a
// start count. False: not yet.
bool Shard::MarkOwes(const ImageChunk& chunk) {
  const auto is_bare = [](const ImageRow& row) { return row.bare; };
  if (!identity_.owes && std::ranges::any_of(chunk.rows, is_bare)) {
    identity_.owes = true;
    SaveIdentity();
  }
  return !identity_waits_;
}

// Where rot has hidden an open entry, a start may find blocks owed that were not before.
void Shard::NoteOwedAfterAll() {
  if (identity_.owes || engine_->OwedCount(store_group_) == 0) return;
  HYDRA_PROBE("owed: a start finds more owed than there was");
  identity_.owes = true;
  SaveIdentity();
}

void Shard::UnmarkOwes() {
  if (!identity_.owes || identity_waits_ || replica_->installing() || owed_->writing) return;
  HYDRA_LOG_INFO("group {}: all blocks are here", options_.group);
  identity_.owes = false;
  SaveIdentity();
}

void Shard::FetchOwed(Nanos now) {
  if (!identity_.owes) return replica_->SetOwes(false);  // as nearly always
  OwedWork& work = *owed_;
  if (!Owes()) UnmarkOwes();
  replica_->SetOwes(Owes());
  if (work.writing) return;
  if (engine_->OwedCount(store_group_) == 0 || replica_->installing()) {
    work.next_at = now + options_.owed_pause;
    return StopAsking();
  }
  if (now < work.next_at || !failed_.ok()) return;
  if (!work.slot && !(work.slot = budget_->BeginAsking())) return;
  if (work.got) return TakeOwed(now);
  if (work.asking) {
    HYDRA_PROBE("owed: a peer does not answer");
    work.asking = false;
    work.turn = work.asked_turn + 1;
  }
  const size_t limit = std::max<uint64_t>(1, OwedWork::kPagesAtOnce / block_pages_);
  auto blocks = engine_->OwedBlocks(store_group_, work.next, limit);
  if (!blocks.ok() || blocks->empty()) {
    // From the start again.
    work.next = 0;
    if (std::exchange(work.fruitful, false) && blocks.ok()) return;
    work.next_at = now + OwedWork::kAfterARound;
    if (blocks.ok()) AskAllForOwed(now);
    return StopAsking();
  }
  const std::vector<NodeId> peers = PeersToAsk(now);
  if (peers.empty()) {
    work.next_at = now + OwedWork::kAfterARound;
    return StopAsking();
  }
  // Groups do not all begin with the same one.
  const NodeId peer = peers[(options_.group + work.turn) % peers.size()];
  work.behind = blocks->back().lba + 1;
  work.asked = blocks->size();
  work.asking = true;
  work.asked_turn = work.turn;
  work.next_at = now + OwedWork::kAskAgain;
  out_.owed.push_back(
      {options_.group, options_.node, peer, false, ++work.last_request, std::move(*blocks), {}});
}

// Other groups may, until this one has somebody to ask, or knows what for.
void Shard::StopAsking() {
  owed_->asking = false;
  owed_->got.reset();
  if (std::exchange(owed_->slot, false)) budget_->EndAsking();
}

std::vector<NodeId> Shard::PeersToAsk(Nanos now) const {
  std::vector<NodeId> alive;
  for (const paxos::Member& member : replica_->config().members()) {
    const NodeId node = member.id.node;
    if (node != options_.node && leases_->Alive(node, now)) alive.push_back(node);
  }
  return alive;
}

// Who has a copy may have it in its log alone, and not be able to apply it before others have what
// this replica has: the one way in which single blocks are fetched finds it there. A few at a time,
// and others each time.
void Shard::AskAllForOwed(Nanos now) {
  auto blocks = engine_->OwedBlocks(store_group_, owed_->alone, RepairWork::kMaxAtATime);
  if (!blocks.ok()) return;
  const auto is_owed = [](const auto& block) { return block.second.damage.owed(); };
  if (std::ranges::count_if(repair_->blocks, is_owed) >= OwedWork::kMostAlone) return;
  owed_->alone = blocks->empty() ? 0 : blocks->back().lba + 1;
  HYDRA_PROBE("owed: all peers are asked for what some do not have");
  for (const BlockName& block : *blocks) {
    Damage owed;
    owed.group = store_group_;
    owed.lba = block.lba;
    owed.segment = kOwedSegment;
    owed.version = block.version;
    owed.crc = block.crc;
    NoteRotten(owed);
  }
  Repair(now);
}

void Shard::OnOwedMessage(OwedMessage message, Nanos now) {
  Touch();
  now_ = std::max(now_, now);
  if (!message.answer) {
    const NodeId peer = message.from;
    owed_->questions[peer] = {std::move(message), now_};
    return;
  }
  OwedWork& work = *owed_;
  if (!work.asking || message.request != work.last_request) return;
  work.asking = false;
  // One that may have been away itself: others have more of it.
  if (2 * message.blocks.size() < work.asked) work.turn = work.asked_turn + 1;
  if (message.blocks.empty()) {
    HYDRA_PROBE("owed: a peer has nothing of it");
    work.next_at = now_ + OwedWork::kAfterNothing;
    if (++work.denied < PeersToAsk(now_).size()) return;
    work.denied = 0;
    work.next = work.behind;
    return;
  }
  work.denied = 0;
  work.got = std::move(message);
  TakeOwed(now_);
}

void Shard::TakeOwed(Nanos now) {
  OwedWork& work = *owed_;
  const uint64_t token = tokens_->Add(options_.group, kLocalOwed);
  bool all = false;
  const Status taken =
      engine_->Deliver(store_group_, work.got->blocks, work.got->payload, token, &all);
  work.next_at = now;
  if (taken.ok()) {
    work.writing = true;
    work.fruitful = true;
    if (!all) return;  // the rest of it afterwards
    work.got.reset();
    work.next = work.behind;
    return;
  }
  tokens_->Cancel(token);
  if (taken.code() == Code::kPoisoned) return Fail(taken);
  if (taken.code() == Code::kBusy) {
    HYDRA_PROBE("owed: the engine does not take it yet");
    work.next_at = now + OwedWork::kEngineRefused;
    return;
  }
  work.got.reset();
  if (taken.code() == Code::kNoSpace) {
    // Who waits for room had better not hold what others need to make some.
    HYDRA_PROBE("owed: there is no room for it");
    work.next_at = now + OwedWork::kNoRoom;
    return StopAsking();
  }
  if (taken.code() == Code::kFailedPrecondition) {
    HYDRA_PROBE("owed: all of it was written over meanwhile");
    work.next = work.behind;
    return;
  }
  if (work.warned == 0 || now >= work.warned + OwedWork::kWarnEvery) {
    HYDRA_LOG_WARN("group {}: {}; asking another peer", options_.group, taken.ToString());
    work.warned = now;
  }
  work.turn = work.asked_turn + 1;
  work.next_at = now + OwedWork::kAfterNothing;
}

void Shard::OwedDone(Nanos now) {
  owed_->writing = false;
  owed_->next_at = now + options_.owed_pause;
  FetchOwed(now);
}

// For when nobody is left to send them: which blocks have to be written anew.
void Shard::LogOwed() const {
  constexpr size_t kMostRanges = 64;
  std::vector<LbaRange> ranges;
  for (Lba from = 0; ranges.size() <= kMostRanges;) {
    const auto blocks = engine_->OwedBlocks(store_group_, from, 1024);
    if (!blocks.ok() || blocks->empty()) break;
    for (const BlockName& block : *blocks) {
      if (!ranges.empty() && ranges.back().lba + ranges.back().count == block.lba) {
        ++ranges.back().count;
      } else {
        ranges.push_back({block.lba, 1});
      }
    }
    from = blocks->back().lba + 1;
  }
  const bool more = ranges.size() > kMostRanges;
  if (more) ranges.resize(kMostRanges);
  std::string list;
  for (const LbaRange& range : ranges) list += fmt::format(" {}+{}", range.lba, range.count);
  HYDRA_LOG_WARN(
      "group {}: {} bytes of blocks had not been sent to this node yet; they are lost, and "
      "no new replica of the group can be made before they are written anew or unmapped. "
      "First block and number:{}{}",
      options_.group, OwedBytes(), list, more ? " and more" : "");
}

// --- Answering ----------------------------------------------------------------------------------

// One answer at a time for each peer, as the budget allows.
void Shard::ServeOwed() {
  auto asked = std::exchange(owed_->questions, {});
  for (auto& [peer, question] : asked) {
    if (now_ > question.at + OwedWork::kForgetAfter) continue;
    if (owed_->IsReadingFor(peer) || !budget_->MaySendOwed()) {
      owed_->questions.emplace(peer, std::move(question));
    } else {
      ReadOwed(question.asked);
    }
  }
}

void Shard::ReadOwed(const OwedMessage& asked) {
  std::vector<LbaRange> runs;
  const uint64_t longest = kExtentPages / block_pages_;
  for (const BlockName& block : asked.blocks) {
    const bool joins = !runs.empty() && runs.back().lba + runs.back().count == block.lba &&
                       runs.back().count < longest;
    if (joins) {
      ++runs.back().count;
    } else {
      runs.push_back({block.lba, 1});
    }
  }
  auto job = engine_->PlanReads(store_group_, runs);
  if (!job.ok()) return;  // it asks elsewhere
  const uint64_t ticket = next_ticket_++;
  const uint64_t bytes = BytesOf(asked.blocks.size());
  budget_->SpendOwed(asked.from, bytes);
  owed_->reading[ticket] = {asked, std::move(runs), bytes};
  out_.reads.push_back({options_.group, ticket, std::move(*job), bytes});
}

bool Shard::OwedRead(uint64_t ticket, std::unique_ptr<ReadJob>* job) {
  auto node = owed_->reading.extract(ticket);
  if (node.empty()) return false;
  const OwedWork::Reading& read = node.mapped();
  const std::vector<DamagedRead> found = engine_->FinishPartialReads(std::move(*job));
  HYDRA_CHECK(found.size() == read.runs.size());
  OwedMessage answer{
      options_.group, options_.node, read.asked.from, true, read.asked.request, {}, {}};
  size_t next = 0;
  for (size_t r = 0; r < found.size(); ++r) {
    const DamagedRead& run = found[r];
    for (size_t b = 0; b < read.runs[r].count; ++b) {
      const BlockName& block = read.asked.blocks[next++];
      const auto is_this = [&](const Damage& damage) { return damage.lba == block.lba; };
      if (run.rest.blocks.empty() || std::ranges::any_of(run.blocks, is_this)) continue;
      const BlockInfo& here = run.rest.blocks[b];
      if (here.kind != BlockKind::kData || here.version != block.version || here.crc != block.crc) {
        HYDRA_PROBE("owed: a peer asks for a block that is another here");
        continue;
      }
      answer.blocks.push_back(block);
      answer.payload.push_back({run.rest.data, b * BytesOf(1), BytesOf(1)});
    }
  }
  budget_->SettleOwed(read.spent, BytesOf(answer.blocks.size()));
  out_.owed.push_back(std::move(answer));
  return true;
}

}  // namespace hydra
