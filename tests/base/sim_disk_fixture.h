// SPDX-License-Identifier: Apache-2.0
//
// Short words for tests about SimDisk and other files.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "base/buffer.h"
#include "base/sim_disk.h"

namespace hydra {

inline constexpr size_t kSector = SimDisk::kSectorSize;
inline constexpr uint64_t kSeeds = 200;

inline SimDisk::Options Seed(uint64_t seed) {
  SimDisk::Options options;
  options.seed = seed;
  return options;
}

inline OpenOptions CreateIt() {
  OpenOptions options;
  options.create = true;
  return options;
}

inline std::unique_ptr<File> OpenFile(SimDisk* disk, const std::string& path,
                                      const OpenOptions& options = CreateIt()) {
  auto file = disk->Open(path, options);
  EXPECT_TRUE(file.ok()) << file.status().ToString();
  return std::move(file).value();
}

inline Status WriteText(File* file, uint64_t offset, std::string_view text,
                        Durability durability = Durability::kBuffered) {
  const IoSlice slice{reinterpret_cast<const uint8_t*>(text.data()), text.size()};
  return file->PWriteV(offset, {&slice, 1}, durability);
}

// A file whose contents and name are durable.
inline void MakeDurable(SimDisk* disk, const std::string& path, std::string_view text) {
  auto file = OpenFile(disk, path);
  ASSERT_TRUE(WriteText(file.get(), 0, text).ok());
  ASSERT_TRUE(file->Sync().ok());
  const size_t slash = path.rfind('/');
  ASSERT_TRUE(disk->SyncDirectory(slash == std::string::npos ? "" : path.substr(0, slash)).ok());
}

inline std::string ReadText(File* file) {
  std::string text(file->Size().value(), '?');
  EXPECT_EQ(file->PRead(0, {reinterpret_cast<uint8_t*>(text.data()), text.size()}).value(),
            text.size());
  return text;
}

// The contents, or "-" without such a file.
inline std::string Contents(SimDisk* disk, const std::string& path) {
  if (!disk->Exists(path)) return "-";
  OpenOptions options;
  options.read_only = true;
  return ReadText(OpenFile(disk, path, options).get());
}

inline void LosePowerAndRestart(SimDisk* disk) {
  disk->PowerLoss();
  disk->Restart();
}

// Runs `run` with many seeds and counts how often each outcome came.
template <typename Run>
std::map<std::string, int> Outcomes(Run run) {
  std::map<std::string, int> outcomes;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    SimDisk disk(Seed(seed));
    ++outcomes[run(&disk)];
  }
  return outcomes;
}

inline std::vector<std::string> Keys(const std::map<std::string, int>& outcomes) {
  std::vector<std::string> keys;
  for (const auto& [key, count] : outcomes) keys.push_back(key);
  return keys;
}

}  // namespace hydra
