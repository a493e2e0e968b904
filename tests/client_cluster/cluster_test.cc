// SPDX-License-Identifier: Apache-2.0
//
// The client against real nodes: every operation, and what must hold when nodes die and answers are
// lost.
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/rng.h"
#include "client/hydra.h"
#include "tests/client_cluster/processes.h"
#include "tests/client_cluster/reply_dropper.h"
#include "tests/support/gtest_status.h"

namespace hydra {
namespace {

using std::chrono::milliseconds;
using test::Processes;
using test::ReplyDropper;

constexpr uint64_t kMiB = 1u << 20;

std::vector<uint8_t> Bytes(size_t length, uint64_t seed) {
  std::vector<uint8_t> bytes(length);
  Rng rng(seed);
  for (size_t i = 0; i + 8 <= length; i += 8) {
    const uint64_t word = rng.Next();
    std::copy_n(reinterpret_cast<const uint8_t*>(&word), 8,
                bytes.begin() + static_cast<ptrdiff_t>(i));
  }
  return bytes;
}

class ClusterTest : public testing::Test {
 protected:
  void SetUp() override {
    auto cluster = Cluster::Connect(nodes_.addresses(), Patient());
    ASSERT_OK(cluster.status());
    cluster_ = std::make_unique<Cluster>(*cluster);
  }
  // The machine may be busy with other tests.
  static ClusterOptions Patient() {
    ClusterOptions options;
    options.timeout = milliseconds(60'000);
    return options;
  }
  Volume Made(const VolumeSpec& spec) {
    EXPECT_OK(cluster_->CreateVolume(spec));
    auto volume = Volume::Open(*cluster_, spec.name);
    EXPECT_OK(volume.status());
    return *volume;
  }

  Processes nodes_;
  std::unique_ptr<Cluster> cluster_;
};

TEST_F(ClusterTest, RandomOperationsAgreeWithAnArray) {
  for (const uint32_t block : {4096u, 16384u}) {
    Volume volume = Made({.name = "v" + std::to_string(block),
                          .bytes = 8 * kMiB,
                          .block_bytes = block,
                          .shards = 3});
    EXPECT_EQ(volume.block_bytes(), block);
    std::vector<uint8_t> model(8 * kMiB, 0);
    Rng rng(block);
    for (unsigned i = 0; i < 120; ++i) {
      const uint64_t offset = rng.Below(model.size() / 512) * 512;
      const uint64_t most =
          std::min<uint64_t>(model.size() - offset, rng.Percent(15) ? 3 * kMiB : 65'536);
      const uint64_t length = (1 + rng.Below(most / 512)) * 512;
      const auto at = model.begin() + static_cast<ptrdiff_t>(offset);
      switch (rng.Below(5)) {
        case 0:
        case 1: {
          const auto data = Bytes(length, i);
          ASSERT_OK(volume.Write(offset, data));
          std::copy(data.begin(), data.end(), at);
          break;
        }
        case 2:
          ASSERT_OK(volume.WriteZeroes(offset, length));
          std::fill_n(at, length, 0);
          break;
        case 3: {
          ASSERT_OK(volume.Discard(offset, length));
          const uint64_t first = (offset + block - 1) / block * block;
          const uint64_t last = (offset + length) / block * block;
          if (first < last) {
            std::fill(model.begin() + static_cast<ptrdiff_t>(first),
                      model.begin() + static_cast<ptrdiff_t>(last), 0);
          }
          break;
        }
        default: {
          std::vector<uint8_t> got(length);
          ASSERT_OK(volume.Read(offset, got));
          ASSERT_TRUE(std::equal(got.begin(), got.end(), at)) << offset << " " << length;
        }
      }
    }
    std::vector<uint8_t> all(model.size());
    ASSERT_OK(volume.Read(0, all));
    EXPECT_TRUE(all == model);
  }
}

TEST_F(ClusterTest, ComparesAreDecidedAtTheMaster) {
  Volume volume = Made({.name = "v", .bytes = 4 * kMiB});
  const auto one = Bytes(8192, 1);
  const auto two = Bytes(8192, 2);
  const std::vector<uint8_t> zeroes(8192, 0);
  auto done = volume.CompareAndWrite(4096, one, two);
  ASSERT_OK(done.status());
  EXPECT_FALSE(*done);
  done = volume.CompareAndWrite(4096, zeroes, one);  // never written
  ASSERT_OK(done.status());
  EXPECT_TRUE(*done);
  done = volume.CompareAndWrite(4096 + 512, std::span(one).subspan(512, 1536),
                                std::span(two).first(1536));
  ASSERT_OK(done.status());
  EXPECT_TRUE(*done);
  std::vector<uint8_t> expected = one;
  std::copy_n(two.begin(), 1536, expected.begin() + 512);
  std::vector<uint8_t> got(8192);
  ASSERT_OK(volume.Read(4096, got));
  EXPECT_EQ(got, expected);
  ASSERT_OK(volume.Read(4096, got, Consistency::kLocal));
}

TEST_F(ClusterTest, WritersOfTheSameBlockDoNotLoseEachOthersSectors) {
  Volume volume = Made({.name = "v", .bytes = 4 * kMiB});
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 5; ++i) {
        EXPECT_OK(volume.Write(t * 512, std::vector<uint8_t>(512, static_cast<uint8_t>(t + 1))));
        EXPECT_OK(volume.FetchAdd(4096 + t % 2 * 8, 1).status());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<uint8_t> block(4096);
  ASSERT_OK(volume.Read(0, block));
  for (size_t i = 0; i < block.size(); ++i) ASSERT_EQ(block[i], i / 512 + 1);
  EXPECT_EQ(*volume.FetchAdd(4096, 0), 20u);
  EXPECT_EQ(*volume.FetchAdd(4104, 0), 20u);
}

TEST_F(ClusterTest, AVolumeThatShrankAndGrewAgainReadsAsZeroesThere) {
  Volume volume = Made({.name = "v", .bytes = 8 * kMiB, .shards = 2});
  ASSERT_OK(volume.Write(0, Bytes(8 * kMiB, 1)));
  EXPECT_CODE(cluster_->ResizeVolume("v", 3 * kMiB + 4096), Code::kFailedPrecondition);
  ASSERT_OK(cluster_->ResizeVolume("v", 3 * kMiB + 4096, true));
  std::vector<uint8_t> got(4096);
  EXPECT_CODE(volume.Read(4 * kMiB, got), Code::kOutOfRange);
  ASSERT_OK(cluster_->ResizeVolume("v", 8 * kMiB));
  std::vector<uint8_t> all(8 * kMiB);
  ASSERT_OK(volume.Read(0, all));
  std::vector<uint8_t> expected = Bytes(8 * kMiB, 1);
  std::fill(expected.begin() + 3 * kMiB + 4096, expected.end(), 0);
  EXPECT_TRUE(all == expected);
  ASSERT_OK(cluster_->DeleteVolume("v"));
  EXPECT_CODE(volume.Read(0, got), Code::kNotFound);
}

TEST_F(ClusterTest, MastersMoveUnderWritesAndNothingFails) {
  Volume volume = Made({.name = "v", .bytes = 8 * kMiB, .shards = 2});
  const auto groups = (*cluster_->volumes())[0].groups;
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> writes{0};
  std::thread writer([&] {
    for (uint64_t i = 0; !stop; ++i) {
      EXPECT_OK(volume.Write(i % 8 * kMiB, Bytes(4096, i)));
      ++writes;
    }
  });
  for (uint32_t i = 0; i < 6; ++i) {
    for (const uint32_t group : groups) {
      const Status moved = cluster_->MoveMaster(group, 1 + i % 3);
      EXPECT_TRUE(moved.ok() || moved.code() != Code::kNotFound) << moved.ToString();
    }
    std::this_thread::sleep_for(milliseconds(100));
  }
  stop = true;
  writer.join();
  EXPECT_GT(writes, 0u);
}

TEST_F(ClusterTest, WhatWasAcknowledgedSurvivesKilledAndPausedNodes) {
  Volume volume = Made({.name = "v", .bytes = 16 * kMiB, .shards = 4});
  std::atomic<bool> stop{false};
  constexpr unsigned kWriters = 4;
  std::vector<std::map<uint64_t, uint64_t>> acknowledged(kWriters);
  std::vector<std::thread> writers;
  for (unsigned w = 0; w < kWriters; ++w) {
    writers.emplace_back([&, w] {
      Rng rng(w);
      for (uint64_t i = 1; !stop; ++i) {
        const uint64_t block = rng.Below(1024) * kWriters + w;  // its own
        const uint64_t seed = i * kWriters + w;
        const Status status = volume.Write(block * 4096, Bytes(4096, seed));
        EXPECT_OK(status);
        if (!status.ok()) return;
        acknowledged[w][block] = seed;
      }
    });
  }
  for (unsigned round = 0; round < 3; ++round) {
    const unsigned node = 1 + round % 3;
    std::this_thread::sleep_for(milliseconds(300));
    if (round == 1) {
      nodes_.Pause(node);
      std::this_thread::sleep_for(milliseconds(1'500));
      nodes_.Resume(node);
    } else {
      nodes_.Kill(node);
      std::this_thread::sleep_for(milliseconds(500));
      nodes_.Start(node);
    }
    std::this_thread::sleep_for(milliseconds(1'500));
  }
  stop = true;
  for (std::thread& writer : writers) writer.join();
  uint64_t checked = 0;
  for (const auto& blocks : acknowledged) {
    for (const auto& [block, seed] : blocks) {
      std::vector<uint8_t> got(4096);
      ASSERT_OK(volume.Read(block * 4096, got));
      ASSERT_TRUE(got == Bytes(4096, seed)) << "block " << block;
      ++checked;
    }
  }
  EXPECT_GT(checked, 10u);
}

// Its connections stay, and say nothing: whoever only waits for them waits for all the time there
// is.
TEST_F(ClusterTest, AMasterThatStandsStillIsLeftForItsSuccessor) {
  Made({.name = "v", .bytes = 8 * kMiB, .shards = 3});
  ClusterOptions options = Patient();
  options.attempt_timeout = options.timeout;
  auto cluster = Cluster::Connect(nodes_.addresses(), options);
  ASSERT_OK(cluster.status());
  auto volume = Volume::Open(*cluster, "v");
  ASSERT_OK(volume.status());
  std::vector<uint8_t> got(4096);
  for (uint64_t extent = 0; extent < 8; ++extent) {
    ASSERT_OK(volume->Write(extent * kMiB, Bytes(4096, extent)));
  }
  for (const unsigned node : {1u, 2u, 3u}) {
    nodes_.Pause(node);
    for (uint64_t extent = 0; extent < 8; ++extent) {
      ASSERT_OK(volume->Write(extent * kMiB + 4096, Bytes(4096, 10 * node + extent)));
      ASSERT_OK(volume->Read(extent * kMiB, got));
      ASSERT_EQ(got, Bytes(4096, extent));
    }
    nodes_.Resume(node);
    for (uint64_t extent = 0; extent < 8; ++extent) {
      ASSERT_OK(volume->Read(extent * kMiB + 4096, got));
      ASSERT_EQ(got, Bytes(4096, 10 * node + extent));
    }
  }
}

TEST_F(ClusterTest, CountersAreExactThroughAProxyThatLosesAnswers) {
  Made({.name = "v", .bytes = 4 * kMiB, .shards = 2});
  ReplyDropper proxy(nodes_.addresses(), 20, 1);
  ClusterOptions options = Patient();
  options.attempt_timeout = milliseconds(150);
  options.translate = [&](const std::string& node) { return proxy.Translate(node); };
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 2; ++t) {
    threads.emplace_back([&] {
      auto cluster = Cluster::Connect({nodes_.addresses()[0]}, options);
      ASSERT_OK(cluster.status());
      auto volume = Volume::Open(*cluster, "v");
      ASSERT_OK(volume.status());
      for (int i = 0; i < 50; ++i) ASSERT_OK(volume->FetchAdd(2 * kMiB + 8, 1).status());
    });
  }
  for (std::thread& thread : threads) thread.join();
  auto volume = Volume::Open(*cluster_, "v");
  ASSERT_OK(volume.status());
  EXPECT_EQ(*volume->FetchAdd(2 * kMiB + 8, 0), 100u);
  EXPECT_GT(proxy.dropped(), 0u);
}

TEST_F(ClusterTest, TheExamplesRun) {
  Made({.name = "demo", .bytes = 8 * kMiB, .shards = 2});
  const std::string node = nodes_.addresses()[1];
  std::string out;
  EXPECT_EQ(Processes::Run({HYDRA_EXAMPLES "/hello_block_device", "demo", node}, &out), 0) << out;
  EXPECT_NE(out.find("read back: hello, block device"), std::string::npos) << out;
  EXPECT_EQ(Processes::Run({HYDRA_EXAMPLES "/async_copy", "demo", node}, &out), 0) << out;
  EXPECT_EQ(out, "copied 4 MiB\n");
  EXPECT_EQ(Processes::Run({HYDRA_EXAMPLES "/counter", "demo", "20", node}, &out), 0) << out;
  EXPECT_EQ(out, "20\n");
  EXPECT_EQ(Processes::Run({HYDRA_EXAMPLES "/counter", "none", "20", node}, &out), 1) << out;
}

}  // namespace
}  // namespace hydra
