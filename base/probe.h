// SPDX-License-Identifier: Apache-2.0
//
// HYDRA_PROBE("gap filled with no-op") marks a branch that is rarely taken. A simulation that never
// takes it has not tested it, and probes are how one finds out: in the simulator's build
// (HYDRA_SIM) each counts how often it was passed, and the ones never passed are known as well.
// Everywhere else a probe is nothing at all.
//
// A probe is one call site; its name is a literal, unique in the program. It stands in a .cc file:
// a header is compiled with and without HYDRA_SIM, and both are linked into the simulator. In the
// templates of a .cc file all copies count as one. An object file that is not linked has no probes.
#pragma once

#ifndef HYDRA_SIM

#define HYDRA_PROBE(name) static_cast<void>(0)

#else

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace hydra {

// One call site. Registered by a static constructor, so that it is known before, and without, ever
// being passed; never destroyed before the program ends.
class Probe {
 public:
  Probe(const char* name, const char* file, int line);
  Probe(const Probe&) = delete;
  Probe& operator=(const Probe&) = delete;

  void Pass() { passed_.fetch_add(1, std::memory_order_relaxed); }

 private:
  friend struct ProbeRegistry;

  const char* const name_;
  const char* const file_;
  const int line_;
  std::atomic<uint64_t> passed_{0};
  Probe* next_;
};

struct ProbeCount {
  std::string name;
  std::string where;  // file:line
  uint64_t passed = 0;
};

// All probes of this program, by name.
std::vector<ProbeCount> Probes();
void ResetProbes();

// Site is a type of its own per call site (a local class), so the probe is too. Naming it in Pass
// instantiates it, which makes its constructor run at start, whether or not Pass is ever called.
template <typename Site>
struct ProbeAt {
  static inline Probe probe{Site::Name(), Site::File(), Site::Line()};
  static void Pass() { probe.Pass(); }
};

}  // namespace hydra

#define HYDRA_PROBE(name)                              \
  do {                                                 \
    struct HydraProbeSite {                            \
      static const char* Name() { return "" name ""; } \
      static const char* File() { return __FILE__; }   \
      static int Line() { return __LINE__; }           \
    };                                                 \
    ::hydra::ProbeAt<HydraProbeSite>::Pass();          \
  } while (0)

#endif
