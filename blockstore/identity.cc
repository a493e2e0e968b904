// SPDX-License-Identifier: Apache-2.0
#include "blockstore/identity.h"

#include <charconv>
#include <limits>

#include <fmt/format.h>

#include "base/coding.h"
#include "base/crc32c.h"

namespace hydra {
namespace {

constexpr uint64_t kMinSegmentBytes = 16 * kPageSize;
constexpr uint64_t kMaxSegmentBytes = 1ull << 40;

// Takes "key value\n" off the front of *text; nullopt if it is not there.
std::optional<std::string_view> TakeLine(std::string_view* text, std::string_view key) {
  const size_t end = text->find('\n');
  if (end == std::string_view::npos) return std::nullopt;
  std::string_view line = text->substr(0, end);
  if (!line.starts_with(key) || line.size() <= key.size() || line[key.size()] != ' ') {
    return std::nullopt;
  }
  text->remove_prefix(end + 1);
  return line.substr(key.size() + 1);
}

template <typename T>
bool ParseNumber(std::string_view text, T* value, int base = 10) {
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, *value, base);
  return error == std::errc() && stop == end && !text.empty();
}

Status Damaged(const char* what) {
  return Status::Corruption(fmt::format(
      "the IDENTITY file is damaged ({}). Its store cannot be trusted: replace this node, or "
      "restore the file from a copy made of this very directory",
      what));
}

}  // namespace

Status ValidateSegmentBytes(uint64_t bytes) {
  if (bytes % kPageSize != 0 || bytes < kMinSegmentBytes || bytes > kMaxSegmentBytes) {
    return Status::InvalidArgument(
        fmt::format("segments of {} bytes: use a multiple of {} between {} and {}", bytes,
                    kPageSize, kMinSegmentBytes, kMaxSegmentBytes));
  }
  return Status::Ok();
}

std::string EncodeIdentity(const StoreIdentity& identity) {
  std::string text =
      fmt::format("hydra-store {}\nstore {}\ncluster {}\nnode {}\nsegment-bytes {}\n", kStoreFormat,
                  identity.store.ToString(), identity.cluster.ToString(), identity.node,
                  identity.segment_bytes);
  return text + fmt::format("crc {:08x}\n", Crc32c(AsBytes(text)));
}

Result<StoreIdentity> ParseIdentity(std::string_view text) {
  const std::string_view whole = text;
  const auto format = TakeLine(&text, "hydra-store");
  uint32_t version = 0;
  if (!format || !ParseNumber(*format, &version)) return Damaged("not an identity");
  if (version > kStoreFormat) {
    return Status::Unsupported(fmt::format(
        "the store has format {}; this build reads up to {}. Upgrade Hydra on this node", version,
        kStoreFormat));
  }
  StoreIdentity identity;
  const auto store = TakeLine(&text, "store");
  const auto cluster = TakeLine(&text, "cluster");
  const auto node = TakeLine(&text, "node");
  const auto segment_bytes = TakeLine(&text, "segment-bytes");
  const size_t covered = whole.size() - text.size();
  const auto crc_text = TakeLine(&text, "crc");
  uint32_t crc = 0;
  if (!store || !cluster || !node || !segment_bytes || !crc_text || !text.empty()) {
    return Damaged("a line is missing");
  }
  if (crc_text->size() != 8 || !ParseNumber(*crc_text, &crc, 16) ||
      crc != Crc32c(AsBytes(whole.substr(0, covered)))) {
    return Damaged("its checksum does not match");
  }
  auto store_id = Uuid::Parse(*store);
  auto cluster_id = Uuid::Parse(*cluster);
  if (!store_id.ok() || !cluster_id.ok() || !ParseNumber(*node, &identity.node) ||
      !ParseNumber(*segment_bytes, &identity.segment_bytes) ||
      !ValidateSegmentBytes(identity.segment_bytes).ok()) {
    return Damaged("a value makes no sense");
  }
  identity.store = *store_id;
  identity.cluster = *cluster_id;
  return identity;
}

}  // namespace hydra
