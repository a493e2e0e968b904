// SPDX-License-Identifier: Apache-2.0
//
// Where requests spend their time, as histograms of /metrics (hydra_stage_seconds):
//
//   kind   stage      from                                to
//   write  queue      arrival at this node                proposed as part of an entry
//   write  replicate  proposed                            chosen: durable on a majority
//   write  apply      chosen                              in the map, in its turn
//   write  reply      applied                             handed to the connection
//   read   queue      arrival at this node                allowed: lease or round, writes before it
//   read   disk       allowed                             read, from memory or the disk
//   read   reply      read                                handed to the connection
//   batch  disk       given to the writing thread         flushed
//   peer   round      an entry is sent to a peer          the peer has it on its disk
//
// The stages of a write, and those of a read, add up to hydra_request_seconds. `replicate` is the
// second shortest of `batch` here and `round` to each peer (of three replicas), and what an entry
// waits for the batch before it. Rounds are sampled: one at a time for each peer.
#pragma once

#include <map>

#include "base/clock.h"
#include "base/ids.h"
#include "base/metrics.h"
#include "daemon/node_core.h"
#include "daemon/shard.h"

namespace hydra {

// Owned by the node, used on its thread.
class StageTimes {
 public:
  explicit StageTimes(MetricsRegistry* metrics);

  // A request that was carried out.
  void Answered(Nanos arrived, const ShardReply& reply, Nanos now);
  void BatchWritten(Nanos took);
  void Sent(const PeerMessage& message, Nanos now);
  void Received(const PeerMessage& message, Nanos now);

 private:
  struct Round {
    GroupId group = 0;
    Instance instance = 0;
    Nanos since = 0;  // 0: none is under way
  };

  Histogram* write_queue_;
  Histogram* write_replicate_;
  Histogram* write_apply_;
  Histogram* write_reply_;
  Histogram* read_queue_;
  Histogram* read_disk_;
  Histogram* read_reply_;
  Histogram* batch_;
  Histogram* round_;
  std::map<NodeId, Round> rounds_;
};

}  // namespace hydra
