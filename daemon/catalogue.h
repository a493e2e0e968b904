// SPDX-License-Identifier: Apache-2.0
//
// The catalogue: which nodes and volumes there are, and which group serves which shard. One
// protobuf message, kept in the first blocks of group 0 and changed by compare-and-write, so that
// it needs no state machine of its own: it is replicated, versioned, checkpointed and shipped like
// any blocks. Every node is a member of group 0 and reads it there.
//
// Bytes, from block 0 on: "HYC1", u32 length, u32 CRC32C of what follows, the message; zeroes up to
// a whole block. Never written: no catalogue yet.
//
// Everything here is pure: a change is a function from one catalogue to the next.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "base/ids.h"
#include "base/status.h"
#include "client/protocol.pb.h"

namespace hydra {

inline constexpr GroupId kSystemGroup = 0;
inline constexpr uint32_t kCatalogueBlocks = 256;  // at most: what one entry can hold
inline constexpr size_t kMaxVolumes = 1024;
inline constexpr size_t kMaxShards = 64;
inline constexpr size_t kMaxVolumeName = 64;
inline constexpr uint64_t kMaxVolumeBytes = 1ull << 50;
inline constexpr size_t kMaxReservationBytes = 16 * 1024;  // of a volume
// Of the cluster, before targets have rules: an older node would neither heed them nor keep
// secrets.
inline constexpr uint32_t kTargetRulesLevel = 2;
// Before logical blocks may have another size than 512: an older node would serve the same disk
// with that one.
inline constexpr uint32_t kLogicalBlockLevel = 3;
// Before installs may leave payload out: an older node would not answer for it.
inline constexpr uint32_t kOwedBlocksLevel = 4;

// Whole blocks. kNoSpace: more than there is room for.
Result<Buffer> EncodeCatalogue(const rpc::Catalogue& catalogue);
// How many blocks the catalogue takes whose first block this is; 0: there is none.
Result<uint32_t> CatalogueBlocks(std::span<const uint8_t> first_block);
Result<rpc::Catalogue> DecodeCatalogue(std::span<const uint8_t> blocks);

// The first one. Addresses by node.
rpc::Catalogue FirstCatalogue(const std::string& cluster,
                              const std::vector<rpc::CatalogueNode>& nodes);
// Which of the nodes vote in group 0: all but the last if that makes their number odd, at most 5.
std::vector<NodeId> SystemVoters(const std::vector<NodeId>& nodes);

// --- Changes. Each says what is wrong, and leaves the catalogue alone then. ---
Status AddVolume(const rpc::CreateVolume& request, rpc::Catalogue* catalogue);
Status ResizeVolume(const rpc::ResizeVolume& request, rpc::Catalogue* catalogue);
Status DeleteVolume(const rpc::DeleteVolume& request, rpc::Catalogue* catalogue);
Status ChangeAccess(const rpc::ChangeAccess& request, rpc::Catalogue* catalogue);
Status ChangeTarget(const rpc::ChangeTarget& request, rpc::Catalogue* catalogue);
// What a node says of itself. The first store that speaks for it is believed; another is not. The
// cluster's feature level becomes the highest that all nodes can.
Status NoteNode(const rpc::Hello& hello, rpc::Catalogue* catalogue);
bool IsNoted(const rpc::Hello& hello, const rpc::CatalogueNode& node);

// What clients may know of it: everything but the secrets of targets.
rpc::Catalogue WithoutSecrets(const rpc::Catalogue& catalogue);

// Of access rights; from 1.
uint64_t EpochOf(const rpc::CatalogueVolume& volume);

const rpc::CatalogueNode* FindNode(const rpc::Catalogue& catalogue, NodeId id);
const rpc::CatalogueVolume* FindVolume(const rpc::Catalogue& catalogue, const std::string& name);

}  // namespace hydra
