// SPDX-License-Identifier: Apache-2.0
//
// A counter that any number of programs may increment at once, and that stays exact when messages
// are lost and nodes fail.
//
//   counter VOLUME TIMES NODE...      for example: counter demo 100 127.0.0.1:7101
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "client/hydra.h"

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: %s VOLUME TIMES HOST:PORT...\n", argv[0]);
    return 2;
  }
  auto cluster = hydra::Cluster::Connect(std::vector<std::string>(argv + 3, argv + argc));
  if (!cluster.ok()) {
    std::fprintf(stderr, "%s\n", cluster.status().ToString().c_str());
    return 1;
  }
  auto volume = hydra::Volume::Open(*cluster, argv[1]);
  if (!volume.ok()) {
    std::fprintf(stderr, "%s\n", volume.status().ToString().c_str());
    return 1;
  }
  // The last sector of the volume is ours, by agreement with ourselves.
  const uint64_t where = volume->size() - 512;
  const long times = std::strtol(argv[2], nullptr, 10);
  for (long i = 0; i < times; ++i) {
    const auto before = volume->FetchAdd(where, 1);
    if (before.ok()) continue;
    // kAborted alone leaves open whether this one counted.
    std::fprintf(stderr, "%s\n", before.status().ToString().c_str());
    return 1;
  }
  const auto now = volume->FetchAdd(where, 0);
  if (!now.ok()) return 1;
  std::printf("%llu\n", static_cast<unsigned long long>(*now));
  return 0;
}
