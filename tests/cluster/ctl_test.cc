// SPDX-License-Identifier: Apache-2.0
//
// Claims about hydractl: what it prints, what it exits with.
#include <sys/stat.h>

#include <algorithm>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/cluster/fixture.h"
#include "tests/support/gtest_status.h"

namespace hydra::cluster_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Json = nlohmann::json;

std::string Hydractl() { return BinaryDirectory() + "/hydractl"; }

Outcome Alone(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), Hydractl());
  return RunCommand(arguments);
}

// A cluster for tests that only look, or change what nobody else looks at.
class Hydractl3 : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    cluster_ = std::make_unique<TestCluster>();
    const Outcome made = cluster_->Ctl({"volume", "create", "data", "--size", "64M"});
    ASSERT_EQ(made.code, 0) << made.err;
  }
  static void TearDownTestSuite() { cluster_.reset(); }

  Outcome Ctl(const std::vector<std::string>& arguments, const std::string& input = "") {
    return cluster_->Ctl(arguments, input);
  }
  // Fails with that code and says that.
  void Refused(const std::vector<std::string>& arguments, int code, const std::string& says,
               const std::string& input = "") {
    const Outcome outcome = Ctl(arguments, input);
    EXPECT_EQ(outcome.code, code) << fmt::format("{}", fmt::join(arguments, " ")) << "\n"
                                  << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(says));
    EXPECT_EQ(outcome.out, "");
  }

  static std::unique_ptr<TestCluster> cluster_;
};
std::unique_ptr<TestCluster> Hydractl3::cluster_;

TEST(HydractlAlone, WrongUsageExitsWith2AndHelpWith0) {
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {},
           {"mend"},
           {"volume"},
           {"volume", "mend"},
           {"volume", "create"},
           {"volume", "create", "data"},
           {"volume", "create", "data", "--size", "lots"},
           {"volume", "create", "data", "--size", "-1"},
           {"volume", "create", "data", "--size", "99999999999T"},
           {"volume", "show"},
           {"io", "read", "data"},
           {"io", "write", "data", "--text", "a", "--input", "b"},
           {"bench", "data", "--rw", "sideways"},
           {"bench", "data", "--iodepth", "0"},
           {"master", "move", "1"},
           {"master", "move", "one", "two"},
           {"status", "--timeout", "soon"},
           {"status", "--timeout", "0"},
           {"status", "--colour"},
           {"completion"},
           {"debug", "verify"},
       }) {
    const Outcome outcome = Alone(arguments);
    EXPECT_EQ(outcome.code, 2) << fmt::format("{}", fmt::join(arguments, " "));
    EXPECT_NE(outcome.err, "");
  }
  const Outcome help = Alone({"--help"});
  EXPECT_EQ(help.code, 0);
  EXPECT_THAT(help.out, AllOf(HasSubstr("volume"), HasSubstr("bench"), HasSubstr("Exit codes")));
  EXPECT_EQ(Alone({"volume", "create", "--help"}).code, 0);
}

TEST(HydractlAlone, NobodyThereExitsWith4AndSaysWhereItLooked) {
  const std::string nobody = fmt::format("127.0.0.1:{}", FreePort());
  const Outcome outcome = Alone({"status", "--cluster", nobody, "--timeout", "300ms"});
  EXPECT_EQ(outcome.code, 4);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr(nobody), HasSubstr("HYDRA_CLUSTER")));
  const Outcome json = Alone({"--json", "status", "--cluster", nobody, "--timeout", "300ms"});
  EXPECT_EQ(json.code, 4);
  EXPECT_EQ(Json::parse(json.err).at("exit"), 4);
  EXPECT_EQ(Alone({"status", "--cluster", "nonsense"}).code, 2);
  EXPECT_EQ(Alone({"status", "--cluster", ","}).code, 2);
}

TEST(HydractlAlone, CompletionIsAScriptThatBashTakes) {
  const Outcome script = Alone({"completion", "bash"});
  EXPECT_EQ(script.code, 0);
  const std::string test = script.out + R"(
COMP_WORDS=(hydractl volume cr) COMP_CWORD=2; _hydractl; echo "${COMPREPLY[@]}"
COMP_WORDS=(hydractl --json bench x --rw rand) COMP_CWORD=5; _hydractl; echo "${COMPREPLY[@]}"
COMP_WORDS=(hydractl volume create v --sh) COMP_CWORD=4; _hydractl; echo "${COMPREPLY[@]}"
)";
  const Outcome bash = RunCommand({"/bin/bash", "-eu"}, test);
  EXPECT_EQ(bash.code, 0) << bash.err;
  EXPECT_EQ(bash.out, "create\nrandread randwrite randrw\n--shards\n");
}

TEST(HydractlAlone, DebugLooksAtADataDirectory) {
  const Outcome none = Alone({"debug", "verify", "/nowhere"});
  EXPECT_EQ(none.code, 1);
  EXPECT_NE(none.err, "");
  TestCluster cluster;
  Volume volume = cluster.MakeVolume("data", 16 * kMiB);
  ASSERT_OK(volume.Write(0, Pattern(0, 1, 2 * kMiB)));
  const Outcome busy = Alone({"debug", "verify", cluster.dir(1)});
  EXPECT_EQ(busy.code, 1);
  EXPECT_THAT(busy.err, HasSubstr("running process"));
  for (uint32_t node = 1; node <= 3; ++node) {
    cluster.Kill(node);
    const Outcome verified = Alone({"debug", "verify", cluster.dir(node)});
    EXPECT_EQ(verified.code, 0) << verified.out << verified.err;
    EXPECT_THAT(verified.out, HasSubstr("clean"));
  }
  const Outcome dump = Alone({"debug", "dump", cluster.dir(1), "--json"});
  EXPECT_EQ(dump.code, 0) << dump.err;
  EXPECT_TRUE(Json::accept(dump.out.substr(0, dump.out.find('\n'))));
}

TEST_F(Hydractl3, StatusNodesAndGroupsShowTheCluster) {
  const Outcome status = Ctl({"status", "--wait"});
  EXPECT_EQ(status.code, 0) << status.err;
  EXPECT_THAT(status.out, AllOf(HasSubstr("cluster: healthy"), HasSubstr("3 of 3 up")));
  // (The level rises a moment after all have said what they can.)
  Json json;
  for (int i = 0; i < 100; ++i) {
    json = Json::parse(Ctl({"status", "--json"}).out);
    const Json& nodes = json.at("nodes");
    if (std::all_of(nodes.begin(), nodes.end(), [](const Json& node) {
          return node.at("cluster_feature_level") == node.at("feature_level");
        })) {
      break;
    }
  }
  EXPECT_EQ(json.at("nodes").size(), 3u);
  for (const Json& node : json.at("nodes")) {
    EXPECT_GT(node.at("free_bytes"), 0u);
    EXPECT_TRUE(node.at("version").get<std::string>().starts_with("0.1.0")) << node.dump();
    EXPECT_GE(node.at("feature_level"), 1u);
    EXPECT_EQ(node.at("cluster_feature_level"), node.at("feature_level")) << "all are of one build";
  }
  EXPECT_EQ(json.at("served"), true);
  const Json nodes = Json::parse(Ctl({"node", "list", "--json"}).out);
  EXPECT_EQ(nodes.size(), 3u);
  EXPECT_EQ(nodes.at(0).at("state"), "up");
  EXPECT_THAT(Ctl({"node", "list"}).out, HasSubstr(cluster_->address(2)));
  const Json groups = Json::parse(Ctl({"group", "list", "--json", "--volume", "data"}).out);
  ASSERT_EQ(groups.size(), 4u);
  EXPECT_EQ(groups.at(0).at("replicas").size(), 3u);
  EXPECT_GT(groups.at(0).at("master"), 0);
  EXPECT_THAT(Ctl({"group", "list"}).out, HasSubstr("(catalogue)"));
}

TEST_F(Hydractl3, VolumesAreMadeShownResizedAndDeleted) {
  const Outcome made = Ctl({"volume", "create", "v1", "--size", "8MiB", "--shards", "2"});
  EXPECT_EQ(made.code, 0) << made.err;
  EXPECT_EQ(made.out, "created v1: 8 MiB in 2 shards, blocks of 4 KiB\n");
  EXPECT_THAT(Ctl({"volume", "list"}).out, AllOf(HasSubstr("v1"), HasSubstr("8 MiB")));
  EXPECT_THAT(Ctl({"volume", "list", "-q"}).out, HasSubstr("data\nv1\n"));
  EXPECT_EQ(Json::parse(Ctl({"--json", "volume", "show", "v1"}).out).at("bytes"), 8 * kMiB);
  EXPECT_THAT(Ctl({"volume", "show", "v1"}).out, HasSubstr("SHARD"));
  EXPECT_EQ(Ctl({"volume", "resize", "v1", "--size", "16M"}).code, 0);
  Refused({"volume", "resize", "v1", "--size", "8M"}, 2, "--force");
  const Outcome shrunk = Ctl({"volume", "resize", "v1", "--size", "8M", "--force"});
  EXPECT_EQ(shrunk.code, 0) << shrunk.err;
  Refused({"volume", "delete", "v1"}, 2, "--yes");
  EXPECT_EQ(Ctl({"volume", "delete", "v1", "--yes"}).out, "deleted v1\n");
  Refused({"volume", "show", "v1"}, 3, "no volume 'v1'");
}

TEST_F(Hydractl3, TargetsAreVolumesByAnotherName) {
  const Outcome list = Ctl({"target", "list"});
  EXPECT_EQ(list.code, 0);
  EXPECT_THAT(list.out, HasSubstr("no portals")) << "nodes without --iscsi";
  for (const char* name : {"data", "iqn.2026-11.io.hydra:data"}) {
    const Outcome show = Ctl({"target", "show", name, "--json"});
    ASSERT_EQ(show.code, 0) << show.err;
    const Json json = Json::parse(show.out);
    EXPECT_EQ(json["target"], "iqn.2026-11.io.hydra:data");
    EXPECT_EQ(json["bytes"], 64 << 20);
    EXPECT_TRUE(json["portals"].empty());
  }
  Refused({"target", "show", "nothing"}, 3, "target list");
}

TEST_F(Hydractl3, BadArgumentsAreExplained) {
  Refused({"volume", "create", "data", "--size", "1M"}, 6, "already");
  Refused({"volume", "create", "NO", "--size", "1M"}, 2, "no name");
  Refused({"volume", "create", "v", "--size", "1000"}, 2, "multiple");
  Refused({"volume", "create", "v", "--size", "1M", "--block-size", "1000"}, 2, "block size");
  Refused({"volume", "create", "v", "--size", "1M", "--replicas", "2"}, 2, "replicas");
  Refused({"volume", "resize", "none", "--size", "1M"}, 3, "none");
  Refused({"volume", "delete", "none", "--yes"}, 3, "none");
  Refused({"io", "read", "none", "--length", "4K"}, 3, "none");
  Refused({"io", "read", "data", "--length", "100"}, 2, "512");
  Refused({"io", "read", "data", "--offset", "100", "--length", "512"}, 2, "512");
  Refused({"io", "read", "data", "--offset", "64M", "--length", "4K"}, 2, "end");
  Refused({"io", "read", "data", "--length", "1G"}, 2, "export");
  Refused({"io", "write", "data", "--text", "abc"}, 2, "--pad");
  Refused({"io", "write", "data", "--input", "/nowhere"}, 3, "/nowhere");
  Refused({"io", "write", "data", "--fill", "300", "--length", "4K"}, 2, "--fill");
  Refused({"io", "write", "data", "--offset", "64M", "--fill", "1", "--length", "4K"}, 2, "end");
  Refused({"io", "zero", "data", "--offset", "64M", "--length", "4K"}, 2, "end");
  Refused({"io", "discard", "data", "--offset", "63M", "--length", "4M"}, 2, "end");
  Refused({"io", "cas", "data", "--text", "a"}, 2, "--compare");
  Refused({"io", "import", "data", "/nowhere"}, 3, "/nowhere");
  Refused({"io", "import", "data", "/"}, 2, "directory");
  Refused({"io", "import", "data", "--offset", "100"}, 2, "block size", "abc");
  Refused({"io", "import", "data", "--offset", "64M"}, 2, "volume resize", "abc");
  Refused({"io", "export", "none", "-"}, 3, "none");
  Refused({"bench", "none"}, 3, "none");
  Refused({"bench", "data", "--bs", "1000"}, 2, "512");
  Refused({"bench", "data", "--size", "1T"}, 2, "--size");
  Refused({"group", "list", "--volume", "none"}, 3, "none");
  Refused({"master", "move", "999", "1"}, 3, "no group 999");
  Refused({"master", "move", "1", "9"}, 3, "no replica");
}

TEST_F(Hydractl3, IoWritesReadsComparesAndClears) {
  EXPECT_EQ(Ctl({"io", "write", "data", "--offset", "1M", "--text", "hello", "--pad"}).code, 0);
  const Outcome read = Ctl({"io", "read", "data", "--offset", "1M", "--length", "4K"});
  EXPECT_EQ(read.code, 0) << read.err;
  EXPECT_EQ(read.out, "hello" + std::string(4091, '\0'));
  EXPECT_THAT(Ctl({"io", "read", "data", "--offset", "1M", "--length", "4K", "--hex"}).out,
              HasSubstr("68 65 6c 6c 6f 00"));
  const std::string bytes(8192, 'x');
  EXPECT_EQ(Ctl({"io", "write", "data", "--offset", "2M"}, bytes).code, 0);
  EXPECT_EQ(Ctl({"io", "read", "data", "--offset", "2M", "--length", "8K", "--local"}).code, 0);
  EXPECT_EQ(Ctl({"io", "read", "data", "--offset", "2M", "--length", "8K"}).out, bytes);
  EXPECT_EQ(Ctl({"io", "cas", "data", "--offset", "1M", "--compare-text", "hello", "--text",
                 "there", "--pad"})
                .code,
            0);
  const Outcome miss = Ctl({"io", "cas", "data", "--offset", "1M", "--compare-text", "hello",
                            "--text", "again", "--pad"});
  EXPECT_EQ(miss.code, 5);
  EXPECT_THAT(miss.err, HasSubstr("something else"));
  EXPECT_EQ(Ctl({"io", "zero", "data", "--offset", "2M", "--length", "4K"}).code, 0);
  EXPECT_EQ(Ctl({"io", "discard", "data", "--offset", "1M", "--length", "1M"}).code, 0);
  EXPECT_EQ(Ctl({"io", "read", "data", "--offset", "1M", "--length", "1M"}).out,
            std::string(kMiB, '\0'));
  EXPECT_EQ(Ctl({"io", "read", "data", "--offset", "2M", "--length", "8K"}).out,
            std::string(4096, '\0') + std::string(4096, 'x'));
}

TEST_F(Hydractl3, MapShowsWhatTakesSpace) {
  ASSERT_EQ(Ctl({"volume", "create", "map", "--size", "32M", "--shards", "3"}).code, 0);
  const auto map = [&](std::vector<std::string> more) {
    std::vector<std::string> arguments = {"io", "map", "map"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = Ctl(arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.out;
  };
  EXPECT_EQ(Json::parse(map({"--json"})).at("map"),
            Json::parse(R"([{"offset": 0, "length": 33554432, "mapped": false}])"));
  ASSERT_EQ(Ctl({"io", "write", "map", "--offset", "3M", "--fill", "7", "--length", "2M"}).code, 0);
  // Zeroes that were written as data are data.
  ASSERT_EQ(Ctl({"io", "write", "map", "--offset", "8M", "--fill", "0", "--length", "4K"}).code, 0);
  ASSERT_EQ(Ctl({"io", "zero", "map", "--offset", "4M", "--length", "8K"}).code, 0);
  EXPECT_EQ(map({"--offset", "2M", "--length", "7M"}),
            "         2097152          1048576  hole\n"
            "         3145728          1048576  data\n"
            "         4194304             8192  hole\n"
            "         4202496          1040384  data\n"
            "         5242880          3145728  hole\n"
            "         8388608             4096  data\n"
            "         8392704          1044480  hole\n");
  ASSERT_EQ(Ctl({"io", "discard", "map", "--length", "32M"}).code, 0);
  EXPECT_EQ(map({}), "               0         33554432  hole\n");
  Refused({"io", "map", "map", "--length", "33M"}, 2, "33554432");
}

TEST_F(Hydractl3, ImportAndExportKeepHolesAndBytes) {
  ASSERT_EQ(Ctl({"volume", "create", "image", "--size", "32M"}).code, 0);
  // What was there before must not shine through the holes.
  ASSERT_EQ(Ctl({"io", "write", "image", "--offset", "4M", "--fill", "7", "--length", "8M"}).code,
            0);
  TemporaryDirectory directory;
  const std::string in = directory.path() + "/in";
  const std::string out = directory.path() + "/out";
  const auto some = Pattern(1, 1, 300'000);
  std::string bytes(20 * kMiB, '\0');
  bytes.replace(123'456, some.size(), reinterpret_cast<const char*>(some.data()), some.size());
  bytes.replace(13 * kMiB, some.size(), reinterpret_cast<const char*>(some.data()), some.size());
  bytes.resize(19 * kMiB + 777);
  bytes.back() = 'z';
  WriteFile(in, bytes);
  const Outcome imported = Ctl({"io", "import", "image", in, "--json"});
  ASSERT_EQ(imported.code, 0) << imported.err;
  const Json report = Json::parse(imported.out);
  EXPECT_EQ(report.at("bytes"), bytes.size());
  EXPECT_LT(report.at("data_bytes"), 700'000);
  EXPECT_EQ(report.at("padding_bytes"), 4096 - 777);
  const Outcome exported = Ctl({"io", "export", "image", out});
  ASSERT_EQ(exported.code, 0) << exported.err;
  std::string expected = bytes;
  expected.resize(32 * kMiB);
  EXPECT_TRUE(ReadFile(out) == expected);
  struct stat about;
  ASSERT_EQ(stat(out.c_str(), &about), 0);
  EXPECT_LT(about.st_blocks * 512, 4 * static_cast<long>(kMiB));
  // The same through pipes.
  const Outcome piped = Ctl({"io", "import", "image", "--quiet"}, bytes);
  EXPECT_EQ(piped.code, 0) << piped.err;
  const Outcome back = Ctl({"io", "export", "image", "-", "--length", "20M"});
  EXPECT_EQ(back.code, 0) << back.err;
  expected.resize(20 * kMiB);
  EXPECT_TRUE(back.out == expected);
  Refused({"io", "import", "image"}, 2, "volume resize", std::string(33 * kMiB, 'a'));
}

TEST_F(Hydractl3, BenchMeasuresAndVerifies) {
  ASSERT_EQ(Ctl({"volume", "create", "load", "--size", "32M"}).code, 0);
  for (const std::string pattern : {"write", "randwrite", "randrw", "read", "randread"}) {
    const Outcome outcome = Ctl({"bench", "load", "--rw", pattern, "--runtime", "300ms",
                                 "--iodepth", "16", "--numjobs", "2", "--verify", "--json"});
    ASSERT_EQ(outcome.code, 0) << pattern << outcome.out << outcome.err;
    const Json json = Json::parse(outcome.out);
    const bool reads = pattern.find("read") != std::string::npos;
    const Json& side = json.at(reads ? "read" : "write");
    EXPECT_GT(side.at("operations"), 0);
    EXPECT_GT(side.at("latency_us").at("p99"), 0);
    EXPECT_EQ(json.at("wrong_blocks"), 0);
    if (!reads) {
      EXPECT_GT(json.at("verified_blocks"), 0);
    }
  }
  const Outcome text = Ctl({"bench", "load", "--rw", "randwrite", "--bs", "64k", "--number-ios",
                            "20", "--iodepth", "4"});
  EXPECT_THAT(text.out, AllOf(HasSubstr("IOPS"), HasSubstr("MB/s"), HasSubstr("p99.9")));
}

}  // namespace
}  // namespace hydra::cluster_test
