// SPDX-License-Identifier: Apache-2.0
//
// What is said of a unit, and of its portals, while the cluster does not answer.
#include <functional>
#include <map>
#include <utility>

#include "tests/iscsi/scsi_fixture.h"

namespace hydra::iscsi {
namespace {

using GroupStates = std::map<uint16_t, int>;  // of portal groups

const Bytes kReadyCdb(6);
const Bytes kReserveCdb = {0x16, 0, 0, 0, 0, 0};
const Bytes kPortGroupsCdb = {0xa3, 0x0a, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0};

class ScsiReady : public ScsiTest {
 protected:
  ScsiReady() {
    unit_->Leave(&first_);
    unit_->Leave(&second_);
    auto disk = std::make_unique<MemoryDisk>(kBytes, "disk");
    disk_ = disk.get();
    UnitOptions options;
    options.with_patience = [this](std::function<void()> done,
                                   const std::function<void(std::function<void()>)>& work) {
      const auto waiting = std::make_shared<std::function<void()>>(std::move(done));
      const auto end = [waiting] {
        if (*waiting) std::exchange(*waiting, {})();
      };
      expire_ = end;
      work(end);
    };
    options.portal_groups = [this] { return groups_; };
    unit_ = std::make_unique<LogicalUnit>(std::move(disk), std::move(options));
    unit_->Join(&first_);
    unit_->Join(&second_);
    Settle({&first_, &second_});
  }

  struct Begun {
    Command command;
    std::optional<Response> response;
  };
  std::unique_ptr<Begun> Begin(const Bytes& cdb) {
    auto begun = std::make_unique<Begun>();
    begun->command.unit = unit_.get();
    begun->command.nexus = &first_;
    std::copy(cdb.begin(), cdb.end(), begun->command.cdb.begin());
    Start<Response>(Execute(begun->command),
                    [raw = begun.get()](Response done) { raw->response = std::move(done); });
    return begun;
  }

  // States by the groups' numbers.
  GroupStates PortalStates() {
    GroupStates states;
    const Bytes data = DataOf(Run(kPortGroupsCdb));
    for (size_t at = 4; at + 12 <= data.size(); at += 12) states[Get16(&data[at + 2])] = data[at];
    return states;
  }

  std::function<void()> expire_;  // who asks for the unit has waited long enough
  std::vector<PortalGroup> groups_;
};

TEST_F(ScsiReady, TestUnitReadyDoesNotWaitForTheClusterAsLongAsOthersDo) {
  EXPECT_TRUE(Run(kReadyCdb).good());
  disk_->Hold();
  const auto asked = Begin(kReadyCdb);
  EXPECT_FALSE(asked->response.has_value());
  expire_();
  ASSERT_TRUE(asked->response.has_value());
  EXPECT_TRUE(Failed(*asked->response, SenseKey::kNotReady, Asc::kBecomingReady));
  // The answer that comes too late is nobody's.
  disk_->Release();
  EXPECT_TRUE(Run(kReadyCdb).good());
}

TEST_F(ScsiReady, NorForOthersThatWaitForTheCluster) {
  disk_->Hold();
  const auto change = Begin(kReserveCdb);
  const auto asked = Begin(kReadyCdb);
  expire_();
  ASSERT_TRUE(asked->response.has_value());
  EXPECT_TRUE(Failed(*asked->response, SenseKey::kNotReady, Asc::kBecomingReady));
  EXPECT_FALSE(change->response.has_value()) << "it goes on";
  disk_->Release();
  ASSERT_TRUE(change->response.has_value());
  EXPECT_TRUE(change->response->good());
  EXPECT_TRUE(Run(kReadyCdb).good());
}

// Each would else wait as long as all before it, one after the other.
TEST_F(ScsiReady, WhoWaitedForOneThatDidNotReachTheClusterIsAnsweredWithIt) {
  disk_->Hold();
  const auto first = Begin(kReserveCdb);
  const auto second = Begin(kReserveCdb);
  const auto asked = Begin(kReadyCdb);
  EXPECT_EQ(disk_->held(), 1u);
  disk_->FailWith(Status::Unavailable("no majority"));
  disk_->ReleaseOne();
  for (const auto* begun : {&first, &second, &asked}) {
    ASSERT_TRUE((*begun)->response.has_value());
    EXPECT_TRUE(Failed(*(*begun)->response, SenseKey::kNotReady, Asc::kBecomingReady));
  }
  EXPECT_EQ(disk_->held(), 0u);
  // The next one asks again.
  disk_->FailWith(Status::Ok());
  const auto third = Begin(kReserveCdb);
  disk_->Release();
  ASSERT_TRUE(third->response.has_value());
  EXPECT_TRUE(third->response->good());
}

TEST_F(ScsiReady, WhatTheClusterSaysInTimeIsTheAnswer) {
  disk_->FailWith(Status::Unavailable("no majority"));
  EXPECT_TRUE(Failed(Run(kReadyCdb), SenseKey::kNotReady, Asc::kBecomingReady));
  disk_->FailWith(Status::Ok());
  EXPECT_TRUE(Run(kReadyCdb).good());
  expire_();
}

TEST_F(ScsiReady, APortalThatWaitsForTheClusterSaysThatOthersAreBetter) {
  constexpr int kOptimized = 0;
  constexpr int kNonOptimized = 1;
  constexpr int kUnavailable = 3;
  EXPECT_EQ(PortalStates(), (GroupStates{{1, kOptimized}}));
  groups_ = {{1, true, false}, {2, false, false}, {3, true, false}};
  EXPECT_EQ(PortalStates(), (GroupStates{{1, kOptimized}, {2, kUnavailable}, {3, kOptimized}}));
  groups_ = {{1, true, true}, {2, false, false}, {3, true, false}};
  EXPECT_EQ(PortalStates(), (GroupStates{{1, kNonOptimized}, {2, kUnavailable}, {3, kOptimized}}));
  // Whoever is asked is there, whatever others say of it.
  groups_ = {{1, false, false}, {2, true, false}};
  EXPECT_EQ(PortalStates(), (GroupStates{{1, kOptimized}, {2, kOptimized}}));
}

}  // namespace
}  // namespace hydra::iscsi
