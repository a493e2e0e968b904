// SPDX-License-Identifier: Apache-2.0
//
// Fuzzes what reads replicated bytes in the shard: session tables and the contexts of operations.
// What a decoder takes must encode to the same bytes, and a table it takes must be one that goes on
// working: requests run on it as the input says, and never twice.
//
// The input: u8 what. 0: a context. 1: an entry of operations, each u8 kind, u8 n, n bytes of
// context. 2: u8 n, n steps of 4 bytes, then a table to run them on.
#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/coding.h"
#include "daemon/operation.h"
#include "daemon/session_table.h"

namespace {

using namespace hydra;  // NOLINT: a program of its own

constexpr uint8_t kWhats = 3;
constexpr size_t kStepBytes = 4;
constexpr size_t kMaxOperations = 64;

bool SameBytes(std::span<const uint8_t> bytes, const std::string& encoded) {
  return std::string(bytes.begin(), bytes.end()) == encoded;
}

void FuzzContext(std::span<const uint8_t> bytes) {
  const Result<RequestContext> context = DecodeContext(bytes);
  if (!context.ok() || bytes.empty()) return;
  HYDRA_CHECK(SameBytes(bytes, EncodeContext(*context)));
}

void FuzzEntry(std::span<const uint8_t> bytes) {
  Decoder in(bytes);
  Entry entry;
  uint8_t kind = 0;
  uint8_t length = 0;
  std::span<const uint8_t> context;
  while (entry.operations.size() < kMaxOperations && in.U8(&kind) && in.U8(&length) &&
         in.Bytes(length, &context)) {
    Operation op;
    op.kind = static_cast<OpKind>(kind);
    op.context.assign(context.begin(), context.end());
    entry.operations.push_back(std::move(op));
  }
  const Result<DecodedEntry> decoded = DecodeEntry(entry);
  if (!decoded.ok()) return;
  HYDRA_CHECK(decoded->requests.size() == entry.operations.size());
  for (size_t i = 0; i < entry.operations.size(); ++i) {
    HYDRA_CHECK(ValidateContext(decoded->requests[i], entry.operations[i]).ok());
    if (IsMutation(decoded->requests[i].kind)) (void)OutcomeOf(decoded->requests[i], 9, i);
  }
}

// One step: which of the first ids, which sequence near the lowest, what.
void RunStep(std::span<const uint8_t> step, Instance* next,
             std::set<std::pair<Instance, uint64_t>>* executed, SessionTable* table) {
  const Instance id = step[1];
  const uint64_t seq = step[2];
  const uint64_t lowest = step[3];
  switch (step[0] % 8) {
    case 0:
      if (*next <= kMaxInstance && table->Open((*next)++, lowest * kSecond).ok()) {
        HYDRA_CHECK(table->sessions() <= SessionTable::kMaxSessions);
      }
      break;
    case 1: (void)table->Close(id); break;
    case 2: (void)table->Advance(static_cast<Nanos>(seq) * kSecond); break;
    case 3: (void)table->Cancel(id, seq, lowest); break;
    case 4: (void)table->SetFence(seq); break;
    case 5: (void)table->Touch(id, lowest); break;
    default: {
      const RequestId request{id, seq, lowest, table->fence()};
      const Decision look = table->Look(request).decision;
      const Verdict verdict = table->Begin(request);
      HYDRA_CHECK(verdict.decision == look && look != Decision::kFenced);
      HYDRA_CHECK((verdict.first != nullptr) == (look == Decision::kRepeat));
      if (look != Decision::kExecute) return;
      HYDRA_CHECK(executed->insert({id, seq}).second);
      table->Finish(id, seq, {Code::kOk, seq, "done"});
      HYDRA_CHECK(table->Look(request).decision == Decision::kRepeat);
    }
  }
}

void FuzzTable(std::span<const uint8_t> bytes) {
  Decoder in(bytes);
  uint8_t count = 0;
  std::span<const uint8_t> steps;
  if (!in.U8(&count) || !in.Bytes(count * kStepBytes, &steps)) return;
  const std::span<const uint8_t> encoded = bytes.subspan(in.position());
  Result<SessionTable> table = SessionTable::Decode(encoded);
  if (!table.ok()) return;
  HYDRA_CHECK(SameBytes(encoded, table->Encode()));
  std::set<std::pair<Instance, uint64_t>> executed;
  Instance next = 200;
  for (size_t i = 0; i < count; ++i) {
    RunStep(steps.subspan(i * kStepBytes, kStepBytes), &next, &executed, &*table);
  }
  const std::string after = table->Encode();
  const Result<SessionTable> again = SessionTable::Decode(AsBytes(after));
  HYDRA_CHECK(again.ok());
  HYDRA_CHECK(again->Encode() == after && again->Digest() == table->Digest());
  HYDRA_CHECK(again->outcomes() == table->outcomes() && again->sessions() == table->sessions());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::span<const uint8_t> rest(data + 1, size - 1);
  switch (data[0] % kWhats) {
    case 0: FuzzContext(rest); break;
    case 1: FuzzEntry(rest); break;
    default: FuzzTable(rest); break;
  }
  return 0;
}
