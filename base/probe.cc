// SPDX-License-Identifier: Apache-2.0
#include "base/probe.h"

#ifdef HYDRA_SIM

#include <map>
#include <utility>

namespace hydra {

// Constructors of other files may run before any of this one, so the head needs none itself.
struct ProbeRegistry {
  static constinit Probe* head;

  static void Add(Probe* probe) {
    probe->next_ = head;
    head = probe;
  }

  template <typename Call>
  static void ForEach(const Call& call) {
    for (Probe* p = head; p != nullptr; p = p->next_)
      call(p->name_, p->file_, p->line_, &p->passed_);
  }
};

constinit Probe* ProbeRegistry::head = nullptr;

Probe::Probe(const char* name, const char* file, int line)
    : name_(name), file_(file), line_(line), next_(nullptr) {
  ProbeRegistry::Add(this);
}

std::vector<ProbeCount> Probes() {
  // Each instance of a template has its own Probe.
  std::map<std::pair<std::string, std::string>, uint64_t> counts;
  ProbeRegistry::ForEach([&](const char* name, const char* file, int line, auto* passed) {
    counts[{name, std::string(file) + ":" + std::to_string(line)}] +=
        passed->load(std::memory_order_relaxed);
  });
  std::vector<ProbeCount> all;
  for (const auto& [site, passed] : counts) all.push_back({site.first, site.second, passed});
  return all;
}

void ResetProbes() {
  ProbeRegistry::ForEach([](const char*, const char*, int, auto* passed) { passed->store(0); });
}

}  // namespace hydra

#endif
