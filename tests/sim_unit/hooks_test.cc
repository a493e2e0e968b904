// SPDX-License-Identifier: Apache-2.0
//
// Probes and sabotages, in the simulator's build.
#include <map>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "base/probe.h"
#include "base/sabotage.h"

namespace hydra {
namespace {

volatile bool yes = true;

void PassedOnce() { HYDRA_PROBE("hooks test: passed"); }
void NeverCalled() { HYDRA_PROBE("hooks test: function never called"); }
inline void Inline() {
  if (!yes) HYDRA_PROBE("hooks test: inline");
}
template <typename T>
void Template(T) {
  HYDRA_PROBE("hooks test: template");
}

std::map<std::string, ProbeCount> ByName() {
  std::map<std::string, ProbeCount> all;
  for (const ProbeCount& p : Probes()) EXPECT_TRUE(all.emplace(p.name, p).second) << p.name;
  return all;
}

TEST(Probe, CountsAndKnowsTheOnesNeverPassed) {
  ResetProbes();
  if (!yes) {
    HYDRA_PROBE("hooks test: branch never taken");
    NeverCalled();
    Inline();
  }
  PassedOnce();
  PassedOnce();
  Template(1);
  Template(2.0);
  const auto all = ByName();
  EXPECT_EQ(all.at("hooks test: passed").passed, 2u);
  EXPECT_EQ(all.at("hooks test: template").passed, 2u);
  EXPECT_EQ(all.at("hooks test: branch never taken").passed, 0u);
  EXPECT_EQ(all.at("hooks test: function never called").passed, 0u);
  EXPECT_EQ(all.at("hooks test: inline").passed, 0u);
  EXPECT_EQ(all.at("hooks test: passed").where.rfind("tests/sim_unit/hooks_test.cc:", 0), 0u)
      << all.at("hooks test: passed").where;
  ResetProbes();
  EXPECT_EQ(ByName().at("hooks test: passed").passed, 0u);
}

TEST(Sabotage, IsOffUnlessItsNameWasGiven) {
  EXPECT_FALSE(HYDRA_SABOTAGE(kAckBeforeFlush));
  SetSabotage(FindSabotage("ack-before-flush"));
  EXPECT_TRUE(HYDRA_SABOTAGE(kAckBeforeFlush));
  EXPECT_FALSE(HYDRA_SABOTAGE(kApplyTwice));
  EXPECT_EQ(CurrentSabotage(), Sabotage::kAckBeforeFlush);
  SetSabotage(std::nullopt);
  EXPECT_FALSE(HYDRA_SABOTAGE(kAckBeforeFlush));
  EXPECT_EQ(CurrentSabotage(), std::nullopt);
}

TEST(Sabotage, EachHasANameOfItsOwnThatFindsIt) {
  std::set<std::string_view> names;
  for (const SabotageInfo& info : AllSabotages()) {
    EXPECT_TRUE(names.insert(info.name).second) << info.name;
    EXPECT_EQ(FindSabotage(info.name), info.sabotage);
    EXPECT_EQ(SabotageName(info.sabotage), info.name);
    EXPECT_FALSE(info.what.empty());
    EXPECT_GT(info.seeds, 0u);
  }
  EXPECT_GE(names.size(), 22u);
  EXPECT_EQ(FindSabotage("no such thing"), std::nullopt);
}

}  // namespace
}  // namespace hydra
