// SPDX-License-Identifier: Apache-2.0
#include "daemon/hydractl_load.h"

#include <algorithm>
#include <bit>
#include <condition_variable>
#include <cstring>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>

#include <fmt/format.h>

namespace hydra::ctl {
namespace {

using std::chrono::steady_clock;

constexpr size_t kSector = 512;
constexpr uint64_t kReadAgain = 1u << 20;   // of one read of the final check
constexpr uint64_t kGap = 64u << 10;        // unwritten bytes that such a read may span
constexpr size_t kMaxTracked = 256u << 20;  // blocks: two gigabytes of numbers
constexpr size_t kErrorsAtOnce = 100'000;   // give up although errors are to be survived

uint64_t Nanoseconds(steady_clock::duration duration) {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count());
}

uint64_t Mix(uint64_t x) {  // SplitMix64
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace

// --- Latency ------------------------------------------------------------------------------------

size_t LatencyHistogram::Bucket(uint64_t value) {
  constexpr uint64_t kSub = 1u << kSubBits;
  if (value < kSub) return value;
  const unsigned shift = static_cast<unsigned>(std::bit_width(value)) - kSubBits - 1;
  return ((shift + 1) << kSubBits) + ((value >> shift) & (kSub - 1));
}

void LatencyHistogram::Add(uint64_t nanoseconds) {
  ++counts_[Bucket(nanoseconds)];
  ++count_;
  sum_ += nanoseconds;
  min_ = std::min(min_, nanoseconds);
  max_ = std::max(max_, nanoseconds);
}

void LatencyHistogram::Merge(const LatencyHistogram& other) {
  for (size_t i = 0; i < counts_.size(); ++i) counts_[i] += other.counts_[i];
  count_ += other.count_;
  sum_ += other.sum_;
  min_ = std::min(min_, other.min_);
  max_ = std::max(max_, other.max_);
}

double LatencyHistogram::mean() const {
  return count_ == 0 ? 0 : static_cast<double>(sum_) / static_cast<double>(count_);
}

uint64_t LatencyHistogram::Quantile(double q) const {
  if (count_ == 0) return 0;
  const auto rank = static_cast<uint64_t>(q * static_cast<double>(count_ - 1)) + 1;
  uint64_t below = 0;
  for (size_t i = 0; i < counts_.size(); ++i) {
    below += counts_[i];
    if (below < rank) continue;
    const size_t shift = i >> kSubBits;
    if (shift == 0) return i;
    const uint64_t base = (uint64_t{1} << kSubBits) + (i & ((1u << kSubBits) - 1));
    const uint64_t upper = ((base + 1) << (shift - 1)) - 1;
    return std::clamp(upper, min_, max_);
  }
  return max_;
}

// --- Content ------------------------------------------------------------------------------------

namespace {

void StampSector(uint64_t seed, uint64_t offset, uint64_t number, uint8_t* sector) {
  uint64_t words[kSector / 8];
  words[0] = seed;
  words[1] = offset;
  words[2] = number;
  uint64_t state = Mix(seed ^ Mix(offset ^ Mix(number)));
  for (size_t i = 3; i < kSector / 8; ++i) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    words[i] = state;
  }
  std::memcpy(sector, words, kSector);
}

}  // namespace

void StampBlock(uint64_t seed, uint64_t offset, uint64_t number, std::span<uint8_t> block) {
  for (size_t at = 0; at < block.size(); at += kSector) {
    StampSector(seed, offset + at, number, block.data() + at);
  }
}

bool BlockIs(uint64_t seed, uint64_t offset, uint64_t number, std::span<const uint8_t> block) {
  uint8_t expected[kSector];
  for (size_t at = 0; at < block.size(); at += kSector) {
    StampSector(seed, offset + at, number, expected);
    if (std::memcmp(expected, block.data() + at, kSector) != 0) return false;
  }
  return true;
}

// --- Places -------------------------------------------------------------------------------------

BlockChooser::BlockChooser(uint64_t blocks, const Skew& skew)
    : blocks_(blocks),
      preferred_(skew.blocks == 0 ? 0 : std::max<uint64_t>(1, blocks * skew.blocks / 100)),
      requests_(skew.requests),
      // The golden ratio scatters neighbours well; what has no factor in common with the number of
      // blocks visits each once.
      step_(0x9e3779b1 % blocks | 1) {
  while (std::gcd(step_, blocks_) != 1) step_ += 2;
}

uint64_t BlockChooser::At(uint64_t index) const {
  return static_cast<uint64_t>(static_cast<unsigned __int128>(index) * step_ % blocks_);
}

uint64_t BlockChooser::Next(Rng* rng) const {
  if (preferred_ == 0 || preferred_ == blocks_) return rng->Below(blocks_);
  if (rng->Percent(requests_)) return At(rng->Below(preferred_));
  return At(preferred_ + rng->Below(blocks_ - preferred_));
}

// --- A job --------------------------------------------------------------------------------------

namespace {

// One stream of requests over its own part of the volume. Requests are started by Start, then by
// the completion of others, on the client library's thread; `mutex_` guards everything that
// changes.
class Job : public std::enable_shared_from_this<Job> {
 public:
  Job(Volume volume, const LoadOptions& options, uint64_t begin, uint64_t blocks, uint64_t seed)
      : volume_(std::move(volume)),
        options_(options),
        begin_(begin),
        blocks_(blocks),
        seed_(seed),
        rng_(seed),
        places_(blocks, options.skew),
        slots_(options.depth) {
    for (Slot& slot : slots_) slot.bytes.resize(static_cast<size_t>(options.block_bytes));
    for (Slot& slot : slots_) StampBlock(seed, 0, ++filling_, slot.bytes);
    if (options_.verify) {
      acknowledged_.resize(static_cast<size_t>(blocks));
      busy_.resize(static_cast<size_t>(blocks));
    }
  }

  void Start(steady_clock::time_point end) {
    end_ = end;
    running_ = slots_.size();
    for (size_t i = 0; i < slots_.size(); ++i) Next(i);
  }

  void Wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return running_ == 0; });
  }

  // Reads everything again that was written.
  void ReadAgain();

  void AddTo(LoadReport* report) const {
    for (const auto& [from, to] :
         {std::pair(&report_.reads, &report->reads), std::pair(&report_.writes, &report->writes)}) {
      to->operations += from->operations;
      to->latency.Merge(from->latency);
    }
    report->errors += report_.errors;
    if (report->first_error.ok()) report->first_error = report_.first_error;
    report->verified += report_.verified;
    report->wrong += report_.wrong;
    if (report->first_wrong.empty()) report->first_wrong = report_.first_wrong;
  }

 private:
  struct Slot {
    std::vector<uint8_t> bytes;
    uint64_t block = 0;
    uint64_t number = 0;    // of a write
    uint64_t expected = 0;  // of a read: the number that was acknowledged when it began
    bool read = false;
    steady_clock::time_point since;
  };

  uint64_t OffsetOf(uint64_t block) const { return begin_ + block * options_.block_bytes; }

  // Chooses what the slot does next. False: the job is over.
  bool Choose(Slot* slot) {
    const bool over = stopped_ || steady_clock::now() >= end_ ||
                      (options_.operations != 0 && begun_ >= options_.operations);
    if (over) return false;
    ++begun_;
    slot->read = options_.read_percent != 0 && rng_.Below(100) < options_.read_percent;
    uint64_t block = options_.random ? places_.Next(&rng_) : next_++ % blocks_;
    if (options_.verify) {
      // There are more blocks than slots, so one is free.
      while (busy_[block]) block = (block + 1) % blocks_;
      busy_[block] = true;
      slot->expected = acknowledged_[block];
    }
    slot->block = block;
    if (slot->read) return true;
    slot->number = ++numbers_;
    if (options_.verify) {
      StampBlock(seed_, OffsetOf(block), slot->number, slot->bytes);
    } else {
      std::memcpy(slot->bytes.data(), &slot->number, sizeof(slot->number));
    }
    return true;
  }

  void Next(size_t index) {
    Slot& slot = slots_[index];
    {
      const std::lock_guard lock(mutex_);
      if (!Choose(&slot)) {
        --running_;
        changed_.notify_all();
        return;
      }
    }
    slot.since = steady_clock::now();
    auto done = [self = shared_from_this(), index](const Status& status) {
      self->Done(index, status);
      self->Next(index);
    };
    if (slot.read) {
      const auto how = options_.local ? Consistency::kLocal : Consistency::kLinearizable;
      volume_.AsyncRead(OffsetOf(slot.block), slot.bytes, how, std::move(done));
    } else {
      volume_.AsyncWrite(OffsetOf(slot.block), slot.bytes, std::move(done));
    }
  }

  void Done(size_t index, const Status& status) {
    const Slot& slot = slots_[index];
    const uint64_t took = Nanoseconds(steady_clock::now() - slot.since);
    const std::lock_guard lock(mutex_);
    if (options_.verify) busy_[slot.block] = false;
    if (!status.ok()) {
      ++report_.errors;
      if (report_.first_error.ok()) report_.first_error = status;
      if (!options_.continue_on_error || report_.errors >= kErrorsAtOnce) stopped_ = true;
      if (options_.verify && !slot.read && status.code() == Code::kAborted) {
        perhaps_[slot.block].push_back(slot.number);
      }
      return;
    }
    LoadSide& side = slot.read ? report_.reads : report_.writes;
    ++side.operations;
    side.latency.Add(took);
    if (!options_.verify) return;
    if (!slot.read) {
      acknowledged_[slot.block] = slot.number;
      perhaps_.erase(slot.block);
    } else if (slot.expected != 0 && !options_.local) {
      Check(slot.block, slot.bytes);
    }
  }

  void Check(uint64_t block, std::span<const uint8_t> bytes) {
    ++report_.verified;
    const uint64_t offset = OffsetOf(block);
    const uint64_t number = acknowledged_[block];
    if (number != 0 && BlockIs(seed_, offset, number, bytes)) return;
    const auto perhaps = perhaps_.find(block);
    if (perhaps != perhaps_.end()) {
      if (number == 0) return;  // what was there before is not known
      for (const uint64_t other : perhaps->second) {
        if (BlockIs(seed_, offset, other, bytes)) return;
      }
    }
    ++report_.wrong;
    if (!report_.first_wrong.empty()) return;
    uint64_t words[3];
    std::memcpy(words, bytes.data(), sizeof(words));
    const bool ours = words[0] == seed_ && words[1] == offset;
    report_.first_wrong =
        fmt::format("offset {}: write {} was acknowledged, and the block holds {}", offset, number,
                    ours ? fmt::format("write {}", words[2]) : "something else");
  }

  Volume volume_;
  const LoadOptions options_;
  const uint64_t begin_;
  const uint64_t blocks_;
  const uint64_t seed_;

  std::mutex mutex_;
  std::condition_variable changed_;
  Rng rng_;
  const BlockChooser places_;
  std::vector<Slot> slots_;  // each is its request's alone while that is under way
  steady_clock::time_point end_;
  size_t running_ = 0;
  uint64_t begun_ = 0;
  uint64_t next_ = 0;
  uint64_t numbers_ = 0;
  uint64_t filling_ = 0;
  bool stopped_ = false;
  std::vector<uint64_t> acknowledged_;                 // per block: the last write; 0: none
  std::map<uint64_t, std::vector<uint64_t>> perhaps_;  // writes that may be there instead
  std::vector<bool> busy_;
  LoadReport report_;
};

void Job::ReadAgain() {
  struct Piece {
    uint64_t first = 0;
    uint64_t blocks = 0;
    std::vector<uint8_t> bytes;
    std::promise<Status> done;
  };
  const uint64_t size = options_.block_bytes;
  const auto known = [&](uint64_t block) {
    return acknowledged_[block] != 0 || perhaps_.contains(block);
  };
  std::deque<std::shared_ptr<Piece>> pending;
  uint64_t block = 0;
  while (true) {
    while (block < blocks_ && pending.size() < 16) {
      if (!known(block)) {
        ++block;
        continue;
      }
      uint64_t last = block;
      for (uint64_t next = block + 1; next < blocks_; ++next) {
        if ((next - block + 1) * size > std::max(kReadAgain, size)) break;
        if ((next - last) * size > kGap + size) break;
        if (known(next)) last = next;
      }
      auto piece = std::make_shared<Piece>();
      piece->first = block;
      piece->blocks = last - block + 1;
      piece->bytes.resize(static_cast<size_t>(piece->blocks * size));
      pending.push_back(piece);
      volume_.AsyncRead(OffsetOf(block), piece->bytes,
                        [piece](const Status& status) { piece->done.set_value(status); });
      block = last + 1;
    }
    if (pending.empty()) return;
    const std::shared_ptr<Piece> piece = pending.front();
    pending.pop_front();
    const Status read = piece->done.get_future().get();
    if (!read.ok()) {
      ++report_.errors;
      if (report_.first_error.ok()) report_.first_error = read.WithContext("reading again");
      continue;
    }
    for (uint64_t i = 0; i < piece->blocks; ++i) {
      if (!known(piece->first + i)) continue;
      Check(piece->first + i, std::span(piece->bytes).subspan(i * size, size));
    }
  }
}

Status CheckOptions(const Volume& volume, const LoadOptions& options, uint64_t size) {
  if (options.block_bytes == 0 || options.block_bytes % kSector != 0) {
    return Status::InvalidArgument(
        fmt::format("--bs {}: use a multiple of 512", options.block_bytes));
  }
  if (options.offset % kSector != 0 || options.offset >= volume.size() ||
      size > volume.size() - options.offset) {
    return Status::InvalidArgument(
        fmt::format("--offset {} and --size {} do not lie in {}, which has {} bytes",
                    options.offset, size, volume.name(), volume.size()));
  }
  const uint64_t blocks = size / options.block_bytes / std::max(1u, options.jobs);
  if (blocks == 0 || (options.verify && blocks < options.depth)) {
    return Status::InvalidArgument(
        fmt::format("--size {} is too little for {} job(s) with {} requests of {} bytes", size,
                    options.jobs, options.depth, options.block_bytes));
  }
  if (options.verify && blocks > kMaxTracked) {
    return Status::InvalidArgument(
        "too many blocks to remember for --verify; use a smaller --size");
  }
  return Status::Ok();
}

}  // namespace

Result<LoadReport> RunLoad(const std::vector<Volume>& volumes, const LoadOptions& options) {
  const Volume& volume = volumes.front();
  const uint64_t size = options.size != 0 || options.offset >= volume.size()
                            ? options.size
                            : volume.size() - options.offset;
  HYDRA_RETURN_IF_ERROR(CheckOptions(volume, options, size));
  const uint64_t blocks = size / options.block_bytes / options.jobs;
  std::vector<std::shared_ptr<Job>> jobs;
  for (unsigned i = 0; i < options.jobs; ++i) {
    jobs.push_back(std::make_shared<Job>(volumes[i], options,
                                         options.offset + i * blocks * options.block_bytes, blocks,
                                         Mix(options.seed + i)));
  }
  LoadReport report;
  const auto begin = steady_clock::now();
  for (const auto& job : jobs) job->Start(begin + options.runtime);
  for (const auto& job : jobs) job->Wait();
  report.seconds = static_cast<double>(Nanoseconds(steady_clock::now() - begin)) / 1e9;
  if (options.verify) {
    for (const auto& job : jobs) job->ReadAgain();
  }
  for (const auto& job : jobs) job->AddTo(&report);
  return report;
}

}  // namespace hydra::ctl
