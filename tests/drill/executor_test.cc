// SPDX-License-Identifier: Apache-2.0
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/drill_executor.h"
#include "daemon/drill_run.h"

namespace hydra::drill {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

TEST(DrillExecutor, RunsALineAndSaysWhatItPrintedWhenItFails) {
  EXPECT_TRUE(RunShell("true", milliseconds(5000)).ok());
  const Status failed = RunShell("echo no such node >&2; exit 3", milliseconds(5000));
  EXPECT_THAT(std::string(failed.message()), HasSubstr("failed with 3: no such node"));
}

TEST(DrillExecutor, ALineThatHangsIsKilledWithAllThatItStarted) {
  const auto began = std::chrono::steady_clock::now();
  const Status failed = RunShell("sleep 30 & sleep 30", milliseconds(200));
  EXPECT_THAT(std::string(failed.message()), HasSubstr("did not end"));
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(25));
}

TEST(DrillExecutor, ALineMayLeaveADaemonBehind) {
  EXPECT_TRUE(RunShell("sleep 20 &", milliseconds(15'000)).ok());
}

TEST(DrillExecutor, TemplatesAndQuotes) {
  EXPECT_EQ(FillTemplate("ssh node{n} cut {peers} {n}", {{"n", "2"}, {"peers", "1,3"}}),
            "ssh node2 cut 1,3 2");
  EXPECT_TRUE(
      RunShell("test " + ShellQuote("it's; exit 1") + " = \"it's; exit 1\"", milliseconds(5000))
          .ok());
}

TEST(DrillExecutor, FaultsAsTheNodesTakeThem) {
  EXPECT_EQ(FaultsJson({}), "{}");
  NodeFaults faults;
  faults.cut = {2};
  faults.slow = {2, 3};
  faults.delay_ms = 40;
  EXPECT_THAT(FaultsJson(faults),
              HasSubstr(R"("links":{"2":{"drop":true},"3":{"delay_ms":40,"loss_percent":0}})"));
}

TEST(DrillExecutor, BlocksToBeDamagedAsTheNodesTakeThem) {
  EXPECT_EQ(RotJson({{5, {0, 17}}, {6, {3}}}), R"({"blocks":{"5":[0,17],"6":[3]}})");
  EXPECT_EQ(RotJson({}), R"({"blocks":{}})");
}

TEST(DrillExecutor, SaysWhichCommandIsMissingBeforeAnythingIsBroken) {
  ExecutorOptions options;
  options.kind = "command";
  options.commands["kill"] = "true";
  const Executor executor(options, {{1, ""}});
  EXPECT_THAT(std::string(executor.Check({Need::kKill}).message()), HasSubstr("--start-command"));
  EXPECT_THAT(std::string(executor.Check({Need::kLinks}).message()), HasSubstr("--drill"));
  EXPECT_TRUE(executor.Check({}).ok());
  EXPECT_THAT(std::string(executor.Check({Need::kWipe}).message()), HasSubstr("--wipe-command"));
  EXPECT_THAT(std::string(executor.Check({Need::kMembers}).message()), HasSubstr("--add-command"));
  options.kind = "ssh";
  EXPECT_THAT(std::string(Executor(options, {{1, ""}}).Check({}).message()),
              HasSubstr("--ssh-host 1=HOST"));
  options.ssh_hosts[1] = "somewhere";
  EXPECT_TRUE(Executor(options, {{1, ""}}).Check({Need::kKill, Need::kPause}).ok());
  options.kind = "local";
  options.script = "/nowhere/cluster";
  EXPECT_THAT(std::string(Executor(options, {{1, ""}}).Check({}).message()),
              HasSubstr("--cluster-script"));
}

TEST(DrillExecutor, ACommandIsTakenAtItsWord) {
  const Result<std::string> said = ShellOutput("echo one; echo two", milliseconds(5000));
  ASSERT_TRUE(said.ok());
  EXPECT_EQ(*said, "one\ntwo");
}

// It has nodes 1 to 3 too, and wiping one of them is for ever.
TEST(DrillExecutor, ALocalClusterThatIsAnotherIsLeftAlone) {
  ExecutorOptions options;
  options.script = testing::TempDir() + "/drill_executor_test_cluster_" + std::to_string(getpid());
  std::ofstream(options.script) << "#!/bin/sh\n"
                                   "[ \"$1\" = id ] || exit 9\n"
                                   "[ \"$2\" != --dir ] && echo default || echo \"in $3\"\n";
  ASSERT_EQ(chmod(options.script.c_str(), 0700), 0);
  options.cluster = "in its place";
  for (const Need need : {Need::kKill, Need::kPause, Need::kRestart, Need::kWipe, Need::kMembers}) {
    EXPECT_THAT(std::string(Executor(options, {{1, ""}}).Check({need}).message()),
                HasSubstr("--cluster-dir"));
  }
  EXPECT_TRUE(Executor(options, {{1, ""}}).Check({}).ok()) << "nothing is asked of it";
  options.dir = "its place";
  EXPECT_TRUE(Executor(options, {{1, ""}}).Check({Need::kWipe}).ok());
  unlink(options.script.c_str());
}

// Only the node itself can act as if its disk were full; here nobody answers for it.
TEST(DrillExecutor, AFullDiskIsNotLeftToTheCommandsThatCannotMakeIt) {
  ExecutorOptions options;
  options.kind = "command";
  options.commands = {{"heal", "true"}, {"slow-disk", "true"}};
  Executor executor(options, {{1, "127.0.0.1:1"}});
  NodeFaults faults;
  faults.write_delay_ms = 10;
  EXPECT_TRUE(executor.Set(1, faults).ok());
  faults.full = true;
  EXPECT_FALSE(executor.Set(1, faults).ok());
}

TEST(DrillExecutor, NodesAreAddedAndRemovedFromHere) {
  ExecutorOptions options;
  options.kind = "ssh";
  options.ssh = "false";
  options.ssh_hosts[1] = "somewhere";
  options.commands = {{"add", "true"}, {"remove", "test {n} = 4"}, {"wipe", "true"}};
  const Executor executor(options, {{1, ""}});
  EXPECT_TRUE(executor.Do("add", 0).ok());
  EXPECT_TRUE(executor.Do("remove", 4).ok()) << "which has no --ssh-host";
  EXPECT_FALSE(executor.Do("wipe", 1).ok()) << "by ssh";
}

TEST(DrillTable, OnlyWhatStopsAMajorityMayShowErrorsToClients) {
  std::set<std::string> may;
  for (const Drill& drill : Drills()) {
    if (drill.errors) may.insert(drill.name);
  }
  EXPECT_EQ(may, (std::set<std::string>{"disk-full", "power-cycle-all", "chaos"}));
}

TEST(DrillTable, NamesAreUniqueAndFound) {
  std::set<std::string> names;
  for (const Drill& drill : Drills()) {
    EXPECT_TRUE(names.insert(drill.name).second) << drill.name;
    EXPECT_EQ(FindDrill(drill.name), &drill);
  }
  EXPECT_EQ(FindDrill("earthquake"), nullptr);
}

}  // namespace
}  // namespace hydra::drill
