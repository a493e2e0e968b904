// SPDX-License-Identifier: Apache-2.0
#include "blockstore/map_schema.h"

#include <initializer_list>

#include "base/coding.h"

namespace hydra {
namespace {

constexpr uint8_t kRowVersion = 1;
constexpr uint8_t kRowWithInstall = 2;  // a group's row that ends with an install's progress
constexpr uint8_t kSuspectFlag = 1;
constexpr uint8_t kHaltedFlag = 2;
constexpr uint8_t kFaultyFlag = 1;
constexpr uint8_t kCompleteFlag = 1;
constexpr uint8_t kDirtyFlag = 2;
constexpr uint8_t kRestartFlag = 4;
constexpr size_t kGroupBytes = 4;

// Most keys are short enough for a string that allocates nothing.
std::string Key(GroupId group, char tag, std::initializer_list<uint64_t> numbers = {}) {
  std::string key(kGroupBytes + 1 + numbers.size() * sizeof(uint64_t), tag);
  auto* to = reinterpret_cast<uint8_t*>(key.data());
  EncodeBig32(to, group);
  to += kGroupBytes + 1;
  for (const uint64_t number : numbers) {
    EncodeBig64(to, number);
    to += sizeof(number);
  }
  return key;
}

void PutBallot(std::string* out, const Ballot& ballot) {
  PutVarint64(out, ballot.round);
  PutVarint64(out, ballot.node);
}

bool GetBallot(Decoder* in, Ballot* ballot) {
  return in->Varint64(&ballot->round) && in->Varint32(&ballot->node);
}

Status BadRow(const char* what) {
  return Status::Corruption(std::string("malformed row in the map: ") + what);
}

}  // namespace

std::string BlockRowKey(GroupId group, Lba lba) { return Key(group, 'm', {lba}); }
std::string ExtentRowKey(GroupId group, Extent extent) { return Key(group, 'z', {extent}); }
std::string PresenceKey(GroupId group, Extent extent) { return Key(group, 'p', {extent}); }
std::string GroupMetaKey(GroupId group) { return Key(group, 'M'); }
std::string CheckpointKey() { return Key(kNodeGroup, 'c'); }
std::string IntentKey() { return Key(kNodeGroup, 'i'); }
std::string TagPrefix(GroupId group, char tag) { return Key(group, tag); }

std::string GroupPrefix(GroupId group) {
  std::string key;
  PutBig32(&key, group);
  return key;
}

std::string DroppedKey(GroupId group) {
  std::string key = Key(kNodeGroup, 'd');
  PutBig32(&key, group);
  return key;
}

std::string ChangeKey(GroupId group, Version version, uint64_t lba_or_extent) {
  return Key(group, 'v', {version, lba_or_extent});
}

std::optional<MapKey> ParseMapKey(std::string_view key) {
  MapKey parsed;
  if (key.size() < kGroupBytes + 1) return std::nullopt;
  Decoder in(AsBytes(key));
  uint8_t tag = 0;
  uint32_t dropped = 0;
  in.Big32(&parsed.group);
  in.U8(&tag);
  parsed.tag = static_cast<char>(tag);
  switch (parsed.tag) {
    case 'm':
    case 'z':
    case 'p': in.Big64(&parsed.first); break;
    case 'v':
      in.Big64(&parsed.first);
      in.Big64(&parsed.second);
      break;
    case 'd':
      in.Big32(&dropped);
      parsed.first = dropped;
      break;
    case 'M':
    case 'c':
    case 'i': break;
    default: return std::nullopt;
  }
  if (!in.ok() || in.remaining() != 0) return std::nullopt;
  return parsed;
}

void PutBlockRow(std::string* value, const MapRow& row) {
  PutU8(value, static_cast<uint8_t>(row.kind));
  PutFixed64(value, row.version);
  if (row.kind != BlockKind::kData) return;
  PutFixed32(value, row.reference.segment);
  PutFixed32(value, row.reference.page);
  PutFixed32(value, row.reference.crc);
}

Result<MapRow> ParseBlockRow(std::string_view value) {
  MapRow row;
  Decoder in(AsBytes(value));
  uint8_t kind = 0;
  if (!in.U8(&kind) || !in.Fixed64(&row.version) || kind < 1 || kind > 3) return BadRow("block");
  row.kind = static_cast<BlockKind>(kind);
  if (row.kind == BlockKind::kData &&
      (!in.Fixed32(&row.reference.segment) || !in.Fixed32(&row.reference.page) ||
       !in.Fixed32(&row.reference.crc))) {
    return BadRow("block");
  }
  if (in.remaining() != 0) return BadRow("block");
  return row;
}

Result<Version> ParseExtentRow(std::string_view value) {
  if (value.size() != sizeof(Version)) return BadRow("extent");
  return DecodeFixed64(AsBytes(value).data());
}

namespace {

void PutInstall(std::string* out, const GroupMeta& meta) {
  const InstallProgress& install = meta.install;
  PutVarint64(out, meta.mixed_until);
  PutU8(out, static_cast<uint8_t>(install.mode));
  if (!install.active()) return;
  PutU8(out, (install.complete ? kCompleteFlag : 0) | (install.dirty ? kDirtyFlag : 0) |
                 (install.restart ? kRestartFlag : 0));
  PutVarint64(out, install.floor);
  PutVarint64(out, install.as_of);
  PutVarint64(out, install.covered);
  PutLengthPrefixed(out, install.cursor);
}

bool GetInstall(Decoder* in, GroupMeta* meta) {
  InstallProgress& install = meta->install;
  uint8_t mode = 0;
  uint8_t flags = 0;
  if (!in->Varint64(&meta->mixed_until) || !in->U8(&mode) || mode > 2) return false;
  install.mode = static_cast<InstallMode>(mode);
  if (!install.active()) return true;
  if (!in->U8(&flags) || !in->Varint64(&install.floor) || !in->Varint64(&install.as_of) ||
      !in->Varint64(&install.covered) || !in->LengthPrefixed(&install.cursor) ||
      install.floor > kMaxInstance || install.as_of > kMaxInstance) {
    return false;
  }
  install.complete = (flags & kCompleteFlag) != 0;
  install.dirty = (flags & kDirtyFlag) != 0;
  install.restart = (flags & kRestartFlag) != 0;
  return true;
}

}  // namespace

std::string EncodeGroupMeta(const GroupMeta& meta) {
  const bool install = meta.install.active() || meta.mixed_until != 0;
  std::string out;
  PutU8(&out, install ? kRowWithInstall : kRowVersion);
  PutU8(&out, static_cast<uint8_t>(meta.block_pages));
  PutU8(&out, (meta.suspect ? kSuspectFlag : 0) | (meta.halted ? kHaltedFlag : 0));
  PutVarint64(&out, meta.applied);
  PutVarint64(&out, meta.truncated);
  PutBallot(&out, meta.promised);
  PutLengthPrefixed(&out, meta.opaque);
  PutVarint64(&out, meta.horizon);
  PutLengthPrefixed(&out, meta.state);
  PutVarint64(&out, meta.open.size());
  for (const OpenEntry& entry : meta.open) {
    PutVarint64(&out, entry.instance);
    PutBallot(&out, entry.ballot);
    PutU8(&out, entry.faulty ? kFaultyFlag : 0);
    PutVarint64(&out, entry.placement.segment);
    PutVarint64(&out, entry.placement.batch_page);
    PutVarint64(&out, entry.placement.record_offset);
  }
  if (install) PutInstall(&out, meta);
  return out;
}

Result<GroupMeta> ParseGroupMeta(std::string_view value) {
  GroupMeta meta;
  Decoder in(AsBytes(value));
  uint8_t version = 0;
  uint8_t block_pages = 0;
  uint8_t flags = 0;
  uint64_t count = 0;
  if (!in.U8(&version) || (version != kRowVersion && version != kRowWithInstall) ||
      !in.U8(&block_pages) || block_pages == 0 || block_pages > kMaxBlockPages || !in.U8(&flags) ||
      !in.Varint64(&meta.applied) || !in.Varint64(&meta.truncated) ||
      !GetBallot(&in, &meta.promised) || !in.LengthPrefixed(&meta.opaque) ||
      !in.Varint64(&meta.horizon) || !in.LengthPrefixed(&meta.state) || !in.Varint64(&count) ||
      count > in.remaining()) {
    return BadRow("group");
  }
  meta.block_pages = block_pages;
  meta.suspect = (flags & kSuspectFlag) != 0;
  meta.halted = (flags & kHaltedFlag) != 0;
  for (uint64_t i = 0; i < count; ++i) {
    OpenEntry entry;
    uint8_t entry_flags = 0;
    if (!in.Varint64(&entry.instance) || !GetBallot(&in, &entry.ballot) || !in.U8(&entry_flags) ||
        !in.Varint32(&entry.placement.segment) || !in.Varint32(&entry.placement.batch_page) ||
        !in.Varint32(&entry.placement.record_offset)) {
      return BadRow("group");
    }
    entry.faulty = (entry_flags & kFaultyFlag) != 0;
    meta.open.push_back(entry);
  }
  if (version == kRowWithInstall && !GetInstall(&in, &meta)) return BadRow("group");
  if (in.remaining() != 0) return BadRow("group");
  return meta;
}

std::string EncodeCheckpointRow(const CheckpointRow& row) {
  std::string out;
  PutU8(&out, kRowVersion);
  PutVarint64(&out, row.id);
  PutVarint64(&out, row.position.next_batch);
  PutFixed32(&out, row.position.chain);
  PutVarint64(&out, row.position.generation);
  PutVarint64(&out, row.highest_segment);
  for (const StreamPosition::Cursor& lane : row.position.lanes) {
    PutVarint64(&out, lane.segment);
    PutVarint64(&out, lane.page);
  }
  PutU8(&out, row.clean ? 1 : 0);
  return out;
}

Result<CheckpointRow> ParseCheckpointRow(std::string_view value) {
  CheckpointRow row;
  Decoder in(AsBytes(value));
  uint8_t version = 0;
  uint8_t clean = 0;
  bool ok = in.U8(&version) && version == kRowVersion && in.Varint64(&row.id) &&
            in.Varint64(&row.position.next_batch) && in.Fixed32(&row.position.chain) &&
            in.Varint32(&row.position.generation) && in.Varint32(&row.highest_segment);
  for (StreamPosition::Cursor& lane : row.position.lanes) {
    ok = ok && in.Varint32(&lane.segment) && in.Varint32(&lane.page);
  }
  if (!ok || !in.U8(&clean) || in.remaining() != 0) return BadRow("checkpoint");
  row.clean = clean != 0;
  return row;
}

std::string EncodeIntentRow(const IntentRow& row) {
  std::string out;
  PutU8(&out, kRowVersion);
  PutVarint64(&out, row.id);
  PutVarint64(&out, row.applied.size());
  for (const auto& [group, instance] : row.applied) {
    PutVarint64(&out, group);
    PutVarint64(&out, instance);
  }
  return out;
}

Result<IntentRow> ParseIntentRow(std::string_view value) {
  IntentRow row;
  Decoder in(AsBytes(value));
  uint8_t version = 0;
  uint64_t count = 0;
  if (!in.U8(&version) || version != kRowVersion || !in.Varint64(&row.id) || !in.Varint64(&count) ||
      count > in.remaining()) {
    return BadRow("intent");
  }
  for (uint64_t i = 0; i < count; ++i) {
    GroupId group = 0;
    Instance instance = 0;
    if (!in.Varint32(&group) || !in.Varint64(&instance)) return BadRow("intent");
    row.applied.emplace_back(group, instance);
  }
  if (in.remaining() != 0) return BadRow("intent");
  return row;
}

}  // namespace hydra
