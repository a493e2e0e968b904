// SPDX-License-Identifier: Apache-2.0
//
// SessionTable against a model that keeps everything for ever, and so knows what was ever executed.
// Two tables run beside it: one is encoded and decoded now and then, the other never is, and their
// bytes must stay the same.
#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include "base/check.h"
#include "base/coding.h"
#include "base/rng.h"
#include "daemon/session_table.h"

namespace hydra {
namespace {

enum class What { kOpen, kClose, kTouch, kAdvance, kRequest, kCancel, kFence, kRestore };

struct Step {
  What what = What::kRequest;
  size_t session = 0;  // index into all ever opened; beyond: an id that never was
  uint64_t seq = 0;
  uint64_t lowest = 0;
  uint64_t epoch = 0;
  Nanos time = 0;  // advance: interval; open: time-out
};

std::ostream& operator<<(std::ostream& out, const Step& step) {
  return out << "{" << static_cast<int>(step.what) << " session " << step.session << " seq "
             << step.seq << " lowest " << step.lowest << " epoch " << step.epoch << " time "
             << step.time << "}";
}

// The rules of session_table.h, written the slow way.
class SessionModel {
 public:
  std::optional<Instance> Open(Instance at, Nanos timeout) {
    if (Live() >= SessionTable::kMaxSessions) {
      Instance oldest = 0;
      for (const auto& [id, session] : sessions_) {
        if (!session.live) continue;
        if (oldest == 0 || session.last_used < sessions_[oldest].last_used) oldest = id;
      }
      if (now - sessions_[oldest].last_used < SessionTable::kEvictableAfter) return std::nullopt;
      sessions_[oldest].live = false;
    }
    sessions_[at] = {
        true, std::min(std::max(timeout, kSecond), SessionTable::kMaxTimeout), now, 1, {}};
    return at;
  }

  bool Close(Instance id) {
    const bool was = Has(id);
    if (was) sessions_[id].live = false;
    return was;
  }

  bool Touch(Instance id, uint64_t lowest) {
    if (!Has(id)) return false;
    sessions_[id].last_used = now;
    sessions_[id].lowest = std::max(sessions_[id].lowest, lowest);
    return true;
  }

  size_t Advance(Nanos interval) {
    now += interval;
    size_t expired = 0;
    for (auto& [id, session] : sessions_) {
      if (!session.live || now - session.last_used <= session.timeout) continue;
      session.live = false;
      ++expired;
    }
    return expired;
  }

  Decision Decide(const RequestId& request) {
    if (!Touch(request.session, request.lowest_unanswered)) return Decision::kExpired;
    Session& session = sessions_[request.session];
    if (request.seq < session.lowest) return Decision::kForgotten;
    if (const auto found = session.slots.find(request.seq); found != session.slots.end()) {
      return found->second ? Decision::kRepeat : Decision::kCancelled;
    }
    if (request.epoch < fence) return Decision::kFenced;
    return HasRoom(session) ? Decision::kExecute : Decision::kWindowFull;
  }

  CancelResult Cancel(Instance id, uint64_t seq, uint64_t lowest) {
    if (!Touch(id, lowest)) return CancelResult::kExpired;
    Session& session = sessions_[id];
    if (seq < session.lowest) return CancelResult::kForgotten;
    if (const auto found = session.slots.find(seq); found != session.slots.end()) {
      return found->second ? CancelResult::kExecuted : CancelResult::kCancelled;
    }
    if (!HasRoom(session)) return CancelResult::kWindowFull;
    session.slots[seq] = std::nullopt;
    return CancelResult::kCancelled;
  }

  void Finish(Instance id, uint64_t seq, const Outcome& outcome) {
    sessions_[id].slots[seq] = outcome;
  }
  const Outcome& First(Instance id, uint64_t seq) { return *sessions_[id].slots[seq]; }

  size_t Live() const {
    return static_cast<size_t>(std::count_if(sessions_.begin(), sessions_.end(),
                                             [](const auto& s) { return s.second.live; }));
  }

  size_t Outcomes() const {
    size_t total = 0;
    for (const auto& [id, session] : sessions_) total += session.live ? Held(session) : 0;
    return total;
  }

  Nanos now = 0;
  uint64_t fence = 0;

 private:
  struct Session {
    bool live = false;
    Nanos timeout = 0;
    Nanos last_used = 0;
    uint64_t lowest = 1;
    std::map<uint64_t, std::optional<Outcome>> slots;  // none: cancelled
  };

  bool Has(Instance id) const {
    const auto found = sessions_.find(id);
    return found != sessions_.end() && found->second.live;
  }

  static size_t Held(const Session& session) {
    return static_cast<size_t>(
        std::distance(session.slots.lower_bound(session.lowest), session.slots.end()));
  }

  bool HasRoom(const Session& session) const {
    size_t shared = 0;
    for (const auto& [id, other] : sessions_) {
      const size_t held = other.live ? Held(other) : 0;
      shared += held - std::min(held, SessionTable::kGuaranteedOutcomes);
    }
    const size_t held = Held(session);
    return held < SessionTable::kGuaranteedOutcomes ||
           (held < SessionTable::kMaxOutcomes && shared < SessionTable::kSharedOutcomes);
  }

  std::map<Instance, Session> sessions_;
};

// Runs steps on the model and both tables and compares everything that can be seen.
class Trial {
 public:
  // What differs, or nothing.
  std::string Apply(const Step& step) {
    ++instance_;
    std::string problem;
    switch (step.what) {
      case What::kOpen: problem = Open(step.time); break;
      case What::kClose: {
        const Instance id = IdOf(step);
        problem = Same(model_.Close(id), table_.Close(id), twin_.Close(id), "close");
        break;
      }
      case What::kTouch: {
        const Instance id = IdOf(step);
        problem = Same(model_.Touch(id, step.lowest), table_.Touch(id, step.lowest),
                       twin_.Touch(id, step.lowest), "touch");
        break;
      }
      case What::kAdvance:
        problem = Same(model_.Advance(step.time), table_.Advance(step.time),
                       twin_.Advance(step.time), "advance");
        break;
      case What::kRequest:
        problem = Request({IdOf(step), step.seq, step.lowest, step.epoch});
        break;
      case What::kCancel: problem = Cancel(IdOf(step), step.seq, step.lowest); break;
      case What::kFence: {
        const bool stands = step.epoch >= model_.fence;
        model_.fence = std::max(model_.fence, step.epoch);
        problem = Same(stands, table_.SetFence(step.epoch), twin_.SetFence(step.epoch), "fence");
        break;
      }
      case What::kRestore: problem = Restore(); break;
    }
    if (table_.now() != model_.now || table_.fence() != model_.fence) problem += " time or fence";
    if (table_.sessions() != model_.Live()) problem += " number of sessions";
    if (table_.outcomes() != model_.Outcomes()) problem += " number of outcomes";
    return problem;
  }

  std::string Restore() {
    const std::string bytes = table_.Encode();
    if (bytes != twin_.Encode() || table_.Digest() != twin_.Digest()) return "the twins differ";
    Result<SessionTable> back = SessionTable::Decode(AsBytes(bytes));
    if (!back.ok()) return back.status().ToString();
    if (back->Encode() != bytes) return "encodes differently after decoding";
    table_ = std::move(*back);
    return "";
  }

  size_t opened() const { return ids_.size(); }
  size_t executed() const { return executed_.size(); }
  size_t seen(Decision decision) const { return seen_[static_cast<size_t>(decision)]; }
  const SessionTable& table() const { return table_; }

 private:
  template <typename T>
  static std::string Same(T model, T table, T twin, const char* what) {
    return model == table && table == twin ? "" : std::string("different answers to ") + what;
  }

  Instance IdOf(const Step& step) const {
    return step.session < ids_.size() ? ids_[step.session] : kMaxInstance - step.session;
  }

  std::string Open(Nanos timeout) {
    const std::optional<Instance> expected = model_.Open(instance_, timeout);
    const Result<Instance> opened = table_.Open(instance_, timeout);
    const Result<Instance> twin = twin_.Open(instance_, timeout);
    if (opened.ok()) ids_.push_back(*opened);
    if (!opened.ok() && opened.status().code() != Code::kBusy) return opened.status().ToString();
    return Same(expected.has_value(), opened.ok(), twin.ok(), "open");
  }

  std::string Request(const RequestId& request) {
    const std::string before = table_.Encode();
    const Decision look = table_.Look(request).decision;
    if (table_.Encode() != before) return "looking changes the table";
    const Decision expected = model_.Decide(request);
    const Verdict verdict = table_.Begin(request);
    const Verdict twin = twin_.Begin(request);
    if (look != expected || verdict.decision != expected || twin.decision != expected) {
      return "decisions differ";
    }
    ++seen_[static_cast<size_t>(expected)];
    if (expected == Decision::kRepeat &&
        (*verdict.first != model_.First(request.session, request.seq) ||
         *twin.first != *verdict.first)) {
      return "not the first outcome";
    }
    if (expected != Decision::kExecute) return "";
    const std::pair<Instance, uint64_t> key{request.session, request.seq};
    if (!executed_.insert(key).second) return "executed twice";
    if (cancelled_.contains(key)) return "executed although cancelled";
    const Outcome outcome{request.seq % 3 ? Code::kOk : Code::kNoSpace, MakeVersion(instance_, 3),
                          std::string(instance_ % 20, 'd')};
    model_.Finish(request.session, request.seq, outcome);
    table_.Finish(request.session, request.seq, outcome);
    twin_.Finish(request.session, request.seq, outcome);
    return "";
  }

  std::string Cancel(Instance id, uint64_t seq, uint64_t lowest) {
    const CancelResult expected = model_.Cancel(id, seq, lowest);
    const CancelVerdict verdict = table_.Cancel(id, seq, lowest);
    const CancelVerdict twin = twin_.Cancel(id, seq, lowest);
    if (expected == CancelResult::kCancelled) cancelled_.insert({id, seq});
    if ((expected == CancelResult::kExecuted) != (verdict.first != nullptr) ||
        (verdict.first != nullptr && *verdict.first != model_.First(id, seq))) {
      return "not the first outcome";
    }
    return Same(expected, verdict.result, twin.result, "cancel");
  }

  SessionModel model_;
  SessionTable table_;
  SessionTable twin_;
  Instance instance_ = 0;
  std::vector<Instance> ids_;
  std::set<std::pair<Instance, uint64_t>> executed_;
  std::set<std::pair<Instance, uint64_t>> cancelled_;
  size_t seen_[7] = {};
};

rc::Gen<Step> AnyStep() {
  return rc::gen::map(
      rc::gen::tuple(rc::gen::inRange(0, 24), rc::gen::inRange<size_t>(0, 4),
                     rc::gen::inRange<uint64_t>(0, 10), rc::gen::inRange<uint64_t>(0, 12),
                     rc::gen::inRange<uint64_t>(0, 4), rc::gen::inRange<Nanos>(0, 5)),
      [](const std::tuple<int, size_t, uint64_t, uint64_t, uint64_t, Nanos>& t) {
        // Requests are half of all; sequences and acknowledgements lie close together.
        constexpr What kOthers[] = {What::kOpen,   What::kOpen,    What::kOpen,    What::kClose,
                                    What::kTouch,  What::kAdvance, What::kAdvance, What::kCancel,
                                    What::kCancel, What::kFence,   What::kRestore, What::kRestore};
        const auto& [what, session, seq, behind, epoch, seconds] = t;
        Step step;
        step.what = what < 12 ? kOthers[what] : What::kRequest;
        step.session = session;
        step.seq = seq;
        step.lowest = behind > 10 ? seq + 1 : seq - std::min(seq, behind);
        step.epoch = step.what == What::kFence ? epoch / 2 : epoch;
        step.time = seconds * kSecond;
        return step;
      });
}

RC_GTEST_PROP(SessionModel, TheTableDoesWhatTheModelDoes, ()) {
  const auto steps = *rc::gen::scale(8, rc::gen::container<std::vector<Step>>(AnyStep()));
  Trial run;
  for (const Nanos timeout : {4 * kSecond, 7 * kSecond}) {
    RC_ASSERT(run.Apply({What::kOpen, 0, 0, 0, 0, timeout}) == "");
  }
  for (const Step& step : steps) RC_ASSERT(run.Apply(step) == "");
  RC_ASSERT(run.Restore() == "");
  RC_CLASSIFY(run.seen(Decision::kRepeat) > 0, "repeats");
  RC_CLASSIFY(run.seen(Decision::kCancelled) > 0, "cancelled");
  RC_CLASSIFY(run.seen(Decision::kFenced) > 0, "fenced");
}

// A long run with few sessions and windows that are often full; every decision must occur.
TEST(SessionModel, FullWindowsBehaveAsInTheModel) {
  Rng rng(1);
  Trial run;
  uint64_t next = 1;
  for (int i = 0; i < 3; ++i) ASSERT_EQ(run.Apply({What::kOpen, 0, 0, 0, 0, 900 * kSecond}), "");
  for (int i = 0; i < 6'000; ++i) {
    Step step;
    step.session = rng.Below(run.opened());
    // Mostly new requests; acknowledged by a third of the window now and then.
    step.seq = rng.Percent(85) ? next++ : rng.Between(1, next);
    step.lowest = rng.Below(1'500) == 0 ? next - std::min<uint64_t>(next - 1, 700) : 1;
    step.epoch = rng.Percent(98) ? 1 : 0;
    if (rng.Percent(2)) step.what = What::kCancel;
    if (i == 3'000) step = {What::kFence, 0, 0, 0, 1, 0};
    if (rng.Below(800) == 0) step = {What::kClose, rng.Below(run.opened()), 0, 0, 0, 0};
    if (rng.Below(1'500) == 0) step = {What::kOpen, 0, 0, 0, 0, 900 * kSecond};
    if (rng.Below(300) == 0) step = {What::kRestore};
    ASSERT_EQ(run.Apply(step), "") << "step " << i;
  }
  for (const Decision decision :
       {Decision::kExecute, Decision::kRepeat, Decision::kExpired, Decision::kForgotten,
        Decision::kCancelled, Decision::kFenced, Decision::kWindowFull}) {
    EXPECT_GT(run.seen(decision), 0u) << static_cast<int>(decision);
  }
}

// More sessions than there is room for: eviction, refusal and expiry.
TEST(SessionModel, AFullTableBehavesAsInTheModel) {
  Rng rng(2);
  Trial run;
  for (size_t i = 0; i < SessionTable::kMaxSessions; ++i) {
    ASSERT_EQ(run.Apply({What::kOpen, 0, 0, 0, 0, static_cast<Nanos>(20 + i % 9) * kSecond}), "");
  }
  ASSERT_EQ(run.table().sessions(), SessionTable::kMaxSessions);
  for (int i = 0; i < 1'500; ++i) {
    Step step{What::kTouch, rng.Below(run.opened()), 0, 1, 0, 0};
    const uint64_t what = rng.Below(10);
    if (what < 3) step = {What::kOpen, 0, 0, 0, 0, 25 * kSecond};
    if (what == 3) step = {What::kAdvance, 0, 0, 0, 0, static_cast<Nanos>(rng.Below(kSecond / 2))};
    if (what == 4 && rng.Percent(5)) step = {What::kRestore};
    if (what == 5 && rng.Percent(10)) step.what = What::kClose;
    ASSERT_EQ(run.Apply(step), "") << "step " << i;
  }
  EXPECT_GT(run.opened(), SessionTable::kMaxSessions);
}

}  // namespace
}  // namespace hydra
