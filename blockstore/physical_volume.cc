// SPDX-License-Identifier: Apache-2.0
#include "blockstore/physical_volume.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include <fmt/format.h>

#include "base/check.h"
#include "base/logging.h"
#include "base/sabotage.h"

namespace hydra {
namespace {

// Of what clients write, vacuum may write a third on top: a quarter of the whole.
constexpr uint32_t kBackgroundDivisor = 3;
// A background batch smaller than this is not worth a flush while clients wait.
constexpr uint32_t kMinBackgroundPages = 64;

}  // namespace

// The one batch in flight. Reused from batch to batch. Opening a segment for it is part of the
// write: its header page, its name, and the directory are durable before the batch goes out.
//
// Small pieces of payload are copied behind the header: a device takes one long piece of memory
// faster than many short ones, by more than the copying costs. Long ones are written from where
// they are.
class PhysicalVolume::VolumeBatch final : public Batch {
 public:
  VolumeBatch(FileSystem* fs, std::string dir, uint32_t max_batch_pages)
      : fs_(fs), dir_(std::move(dir)), pages_(Buffer::AllocateHuge(max_batch_pages * kPageSize)) {}

  Status Write() override {
    if (!open_from.empty()) {
      const IoSlice header{segment_page.data(), segment_page.size()};
      const std::string path = dir_ + "/" + SegmentFileName(header_.segment);
      HYDRA_RETURN_IF_ERROR(file->direct->PWriteV(0, {&header, 1}, Durability::kDsync));
      HYDRA_RETURN_IF_ERROR(fs_->Rename(open_from, path));
      HYDRA_RETURN_IF_ERROR(fs_->SyncDirectory(dir_));
    }
    Gather();
    const Status written =
        file->direct->PWriteV(uint64_t{header_.page} * kPageSize, slices_, Durability::kDsync);
    if (!written.ok() && HYDRA_SABOTAGE(kRetryFailedFlush)) return file->direct->Sync();
    return written;
  }

  uint64_t bytes() const override { return uint64_t{header_.pages()} * kPageSize; }
  bool opens_segment() const override { return !open_from.empty(); }

  // Header pages that end in zeroes behind the first `bytes`. Their first page nearly always does
  // already, but for what the batch before had there.
  std::span<uint8_t> HeaderPages(uint32_t pages, size_t bytes) {
    const size_t zero_from = pages == 1 ? used_ : pages * kPageSize;
    if (bytes < zero_from) std::memset(pages_.data() + bytes, 0, zero_from - bytes);
    used_ = std::min(bytes, kPageSize);
    return pages_.span().first(pages * kPageSize);
  }

  BatchHeader header_;
  std::shared_ptr<SegmentFile> file;
  std::string open_from;  // path of the spare that becomes the segment, empty if it is open
  bool open_clean = false;
  Buffer segment_page;
  SegmentHeader segment_header;
  std::vector<QueuedRecord> records;

 private:
  // Longer pieces of payload are not copied.
  static constexpr size_t kCopyBelow = 32u << 10;

  void Gather() {
    uint8_t* to = pages_.data() + size_t{header_.header_pages} * kPageSize;
    slices_.assign(1, {pages_.data(), size_t{header_.header_pages} * kPageSize});
    for (const QueuedRecord& record : records) {
      for (const BufferSlice& slice : record.payload) {
        const uint8_t* from = slice.data();
        if (slice.length < kCopyBelow) {
          std::memcpy(to, from, slice.length);
          from = to;
          to += slice.length;
        }
        IoSlice& last = slices_.back();
        if (last.data + last.length == from) {
          last.length += slice.length;
        } else {
          slices_.push_back({from, slice.length});
        }
      }
    }
  }

  FileSystem* fs_;
  std::string dir_;
  Buffer pages_;     // header, then copied payload
  size_t used_ = 0;  // of the first page; all zeroes behind
  std::vector<IoSlice> slices_;
};

PhysicalVolume::PhysicalVolume(const Options& options)
    : options_(options),
      segment_pages_(static_cast<uint32_t>(options.segment_bytes / kPageSize)),
      // Page 0 is the header, the last page is for a seal.
      max_batch_pages_(std::min(kMaxHeaderPages + kMaxPayloadPages, segment_pages_ - 2)),
      max_header_pages_(std::min(kMaxHeaderPages, segment_pages_ / 8)),
      max_payload_pages_(std::min(kMaxPayloadPages, max_batch_pages_ - max_header_pages_)),
      batch_(std::make_unique<VolumeBatch>(options.fs, options.dir, max_batch_pages_)) {
  HYDRA_CHECK(segment_pages_ >= 16);
}

PhysicalVolume::~PhysicalVolume() = default;

Result<std::unique_ptr<PhysicalVolume>> PhysicalVolume::Open(const Options& options) {
  std::unique_ptr<PhysicalVolume> volume(new PhysicalVolume(options));
  HYDRA_RETURN_IF_ERROR(volume->LoadFiles());
  return volume;
}

Status PhysicalVolume::LoadFiles() {
  HYDRA_ASSIGN_OR_RETURN(const auto names, options_.fs->List(options_.dir));
  for (const std::string& name : names) {
    const std::string path = options_.dir + "/" + name;
    if (name.ends_with(kTemporarySuffix)) {
      HYDRA_RETURN_IF_ERROR(options_.fs->Unlink(path));
      continue;
    }
    const SegmentNumber number = ParseSegmentFileName(name);
    if (number == 0 && !name.starts_with(kSparePrefix)) {
      HYDRA_LOG_WARN("{}: not a file of this store; left alone", path);
      continue;
    }
    HYDRA_ASSIGN_OR_RETURN(auto file, OpenSegmentFile(options_.fs, path, false));
    if (number != 0) {
      segments_[number].file = std::move(file);
      highest_ = std::max(highest_, number);
      continue;
    }
    next_spare_name_ = std::max<uint64_t>(
        next_spare_name_, std::strtoull(name.c_str() + sizeof(kSparePrefix) - 1, nullptr, 10) + 1);
    HYDRA_ASSIGN_OR_RETURN(const uint64_t size, file->direct->Size());
    if (size == options_.segment_bytes) {
      spares_.push_back({path, std::move(file)});
    } else {
      HYDRA_RETURN_IF_ERROR(options_.fs->Unlink(path));
    }
  }
  PublishTable();
  return Status::Ok();
}

void PhysicalVolume::PublishTable() {
  auto table = std::make_shared<SegmentTable>();
  for (const auto& [number, segment] : segments_) table->emplace(number, segment.file);
  table_.Set(std::move(table));
}

Result<SegmentHeader> PhysicalVolume::DescribeSegment(SegmentNumber number) {
  Buffer page = Buffer::Allocate(kPageSize);
  const Status read = ReadPagesDirect(*table(), number, 0, page.span());
  if (read.ok()) {
    auto header = DecodeSegmentHeader(options_.store, number, page.span());
    if (header.ok()) return header;
  }
  HYDRA_LOG_WARN("segment {}: its header page is rotten; using its batches", number);
  const auto first =
      FindBatch(options_.store, *table(), segment_pages_, number, kFirstBatchPage, 1);
  if (!first) return Status::Corruption(fmt::format("segment {}: nothing readable", number));
  SegmentHeader header;
  header.segment = number;
  header.lane = first->lane;
  header.first_batch = first->number;
  header.chain = first->chain;
  return header;
}

Status PhysicalVolume::Recover(const StreamPosition& start, SegmentNumber highest, BatchSink* sink,
                               RecoveryReport* report) {
  highest_ = std::max(highest_, highest);
  // A segment that a dead process opened may have its name only in the cache.
  HYDRA_RETURN_IF_ERROR(options_.fs->SyncDirectory(options_.dir));
  const SegmentNumber newest_at_start =
      std::max(start.lanes[kLogLane].segment, start.lanes[kRelocationLane].segment);
  bool segment_lost = false;
  std::map<SegmentNumber, SegmentHeader> headers;
  for (auto& [number, segment] : segments_) {
    auto header = DescribeSegment(number);
    if (!header.ok()) {
      segment.unreadable = true;
      segment_lost = segment_lost || number > newest_at_start;
      continue;
    }
    segment.lane = header->lane;
    segment.first_batch = header->first_batch;
    // How much of a segment before the replay position is payload is not worth reading it for.
    segment.used_pages = segment_pages_ - kFirstBatchPage;
    const SegmentNumber cursor = start.lanes[header->lane].segment;
    if (number >= cursor) {
      // What a dead process left in the device's cache must not vanish after we built on it.
      HYDRA_RETURN_IF_ERROR(segment.file->direct->Sync());
    }
    if (number > cursor) segment.used_pages = 0;
    headers.emplace(number, *header);
  }

  StreamScanner scanner(options_.store, table(), std::move(headers), segment_pages_, start,
                        segment_lost);
  HYDRA_RETURN_IF_ERROR(scanner.Run(sink));
  durable_ = scanner.end();
  report->torn = scanner.torn();
  report->payload_rotten = scanner.payload_rotten();
  generation_ = scanner.generation() + 1;
  durable_.generation = generation_;
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    lanes_[lane] = {durable_.lanes[lane].segment, durable_.lanes[lane].page};
    if (lanes_[lane].segment != 0 && !segments_.contains(lanes_[lane].segment)) lanes_[lane] = {};
  }
  if (scanner.gap_at_tail()) {
    // Where the lost batches lay is unknown, and so are their numbers: go on elsewhere, far
    // beyond any number that was used.
    constexpr uint64_t kBeyondLostNumbers = 1u << 20;
    for (Lane& lane : lanes_) lane = {};
    for (auto& cursor : durable_.lanes) cursor = {};
    durable_.lanes[kLogLane] = {highest_, segment_pages_};
    durable_.lanes[kRelocationLane] = {highest_, segment_pages_};
    durable_.next_batch += kBeyondLostNumbers;
  }
  sealed_ = false;  // whatever is last now gets sealed by the next batch or seal
  return Status::Ok();
}

// --- Appending --------------------------------------------------------------------------------

uint32_t PhysicalVolume::LaneRoom(uint32_t lane) const {
  const Lane& l = lanes_[lane];
  if (closing_[lane]) return 0;
  uint32_t page = l.page;
  if (in_flight_ && batch_->header_.lane == lane) page += batch_->header_.pages();
  return l.segment == 0 || page >= segment_pages_ - 1 ? 0 : segment_pages_ - 1 - page;
}

uint32_t PhysicalVolume::max_segments() const {
  if (disk_full_) return total_segments();
  if (options_.capacity_bytes == 0) return kMaxSegments;
  return static_cast<uint32_t>(
      std::min<uint64_t>(options_.capacity_bytes / options_.segment_bytes, kMaxSegments));
}

uint32_t PhysicalVolume::total_segments() const {
  return static_cast<uint32_t>(segments_.size() + spares_.size() +
                               (making_spare_ || unfinished_ ? 1 : 0) + (wiping_ ? 1 : 0) +
                               (opening_segment() != 0 ? 1 : 0));
}

SegmentNumber PhysicalVolume::opening_segment() const {
  return in_flight_ && !batch_->open_from.empty() ? batch_->header_.segment : 0;
}

bool PhysicalVolume::CanMakeSpare() const {
  disk_full_ = false;
  if (total_segments() >= max_segments()) return false;
  auto free = options_.fs->FreeBytes(options_.dir);
  disk_full_ =
      !free.ok() || *free < options_.segment_bytes + options_.keep_free_bytes + refused_free_bytes_;
  if (HYDRA_SABOTAGE(kUseShortSpare)) disk_full_ = false;
  return !disk_full_;
}

// How many new segments so many queued pages can need at worst. A batch does not cross the end of a
// segment, so up to a batch is left unused there; but any two segments in a row are together
// fuller than one, because the second one began with what the first had no room for.
uint64_t PhysicalVolume::SegmentsFor(uint32_t lane, uint64_t pages) const {
  if (pages == 0 || pages <= LaneRoom(lane)) return 0;
  return (pages + SurelyUsedPages() - 1) / SurelyUsedPages();
}

uint32_t PhysicalVolume::SurelyUsedPages() const {
  const uint32_t usable = segment_pages_ - 2;
  return std::max(usable / 2, usable > 4 * max_batch_pages_ ? usable - max_batch_pages_ : 0);
}

uint64_t PhysicalVolume::HeldPages() const {
  const bool flying = in_flight_ && batch_->header_.lane == kLogLane;
  return live_pages_ + open_pages_ + queue_.foreground_pages() +
         (flying ? batch_->header_.payload_pages : 0);
}

uint64_t PhysicalVolume::LiveLimit(uint64_t segments, uint32_t reserve) const {
  return segments > reserve + kLanes ? (segments - reserve - kLanes) * DensePages() : 0;
}

Room PhysicalVolume::PayloadRoom() const {
  uint64_t segments = total_segments();
  if (CanMakeSpare()) {
    const auto free = options_.fs->FreeBytes(options_.dir);
    const uint64_t kept = options_.keep_free_bytes + refused_free_bytes_;
    const uint64_t more = free.ok() && *free > kept ? (*free - kept) / options_.segment_bytes : 0;
    segments = std::min<uint64_t>(max_segments(), segments + more);
  }
  const uint64_t held = HeldPages();
  if (accounting_complete_) {
    const uint64_t limit = LiveLimit(segments, options_.reserve_segments);
    return {(limit > held ? limit - held : 0) * kPageSize, true};
  }
  // What can be cleaned is not known yet; what was never written to is.
  const uint64_t empty = segments - total_segments() + spares_.size();
  const uint64_t kept =
      options_.reserve_segments + SegmentsFor(kLogLane, queue_.foreground_pages());
  return {(empty > kept ? empty - kept : 0) * SurelyUsedPages() * kPageSize,
          !accounting_failed_.ok()};
}

bool PhysicalVolume::TakesPayload(uint64_t bytes) const {
  const uint64_t pages = bytes / kPageSize + max_header_pages_ + 1;
  const uint64_t segments = SegmentsFor(kLogLane, queue_.foreground_pages() + pages);
  if (segments + options_.reserve_segments <= spares_.size()) return true;
  const Room room = PayloadRoom();
  return !room.known || room.bytes >= bytes;
}

Status PhysicalVolume::CheckRoom(Urgency urgency, size_t record_bytes, uint32_t payload_pages,
                                 uint32_t replaced_pages) const {
  return CheckRoomBut(0, urgency, record_bytes, payload_pages, replaced_pages);
}

Status PhysicalVolume::CheckRoomForDelivery(size_t record_bytes, uint32_t payload_pages) const {
  return CheckRoomBut(options_.reserve_segments / 2, Urgency::kBackground, record_bytes,
                      payload_pages, 0);
}

// `kept`: spares that background leaves.
Status PhysicalVolume::CheckRoomBut(uint32_t kept, Urgency urgency, size_t record_bytes,
                                    uint32_t payload_pages, uint32_t replaced_pages) const {
  if (payload_pages > max_payload_pages_ ||
      record_bytes > max_header_pages_ * kPageSize - kBatchFixedBytes) {
    return Status::InvalidArgument(fmt::format(
        "a record of {} bytes with {} pages of payload is larger than a batch ({} bytes, {} "
        "pages): split it",
        record_bytes, payload_pages, max_header_pages_ * kPageSize - kBatchFixedBytes,
        max_payload_pages_));
  }
  if (urgency != Urgency::kHardState &&
      (queue_.records() >= options_.queue_records ||
       queue_.bytes() + uint64_t{payload_pages} * kPageSize > options_.queue_bytes)) {
    return Status::Busy("the write queue is full; try again when a batch has completed");
  }
  // Whatever is admitted here must find its place: spares that queued records of the other lane
  // may need do not count.
  const uint64_t needed = payload_pages + max_header_pages_ + 1;
  uint32_t reserve = 0;
  bool fits = false;
  if (urgency == Urgency::kBackground) {
    reserve = kept;
    const uint64_t promised = SegmentsFor(kLogLane, queue_.foreground_pages());
    const uint64_t segments = SegmentsFor(kRelocationLane, queue_.background_pages() + needed);
    fits = promised + segments + (segments == 0 ? 0 : reserve) <= spares_.size();
  } else {
    reserve = options_.reserve_segments;
    if (payload_pages == 0 || urgency == Urgency::kInstall) reserve /= 2;
    if (urgency == Urgency::kHardState) reserve /= 2;
    const uint64_t promised = SegmentsFor(kRelocationLane, queue_.background_pages());
    const uint64_t segments = SegmentsFor(kLogLane, queue_.foreground_pages() + needed);
    fits = segments == 0 || segments + std::max<uint64_t>(reserve, promised) <= spares_.size();
  }
  if (fits) return Status::Ok();
  spare_awaited_ = true;
  if (total_segments() < max_segments() && CanMakeSpare()) {
    return Status::Busy("a segment is being prepared; try again shortly");
  }
  if (!accounting_failed_.ok()) {
    return Status::NoSpace(fmt::format(
        "no space can be reclaimed, because the block map cannot be read ({}). Restart the node to "
        "try again, and replace the disk if that does not help; reads still work",
        accounting_failed_.ToString()));
  }
  if (!accounting_complete_ ||
      HeldPages() + payload_pages <= LiveLimit(max_segments(), reserve) + replaced_pages) {
    return Status::Busy("space is being reclaimed; try again shortly");
  }
  return Status::NoSpace(fmt::format(
      "the store is full: {} MiB of live data within a limit of {} MiB. Delete or unmap "
      "blocks, or raise the limit; reads and deletes still work",
      live_pages_ * kPageSize >> 20, (uint64_t{max_segments()} * options_.segment_bytes) >> 20));
}

void PhysicalVolume::Enqueue(Urgency urgency, uint32_t flow, std::string record, Payload payload,
                             uint64_t cookie) {
  QueuedRecord queued;
  queued.bytes = std::move(record);
  for (const BufferSlice& slice : payload) {
    HYDRA_CHECK(slice.length % kPageSize == 0);
    queued.payload_pages += static_cast<uint32_t>(slice.length / kPageSize);
  }
  queued.payload = std::move(payload);
  queued.cookie = cookie;
  queue_.Push(urgency, flow, std::move(queued));
}

bool PhysicalVolume::OpenNextSegment(uint32_t lane) {
  auto chosen = spares_.rbegin();
  while (only_clean_ && chosen != spares_.rend() && !chosen->clean) ++chosen;
  if (chosen == spares_.rend()) return false;
  HYDRA_CHECK(highest_ < kOwedSegment - 1);
  Spare spare = std::move(*chosen);
  spares_.erase(std::next(chosen).base());
  closing_[lane] = false;
  ++highest_;
  SegmentHeader header;
  header.segment = highest_;
  header.lane = lane;
  header.segment_bytes = options_.segment_bytes;
  header.first_batch = durable_.next_batch;
  header.chain = durable_.chain;
  batch_->segment_page = Buffer::Allocate(kPageSize);
  EncodeSegmentHeader(options_.store, header, batch_->segment_page.span());
  batch_->segment_header = header;
  batch_->open_from = spare.path;
  batch_->open_clean = spare.clean;
  batch_->file = std::move(spare.file);
  lanes_[lane] = {highest_, kFirstBatchPage};
  return true;
}

void PhysicalVolume::StartBatch(uint32_t lane, bool seal, std::vector<QueuedRecord> records) {
  HYDRA_CHECK(!in_flight_);
  size_t bytes = kBatchFixedBytes;
  uint32_t payload_pages = 0;
  for (const QueuedRecord& record : records) {
    bytes += record.bytes.size();
    payload_pages += record.payload_pages;
  }
  VolumeBatch& batch = *batch_;
  BatchHeader& header = batch.header_;
  header = {};
  header.number = durable_.next_batch;
  header.segment = lanes_[lane].segment;
  header.page = lanes_[lane].page;
  header.lane = lane;
  header.seal = seal;
  header.chain = durable_.chain;
  header.header_bytes = static_cast<uint32_t>(bytes);
  header.header_pages = static_cast<uint32_t>((bytes + kPageSize - 1) / kPageSize);
  header.payload_pages = payload_pages;
  header.generation = generation_;
  header.record_count = static_cast<uint32_t>(records.size());
  HYDRA_CHECK(header.page + header.pages() <= segment_pages_);

  const auto pages = batch.HeaderPages(header.header_pages, bytes);
  uint8_t* to = pages.data() + kBatchFixedBytes;
  for (const QueuedRecord& record : records) {
    to = std::copy(record.bytes.begin(), record.bytes.end(), to);
  }
  HYDRA_CHECK(to == pages.data() + bytes);
  EncodeBatchHeader(options_.store, &header, pages);
  batch.records = std::move(records);
  if (batch.open_from.empty()) batch.file = segments_.at(header.segment).file;
  in_flight_ = true;
}

Batch* PhysicalVolume::FormBatch(uint32_t lane, uint32_t page_limit) {
  const bool background = lane == kRelocationLane;
  BatchBudget budget{.pages = std::min(page_limit, LaneRoom(lane)),
                     .header_pages = max_header_pages_,
                     .payload_pages = max_payload_pages_};
  std::vector<QueuedRecord> records;
  if (budget.pages > 0) records = queue_.Fill(background, budget);
  if (records.empty()) {
    // Vacuum waits for enough credit rather than leave the end of a segment unused.
    if (page_limit < max_batch_pages_ || !OpenNextSegment(lane)) return nullptr;
    budget.pages = max_batch_pages_;
    records = queue_.Fill(background, budget);
  }
  HYDRA_CHECK(!records.empty());
  StartBatch(lane, false, std::move(records));
  const uint32_t pages = batch_->header_.pages();
  if (background) {
    background_credit_ -= std::min(background_credit_, pages);
  } else {
    background_credit_ =
        std::min(background_credit_ + pages / kBackgroundDivisor + 1, max_batch_pages_);
  }
  return batch_.get();
}

Batch* PhysicalVolume::FormSeal() {
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    if (lanes_[lane].segment == 0 || lanes_[lane].page >= segment_pages_) continue;
    std::vector<QueuedRecord> records;
    std::string note = seal_note_ ? seal_note_() : std::string();
    if (!note.empty() && note.size() <= kPageSize - kBatchFixedBytes) {
      records.push_back({std::move(note), {}, 0, 0});
    }
    StartBatch(lane, true, std::move(records));
    return batch_.get();
  }
  // No room for a seal anywhere: the next segment's header will do.
  sealed_ = true;
  return nullptr;
}

Batch* PhysicalVolume::NextBatch(Nanos now) {
  now_ = now;
  if (in_flight_) return nullptr;
  const bool clients = queue_.HasForeground();
  const uint32_t worthwhile = std::min(kMinBackgroundPages, max_batch_pages_ / 2);
  if (queue_.HasBackground() && (!clients || background_credit_ >= worthwhile)) {
    const uint32_t limit = clients ? background_credit_ : max_batch_pages_;
    if (Batch* batch = FormBatch(kRelocationLane, limit)) return batch;
  }
  if (clients) return FormBatch(kLogLane, max_batch_pages_);
  const auto due = SealDue();
  return due && now >= *due ? FormSeal() : nullptr;
}

std::optional<Nanos> PhysicalVolume::SealDue() const {
  if (sealed_ || in_flight_ || !queue_.empty()) return std::nullopt;
  return last_done_ + options_.seal_after;
}

void PhysicalVolume::BatchDone(Batch* batch, Nanos now, std::vector<Placed>* placed) {
  HYDRA_CHECK(in_flight_ && batch == batch_.get());
  in_flight_ = false;
  const BatchHeader header = batch_->header_;
  if (!batch_->open_from.empty()) {
    Segment& segment = segments_[header.segment];
    segment.file = std::move(batch_->file);
    segment.lane = header.lane;
    segment.first_batch = batch_->segment_header.first_batch;
    segment.clean = batch_->open_clean;
    batch_->open_from.clear();
    PublishTable();
  }
  Segment& segment = segments_.at(header.segment);
  segment.used_pages += header.payload_pages;

  placed->reserve(batch_->records.size());
  uint32_t offset = kBatchFixedBytes;
  uint32_t page = header.page + header.header_pages;
  for (const QueuedRecord& record : batch_->records) {
    if (record.cookie != 0) {
      placed->push_back({record.cookie, {header.segment, header.page, offset, page}});
    }
    offset += static_cast<uint32_t>(record.bytes.size());
    page += record.payload_pages;
  }
  batch_->records.clear();

  lanes_[header.lane].page = header.page + header.pages();
  durable_.next_batch = header.number + 1;
  durable_.chain = header.crc;
  durable_.lanes[header.lane] = {header.segment, lanes_[header.lane].page};
  sealed_ = header.seal;
  last_done_ = now;
  ++counters_.batches;
  counters_.batch_bytes += batch->bytes();
  EarnFilling(batch->bytes());
  if (header.seal) ++counters_.seals;
}

// --- Segments ---------------------------------------------------------------------------------

Segment* PhysicalVolume::Find(SegmentNumber number) {
  const auto found = segments_.find(number);
  return found == segments_.end() ? nullptr : &found->second;
}

bool PhysicalVolume::IsActive(SegmentNumber number) const {
  return lanes_[kLogLane].segment == number || lanes_[kRelocationLane].segment == number;
}

void PhysicalVolume::AddLive(SegmentNumber number, int64_t pages) {
  Segment* segment = Find(number);
  if (segment == nullptr) return;  // lost; whoever reads from it is told
  HYDRA_CHECK(static_cast<int64_t>(segment->live_pages) + pages >= 0);
  segment->live_pages = static_cast<uint32_t>(segment->live_pages + pages);
  live_pages_ = static_cast<uint64_t>(static_cast<int64_t>(live_pages_) + pages);
}

void PhysicalVolume::NoteShared(SegmentNumber number) {
  if (Segment* segment = Find(number)) segment->shared = true;
}

void PhysicalVolume::AddOpen(SegmentNumber number, uint32_t pages) {
  Segment* segment = Find(number);
  if (segment == nullptr) return;
  ++segment->open_records;
  segment->open_pages += pages;
  open_pages_ += pages;
}

void PhysicalVolume::RemoveOpen(SegmentNumber number, uint32_t pages) {
  Segment* segment = Find(number);
  if (segment == nullptr) return;
  HYDRA_CHECK(segment->open_records > 0 && segment->open_pages >= pages);
  --segment->open_records;
  segment->open_pages -= pages;
  open_pages_ -= pages;
}

Status PhysicalVolume::Free(SegmentNumber number) {
  HYDRA_CHECK(!IsActive(number));
  Segment& segment = segments_.at(number);
  HYDRA_CHECK(segment.live_pages == 0 && segment.open_records == 0);
  const std::string spare = options_.dir + "/" + SpareName(next_spare_name_++);
  HYDRA_RETURN_IF_ERROR(options_.fs->Rename(options_.dir + "/" + SegmentFileName(number), spare));
  segment.file->cached->DropCache();
  spares_.push_back({spare, std::move(segment.file)});
  spare_awaited_ = false;
  segments_.erase(number);
  PublishTable();
  ++counters_.segments_freed;
  return Status::Ok();
}

bool PhysicalVolume::WantsVacuum(size_t waiting) const {
  const uint32_t total = total_segments();
  const uint64_t growth = max_segments() > total ? max_segments() - total : 0;
  const uint64_t free = spares_.size() + growth + waiting;
  return free < options_.reserve_segments + options_.spare_segments;
}

}  // namespace hydra
