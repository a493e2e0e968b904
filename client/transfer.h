// SPDX-License-Identifier: Apache-2.0
//
// One call of a volume, cut into requests to its groups. Internal; on the runtime's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/status.h"
#include "client/group_request.h"
#include "client/hydra.h"
#include "client/layout.h"
#include "client/volume_state.h"

namespace hydra {

class Transfer : public std::enable_shared_from_this<Transfer> {
 public:
  enum class Kind { kRead, kWrite, kZero, kUnmap, kMap };

  // Ranges have been checked. The memory of `in` and `out` is valid until `done` is called.
  Transfer(std::shared_ptr<VolumeState> volume, Kind kind, uint64_t offset, uint64_t length)
      : volume_(std::move(volume)), kind_(kind), offset_(offset), length_(length) {}

  void set_out(std::span<uint8_t> out, bool local) {
    out_ = out;
    local_ = local;
  }
  // kMap: the runs are added here, in no order.
  void set_map(std::vector<MapRun>* map) { map_ = map; }
  void set_in(std::span<const uint8_t> in) { in_ = in; }
  void set_guard(std::shared_ptr<const Guard> guard) { guard_ = std::move(guard); }

  void Start(std::function<void(Status)> done);

 private:
  // What becomes one request.
  struct Step {
    GroupRequest::Kind kind = GroupRequest::Kind::kRead;
    Piece piece;
    std::vector<uint64_t> extents;
  };

  void Plan();
  void PlanZeroPiece(const Piece& piece);
  void Fill();
  void Issue(Step&& step);
  void FillPayload(const Piece& piece, GroupRequest* request);
  void OnReply(const Piece& piece, const GroupReply& reply);
  void AddToMap(const Piece& piece, const GroupReply& reply);

  std::shared_ptr<VolumeState> volume_;
  const Kind kind_;
  const uint64_t offset_;
  const uint64_t length_;
  std::span<uint8_t> out_;
  std::span<const uint8_t> in_;
  std::vector<MapRun>* map_ = nullptr;
  bool local_ = false;
  std::shared_ptr<const Guard> guard_;  // may be null
  std::function<void(Status)> done_;

  uint64_t planned_ = 0;  // bytes of the range
  std::vector<Step> steps_;
  size_t next_step_ = 0;  // those before it are issued
  unsigned in_flight_ = 0;
  Status error_;
};

// The bytes of [part_offset, part_offset + out.size()) of the blocks of a read.
void CopyRead(const GroupReply& reply, uint32_t block_bytes, uint32_t part_offset,
              std::span<uint8_t> out);

// Makes the request one of a shard of the volume, under the guard if there is one.
void Address(const VolumeState& volume, uint32_t shard, const Guard* guard, GroupRequest* request);

// Whole pages that begin with `bytes` and end with zeroes.
Result<BufferSlice> PaddedCopy(Router* router, std::span<const uint8_t> bytes);

}  // namespace hydra
