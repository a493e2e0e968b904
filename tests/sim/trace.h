// SPDX-License-Identifier: Apache-2.0
//
// What a simulation did, as numbers: cheap to keep for every event, hashed as it happens, turned
// into text only if somebody asks. Two runs did the same if and only if their hashes are equal (up
// to 2^-64), so nothing that differs between runs may go in: no address, no wall clock, no order of
// a hash table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"

namespace hydra::sim {

using NodeId = uint32_t;  // 0 = none: the simulation itself

// One event. What `a` and `b` mean depends on `what`.
struct Label {
  const char* what = "";  // a literal
  NodeId node = 0;
  uint64_t a = 0;
  uint64_t b = 0;
};

class TraceHash {
 public:
  void Add(uint64_t word) {
    value_ = (value_ ^ word) * 0x9e3779b97f4a7c15;
    value_ ^= value_ >> 32;
  }
  void Add(std::string_view text);
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0xcbf29ce484222325;
};

class Trace {
 public:
  static constexpr size_t kTail = 256;  // events remembered for reports of failures
  using Sink = std::function<void(const std::string& line)>;

  // Every event as text, with details, from now on. Changes nothing else, not even the hash.
  void SetSink(Sink sink) { sink_ = std::move(sink); }
  bool has_text() const { return sink_ != nullptr; }

  // `detail` is for the text alone; see has_text().
  void Add(Nanos time, const Label& label, std::string_view detail = {});

  uint64_t hash() const { return hash_.value(); }
  uint64_t count() const { return count_; }
  std::string Tail() const;  // the last events, oldest first, a line each

 private:
  struct Record {
    Nanos time;
    Label label;
  };

  TraceHash hash_;
  uint64_t count_ = 0;
  std::vector<Record> tail_;  // a ring of kTail
  Sink sink_;
};

}  // namespace hydra::sim
