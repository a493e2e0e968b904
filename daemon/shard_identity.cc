// SPDX-License-Identifier: Apache-2.0
//
// Who a replica is, and how it becomes another: under a new incarnation, or alone by force.
#include <utility>

#include "base/coding.h"
#include "base/probe.h"
#include "daemon/shard.h"
#include "daemon/shard_install.h"

namespace hydra {

namespace {

// Its first byte.
constexpr uint8_t kPlain = 1;
constexpr uint8_t kSole = 2;  // with `sole_at`
constexpr uint8_t kOwes =
    3;  // from feature level 4 on; with a byte that says whether with `sole_at`

}  // namespace

std::string ReplicaIdentity::Encode() const {
  std::string out;
  PutU8(&out, owes ? kOwes : sole_at ? kSole : kPlain);
  PutVarint64(&out, incarnation);
  PutVarint64(&out, static_cast<uint64_t>(lease));
  if (owes) PutU8(&out, sole_at ? 1 : 0);
  if (sole_at) PutVarint64(&out, *sole_at);
  out += EncodeMembers(first_members);
  return out;
}

Result<ReplicaIdentity> ReplicaIdentity::Decode(std::span<const uint8_t> bytes) {
  Decoder in(bytes);
  ReplicaIdentity identity;
  uint8_t version = 0;
  uint64_t lease = 0;
  std::span<const uint8_t> members;
  in.U8(&version);
  in.Varint32(&identity.incarnation);
  in.Varint64(&lease);
  identity.owes = version == kOwes;
  uint8_t sole = version == kSole ? 1 : 0;
  if (identity.owes) in.U8(&sole);
  uint64_t sole_at = 0;
  if (sole == 1 && in.Varint64(&sole_at)) identity.sole_at = sole_at;
  const bool known = version >= kPlain && version <= kOwes && sole <= 1 &&
                     (sole == 1) == identity.sole_at.has_value();
  if (!in.Bytes(in.remaining(), &members) || !known || lease > INT64_MAX) {
    return Status::Corruption("the replica's identity makes no sense");
  }
  identity.lease = static_cast<Nanos>(lease);
  HYDRA_ASSIGN_OR_RETURN(identity.first_members, DecodeMembers(members));
  return identity;
}

// Everything that the core asked for is durable: a new one counts its records from 1 again, and
// takes what it accepted, or has installed, from the store.
bool Shard::IsSettled() const {
  return outstanding_.empty() && core_.empty() && !replica_->has_output() &&
         install_->out == InstallWork::Step::kIdle;
}

// Not before all is settled; meanwhile nothing is taken in.
bool Shard::BeReborn(Nanos now) {
  if (next_incarnation_ == 0 || !IsSettled()) return false;
  HYDRA_PROBE("shard: readmitted under a new incarnation");
  identity_.incarnation = std::exchange(next_incarnation_, 0);
  return Rebuild(now);
}

// What was chosen and not applied is decided again, with what is open: there is no other vote.
bool Shard::BeSole(Nanos now) {
  if (!forced_ || next_incarnation_ != 0 || !IsSettled()) return false;
  forced_ = false;
  LoseMastership();
  identity_.sole_at = state_.config().instance();
  if (!Rebuild(now)) return false;
  replica_->Campaign(now);
  return true;
}

Status Shard::ForceSole(Nanos now) {
  Touch();
  now_ = std::max(now_, now);
  if (!serves_local()) {
    return Status::FailedPrecondition("its blocks were being fetched from a peer: incomplete");
  }
  if (Owes()) LogOwed();
  forced_ = true;
  return Status::Ok();
}

// A new core under identity_, from what is durable.
bool Shard::Rebuild(Nanos now) {
  if (replica_->suspect()) {
    const Status readmitted = engine_->Readmit(store_group_);
    if (!readmitted.ok()) {
      Fail(readmitted);
      return false;
    }
  }
  apply_queue_.clear();
  for (const auto& [id, read] : reads_) Answer(read.request, ShardAnswer::kNotMaster);
  reads_.clear();
  const Status built = BuildReplica(now);
  if (!built.ok()) {
    Fail(built);
    return false;
  }
  SaveIdentity();
  return true;
}

}  // namespace hydra
