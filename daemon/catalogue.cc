// SPDX-License-Identifier: Apache-2.0
#include "daemon/catalogue.h"

#include <algorithm>
#include <cstring>
#include <set>

#include <fmt/format.h>

#include "base/coding.h"
#include "base/crc32c.h"
#include "daemon/membership.h"
#include "daemon/placement.h"
#include "iscsi/access.h"
#include "iscsi/chap.h"

namespace hydra {
namespace {

constexpr uint32_t kMagic = 0x31435948;  // "HYC1"
constexpr size_t kHeadBytes = 12;
constexpr uint32_t kDefaultBlock = 4096;
constexpr uint32_t kDefaultLogicalBlock = 512;
constexpr uint32_t kLargeLogicalBlock = 4096;
constexpr uint32_t kDefaultShards = 4;
constexpr uint32_t kDefaultReplicas = 3;

bool NameIsGood(const std::string& name) {
  if (name.empty() || name.size() > kMaxVolumeName || name[0] == '-' || name[0] == '.')
    return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.';
  });
}

Status CheckSize(uint64_t bytes, uint32_t block) {
  if (bytes == 0 || bytes % block != 0 || bytes > kMaxVolumeBytes) {
    return Status::InvalidArgument(
        fmt::format("a size of {} bytes: it must be a multiple of the block size ({}), above 0 and "
                    "at most 1 PiB",
                    bytes, block));
  }
  return Status::Ok();
}

rpc::CatalogueVolume* Find(rpc::Catalogue* catalogue, const std::string& name) {
  return const_cast<rpc::CatalogueVolume*>(FindVolume(*catalogue, name));
}

Status NoSuchVolume(const std::string& name) {
  return Status::NotFound(
      fmt::format("there is no volume '{}'; `hydractl volume list` shows what there is", name));
}

}  // namespace

// --- Bytes --------------------------------------------------------------------------------------

Result<Buffer> EncodeCatalogue(const rpc::Catalogue& catalogue) {
  std::string bytes;
  catalogue.SerializeToString(&bytes);
  if (kHeadBytes + bytes.size() > size_t{kCatalogueBlocks} * kPageSize) {
    return Status::NoSpace("the catalogue is full; delete volumes that are not needed");
  }
  Buffer buffer = Buffer::Allocate(kHeadBytes + bytes.size());
  EncodeFixed32(buffer.data(), kMagic);
  EncodeFixed32(buffer.data() + 4, static_cast<uint32_t>(bytes.size()));
  EncodeFixed32(buffer.data() + 8, Crc32c(AsBytes(bytes)));
  std::memcpy(buffer.data() + kHeadBytes, bytes.data(), bytes.size());
  return buffer;
}

Result<uint32_t> CatalogueBlocks(std::span<const uint8_t> first_block) {
  if (first_block.size() < kHeadBytes) return Status::Corruption("the catalogue is cut");
  const uint32_t magic = DecodeFixed32(first_block.data());
  if (magic == 0) return uint32_t{0};
  const size_t bytes = kHeadBytes + DecodeFixed32(first_block.data() + 4);
  if (magic != kMagic || bytes > size_t{kCatalogueBlocks} * kPageSize) {
    return Status::Corruption("group 0 holds something else than a catalogue");
  }
  return static_cast<uint32_t>((bytes + kPageSize - 1) / kPageSize);
}

Result<rpc::Catalogue> DecodeCatalogue(std::span<const uint8_t> blocks) {
  HYDRA_ASSIGN_OR_RETURN(const uint32_t count, CatalogueBlocks(blocks));
  if (count == 0) return Status::NotFound("there is no catalogue yet");
  const size_t length = DecodeFixed32(blocks.data() + 4);
  if (blocks.size() < kHeadBytes + length) return Status::Corruption("the catalogue is cut");
  const std::span<const uint8_t> bytes = blocks.subspan(kHeadBytes, length);
  rpc::Catalogue catalogue;
  if (Crc32c(bytes) != DecodeFixed32(blocks.data() + 8) ||
      !catalogue.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return Status::Corruption("the catalogue does not match its checksum");
  }
  return catalogue;
}

// --- Nodes --------------------------------------------------------------------------------------

rpc::Catalogue FirstCatalogue(const std::string& cluster,
                              const std::vector<rpc::CatalogueNode>& nodes) {
  rpc::Catalogue catalogue;
  catalogue.set_version(1);
  catalogue.set_cluster(cluster);
  catalogue.set_feature_level(1);
  catalogue.set_next_group(1);
  catalogue.set_next_volume(1);
  for (const rpc::CatalogueNode& node : nodes) *catalogue.add_nodes() = node;
  return catalogue;
}

std::vector<NodeId> SystemVoters(const std::vector<NodeId>& nodes) {
  std::vector<NodeId> voters = nodes;
  std::sort(voters.begin(), voters.end());
  size_t count = std::min<size_t>(voters.size(), 5);
  if (count > 1 && count % 2 == 0) --count;
  voters.resize(count);
  return voters;
}

const rpc::CatalogueNode* FindNode(const rpc::Catalogue& catalogue, NodeId id) {
  for (const rpc::CatalogueNode& node : catalogue.nodes()) {
    if (node.id() == id) return &node;
  }
  return nullptr;
}

bool IsNoted(const rpc::Hello& hello, const rpc::CatalogueNode& node) {
  return node.store() == hello.store() && node.feature_level() == hello.feature_level() &&
         node.iscsi() == hello.iscsi() && node.http() == hello.http();
}

Status NoteNode(const rpc::Hello& hello, rpc::Catalogue* catalogue) {
  auto* node = const_cast<rpc::CatalogueNode*>(FindNode(*catalogue, hello.node()));
  if (node == nullptr) {
    return Status::NotFound(fmt::format("node {} is not in the catalogue", hello.node()));
  }
  HYDRA_RETURN_IF_ERROR(MayBeStoreOf(*catalogue, hello.node(), hello.store(), hello.joining()));
  node->set_store(hello.store());
  node->set_feature_level(hello.feature_level());
  node->set_iscsi(hello.iscsi());
  node->set_http(hello.http());
  uint32_t all_can = UINT32_MAX;
  for (const rpc::CatalogueNode& known : catalogue->nodes()) {
    all_can = std::min(all_can, known.feature_level());
  }
  // Never down: what was written with a feature stays.
  catalogue->set_feature_level(std::max(catalogue->feature_level(), all_can));
  return Status::Ok();
}

// --- Volumes ------------------------------------------------------------------------------------

const rpc::CatalogueVolume* FindVolume(const rpc::Catalogue& catalogue, const std::string& name) {
  for (const rpc::CatalogueVolume& volume : catalogue.volumes()) {
    if (volume.name() == name) return &volume;
  }
  return nullptr;
}

namespace {

Status CheckTargetRules(const rpc::Catalogue& catalogue) {
  if (catalogue.feature_level() >= kTargetRulesLevel) return Status::Ok();
  return Status::FailedPrecondition(
      "targets have rules once every node of the cluster is of this version, and has been up");
}

// Blocks of a volume are never smaller than the larger of the two.
Status CheckLogicalBlock(const rpc::Catalogue& catalogue, uint32_t logical) {
  if (logical != kDefaultLogicalBlock && logical != kLargeLogicalBlock) {
    return Status::InvalidArgument(fmt::format("a logical block of {}: use {} or {}", logical,
                                               kDefaultLogicalBlock, kLargeLogicalBlock));
  }
  if (logical == kDefaultLogicalBlock || catalogue.feature_level() >= kLogicalBlockLevel) {
    return Status::Ok();
  }
  return Status::FailedPrecondition(
      fmt::format("logical blocks may be of {} once every node of the cluster is of this version, "
                  "and has been up",
                  kLargeLogicalBlock));
}

}  // namespace

Status AddVolume(const rpc::CreateVolume& request, rpc::Catalogue* catalogue) {
  if (!NameIsGood(request.name())) {
    return Status::InvalidArgument(fmt::format(
        "'{}' is no name for a volume: use 1 to {} of a-z, 0-9, '-' and '.', not starting with '-' "
        "or '.'",
        request.name(), kMaxVolumeName));
  }
  if (Find(catalogue, request.name()) != nullptr) {
    return Status::AlreadyExists(fmt::format("there is a volume '{}' already", request.name()));
  }
  if (static_cast<size_t>(catalogue->volumes_size()) >= kMaxVolumes) {
    return Status::NoSpace(fmt::format("there are {} volumes, the most there can be", kMaxVolumes));
  }
  const uint32_t block = request.block_bytes() == 0 ? kDefaultBlock : request.block_bytes();
  if (block < 4096 || block > 65536 || (block & (block - 1)) != 0) {
    return Status::InvalidArgument(
        fmt::format("a block size of {}: use 4096, 8192, 16384, 32768 or 65536", block));
  }
  const uint32_t logical =
      request.logical_block() == 0 ? kDefaultLogicalBlock : request.logical_block();
  HYDRA_RETURN_IF_ERROR(CheckLogicalBlock(*catalogue, logical));
  HYDRA_RETURN_IF_ERROR(CheckSize(request.bytes(), block));
  const uint32_t shards = request.shards() == 0 ? kDefaultShards : request.shards();
  if (shards > kMaxShards) {
    return Status::InvalidArgument(
        fmt::format("{} shards: a volume has 1 to {}", shards, kMaxShards));
  }
  NodeLoad load(*catalogue);
  const auto nodes = static_cast<uint32_t>(load.replicas.size());
  const uint32_t wanted =
      request.replicas() == 0 ? std::min(kDefaultReplicas, nodes) : request.replicas();
  const uint32_t replicas = request.replicas() == 0 && wanted == 2 ? 1 : wanted;
  if (replicas != 1 && replicas != 3 && replicas != 5) {
    return Status::InvalidArgument(fmt::format("{} replicas: use 1, 3 or 5", replicas));
  }
  if (replicas > nodes) {
    return Status::InvalidArgument(fmt::format(
        "{} replicas on {} nodes: each needs a node of its own; add nodes or ask for fewer",
        replicas, nodes));
  }
  if (request.no_target()) HYDRA_RETURN_IF_ERROR(CheckTargetRules(*catalogue));
  rpc::CatalogueVolume* volume = catalogue->add_volumes();
  if (request.no_target()) volume->mutable_target()->set_off(true);
  volume->set_id(catalogue->next_volume());
  catalogue->set_next_volume(volume->id() + 1);
  volume->set_name(request.name());
  volume->set_bytes(request.bytes());
  volume->set_block_bytes(block);
  if (logical != kDefaultLogicalBlock) volume->set_logical_block(logical);
  volume->set_state(rpc::CatalogueVolume::ACTIVE);
  volume->set_epoch(1);
  volume->set_replicas(replicas);
  // Where a shard goes: those nodes that have the fewest replicas, and of them the one that leads
  // the fewest groups leads this one.
  for (uint32_t i = 0; i < shards; ++i) {
    std::vector<std::pair<size_t, NodeId>> places;
    for (const auto& [node, count] : load.replicas) places.emplace_back(count, node);
    std::sort(places.begin(), places.end());
    rpc::CatalogueGroup* group = catalogue->add_groups();
    group->set_id(catalogue->next_group());
    catalogue->set_next_group(group->id() + 1);
    volume->add_shards(group->id());
    NodeId master = 0;
    for (uint32_t r = 0; r < replicas; ++r) {
      const NodeId node = places[r].second;
      rpc::CatalogueReplica* replica = group->add_replicas();
      replica->set_node(node);
      replica->set_incarnation(1);
      ++load.replicas[node];
      if (master == 0 || load.led[node] < load.led[master]) master = node;
    }
    group->set_preferred_master(master);
    ++load.led[master];
  }
  return Status::Ok();
}

Status ResizeVolume(const rpc::ResizeVolume& request, rpc::Catalogue* catalogue) {
  rpc::CatalogueVolume* volume = Find(catalogue, request.name());
  if (volume == nullptr) return NoSuchVolume(request.name());
  HYDRA_RETURN_IF_ERROR(CheckSize(request.bytes(), volume->block_bytes()));
  const bool shrinking = volume->state() == rpc::CatalogueVolume::SHRINKING;
  if (shrinking && request.bytes() != volume->shrink_to()) {
    return Status::FailedPrecondition(fmt::format(
        "the volume is being made smaller, to {} bytes; repeat that first", volume->shrink_to()));
  }
  if (request.bytes() >= volume->bytes()) {
    volume->set_bytes(request.bytes());
    return Status::Ok();
  }
  if (!request.force()) {
    return Status::FailedPrecondition(fmt::format(
        "making '{}' smaller destroys what lies behind byte {}; use --force if that is meant",
        request.name(), request.bytes()));
  }
  // Twice: the caller unmaps what lies behind the new end in between.
  if (request.unmapped() && shrinking) {
    volume->set_bytes(request.bytes());
    volume->set_state(rpc::CatalogueVolume::ACTIVE);
    volume->set_shrink_to(0);
  } else if (!shrinking) {
    volume->set_state(rpc::CatalogueVolume::SHRINKING);
    volume->set_shrink_to(request.bytes());
    // The caller fences every shard with it, so that a master that does not know of this yet lets
    // nothing be written behind the new end when that has been unmapped.
    volume->set_epoch(EpochOf(*volume) + 1);
  }
  return Status::Ok();
}

uint64_t EpochOf(const rpc::CatalogueVolume& volume) {
  return std::max<uint64_t>(volume.epoch(), 1);
}

Status ChangeAccess(const rpc::ChangeAccess& request, rpc::Catalogue* catalogue) {
  rpc::CatalogueVolume* volume = Find(catalogue, request.name());
  if (volume == nullptr) return NoSuchVolume(request.name());
  if (request.reservations().size() > kMaxReservationBytes) {
    return Status::NoSpace(fmt::format("{} bytes of reservations: {} are the most there can be",
                                       request.reservations().size(), kMaxReservationBytes));
  }
  if (request.epoch() != EpochOf(*volume)) {
    return Status::FailedPrecondition(fmt::format(
        "access to '{}' was changed meanwhile, to epoch {}: look at it, and decide anew",
        request.name(), EpochOf(*volume)));
  }
  volume->set_epoch(request.epoch() + 1);
  volume->set_reservations(request.reservations());
  return Status::Ok();
}

namespace {

// Those that the request names, in their normal form.
Result<std::set<std::string>> RulesIn(
    const google::protobuf::RepeatedPtrField<std::string>& names) {
  std::set<std::string> rules;
  for (const std::string& name : names) {
    HYDRA_ASSIGN_OR_RETURN(std::string rule, iscsi::NormalRule(name));
    rules.insert(std::move(rule));
  }
  return rules;
}

Status ChangeRules(const rpc::ChangeTarget& request, rpc::TargetRules* rules) {
  HYDRA_ASSIGN_OR_RETURN(const std::set<std::string> removed, RulesIn(request.remove()));
  HYDRA_ASSIGN_OR_RETURN(const std::set<std::string> added, RulesIn(request.allow()));
  if (request.open()) {
    if (!removed.empty() || !added.empty() || request.close()) {
      return Status::InvalidArgument("a target is open to everyone, or to those who are listed");
    }
    rules->set_restricted(false);
    rules->clear_allow();
    return Status::Ok();
  }
  if (!removed.empty() && !rules->restricted() && !request.close() && added.empty()) {
    return Status::FailedPrecondition(
        "everyone may use the target, so nobody can be taken off its list: list those who may "
        "(--allow)");
  }
  std::set<std::string> listed(rules->allow().begin(), rules->allow().end());
  if (request.close()) listed.clear();
  for (const std::string& rule : removed) listed.erase(rule);
  listed.insert(added.begin(), added.end());
  for (const std::string& rule : removed) {
    for (const std::string& left : listed) {
      if (!iscsi::RuleCovers(left, rule)) continue;
      return Status::FailedPrecondition(
          fmt::format("'{}' would still be allowed, by '{}': remove that", rule, left));
    }
  }
  if (listed.size() > iscsi::kMaxRules) {
    return Status::NoSpace(fmt::format("{} rules: a target has at most {}; use one that ends in *",
                                       listed.size(), iscsi::kMaxRules));
  }
  if (request.close() || !added.empty()) rules->set_restricted(true);
  rules->clear_allow();
  for (const std::string& rule : listed) rules->add_allow(rule);
  return Status::Ok();
}

Status ChangeChap(const rpc::ChangeTarget& request, rpc::TargetRules* rules) {
  iscsi::ChapAccounts accounts;
  if (request.has_initiator()) {
    accounts.initiator = {request.initiator().name(), request.initiator().secret()};
  }
  if (request.has_target()) accounts.target = {request.target().name(), request.target().secret()};
  HYDRA_RETURN_IF_ERROR(accounts.Check());
  const std::string before = rules->SerializeAsString();
  rules->clear_initiator();
  rules->clear_target();
  if (request.has_initiator()) *rules->mutable_initiator() = request.initiator();
  if (request.has_target()) *rules->mutable_target() = request.target();
  if (rules->SerializeAsString() != before) rules->set_chap_revision(rules->chap_revision() + 1);
  return Status::Ok();
}

}  // namespace

Status ChangeTarget(const rpc::ChangeTarget& request, rpc::Catalogue* catalogue) {
  rpc::CatalogueVolume* volume = Find(catalogue, request.name());
  if (volume == nullptr) return NoSuchVolume(request.name());
  HYDRA_RETURN_IF_ERROR(CheckTargetRules(*catalogue));
  rpc::TargetRules rules = volume->target();
  HYDRA_RETURN_IF_ERROR(ChangeRules(request, &rules));
  if (request.set_chap()) HYDRA_RETURN_IF_ERROR(ChangeChap(request, &rules));
  if (request.offer() != rpc::ChangeTarget::AS_IT_IS) {
    rules.set_off(request.offer() == rpc::ChangeTarget::OFF);
  }
  if (rules.SerializeAsString() == volume->target().SerializeAsString()) return Status::Ok();
  *volume->mutable_target() = std::move(rules);
  // Whoever holds an older one has to look again before it lets anything happen.
  volume->set_epoch(EpochOf(*volume) + 1);
  return Status::Ok();
}

rpc::Catalogue WithoutSecrets(const rpc::Catalogue& catalogue) {
  rpc::Catalogue told = catalogue;
  for (rpc::CatalogueVolume& volume : *told.mutable_volumes()) {
    if (!volume.has_target()) continue;
    rpc::TargetRules* rules = volume.mutable_target();
    if (rules->has_initiator()) rules->mutable_initiator()->clear_secret();
    if (rules->has_target()) rules->mutable_target()->clear_secret();
  }
  return told;
}

Status DeleteVolume(const rpc::DeleteVolume& request, rpc::Catalogue* catalogue) {
  auto* volumes = catalogue->mutable_volumes();
  for (int i = 0; i < volumes->size(); ++i) {
    if (volumes->Get(i).name() != request.name()) continue;
    const auto shards = volumes->Get(i).shards();
    auto* groups = catalogue->mutable_groups();
    for (int g = groups->size() - 1; g >= 0; --g) {
      if (std::find(shards.begin(), shards.end(), groups->Get(g).id()) != shards.end()) {
        groups->DeleteSubrange(g, 1);
      }
    }
    volumes->DeleteSubrange(i, 1);
    return Status::Ok();
  }
  return NoSuchVolume(request.name());
}

}  // namespace hydra
