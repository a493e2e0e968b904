// SPDX-License-Identifier: Apache-2.0
#include "daemon/drill_report.h"

#include <algorithm>
#include <map>
#include <optional>

#include <fmt/format.h>

namespace hydra::drill {
namespace {

using history::History;
using history::kAbsent;
using history::Op;
using history::OpKind;
using history::Outcome;
using history::Value;

constexpr Nanos kFinestSlot = 100 * kMillisecond;
constexpr Nanos kMostSlots = 600;  // more would not be told apart on a page

bool IsChange(const Op& op) { return op.kind != OpKind::kRead && op.outcome == Outcome::kOk; }

Nanos Quantile(std::vector<Nanos>* sorted_later, double q) {
  std::vector<Nanos>& values = *sorted_later;
  if (values.empty()) return 0;
  const auto at = static_cast<size_t>(q * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(at), values.end());
  return values[at];
}

// Longest time within [begin, end] without one of `times` (sorted).
Nanos LongestWithout(const std::vector<Nanos>& times, Nanos begin, Nanos end) {
  Nanos longest = 0;
  Nanos since = begin;
  for (auto it = std::upper_bound(times.begin(), times.end(), begin);
       it != times.end() && *it < end; ++it) {
    longest = std::max(longest, *it - since);
    since = *it;
  }
  return std::max(longest, end - since);
}

void CountTotals(const History& history, Totals* totals) {
  std::vector<Nanos> latencies;
  for (const Op& op : history.ops()) {
    ++totals->operations;
    const bool deletes =
        op.kind == OpKind::kWrite && !op.accesses.empty() && op.accesses[0].value == kAbsent;
    switch (op.outcome) {
      case Outcome::kUnknown:
        ++(op.kind == OpKind::kRead ? totals->failed_reads : totals->unknown);
        continue;
      case Outcome::kRefused: ++totals->refused; continue;
      case Outcome::kMismatch: ++totals->mismatches; break;
      case Outcome::kOk:
        if (op.kind == OpKind::kRead) ++totals->reads;
        if (op.kind == OpKind::kCompareAndWrite) ++totals->compares;
        if (op.kind == OpKind::kWrite) ++(deletes ? totals->discards : totals->writes);
        break;
    }
    latencies.push_back(op.returned_at - op.invoked_at);
  }
  totals->p50 = Quantile(&latencies, 0.5);
  totals->p99 = Quantile(&latencies, 0.99);
  totals->max = Quantile(&latencies, 1);
}

void CutIntoSlots(const History& history, uint32_t final_client, Report* report) {
  const Nanos slots = std::max<Nanos>(1, (report->length + kFinestSlot - 1) / kFinestSlot);
  report->slot = kFinestSlot * ((slots + kMostSlots - 1) / kMostSlots);
  const auto count = static_cast<size_t>((report->length + report->slot - 1) / report->slot);
  report->slots.assign(std::max<size_t>(1, count), {});
  std::vector<std::vector<Nanos>> latencies(report->slots.size());
  for (const Op& op : history.ops()) {
    if (op.client == final_client || op.returned_at == 0) continue;
    const auto at =
        std::min(static_cast<size_t>(op.returned_at / report->slot), report->slots.size() - 1);
    Slot& slot = report->slots[at];
    if (op.outcome == Outcome::kUnknown || op.outcome == Outcome::kRefused) {
      ++slot.failed;
      continue;
    }
    ++(IsChange(op) ? slot.writes : slot.reads);
    latencies[at].push_back(op.returned_at - op.invoked_at);
  }
  for (size_t i = 0; i < latencies.size(); ++i) {
    report->slots[i].p50 = Quantile(&latencies[i], 0.5);
    report->slots[i].p99 = Quantile(&latencies[i], 0.99);
    report->slots[i].max = Quantile(&latencies[i], 1);
  }
}

// Those that were under way between the fault and `end`, whether they were answered or not.
void MeasureReads(const History& history, Nanos end, FaultRecord* fault) {
  const Nanos undone = fault->restored == 0 ? end : fault->restored;
  for (const Op& op : history.ops()) {
    if (op.kind != OpKind::kRead || op.returned_at <= fault->begin || op.invoked_at >= end) {
      continue;
    }
    fault->read_wait = std::max(fault->read_wait, op.returned_at - op.invoked_at);
    const bool answered = op.outcome == Outcome::kOk && op.invoked_at > fault->begin;
    if (answered && op.returned_at <= undone) ++fault->reads;
  }
}

}  // namespace

void Measure(const History& history, const std::function<uint32_t(history::Block)>& group_of,
             uint32_t final_client, Report* report) {
  CountTotals(history, &report->totals);
  CutIntoSlots(history, final_client, report);
  report->lost = FindLost(history, final_client);
  std::map<uint32_t, std::vector<Nanos>> acknowledged;
  for (const Op& op : history.ops()) {
    std::vector<Nanos>& times = acknowledged[group_of(op.accesses.front().block)];
    if (IsChange(op)) times.push_back(op.returned_at);
  }
  for (auto& [group, times] : acknowledged) std::sort(times.begin(), times.end());
  const Nanos calm = report->faults.empty() ? report->length : report->faults.front().begin;
  for (const auto& [group, times] : acknowledged) {
    if (times.empty()) continue;
    report->calm_gap = std::max(report->calm_gap, LongestWithout(times, times.front(), calm));
  }
  for (size_t i = 0; i < report->faults.size(); ++i) {
    FaultRecord& fault = report->faults[i];
    const Nanos end = i + 1 < report->faults.size() ? report->faults[i + 1].begin : report->length;
    MeasureReads(history, end, &fault);
    for (const auto& [group, times] : acknowledged) {
      const Nanos gap = LongestWithout(times, fault.begin, end);
      if (gap <= fault.gap) continue;
      fault.gap = gap;
      fault.gap_group = group;
    }
  }
}

std::vector<std::string> FindLost(const History& history, uint32_t final_client) {
  struct Last {
    const Op* write = nullptr;  // acknowledged, the one invoked last
    Value value = kAbsent;
    uint64_t delete_returned = 0;  // latest; kNever: one may still come
  };
  std::map<history::Block, Last> blocks;
  std::map<std::pair<history::Block, Value>, const Op*> writers;
  for (const Op& op : history.ops()) {
    if (op.kind == OpKind::kRead || op.outcome == Outcome::kRefused ||
        op.outcome == Outcome::kMismatch) {
      continue;
    }
    for (const history::Access& access : op.accesses) {
      Last& last = blocks[access.block];
      if (access.value == kAbsent) {
        last.delete_returned = std::max(last.delete_returned, op.returned);
      } else {
        writers[{access.block, access.value}] = &op;
      }
      if (op.outcome != Outcome::kOk) continue;
      if (last.write == nullptr || op.invoked > last.write->invoked) {
        last.write = &op;
        last.value = access.value;
      }
    }
  }
  std::vector<std::string> lost;
  for (const Op& op : history.ops()) {
    if (op.client != final_client || op.kind != OpKind::kRead || op.outcome != Outcome::kOk) {
      continue;
    }
    for (const history::Access& access : op.accesses) {
      const auto found = blocks.find(access.block);
      if (found == blocks.end() || found->second.write == nullptr) continue;
      const Last& last = found->second;
      if (access.value == last.value) continue;
      // When what is there was there already, before the last acknowledged write began.
      uint64_t returned = last.delete_returned;
      if (access.value != kAbsent) {
        const auto writer = writers.find({access.block, access.value});
        if (writer == writers.end()) continue;  // the checker has more to say about that
        returned = writer->second->returned;
      }
      if (returned >= last.write->invoked) continue;
      lost.push_back(fmt::format("block {}: {} was acknowledged, and value {} is there",
                                 access.block, last.write->ToString(), access.value));
    }
  }
  return lost;
}

// --- The verdict --------------------------------------------------------------------------------

std::string TimeText(Nanos time) {
  if (time < 10 * kMillisecond) {
    return fmt::format("{:.1f} ms", static_cast<double>(time) / kMillisecond);
  }
  if (time < kSecond) return fmt::format("{} ms", time / kMillisecond);
  if (time < 100 * kSecond) return fmt::format("{:.1f} s", static_cast<double>(time) / kSecond);
  return fmt::format("{} min {} s", time / (60 * kSecond), time / kSecond % 60);
}

size_t Report::NewMasters() const {
  return static_cast<size_t>(std::count_if(
      changes.begin(), changes.end(), [](const MasterChange& change) { return change.to != 0; }));
}

Nanos Report::WorstGap() const {
  Nanos worst = 0;
  for (const FaultRecord& fault : faults) {
    if (!fault.writes_stop) worst = std::max(worst, fault.gap);
  }
  return worst;
}

Nanos Report::MedianGap() const {
  std::vector<Nanos> gaps;
  for (const FaultRecord& fault : faults) gaps.push_back(fault.gap);
  if (gaps.empty()) return 0;
  std::sort(gaps.begin(), gaps.end());
  return (gaps[(gaps.size() - 1) / 2] + gaps[gaps.size() / 2]) / 2;
}

Nanos Report::WorstReadWait() const {
  Nanos worst = 0;
  for (const FaultRecord& fault : faults) worst = std::max(worst, fault.read_wait);
  return worst;
}

Nanos Report::WorstRecovery() const {
  Nanos worst = 0;
  for (const FaultRecord& fault : faults) {
    if (fault.healthy == 0) return 0;
    worst = std::max(worst, fault.healthy - fault.begin);
  }
  return worst;
}

std::vector<std::string> Report::Problems() const {
  std::vector<std::string> problems;
  if (!lost.empty())
    problems.push_back(fmt::format("acknowledged writes of {} blocks are lost", lost.size()));
  if (!damage.empty()) {
    problems.push_back(fmt::format("{} blocks held what nobody wrote", damage.size()));
  }
  if (!check.ok) problems.emplace_back("the history is not linearizable");
  if (check.undecided > 0) {
    problems.push_back(fmt::format("{} searches of the check were not finished", check.undecided));
  }
  if (!broken_off.empty()) problems.push_back(broken_off);
  if (faults.empty()) problems.emplace_back("no fault was injected");
  if (totals.writes == 0) problems.emplace_back("no write was acknowledged");
  if (max_gap > 0 && WorstGap() > max_gap) {
    problems.push_back(fmt::format("writes paused for {}, longer than {}", TimeText(WorstGap()),
                                   TimeText(max_gap)));
  }
  if (told_damaged > 0) {
    problems.push_back(
        fmt::format("{} operations were told that their blocks are damaged", told_damaged));
  }
  if (max_gap > 0 && WorstReadWait() > max_gap) {
    problems.push_back(fmt::format("a read waited for {}, longer than {}",
                                   TimeText(WorstReadWait()), TimeText(max_gap)));
  } else if (max_gap > 0 && totals.failed_reads > 0) {
    problems.push_back(fmt::format("{} reads were not answered", totals.failed_reads));
  }
  if (errors_fail && max_gap > 0 && totals.refused + totals.unknown > 0) {
    problems.push_back(fmt::format("clients saw errors: {} writes refused, {} of unknown outcome",
                                   totals.refused, totals.unknown));
  }
  for (const FaultRecord& fault : faults) {
    if (!fault.writes_stop || fault.restored == 0 || fault.reads > 0) continue;
    problems.push_back(fmt::format("no read was answered: {}", fault.what));
  }
  return problems;
}

std::string Report::Verdict() const {
  const std::vector<std::string> problems = Problems();
  if (problems.empty()) {
    return fmt::format(
        "PASSED: {} fault{}, longest write gap {}, nothing lost, {} operations linearizable",
        faults.size(), faults.size() == 1 ? "" : "s", TimeText(WorstGap()), check.operations);
  }
  return fmt::format("FAILED: {}", fmt::join(problems, "; "));
}

}  // namespace hydra::drill
