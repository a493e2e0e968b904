// SPDX-License-Identifier: Apache-2.0
//
// Claims about the program: exit codes, the lock, and what dump prints.
#include <sys/wait.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/store_reader_dump.h"
#include "tests/tool/sample_store.h"

namespace hydra::tool_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

struct Outcome {
  int exit_code = -1;
  std::string output;  // both streams
};

// Runs the store-tool that was built beside this test.
Outcome RunTool(const std::string& arguments) {
  const auto here = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  const std::string command = (here / "store-tool").string() + " " + arguments + " 2>&1";
  Outcome outcome;
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return outcome;
  char buffer[4096];
  for (size_t n; (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0;)
    outcome.output.append(buffer, n);
  const int status = pclose(pipe);
  if (WIFEXITED(status)) outcome.exit_code = WEXITSTATUS(status);
  return outcome;
}

TEST(StoreTool, VerifySaysCleanAndExitsWith0) {
  SampleStore store;
  store.WriteMapNow();
  const auto before = Snapshot(store.directory());
  const Outcome outcome = RunTool("verify " + store.directory());
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("\nclean\n"));
  EXPECT_EQ(before, Snapshot(store.directory()));
}

TEST(StoreTool, VerifyCallsATornTailCleanAndSaysSo) {
  SampleStore store;
  store.WriteMapNow();
  store.FlipPage(1, store.b8.page);
  const Outcome outcome = RunTool("verify " + store.directory());
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("torn tail at segment 1"), HasSubstr("no damage")));
}

TEST(StoreTool, VerifyNamesDamageSaysWhatToDoAndExitsWith1) {
  SampleStore store;
  store.WriteMapNow();
  store.FlipPage(1, store.b2.payload_page);
  const Outcome outcome = RunTool("verify " + store.directory());
  EXPECT_EQ(outcome.exit_code, 1) << outcome.output;
  EXPECT_THAT(outcome.output,
              AllOf(HasSubstr("damage: payload: group 1 lba 5, version 2.0, segment 1, page"),
                    HasSubstr("(live)"), HasSubstr("what to do about payload")));
  const Outcome json = RunTool("verify --json " + store.directory());
  EXPECT_EQ(json.exit_code, 1);
  EXPECT_THAT(json.output, AllOf(StartsWith("{"), HasSubstr("\"kind\": \"payload\"")));
}

TEST(StoreTool, DamagedIdentityIsDamageButNoIdentityIsNoStore) {
  SampleStore store;
  store.WriteMapNow();
  store.Flip(store.directory() + "/IDENTITY", 30);
  EXPECT_EQ(RunTool("verify " + store.directory()).exit_code, 1);
  std::filesystem::remove(store.directory() + "/IDENTITY");
  const Outcome outcome = RunTool("verify " + store.directory());
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.output, HasSubstr("not a Hydra store"));
}

TEST(StoreTool, WrongUsageExitsWith2) {
  EXPECT_EQ(RunTool("").exit_code, 2);
  EXPECT_EQ(RunTool("verify").exit_code, 2);
  EXPECT_EQ(RunTool("mend /nowhere").exit_code, 2);
  EXPECT_EQ(RunTool("verify /nowhere").exit_code, 2);
  EXPECT_EQ(RunTool("--help").exit_code, 0);
}

TEST(StoreTool, StoreInUseIsRefusedUnlessForced) {
  SampleStore store;
  store.WriteMapNow();
  PosixFileSystem fs;
  auto lock = fs.Lock(store.directory() + "/LOCK");
  ASSERT_TRUE(lock.ok());
  for (const std::string command : {"verify ", "dump "}) {
    const Outcome refused = RunTool(command + store.directory());
    EXPECT_EQ(refused.exit_code, 2);
    EXPECT_THAT(refused.output, HasSubstr("a running process uses the store"));
    const Outcome forced = RunTool(command + "--force " + store.directory());
    EXPECT_EQ(forced.exit_code, 0);
    EXPECT_THAT(forced.output, HasSubstr("work in progress"));
  }
}

TEST(StoreTool, StoreWithoutLockFileDoesNotGetOne) {
  SampleStore store;
  store.WriteMapNow();
  std::filesystem::remove(store.directory() + "/LOCK");
  EXPECT_EQ(RunTool("verify " + store.directory()).exit_code, 0);
  EXPECT_FALSE(std::filesystem::exists(store.directory() + "/LOCK"));
}

// --- dump ------------------------------------------------------------------------------------

std::string DumpOf(SampleStore& store, const store_reader::DumpOptions& options,
                   Code expected = Code::kOk) {
  store.WriteMapNow();
  PosixFileSystem fs;
  std::ostringstream out;
  EXPECT_EQ(store_reader::Dump(&fs, store.directory(), options, out).code(), expected);
  return out.str();
}

TEST(StoreToolDump, PrintsIdentityCheckpointSegmentsAndBatches) {
  SampleStore store;
  const std::string text = DumpOf(store, {});
  EXPECT_THAT(text, StartsWith("identity format=1 store=1b4e28ba-2fa1-41d2-883f-0016d3cca427 "
                               "cluster=6fa459ea-ee8a-4ca4-894e-db77e160355e node=3 "));
  EXPECT_THAT(text, HasSubstr("\ncheckpoint id=1 next-batch=6 "));
  EXPECT_THAT(text, HasSubstr("\nsegment number=2 lane=1 first-batch=3 "));
  EXPECT_THAT(text, HasSubstr("\nbatch number=4 lane=0 segment=1 page=6 header-pages=1 "
                              "payload-pages=0 seal=true generation=1 "));
  EXPECT_THAT(text, HasSubstr("\nsegment-end number=1 batches=6 pages-used=13 pages=64\n"));
  EXPECT_THAT(text, Not(HasSubstr("\nrecord ")));
}

TEST(StoreToolDump, PrintsRecordsAndRowsOfAGroup) {
  SampleStore store;
  store_reader::DumpOptions options;
  options.records = options.map = true;
  options.group = 1;
  const std::string text = DumpOf(store, options);
  EXPECT_THAT(text, HasSubstr("\nrecord batch=1 type=hard state offset="));
  EXPECT_THAT(text, HasSubstr("\"kind\":\"write\",\"lba\":0,\"count\":2,"));
  EXPECT_THAT(text, HasSubstr("\"kind\":\"zero extents\",\"extents\":[7,9]"));
  EXPECT_THAT(text, HasSubstr("\nrecord batch=3 type=relocate "));
  EXPECT_THAT(text, HasSubstr("marks=[{\"group\":1,\"instance\":2}]"));
  EXPECT_THAT(text, HasSubstr("\nrow tag=m group=1 lba=5 kind=data version=2.0 segment=1 page=5 "));
  EXPECT_THAT(text, HasSubstr("\nrow tag=z group=1 extent=7 version=2.3\n"));
  EXPECT_THAT(text, HasSubstr("\nrow tag=M group=1 pages-per-block=1 suspect=false "));
  options.group = 2;
  EXPECT_THAT(DumpOf(store, options), Not(HasSubstr("\nrow")));
}

TEST(StoreToolDump, JsonIsOneObjectPerLine) {
  SampleStore store;
  store_reader::DumpOptions options;
  options.json = options.records = options.map = true;
  std::istringstream lines(DumpOf(store, options));
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    EXPECT_THAT(line, StartsWith("{\""));
    EXPECT_EQ(line.back(), '}');
  }
  EXPECT_GT(count, 30);
}

TEST(StoreToolDump, PrintsDamageInItsPlaceAndGoesOn) {
  SampleStore store;
  store.FlipPage(1, store.b2.page);
  const std::string text = DumpOf(store, {}, Code::kCorruption);
  EXPECT_THAT(text, AllOf(HasSubstr("damage where=segment 1 pages 4 to 5"),
                          HasSubstr("\nbatch number=8 ")));
}

TEST(StoreToolDump, OneSegmentOnlyAndOnlyIfItExists) {
  SampleStore store;
  store_reader::DumpOptions options;
  options.segment = 2;
  EXPECT_THAT(DumpOf(store, options), Not(HasSubstr("number=1 ")));
  options.segment = 3;
  DumpOf(store, options, Code::kNotFound);
}

}  // namespace
}  // namespace hydra::tool_test
