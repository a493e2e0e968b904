// SPDX-License-Identifier: Apache-2.0
//
// The log's entries as values: references back into data.
#include <algorithm>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "blockstore/engine_impl.h"
#include "blockstore/payload.h"

namespace hydra {

struct PagesOf {
  uint32_t first = 0;
  uint32_t count = 0;
};

namespace {

// The record that `slot` points to, in its batch, and where its payload lies.
Result<AcceptRecord> FindRecord(const ScannedBatch& batch, GroupId group, Instance instance,
                                const LogIndex::Slot& slot, PagesOf* payload) {
  for (size_t i = 0; i < batch.records.size(); ++i) {
    if (batch.records[i].offset != slot.record_offset) continue;
    HYDRA_ASSIGN_OR_RETURN(AcceptRecord record, DecodeAccept(batch.records[i]));
    if (record.group != group || record.instance != instance || record.ballot != slot.ballot) {
      return Status::Corruption(
          fmt::format("group {} instance {}: another record stands in its place", group, instance));
    }
    *payload = {batch.PayloadPage(i), batch.records[i].payload_pages};
    return record;
  }
  return Status::Corruption(
      fmt::format("group {} instance {}: its record is not in its batch", group, instance));
}

}  // namespace

// Heads first, one read for all that lie in a batch, then the payload, one read for what lies in a
// row. Stops at the first entry that cannot be had.
class EngineImpl::LogReadJob final : public PinnedRead {
 public:
  LogReadJob(const Uuid& store, SegmentTableRef table, uint32_t segment_pages, uint32_t block_pages,
             LogReadRequest request)
      : store_(store),
        table_(std::move(table)),
        segment_pages_(segment_pages),
        block_pages_(block_pages),
        request_(std::move(request)) {}

  void Add(Instance instance, const LogIndex::Slot& slot) {
    items_.push_back({instance, slot, {}});
  }

  void Run() override {
    ReadHeads();
    for (size_t i = 0; i < entries_.size();) i = ReadPayloads(i);
  }

  std::vector<LogEntry> Take() { return std::move(entries_); }
  GroupId group() const { return request_.group; }
  struct Item {
    Instance instance = 0;
    LogIndex::Slot slot;
    PagesOf payload;  // none if it is not wanted
  };
  // What turned out to be rotten, if that is why it ended.
  const std::optional<Item>& rotten() const { return rotten_; }

 private:
  void EndBefore(size_t item, const Status& why) {
    entries_.resize(std::min(entries_.size(), item));
    if (IsRot(why)) rotten_ = items_[item];
  }

  void ReadHeads() {
    std::optional<ScannedBatch> batch;
    size_t bytes = 0;
    for (size_t i = 0; i < items_.size(); ++i) {
      Item& item = items_[i];
      if (!batch || batch->header.segment != item.slot.segment ||
          batch->header.page != item.slot.batch_page) {
        auto read = ReadBatchHeader(store_, *table_, segment_pages_, item.slot.segment,
                                    item.slot.batch_page);
        if (!read.ok()) return EndBefore(i, read.status());
        batch = std::move(*read);
      }
      LogEntry entry;
      auto record = FindRecord(*batch, request_.group, item.instance, item.slot, &item.payload);
      if (!record.ok()) return EndBefore(i, record.status());
      entry.record = std::move(*record);
      if (request_.wanted && !request_.wanted(entry.record)) item.payload = {};
      const size_t payload = size_t{item.payload.count} * kPageSize;
      if (bytes > 0 && bytes + payload > request_.max_bytes) return;
      bytes += payload;
      entries_.push_back(std::move(entry));
    }
  }

  // Of the items from `first` on that lie one behind the other; returns the next one.
  size_t ReadPayloads(size_t first) {
    const PagesOf& start = items_[first].payload;
    if (start.count == 0) return first + 1;
    uint32_t pages = start.count;
    size_t end = first + 1;
    while (end < entries_.size() && items_[end].slot.segment == items_[first].slot.segment &&
           items_[end].payload.count > 0 && items_[end].payload.first == start.first + pages) {
      pages += items_[end++].payload.count;
    }
    const Buffer data = Buffer::Allocate(size_t{pages} * kPageSize);
    const Status read =
        ReadPagesDirect(*table_, items_[first].slot.segment, start.first, data.span());
    if (!read.ok()) {
      EndBefore(first, read);
      return end;
    }
    for (size_t i = first; i < end; ++i) {
      LogEntry& entry = entries_[i];
      entry.payload.push_back({data, size_t{items_[i].payload.first - start.first} * kPageSize,
                               size_t{items_[i].payload.count} * kPageSize});
      if (!entry.record.understood) continue;
      if (CheckEntryPayload(entry.record.entry, entry.payload, block_pages_).ok()) continue;
      EndBefore(i, Status::Corruption("its payload is rotten"));
      return end;
    }
    return end;
  }

  const Uuid store_;
  const SegmentTableRef table_;
  const uint32_t segment_pages_;
  const uint32_t block_pages_;
  const LogReadRequest request_;
  std::vector<Item> items_;
  std::vector<LogEntry> entries_;
  std::optional<Item> rotten_;
};

Result<std::unique_ptr<ReadJob>> EngineImpl::PlanLogRead(LogReadRequest request) {
  HYDRA_ASSIGN_OR_RETURN(const Group* group, Usable(request.group));
  const Instance from = request.from;
  const Instance to = request.to;
  auto job =
      std::make_unique<LogReadJob>(identity_.store, volume_->table(), volume_->segment_pages(),
                                   group->block_pages, std::move(request));
  for (Instance i = from; i <= to; ++i) {
    const LogIndex::Slot* slot = group->log.Find(i);
    if (slot == nullptr) break;
    job->Add(i, *slot);
  }
  job->pin = pins_.Take();
  return std::unique_ptr<ReadJob>(std::move(job));
}

Result<std::vector<LogEntry>> EngineImpl::FinishLogRead(std::unique_ptr<ReadJob> job) {
  auto* read = static_cast<LogReadJob*>(job.get());
  Unpin(read);
  HYDRA_RETURN_IF_ERROR(poisoned_);
  Group* group = FindGroup(read->group());
  if (group != nullptr && read->rotten()) {
    LogIndex::Slot* slot = group->log.Find(read->rotten()->instance);
    const LogIndex::Slot& was = read->rotten()->slot;
    // Unless another record, or a copy, took its place meanwhile.
    if (slot != nullptr && slot->segment == was.segment && slot->batch_page == was.batch_page &&
        slot->record_offset == was.record_offset) {
      slot->faulty = true;
      ++rotten_blocks_;
      NoteDamage({Damage::What::kRecordPayload, group->id, 0, read->rotten()->instance,
                  slot->segment, slot->batch_page, 0, 0});
    }
  }
  return read->Take();
}

// --- Here and now -----------------------------------------------------------------------------

Result<LogIndex::Slot*> EngineImpl::FindSlot(Group* group, Instance instance) {
  LogIndex::Slot* slot = group->log.Find(instance);
  if (slot != nullptr) return slot;
  return Status::NotFound(
      fmt::format("group {}: instance {} was not accepted here, or is truncated (up to {})",
                  group->id, instance, group->log.truncated()));
}

Result<LogEntry> EngineImpl::ReadLogEntry(GroupId id, Instance instance) {
  HYDRA_ASSIGN_OR_RETURN(Group * group, Usable(id));
  HYDRA_ASSIGN_OR_RETURN(LogIndex::Slot * slot, FindSlot(group, instance));
  auto entry = ReadRecord(group, instance, *slot, true);
  if (IsRot(entry.status())) {
    slot->faulty = true;
    ++rotten_blocks_;
    NoteDamage(
        {Damage::What::kRecordPayload, id, 0, instance, slot->segment, slot->batch_page, 0, 0});
  }
  return entry;
}

Result<AcceptRecord> EngineImpl::ReadLogRecord(GroupId id, Instance instance) {
  HYDRA_ASSIGN_OR_RETURN(Group * group, Usable(id));
  HYDRA_ASSIGN_OR_RETURN(LogIndex::Slot * slot, FindSlot(group, instance));
  auto entry = ReadRecord(group, instance, *slot, false);
  if (IsRot(entry.status())) slot->faulty = true;
  HYDRA_RETURN_IF_ERROR(entry.status());
  return std::move(entry->record);
}

Result<LogEntry> EngineImpl::ReadRecord(Group* group, Instance instance, const LogIndex::Slot& slot,
                                        bool with_payload) {
  return ReadRecordAt(
      *volume_->table(),
      {identity_.store, volume_->segment_pages(), group->id, group->block_pages, instance, slot},
      with_payload);
}

Result<LogEntry> ReadRecordAt(const SegmentTable& table, const LogRecordPlace& place,
                              bool with_payload, LogEntry* rotten, uint32_t* payload_page) {
  const std::string what = fmt::format("group {} instance {}", place.group, place.instance);
  const auto batch = ReadBatchHeader(place.store, table, place.segment_pages, place.slot.segment,
                                     place.slot.batch_page);
  if (!batch.ok()) return batch.status().WithContext(what);
  LogEntry entry;
  PagesOf payload;
  HYDRA_ASSIGN_OR_RETURN(entry.record,
                         FindRecord(*batch, place.group, place.instance, place.slot, &payload));
  if (payload.count == 0 || !with_payload) return entry;
  if (payload_page != nullptr) *payload_page = payload.first;
  Buffer data = Buffer::Allocate(size_t{payload.count} * kPageSize);
  HYDRA_RETURN_IF_ERROR(ReadPagesDirect(table, place.slot.segment, payload.first, data.span()));
  entry.payload.push_back({data, 0, data.size()});
  if (entry.record.understood &&
      !CheckEntryPayload(entry.record.entry, entry.payload, place.block_pages).ok()) {
    if (rotten != nullptr) *rotten = std::move(entry);
    return Status::Corruption(what + ": its payload is rotten");
  }
  return entry;
}

}  // namespace hydra
