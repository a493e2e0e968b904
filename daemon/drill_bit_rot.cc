// SPDX-License-Identifier: Apache-2.0
//
// The drill bit-rot: bits flip in live blocks on the disk of one node. The drill knows which, so it
// can tell that every single one was found and mended, not only that clients saw nothing of it.
//
// Of the blocks that the load uses, most are overwritten before anybody reads them. So there is a
// volume of its own, too, that is written once: some of it is read by a client, which finds what is
// rotten where the node leads the group; the rest is left to a scrub.
#include <algorithm>
#include <chrono>
#include <cstring>

#include <fmt/format.h>

#include "client/layout.h"
#include "daemon/drill_run.h"

namespace hydra::drill {
namespace {

using std::chrono::steady_clock;

constexpr uint64_t kStillExtents = 8;
constexpr uint64_t kStillBlocks = 32;  // that are written, of each extent
constexpr unsigned kOneIn = 4;         // blocks is damaged
constexpr size_t kMostOfLoad = 64;     // blocks of the load that are
constexpr unsigned kRotting = 1000;    // ms that the load has to meet them
// Fast, and not so fast that a real disk has no time for clients.
constexpr uint64_t kScrubRate = 256ull << 20;
// A round misses blocks that move from memory to the map while it looks for them.
constexpr int kMostRounds = 4;
constexpr std::chrono::seconds kMendPatience(300);
constexpr unsigned kLookAgain = 100;  // ms

// What nobody writes any more.
struct StillVolume {
  Volume volume;
  Layout layout;
  std::vector<uint32_t> groups;  // by shard
  std::vector<uint64_t> blocks;
  std::vector<uint8_t> bytes;  // of all blocks, one after the other

  std::span<const uint8_t> Content(size_t i) const {
    return std::span(bytes).subspan(i * layout.block_bytes(), layout.block_bytes());
  }
};

Result<StillVolume> MakeStillVolume(Run& run, const std::string& name) {
  VolumeSpec spec;
  spec.name = name;
  spec.bytes = kStillExtents * kExtentBytes;
  HYDRA_RETURN_IF_ERROR(run.CreateVolume(spec));
  HYDRA_ASSIGN_OR_RETURN(Volume opened, Volume::Open(run.cluster(), name));
  StillVolume still{std::move(opened), {}, {}, {}, {}};
  HYDRA_ASSIGN_OR_RETURN(const std::vector<VolumeInfo> volumes, run.cluster().volumes());
  for (const VolumeInfo& volume : volumes) {
    if (volume.name == name) still.groups = volume.groups;
  }
  if (still.groups.empty()) return Status::NotFound(fmt::format("volume '{}' is gone", name));
  const uint32_t block_bytes = still.volume.block_bytes();
  still.layout = Layout(block_bytes, static_cast<uint32_t>(still.groups.size()));
  std::vector<uint8_t> piece(kStillBlocks * block_bytes);
  for (uint64_t extent = 0; extent < kStillExtents; ++extent) {
    for (uint8_t& byte : piece) byte = static_cast<uint8_t>(run.rng().Next());
    HYDRA_RETURN_IF_ERROR(still.volume.Write(extent * kExtentBytes, piece));
    still.bytes.insert(still.bytes.end(), piece.begin(), piece.end());
    for (uint64_t i = 0; i < kStillBlocks; ++i) {
      still.blocks.push_back(extent * still.layout.blocks_per_extent() + i);
    }
  }
  return still;
}

// Every `step`th block holds what was written.
Status ReadStill(Run& run, StillVolume* still, size_t step) {
  std::vector<uint8_t> bytes(still->layout.block_bytes());
  for (size_t i = 0; i < still->blocks.size(); i += step) {
    HYDRA_RETURN_IF_ERROR(still->volume.Read(still->blocks[i] * bytes.size(), bytes));
    if (std::ranges::equal(bytes, still->Content(i))) continue;
    run.NoteDamage(fmt::format("block {} of the volume that nobody writes to holds other bytes",
                               still->blocks[i]));
  }
  return Status::Ok();
}

RotBlocks Choose(Run& run, const StillVolume& still) {
  RotBlocks chosen;
  for (size_t i = 0; i < still.blocks.size(); i += kOneIn) {
    chosen[still.groups[still.layout.ShardOfBlock(still.blocks[i])]].push_back(still.blocks[i]);
  }
  size_t left = kMostOfLoad;
  for (const auto& [block, group] : run.LoadBlocks()) {
    if (left == 0) break;
    if (run.rng().Below(kOneIn) != 0) continue;
    chosen[group].push_back(block);
    --left;
  }
  return chosen;
}

Result<ScrubInfo> ScrubOf(Run& run, uint32_t node) {
  HYDRA_ASSIGN_OR_RETURN(const std::vector<NodeInfo> nodes, run.cluster().GetStatus(false));
  for (const NodeInfo& info : nodes) {
    if (info.node != node) continue;
    HYDRA_RETURN_IF_ERROR(info.reachable);
    return info.scrub;
  }
  return Status::NotFound(fmt::format("there is no node {} any more", node));
}

// Scrubs until not one of the damaged blocks is rotten.
Result<RotState> Scrub(Run& run, uint32_t node) {
  const auto deadline = steady_clock::now() + kMendPatience;
  for (int rounds = 0;;) {
    HYDRA_ASSIGN_OR_RETURN(const RotState state, run.Rotten(node));
    HYDRA_ASSIGN_OR_RETURN(const ScrubInfo scrub, ScrubOf(run, node));
    if (state.rotten == 0 && rounds > 0) {
      if (scrub.running) HYDRA_RETURN_IF_ERROR(run.cluster().StopScrub(node));
      return state;
    }
    if (run.interrupted()) return Status::Aborted("interrupted");
    const bool idle = !scrub.running && scrub.under_repair == 0;
    if (steady_clock::now() >= deadline || (idle && rounds == kMostRounds)) {
      return Status::Unavailable(
          fmt::format("{} of {} damaged blocks are rotten after {} scrubs, {}", state.rotten,
                      state.damaged, rounds, state.still));
    }
    if (idle || rounds == 0) {
      HYDRA_RETURN_IF_ERROR(run.cluster().StartScrub(node, kScrubRate));
      ++rounds;
    }
    run.Wait(kLookAgain);
  }
}

Status RotAndMend(Run& run, const std::string& name) {
  HYDRA_ASSIGN_OR_RETURN(StillVolume still, MakeStillVolume(run, name));
  const uint32_t node = run.Master();
  HYDRA_ASSIGN_OR_RETURN(const ScrubInfo before, ScrubOf(run, node));
  // What a follower has not applied is not in use there yet.
  HYDRA_RETURN_IF_ERROR(run.AwaitCaughtUp());
  const RotBlocks chosen = Choose(run, still);
  run.Begin(fmt::format("bits flip on the disk of node {}, which leads most groups", node));
  HYDRA_ASSIGN_OR_RETURN(const RotState damaged, run.Rot(node, chosen));
  if (damaged.damaged == 0) {
    return Status::FailedPrecondition(
        fmt::format("node {} has none of the blocks that were to be damaged", node));
  }
  run.Hold(kRotting);
  HYDRA_RETURN_IF_ERROR(ReadStill(run, &still, 2 * kOneIn));
  HYDRA_ASSIGN_OR_RETURN(const ScrubInfo met, ScrubOf(run, node));
  HYDRA_ASSIGN_OR_RETURN(const RotState mended, Scrub(run, node));
  run.Restored();
  HYDRA_ASSIGN_OR_RETURN(const ScrubInfo after, ScrubOf(run, node));
  const uint64_t found = after.rotten_total - before.rotten_total;
  run.Amend(fmt::format("{} blocks damaged, {} found ({} by reads), {} mended, {} overwritten",
                        mended.damaged, found, met.rotten_total - before.rotten_total,
                        mended.repaired, mended.overwritten));
  HYDRA_RETURN_IF_ERROR(ReadStill(run, &still, 1));
  if (after.given_up_total > before.given_up_total) {
    return Status::Corruption(fmt::format("{} blocks were given up: nobody had a good copy",
                                          after.given_up_total - before.given_up_total));
  }
  if (found == 0 || mended.repaired == 0) {
    return Status::FailedPrecondition("no damaged block was left for anybody to find");
  }
  return run.Recover();
}

}  // namespace

Status BitRot(Run& run) {
  const std::string volume = fmt::format("drill-rot-{}", run.rng().Below(1u << 30));
  const Status mended = RotAndMend(run, volume);
  // What went wrong is best looked at where it happened.
  if (!mended.ok() && !run.interrupted()) return mended;
  const Status deleted = run.cluster().DeleteVolume(volume);
  return mended.ok() ? deleted : mended;
}

}  // namespace hydra::drill
