// SPDX-License-Identifier: Apache-2.0
#include "daemon/recovery_budget.h"

#include <algorithm>
#include <iterator>

namespace hydra {
namespace {

constexpr Nanos kWindow = 100 * kMillisecond;

}  // namespace

void RecoveryBudget::Tick(Nanos now, bool clients, uint64_t written) {
  if (rate_ == 0) return;
  if (ticked_ == 0) ticked_ = measured_ = now;
  if (clients || written > 0) clients_seen_ = now;
  written_ += written;
  if (now >= measured_ + kWindow) {
    const double seconds = static_cast<double>(now - measured_) / kSecond;
    writes_per_second_ = (3 * writes_per_second_ + static_cast<double>(written_) / seconds) / 4;
    measured_ = now;
    written_ = 0;
  }
  if (now >= last_sent_ + kOverAfter) sending_since_ = 0;
  rate_now_ = rate_;
  uint64_t owed_rate = rate_;
  if (clients_seen_ != 0 && now < clients_seen_ + kClientsGone) {
    std::erase_if(sent_at_, [&](const auto& peer) { return now >= peer.second + kSecond; });
    const double peers = std::max<double>(1, static_cast<double>(sent_at_.size()));
    const double beside = std::max<double>(kBesideClients, peers * writes_per_second_);
    rate_now_ = std::min(rate_, static_cast<uint64_t>(TimesClients(now) * beside));
    const double owed = std::max<double>(kBesideClients, TimesClients(now) * kOwedShare * beside);
    owed_rate = std::min(rate_, static_cast<uint64_t>(owed));
  }
  const double seconds = static_cast<double>(now - ticked_) / kSecond;
  ticked_ = now;
  // What may not wait is sent all the same, and nobody else pays for more than a moment of it.
  credit_ = std::max(credit_, -static_cast<double>(kBurst));
  credit_ = std::min<double>(kBurst, credit_ + static_cast<double>(rate_now_) * seconds);
  owed_credit_ = std::min<double>(kBurst, owed_credit_ + static_cast<double>(owed_rate) * seconds);
}

double RecoveryBudget::TimesClients(Nanos now) const {
  const Nanos since = sending_since_ == 0 ? 0 : now - sending_since_;
  const double minutes =
      static_cast<double>(std::max<Nanos>(0, since - kGentleFor)) / (60 * kSecond);
  return std::min(kTimesClients + kMoreEachMinute * minutes, kMostTimesClients);
}

void PayloadHistory::Add(Instance instance, uint64_t bytes) {
  if (marks_.empty() || instance >= marks_.back().first + kEvery) {
    marks_.emplace_back(instance, total_);
    if (marks_.size() > kMostMarks) marks_.pop_front();
  }
  total_ += bytes;
}

uint64_t PayloadHistory::Since(Instance instance) const {
  const auto after = std::upper_bound(marks_.begin(), marks_.end(), instance,
                                      [](Instance i, const auto& mark) { return i < mark.first; });
  if (after != marks_.begin()) return total_ - std::prev(after)->second;
  return marks_.empty() ? 0 : total_ - marks_.front().second;
}

}  // namespace hydra
