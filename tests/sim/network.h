// SPDX-License-Identifier: Apache-2.0
//
// Network: carries packets between nodes, badly. Every ordered pair of nodes is a link with its own
// weather: delay, loss, duplication, reordering, bandwidth, and whether it is cut. A packet's body
// is opaque; the network never copies it.
//
// What a packet may meet:
//  * delay, drawn per packet; packets of a link stay in order (as in a connection), except
//  * strays: overtaken packets and second copies, which come at any time up to `stray_max` later;
//  * loss, by chance, when more is in flight on the link than it may hold, or at a dead node;
//  * a cut link: lost, or, as retransmission would do, held and delivered after the link is healed,
//    however old it is by then. A packet in flight when its link is cut is treated as if sent then.
// A node that died and lives again gets packets that were sent to its former life: worse than what
// connections allow, but no protocol may depend on it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/rng.h"
#include "tests/sim/scheduler.h"

namespace hydra::sim {

struct Packet {
  NodeId from = 0;
  NodeId to = 0;
  uint64_t bytes = 0;        // as it would be on the wire
  uint64_t fingerprint = 0;  // of what it says; goes into the trace
  std::shared_ptr<const void> body;

  // The body, which was made as a T.
  template <typename T>
  const T& As() const {
    return *static_cast<const T*>(body.get());
  }
};

// How one direction of a pair of nodes behaves.
struct Weather {
  Nanos delay_min = 50'000;
  Nanos delay_max = 500'000;
  unsigned loss_permille = 0;
  unsigned duplicate_permille = 0;
  unsigned reorder_permille = 0;
  Nanos stray_max = 50 * kMillisecond;
  uint64_t bytes_per_second = 0;  // 0 = no limit
};

class Network {
 public:
  struct Options {
    uint64_t seed = 1;
    Weather weather;  // of every link, unless told otherwise
    unsigned hold_percent = 30;
    // Per link, held packets included.
    size_t max_packets = 4096;
    uint64_t max_bytes = 64u << 20;
  };

  struct Counters {
    uint64_t sent = 0;
    uint64_t delivered = 0;
    uint64_t lost = 0;
    uint64_t duplicated = 0;
    uint64_t reordered = 0;
    uint64_t blocked = 0;     // lost at a cut
    uint64_t held = 0;        // kept at a cut for later
    uint64_t overflowed = 0;  // lost for want of room
    uint64_t to_the_dead = 0;
    uint64_t cuts = 0;    // links cut
    uint64_t storms = 0;  // links given a weather of their own
    uint64_t faults() const {
      return lost + duplicated + reordered + blocked + held + overflowed + cuts + storms;
    }
  };

  using Handler = std::function<void(const Packet&)>;
  using Describer = std::function<std::string(const Packet&)>;

  // `scheduler` outlives the network, and the network all events of the run.
  Network(Scheduler* scheduler, const Options& options);
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  // A node that can be sent to. `handler` runs inside the event of arrival. A node is up at first.
  void AddNode(NodeId node, Handler handler);
  void SetUp(NodeId node, bool up);
  const std::vector<NodeId>& nodes() const { return nodes_; }
  // How the text of a trace describes a packet.
  void SetDescriber(Describer describer) { describer_ = std::move(describer); }

  // From a node to itself, packets are never lost, and arrive in order after the shortest delay.
  void Send(Packet packet);

  // --- Faults. ----------------------------------------------------------------------------------
  void CutOneWay(NodeId from, NodeId to);
  void Cut(NodeId a, NodeId b);  // both ways
  // Both ways between `side` and all others.
  void Partition(const std::vector<NodeId>& side);
  void Isolate(NodeId node) { Partition({node}); }
  void IsolateOneWay(NodeId node, bool inbound);  // hears nothing, or is not heard
  void SetWeather(const Weather& weather);        // of all links without one of their own
  void SetWeather(NodeId from, NodeId to, const Weather& weather);
  // One link's delays are `factor` times those of the others.
  void Slow(NodeId from, NodeId to, unsigned factor);
  // One of the above on random links. Says which.
  std::string Disturb();
  bool connected(NodeId from, NodeId to) const;

  // --- And back. --------------------------------------------------------------------------------
  void HealOneWay(NodeId from, NodeId to);
  // No link between any two of these is cut or has a weather of its own.
  void Heal(const std::vector<NodeId>& nodes);
  void Heal() { Heal(nodes_); }
  // No loss, duplication or reordering any more, anywhere.
  void Calm();

  const Counters& counters() const { return counters_; }
  size_t in_flight(NodeId from, NodeId to) const;  // held ones too

 private:
  struct Link {
    bool cut = false;
    bool own_weather = false;
    Weather weather;         // if own_weather
    Nanos last_arrival = 0;  // of packets in order
    Nanos busy_until = 0;    // sending takes time where bandwidth is limited
    size_t packets = 0;
    uint64_t bytes = 0;
    std::deque<Packet> held;
  };
  struct Node {
    bool up = true;
    Handler handler;
  };

  Link& LinkOf(NodeId from, NodeId to);
  const Weather& WeatherOf(const Link& link) const {
    return link.own_weather ? link.weather : options_.weather;
  }
  bool Admit(Link* link, const Packet& packet);  // counts it as in flight, if there is room
  void Leave(Link* link, const Packet& packet);
  void Transmit(Link* link, Packet packet, bool stray);
  void Arrive(const Packet& packet);
  // At a cut: held (still in flight) or lost (left).
  void Block(Link* link, Packet packet);
  NodeId AnyNode() { return nodes_[rng_.Below(nodes_.size())]; }
  Nanos Draw(Nanos low, Nanos high);

  Scheduler* const scheduler_;
  Options options_;
  Rng rng_;
  std::vector<NodeId> nodes_;
  std::map<NodeId, Node> by_id_;
  std::map<std::pair<NodeId, NodeId>, Link> links_;
  Describer describer_;
  Counters counters_;
};

}  // namespace hydra::sim
