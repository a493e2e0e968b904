// SPDX-License-Identifier: Apache-2.0
//
// What all handles of one opened volume share. Internal.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "client/hydra.h"
#include "client/layout.h"
#include "client/router.h"
#include "client/runtime.h"

namespace hydra {

// Fixed fields are read by any thread; the others belong to the runtime's thread.
struct VolumeState : std::enable_shared_from_this<VolumeState> {
  VolumeState(std::shared_ptr<Runtime> runtime_in, const CatalogueView::Volume& volume);

  // Takes over what the catalogue says. kNotFound: the volume is gone.
  Status Update();
  // Whether [offset, offset + length) is in the volume, as far as is known.
  bool IsInside(uint64_t offset, uint64_t length);
  // OK if it is, asking the cluster if it is not in what is known.
  void CheckRange(uint64_t offset, uint64_t length, std::function<void(Status)> then);

  // Ends when no shard executes what was checked under an older epoch any more.
  void Fence(uint64_t epoch, std::function<void(Status)> done);

  // What a reply said of a shard's commit index; any thread may look at it.
  void NoteCommit(uint32_t shard, uint64_t commit);
  uint64_t commit(uint32_t shard) const { return commits_[shard]; }

  // Changes that are under way, for Flush.
  uint64_t BeginChange();
  void EndChange(uint64_t change);
  void WhenChangesEnd(std::function<void()> then);

  const std::shared_ptr<Runtime> runtime;
  const std::string name;
  const uint32_t id;
  const Layout layout;
  const uint32_t logical_block;
  const std::vector<GroupId> groups;
  std::atomic<uint64_t> bytes;
  std::atomic<uint64_t> epoch;  // of access rights

  std::atomic<uint64_t> reads{0};
  std::atomic<uint64_t> writes{0};
  std::atomic<uint64_t> discards{0};
  std::atomic<uint64_t> read_bytes{0};
  std::atomic<uint64_t> written_bytes{0};
  std::atomic<uint64_t> errors{0};

 private:
  struct Waiter {
    uint64_t until = 0;
    std::function<void()> then;
  };
  std::unique_ptr<std::atomic<uint64_t>[]> commits_;  // one per shard
  uint64_t next_change_ = 1;
  std::vector<uint64_t> changes_;  // ascending
  std::list<Waiter> waiters_;
};

struct Volume::Impl {
  std::shared_ptr<Cluster::Impl> cluster;
  std::shared_ptr<VolumeState> state;
  std::shared_ptr<const Guard> guard;  // null: none
};

// Offsets and lengths that can never work.
Status CheckArguments(uint64_t offset, uint64_t length);

}  // namespace hydra
