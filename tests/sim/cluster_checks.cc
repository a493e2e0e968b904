// SPDX-License-Identifier: Apache-2.0
//
// What must hold of a cluster: after every event, and in the end.
#include <fmt/format.h>

#include "tests/sim/cluster_node.h"

namespace hydra::sim {

void Cluster::CheckNode(Node* node) {
  std::erase_if(node->durable_groups, [&](GroupId group) {
    const Shard* shard = node->core->shard(group % kMaxGroups);
    return shard == nullptr || shard->store_group() != group;
  });
  for (const auto& [group, shard] : node->core->shards()) {
    const paxos::Replica& replica = shard->replica();
    ++checks_;
    std::string broken = paxos::Invariants::State(replica);
    // Who is readmitted begins anew.
    uint32_t& incarnation = node->incarnations[group];
    if (incarnation != replica.options().self.incarnation) node->before.erase(group);
    incarnation = replica.options().self.incarnation;
    const auto before = node->before.find(group);
    if (broken.empty() && before != node->before.end()) {
      broken = paxos::Invariants::Step(before->second, replica);
    }
    if (!broken.empty()) {
      return Fail(fmt::format("node {} group {}: {}", node->id, group, broken));
    }
    const bool moved = before == node->before.end() || before->second.applied != replica.applied();
    node->before[group] = paxos::Invariants::Take(replica);
    NoteChosen(node, group);
    if (!replica.installing() && replica.applied() == replica.commit() &&
        replica.config().instance() != shard->state().config().instance()) {
      return Fail(
          fmt::format("node {} group {}: not the configuration that it applied", node->id, group));
    }
    if (!moved || replica.installing()) continue;
    const auto [chain, first] =
        chains_.try_emplace({group, replica.applied()}, shard->state().chain());
    if (!first && chain->second != shard->state().chain()) {
      return Fail(
          fmt::format("node {} group {}: what was chosen up to instance {} is not what "
                      "another replica applied",
                      node->id, group, replica.applied()));
    }
  }
}

// Reads what was chosen next from this node's log, if it is there: whoever applies an instance
// first may not have it on its own disk yet.
void Cluster::NoteChosen(Node* node, GroupId group) {
  auto& known = effects_[group];
  const GroupId stored = node->core->shard(group)->store_group();
  const auto info = node->engine->Info(stored);
  if (info.ok() && info->stable > 0) node->durable_groups.insert(stored);
  if (!info.ok() || info->installing) return;
  while (known.size() < info->stable) {
    const Instance instance = known.size() + 1;
    if (node->engine->LogEntries(stored, instance, instance).empty()) return;
    const auto record = node->engine->ReadLogRecord(stored, instance);
    if (!record.ok()) return;
    std::map<Block, LocalReads::Effect> effects;
    const auto& operations = record->entry.operations;
    for (size_t i = 0; i < operations.size(); ++i) {
      const Operation& op = operations[i];
      const bool write = op.kind == ::hydra::OpKind::kWrite;
      if (!write && op.kind != ::hydra::OpKind::kZero && op.kind != ::hydra::OpKind::kUnmap)
        continue;
      for (uint64_t b = 0; b < op.count; ++b) {
        const Block block = uint64_t{group} << 32 | (op.lba + b);
        const Version version = MakeVersion(instance, static_cast<uint32_t>(i));
        effects[block] = {block, version, write ? uint64_t{op.crcs[b]} : kAbsent};
      }
    }
    auto& list = known.emplace_back();
    for (const auto& [block, effect] : effects) list.push_back(effect);
  }
}

void Cluster::TellChosen(LocalReads* reads) const {
  for (const auto& [group, instances] : effects_) {
    for (size_t i = 0; i < instances.size(); ++i) reads->Chosen(group, i + 1, instances[i]);
  }
}

NodeId Cluster::MasterOf(GroupId group) {
  NodeId master = 0;
  Ballot best;
  for (const NodeId id : node_ids_) {
    Shard* shard = this->shard(id, group);
    if (shard == nullptr || !shard->ready()) continue;
    if (shard->replica().ballot() > best) {
      best = shard->replica().ballot();
      master = id;
    }
  }
  return master;
}

paxos::Config Cluster::NewestConfig(GroupId group) {
  paxos::Config newest;
  bool any = false;
  for (const NodeId id : node_ids_) {
    Shard* shard = this->shard(id, group);
    if (shard == nullptr) continue;
    const paxos::Config& config = shard->replica().config();
    if (!any || config.instance() > newest.instance()) newest = config;
    any = true;
  }
  return newest;
}

std::string Cluster::Unconverged() {
  for (const auto& [id, node] : nodes_) {
    if (node->writing || node->job != nullptr) return fmt::format("node {} is at work", id);
  }
  for (const GroupId group : group_ids_) {
    const NodeId master = MasterOf(group);
    if (master == 0) return fmt::format("group {} has no master", group);
    const paxos::Replica& head = shard(master, group)->replica();
    for (const paxos::Member& member : head.config().members()) {
      Shard* replica = shard(member.id.node, group);
      if (replica == nullptr) {
        return fmt::format("group {}: node {} has no replica", group, member.id.node);
      }
      if (replica->replica().options().self != member.id) {
        return fmt::format("group {}: node {} is not incarnation {}", group, member.id.node,
                           member.id.incarnation);
      }
      if (replica->replica().applied() != head.commit() || !replica->serves_local()) {
        return fmt::format("group {}: node {} has applied {} of {}{}{}", group, member.id.node,
                           replica->replica().applied(), head.commit(),
                           replica->replica().installing() ? ", installing" : "",
                           replica->replica().suspect() ? ", suspect" : "");
      }
      if (replica->Owes()) {
        return fmt::format("group {}: node {} is owed {} bytes", group, member.id.node,
                           replica->OwedBytes());
      }
    }
  }
  return {};
}

std::string Cluster::Describe() {
  std::string text;
  for (const auto& [id, node] : nodes_) {
    if (!node->gate.alive()) {
      text += fmt::format("node {}: {}\n", id, node->broken ? "broken" : "down");
      continue;
    }
    const EngineStats stats = node->engine->Stats();
    text += fmt::format("node {}: {}queued {} free segments {} of {} KiB{}{}\n", id,
                        node->gate.paused() ? "paused, " : "", stats.queued_bytes,
                        stats.free_segments, stats.space_bytes >> 10,
                        node->writing ? ", writing" : "", node->job ? ", job" : "");
    for (const NodeId refused : node->core->leases().rolled_back()) {
      text += fmt::format("  refuses node {}: rolled back\n", refused);
    }
    for (const auto& [group, shard] : node->core->shards()) {
      const paxos::Replica& r = shard->replica();
      constexpr const char* kModes[] = {"follower", "pre-voting", "preparing", "recovering",
                                        "master"};
      std::string members;
      for (const paxos::Member& member : r.config().members()) {
        members += fmt::format(" {}.{}{}", member.id.node, member.id.incarnation,
                               member.role == paxos::Role::kLearner ? "l" : "");
      }
      text += fmt::format(
          "  group {}: {}.{} {} promised {} commit {} applied {} last {} config {}:{}{}{}{}{}{}\n",
          group, r.options().self.node, r.options().self.incarnation,
          kModes[static_cast<int>(r.mode())], paxos::Describe(r.promised()), r.commit(),
          r.applied(), r.last(), r.config().instance(), members, r.suspect() ? " suspect" : "",
          r.installing() ? " installing" : "",
          shard->Owes() ? fmt::format(" is owed {} bytes", shard->OwedBytes()) : "",
          shard->ready() ? " ready" : "",
          shard->failed().ok() ? "" : " " + shard->failed().ToString());
    }
  }
  return text;
}

void Cluster::StartScrubs() {
  constexpr uint64_t kFast = 64u << 20;
  for (const NodeId id : node_ids_) {
    Touch(id, [](NodeCore* core, Nanos now) {
      core->scrubber().Stop(now);  // from the start, all of it
      core->scrubber().Start(kFast, now);
    });
  }
}

std::string Cluster::Unscrubbed() {
  for (const auto& [id, node] : nodes_) {
    if (!node->gate.alive()) continue;
    if (node->core->scrubber().round().running) return fmt::format("node {} scrubs", id);
    if (node->core->Repairs().under_way > 0) return fmt::format("node {} repairs", id);
  }
  return {};
}

std::string Cluster::FindDamage() {
  for (const auto& [id, node] : nodes_) {
    if (!node->gate.alive()) continue;
    node->engine->RestartScrub();
    std::vector<Damage> found;
    for (bool end = false; !end;) {
      const auto piece = node->engine->Scrub(1u << 20, &found);
      if (!piece.ok())
        return fmt::format("node {} cannot be scrubbed: {}", id, piece.status().ToString());
      end = *piece;
    }
    for (const Damage& damage : found) {
      if (damage.what != Damage::What::kBlock) continue;
      // Of a replica that was removed, nobody has the blocks as they were.
      const GroupId group = damage.group % kMaxGroups;
      Shard* replica = shard(id, group);
      if (replica == nullptr || replica->store_group() != damage.group) continue;
      if (NewestConfig(group).FindNode(id) == nullptr) continue;
      return fmt::format("node {} group {}: block {} version {} is still rotten", id, damage.group,
                         damage.lba, damage.version);
    }
  }
  return {};
}

namespace {

using Rows = std::map<Lba, std::pair<Version, uint32_t>>;

Rows RowsOf(Engine* engine, GroupId group) {
  Rows rows;
  std::string cursor;
  while (true) {
    const auto batch = engine->ScanImage(group, cursor, 10'000);
    if (!batch.ok()) return rows;
    for (const Change& row : batch->changes) rows[row.lba] = {row.version, row.crc};
    if (batch->done) return rows;
    cursor = batch->next;
  }
}

std::string Differences(const Rows& one, const Rows& other) {
  const auto text = [](const Rows& rows, Lba lba) {
    const auto found = rows.find(lba);
    if (found == rows.end()) return std::string("none");
    return fmt::format("{}.{}", VersionInstance(found->second.first),
                       found->second.first - MakeVersion(VersionInstance(found->second.first), 0));
  };
  std::string list;
  Rows all = one;
  all.insert(other.begin(), other.end());
  for (const auto& [lba, row] : all) {
    if (one.contains(lba) && other.contains(lba) && one.at(lba) == other.at(lba)) continue;
    list += fmt::format(" {}: {} and {};", lba, text(one, lba), text(other, lba));
  }
  return list;
}

}  // namespace

std::string Cluster::CompareReplicas() {
  for (const GroupId group : group_ids_) {
    const NodeId master = MasterOf(group);
    std::optional<uint64_t> blocks;
    std::optional<uint64_t> state;
    Rows rows;
    if (master == 0) return fmt::format("group {} has no master", group);
    for (const paxos::Member& member : shard(master, group)->replica().config().members()) {
      Shard* replica = shard(member.id.node, group);
      if (replica == nullptr) continue;
      const auto digest = At(member.id.node).engine->Digest(replica->store_group());
      if (!digest.ok()) return "digest: " + digest.status().ToString();
      if (blocks && *blocks != *digest) {
        return fmt::format(
            "group {}: the blocks of node {} differ:{}", group, member.id.node,
            Differences(rows, RowsOf(At(member.id.node).engine.get(), replica->store_group())));
      }
      if (!blocks) rows = RowsOf(At(member.id.node).engine.get(), replica->store_group());
      if (state && *state != replica->state().Digest()) {
        return fmt::format("group {}: the state of node {} differs", group, member.id.node);
      }
      blocks = *digest;
      state = replica->state().Digest();
    }
  }
  return {};
}

}  // namespace hydra::sim
