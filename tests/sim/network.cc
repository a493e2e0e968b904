// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/network.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/check.h"

namespace hydra::sim {

Network::Network(Scheduler* scheduler, const Options& options)
    : scheduler_(scheduler), options_(options), rng_(options.seed) {}

void Network::AddNode(NodeId node, Handler handler) {
  HYDRA_CHECK(handler != nullptr);
  HYDRA_CHECK(by_id_.emplace(node, Node{true, std::move(handler)}).second);
  nodes_.push_back(node);
}

void Network::SetUp(NodeId node, bool up) { by_id_.at(node).up = up; }

void Network::Send(Packet packet) {
  HYDRA_CHECK(by_id_.at(packet.from).up);
  HYDRA_CHECK(by_id_.contains(packet.to));
  ++counters_.sent;
  Link* link = &LinkOf(packet.from, packet.to);
  if (scheduler_->trace().has_text()) {
    scheduler_->Note({"send", packet.from, packet.to, packet.fingerprint},
                     describer_ ? describer_(packet) : "");
  } else {
    scheduler_->Note({"send", packet.from, packet.to, packet.fingerprint});
  }
  if (!Admit(link, packet)) return;
  if (packet.from == packet.to) return Transmit(link, std::move(packet), /*stray=*/false);
  if (link->cut) return Block(link, std::move(packet));
  const Weather& weather = WeatherOf(*link);
  if (rng_.Below(1000) < weather.loss_permille) {
    ++counters_.lost;
    return Leave(link, packet);
  }
  if (rng_.Below(1000) < weather.duplicate_permille && Admit(link, packet)) {
    ++counters_.duplicated;
    Transmit(link, packet, /*stray=*/true);
  }
  const bool reorder = rng_.Below(1000) < weather.reorder_permille;
  if (reorder) ++counters_.reordered;
  Transmit(link, std::move(packet), reorder);
}

// --- Faults ------------------------------------------------------------------------------------

void Network::CutOneWay(NodeId from, NodeId to) {
  HYDRA_CHECK(from != to);
  Link& link = LinkOf(from, to);
  if (link.cut) return;
  link.cut = true;
  ++counters_.cuts;
  scheduler_->Note({"cut", from, to, 0});
}

void Network::Cut(NodeId a, NodeId b) {
  CutOneWay(a, b);
  CutOneWay(b, a);
}

void Network::Partition(const std::vector<NodeId>& side) {
  const auto inside = [&](NodeId n) {
    return std::find(side.begin(), side.end(), n) != side.end();
  };
  for (const NodeId a : nodes_) {
    for (const NodeId b : nodes_) {
      if (inside(a) && !inside(b)) Cut(a, b);
    }
  }
}

void Network::IsolateOneWay(NodeId node, bool inbound) {
  for (const NodeId other : nodes_) {
    if (other != node) inbound ? CutOneWay(other, node) : CutOneWay(node, other);
  }
}

void Network::SetWeather(const Weather& weather) {
  HYDRA_CHECK(0 <= weather.delay_min && weather.delay_min <= weather.delay_max);
  options_.weather = weather;
}

void Network::SetWeather(NodeId from, NodeId to, const Weather& weather) {
  HYDRA_CHECK(0 <= weather.delay_min && weather.delay_min <= weather.delay_max);
  Link& link = LinkOf(from, to);
  link.own_weather = true;
  link.weather = weather;
  ++counters_.storms;
  scheduler_->Note({"weather", from, to, weather.loss_permille});
}

void Network::Slow(NodeId from, NodeId to, unsigned factor) {
  Weather weather = WeatherOf(LinkOf(from, to));
  weather.delay_min = options_.weather.delay_min * factor;
  weather.delay_max = options_.weather.delay_max * factor;
  SetWeather(from, to, weather);
}

std::string Network::Disturb() {
  HYDRA_CHECK(nodes_.size() >= 2);
  const NodeId a = AnyNode();
  NodeId b = AnyNode();
  while (b == a) b = AnyNode();
  switch (rng_.Below(8)) {
    case 0: Isolate(a); return fmt::format("isolate {}", a);
    case 1: IsolateOneWay(a, /*inbound=*/true); return fmt::format("{} hears nobody", a);
    case 2: IsolateOneWay(a, /*inbound=*/false); return fmt::format("nobody hears {}", a);
    case 3: Cut(a, b); return fmt::format("cut {} - {}", a, b);
    case 4: CutOneWay(a, b); return fmt::format("cut {} -> {}", a, b);
    case 5: {
      std::vector<NodeId> side = {a};  // and never b
      for (const NodeId n : nodes_) {
        if (n != a && n != b && rng_.Percent(50)) side.push_back(n);
      }
      Partition(side);
      return fmt::format("partition {}", fmt::join(side, ","));
    }
    case 6: {
      const auto factor = static_cast<unsigned>(rng_.Between(5, 200));
      Slow(a, b, factor);
      return fmt::format("slow {} -> {} by {}", a, b, factor);
    }
    default: {
      Weather weather = WeatherOf(LinkOf(a, b));
      weather.loss_permille = static_cast<unsigned>(rng_.Between(50, 700));
      weather.duplicate_permille = static_cast<unsigned>(rng_.Between(0, 300));
      weather.reorder_permille = static_cast<unsigned>(rng_.Between(0, 500));
      SetWeather(a, b, weather);
      return fmt::format("storm {} -> {}", a, b);
    }
  }
}

bool Network::connected(NodeId from, NodeId to) const {
  const auto link = links_.find({from, to});
  return link == links_.end() || !link->second.cut;
}

void Network::HealOneWay(NodeId from, NodeId to) {
  Link& link = LinkOf(from, to);
  link.own_weather = false;
  if (!link.cut) return;
  link.cut = false;
  scheduler_->Note({"heal", from, to, link.held.size()});
  std::deque<Packet> held = std::move(link.held);
  link.held.clear();
  for (Packet& packet : held) Transmit(&link, std::move(packet), /*stray=*/false);
}

void Network::Heal(const std::vector<NodeId>& nodes) {
  for (const NodeId a : nodes) {
    for (const NodeId b : nodes) HealOneWay(a, b);
  }
}

void Network::Calm() {
  const auto calm = [](Weather* weather) {
    weather->loss_permille = 0;
    weather->duplicate_permille = 0;
    weather->reorder_permille = 0;
  };
  calm(&options_.weather);
  for (auto& [ends, link] : links_) calm(&link.weather);
  scheduler_->Note({"calm"});
}

size_t Network::in_flight(NodeId from, NodeId to) const {
  const auto link = links_.find({from, to});
  return link == links_.end() ? 0 : link->second.packets;
}

// --- The way of a packet -------------------------------------------------------------------------

Network::Link& Network::LinkOf(NodeId from, NodeId to) { return links_[{from, to}]; }

bool Network::Admit(Link* link, const Packet& packet) {
  if (link->packets >= options_.max_packets || link->bytes + packet.bytes > options_.max_bytes) {
    ++counters_.overflowed;
    return false;
  }
  ++link->packets;
  link->bytes += packet.bytes;
  return true;
}

void Network::Leave(Link* link, const Packet& packet) {
  HYDRA_CHECK(link->packets > 0 && link->bytes >= packet.bytes);
  --link->packets;
  link->bytes -= packet.bytes;
}

void Network::Transmit(Link* link, Packet packet, bool stray) {
  const Weather& weather = WeatherOf(*link);
  const bool loopback = packet.from == packet.to;
  Nanos sent = scheduler_->now();
  if (weather.bytes_per_second != 0 && !loopback) {
    const __int128 takes = static_cast<__int128>(packet.bytes) * kSecond / weather.bytes_per_second;
    sent = std::max(sent, link->busy_until) + static_cast<Nanos>(takes);
    link->busy_until = sent;
  }
  Nanos arrival =
      sent + (loopback ? weather.delay_min : Draw(weather.delay_min, weather.delay_max));
  if (stray) {
    arrival += Draw(0, weather.stray_max);
  } else {
    arrival = std::max(arrival, link->last_arrival);
    link->last_arrival = arrival;
  }
  const Label label{"arrive", packet.to, packet.from, packet.fingerprint};
  scheduler_->At(arrival, label, [this, packet = std::move(packet)] { Arrive(packet); });
}

void Network::Arrive(const Packet& packet) {
  Link* link = &LinkOf(packet.from, packet.to);
  if (link->cut) return Block(link, packet);
  Leave(link, packet);
  Node& node = by_id_.at(packet.to);
  if (!node.up) {
    ++counters_.to_the_dead;
    return;
  }
  ++counters_.delivered;
  node.handler(packet);
}

void Network::Block(Link* link, Packet packet) {
  if (rng_.Percent(options_.hold_percent)) {
    ++counters_.held;
    link->held.push_back(std::move(packet));
    return;
  }
  ++counters_.blocked;
  Leave(link, packet);
}

Nanos Network::Draw(Nanos low, Nanos high) {
  return static_cast<Nanos>(rng_.Between(static_cast<uint64_t>(low), static_cast<uint64_t>(high)));
}

}  // namespace hydra::sim
