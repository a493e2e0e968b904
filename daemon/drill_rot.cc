// SPDX-License-Identifier: Apache-2.0
#include "daemon/drill_rot.h"

#include <cstdlib>
#include <limits>
#include <memory>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/buffer.h"
#include "base/logging.h"
#include "blockstore/segment_table.h"

namespace hydra {
namespace {

using Json = nlohmann::json;

constexpr size_t kShownStill = 20;

Status WrongRot(const std::string& what) {
  return Status::InvalidArgument(what + "; see docs/drills.md, \"Fault hooks\"");
}

Result<std::vector<std::pair<GroupId, Lba>>> ParseRot(const std::string& body) {
  const Json json = Json::parse(body, nullptr, false);
  if (!json.is_object() || json.size() != 1 || !json.contains("blocks") ||
      !json["blocks"].is_object()) {
    return WrongRot("what is posted is to be {\"blocks\": {GROUP: [BLOCK, ...]}}");
  }
  std::vector<std::pair<GroupId, Lba>> blocks;
  for (const auto& [name, numbers] : json["blocks"].items()) {
    char* end = nullptr;
    const unsigned long group = std::strtoul(name.c_str(), &end, 10);
    if (group == 0 || group > std::numeric_limits<GroupId>::max() || *end != '\0') {
      return WrongRot(fmt::format("'{}' is not the number of a group of a volume", name));
    }
    if (!numbers.is_array())
      return WrongRot(fmt::format("blocks of group {} are to be a list", name));
    for (const Json& number : numbers) {
      if (!number.is_number_unsigned()) return WrongRot("a block is to be a number");
      blocks.emplace_back(static_cast<GroupId>(group), number.get<Lba>());
    }
  }
  if (blocks.size() > DrillRot::kMostBlocks) {
    return WrongRot(
        fmt::format("{} blocks; at most {} at once", blocks.size(), DrillRot::kMostBlocks));
  }
  return blocks;
}

}  // namespace

Status DrillRot::Damage(const std::string& json) {
  HYDRA_ASSIGN_OR_RETURN(const auto blocks, ParseRot(json));
  asked_ = blocks.size();
  damaged_.clear();
  for (const auto& [group, lba] : blocks) {
    const std::optional<GroupId> stored = store_group_(group);
    if (!stored) continue;
    const Result<hydra::Damage> place = engine_->Locate(*stored, lba);
    if (!place.ok() && place.status().code() == Code::kNotFound) continue;
    HYDRA_RETURN_IF_ERROR(place.status());
    HYDRA_ASSIGN_OR_RETURN(const GroupInfo info, engine_->Info(*stored));
    HYDRA_RETURN_IF_ERROR(Flip(*place, info.block_pages));
    damaged_.emplace_back(group, *place);
  }
  HYDRA_LOG_WARN("drill: a bit flipped in each of {} blocks", damaged_.size());
  return Status::Ok();
}

// Past the page cache, which forgets the page then: reads of every kind find it.
Status DrillRot::Flip(const hydra::Damage& block, uint32_t block_pages) {
  const std::string path = dir_ + "/segments/" + SegmentFileName(block.segment);
  OpenOptions options;
  options.direct = true;
  HYDRA_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, fs_->Open(path, options));
  const Buffer page = Buffer::Allocate(kPageSize);
  const uint64_t offset = (uint64_t{block.page} + rng_.Below(block_pages)) * kPageSize;
  HYDRA_RETURN_IF_ERROR(file->ReadExactly(offset, page.span(), path));
  const uint64_t bit = rng_.Below(kPageSize * 8);
  page.data()[bit / 8] ^= static_cast<uint8_t>(1u << (bit % 8));
  const IoSlice slice{page.data(), page.size()};
  // Not flushed: the node's thread has to go on within its lease, and rot need not survive.
  return file->PWriteV(offset, {&slice, 1}, Durability::kBuffered);
}

// Of a block that is not where it was damaged.
Result<bool> DrillRot::SameVersion(const hydra::Damage& block) {
  const Result<hydra::Damage> now = engine_->Locate(block.group, block.lba);
  if (now.ok()) return now->version == block.version;
  if (now.status().code() == Code::kNotFound) return false;
  return now.status();
}

Result<std::string> DrillRot::Describe() {
  size_t repaired = 0;
  size_t rotten = 0;
  Json still = Json::array();
  for (const auto& [group, block] : damaged_) {
    HYDRA_ASSIGN_OR_RETURN(const bool there, engine_->IsStillThere(block));
    if (there) {
      ++rotten;
      if (still.size() < kShownStill) {
        still.push_back(fmt::format("group {} block {}", group, block.lba));
      }
      continue;
    }
    HYDRA_ASSIGN_OR_RETURN(const bool same, SameVersion(block));
    if (same) ++repaired;
  }
  const Json json{{"asked", asked_},
                  {"damaged", damaged_.size()},
                  {"rotten", rotten},
                  {"repaired", repaired},
                  {"overwritten", damaged_.size() - rotten - repaired},
                  {"still", still}};
  return json.dump(2) + "\n";
}

}  // namespace hydra
