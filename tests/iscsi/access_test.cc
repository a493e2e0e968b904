// SPDX-License-Identifier: Apache-2.0
//
// Who may use a target, and what becomes of those who may not any more.
#include "iscsi/access.h"

#include <gtest/gtest.h>

#include "tests/iscsi/scsi_fixture.h"
#include "tests/support/gtest_status.h"

namespace hydra::iscsi {
namespace {

TEST(AccessRules, SayWhoMay) {
  struct Row {
    AccessRules rules;
    std::string initiator;
    bool may;
  };
  const AccessRules listed{true, true, {"iqn.x:a", "iqn.y:*"}};
  for (const Row& row : std::vector<Row>{
           {{}, "iqn.x:anyone", true},
           {{false, false, {}}, "iqn.x:anyone", false},
           {{false, true, {"iqn.x:a"}}, "iqn.x:a", false},
           {{true, true, {}}, "iqn.x:a", false},
           {listed, "iqn.x:a", true},
           {listed, "IQN.X:A", true},
           {listed, "iqn.x:ab", false},
           {listed, "iqn.x:", false},
           {listed, "iqn.y:", true},
           {listed, "iqn.y:b", true},
           {listed, "iqn.y", false},
           {listed, "iqn.z:iqn.y:b", false},
           {listed, "", false},
           // A list that does not apply.
           {{true, false, {"iqn.x:a"}}, "iqn.x:b", true},
       }) {
    EXPECT_EQ(row.rules.Allows(row.initiator), row.may) << row.initiator;
  }
}

TEST(AccessRules, AreNamesPerhapsWithAStarAtTheEnd) {
  EXPECT_EQ(*NormalRule("iqn.2026-11.com.Example:Host"), "iqn.2026-11.com.example:host");
  EXPECT_EQ(*NormalRule("iqn.2026-11.com.example:*"), "iqn.2026-11.com.example:*");
  EXPECT_EQ(*NormalRule("eui.02004567A425678D"), "eui.02004567a425678d");
  for (const char* rule : {"", "*", "iqn.", "iqn.*", "host", "iqn.a:*b", "iqn.a:**", "iqn.a b",
                           "iqn.a,b", "iqn.a\n"}) {
    EXPECT_CODE(NormalRule(rule).status(), Code::kInvalidArgument) << rule;
  }
  EXPECT_CODE(NormalRule("iqn." + std::string(300, 'a')).status(), Code::kInvalidArgument);
}

// --- A unit whose rules change ------------------------------------------------------------------

class ExpelTest : public ScsiTest {
 protected:
  ExpelTest() {
    disk_->access()->now.epoch = 1;
    first_.disconnect = [this](const std::string& why) { first_gone_ = why; };
    second_.disconnect = [this](const std::string& why) { second_gone_ = why; };
    Refresh();
  }

  void Allow(std::vector<std::string> rules) {
    DiskAccess& now = disk_->access()->now;
    ++now.epoch;
    now.rules = {true, true, std::move(rules)};
  }
  void Refresh() {
    unit_->RefreshShared([](const Status& refreshed) { EXPECT_OK(refreshed); });
  }
  // One that came before whatever happens until it is carried out.
  Command Arrived(Nexus* nexus, Bytes cdb, const Bytes& out) {
    Command command;
    command.unit = unit_.get();
    command.nexus = nexus;
    std::copy(cdb.begin(), cdb.end(), command.cdb.begin());
    command.out = out;
    command.expected_out = static_cast<uint32_t>(out.size());
    command.epoch = unit_->epoch();
    command.arrived = disk_->Arrive(command.epoch);
    return command;
  }
  ScsiStatus CarryOut(Command* command) {
    std::optional<Response> response;
    Start<Response>(Execute(*command), [&](Response done) { response = std::move(done); });
    EXPECT_TRUE(response.has_value());
    return response ? response->status : ScsiStatus::kBusy;
  }

  std::string first_gone_;
  std::string second_gone_;
};

TEST_F(ExpelTest, WhoIsNotAllowedAnyMoreIsDisconnectedAndDoesNothingMore) {
  Allow({"iqn.b"});
  for (const auto& [disk, changed] : disk_->access()->watchers) changed();
  EXPECT_EQ(first_gone_, "the initiator is not allowed any more");
  EXPECT_EQ(second_gone_, "");
  EXPECT_EQ(RunAs(&first_, Cdb10(0x2a, 0, 1), Bytes(512, 1)).status, ScsiStatus::kTaskAborted);
  EXPECT_EQ(RunAs(&first_, Cdb10(0x28, 0, 1)).status, ScsiStatus::kTaskAborted);
  EXPECT_EQ(disk_->Contents(0, 512), Bytes(512, 0));
  EXPECT_TRUE(RunAs(&second_, Cdb10(0x2a, 0, 1), Bytes(512, 2)).good());
}

TEST_F(ExpelTest, WhatArrivedBeforeIsNotCarriedOut) {
  const Bytes data(512, 0xab);
  Command first = Arrived(&first_, Cdb10(0x2a, 0, 1), data);
  Command second = Arrived(&second_, Cdb10(0x2a, 1, 1), data);
  Allow({"iqn.b"});
  // Nobody here has heard of it yet.
  EXPECT_EQ(CarryOut(&first), ScsiStatus::kTaskAborted);
  EXPECT_EQ(CarryOut(&second), ScsiStatus::kGood) << "who still may goes on";
  EXPECT_EQ(disk_->Contents(0, 512), Bytes(512, 0));
  EXPECT_EQ(disk_->Contents(512, 512), data);
  EXPECT_NE(first_gone_, "");
}

TEST_F(ExpelTest, ReservationsAndResetsThatArrivedBeforeAreNotMade) {
  Bytes list(24);
  list[15] = 7;
  Command reserve = Arrived(&first_, {0x5f, 0, 0, 0, 0, 0, 0, 0, 24, 0}, list);
  Allow({"iqn.b"});
  EXPECT_EQ(CarryOut(&reserve), ScsiStatus::kTaskAborted);
  EXPECT_TRUE(unit_->reservations().registrations().empty());
  Allow({"iqn.b"});
  unit_->Reset(
      Asc::kLunReset, [](const Status& reset) { EXPECT_CODE(reset, Code::kFenced); }, &first_);
  EXPECT_EQ(unit_->resets(), 0u);
  unit_->Reset(
      Asc::kLunReset, [](const Status& reset) { EXPECT_OK(reset); }, &second_);
  EXPECT_EQ(unit_->resets(), 1u);
}

TEST_F(ExpelTest, ASanitizeThatArrivedBeforeErasesNothing) {
  using Phase = SanitizeState::Phase;
  const Bytes erase = {0x48, 0x82, 0, 0, 0, 0, 0, 0, 0, 0};
  ASSERT_TRUE(RunAs(&second_, Cdb10(0x2a, 0, 1), Bytes(512, 2)).good());
  Command first = Arrived(&first_, erase, {});
  Command second = Arrived(&second_, erase, {});
  Allow({"iqn.b"});
  EXPECT_EQ(CarryOut(&first), ScsiStatus::kTaskAborted);
  EXPECT_EQ(unit_->sanitize().phase, Phase::kNone);
  EXPECT_TRUE(disk_->sanitized().empty());
  EXPECT_EQ(disk_->Contents(0, 512), Bytes(512, 2));
  EXPECT_EQ(CarryOut(&second), ScsiStatus::kGood) << "who still may goes on";
  EXPECT_EQ(disk_->sanitized().size(), 1u);
}

// Whether its sender lost the right to or not: a reset ends what was sent before it.
TEST_F(ExpelTest, ASanitizeThatArrivedBeforeAResetElsewhereErasesNothing) {
  Command erase = Arrived(&first_, {0x48, 0x82, 0, 0, 0, 0, 0, 0, 0, 0}, {});
  SharedState shared;
  shared.resets = 1;
  shared.last_reset = Asc::kLunReset;
  ++disk_->access()->now.epoch;
  disk_->access()->now.state = shared.Encode();
  EXPECT_EQ(CarryOut(&erase), ScsiStatus::kCheckCondition);
  EXPECT_EQ(unit_->sanitize().phase, SanitizeState::Phase::kNone);
  EXPECT_TRUE(disk_->sanitized().empty());
}

TEST_F(ExpelTest, TheFailureOfASanitizeIsNotLeftByACommandThatArrivedBefore) {
  using Phase = SanitizeState::Phase;
  SharedState shared;
  shared.sanitize = {Phase::kFailed, true, 7};
  ++disk_->access()->now.epoch;
  disk_->access()->now.state = shared.Encode();
  Refresh();
  const Bytes exit = {0x48, 0x1f, 0, 0, 0, 0, 0, 0, 0, 0};
  Command first = Arrived(&first_, exit, {});
  Command second = Arrived(&second_, exit, {});
  // Just before the change: what is known before is looked at earlier.
  disk_->access()->interfere = [this] { Allow({"iqn.b"}); };
  EXPECT_EQ(CarryOut(&first), ScsiStatus::kTaskAborted);
  EXPECT_EQ(unit_->sanitize().phase, Phase::kFailed);
  EXPECT_EQ(CarryOut(&second), ScsiStatus::kGood);
  EXPECT_EQ(unit_->sanitize().phase, Phase::kNone);
}

// Nor do anyone's tasks end for it, whether that was known before or not.
TEST_F(ExpelTest, AResetByOneWhoIsNotAllowedEndsNothing) {
  unsigned aborted = 0;
  second_.abort_tasks = [&](const std::function<void()>& done) { ++aborted, done(); };
  unit_->write_protected = true;
  Allow({"iqn.b"});
  for (int i = 0; i < 2; ++i) {
    Status outcome;
    unit_->Reset(
        Asc::kLunReset, [&](const Status& reset) { outcome = reset; }, &first_);
    EXPECT_CODE(outcome, Code::kFenced);
    EXPECT_TRUE(first_.expelled);
    EXPECT_EQ(aborted, 0u);
    EXPECT_TRUE(second_.attentions.empty());
    EXPECT_TRUE(unit_->write_protected);
  }
  unit_->Reset(
      Asc::kLunReset, [](const Status& reset) { EXPECT_OK(reset); }, &second_);
  EXPECT_EQ(aborted, 1u);
  EXPECT_FALSE(unit_->write_protected);
}

TEST_F(ExpelTest, WhoJoinsAfterwardsIsNotLetIn) {
  Allow({"iqn.b"});
  Refresh();
  Nexus late;
  late.initiator = "iqn.c,i,0x000000000009";
  unit_->Join(&late);
  EXPECT_TRUE(late.expelled);
  EXPECT_EQ(RunAs(&late, Cdb10(0x2a, 0, 1), Bytes(512, 1)).status, ScsiStatus::kTaskAborted);
  unit_->Leave(&late);
  Nexus port;
  port.initiator = "iqn.b,i,0x00000000000a";  // another port of one who may
  unit_->Join(&port);
  EXPECT_FALSE(port.expelled);
  unit_->Leave(&port);
}

// --- A unit whose CHAP accounts change ----------------------------------------------------------

class UnconfirmedTest : public ExpelTest {
 protected:
  // The second one logged in when the cluster could not be asked.
  UnconfirmedTest() {
    unit_->Leave(&second_);
    second_.confirmed = false;
    unit_->Join(&second_);
    Settle({&second_});
  }
  void ChangeAccounts() {
    DiskAccess& now = disk_->access()->now;
    ++now.epoch;
    now.chap_revision = now.epoch;
  }
};

TEST_F(UnconfirmedTest, WhoLoggedInByAnAccountThatDidNotCountAnyMoreIsExpelled) {
  ChangeAccounts();
  EXPECT_TRUE(unit_->unconfirmed());
  Refresh();
  EXPECT_EQ(first_gone_, "") << "a session from before a change stays";
  EXPECT_EQ(second_gone_, "it logged in by a CHAP account that did not count any more");
  EXPECT_EQ(RunAs(&second_, Cdb10(0x2a, 0, 1), Bytes(512, 1)).status, ScsiStatus::kTaskAborted);
  EXPECT_TRUE(RunAs(&first_, Cdb10(0x2a, 0, 1), Bytes(512, 2)).good());
  EXPECT_FALSE(unit_->unconfirmed());
}

// Also if all that the cluster says is that nothing has changed.
TEST_F(UnconfirmedTest, OnceTheClusterWasAskedItIsASessionLikeOthers) {
  Refresh();
  EXPECT_FALSE(unit_->unconfirmed());
  ChangeAccounts();
  Refresh();
  EXPECT_EQ(second_gone_, "");
  EXPECT_TRUE(RunAs(&second_, Cdb10(0x2a, 0, 1), Bytes(512, 1)).good());
}

TEST_F(UnconfirmedTest, WhatWasAskedBeforeTheLoginConfirmsNothing) {
  unit_->Leave(&second_);
  disk_->Hold();
  Refresh();
  unit_->Join(&second_);
  disk_->Release();
  EXPECT_TRUE(unit_->unconfirmed());
  ChangeAccounts();
  Refresh();
  EXPECT_NE(second_gone_, "");
}

TEST_F(UnconfirmedTest, WhoJoinsWhenTheChangeIsKnownIsNotLetIn) {
  ChangeAccounts();
  Refresh();
  Nexus late;
  late.initiator = "iqn.c,i,0x000000000009";
  late.confirmed = false;
  unit_->Join(&late);
  EXPECT_TRUE(late.expelled);
  unit_->Leave(&late);
  late.chap_revision = unit_->chap_revision();
  unit_->Join(&late);
  EXPECT_FALSE(late.expelled) << "this one proved it by the new account";
  unit_->Leave(&late);
}

}  // namespace
}  // namespace hydra::iscsi
