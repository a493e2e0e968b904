// SPDX-License-Identifier: Apache-2.0
#include "daemon/drill_load.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "daemon/block_content.h"

namespace hydra::drill {
namespace {

using history::Access;
using history::Block;
using history::History;
using history::kAbsent;
using history::Value;
using std::chrono::nanoseconds;
using std::chrono::steady_clock;

constexpr size_t kMaxDamage = 20;
constexpr size_t kLongestRun = 4;  // blocks of one operation
constexpr uint64_t kExtentsPerShard = 2;
constexpr uint64_t kMostExtentsTried = 4096;
// A client that nobody answers tries for so long; a drill that keeps everything away for longer is
// not one.
constexpr std::chrono::milliseconds kCallPatience(30'000);

Result<Volume> Open(const LoadOptions& options, const std::string& name) {
  ClusterOptions cluster;
  cluster.timeout = kCallPatience;
  cluster.name = name;
  HYDRA_ASSIGN_OR_RETURN(const Cluster connected, Cluster::Connect(options.seeds, cluster));
  return Volume::Open(connected, options.volume);
}

}  // namespace

Result<std::unique_ptr<Load>> Load::Prepare(const LoadOptions& options) {
  std::unique_ptr<Load> load(new Load(options));
  HYDRA_ASSIGN_OR_RETURN(Volume first, Open(options, "drill"));
  HYDRA_RETURN_IF_ERROR(load->ChoosePlaces(first));
  HYDRA_RETURN_IF_ERROR(load->Zero(&first));
  std::vector<std::vector<Place*>> by_shard(options.shards);
  for (const auto& place : load->places_) {
    by_shard[load->ShardOf(place->block)].push_back(place.get());
  }
  std::erase_if(by_shard, [](const auto& places) { return places.empty(); });
  load->shards_ = by_shard.size();
  for (uint32_t i = 0; i < options.clients; ++i) {
    HYDRA_ASSIGN_OR_RETURN(Volume volume, Open(options, fmt::format("drill-{}", i + 1)));
    load->clients_.push_back(
        std::make_unique<Client>(Client{.id = i + 1,
                                        .volume = std::move(volume),
                                        .places = by_shard[i % by_shard.size()],
                                        .rng = Rng(options.seed * 1000 + i),
                                        .thread = {}}));
  }
  return load;
}

Load::~Load() { Stop(); }

Status Load::ChoosePlaces(const Volume& volume) {
  layout_ = Layout(volume.block_bytes(), options_.shards);
  const uint64_t per_extent = layout_.blocks_per_extent();
  const uint64_t extents = std::min(volume.size() / kExtentBytes, kMostExtentsTried);
  const uint64_t wanted =
      std::clamp<uint64_t>(options_.blocks_per_shard / kExtentsPerShard, 1, per_extent);
  std::vector<uint64_t> have(options_.shards);
  for (uint64_t extent = 0; extent < extents; ++extent) {
    uint64_t& blocks = have[layout_.ShardOfExtent(extent)];
    if (blocks >= options_.blocks_per_shard) continue;
    for (uint64_t i = 0; i < wanted; ++i) {
      auto place = std::make_unique<Place>();
      place->block = extent * per_extent + i;
      place->run_left = wanted - i;
      places_.push_back(std::move(place));
    }
    blocks += wanted;
  }
  if (places_.empty()) {
    return Status::InvalidArgument(
        fmt::format("volume '{}' is smaller than 1 MiB: too small for a drill", options_.volume));
  }
  return Status::Ok();
}

std::vector<Block> Load::Blocks() const {
  std::vector<Block> blocks;
  for (const auto& place : places_) blocks.push_back(place->block);
  return blocks;
}

Status Load::Zero(Volume* volume) {
  for (size_t i = 0; i < places_.size(); i += places_[i]->run_left) {
    const uint64_t bytes = places_[i]->run_left * layout_.block_bytes();
    HYDRA_RETURN_IF_ERROR(volume->WriteZeroes(OffsetOf(places_[i].get()), bytes));
  }
  return Status::Ok();
}

void Load::Start() {
  began_ = clock_.Now();
  for (const auto& client : clients_) {
    client->thread = std::thread([this, raw = client.get()] { Run(raw); });
  }
}

void Load::Stop() {
  stop_ = true;
  for (const auto& client : clients_) {
    if (client->thread.joinable()) client->thread.join();
  }
}

void Load::Run(Client* client) {
  const nanoseconds pace(options_.rate == 0 ? 0 : kSecond * options_.clients / options_.rate);
  auto due = steady_clock::now() + nanoseconds(client->rng.Below(pace.count() + 1));
  while (!stop_) {
    // What was not done while a request waited is not made up for.
    due = std::max(due, steady_clock::now());
    if (pace.count() > 0) std::this_thread::sleep_until(due);
    due += pace;
    if (stop_) return;
    Once(client);
    ++operations_;
  }
}

void Load::Once(Client* client) {
  Rng& rng = client->rng;
  Place* first = client->places[rng.Below(client->places.size())];
  const size_t most = std::min(kLongestRun, first->run_left);
  const size_t count = rng.Percent(75) ? 1 : rng.Between(1, most);
  const uint64_t dice = rng.Below(100);
  if (dice < 56) return DoWrite(client, first, count);
  if (dice < 86) return DoRead(client, first, count);
  if (dice < 94) return DoCompareAndWrite(client, first);
  DoDiscard(client, first, count);
}

// --- Operations ---------------------------------------------------------------------------------
//
// Places of one run lie behind each other in places_, and so do their blocks.

void Load::DoRead(Client* client, Place* first, size_t count) {
  std::vector<Block> blocks;
  for (size_t i = 0; i < count; ++i) blocks.push_back(first->block + i);
  History::OpId op = 0;
  {
    const std::lock_guard lock(mutex_);
    op = history_.Read(client->id, blocks, now());
  }
  std::vector<uint8_t> bytes(count * layout_.block_bytes());
  const Status status = client->volume.Read(OffsetOf(first), bytes);
  if (!status.ok()) NoteError(status);
  const std::vector<Value> values = status.ok() ? Parse(first, count, bytes) : std::vector<Value>();
  const std::lock_guard lock(mutex_);
  if (values.empty()) return history_.Unknown(op, now());  // it explains nothing
  history_.ReadOk(op, values, now());
  if (count == 1) first->known = values.front();
}

void Load::DoWrite(Client* client, Place* first, size_t count) {
  std::vector<Access> accesses;
  History::OpId op = 0;
  {
    const std::lock_guard lock(mutex_);
    for (size_t i = 0; i < count; ++i) {
      accesses.push_back({.block = first->block + i, .value = history_.NewValue()});
    }
    op = history_.Write(client->id, accesses, now());
  }
  const Status status = client->volume.Write(OffsetOf(first), Bytes(accesses, false));
  Told(op, status);
  if (status.ok()) first->known = accesses.front().value;
}

void Load::DoDiscard(Client* client, Place* first, size_t count) {
  std::vector<Block> blocks;
  for (size_t i = 0; i < count; ++i) blocks.push_back(first->block + i);
  History::OpId op = 0;
  {
    const std::lock_guard lock(mutex_);
    op = history_.Delete(client->id, blocks, now());
  }
  const Status status = client->volume.Discard(OffsetOf(first), count * layout_.block_bytes());
  Told(op, status);
  if (status.ok()) first->known = kAbsent;
}

// Of one block: what others hold is known of single blocks only.
void Load::DoCompareAndWrite(Client* client, Place* first) {
  std::vector<Access> accesses;
  History::OpId op = 0;
  {
    const std::lock_guard lock(mutex_);
    accesses = {
        {.block = first->block, .value = history_.NewValue(), .expected = first->known.load()}};
    op = history_.CompareAndWrite(client->id, accesses, now());
  }
  const Result<bool> written = client->volume.CompareAndWrite(
      OffsetOf(first), Bytes(accesses, true), Bytes(accesses, false));
  if (!written.ok()) return Told(op, written.status());
  if (*written) {
    Told(op, Status::Ok());
    first->known = accesses.front().value;
    return;
  }
  const std::lock_guard lock(mutex_);
  history_.Mismatch(op, now());
}

void Load::Told(History::OpId op, const Status& status) {
  if (!status.ok()) NoteError(status);
  const std::lock_guard lock(mutex_);
  if (status.ok()) {
    ++acknowledged_;
    history_.Ok(op, now());
  } else if (status.code() == Code::kAborted) {
    ++unknown_;
    history_.Unknown(op, now());
  } else {
    // That is the promise of client/hydra.h, and the checker holds it to that.
    ++refused_;
    history_.Refused(op, now());
  }
}

void Load::NoteError(const Status& status) {
  const std::lock_guard lock(mutex_);
  last_error_ = status.ToString();
  if (status.code() == Code::kCorruption) ++told_damaged_;
}

std::string Load::last_error() {
  const std::lock_guard lock(mutex_);
  return last_error_;
}

std::vector<Value> Load::Parse(const Place* first, size_t count,
                               const std::vector<uint8_t>& bytes) {
  std::vector<Value> values;
  const size_t size = layout_.block_bytes();
  for (size_t i = 0; i < count; ++i) {
    const Result<Value> value =
        history::ParseBlock(first->block + i, std::span(bytes).subspan(i * size, size));
    if (!value.ok()) {
      const std::lock_guard lock(mutex_);
      if (damage_.size() < kMaxDamage) damage_.emplace_back(value.status().message());
      return {};
    }
    values.push_back(*value);
  }
  return values;
}

std::vector<uint8_t> Load::Bytes(const std::vector<Access>& accesses, bool expected) const {
  const size_t size = layout_.block_bytes();
  std::vector<uint8_t> bytes(accesses.size() * size);
  for (size_t i = 0; i < accesses.size(); ++i) {
    history::FillBlock(accesses[i].block, expected ? accesses[i].expected : accesses[i].value,
                       std::span(bytes).subspan(i * size, size));
  }
  return bytes;
}

Status Load::ReadAll() {
  HYDRA_ASSIGN_OR_RETURN(Volume volume, Open(options_, "drill-check"));
  Client last{.id = final_client(), .volume = volume, .places = {}, .rng = Rng(1), .thread = {}};
  for (const auto& place : places_) {
    const size_t before = history_.ops().size();
    DoRead(&last, place.get(), 1);
    const history::Op& op = history_.ops().at(before);
    if (op.outcome != history::Outcome::kOk && damage_.empty()) {
      return Status::Unavailable(
          fmt::format("block {} could not be read after the drill", place->block));
    }
  }
  return Status::Ok();
}

}  // namespace hydra::drill
