// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "blockstore/types.h"
#include "daemon/operation.h"
#include "daemon/session_table.h"
#include "paxos/types.h"

namespace hydra {

// An entry as it travels: what paxos::Body points to.
struct EntryBody {
  Entry entry;
  Payload payload;
  // The entry as peers are sent it. Made for the first of them, on the thread that sends.
  mutable std::string encoded = {};
};

// The entry for what the consensus core calls a no-op, and what the core knows of any entry.
Entry NoopEntry(const paxos::EntryMeta& meta);
Result<paxos::EntryMeta> MetaOf(const Entry& entry, Instance instance);

// The members of a configuration, as they ride in an entry's context.
std::string EncodeMembers(const std::vector<paxos::Member>& members);
Result<std::vector<paxos::Member>> DecodeMembers(std::span<const uint8_t> bytes);
Entry ConfigEntry(const std::vector<paxos::Member>& members);

// The replicated state of a group besides its blocks: who is in it, its clients' sessions, and a
// checksum over everything that was ever chosen. Changed by applied entries alone, so equal on all
// replicas at equal instance. Saved with the engine's checkpoints (Engine::StateSource).
//
// Bytes: u8 1; varint config instance; length-prefixed members; varint fence round and node; u64
// chain; the sessions' bytes.
class GroupState {
 public:
  GroupState() = default;
  explicit GroupState(paxos::Config config) : config_(std::move(config)) {}

  // The outcome of each operation. kUnsupported: from a newer version; the group must halt.
  Result<std::vector<Outcome>> Apply(Instance instance, const Entry& entry);

  const paxos::Config& config() const { return config_; }
  const SessionTable& sessions() const { return sessions_; }
  const Ballot& fence() const { return fence_; }  // paxos::EntryMeta's, the highest so far
  uint64_t chain() const { return chain_; }
  uint64_t Digest() const;

  std::string Encode() const;
  static Result<GroupState> Decode(std::span<const uint8_t> bytes);

 private:
  paxos::Config config_;
  SessionTable sessions_;
  Ballot fence_;
  uint64_t chain_ = 0;
};

// What one request does to sessions; the same at the master, which decides by it, and at all
// replicas, which apply what was decided. Total: whatever is in an entry has been decided, and the
// same state and the same entry give the same outcome everywhere.
Outcome ApplyToSessions(SessionTable* sessions, const RequestContext& request, Instance instance,
                        uint32_t index);

}  // namespace hydra
