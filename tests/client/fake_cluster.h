// SPDX-License-Identifier: Apache-2.0
//
// Nodes that speak the protocol and keep blocks in memory, with faults on demand: what a test of
// the client's retries needs and real daemons do not do when told to. Sessions are kept as a group
// keeps them, so that a request which is executed twice shows.
#pragma once

#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace hydra::rpc {
class Purge;
class Reply;
class Request;
}  // namespace hydra::rpc

namespace hydra::test {

// What happens to a request.
enum class Fault {
  kNone,
  kDropRequest,  // never arrives
  kDropReply,    // executed; the answer is lost
  kCloseBefore,  // the connection breaks, nothing was executed
  kCloseAfter,   // executed, then the connection breaks
  kBusy,
  kUnknown,    // executed, and answered UNKNOWN
  kNotMaster,  // answered NOT_MASTER without a hint
  kExpire,     // the session is dropped first
  kDamaged,
  kCorrupt,  // a read's payload is changed on its way
  kNoGroup,
  kDelay,  // answered after 300 ms
};

class FakeCluster {
 public:
  explicit FakeCluster(unsigned nodes = 3);
  ~FakeCluster();

  std::vector<std::string> addresses() const;
  std::string address(uint32_t node) const { return addresses()[node - 1]; }

  // Runs on the nodes' thread and waits.
  template <typename Function>
  auto Do(Function function) {
    std::promise<decltype(function())> promise;
    Post([&] {
      if constexpr (std::is_void_v<decltype(function())>) {
        function();
        promise.set_value();
      } else {
        promise.set_value(function());
      }
    });
    return promise.get_future().get();
  }

  // To be called within Do.
  // A volume of one group per shard; group g's master is node 1 + g % nodes.
  void AddVolume(const std::string& name, uint64_t bytes, uint32_t block_bytes, uint32_t shards);
  void SetMaster(uint32_t group, uint32_t node);
  void ExpireSessions();
  void StopNode(uint32_t node);  // closes its connections and listens no more
  void StartNode(uint32_t node);
  // Its disk was lost, it has no replicas, and its new one is this; empty: there is none yet.
  void SetJoining(uint32_t node, const std::string& store);
  void IgnoreMapOnly();  // as nodes do that are older than it
  // Answers purges.
  void SetPurge(std::function<rpc::Reply(uint32_t node, const rpc::Purge& purge)> purge);

  // Asked for each request that is not a question; null: no faults.
  using Chooser = std::function<Fault(uint32_t node, const rpc::Request& request)>;
  void SetFaults(Chooser chooser);

  struct Counts {
    uint64_t executed = 0;  // mutations
    uint64_t repeats = 0;   // answered with the first outcome
    uint64_t opened = 0;
    uint64_t keep_alives = 0;
    uint64_t closed = 0;
    uint64_t catalogues = 0;
    uint64_t max_span = 0;  // highest seq - lowest_unanswered
    uint64_t reads = 0;
  };
  Counts counts();

 private:
  struct Impl;
  void Post(std::function<void()> function);

  std::unique_ptr<Impl> impl_;
};

}  // namespace hydra::test
