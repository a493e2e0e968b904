// SPDX-License-Identifier: Apache-2.0
//
// Claims about installs: their records are read as section 5 has them, and a store that the engine
// wrote while it installed is found clean.
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/store_reader_dump.h"
#include "tests/support/install_driver.h"
#include "tests/tool/sample_store.h"

namespace hydra::tool_test {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// An image of three rows, its state, and an attempt that was given up.
struct InstalledStore : SampleStore {
  Written chunk;
  Written finish;

  InstalledStore() {
    Append(InLane(0).InstallBegin(1, 1, 4, 9));
    chunk = Append(InLane(0).Chunk(1, 10, 11, 500, "cur",
                                   {DataRow(40, Version(9), Block(40)), ExtentRow(8, Version(7)),
                                    EraseRow(41, 100, Version(10))},
                                   Block(40)));
    finish = Append(InLane(0).InstallFinish(1, 10, std::string(5000, 's')));
    Append(InLane(0).InstallAbort(1));
  }
};

TEST(ReaderInstall, RecordsAreDumpedAsTheDocumentHasThem) {
  InstalledStore store;
  store.WriteMapNow();
  PosixFileSystem fs;
  std::ostringstream out;
  store_reader::DumpOptions options;
  options.records = true;
  ASSERT_TRUE(store_reader::Dump(&fs, store.directory(), options, out).ok());
  EXPECT_THAT(
      out.str(),
      AllOf(HasSubstr("type=install"), HasSubstr("action=begin mode=image applied=4"),
            HasSubstr("type=chunk"), HasSubstr("as-of=10 newest=11 covered=500"),
            HasSubstr("cursor=637572"), HasSubstr("\"kind\":\"data\",\"lba\":40"),
            HasSubstr("\"kind\":\"extent\",\"extent\":8"), HasSubstr("\"lba\":41,\"count\":100"),
            HasSubstr("action=finish"), HasSubstr("action=abort")));
}

TEST(ReaderInstall, RotInAChunkOrInTheStateIsFound) {
  EXPECT_THAT(Findings(InstalledStore().Verify()), IsEmpty());
  InstalledStore rotten;
  rotten.FlipPage(rotten.chunk.segment, rotten.chunk.payload_page);
  EXPECT_THAT(Findings(rotten.Verify()),
              ElementsAre(At("payload", rotten.chunk.segment, rotten.chunk.payload_page)));
  InstalledStore stateless;
  stateless.FlipPage(stateless.finish.segment, stateless.finish.payload_page);
  EXPECT_THAT(Findings(stateless.Verify()),
              ElementsAre(At("payload", stateless.finish.segment, stateless.finish.payload_page)));
}

TEST(ReaderInstall, ARowThatMakesNoSenseIsAFinding) {
  SampleStore store;
  const Written bad = store.Append(InLane(0).Chunk(1, 1, 1, 1, "cur", {"\6\1\1"}));
  EXPECT_THAT(Findings(store.Verify()), ElementsAre(At("record", bad.segment, bad.page)));
}

// --- Stores that the engine wrote ------------------------------------------------------------

TEST(ReaderInstall, AnEnginesStoreIsCleanAtEveryPointOfAnInstall) {
  using test::Store;
  Store source({});
  source.MustStart();
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(source.Propose(1, {test::WriteOp(i * 7, 9), test::ZeroExtentsOp({3})}).ok());
    ASSERT_TRUE(source.Settle().ok());
    if (i < 3) {
      ASSERT_TRUE(source.Checkpoint().ok());
    }
  }
  for (const InstallMode mode : {InstallMode::kImage, InstallMode::kDelta}) {
    Store target({});
    target.MustStart();
    test::InstallDriver::Options options;
    options.mode = mode;
    test::InstallDriver driver(&source, &target, 1, options);
    for (int step = 0; step < 40 && target->Info(1)->applied == 0; ++step) {
      ASSERT_TRUE(driver.QueueNext().ok());
      ASSERT_TRUE(target.Flush().ok());
      if (step % 2 == 1) {
        ASSERT_TRUE(target.Checkpoint().ok());
      }
      const auto report = store_reader::VerifyStore(&target.disk(), test::kStoreDirectory, {});
      ASSERT_TRUE(report.ok()) << report.status().ToString();
      EXPECT_THAT(Findings(*report), IsEmpty());
      if (step == 3) {
        EXPECT_THAT(report->notes, Contains(HasSubstr("is being installed")));
      }
    }
    ASSERT_EQ(target->Info(1)->applied, 3u);
    ASSERT_TRUE(target.Checkpoint().ok());
    const auto report = store_reader::VerifyStore(&target.disk(), test::kStoreDirectory, {});
    ASSERT_TRUE(report.ok());
    EXPECT_THAT(Findings(*report), IsEmpty());
    EXPECT_THAT(report->notes, Contains(HasSubstr("until instance 4")));
    EXPECT_EQ(target.Problems(), "");
  }
}

}  // namespace
}  // namespace hydra::tool_test
