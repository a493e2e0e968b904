// SPDX-License-Identifier: Apache-2.0
#include "daemon/store_reader_stream.h"

#include <algorithm>
#include <limits>
#include <memory>

#include <fmt/format.h>

namespace hydra::store_reader {

namespace {

// Groups whose block size is remembered; more than a node ever has.
constexpr size_t kMaxGroups = 1 << 20;

std::string Range(uint64_t first, uint64_t end) {
  return end - first == 1 ? fmt::format("batch {} is", first)
                          : fmt::format("batches {} to {} are", first, end - 1);
}

}  // namespace

StreamVerifier::StreamVerifier(FileSystem* fs, std::string directory, VerifyReport* report)
    : fs_(fs),
      directory_(std::move(directory)),
      report_(report),
      chain_([this](const Link& before, const Link& after) { BrokenChain(before, after); }) {}

// --- Scanning --------------------------------------------------------------------------------

Status StreamVerifier::Scan() {
  std::vector<std::string> unknown;
  HYDRA_ASSIGN_OR_RETURN(const auto numbers, ListSegments(fs_, directory_, &unknown));
  for (const std::string& name : unknown) report_->Note("segments/ holds a stranger: " + name);
  for (const uint32_t number : numbers) {
    auto file =
        SegmentFile::Open(fs_, SegmentPath(directory_, number), report_->identity.segment_pages());
    if (!file.ok()) {
      Add(FindingKind::kSegmentHeader, {number, 0},
          "the file cannot be opened: " + file.status().ToString());
      continue;
    }
    ScanOne(file->get(), number);
  }
  return Status::Ok();
}

void StreamVerifier::ScanOne(SegmentFile* file, uint32_t number) {
  pending_.reset();
  rotten_page_ = 0;
  ScanOptions options;
  options.on_batch = [this](const ScannedBatch& batch) { OnBatch(batch); };
  options.on_rotten = [this, number](const RottenPages& rotten) {
    rotten_page_ = rotten.first;
    header_places_.insert({number, rotten.first});
    Add(FindingKind::kBatchHeader, {number, rotten.first},
        fmt::format("no valid batch in pages {} to {}, though one follows: {}", rotten.first,
                    rotten.end - 1, rotten.why));
  };
  SegmentSummary summary = ScanSegment(file, report_->identity, number, options);
  if (pending_.has_value()) last_batches_.push_back(std::move(*pending_));
  pending_.reset();
  CheckSegment(summary);
  report_->segments.push_back(std::move(summary));
}

void StreamVerifier::CheckSegment(const SegmentSummary& summary) {
  const Place place{summary.number, 0};
  if (summary.file_bytes != report_->identity.segment_bytes) {
    Add(FindingKind::kSegmentHeader, place,
        fmt::format("the file has {} bytes where IDENTITY says {}", summary.file_bytes,
                    report_->identity.segment_bytes));
  }
  if (!summary.header_status.ok()) {
    Add(FindingKind::kSegmentHeader, place, std::string(summary.header_status.message()));
    return;
  }
  if (summary.batches == 0) return;
  if (summary.header.first_batch > summary.first_number) {
    Add(FindingKind::kSegmentHeader, place,
        fmt::format("the header names batch {} as the first, but {} is here",
                    summary.header.first_batch, summary.first_number));
  } else if (summary.header.first_batch == summary.first_number &&
             summary.header.chain != summary.first_chain) {
    Add(FindingKind::kSegmentHeader, place,
        fmt::format("its chain is not that of batch {}, the first here", summary.first_number));
  } else if (summary.header.first_batch < summary.first_number && summary.rotten_ranges == 0) {
    report_->Note(fmt::format(
        "segment {}: its header names batch {} as the first, but that is {}, as after a crash "
        "between opening a segment and writing to it",
        summary.number, summary.header.first_batch, summary.first_number));
  }
}

void StreamVerifier::OnBatch(const ScannedBatch& scanned) {
  const BatchHeader& header = scanned.header;
  ++report_->batches;
  report_->records += scanned.records.size();
  if (!scanned.records_status.ok()) {
    Add(FindingKind::kRecord, {header.segment, header.page},
        std::string(scanned.records_status.message()), header.number);
  }
  for (const Record& record : scanned.records) LookAtRecord(header, record);
  if (scanned.overrun) {
    header_places_.insert({header.segment, header.page});
    Add(FindingKind::kBatchHeader, {header.segment, header.page},
        "a leftover header stands here: another batch starts within its payload", header.number);
  }
  if (pending_.has_value()) Settle(*pending_, header.number);
  Batch& batch = pending_.emplace();
  batch.link = {header.number,     header.crc,     header.chain,
                header.generation, header.segment, header.page};
  batch.lane = header.lane;
  batch.end_page = header.end_page();
  batch.payload_valid = scanned.payload_valid();
  batch.payload_readable = scanned.payload_readable;
  // The pages of a leftover belong to the batches behind it.
  if (!scanned.overrun) batch.bad_blocks = scanned.bad_blocks;
  batch.rotten_page = rotten_page_;
  rotten_page_ = 0;
}

void StreamVerifier::LookAtRecord(const BatchHeader& header, const Record& record) {
  if (std::holds_alternative<UnknownBody>(record.body)) {
    report_->Note(fmt::format(
        "batch {}: a record of unknown type {} or version {}; its payload is not checked, and an "
        "engine of this version refuses to open the store",
        header.number, record.type, record.version));
  } else if (const auto* accept = std::get_if<Accept>(&record.body)) {
    if (!accept->complete) {
      report_->Note(fmt::format(
          "batch {}: group {} instance {} has an operation of unknown kind; what follows it in the "
          "record is not checked, and the group will halt there",
          header.number, accept->group, accept->instance));
    }
    for (const Operation& op : accept->operations) {
      if (!op.crcs.empty()) RememberGroup(accept->group, op.pages_per_block);
    }
  } else if (const auto* move = std::get_if<Relocate>(&record.body)) {
    RememberGroup(move->group, move->pages_per_block);
  } else if (const auto* chunk = std::get_if<Chunk>(&record.body)) {
    RememberGroup(chunk->group, chunk->pages_per_block);
  } else if (const auto* change = std::get_if<GroupChange>(&record.body)) {
    if (change->action == 1) RememberGroup(change->group, change->pages_per_block);
  }
  report_->payload_blocks += PayloadBlocks(record).size();
}

void StreamVerifier::RememberGroup(uint32_t group, uint8_t pages) {
  if (pages == 0 || pages > kMaxPagesPerBlock) return;
  if (group_pages_.size() < kMaxGroups || group_pages_.contains(group)) {
    group_pages_[group] = pages;
  }
}

// A batch that another of the same segment follows, so that it was whole once.
void StreamVerifier::Settle(const Batch& batch, uint64_t number_behind) {
  const Link& link = batch.link;
  AddPayload(batch);
  if (number_behind <= link.number) {
    Add(FindingKind::kBatchHeader, {link.segment, link.page},
        fmt::format("it lies before batch {} in its segment", number_behind), link.number);
  }
  if (!InTail(link.number) && !chain_.Add(link)) {
    Add(FindingKind::kBatchHeader, {link.segment, link.page}, "its number is used twice",
        link.number);
  }
  KeepForReplay(batch);
}

void StreamVerifier::KeepForReplay(const Batch& batch) {
  if (!report_->checkpoint.has_value()) return;
  const CheckpointRow& checkpoint = *report_->checkpoint;
  const Link& link = batch.link;
  if (link.number + 1 == checkpoint.next_batch) crcs_before_.insert(link.crc);
  const LaneCursor& cursor = checkpoint.lanes[batch.lane];
  if (link.segment == cursor.segment &&
      (link.page == cursor.page || batch.end_page == cursor.page)) {
    cursor_fits_[batch.lane] = true;
  }
  if (!BehindCursor(batch)) {
    if (!InTail(link.number)) return;
    Add(FindingKind::kMapRow, {link.segment, link.page},
        fmt::format("row c says that batch {} is still to be replayed, but its cursor for lane {} "
                    "is behind it",
                    link.number, batch.lane),
        link.number);
  }
  tail_.push_back(batch);
  tail_.back().bad_blocks.clear();
}

// --- Judging ---------------------------------------------------------------------------------

void StreamVerifier::Judge() {
  SettleLastBatches();
  if (report_->checkpoint.has_value()) {
    for (size_t lane = 0; lane < kLanes; ++lane) CheckCursor(lane);
    CheckCheckpoint();
  }
  CheckHoles();
  if (report_->checkpoint.has_value()) RunReplay();
  ReportDeferredPayload();
}

void StreamVerifier::SettleLastBatches() {
  // Later runs first: of two batches with one number, the leftover is the older.
  std::stable_sort(last_batches_.begin(), last_batches_.end(), [](const Batch& a, const Batch& b) {
    return a.link.generation > b.link.generation;
  });
  for (const Batch& batch : last_batches_) SettleLast(batch);
  last_batches_.clear();
}

void StreamVerifier::SettleLast(const Batch& batch) {
  const Link& link = batch.link;
  KeepForReplay(batch);
  if (InTail(link.number)) {
    deferred_.push_back(batch);
    return;
  }
  const bool older = chain_.GenerationBefore(link.number) > link.generation;
  if (!older && chain_.Add(link)) {
    deferred_.push_back(batch);
  } else if (older || !batch.payload_valid) {
    NoteLeftover(link.number, link.segment, link.page);
  } else {
    Add(FindingKind::kBatchHeader, {link.segment, link.page}, "its number is used twice",
        link.number);
  }
}

void StreamVerifier::CheckCheckpoint() {
  const CheckpointRow& checkpoint = *report_->checkpoint;
  if (!crcs_before_.empty() && !crcs_before_.contains(checkpoint.chain)) {
    Add(FindingKind::kMapRow, {0, 0},
        fmt::format("row c: its chain is not the header CRC of batch {}",
                    checkpoint.next_batch - 1),
        checkpoint.next_batch - 1);
  }
}

void StreamVerifier::CheckCursor(size_t lane) {
  const LaneCursor& cursor = report_->checkpoint->lanes[lane];
  if (cursor.segment == 0) return;
  const SegmentSummary* segment = FindSegment(cursor.segment);
  const Place place{cursor.segment, cursor.page};
  if (segment == nullptr) {
    Add(FindingKind::kMapRow, place,
        fmt::format("row c: lane {} goes on in a segment that does not exist", lane));
  } else if (cursor.page == 0 || cursor.page > report_->identity.segment_pages()) {
    Add(FindingKind::kMapRow, place, fmt::format("row c: no page for lane {}", lane));
  } else if (segment->lane >= 0 && segment->lane != static_cast<int>(lane)) {
    Add(FindingKind::kMapRow, place,
        fmt::format("row c: lane {} is given lane {}'s segment", lane, segment->lane));
  } else if (!cursor_fits_[lane] && cursor.page != 1 && segment->rotten_ranges == 0) {
    const uint32_t page = std::min(segment->end_page, cursor.page);
    header_places_.insert({cursor.segment, page});
    Add(FindingKind::kBatchHeader, {cursor.segment, page},
        fmt::format("no valid batch ends at page {}, where row c says that lane {} goes on: {}",
                    cursor.page, lane,
                    segment->end_why.empty() ? "nothing is left of it" : segment->end_why));
  }
}

// Holes before the checkpoint are where segments were freed, or where batches were lost.
void StreamVerifier::CheckHoles() {
  const uint64_t end =
      report_->checkpoint.has_value() ? report_->checkpoint->next_batch : chain_.greatest() + 1;
  for (const Hole& hole : chain_.Holes(end)) {
    if (MayBeFreed(hole, 0) || MayBeFreed(hole, 1) || RotExplains(hole)) continue;
    const std::vector<Place> places = PlacesOf(hole);
    if (std::any_of(places.begin(), places.end(),
                    [&](const Place& place) { return header_places_.contains(place); })) {
      continue;  // reported as what it is
    }
    const Place place = places.empty() ? Place{0, 0} : places[0];
    Add(FindingKind::kGap, place,
        Range(hole.first, hole.end) + " missing, and no segment was freed that had room for it",
        hole.first);
  }
}

// True if the hole may have been in freed segments of this lane: it lies between two segments of
// the lane, and a number between theirs is gone.
bool StreamVerifier::MayBeFreed(const Hole& hole, int lane) const {
  const auto& checkpoint = report_->checkpoint;
  uint64_t below = 0;
  uint64_t above = checkpoint.has_value() ? checkpoint->highest_segment + 1 : 0;
  if (!report_->segments.empty()) {
    above = std::max<uint64_t>(above, report_->segments.back().number + 1);
  }
  for (const SegmentSummary& segment : report_->segments) {
    if (segment.lane != lane || segment.batches == 0) continue;
    if (segment.last_number < hole.first) {
      below = std::max<uint64_t>(below, segment.number);
    } else if (segment.first_number >= hole.end) {
      above = std::min<uint64_t>(above, segment.number);
    } else {
      return false;  // the hole is inside: no segment in between
    }
  }
  if (checkpoint.has_value() && hole.end == checkpoint->next_batch && below != 0 &&
      checkpoint->lanes[static_cast<size_t>(lane)].segment == below) {
    return false;  // the lane was still filling this segment
  }
  uint64_t there = 0;
  for (const SegmentSummary& segment : report_->segments) {
    if (segment.number > below && segment.number < above) ++there;
  }
  return above > below + 1 && there < above - below - 1;
}

// Rotten pages inside a segment that the hole is inside of are reported already.
bool StreamVerifier::RotExplains(const Hole& hole) const {
  return std::any_of(
      report_->segments.begin(), report_->segments.end(), [&](const SegmentSummary& segment) {
        const bool first_is_rotten = segment.header_status.ok() &&
                                     segment.header.first_batch <= hole.first &&
                                     segment.last_number >= hole.end;
        const bool inside = segment.first_number < hole.first && segment.last_number >= hole.end;
        return segment.rotten_ranges > 0 && (inside || first_is_rotten);
      });
}

// Where the hole's first batch may have been: behind the last batch before it, in each lane. Not
// where row c says that the lane goes on: nothing was there.
std::vector<StreamVerifier::Place> StreamVerifier::PlacesOf(const Hole& hole) const {
  std::vector<Place> places;
  for (int lane = 0; lane < static_cast<int>(kLanes); ++lane) {
    const SegmentSummary* best = nullptr;
    for (const SegmentSummary& segment : report_->segments) {
      if (segment.lane != lane || segment.batches == 0) continue;
      if (segment.last_number < hole.first) best = &segment;
    }
    if (best == nullptr) continue;
    const Place place{best->number, best->end_page};
    if (report_->checkpoint.has_value()) {
      const LaneCursor& cursor = report_->checkpoint->lanes[static_cast<size_t>(lane)];
      if (place == Place(cursor.segment, cursor.page)) continue;
    }
    places.push_back(place);
  }
  return places;
}

// --- From the checkpoint on ------------------------------------------------------------------

void StreamVerifier::RunReplay() {
  const CheckpointRow& checkpoint = *report_->checkpoint;
  ReplayInput input;
  input.next_batch = checkpoint.next_batch;
  input.chain = checkpoint.chain;
  input.generation = checkpoint.generation;
  std::sort(tail_.begin(), tail_.end(), [](const Batch& a, const Batch& b) {
    return Place(a.link.segment, a.link.page) < Place(b.link.segment, b.link.page);
  });
  for (const Batch& batch : tail_) {
    const Link& link = batch.link;
    input.lanes[batch.lane].batches.push_back(
        {link.number, link.crc, link.chain, link.generation, link.segment, link.page,
         batch.payload_readable, batch.payload_valid, batch.rotten_page != 0, batch.rotten_page});
  }
  for (size_t lane = 0; lane < kLanes; ++lane) input.lanes[lane].end = EndOf(lane);
  for (const SegmentSummary& segment : report_->segments) {
    if (segment.header_status.ok()) input.segment_firsts.push_back(segment.header.first_batch);
  }
  std::sort(input.segment_firsts.begin(), input.segment_firsts.end());
  report_->replay = Replay(input);
  report_->replayed = true;
  for (const Decision& decision : report_->replay.decisions) Report(decision);
  for (const Leftover& leftover : report_->replay.leftovers) {
    NoteLeftover(leftover.batch, leftover.segment, leftover.page);
  }
}

LaneEnd StreamVerifier::EndOf(size_t lane) const {
  const LaneCursor& cursor = report_->checkpoint->lanes[lane];
  LaneEnd end;
  for (const SegmentSummary& segment : report_->segments) {
    const uint64_t from =
        cursor.segment != 0 ? cursor.segment : report_->checkpoint->highest_segment + 1;
    if (segment.lane != static_cast<int>(lane) || segment.number < from) continue;
    end.segment = segment.number;
    end.page = segment.end_page;
    end.readable = segment.end_readable;
    end.claimed_number = segment.end_claimed_number;
    // A cursor that does not fit is reported as such.
    if (segment.number == cursor.segment && segment.end_page < cursor.page) {
      end = {segment.number, cursor.page, true, 0};
    }
  }
  return end;
}

void StreamVerifier::Report(const Decision& decision) {
  const Place place{decision.segment, decision.page};
  const std::string lost = Range(decision.batch, decision.lost_end);
  switch (decision.verdict) {
    case Verdict::kAccept:
    case Verdict::kAcceptPayloadRotten:  // its blocks are findings by themselves
    case Verdict::kTorn:
    case Verdict::kEnd: return;
    case Verdict::kHeaderRotten:
      if (!header_places_.insert(place).second) return;
      Add(FindingKind::kBatchHeader, place,
          fmt::format("{} lost: no valid header here (row {} of the table)", lost, decision.row),
          decision.batch);
      return;
    case Verdict::kAcceptAfterGap:
    case Verdict::kAcceptAfterGapPayloadRotten:
    case Verdict::kTornAfterGap:
      Add(FindingKind::kGap, place,
          fmt::format("the batch here does not follow: {} lost or not what was written (row {} of "
                      "the table)",
                      lost, decision.row),
          decision.batch);
      return;
  }
}

void StreamVerifier::ReportDeferredPayload() {
  const ReplayResult& replay = report_->replay;
  const auto is_leftover = [&](const Link& link) {
    return std::any_of(replay.leftovers.begin(), replay.leftovers.end(), [&](const Leftover& left) {
      return left.segment == link.segment && left.page == link.page;
    });
  };
  for (const Batch& batch : deferred_) {
    if (batch.payload_valid) continue;
    const Link& link = batch.link;
    const bool torn =
        replay.torn && replay.torn_segment == link.segment && replay.torn_page == link.page;
    if (torn || is_leftover(link)) continue;
    if (!report_->replayed && link.number == chain_.greatest() && batch.payload_readable) {
      report_->Note(fmt::format("batch {} (segment {}, page {}) is torn, or the last and rotten",
                                link.number, link.segment, link.page));
      continue;
    }
    AddPayload(batch);
  }
}

// --- Small things ----------------------------------------------------------------------------

bool StreamVerifier::InTail(uint64_t number) const {
  return report_->checkpoint.has_value() && number >= report_->checkpoint->next_batch;
}

bool StreamVerifier::BehindCursor(const Batch& batch) const {
  const CheckpointRow& checkpoint = *report_->checkpoint;
  const LaneCursor& cursor = checkpoint.lanes[batch.lane];
  if (cursor.segment == 0) return batch.link.segment > checkpoint.highest_segment;
  return Place(batch.link.segment, batch.link.page) >= Place(cursor.segment, cursor.page);
}

const SegmentSummary* StreamVerifier::FindSegment(uint32_t number) const {
  const auto& segments = report_->segments;
  const auto it = std::lower_bound(
      segments.begin(), segments.end(), number,
      [](const SegmentSummary& segment, uint32_t n) { return segment.number < n; });
  return it != segments.end() && it->number == number ? &*it : nullptr;
}

void StreamVerifier::Add(FindingKind kind, Place place, std::string what, uint64_t batch) {
  Finding finding;
  finding.kind = kind;
  finding.segment = place.first;
  finding.page = place.second;
  finding.batch = batch;
  finding.what = std::move(what);
  report_->Add(std::move(finding));
}

void StreamVerifier::AddPayload(const Batch& batch) {
  for (const BadBlock& bad : batch.bad_blocks) {
    Finding finding;
    finding.kind = FindingKind::kPayload;
    finding.segment = batch.link.segment;
    finding.page = bad.block.page;
    finding.batch = batch.link.number;
    finding.group = bad.block.group;
    finding.lba = bad.block.lba;
    finding.version = bad.block.version;
    finding.what = bad.readable ? "the block's bytes do not match the CRC in its record"
                                : "the device does not return the block";
    report_->Add(std::move(finding));
  }
}

void StreamVerifier::NoteLeftover(uint64_t batch, uint32_t segment, uint32_t page) {
  report_->Note(fmt::format("segment {}, page {}: a header of batch {} is the leftover of a cut",
                            segment, page, batch));
}

void StreamVerifier::BrokenChain(const Link& before, const Link& after) {
  Add(FindingKind::kGap, {after.segment, after.page},
      after.generation < before.generation
          ? fmt::format("its generation {} is older than that of batch {} before it ({})",
                        after.generation, before.number, before.generation)
          : fmt::format("its chain is not the header CRC of batch {} (segment {}, page {})",
                        before.number, before.segment, before.page),
      after.number);
}

}  // namespace hydra::store_reader
