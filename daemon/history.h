// SPDX-License-Identifier: Apache-2.0
//
// History: what clients, simulated or real, asked and what they were told, in the order it
// happened. Each block is a register that holds a value; kAbsent stands for "zeroes" (never
// written, deleted, zeroed). Every other value is written by one operation only, so that a value
// read says which write it saw.
//
// An operation on several blocks is atomic. Its outcome is *unknown* until it is told otherwise: an
// unknown write may take effect at any time after it was invoked, once, or never.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"

namespace hydra::history {

using Block = uint64_t;  // any number that tells blocks apart
using Value = uint64_t;
inline constexpr Value kAbsent = 0;

enum class OpKind : uint8_t { kRead, kWrite, kCompareAndWrite };

enum class Outcome : uint8_t {
  kUnknown,   // no answer, or an answer that does not tell
  kOk,        // done; for a compare-and-write: it was equal and is written
  kMismatch,  // of a compare-and-write: at least one block differed, nothing was written
  kRefused,   // not done, and never will be
};

struct Access {
  Block block = 0;
  Value value = kAbsent;     // written; or read, once that is known
  Value expected = kAbsent;  // compare-and-write
};

struct Op {
  // Position in the order of all invocations and returns; of a return that never came.
  static constexpr uint64_t kNever = std::numeric_limits<uint64_t>::max();

  size_t id = 0;
  uint32_t client = 0;
  OpKind kind = OpKind::kRead;
  Outcome outcome = Outcome::kUnknown;
  std::vector<Access> accesses;
  // kMismatch: what was found, one value per access, if the client was told.
  std::vector<Value> found;
  uint64_t invoked = 0;
  uint64_t returned = kNever;
  Nanos invoked_at = 0;
  Nanos returned_at = 0;

  // "#7 client 2 [1.000000000 .. 1.000400000] write 12<-45: ok"
  std::string ToString() const;
};

class History {
 public:
  using OpId = size_t;

  Value NewValue() { return ++last_value_; }

  // --- Invocations. -----------------------------------------------------------------------------
  OpId Read(uint32_t client, const std::vector<Block>& blocks, Nanos now);
  // Accesses: block and value. kAbsent deletes.
  OpId Write(uint32_t client, std::vector<Access> accesses, Nanos now);
  OpId Delete(uint32_t client, const std::vector<Block>& blocks, Nanos now);
  // Accesses: block, value, expected.
  OpId CompareAndWrite(uint32_t client, std::vector<Access> accesses, Nanos now);

  // --- Returns, at most one each. ---------------------------------------------------------------
  void Ok(OpId op, Nanos now);  // a write or compare-and-write
  void ReadOk(OpId op, const std::vector<Value>& values, Nanos now);
  void Mismatch(OpId op, Nanos now, std::vector<Value> found = {});
  void Refused(OpId op, Nanos now);
  // Nobody will ever know. (The same as saying nothing.)
  void Unknown(OpId op, Nanos now);

  const std::vector<Op>& ops() const { return ops_; }
  size_t open() const { return open_; }  // invoked, not returned

 private:
  OpId Invoke(uint32_t client, OpKind kind, std::vector<Access> accesses, Nanos now);
  Op& Return(OpId op, Outcome outcome, Nanos now);

  std::vector<Op> ops_;
  uint64_t position_ = 0;
  Value last_value_ = kAbsent;
  size_t open_ = 0;
};

}  // namespace hydra::history
