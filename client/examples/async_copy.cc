// SPDX-License-Identifier: Apache-2.0
//
// Coroutines: copies the first half of a volume onto the second, with eight extents under way.
//
//   async_copy VOLUME NODE...      for example: async_copy demo 127.0.0.1:7101
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "client/hydra.h"

namespace {

namespace asio = boost::asio;

constexpr uint64_t kExtent = 1u << 20;
constexpr int kWorkers = 8;
constexpr uint64_t kMostBytes = 64 * kExtent;  // it is an example

// What the workers share. They all run on the thread of main, so no lock is needed.
struct Copy {
  hydra::Volume volume;
  uint64_t half = 0;
  uint64_t next = 0;
  hydra::Status status;
};

asio::awaitable<void> Worker(Copy* copy) {
  std::vector<uint8_t> data(kExtent);
  while (copy->next < copy->half && copy->status.ok()) {
    const uint64_t at = copy->next;
    copy->next += kExtent;
    hydra::Status status = co_await copy->volume.AsyncRead(at, data, asio::use_awaitable);
    if (status.ok()) {
      status = co_await copy->volume.AsyncWrite(copy->half + at, data, asio::use_awaitable);
    }
    if (!status.ok()) copy->status = status;
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: %s VOLUME HOST:PORT...\n", argv[0]);
    return 2;
  }
  auto cluster = hydra::Cluster::Connect(std::vector<std::string>(argv + 2, argv + argc));
  if (!cluster.ok()) {
    std::fprintf(stderr, "%s\n", cluster.status().ToString().c_str());
    return 1;
  }
  auto volume = hydra::Volume::Open(*cluster, argv[1]);
  if (!volume.ok()) {
    std::fprintf(stderr, "%s\n", volume.status().ToString().c_str());
    return 1;
  }
  const uint64_t half = std::min(volume->size() / 2, kMostBytes) / kExtent * kExtent;
  Copy copy{*volume, half, 0, hydra::Status::Ok()};

  asio::io_context context;
  for (int i = 0; i < kWorkers; ++i) asio::co_spawn(context, Worker(&copy), asio::detached);
  context.run();  // until the last worker is done

  if (!copy.status.ok()) {
    std::fprintf(stderr, "%s\n", copy.status.ToString().c_str());
    return 1;
  }
  std::printf("copied %llu MiB\n", static_cast<unsigned long long>(copy.half / kExtent));
  return 0;
}
