// SPDX-License-Identifier: Apache-2.0
#include "daemon/store_reader_replay.h"

#include <algorithm>
#include <tuple>

#include "base/check.h"

namespace hydra::store_reader {

namespace {

// A column's entry: must be no, must be yes, either.
enum Want : uint8_t { kNo, kYes, kAny };

struct Row {
  int number;
  Want readable, header_valid, older, chain_valid, successor, payload_valid;
  Verdict verdict;
};

// clang-format off
constexpr Row kTable[] = {
    // #  readable header older  chain  succ.  payload
    {1,   kAny,    kNo,   kAny,  kAny,  kYes,  kAny,  Verdict::kHeaderRotten},
    {2,   kYes,    kNo,   kAny,  kAny,  kNo,   kAny,  Verdict::kEnd},
    {3,   kNo,     kNo,   kAny,  kAny,  kNo,   kAny,  Verdict::kHeaderRotten},
    {4,   kAny,    kYes,  kYes,  kAny,  kYes,  kAny,  Verdict::kHeaderRotten},
    {5,   kYes,    kYes,  kYes,  kAny,  kNo,   kAny,  Verdict::kEnd},
    {6,   kNo,     kYes,  kYes,  kAny,  kNo,   kAny,  Verdict::kHeaderRotten},
    {7,   kAny,    kYes,  kNo,   kYes,  kAny,  kYes,  Verdict::kAccept},
    {8,   kAny,    kYes,  kNo,   kYes,  kYes,  kNo,   Verdict::kAcceptPayloadRotten},
    {9,   kYes,    kYes,  kNo,   kYes,  kNo,   kNo,   Verdict::kTorn},
    {10,  kNo,     kYes,  kNo,   kYes,  kNo,   kNo,   Verdict::kAcceptPayloadRotten},
    {11,  kAny,    kYes,  kNo,   kNo,   kYes,  kAny,  Verdict::kAcceptAfterGap},
    {12,  kAny,    kYes,  kNo,   kNo,   kNo,   kYes,  Verdict::kAcceptAfterGap},
    {13,  kYes,    kYes,  kNo,   kNo,   kNo,   kNo,   Verdict::kTornAfterGap},
    {14,  kNo,     kYes,  kNo,   kNo,   kNo,   kNo,   Verdict::kAcceptAfterGapPayloadRotten},
};
// clang-format on

bool Matches(Want want, bool is) { return want == kAny || (want == kYes) == is; }

class Walk {
 public:
  explicit Walk(const ReplayInput& input)
      : input_(input), next_(input.next_batch), chain_(input.chain), generation_(input.generation) {
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      const auto& batches = input.lanes[lane].batches;
      greatest_behind_[lane].resize(batches.size() + 1, 0);
      for (size_t i = batches.size(); i-- > 0;) {
        greatest_behind_[lane][i] = std::max(greatest_behind_[lane][i + 1], batches[i].number);
      }
    }
  }

  ReplayResult Run() {
    while (Step()) {
    }
    result_.next_batch = next_;
    return std::move(result_);
  }

 private:
  const TailBatch* Head(uint32_t lane) const {
    const auto& batches = input_.lanes[lane].batches;
    return at_[lane] < batches.size() ? &batches[at_[lane]] : nullptr;
  }

  // False at the end of the stream.
  bool Step() {
    DropOldHeads();
    const int lane = ChooseLane();
    if (lane < 0) return NothingFound();
    const TailBatch& batch = *Head(static_cast<uint32_t>(lane));
    // A leftover right at the cursor is judged by its generation (rows 4, 5), not by its number.
    const bool leftover = batch.generation < generation_ && !batch.rotten_before;
    if (batch.number > next_ && !leftover) PassGap(batch.number);
    return JudgeBatch(batch, static_cast<uint32_t>(lane));
  }

  // Numbers that were accepted already: what a cut left in the lane that did not write next.
  void DropOldHeads() {
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      for (const TailBatch* head = Head(lane); head != nullptr && head->number < next_;
           head = Head(lane)) {
        DropHead(*head, lane);
      }
    }
  }

  void DropHead(const TailBatch& head, uint32_t lane) {
    if (result_.leftovers.size() < ReplayResult::kMaxDecisions) {
      result_.leftovers.push_back({head.number, head.segment, head.page});
    }
    ++at_[lane];
  }

  // The lane whose head has the smallest number; of equals, the one that a later run wrote, then
  // the one that fits the chain, then the whole one. -1 if there is no head.
  int ChooseLane() const {
    int best = -1;
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      if (Head(lane) == nullptr) continue;
      if (best < 0 || Rank(lane) < Rank(static_cast<uint32_t>(best))) best = static_cast<int>(lane);
    }
    return best;
  }

  std::tuple<uint64_t, uint64_t, bool, bool> Rank(uint32_t lane) const {
    const TailBatch& head = *Head(lane);
    return {head.number, ~uint64_t{head.generation}, head.chain != chain_, !head.payload_valid};
  }

  // Batches from next_ to the one before `found` are nowhere.
  void PassGap(uint64_t found) {
    Decision decision;
    decision.batch = next_;
    decision.lost_end = found;
    Evidence evidence;
    evidence.successor = true;
    Locate(&decision, &evidence);
    // Without a place, the batch that was found is judged instead: rows 11 to 14.
    if (decision.segment != 0 && !gap_reported_) {
      Emit(decision, Judge(evidence));
      gap_reported_ = true;
    }
    next_ = found;
    after_gap_ = true;
    lost_from_ = decision.batch;
  }

  // Where the missing batch was: at pages that hold no valid batch.
  void Locate(Decision* decision, Evidence* evidence) const {
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      const TailBatch* head = Head(lane);
      if (head != nullptr && head->rotten_before) {
        decision->segment = head->segment;
        decision->page = head->rotten_page;
        return;
      }
    }
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      const LaneEnd& end = input_.lanes[lane].end;
      if (Head(lane) != nullptr || end.segment == 0) continue;
      decision->segment = end.segment;
      decision->page = end.page;
      evidence->readable = end.readable;
      return;
    }
  }

  bool JudgeBatch(const TailBatch& batch, uint32_t lane) {
    Evidence evidence;
    evidence.header_valid = true;
    evidence.readable = batch.payload_readable;
    evidence.older_generation = batch.generation < generation_;
    evidence.chain_valid = !after_gap_ && batch.chain == chain_;
    evidence.successor = HasSuccessor(batch.number, lane);
    evidence.payload_valid = batch.payload_valid;
    const Judgement judgement = Judge(evidence);

    Decision decision;
    decision.batch = batch.number;
    decision.segment = batch.segment;
    decision.page = batch.page;
    if (judgement.verdict == Verdict::kHeaderRotten) {  // row 4: a leftover where n was lost
      decision.lost_end = batch.number + 1;
      Emit(decision, judgement);
      DropHead(batch, lane);
      after_gap_ = gap_reported_ = true;
      lost_from_ = next_;
      return true;
    }
    if (evidence.chain_valid || evidence.older_generation) {
      decision.lost_end = decision.batch;
    } else {
      // The predecessors that are missing; if none is, the one before is an impostor.
      decision.batch = after_gap_ ? lost_from_ : batch.number - 1;
      decision.lost_end = batch.number;
      result_.gap = true;
    }
    const bool quiet = judgement.verdict == Verdict::kAccept ||
                       (judgement.verdict == Verdict::kAcceptAfterGap && gap_reported_);
    if (!quiet) Emit(decision, judgement);
    if (judgement.verdict == Verdict::kEnd) {
      DropHead(batch, lane);
      return false;
    }
    if (judgement.verdict == Verdict::kTorn || judgement.verdict == Verdict::kTornAfterGap) {
      Torn(batch.segment, batch.page);
      return false;
    }
    Accept(batch, lane);
    return true;
  }

  void Accept(const TailBatch& batch, uint32_t lane) {
    ++result_.accepted;
    ++at_[lane];
    next_ = batch.number + 1;
    chain_ = batch.crc;
    generation_ = batch.generation;
    after_gap_ = gap_reported_ = false;
  }

  // Something behind this batch has a greater number.
  bool HasSuccessor(uint64_t number, uint32_t of_lane) const {
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      const size_t from = at_[lane] + (lane == of_lane ? 1 : 0);
      if (greatest_behind_[lane][std::min(from, greatest_behind_[lane].size() - 1)] > number) {
        return true;
      }
    }
    return NextSegmentFirst(number) != 0;
  }

  // The smallest first batch above `number` that a segment's header names; 0 if none does.
  uint64_t NextSegmentFirst(uint64_t number) const {
    const auto& firsts = input_.segment_firsts;
    const auto it = std::upper_bound(firsts.begin(), firsts.end(), number);
    return it == firsts.end() ? 0 : *it;
  }

  // No valid batch is left in either lane.
  bool NothingFound() {
    Evidence evidence;
    Decision decision;
    decision.batch = next_;
    const uint64_t first = NextSegmentFirst(next_);
    Locate(&decision, &evidence);
    // What one lane alone shows to be unreadable may be the batch that was written last.
    for (const LaneTail& lane : input_.lanes) {
      if (lane.end.readable || lane.end.segment == 0) continue;
      evidence.readable = false;
      decision.segment = lane.end.segment;
      decision.page = lane.end.page;
    }
    evidence.successor = first != 0;
    decision.lost_end = first != 0 ? first : next_ + 1;
    const Judgement judgement = Judge(evidence);
    if (judgement.verdict == Verdict::kHeaderRotten) Emit(decision, judgement);
    if (first != 0) {
      next_ = first;
      after_gap_ = gap_reported_ = true;
      return true;
    }
    for (const LaneTail& lane : input_.lanes) {
      // Remains of another number were settled when the other lane used it.
      if (lane.end.segment != 0 && lane.end.claimed_number == next_) {
        Torn(lane.end.segment, lane.end.page);
      }
    }
    return false;
  }

  void Torn(uint32_t segment, uint32_t page) {
    result_.torn = true;
    result_.torn_segment = segment;
    result_.torn_page = page;
  }

  void Emit(Decision decision, const Judgement& judgement) {
    decision.row = judgement.row;
    decision.verdict = judgement.verdict;
    if (decision.verdict == Verdict::kHeaderRotten) result_.gap = true;
    if (result_.decisions.size() < ReplayResult::kMaxDecisions) {
      result_.decisions.push_back(decision);
    }
  }

  const ReplayInput& input_;
  std::array<std::vector<uint64_t>, kLanes> greatest_behind_;
  std::array<size_t, kLanes> at_{};
  uint64_t next_;
  uint32_t chain_;
  uint64_t generation_;
  bool after_gap_ = false;
  bool gap_reported_ = false;
  uint64_t lost_from_ = 0;
  ReplayResult result_;
};

}  // namespace

Judgement Judge(const Evidence& evidence) {
  for (const Row& row : kTable) {
    if (Matches(row.readable, evidence.readable) &&
        Matches(row.header_valid, evidence.header_valid) &&
        Matches(row.older, evidence.older_generation) &&
        Matches(row.chain_valid, evidence.chain_valid) &&
        Matches(row.successor, evidence.successor) &&
        Matches(row.payload_valid, evidence.payload_valid)) {
      return {row.number, row.verdict};
    }
  }
  HYDRA_CHECK(false);
}

ReplayResult Replay(const ReplayInput& input) { return Walk(input).Run(); }

}  // namespace hydra::store_reader
