// SPDX-License-Identifier: Apache-2.0
//
// The public API: completion tokens, administration, sizes, lifetimes.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/use_future.hpp>
#include <gtest/gtest.h>

#include "client/hydra.h"
#include "client/protocol.pb.h"
#include "tests/client/fake_cluster.h"
#include "tests/support/gtest_status.h"

namespace hydra {
namespace {

namespace asio = boost::asio;
using std::chrono::milliseconds;
using test::FakeCluster;
using test::Fault;

constexpr uint64_t kMiB = 1u << 20;

class ApiTest : public testing::Test {
 protected:
  ApiTest() : cluster_(*Cluster::Connect(nodes_.addresses(), Quick())) {}

  static ClusterOptions Quick() {
    ClusterOptions options;
    options.timeout = milliseconds(5'000);
    options.attempt_timeout = milliseconds(300);
    return options;
  }
  Volume Made(const std::string& name, uint64_t bytes = 16 * kMiB) {
    EXPECT_OK(cluster_.CreateVolume({.name = name, .bytes = bytes, .shards = 2}));
    auto volume = Volume::Open(cluster_, name);
    EXPECT_OK(volume.status());
    return *volume;
  }

  FakeCluster nodes_;
  Cluster cluster_;
};

TEST_F(ApiTest, FuturesCarryTheStatus) {
  Volume volume = Made("v");
  const std::vector<uint8_t> data(4096, 7);
  std::future<Status> written = volume.AsyncWrite(0, data, asio::use_future);
  EXPECT_OK(written.get());
  std::vector<uint8_t> got(4096);
  EXPECT_OK(volume.AsyncRead(0, got, asio::use_future).get());
  EXPECT_EQ(got, data);
  EXPECT_CODE(volume.AsyncRead(1, got, asio::use_future).get(), Code::kInvalidArgument);
  EXPECT_EQ(*volume.AsyncFetchAdd(8192, 5, asio::use_future).get(), 0u);
  EXPECT_TRUE(*volume.AsyncCompareAndWrite(0, data, data, asio::use_future).get());
  EXPECT_OK(volume.AsyncFlush(asio::use_future).get());
}

TEST_F(ApiTest, CoroutinesAwaitOnTheirOwnContext) {
  Volume volume = Made("v");
  asio::io_context context;
  const auto here = std::this_thread::get_id();
  std::optional<uint64_t> sum;
  asio::co_spawn(
      context,
      [&]() -> asio::awaitable<void> {
        std::vector<uint8_t> data(8192, 9);
        Status status = co_await volume.AsyncWrite(kMiB - 4096, data, asio::use_awaitable);
        EXPECT_OK(status);
        EXPECT_EQ(std::this_thread::get_id(), here);
        std::vector<uint8_t> got(8192);
        EXPECT_OK(co_await volume.AsyncRead(kMiB - 4096, got, asio::use_awaitable));
        EXPECT_EQ(got, data);
        EXPECT_OK(co_await volume.AsyncWriteZeroes(kMiB, 512, asio::use_awaitable));
        EXPECT_OK(co_await volume.AsyncDiscard(0, kMiB, asio::use_awaitable));
        Result<uint64_t> before = co_await volume.AsyncFetchAdd(0, 2, asio::use_awaitable);
        EXPECT_OK(before.status());
        before = co_await volume.AsyncFetchAdd(0, 2, asio::use_awaitable);
        sum = *before;
      },
      asio::detached);
  context.run();  // does not run out of work while an operation is under way
  EXPECT_EQ(sum, 2u);
}

TEST_F(ApiTest, CallbacksRunWhereTheirExecutorSays) {
  Volume volume = Made("v");
  asio::io_context context;
  std::vector<uint8_t> data(512);
  std::optional<std::thread::id> ran;
  volume.AsyncRead(0, data, asio::bind_executor(context, [&](const Status& status) {
                     EXPECT_OK(status);
                     ran = std::this_thread::get_id();
                   }));
  context.run();
  EXPECT_EQ(ran, std::this_thread::get_id());
}

TEST_F(ApiTest, ABlockingCallInAHandlerFailsInsteadOfHanging) {
  Volume volume = Made("v");
  std::vector<uint8_t> data(512);
  std::promise<Status> inner;
  volume.AsyncRead(0, data, [&](const Status&) { inner.set_value(volume.Write(0, data)); });
  EXPECT_CODE(inner.get_future().get(), Code::kFailedPrecondition);
}

TEST_F(ApiTest, EverythingHappensOnTheContextThatIsGiven) {
  Made("v");
  asio::io_context context;
  auto work = asio::make_work_guard(context);
  std::thread runner([&] { context.run(); });
  {
    ClusterOptions options = Quick();
    options.context = &context;
    auto cluster = Cluster::Connect(nodes_.addresses(), options);
    ASSERT_OK(cluster.status());
    auto volume = Volume::AsyncOpen(*cluster, "v", asio::use_future).get();
    ASSERT_OK(volume.status());
    EXPECT_NE(volume->id(), 0u);
    EXPECT_CODE(Volume::AsyncOpen(*cluster, "w", asio::use_future).get().status(), Code::kNotFound);
    const std::vector<uint8_t> data(4096, 7);
    EXPECT_OK(volume->Write(0, data));
    std::promise<std::pair<std::thread::id, Status>> inner;
    std::vector<uint8_t> got(4096);
    volume->AsyncRead(0, got, [&](const Status& read) {
      EXPECT_OK(read);
      inner.set_value({std::this_thread::get_id(), volume->Write(0, data)});
    });
    const auto [thread, blocking] = inner.get_future().get();
    EXPECT_EQ(thread, runner.get_id());
    EXPECT_CODE(blocking, Code::kFailedPrecondition);
    EXPECT_EQ(got, data);
  }
  work.reset();
  runner.join();  // the handles left nothing to do behind
}

TEST_F(ApiTest, OperationsEndWhenTheLastHandleGoes) {
  auto volume = std::make_unique<Volume>(Made("v"));
  nodes_.SetFaults([](uint32_t, const rpc::Request& request) {
    return request.has_io() ? Fault::kDropRequest : Fault::kNone;
  });
  auto cluster = std::make_unique<Cluster>(*Cluster::Connect(nodes_.addresses(), Quick()));
  auto other = std::make_unique<Volume>(*Volume::Open(*cluster, "v"));
  std::vector<uint8_t> data(512);
  std::future<Status> read = other->AsyncRead(0, data, asio::use_future);
  std::future<Status> write = other->AsyncWrite(0, data, asio::use_future);
  std::this_thread::sleep_for(milliseconds(20));
  other.reset();
  cluster.reset();
  ASSERT_EQ(read.wait_for(milliseconds(0)), std::future_status::ready);
  EXPECT_CODE(read.get(), Code::kUnavailable);
  EXPECT_FALSE(write.get().ok());
}

TEST_F(ApiTest, TheLastHandleMayGoInAHandler) {
  auto cluster = std::make_shared<Cluster>(*Cluster::Connect(nodes_.addresses(), Quick()));
  Made("v");
  auto volume = std::make_shared<Volume>(*Volume::Open(*cluster, "v"));
  cluster.reset();
  auto data = std::make_shared<std::vector<uint8_t>>(512);
  std::promise<Status> ended;
  Volume* raw = volume.get();
  raw->AsyncRead(0, *data, [&, data, volume = std::move(volume)](const Status& status) mutable {
    volume.reset();
    ended.set_value(status);
  });
  EXPECT_OK(ended.get_future().get());
}

TEST_F(ApiTest, VolumesAreMadeListedResizedAndDeleted) {
  EXPECT_OK(
      cluster_.CreateVolume({.name = "a", .bytes = 4 * kMiB, .block_bytes = 8192, .shards = 3}));
  EXPECT_CODE(cluster_.CreateVolume({.name = "a", .bytes = 4 * kMiB}), Code::kAlreadyExists);
  auto list = cluster_.volumes();
  ASSERT_OK(list.status());
  ASSERT_EQ(list->size(), 1u);
  EXPECT_EQ((*list)[0].name, "a");
  EXPECT_EQ((*list)[0].block_bytes, 8192u);
  EXPECT_EQ((*list)[0].groups.size(), 3u);
  Volume volume = *Volume::Open(cluster_, "a");
  EXPECT_OK(cluster_.ResizeVolume("a", 8 * kMiB));
  EXPECT_EQ(*volume.Refresh(), 8 * kMiB);
  EXPECT_OK(cluster_.DeleteVolume("a"));
  EXPECT_CODE(cluster_.DeleteVolume("a"), Code::kNotFound);
  std::vector<uint8_t> data(512);
  EXPECT_CODE(volume.Read(0, data), Code::kNotFound);
}

// As nodes do that are older than the option.
TEST_F(ApiTest, ANodeThatPassesOverTheLogicalBlockIsFoundOut) {
  EXPECT_OK(cluster_.CreateVolume({.name = "a", .bytes = 4 * kMiB, .logical_block = 512}));
  EXPECT_EQ(Volume::Open(cluster_, "a")->logical_block(), 512u);
  const Status made =
      cluster_.CreateVolume({.name = "b", .bytes = 4 * kMiB, .logical_block = 4096});
  EXPECT_CODE(made, Code::kUnsupported);
}

TEST_F(ApiTest, AChangeWhoseAnswerWasLostIsNoError) {
  const auto lose_first = [&](Fault fault) {
    nodes_.SetFaults([fault, left = 1](uint32_t, const rpc::Request&) mutable {
      return left-- > 0 ? fault : Fault::kNone;
    });
  };
  lose_first(Fault::kCloseAfter);
  EXPECT_OK(cluster_.CreateVolume({.name = "a", .bytes = 4 * kMiB}));
  lose_first(Fault::kCloseAfter);
  EXPECT_CODE(cluster_.CreateVolume({.name = "a", .bytes = 8 * kMiB}), Code::kAlreadyExists);
  lose_first(Fault::kCloseAfter);
  EXPECT_OK(cluster_.DeleteVolume("a"));
}

TEST_F(ApiTest, TheMapTellsDataFromHolesAcrossShards) {
  Volume volume = Made("v");
  const std::vector<uint8_t> data(3 * kMiB, 7);
  EXPECT_OK(volume.Write(kMiB - 8192, data));
  EXPECT_OK(volume.Write(10 * kMiB + 512, std::span(data).first(512)));
  const uint64_t reads = nodes_.counts().reads;
  const auto map = volume.GetMap(512, 12 * kMiB);
  ASSERT_OK(map.status());
  EXPECT_EQ(nodes_.counts().reads - reads, 13u) << "one question per extent";
  const std::vector<MapRun> expected = {
      {512, kMiB - 8192 - 512, false},
      {kMiB - 8192, 3 * kMiB, true},
      {4 * kMiB - 8192, 6 * kMiB + 8192, false},
      {10 * kMiB, 4096, true},
      {10 * kMiB + 4096, 2 * kMiB + 512 - 4096, false},
  };
  ASSERT_EQ(map->size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ((*map)[i].offset, expected[i].offset) << i;
    EXPECT_EQ((*map)[i].length, expected[i].length) << i;
    EXPECT_EQ((*map)[i].mapped, expected[i].mapped) << i;
  }
  EXPECT_OK(volume.Discard(0, 16 * kMiB));
  EXPECT_EQ(volume.GetMap(0, 16 * kMiB)->size(), 1u);
  EXPECT_CODE(volume.GetMap(0, 16 * kMiB + 512).status(), Code::kOutOfRange);
  EXPECT_CODE(volume.GetMap(0, 0).status(), Code::kInvalidArgument);
  EXPECT_CODE(volume.GetMap(1, 512).status(), Code::kInvalidArgument);
}

// A node that does not know of maps yet.
TEST_F(ApiTest, AMapThatComesWithDataIsAMap) {
  Volume volume = Made("v");
  EXPECT_OK(volume.Write(4096, std::vector<uint8_t>(4096, 7)));
  nodes_.Do([&] { nodes_.IgnoreMapOnly(); });
  const auto map = volume.AsyncGetMap(0, 16384, asio::use_future).get();
  ASSERT_OK(map.status());
  ASSERT_EQ(map->size(), 3u);
  EXPECT_TRUE((*map)[1].mapped);
}

// --- Purging ---

TEST_F(ApiTest, APurgeAsksEveryNodeUntilAllAreDone) {
  Volume volume = Made("v");
  std::map<uint32_t, int> asked;
  std::set<std::string> keys;
  nodes_.Do([&] {
    nodes_.SetPurge([&](uint32_t node, const rpc::Purge& purge) {
      rpc::Reply reply;
      keys.insert(purge.key());
      EXPECT_EQ(purge.groups_size(), 2);
      for (const auto& point : purge.groups()) EXPECT_GT(point.instance(), 0u);
      const int times = ++asked[node];
      if (node == 2 && times == 1) {
        reply.set_answer(rpc::Reply::BUSY);
        return reply;
      }
      reply.mutable_purge()->set_all(4);
      reply.mutable_purge()->set_left(times == 1 ? 2 : 0);
      reply.mutable_purge()->set_done(times > static_cast<int>(node));
      return reply;
    });
  });
  std::vector<double> progress;
  EXPECT_OK(volume.Purge("7", [&](double part) { progress.push_back(part); }));
  EXPECT_EQ(asked[1], 2) << "one that is done is left in peace";
  EXPECT_EQ(asked[3], 4);
  EXPECT_EQ(keys.size(), 1u);
  ASSERT_FALSE(progress.empty());
  EXPECT_TRUE(std::is_sorted(progress.begin(), progress.end()));
  EXPECT_LT(progress.front(), 1);
  EXPECT_EQ(progress.back(), 1);
}

TEST_F(ApiTest, APurgeAsksNodesThatJoinOnceTheyHaveADisk) {
  Volume volume = Made("v");
  std::set<uint32_t> asked;
  nodes_.Do([&] {
    nodes_.SetPurge([&](uint32_t node, const rpc::Purge&) {
      asked.insert(node);
      rpc::Reply reply;
      reply.mutable_purge()->set_done(true);
      return reply;
    });
    nodes_.SetJoining(1, "");
  });
  ASSERT_OK(cluster_.GetStatus(false).status());  // learns of it
  EXPECT_OK(volume.Purge("7"));
  EXPECT_EQ(asked, (std::set<uint32_t>{2, 3}));
  nodes_.Do([&] { nodes_.SetJoining(1, std::string(16, 'n')); });
  ASSERT_OK(cluster_.GetStatus(false).status());
  EXPECT_OK(volume.Purge("8"));
  EXPECT_EQ(asked, (std::set<uint32_t>{1, 2, 3})) << "it may have had replicas meanwhile";
}

TEST_F(ApiTest, APurgeIsNotDoneWhileANodeIsDown) {
  Volume volume = Made("v");
  nodes_.Do([&] {
    nodes_.SetPurge([](uint32_t, const rpc::Purge&) {
      rpc::Reply reply;
      reply.mutable_purge()->set_done(true);
      return reply;
    });
    nodes_.StopNode(3);
  });
  const Status failed = volume.Purge("7", {}, milliseconds(1'500));
  EXPECT_CODE(failed, Code::kUnavailable);
  EXPECT_NE(failed.message().find("node 3"), std::string::npos) << failed.message();
  std::future<Status> waits = volume.AsyncPurge("7", {}, std::chrono::minutes(1), asio::use_future);
  EXPECT_EQ(waits.wait_for(milliseconds(500)), std::future_status::timeout);
  nodes_.Do([&] { nodes_.StartNode(3); });
  EXPECT_OK(waits.get());
}

TEST_F(ApiTest, APurgeThatANodeCannotDoFails) {
  Volume volume = Made("v");
  nodes_.Do([&] {
    nodes_.SetPurge([](uint32_t node, const rpc::Purge&) {
      rpc::Reply reply;
      reply.mutable_purge()->set_done(true);
      if (node != 2) return reply;
      reply.set_answer(rpc::Reply::FAILED);
      reply.set_code(static_cast<uint32_t>(Code::kCorruption));
      reply.set_message("segment 7 cannot be emptied");
      return reply;
    });
  });
  EXPECT_CODE(volume.Purge("7"), Code::kCorruption);
}

TEST_F(ApiTest, GrowthIsSeenByThoseWhoReachForItAndByWatchers) {
  Volume volume = Made("v", 4 * kMiB);
  Cluster other = *Cluster::Connect(nodes_.addresses(), Quick());
  {
    auto seen = std::make_shared<std::promise<uint64_t>>();
    auto watch =
        volume.WatchSize([seen](uint64_t bytes) { seen->set_value(bytes); }, milliseconds(20));
    ASSERT_OK(other.ResizeVolume("v", 8 * kMiB));
    EXPECT_EQ(seen->get_future().get(), 8 * kMiB);
  }
  Volume late = *Volume::Open(other, "v");
  ASSERT_OK(cluster_.ResizeVolume("v", 12 * kMiB));
  std::vector<uint8_t> data(512);
  EXPECT_OK(late.Read(11 * kMiB, data));
  EXPECT_EQ(late.size(), 12 * kMiB);
}

TEST_F(ApiTest, StatusNamesNodesThatDoNotAnswer) {
  nodes_.Do([&] { nodes_.StopNode(2); });
  const auto status = cluster_.GetStatus(true);
  ASSERT_OK(status.status());
  ASSERT_EQ(status->size(), 3u);
  EXPECT_OK((*status)[0].reachable);
  EXPECT_EQ((*status)[0].version, "fake");
  EXPECT_CODE((*status)[1].reachable, Code::kUnavailable);
  EXPECT_OK((*status)[2].reachable);
}

TEST_F(ApiTest, MasterMovesAreFollowed) {
  Volume volume = Made("v");
  const auto groups = (*cluster_.volumes())[0].groups;
  const std::vector<uint8_t> data(4 * kMiB, 1);
  for (uint32_t node = 1; node <= 3; ++node) {
    for (const uint32_t group : groups) ASSERT_OK(cluster_.MoveMaster(group, node));
    ASSERT_OK(volume.Write(0, data));
  }
  EXPECT_EQ(volume.stats().writes, 3u);
  EXPECT_EQ(volume.stats().written_bytes, 12 * kMiB);
}

}  // namespace
}  // namespace hydra
