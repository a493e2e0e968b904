// SPDX-License-Identifier: Apache-2.0
//
// SANITIZE: what is refused while it lasts, how it ends, and who goes on with it.
#include <memory>
#include <optional>
#include <utility>

#include <gtest/gtest.h>

#include "iscsi/scsi/shared_state.h"
#include "tests/iscsi/scsi_fixture.h"
#include "tests/support/gtest_status.h"

namespace hydra::iscsi {
namespace {

using Phase = SanitizeState::Phase;

constexpr uint8_t kImmediate = 0x80;
constexpr uint8_t kMayExit = 0x20;

Bytes Erase(uint8_t flags = 0) {
  return {0x48, static_cast<uint8_t>(0x02 | flags), 0, 0, 0, 0, 0, 0, 0, 0};
}
const Bytes kExit = {0x48, 0x1f, 0, 0, 0, 0, 0, 0, 0, 0};
const Bytes kReady = {0x00, 0, 0, 0, 0, 0};

class SanitizeTest : public ScsiTest {
 protected:
  // A second portal to the same disk.
  SanitizeTest() {
    auto disk = std::make_unique<MemoryDisk>(kBytes, "disk", 4096, disk_->access());
    other_disk_ = disk.get();
    other_ = std::make_unique<LogicalUnit>(std::move(disk), unit_->options());
    far_.initiator = "iqn.c,i,0x000000000003";
    far_.portal_group = 2;
    other_->Join(&far_);
    Settle({&far_});
  }
  Response Far(Bytes cdb, const Bytes& out = {}) {
    unit_.swap(other_);
    Response response = RunAs(&far_, std::move(cdb), out);
    unit_.swap(other_);
    return response;
  }
  // A command that may last.
  struct Running {
    Command command;
    std::optional<Response> response;
    bool aborted = false;
  };
  std::unique_ptr<Running> Begin(Bytes cdb) {
    auto running = std::make_unique<Running>();
    running->command.unit = unit_.get();
    running->command.nexus = &first_;
    running->command.aborted = [raw = running.get()] { return raw->aborted; };
    std::copy(cdb.begin(), cdb.end(), running->command.cdb.begin());
    Start<Response>(Execute(running->command),
                    [raw = running.get()](Response done) { raw->response = std::move(done); });
    return running;
  }
  // The sanitizing of the disk ends when it is released, and nothing else waits for that.
  void HoldSanitize(uint8_t flags) {
    ASSERT_TRUE(Run(Cdb10(0x2a, 0, 8), Fill(8, 7)).good());
    disk_->HoldSanitize();
    ASSERT_TRUE(Run(Erase(flags)).good());
    ASSERT_EQ(unit_->sanitize().phase, Phase::kUnderWay);
  }
  static testing::AssertionResult InProgress(const Response& response) {
    return Failed(response, SenseKey::kNotReady, Asc::kSanitizeInProgress);
  }
  static testing::AssertionResult HasFailed(const Response& response) {
    return Failed(response, SenseKey::kMediumError, Asc::kSanitizeFailed);
  }

  MemoryDisk* other_disk_ = nullptr;
  std::unique_ptr<LogicalUnit> other_;
  Nexus far_;
};

TEST_F(SanitizeTest, ErasesEverything) {
  ASSERT_TRUE(Run(Cdb10(0x2a, 0, 8), Fill(8, 7)).good());
  ASSERT_TRUE(Run(Cdb10(0x2a, kBlocks - 8, 8), Fill(8, 7)).good());
  EXPECT_TRUE(Run(Erase()).good());
  EXPECT_EQ(disk_->sanitized().size(), 1u);
  EXPECT_EQ(disk_->Contents(0, 4096), Bytes(4096));
  EXPECT_EQ(disk_->Contents(kBytes - 4096, 4096), Bytes(4096));
  EXPECT_TRUE(Run(kReady).good());
  EXPECT_TRUE(Run(Cdb10(0x2a, 0, 8), Fill(8, 8)).good());
  EXPECT_EQ(disk_->access()->narrowed, 1u) << "what was begun before was fenced off";
  EXPECT_TRUE(Run(Erase()).good());
  EXPECT_NE(disk_->sanitized()[0], disk_->sanitized()[1]) << "another one has another key";
}

TEST_F(SanitizeTest, WhileItLastsTheUnitIsNotReadyThroughAnyPortal) {
  HoldSanitize(kImmediate);
  other_disk_->HoldSanitize();  // it helps
  for (const Bytes& cdb : {kReady, Cdb10(0x28, 0, 1), Cdb10(0x25, 0, 0), Erase(), kExit,
                           Bytes{0x1b, 0, 0, 0, 1, 0}, Bytes{0x1a, 0, 0x3f, 0, 0xff, 0}}) {
    EXPECT_TRUE(InProgress(Run(cdb))) << int(cdb[0]);
    EXPECT_TRUE(InProgress(Far(cdb))) << int(cdb[0]);
  }
  EXPECT_TRUE(InProgress(Run(Cdb10(0x2a, 0, 1), Fill(1, 1))));
  for (const Bytes& cdb : {Bytes{0x12, 0, 0, 0, 0xff, 0}, Bytes{0x03, 0, 0, 0, 0xff, 0},
                           Bytes{0xa0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0, 0, 0}}) {
    EXPECT_TRUE(Run(cdb).good()) << int(cdb[0]);
  }
  // How far it is.
  EXPECT_EQ(Run(kReady).sense.progress, 0x8000);
  const Bytes sense = DataOf(Run({0x03, 0, 0, 0, 0xff, 0}));
  EXPECT_EQ(sense[2], 2);
  EXPECT_EQ(Get16(&sense[12]), 0x041b);
  EXPECT_EQ(sense[15], 0x80);
  EXPECT_EQ(Get16(&sense[16]), 0x8000);
  const Bytes descriptors = DataOf(Run({0x03, 1, 0, 0, 0xff, 0}));
  EXPECT_EQ(descriptors[0], 0x72);
  EXPECT_EQ(descriptors[8], 2);
  EXPECT_EQ(descriptors[12], 0x80);
  EXPECT_EQ(Get16(&descriptors[13]), 0x8000);
  disk_->ReleaseSanitize();
  EXPECT_TRUE(Run(kReady).good());
  EXPECT_TRUE(Far(kReady).good());
  EXPECT_EQ(other_disk_->sanitized(), disk_->sanitized()) << "the same one";
  other_disk_->ReleaseSanitize(Status::Unavailable("too late"));
  EXPECT_TRUE(Run(kReady).good());
  EXPECT_EQ(DataOf(Run({0x03, 0, 0, 0, 0xff, 0}))[2], 0);
}

TEST_F(SanitizeTest, WithoutImmediateItIsAnsweredWhenItIsDone) {
  disk_->HoldSanitize();
  const auto running = Begin(Erase());
  EXPECT_FALSE(running->response.has_value());
  EXPECT_TRUE(InProgress(Run(kReady)));
  disk_->ReleaseSanitize();
  ASSERT_TRUE(running->response.has_value());
  EXPECT_TRUE(running->response->good());
}

TEST_F(SanitizeTest, GoesOnWhenItsCommandIsAbortedAndTheUnitReset) {
  disk_->HoldSanitize();
  const auto running = Begin(Erase());
  running->aborted = true;
  disk_->MoveSanitize(0.75);
  EXPECT_TRUE(running->response.has_value()) << "an abort need not wait for it";
  bool reset = false;
  unit_->Reset(Asc::kLunReset, [&](const hydra::Status& status) {
    EXPECT_OK(status);
    reset = true;
  });
  EXPECT_TRUE(reset);
  EXPECT_TRUE(Failed(Run(kReady), SenseKey::kUnitAttention, Asc::kLunReset));
  EXPECT_TRUE(InProgress(Run(kReady)));
  EXPECT_EQ(Run(kReady).sense.progress, 0xc000);
  disk_->ReleaseSanitize();
  EXPECT_TRUE(Run(kReady).good());
}

TEST_F(SanitizeTest, AFailureIsToldUntilItIsRepeated) {
  HoldSanitize(kImmediate);
  disk_->ReleaseSanitize(Status::Unavailable("node 3 is down"));
  EXPECT_TRUE(HasFailed(Run(kReady)));
  EXPECT_TRUE(HasFailed(Far(Cdb10(0x28, 0, 1))));
  EXPECT_EQ(DataOf(Run({0x03, 0, 0, 0, 0xff, 0}))[2], 3);
  EXPECT_TRUE(BadCdb(Run(kExit))) << "it was not allowed";
  EXPECT_TRUE(HasFailed(Run(kReady)));
  EXPECT_TRUE(Far(Erase()).good());
  EXPECT_TRUE(Run(kReady).good());
}

TEST_F(SanitizeTest, AFailureIsLeftBehindIfThatWasAllowed) {
  HoldSanitize(kImmediate | kMayExit);
  disk_->ReleaseSanitize(Status::Corruption("a rotten block"));
  EXPECT_TRUE(HasFailed(Run(kReady)));
  EXPECT_TRUE(Run(kExit).good());
  EXPECT_TRUE(Run(kReady).good());
  EXPECT_TRUE(Far(kReady).good());
  EXPECT_TRUE(Run(kExit).good()) << "there is nothing to leave";
}

TEST_F(SanitizeTest, WithoutImmediateAFailureIsItsAnswer) {
  disk_->HoldSanitize();
  const auto running = Begin(Erase());
  disk_->ReleaseSanitize(Status::Unavailable("node 3 is down"));
  ASSERT_TRUE(running->response.has_value());
  EXPECT_TRUE(HasFailed(*running->response));
}

// The portal that had it died: whoever is asked next goes on with the same one.
TEST_F(SanitizeTest, AnyPortalGoesOnWithIt) {
  HoldSanitize(kImmediate);
  const uint64_t key = unit_->sanitize().key;
  unit_->Leave(&first_);
  unit_->Leave(&second_);
  unit_.reset();
  disk_ = nullptr;
  other_disk_->HoldSanitize();
  EXPECT_TRUE(InProgress(Far(kReady)));
  EXPECT_TRUE(InProgress(Far(kReady)));
  EXPECT_EQ(other_disk_->sanitized(), std::vector<uint64_t>{key}) << "once";
  other_disk_->ReleaseSanitize();
  EXPECT_TRUE(Far(kReady).good());
}

// Nobody knows: it is neither done nor failed.
TEST_F(SanitizeTest, WhatWasCutShortIsStillUnderWay) {
  HoldSanitize(kImmediate);
  disk_->ReleaseSanitize(Status::Aborted("the client was closed"));
  EXPECT_EQ(unit_->sanitize().phase, Phase::kUnderWay);
  EXPECT_EQ(unit_->sanitizing(), 0u);
  disk_->HoldSanitize();
  EXPECT_TRUE(InProgress(Run(kReady)));  // and this goes on with it
  EXPECT_EQ(disk_->sanitized().size(), 2u);
  EXPECT_EQ(disk_->sanitized()[0], disk_->sanitized()[1]);
  disk_->ReleaseSanitize();
  EXPECT_TRUE(Run(kReady).good());
}

// What a portal heard of last may be over by the time it is asked.
TEST_F(SanitizeTest, APortalThatHasNotHeardOfTheEndErasesNothing) {
  HoldSanitize(kImmediate);
  ASSERT_EQ(other_->sanitize().phase, Phase::kUnderWay);
  disk_->access()->watchers.erase(other_disk_);
  disk_->ReleaseSanitize();
  ASSERT_TRUE(Run(Cdb10(0x2a, 0, 8), Fill(8, 9)).good());
  ASSERT_EQ(other_->sanitize().phase, Phase::kUnderWay) << "it has heard of it";
  const Response read = Far(Cdb10(0x28, 0, 8));
  EXPECT_TRUE(read.good());
  EXPECT_EQ(DataOf(read), Fill(8, 9));
  EXPECT_TRUE(other_disk_->sanitized().empty());
  EXPECT_EQ(disk_->Contents(0, 4096), Fill(8, 9));
}

// Nor does one that was about to, and was overtaken by the end.
TEST_F(SanitizeTest, AHelperThatComesTooLateErasesNothing) {
  HoldSanitize(kImmediate);
  other_disk_->HoldErase();
  EXPECT_TRUE(InProgress(Far(kReady)));
  EXPECT_EQ(other_disk_->sanitized().size(), 1u);
  disk_->ReleaseSanitize();
  ASSERT_TRUE(Run(Cdb10(0x2a, 0, 8), Fill(8, 9)).good());
  other_disk_->ReleaseErase();
  EXPECT_EQ(disk_->Contents(0, 4096), Fill(8, 9));
  EXPECT_EQ(other_->sanitizing(), 0u);
  EXPECT_EQ(other_->sanitize().phase, Phase::kNone) << "it has neither failed nor begun anew";
  EXPECT_TRUE(Run(kReady).good());
  EXPECT_TRUE(Far(kReady).good());
}

// Another change of access fences it off as well: it is repeated.
TEST_F(SanitizeTest, GoesOnUnderANewEpoch) {
  ASSERT_TRUE(Run(Cdb10(0x2a, 0, 8), Fill(8, 7)).good());
  disk_->HoldErase();
  ASSERT_TRUE(Run(Erase(kImmediate)).good());
  bool reset = false;
  other_->Reset(Asc::kLunReset, [&](const hydra::Status& status) { reset = status.ok(); });
  ASSERT_TRUE(reset);
  EXPECT_EQ(disk_->Contents(0, 4096), Fill(8, 7));
  disk_->ReleaseErase();
  EXPECT_EQ(disk_->Contents(0, 4096), Bytes(4096));
  EXPECT_EQ(disk_->sanitized().size(), 2u);
  EXPECT_EQ(disk_->sanitized()[0], disk_->sanitized()[1]);
  EXPECT_TRUE(Failed(Run(kReady), SenseKey::kUnitAttention, Asc::kLunReset));
  EXPECT_TRUE(Run(kReady).good());
}

// Fenced off for no reason that can be seen: whoever is asked next goes on with it.
TEST_F(SanitizeTest, IsNotRepeatedForNothing) {
  HoldSanitize(kImmediate);
  disk_->ReleaseSanitize(Status::Fenced("says who?"));
  EXPECT_EQ(disk_->sanitized().size(), 1u);
  EXPECT_EQ(unit_->sanitizing(), 0u);
  EXPECT_EQ(unit_->sanitize().phase, Phase::kUnderWay);
  disk_->HoldSanitize();
  EXPECT_TRUE(InProgress(Run(kReady)));
  EXPECT_EQ(disk_->sanitized().size(), 2u);
  disk_->ReleaseSanitize();
  EXPECT_TRUE(Run(kReady).good());
}

// Whoever began it may have died before what was under way then was fenced off.
TEST_F(SanitizeTest, WhoGoesOnWithItFencesFirst) {
  HoldSanitize(kImmediate);
  unit_->Leave(&first_);
  unit_->Leave(&second_);
  unit_.reset();
  disk_ = nullptr;
  ASSERT_EQ(other_disk_->access()->fenced, 0u);
  other_disk_->HoldErase();
  EXPECT_TRUE(InProgress(Far(kReady)));
  EXPECT_EQ(other_disk_->sanitized().size(), 1u);
  EXPECT_EQ(other_disk_->access()->fenced, other_->epoch());
  other_disk_->ReleaseErase();
  EXPECT_TRUE(Far(kReady).good());
}

// The same of who ended it: helpers may not have been fenced off yet.
TEST_F(SanitizeTest, WhoHearsOfItsEndFencesBeforeAnythingIsWritten) {
  HoldSanitize(kImmediate);
  ASSERT_EQ(other_->sanitize().phase, Phase::kUnderWay);
  disk_->ReleaseSanitize();
  ASSERT_EQ(other_->sanitize().phase, Phase::kNone);
  ASSERT_EQ(disk_->access()->fenced, 0u);
  EXPECT_TRUE(Far(Bytes{0x12, 0, 0, 0, 0xff, 0}).good());
  EXPECT_EQ(disk_->access()->fenced, 0u) << "INQUIRY changes nothing";
  EXPECT_TRUE(Far(Cdb10(0x2a, 0, 8), Fill(8, 9)).good());
  EXPECT_EQ(disk_->access()->fenced, other_->epoch());
}

TEST_F(SanitizeTest, OneAtATime) {
  disk_->access()->interfere = [this] {
    other_disk_->HoldSanitize();
    EXPECT_TRUE(Far(Erase(kImmediate)).good());
  };
  EXPECT_TRUE(InProgress(Run(Erase(kImmediate))));
  other_disk_->ReleaseSanitize();
  EXPECT_TRUE(Run(kReady).good());
}

TEST_F(SanitizeTest, IsRefusedWhereItDoesNotBelong) {
  Bytes with_list = Erase();
  with_list[8] = 8;
  EXPECT_TRUE(BadCdb(Run(with_list, Bytes(8))));
  Bytes exit_with_list = kExit;
  exit_with_list[8] = 8;
  EXPECT_TRUE(BadCdb(Run(exit_with_list, Bytes(8))));
  for (size_t byte = 1; byte < 7; ++byte) {
    Bytes reserved = Erase();
    reserved[byte] |= 0x40;
    EXPECT_TRUE(BadCdb(Run(reserved))) << byte;
  }
  // OVERWRITE and CRYPTO ERASE are not there.
  for (const uint8_t action : {0, 1, 3, 4, 0x1e}) {
    EXPECT_TRUE(BadCdb(Run({0x48, action, 0, 0, 0, 0, 0, 0, 0, 0}))) << int(action);
  }
  EXPECT_TRUE(RunAs(&second_, {0x16, 0, 0, 0, 0, 0}).good());
  EXPECT_EQ(Run(Erase()).status, ScsiStatus::kReservationConflict);
  EXPECT_TRUE(RunAs(&second_, {0x17, 0, 0, 0, 0, 0}).good());
  unit_->write_protected = true;
  EXPECT_TRUE(Failed(Run(Erase()), SenseKey::kDataProtect, Asc::kSoftwareWriteProtected));
  EXPECT_TRUE(disk_->sanitized().empty());
}

TEST_F(SanitizeTest, NothingBeginsIfTheDiskRefuses) {
  disk_->FailWith(Status::Unavailable("no majority"));
  EXPECT_TRUE(Failed(Run(Erase()), SenseKey::kNotReady, Asc::kBecomingReady));
  disk_->FailWith(Status::Ok());
  EXPECT_TRUE(disk_->sanitized().empty());
  EXPECT_TRUE(Run(kReady).good());
}

TEST(SharedStateTest, CarriesASanitize) {
  SharedState state;
  state.reserved_by = "somebody";
  const std::string plain = state.Encode();
  EXPECT_EQ(plain[0], 1) << "older portals read what is no news to them";
  state.sanitize = {Phase::kFailed, true, 77};
  const std::string bytes = state.Encode();
  EXPECT_EQ(*SharedState::Decode(bytes), state);
  for (size_t length = 1; length < bytes.size(); ++length) {
    EXPECT_FALSE(SharedState::Decode(bytes.substr(0, length)).ok()) << length;
  }
  std::string wrong = bytes;
  wrong[1] = 3;
  EXPECT_CODE(SharedState::Decode(wrong).status(), Code::kCorruption);
  wrong[0] = 3;
  EXPECT_CODE(SharedState::Decode(wrong).status(), Code::kUnsupported);
}

}  // namespace
}  // namespace hydra::iscsi
