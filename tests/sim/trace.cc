// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/trace.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

namespace hydra::sim {
namespace {

std::string Line(Nanos time, const Label& label, std::string_view detail) {
  std::string line = fmt::format("{:6}.{:09} ", time / kSecond, time % kSecond);
  line += label.node == 0 ? "--" : fmt::format("n{}", label.node);
  line += fmt::format(" {} {} {:x}", label.what, label.a, label.b);
  if (!detail.empty()) line += fmt::format(": {}", detail);
  return line;
}

}  // namespace

void TraceHash::Add(std::string_view text) {
  Add(text.size());
  for (size_t at = 0; at < text.size(); at += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, text.data() + at, std::min(sizeof(word), text.size() - at));
    Add(word);
  }
}

void Trace::Add(Nanos time, const Label& label, std::string_view detail) {
  hash_.Add(static_cast<uint64_t>(time));
  hash_.Add(label.what);
  hash_.Add(label.node);
  hash_.Add(label.a);
  hash_.Add(label.b);
  if (tail_.size() < kTail) {
    tail_.push_back({time, label});
  } else {
    tail_[count_ % kTail] = {time, label};
  }
  ++count_;
  if (sink_) sink_(Line(time, label, detail));
}

std::string Trace::Tail() const {
  std::string text;
  for (uint64_t i = count_ - tail_.size(); i < count_; ++i) {
    const Record& record = tail_[i % kTail];
    text += Line(record.time, record.label, {}) + "\n";
  }
  return text;
}

}  // namespace hydra::sim
