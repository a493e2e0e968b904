// SPDX-License-Identifier: Apache-2.0
#include "tests/cluster/verified_load.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/rng.h"

namespace hydra::cluster_test {
namespace {

constexpr size_t kMaxErrors = 20;

}  // namespace

VerifiedLoad::VerifiedLoad(const TestCluster& cluster, const std::string& volume, unsigned threads,
                           uint64_t blocks)
    : cluster_(cluster), volume_(volume) {
  for (unsigned i = 0; i < threads; ++i) {
    writers_.push_back(
        std::make_unique<Writer>(cluster.OpenVolume(volume), i * blocks * kBlock, blocks));
  }
  for (unsigned i = 0; i < threads; ++i) {
    Writer* writer = writers_[i].get();
    writer->thread = std::thread([this, writer, i] { Write(writer, i + 1); });
  }
}

VerifiedLoad::~VerifiedLoad() { Stop(); }

void VerifiedLoad::Write(Writer* writer, uint64_t seed) {
  Rng rng(seed);
  std::vector<uint8_t> back(kBlock);
  for (uint64_t version = 1; !stop_; ++version) {
    const uint64_t block = rng.Below(writer->last.size());
    const uint64_t offset = writer->begin + block * kBlock;
    const Status written = writer->volume.Write(offset, Pattern(offset, version, kBlock));
    if (written.ok()) {
      writer->last[block] = version;
      writer->unknown[block].clear();
      ++acknowledged_;
    } else if (written.code() == Code::kAborted) {
      writer->unknown[block].push_back(version);
    } else if (writer->errors.size() < kMaxErrors) {
      writer->errors.push_back("write: " + written.ToString());
    }
    if (!rng.Percent(25)) continue;
    const uint64_t other = rng.Below(writer->last.size());
    const Status read = writer->volume.Read(writer->begin + other * kBlock, back);
    std::string wrong = read.ok() ? Compare(*writer, other, back) : "read: " + read.ToString();
    if (!wrong.empty() && writer->errors.size() < kMaxErrors) {
      writer->errors.push_back(std::move(wrong));
    }
  }
}

std::string VerifiedLoad::Compare(const Writer& writer, uint64_t block,
                                  std::span<const uint8_t> bytes) const {
  const uint64_t offset = writer.begin + block * kBlock;
  const auto is = [&](uint64_t version) {
    const std::vector<uint8_t> expected =
        version == 0 ? std::vector<uint8_t>(kBlock) : Pattern(offset, version, kBlock);
    return std::equal(bytes.begin(), bytes.end(), expected.begin());
  };
  if (is(writer.last[block])) return "";
  for (const uint64_t version : writer.unknown[block]) {
    if (is(version)) return "";
  }
  return fmt::format("offset {}: version {} was acknowledged, and something else is there", offset,
                     writer.last[block]);
}

bool VerifiedLoad::WaitFor(uint64_t more, milliseconds patience) {
  const uint64_t goal = acknowledged_ + more;
  return Eventually([&] { return acknowledged_ >= goal; }, patience);
}

std::vector<std::string> VerifiedLoad::Stop() {
  stop_ = true;
  std::vector<std::string> errors;
  for (const auto& writer : writers_) {
    if (writer->thread.joinable()) writer->thread.join();
    errors.insert(errors.end(), writer->errors.begin(), writer->errors.end());
  }
  return errors;
}

std::vector<std::string> VerifiedLoad::Verify() {
  std::vector<std::string> wrong;
  Volume volume = cluster_.OpenVolume(volume_);
  std::vector<uint8_t> back(kBlock);
  for (const auto& writer : writers_) {
    for (uint64_t block = 0; block < writer->last.size(); ++block) {
      const Status read = volume.Read(writer->begin + block * kBlock, back);
      std::string line = read.ok() ? Compare(*writer, block, back) : "read: " + read.ToString();
      if (!line.empty() && wrong.size() < kMaxErrors) wrong.push_back(std::move(line));
    }
  }
  return wrong;
}

}  // namespace hydra::cluster_test
