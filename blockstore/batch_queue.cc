// SPDX-License-Identifier: Apache-2.0
#include "blockstore/batch_queue.h"

#include "blockstore/batch_format.h"

namespace hydra {
namespace {

// What a flow may take per turn: small enough that eight flows share one batch.
constexpr uint32_t kQuantumPages = 16;
constexpr size_t kIdleFlows = 4096;

// Pages that a record takes at most, with a share of the header.
uint32_t Cost(const QueuedRecord& record) {
  return record.payload_pages +
         static_cast<uint32_t>((kBatchFixedBytes + record.bytes.size() + kPageSize - 1) /
                               kPageSize);
}

uint64_t Bytes(const QueuedRecord& record) {
  return record.bytes.size() + uint64_t{record.payload_pages} * kPageSize;
}

}  // namespace

// Collects records until one does not fit.
class BatchQueue::Filler {
 public:
  explicit Filler(const BatchBudget& budget) : budget_(budget) {}

  bool Fits(const QueuedRecord& record) const {
    const size_t bytes = header_bytes_ + record.bytes.size();
    const auto header_pages = static_cast<uint32_t>((bytes + kPageSize - 1) / kPageSize);
    const uint32_t payload = payload_pages_ + record.payload_pages;
    return header_pages <= budget_.header_pages && payload <= budget_.payload_pages &&
           header_pages + payload <= budget_.pages;
  }

  void Take(std::deque<QueuedRecord>* from) {
    header_bytes_ += from->front().bytes.size();
    payload_pages_ += from->front().payload_pages;
    records_.push_back(std::move(from->front()));
    from->pop_front();
  }

  // All of a queue that fits; false if something was left.
  bool TakeAll(std::deque<QueuedRecord>* from) {
    while (!from->empty() && Fits(from->front())) Take(from);
    return from->empty();
  }

  std::vector<QueuedRecord>& records() { return records_; }

 private:
  const BatchBudget& budget_;
  size_t header_bytes_ = kBatchFixedBytes;
  uint32_t payload_pages_ = 0;
  std::vector<QueuedRecord> records_;
};

void BatchQueue::Push(Urgency urgency, uint32_t flow, QueuedRecord record) {
  bytes_ += Bytes(record);
  (urgency == Urgency::kBackground ? background_pages_ : foreground_pages_) += Cost(record);
  switch (urgency) {
    case Urgency::kHardState: hard_.push_back(std::move(record)); return;
    case Urgency::kBackground: background_.push_back(std::move(record)); return;
    case Urgency::kInstall:
    case Urgency::kLog: break;
  }
  Flow& f = flows_[flow];
  f.records.push_back(std::move(record));
  ++log_records_;
  if (!f.in_line) {
    f.in_line = true;
    f.deficit = 0;
    line_.push_back(flow);
  }
}

void BatchQueue::FillLog(Filler* filler) {
  while (!line_.empty()) {
    const uint32_t id = line_.front();
    Flow& flow = flows_[id];
    flow.deficit += kQuantumPages;
    while (!flow.records.empty() && flow.deficit >= Cost(flow.records.front())) {
      // Its turn is not over: it is the first in line of the next batch.
      if (!filler->Fits(flow.records.front())) return;
      flow.deficit -= Cost(flow.records.front());
      filler->Take(&flow.records);
      --log_records_;
    }
    line_.pop_front();
    // An empty flow will be back; only many of them are not worth keeping.
    if (flow.records.empty()) {
      flow.in_line = false;
      if (flows_.size() > kIdleFlows) flows_.erase(id);
    } else {
      line_.push_back(id);
    }
  }
}

std::vector<QueuedRecord> BatchQueue::Fill(bool background, const BatchBudget& budget) {
  Filler filler(budget);
  if (background) {
    filler.TakeAll(&background_);
  } else if (filler.TakeAll(&hard_)) {
    FillLog(&filler);
  }
  for (const QueuedRecord& record : filler.records()) {
    bytes_ -= Bytes(record);
    (background ? background_pages_ : foreground_pages_) -= Cost(record);
  }
  return std::move(filler.records());
}

}  // namespace hydra
