// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/knobs.h"

#include <algorithm>

#include <fmt/format.h>

namespace hydra::sim {

std::string Knobs::ToString() const {
  static constexpr const char* kTastes[] = {"mixed", "politics", "storage"};
  return fmt::format(
      "{} nodes {} groups {} replicas {} segment {}K capacity {}K tick {}us disk {}us slow {} "
      "lease "
      "{}ms "
      "{}election {}ms window {} kept {} overlay {} drift {}ppm{} odd {} twice {} held {}{}",
      kTastes[static_cast<int>(taste)], nodes, groups, replicas, segment_bytes >> 10,
      capacity_bytes >> 10, tick / 1000, disk_latency / 1000, slow_disk,
      leases.lease / kMillisecond, uneven ? "uneven " : "",
      shard.replica.election_timeout / kMillisecond, shard.replica.window_instances,
      engine.log_entries_kept, engine.overlay_rows, drift_ppm, steady_clocks ? " steady" : "", odd,
      duplicate_permille, hold_percent, bare ? " bare" : "");
}

Knobs DrawKnobs(Rng* rng, unsigned nodes) {
  Knobs k;
  const uint64_t taste = rng->Below(100);
  k.taste = taste < 35 ? Taste::kMixed : taste < 70 ? Taste::kPolitics : Taste::kStorage;
  const bool politics = k.taste == Taste::kPolitics;
  k.replicas = nodes >= 5 && rng->Percent(60) ? 5 : 3;
  if (nodes == 0) {
    k.replicas = rng->Percent(30) ? 5 : rng->Percent(4) ? 1 : 3;
    nodes = k.replicas + static_cast<unsigned>(rng->Below(k.replicas == 1 ? 1 : 3));
  }
  k.nodes = std::max(nodes, 1u);
  k.replicas = std::min(k.replicas, k.nodes);
  k.groups = static_cast<unsigned>(rng->Between(1, politics ? 2 : 4));
  k.segment_bytes = rng->Percent(40) ? 256 * 1024 : rng->Percent(50) ? 512 * 1024 : 1024 * 1024;
  const bool storage = k.taste == Taste::kStorage;
  // So small that vacuum never rests.
  if (storage && rng->Percent(60)) k.segment_bytes = 256 * 1024;
  if (rng->Percent(storage ? 85 : 60)) {
    k.capacity_bytes = k.segment_bytes * rng->Between(14, storage ? 30 : 40);
  }
  k.tick = static_cast<Nanos>(rng->Between(5, 20)) * kMillisecond;
  k.disk_latency = static_cast<Nanos>(rng->Between(50, 2000)) * 1000;
  if (rng->Percent(politics ? 10 : 25)) k.disk_latency *= 8;
  if (rng->Percent(25)) k.slow_disk = static_cast<NodeId>(rng->Between(1, k.nodes));
  k.lose_percent = static_cast<unsigned>(rng->Between(0, 80));
  k.garble_percent = static_cast<unsigned>(rng->Between(0, 20));
  k.engine.inline_map = true;
  k.engine.reserve_segments = 4;
  k.engine.spare_segments = 1;
  k.engine.map_write_buffer = 64 * 1024;
  k.engine.map_cache = 64 * 1024;
  k.engine.ballast_bytes = 0;
  k.engine.capacity_bytes = k.capacity_bytes;
  k.engine.log_entries_kept = rng->Percent(50) ? rng->Between(20, 200) : 4096;
  k.engine.change_retention = rng->Percent(50) ? rng->Between(50, 500) : 0;
  k.engine.overlay_rows = rng->Percent(30) ? rng->Between(32, 200) : rng->Between(64, 2000);
  if (storage && rng->Percent(40)) k.engine.overlay_rows = 100'000;  // checkpoints are rare
  k.leases.lease = static_cast<Nanos>(rng->Between(100, 400)) * kMillisecond;
  if (rng->Percent(politics ? 60 : 30)) k.leases.lease *= 3;
  k.leases.interval = k.leases.lease / 4;
  k.leases.dead_after = 2 * k.leases.lease;
  k.leases.max_notices_per_message = rng->Percent(20) ? 1 : 256;
  k.shard.gather_entries = rng->Percent(50) ? 1 : rng->Between(1, 100);
  k.shard.gather_bytes = rng->Between(1, 16) * kPageSize;
  paxos::ReplicaOptions& r = k.shard.replica;
  r.window_instances = static_cast<uint32_t>(rng->Between(2, 64));
  r.window_bytes = rng->Between(64, 1024) * 1024;
  r.apply_backlog = static_cast<uint32_t>(rng->Between(64, 256));
  r.max_entries_per_message = static_cast<uint32_t>(rng->Between(2, 32));
  r.max_bytes_per_message = rng->Between(16, 256) * 1024;
  r.election_timeout = k.leases.lease + static_cast<Nanos>(rng->Between(50, 300)) * kMillisecond;
  if (rng->Percent(60)) {
    k.duplicate_permille =
        static_cast<unsigned>(rng->Percent(40) ? rng->Below(60) : rng->Between(200, 900));
  }
  if (rng->Percent(50)) k.hold_percent = static_cast<unsigned>(rng->Between(0, 100));
  k.uneven = rng->Percent(politics ? 90 : 50);
  if (k.uneven) {
    r.election_timeout = static_cast<Nanos>(rng->Between(5, politics ? 30 : 60)) * kMillisecond;
  }
  if (k.uneven && rng->Percent(politics ? 90 : 50))
    k.odd = static_cast<NodeId>(rng->Between(1, k.replicas));
  r.retransmit_after = static_cast<Nanos>(rng->Between(30, 200)) * kMillisecond;
  r.catch_up_retry = static_cast<Nanos>(rng->Between(30, 200)) * kMillisecond;
  r.prepare_timeout = std::max<Nanos>(2 * r.election_timeout, 400 * kMillisecond);
  k.shard.install_chunk_bytes = rng->Between(1, 16) * 4096;
  const int64_t bound = paxos::LeaseTable::kDriftPercent * 10'000;
  k.drift_ppm = rng->Percent(35)   ? bound
                : rng->Percent(50) ? static_cast<int64_t>(rng->Between(0, 100'000))
                                   : 100;
  k.steady_clocks = rng->Percent(k.odd != 0 ? 50 : 20);
  if (k.odd != 0 && k.steady_clocks) k.drift_ppm = bound;
  // Engines that push back all the time. Drawn aside, so that the other seeds stay what they were.
  Rng aside(Rng(*rng).Next());
  if (aside.Percent(15)) k.engine.queue_records = aside.Between(1, 4);
  // Answers of an entry or two, or so large that a peer gets one at a time of all groups.
  if (aside.Percent(30)) {
    k.shard.catch_up_bytes =
        aside.Percent(50) ? aside.Between(1, 8) * kPageSize : RecoveryBudget::kBytesPerPeer;
  }
  if (aside.Percent(30)) k.engine.checkpoint_batches = aside.Between(20, 400);
  r.election_spread = static_cast<Nanos>(aside.Between(0, 60)) * kMillisecond;
  if (aside.Percent(60)) k.shard.delta_gain_bytes = aside.Between(0, 32) * kPageSize;
  if (aside.Percent(40)) k.recovery_rate = aside.Between(1, 16) << 18;
  k.bare = aside.Percent(60);
  if (aside.Percent(50)) k.shard.owed_pause = aside.Between(1, 8) * kSecond;
  if (aside.Percent(80)) k.shard.near_bytes = aside.Between(0, 64) * kPageSize;
  return k;
}

}  // namespace hydra::sim
