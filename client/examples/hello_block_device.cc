// SPDX-License-Identifier: Apache-2.0
//
// Writes a block, reads it back, and gives it back.
//
//   hello_block_device VOLUME NODE...      for example: hello_block_device demo 127.0.0.1:7101
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "client/hydra.h"

namespace {

int Fail(const char* what, const hydra::Status& status) {
  std::fprintf(stderr, "%s: %s\n", what, status.ToString().c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: %s VOLUME HOST:PORT...\n", argv[0]);
    return 2;
  }
  auto cluster = hydra::Cluster::Connect(std::vector<std::string>(argv + 2, argv + argc));
  if (!cluster.ok()) return Fail("connect", cluster.status());
  auto volume = hydra::Volume::Open(*cluster, argv[1]);
  if (!volume.ok()) return Fail("open", volume.status());
  std::printf("%s: %llu bytes in blocks of %u\n", volume->name().c_str(),
              static_cast<unsigned long long>(volume->size()), volume->block_bytes());

  std::vector<uint8_t> block(volume->block_bytes(), 0);
  std::strcpy(reinterpret_cast<char*>(block.data()), "hello, block device");
  // When this returns OK, the block is durable on a majority of its replicas.
  hydra::Status status = volume->Write(0, block);
  if (!status.ok()) return Fail("write", status);

  std::vector<uint8_t> back(block.size());
  status = volume->Read(0, back);
  if (!status.ok()) return Fail("read", status);
  std::printf("read back: %s\n", reinterpret_cast<const char*>(back.data()));

  // Only if it still holds what was read: safe against others who write the same block.
  const auto swapped = volume->CompareAndWrite(0, back, std::vector<uint8_t>(block.size(), 0));
  if (!swapped.ok()) return Fail("compare and write", swapped.status());
  std::printf("%s\n", *swapped ? "wiped it" : "someone else wrote there meanwhile");

  status = volume->Discard(0, block.size());
  if (!status.ok()) return Fail("discard", status);
  return back == block ? 0 : 1;
}
