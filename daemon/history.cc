// SPDX-License-Identifier: Apache-2.0
#include "daemon/history.h"

#include <utility>

#include <fmt/format.h>

#include "base/check.h"

namespace hydra::history {
namespace {

std::string Name(Value value) { return value == kAbsent ? "absent" : fmt::to_string(value); }

std::string Seconds(Nanos time) { return fmt::format("{}.{:09}", time / kSecond, time % kSecond); }

const char* OutcomeName(Outcome outcome) {
  switch (outcome) {
    case Outcome::kUnknown: return "unknown";
    case Outcome::kOk: return "ok";
    case Outcome::kMismatch: return "mismatch";
    case Outcome::kRefused: return "refused";
  }
  return "?";
}

}  // namespace

std::string Op::ToString() const {
  std::string text = fmt::format("#{} client {} [{} .. {}] ", id, client, Seconds(invoked_at),
                                 returned == kNever ? "?" : Seconds(returned_at));
  static constexpr const char* kNames[] = {"read", "write", "compare-and-write"};
  text += kNames[static_cast<int>(kind)];
  for (const Access& a : accesses) {
    text += fmt::format(" {}", a.block);
    if (kind == OpKind::kCompareAndWrite) text += fmt::format(":{}", Name(a.expected));
    if (kind != OpKind::kRead) text += fmt::format("<-{}", Name(a.value));
    if (kind == OpKind::kRead && outcome == Outcome::kOk) text += fmt::format("={}", Name(a.value));
  }
  text += fmt::format(": {}", OutcomeName(outcome));
  for (const Value value : found) text += fmt::format(" {}", Name(value));
  return text;
}

History::OpId History::Read(uint32_t client, const std::vector<Block>& blocks, Nanos now) {
  std::vector<Access> accesses;
  for (const Block block : blocks) accesses.push_back({.block = block});
  return Invoke(client, OpKind::kRead, std::move(accesses), now);
}

History::OpId History::Write(uint32_t client, std::vector<Access> accesses, Nanos now) {
  return Invoke(client, OpKind::kWrite, std::move(accesses), now);
}

History::OpId History::Delete(uint32_t client, const std::vector<Block>& blocks, Nanos now) {
  std::vector<Access> accesses;
  for (const Block block : blocks) accesses.push_back({.block = block});
  return Invoke(client, OpKind::kWrite, std::move(accesses), now);
}

History::OpId History::CompareAndWrite(uint32_t client, std::vector<Access> accesses, Nanos now) {
  return Invoke(client, OpKind::kCompareAndWrite, std::move(accesses), now);
}

void History::Ok(OpId id, Nanos now) {
  const Op& op = Return(id, Outcome::kOk, now);
  HYDRA_CHECK(op.kind != OpKind::kRead);
}

void History::ReadOk(OpId id, const std::vector<Value>& values, Nanos now) {
  Op& op = Return(id, Outcome::kOk, now);
  HYDRA_CHECK(op.kind == OpKind::kRead && values.size() == op.accesses.size());
  for (size_t i = 0; i < values.size(); ++i) op.accesses[i].value = values[i];
}

void History::Mismatch(OpId id, Nanos now, std::vector<Value> found) {
  Op& op = Return(id, Outcome::kMismatch, now);
  HYDRA_CHECK(op.kind == OpKind::kCompareAndWrite);
  HYDRA_CHECK(found.empty() || found.size() == op.accesses.size());
  op.found = std::move(found);
}

void History::Refused(OpId id, Nanos now) { Return(id, Outcome::kRefused, now); }

void History::Unknown(OpId id, Nanos now) {
  // It may still take effect, so it has no return.
  Return(id, Outcome::kUnknown, now).returned = Op::kNever;
}

History::OpId History::Invoke(uint32_t client, OpKind kind, std::vector<Access> accesses,
                              Nanos now) {
  HYDRA_CHECK(!accesses.empty());
  Op op;
  op.id = ops_.size();
  op.client = client;
  op.kind = kind;
  op.accesses = std::move(accesses);
  op.invoked = ++position_;
  op.invoked_at = now;
  ops_.push_back(std::move(op));
  ++open_;
  return ops_.back().id;
}

Op& History::Return(OpId id, Outcome outcome, Nanos now) {
  Op& op = ops_.at(id);
  HYDRA_CHECK(op.returned == Op::kNever && now >= op.invoked_at);
  op.outcome = outcome;
  op.returned = ++position_;
  op.returned_at = now;
  HYDRA_CHECK(open_ > 0);
  --open_;
  return op;
}

}  // namespace hydra::history
