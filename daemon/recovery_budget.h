// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <utility>

#include "base/clock.h"
#include "base/ids.h"

namespace hydra {

// What a node sends to replicas that are behind, over all groups: how much may be on its way to
// each peer, read or being read and not sent, and how much in a second. Pure; owned by NodeCore.
//
// Recovery yields to clients: while they are at work it may send as much as they write, to each
// node that is behind. Most of what they write they write again, so that a node comes nearer all
// the same; one that does not within two minutes is sent more and more, up to twice as much.
class RecoveryBudget {
 public:
  enum class Kind : uint8_t { kLog, kDelta, kImage, kOwed };

  static constexpr uint64_t kBytesPerPeer = 4u << 20;
  static constexpr uint64_t kBesideClients = 8u << 20;  // per second, at least
  static constexpr double kTimesClients = 1;
  static constexpr double kOwedShare = 0.5;           // of that, for owed blocks
  static constexpr unsigned kMostAsking = 32;         // groups, for owed blocks, at a time
  static constexpr double kMoreEachMinute = 0.25;     // of what they write ...
  static constexpr Nanos kGentleFor = 120 * kSecond;  // ... after so long
  static constexpr double kMostTimesClients = 2;
  static constexpr Nanos kOverAfter = 30 * kSecond;  // without anything sent
  static constexpr Nanos kClientsGone = kSecond;     // so long after the last of them
  static constexpr uint64_t kBurst = 4u << 20;

  // Bytes per second; 0: no limit.
  explicit RecoveryBudget(uint64_t rate) : rate_(rate) {}

  // What may be on its way to a peer. Something is always allowed.
  bool Take(NodeId peer, uint64_t bytes) {
    uint64_t& taken = taken_[peer];
    if (taken > 0 && taken + bytes > kBytesPerPeer) return false;
    taken += bytes;
    return true;
  }
  void Return(NodeId peer, uint64_t bytes) { taken_[peer] -= bytes; }

  // Since the last call: whether clients asked for something, and what they wrote to the groups
  // that this node leads, in bytes. (Who leads others sends to their replicas.)
  void Tick(Nanos now, bool clients, uint64_t written);
  bool MaySend() const { return rate_ == 0 || credit_ > 0; }
  // What is about to be read and sent; then what it really was.
  void Spend(NodeId peer, uint64_t bytes) {
    credit_ -= static_cast<double>(bytes);
    sent_at_[peer] = ticked_;
    if (sending_since_ == 0) sending_since_ = ticked_;
    last_sent_ = ticked_;
  }
  void Settle(uint64_t spent, uint64_t sent, Kind kind) {
    credit_ += static_cast<double>(spent) - static_cast<double>(sent);
    sent_[static_cast<size_t>(kind)] += sent;
  }

  // The same for owed blocks, which nobody waits for: whoever is owed some takes part in what is
  // new meanwhile, so that less would do as well, and only take longer.
  bool MaySendOwed() const { return rate_ == 0 || (owed_credit_ > 0 && credit_ > 0); }
  void SpendOwed(NodeId peer, uint64_t bytes) {
    owed_credit_ -= static_cast<double>(bytes);
    Spend(peer, bytes);
  }
  void SettleOwed(uint64_t spent, uint64_t sent) {
    owed_credit_ += static_cast<double>(spent) - static_cast<double>(sent);
    Settle(spent, sent, Kind::kOwed);
  }

  // Groups that are being sent owed blocks, or hold what they were sent and wait to write it: all
  // of them together take from the memory in which peers are heard.
  bool BeginAsking() {
    if (asking_ == kMostAsking) return false;
    ++asking_;
    return true;
  }
  void EndAsking() { --asking_; }

  uint64_t rate_now() const { return rate_now_; }
  uint64_t sent(Kind kind) const { return sent_[static_cast<size_t>(kind)]; }

 private:
  double TimesClients(Nanos now) const;

  const uint64_t rate_;
  uint64_t rate_now_ = 0;
  double credit_ = kBurst;
  Nanos ticked_ = 0;
  Nanos clients_seen_ = 0;
  Nanos measured_ = 0;
  uint64_t written_ = 0;          // since then
  double writes_per_second_ = 0;  // bytes
  std::map<NodeId, uint64_t> taken_;
  std::map<NodeId, Nanos> sent_at_;  // to whom, when last
  Nanos sending_since_ = 0;          // 0: nobody is behind
  Nanos last_sent_ = 0;
  uint64_t sent_[4] = {};
  double owed_credit_ = kBurst;
  unsigned asking_ = 0;
};

// About how much payload the entries of a log above an instance have, without reading them.
class PayloadHistory {
 public:
  void Add(Instance instance, uint64_t bytes);
  // As far back as it is known: what was applied before this process is not.
  uint64_t Since(Instance instance) const;
  bool Knows(Instance instance) const {
    return !marks_.empty() && marks_.front().first <= instance + 1;
  }

 private:
  static constexpr Instance kEvery = 64;
  static constexpr size_t kMostMarks = 2048;

  uint64_t total_ = 0;
  std::deque<std::pair<Instance, uint64_t>> marks_;  // the total when an instance was applied
};

}  // namespace hydra
