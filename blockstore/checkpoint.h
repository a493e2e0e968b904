// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "blockstore/block_map.h"
#include "blockstore/engine.h"
#include "blockstore/map_schema.h"

namespace leveldb {
class WriteBatch;
}

namespace hydra {

// Writes one checkpoint to LevelDB (docs/disk-format.md, section 6): the intent; the frozen
// generation; presence; sweeping; then, in one batch that makes it valid, the metas and the
// position. Every batch is synced. Everything it works on is its own or immutable, so Run may be
// on any thread; the engine folds the outcome in afterwards. If the map could not be read, it may
// be run again: it writes the same rows, and what is swept twice is gone all the same.
class CheckpointJob final : public Job {
 public:
  struct Input {
    CheckpointRow row;
    std::map<GroupId, GroupMeta> metas;
    FrozenMap map;
    // Up to where each group's change rows may go: the horizon that the last checkpoint made
    // durable, so that a crash in the middle of sweeping cannot leave holes above the horizon.
    std::map<GroupId, Version> sweep;
    std::vector<GroupId> dropped_now;     // drop records since the last checkpoint
    std::vector<GroupId> dropped_before;  // rows to sweep
    std::map<GroupId, uint32_t> blocks_per_extent;
    std::vector<SegmentNumber> freeable;  // nothing refers to them in this checkpoint
    size_t sweep_limit = 0;               // rows
  };

  CheckpointJob(MapStore* store, Input input);
  ~CheckpointJob() override;

  void Run() override;
  const char* name() const override { return "checkpoint"; }

  const Status& status() const { return status_; }
  // It failed, and no write did: it may be run again.
  bool read_failed() const { return read_failed_; }
  const Input& input() const { return input_; }
  const std::vector<GroupId>& swept_groups() const { return swept_groups_; }

 private:
  Status Write();
  Status WriteIntent();
  Status WriteRows();
  Status DeleteZeroed(GroupId group, Extent extent, Version version);
  Status WriteChanges();
  Status WritePresence();
  Status SweepChanges();
  Status SweepChange(std::string_view key, ChangeKind kind, const MapKey& change);
  Status SweepDropped();
  void WriteMetas();
  Status WriteFinal();
  Status FlushIfLarge();
  Status Flush();
  Status OfRead(Status status);  // notes a failure as that of a read

  MapStore* store_;
  Input input_;
  std::unique_ptr<leveldb::WriteBatch> batch_;
  std::vector<GroupId> swept_groups_;
  size_t swept_rows_ = 0;
  bool read_failed_ = false;
  Status status_;
};

}  // namespace hydra
