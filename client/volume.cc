// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "base/coding.h"
#include "base/crc32c.h"
#include "base/rng.h"
#include "client/hydra.h"
#include "client/runtime.h"
#include "client/transfer.h"
#include "client/volume_state.h"

namespace hydra {
namespace {

using std::chrono::milliseconds;

constexpr uint64_t kWordBytes = 8;

}  // namespace

// --- State --------------------------------------------------------------------------------------

VolumeState::VolumeState(std::shared_ptr<Runtime> runtime_in, const CatalogueView::Volume& volume)
    : runtime(std::move(runtime_in)),
      name(volume.name),
      id(volume.id),
      layout(volume.block_bytes, static_cast<uint32_t>(volume.shards.size())),
      logical_block(volume.logical_block),
      groups(volume.shards),
      bytes(volume.bytes),
      epoch(volume.epoch),
      commits_(std::make_unique<std::atomic<uint64_t>[]>(groups.size())) {}

Status VolumeState::Update() {
  const auto view = runtime->router.catalogue();
  const auto found = view->volumes.find(name);
  if (found == view->volumes.end() || found->second.id != id) {
    return Status::NotFound(fmt::format("volume '{}' was deleted", name));
  }
  bytes = found->second.bytes;
  epoch = found->second.epoch;
  return Status::Ok();
}

bool VolumeState::IsInside(uint64_t offset, uint64_t length) {
  if (!Update().ok()) return false;
  const uint64_t size = bytes;
  return offset <= size && length <= size - offset;
}

void VolumeState::CheckRange(uint64_t offset, uint64_t length, std::function<void(Status)> then) {
  if (IsInside(offset, length)) return then(Status::Ok());
  if (Status updated = Update(); !updated.ok()) return then(updated);
  // It may have grown.
  runtime->router.Refresh(runtime->options.timeout, [self = shared_from_this(), offset, length,
                                                     then](const Status& refreshed) {
    if (!refreshed.ok()) return then(refreshed);
    if (self->IsInside(offset, length)) return then(Status::Ok());
    if (Status updated = self->Update(); !updated.ok()) return then(updated);
    then(Status::OutOfRange(fmt::format("{} bytes at {} reach beyond the end of volume '{}', {}",
                                        length, offset, self->name, self->bytes.load())));
  });
}

void VolumeState::Fence(uint64_t epoch, std::function<void(Status)> done) {
  struct Joined {
    size_t missing = 0;
    Status first;
  };
  auto joined = std::make_shared<Joined>();
  joined->missing = groups.size();
  for (uint32_t shard = 0; shard < groups.size(); ++shard) {
    GroupRequest request;
    request.kind = GroupRequest::Kind::kFence;
    Address(*this, shard, nullptr, &request);
    request.epoch = epoch;
    runtime->router.Submit(std::move(request), [joined, done](const GroupReply& reply) {
      if (joined->first.ok()) joined->first = reply.status;
      if (--joined->missing == 0) done(joined->first);
    });
  }
}

void VolumeState::NoteCommit(uint32_t shard, uint64_t commit) {
  if (commit > commits_[shard]) commits_[shard] = commit;
}

uint64_t VolumeState::BeginChange() {
  changes_.push_back(next_change_);
  return next_change_++;
}

void VolumeState::EndChange(uint64_t change) {
  const auto [from, to] = std::equal_range(changes_.begin(), changes_.end(), change);
  changes_.erase(from, to);
  const uint64_t lowest = changes_.empty() ? next_change_ : changes_.front();
  while (!waiters_.empty() && waiters_.front().until <= lowest) {
    const auto then = std::move(waiters_.front().then);
    waiters_.pop_front();
    then();
  }
}

void VolumeState::WhenChangesEnd(std::function<void()> then) {
  if (changes_.empty()) return then();
  waiters_.push_back({next_change_, std::move(then)});
}

Status CheckArguments(uint64_t offset, uint64_t length) {
  if (length == 0) return Status::InvalidArgument("the length is 0");
  if (offset % kSectorBytes != 0 || length % kSectorBytes != 0) {
    return Status::InvalidArgument(fmt::format("offset {} and length {} must be multiples of {}",
                                               offset, length, kSectorBytes));
  }
  if (length > std::numeric_limits<uint64_t>::max() - offset) {
    return Status::OutOfRange(
        fmt::format("{} bytes at {} reach beyond any volume", length, offset));
  }
  return Status::Ok();
}

// --- Opening ------------------------------------------------------------------------------------

namespace {

// As the catalogue that is known says.
Result<std::shared_ptr<VolumeState>> FindVolume(const std::shared_ptr<Runtime>& runtime,
                                                const std::string& name) {
  const auto view = runtime->router.catalogue();
  const auto found = view->volumes.find(name);
  if (found == view->volumes.end()) {
    return Status::NotFound(fmt::format("there is no volume '{}'", name));
  }
  const CatalogueView::Volume& volume = found->second;
  if (!volume.active) {
    return Status::Unavailable(
        fmt::format("volume '{}' is still being created: try again shortly", name));
  }
  if (volume.shards.empty() || volume.block_bytes % kSectorBytes != 0 ||
      kExtentBytes % volume.block_bytes != 0) {
    return Status::Unsupported(
        fmt::format("volume '{}' has {} shards and blocks of {} bytes: upgrade this client", name,
                    volume.shards.size(), volume.block_bytes));
  }
  return std::make_shared<VolumeState>(runtime, volume);
}

}  // namespace

void Volume::StartOpen(const Cluster& cluster, const std::string& name,
                       internal::Callback<Result<Volume>> done) {
  const auto runtime = cluster.impl_->runtime();
  runtime->Post([impl = cluster.impl_, runtime, name, done = std::move(done)] {
    const auto look = [=](const Status& refreshed) {
      if (!refreshed.ok()) return done(refreshed);
      auto state = FindVolume(runtime, name);
      if (!state.ok()) return done(state.status());
      done(Volume(std::make_shared<Impl>(Impl{impl, std::move(*state), nullptr})));
    };
    // What is known may be old: the name may stand for another volume by now. A volume that was
    // just made is not known to all nodes yet, nor to any after they all lost power: that there is
    // none is said only by a catalogue that is current.
    runtime->router.Refresh(runtime->options.timeout, [=](const Status& refreshed) {
      if (refreshed.ok() && !runtime->router.catalogue()->volumes.contains(name)) {
        return runtime->router.RefreshToCurrent(runtime->options.timeout, look);
      }
      look(refreshed);
    });
  });
}

Result<Volume> Volume::Open(const Cluster& cluster, const std::string& name) {
  return cluster.impl_->Await<Result<Volume>>(
      [&](auto done) { StartOpen(cluster, name, std::move(done)); });
}

const std::string& Volume::name() const { return impl_->state->name; }
uint32_t Volume::id() const { return impl_->state->id; }
uint32_t Volume::block_bytes() const { return impl_->state->layout.block_bytes(); }
uint32_t Volume::logical_block() const { return impl_->state->logical_block; }
uint64_t Volume::size() const { return impl_->state->bytes; }

VolumeStats Volume::stats() const {
  const VolumeState& state = *impl_->state;
  VolumeStats stats;
  stats.reads = state.reads;
  stats.writes = state.writes;
  stats.discards = state.discards;
  stats.read_bytes = state.read_bytes;
  stats.written_bytes = state.written_bytes;
  stats.errors = state.errors;
  return stats;
}

Result<uint64_t> Volume::Refresh() {
  const auto state = impl_->state;
  return impl_->cluster->Await<Result<uint64_t>>([&](internal::Callback<Result<uint64_t>> done) {
    state->runtime->Post([state, done = std::move(done)] {
      state->runtime->router.Refresh(state->runtime->options.timeout,
                                     [state, done](const Status& refreshed) {
                                       if (!refreshed.ok()) return done(refreshed);
                                       if (Status updated = state->Update(); !updated.ok())
                                         return done(updated);
                                       done(state->bytes.load());
                                     });
    });
  });
}

// --- Watching -----------------------------------------------------------------------------------

struct Volume::Watch::State {
  std::shared_ptr<VolumeState> volume;
  std::atomic<uint64_t> VolumeState::*what = nullptr;
  std::function<void(uint64_t)> changed;
  milliseconds every{};
  uint64_t last = 0;

  static std::shared_ptr<State> Start(std::shared_ptr<VolumeState> volume,
                                      std::atomic<uint64_t> VolumeState::*what,
                                      std::function<void(uint64_t)> changed, milliseconds every);
  static void Next(const std::weak_ptr<State>& weak) {
    const auto state = weak.lock();
    if (!state || state->volume->runtime->closed) return;
    Runtime* runtime = state->volume->runtime.get();
    runtime->router.After(state->every, [weak, held = state->volume->runtime] {
      if (weak.expired() || held->closed) return;
      held->router.Refresh(held->options.timeout, [weak](const Status&) { Look(weak); });
    });
  }
  static void Look(const std::weak_ptr<State>& weak) {
    const auto state = weak.lock();
    if (!state) return;
    if (state->volume->Update().ok()) {
      const uint64_t now = (*state->volume).*(state->what);
      if (std::exchange(state->last, now) != now) state->changed(now);
    }
    Next(weak);
  }
};

Volume::Watch::Watch(std::shared_ptr<State> state) : state_(std::move(state)) {}
Volume::Watch::Watch(Watch&&) noexcept = default;
Volume::Watch& Volume::Watch::operator=(Watch&&) noexcept = default;
Volume::Watch::~Watch() = default;

std::shared_ptr<Volume::Watch::State> Volume::Watch::State::Start(
    std::shared_ptr<VolumeState> volume, std::atomic<uint64_t> VolumeState::*what,
    std::function<void(uint64_t)> changed, milliseconds every) {
  auto state = std::make_shared<Watch::State>();
  state->volume = std::move(volume);
  state->what = what;
  state->changed = std::move(changed);
  state->every = std::max(every, milliseconds(10));
  state->last = (*state->volume).*what;
  const std::weak_ptr<Watch::State> weak = state;
  state->volume->runtime->Post([weak] { Next(weak); });
  return state;
}

Volume::Watch Volume::WatchSize(std::function<void(uint64_t)> changed, milliseconds every) {
  return Watch(Watch::State::Start(impl_->state, &VolumeState::bytes, std::move(changed), every));
}

Volume::Watch Volume::WatchAccess(std::function<void(uint64_t)> changed, milliseconds every) {
  return Watch(Watch::State::Start(impl_->state, &VolumeState::epoch, std::move(changed), every));
}

// --- Operations ---------------------------------------------------------------------------------

namespace {

// Checks the range, runs a transfer, counts it. `start` takes what is to be called at the end, a
// std::function<void(Status)>. `done` runs on the runtime's thread.
template <typename Start>
void Run(const std::shared_ptr<VolumeState>& state, uint64_t offset, uint64_t length, bool change,
         Start start, internal::Callback<Status> done) {
  const Status checked = CheckArguments(offset, length);
  state->runtime->Post([=, start = std::move(start), done = std::move(done)]() mutable {
    if (!checked.ok()) {
      ++state->errors;
      return done(checked);
    }
    const uint64_t id = change ? state->BeginChange() : 0;
    std::function<void(Status)> end = [state, id, done = std::move(done)](const Status& status) {
      if (!status.ok()) ++state->errors;
      done(status);
      if (id != 0) state->EndChange(id);
    };
    if (state->IsInside(offset, length)) return start(std::move(end));
    state->CheckRange(offset, length, [start, end](const Status& inside) {
      if (!inside.ok()) return end(inside);
      start(end);
    });
  });
}

}  // namespace

void Volume::StartRead(uint64_t offset, std::span<uint8_t> data, Consistency consistency,
                       internal::Callback<Status> done) const {
  const auto state = impl_->state;
  const auto guard = impl_->guard;
  Run(
      state, offset, data.size(), false,
      [=](std::function<void(Status)> end) {
        ++state->reads;
        state->read_bytes += data.size();
        const auto transfer =
            std::make_shared<Transfer>(state, Transfer::Kind::kRead, offset, data.size());
        transfer->set_out(data, consistency == Consistency::kLocal);
        transfer->set_guard(guard);
        transfer->Start(std::move(end));
      },
      std::move(done));
}

void Volume::StartWrite(uint64_t offset, std::span<const uint8_t> data,
                        internal::Callback<Status> done) const {
  const auto state = impl_->state;
  const auto guard = impl_->guard;
  Run(
      state, offset, data.size(), true,
      [=](std::function<void(Status)> end) {
        ++state->writes;
        state->written_bytes += data.size();
        const auto transfer =
            std::make_shared<Transfer>(state, Transfer::Kind::kWrite, offset, data.size());
        transfer->set_in(data);
        transfer->set_guard(guard);
        transfer->Start(std::move(end));
      },
      std::move(done));
}

void Volume::StartZeroes(uint64_t offset, uint64_t length, internal::Callback<Status> done) const {
  const auto state = impl_->state;
  const auto guard = impl_->guard;
  Run(
      state, offset, length, true,
      [=](std::function<void(Status)> end) {
        ++state->writes;
        state->written_bytes += length;
        const auto transfer =
            std::make_shared<Transfer>(state, Transfer::Kind::kZero, offset, length);
        transfer->set_guard(guard);
        transfer->Start(std::move(end));
      },
      std::move(done));
}

void Volume::StartDiscard(uint64_t offset, uint64_t length, internal::Callback<Status> done) const {
  const auto state = impl_->state;
  const auto guard = impl_->guard;
  Run(
      state, offset, length, true,
      [=](const std::function<void(Status)>& end) {
        ++state->discards;
        const uint64_t block = state->layout.block_bytes();
        const uint64_t first = (offset + block - 1) / block * block;
        const uint64_t last = (offset + length) / block * block;
        if (first >= last) return end(Status::Ok());
        const auto transfer =
            std::make_shared<Transfer>(state, Transfer::Kind::kUnmap, first, last - first);
        transfer->set_guard(guard);
        transfer->Start(end);
      },
      std::move(done));
}

void Volume::StartFlush(internal::Callback<Status> done) const {
  const auto state = impl_->state;
  state->runtime->Post(
      [state, done = std::move(done)] { state->WhenChangesEnd([done] { done(Status::Ok()); }); });
}

// --- Compare ------------------------------------------------------------------------------------

namespace {

// Compares and writes what lies within one extent; `end` gets kFailedPrecondition for a miscompare
// with an empty message. The bytes need not be whole sectors.
void CompareBytes(const std::shared_ptr<VolumeState>& state,
                  const std::shared_ptr<const Guard>& guard, uint64_t offset,
                  std::span<const uint8_t> expected, std::span<const uint8_t> desired,
                  std::function<void(Result<bool>)> end) {
  Router* router = &state->runtime->router;
  const Piece piece = state->layout.First(offset, expected.size());
  GroupRequest request;
  request.kind =
      piece.whole_blocks ? GroupRequest::Kind::kCompareAndWrite : GroupRequest::Kind::kComparePart;
  Address(*state, piece.shard, guard.get(), &request);
  request.lba = piece.lba;
  request.count = piece.count;
  for (const auto& bytes : {expected, desired}) {
    Result<BufferSlice> copy = PaddedCopy(router, bytes);
    if (!copy.ok()) return end(copy.status());
    request.payload.push_back(std::move(*copy));
  }
  if (piece.whole_blocks) {
    for (uint64_t i = 0; i < piece.count; ++i) {
      request.crcs.push_back(Crc32c(desired.subspan(i * request.block_bytes, request.block_bytes)));
    }
  } else {
    request.part_offset = piece.part_offset;
    request.part_bytes = static_cast<uint32_t>(piece.bytes);
    request.crcs = {Crc32c(desired)};
  }
  router->Submit(std::move(request),
                 [state, shard = piece.shard, end = std::move(end)](const GroupReply& reply) {
                   state->NoteCommit(shard, reply.commit);
                   if (!reply.status.ok()) return end(reply.status);
                   end(reply.answer == GroupAnswer::kDone);
                 });
}

// Reads the word, compares and writes it, and starts over when another was faster.
class Adder : public std::enable_shared_from_this<Adder> {
 public:
  Adder(std::shared_ptr<VolumeState> state, std::shared_ptr<const Guard> guard, uint64_t offset,
        uint64_t add, std::function<void(Result<uint64_t>)> end)
      : state_(std::move(state)),
        guard_(std::move(guard)),
        offset_(offset),
        add_(add),
        end_(std::move(end)),
        deadline_(std::chrono::steady_clock::now() + state_->runtime->options.timeout),
        rng_(reinterpret_cast<uintptr_t>(this) ^ offset) {}

  void Read() {
    const Piece piece = state_->layout.First(offset_, kWordBytes);
    GroupRequest request;
    request.kind = GroupRequest::Kind::kRead;
    Address(*state_, piece.shard, guard_.get(), &request);
    request.lba = piece.lba;
    request.count = 1;
    state_->runtime->router.Submit(
        std::move(request),
        [self = shared_from_this(), at = piece.part_offset](const GroupReply& reply) {
          if (!reply.status.ok()) return self->end_(reply.status);
          CopyRead(reply, self->state_->layout.block_bytes(), at, self->before_);
          self->Write();
        });
  }

 private:
  void Write() {
    const uint64_t value = DecodeFixed64(before_.data());
    EncodeFixed64(after_.data(), value + add_);
    CompareBytes(state_, guard_, offset_, before_, after_,
                 [self = shared_from_this(), value](const Result<bool>& written) {
                   if (!written.ok()) return self->end_(written.status());
                   if (*written) return self->end_(value);
                   self->Again();
                 });
  }

  void Again() {
    if (std::chrono::steady_clock::now() >= deadline_) {
      return end_(Status::Busy("nothing was added: others changed the word all the time"));
    }
    tries_ = std::min(tries_ + 1, 6u);
    state_->runtime->router.After(milliseconds(rng_.Below(1u << tries_)),
                                  [self = shared_from_this()] { self->Read(); });
  }

  const std::shared_ptr<VolumeState> state_;
  const std::shared_ptr<const Guard> guard_;
  const uint64_t offset_;
  const uint64_t add_;
  const std::function<void(Result<uint64_t>)> end_;
  const std::chrono::steady_clock::time_point deadline_;
  Rng rng_;
  unsigned tries_ = 0;
  std::array<uint8_t, kWordBytes> before_{};
  std::array<uint8_t, kWordBytes> after_{};
};

}  // namespace

void Volume::StartCompare(uint64_t offset, std::span<const uint8_t> expected,
                          std::span<const uint8_t> desired,
                          internal::Callback<Result<bool>> done) const {
  const auto state = impl_->state;
  const auto guard = impl_->guard;
  Status refused;
  if (expected.size() != desired.size()) {
    refused = Status::InvalidArgument(
        fmt::format("{} bytes to compare with and {} to write: they must be as many",
                    expected.size(), desired.size()));
  } else if (!expected.empty() &&
             offset / kExtentBytes != (offset + expected.size() - 1) / kExtentBytes) {
    refused = Status::InvalidArgument(fmt::format(
        "{} bytes at {} cross a multiple of 1 MiB: split them there", expected.size(), offset));
  }
  auto result = std::make_shared<Result<bool>>(false);
  Run(
      state, offset, expected.size(), true,
      [=](const std::function<void(Status)>& end) {
        if (!refused.ok()) return end(refused);
        ++state->writes;
        state->written_bytes += desired.size();
        CompareBytes(state, guard, offset, expected, desired, [=](Result<bool> written) {
          *result = std::move(written);
          end(result->ok() ? Status::Ok() : result->status());
        });
      },
      [result, done = std::move(done)](const Status& status) {
        done(status.ok() ? *result : Result<bool>(status));
      });
}

void Volume::StartFetchAdd(uint64_t offset, uint64_t add,
                           internal::Callback<Result<uint64_t>> done) const {
  const auto state = impl_->state;
  const auto guard = impl_->guard;
  const bool aligned = offset % kWordBytes == 0;
  auto result = std::make_shared<Result<uint64_t>>(uint64_t{0});
  // The range that is checked is the sector's.
  Run(
      state, offset / kSectorBytes * kSectorBytes, kSectorBytes, true,
      [=](const std::function<void(Status)>& end) {
        if (!aligned) {
          return end(Status::InvalidArgument(
              fmt::format("offset {} is no multiple of {}", offset, kWordBytes)));
        }
        ++state->writes;
        state->written_bytes += kWordBytes;
        std::make_shared<Adder>(state, guard, offset, add, [=](Result<uint64_t> before) {
          *result = std::move(before);
          end(result->ok() ? Status::Ok() : result->status());
        })->Read();
      },
      [result, done = std::move(done)](const Status& status) {
        done(status.ok() ? *result : Result<uint64_t>(status));
      });
}

// --- The same, blocking -------------------------------------------------------------------------

Status Volume::Read(uint64_t offset, std::span<uint8_t> data, Consistency consistency) {
  return impl_->cluster->Await<Status>(
      [&](auto done) { StartRead(offset, data, consistency, std::move(done)); });
}

Status Volume::Write(uint64_t offset, std::span<const uint8_t> data) {
  return impl_->cluster->Await<Status>(
      [&](auto done) { StartWrite(offset, data, std::move(done)); });
}

Status Volume::WriteZeroes(uint64_t offset, uint64_t length) {
  return impl_->cluster->Await<Status>(
      [&](auto done) { StartZeroes(offset, length, std::move(done)); });
}

Status Volume::Discard(uint64_t offset, uint64_t length) {
  return impl_->cluster->Await<Status>(
      [&](auto done) { StartDiscard(offset, length, std::move(done)); });
}

Result<bool> Volume::CompareAndWrite(uint64_t offset, std::span<const uint8_t> expected,
                                     std::span<const uint8_t> desired) {
  return impl_->cluster->Await<Result<bool>>(
      [&](auto done) { StartCompare(offset, expected, desired, std::move(done)); });
}

Result<uint64_t> Volume::FetchAdd(uint64_t offset, uint64_t add) {
  return impl_->cluster->Await<Result<uint64_t>>(
      [&](auto done) { StartFetchAdd(offset, add, std::move(done)); });
}

Status Volume::Flush() {
  return impl_->cluster->Await<Status>([&](auto done) { StartFlush(std::move(done)); });
}

}  // namespace hydra
