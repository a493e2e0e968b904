// SPDX-License-Identifier: Apache-2.0
//
// Rules of targets, as changes of the catalogue.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/catalogue.h"
#include "daemon/target_accounts.h"
#include "tests/support/gtest_status.h"

namespace hydra {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr char kSecret[] = "a secret of an initiator";
constexpr char kOther[] = "a secret of the target";

class TargetRules : public testing::Test {
 protected:
  TargetRules() {
    rpc::CatalogueNode node;
    node.set_id(1);
    catalogue_ = FirstCatalogue(std::string(16, 'c'), {node});
    catalogue_.set_feature_level(kTargetRulesLevel);
    rpc::CreateVolume create;
    create.set_name("disk");
    create.set_bytes(1 << 20);
    EXPECT_OK(AddVolume(create, &catalogue_));
  }

  static rpc::ChangeTarget Change() {
    rpc::ChangeTarget change;
    change.set_name("disk");
    return change;
  }
  Status Allow(const std::string& rule) {
    rpc::ChangeTarget change = Change();
    change.add_allow(rule);
    return ChangeTarget(change, &catalogue_);
  }
  Status Remove(const std::string& rule) {
    rpc::ChangeTarget change = Change();
    change.add_remove(rule);
    return ChangeTarget(change, &catalogue_);
  }
  Status SetChap(const std::string& secret, const std::string& mutual = "") {
    rpc::ChangeTarget change = Change();
    change.set_set_chap(true);
    if (!secret.empty()) {
      change.mutable_initiator()->set_name("alice");
      change.mutable_initiator()->set_secret(secret);
    }
    if (!mutual.empty()) {
      change.mutable_target()->set_name("disk");
      change.mutable_target()->set_secret(mutual);
    }
    return ChangeTarget(change, &catalogue_);
  }
  const rpc::CatalogueVolume& volume() { return catalogue_.volumes(0); }
  const rpc::TargetRules& rules() { return volume().target(); }

  rpc::Catalogue catalogue_;
};

TEST_F(TargetRules, InTheBeginningThereAreNone) {
  EXPECT_FALSE(volume().has_target());
  EXPECT_FALSE(rules().off());
  EXPECT_FALSE(rules().restricted());
}

TEST_F(TargetRules, TheFirstOneAllowedKeepsAllOthersOut) {
  ASSERT_OK(Allow("iqn.x:A"));
  ASSERT_OK(Allow("iqn.y:*"));
  ASSERT_OK(Allow("iqn.x:a"));
  EXPECT_TRUE(rules().restricted());
  EXPECT_THAT(rules().allow(), ElementsAre("iqn.x:a", "iqn.y:*"));
  ASSERT_OK(Remove("IQN.x:a"));
  EXPECT_THAT(rules().allow(), ElementsAre("iqn.y:*"));
  ASSERT_OK(Remove("iqn.y:*"));
  EXPECT_TRUE(rules().restricted()) << "an empty list lets nobody in";
  EXPECT_EQ(rules().allow_size(), 0);
  rpc::ChangeTarget open = Change();
  open.set_open(true);
  ASSERT_OK(ChangeTarget(open, &catalogue_));
  EXPECT_FALSE(rules().restricted());
}

TEST_F(TargetRules, ClosingAndAllowingReplacesTheList) {
  ASSERT_OK(Allow("iqn.x:a"));
  rpc::ChangeTarget change = Change();
  change.set_close(true);
  change.add_allow("iqn.x:b");
  ASSERT_OK(ChangeTarget(change, &catalogue_));
  EXPECT_THAT(rules().allow(), ElementsAre("iqn.x:b"));
  change.clear_allow();
  ASSERT_OK(ChangeTarget(change, &catalogue_));
  EXPECT_TRUE(rules().restricted());
  EXPECT_EQ(rules().allow_size(), 0);
}

// Portals fence by it, and look again when it has changed.
TEST_F(TargetRules, EveryChangeRaisesTheEpochAndARepeatedOneDoesNot) {
  EXPECT_EQ(EpochOf(volume()), 1u);
  ASSERT_OK(Allow("iqn.x:a"));
  EXPECT_EQ(EpochOf(volume()), 2u);
  ASSERT_OK(Allow("iqn.x:a"));
  EXPECT_EQ(EpochOf(volume()), 2u);
  ASSERT_OK(Remove("iqn.x:a"));
  EXPECT_EQ(EpochOf(volume()), 3u);
  ASSERT_OK(Remove("iqn.x:a"));
  EXPECT_EQ(EpochOf(volume()), 3u);
  ASSERT_OK(SetChap(kSecret));
  ASSERT_OK(SetChap(kSecret));
  EXPECT_EQ(EpochOf(volume()), 4u);
  EXPECT_EQ(rules().chap_revision(), 1u);
  rpc::ChangeTarget off = Change();
  off.set_offer(rpc::ChangeTarget::OFF);
  ASSERT_OK(ChangeTarget(off, &catalogue_));
  ASSERT_OK(ChangeTarget(off, &catalogue_));
  EXPECT_EQ(EpochOf(volume()), 5u);
  EXPECT_TRUE(rules().off());
  EXPECT_EQ(rules().chap_revision(), 1u);
}

TEST_F(TargetRules, WhatCannotBeIsRefusedInWordsAndChangesNothing) {
  EXPECT_CODE(Remove("iqn.x:a"), Code::kFailedPrecondition) << "it is open";
  ASSERT_OK(Allow("iqn.x:*"));
  const std::string before = catalogue_.SerializeAsString();
  EXPECT_CODE(Allow("host"), Code::kInvalidArgument);
  EXPECT_CODE(Allow("*"), Code::kInvalidArgument);
  const Status covered = Remove("iqn.x:a");
  EXPECT_CODE(covered, Code::kFailedPrecondition);
  EXPECT_THAT(std::string(covered.message()), HasSubstr("iqn.x:*"));
  const Status brief = SetChap("brief");
  EXPECT_CODE(brief, Code::kInvalidArgument);
  EXPECT_THAT(std::string(brief.message()), HasSubstr("12 to 255"));
  EXPECT_CODE(SetChap(std::string(256, 's')), Code::kInvalidArgument);
  EXPECT_CODE(SetChap(kSecret, kSecret), Code::kInvalidArgument);
  EXPECT_CODE(SetChap("", kOther), Code::kInvalidArgument);
  rpc::ChangeTarget both = Change();
  both.set_open(true);
  both.add_allow("iqn.x:a");
  EXPECT_CODE(ChangeTarget(both, &catalogue_), Code::kInvalidArgument);
  rpc::ChangeTarget nowhere = Change();
  nowhere.set_name("nowhere");
  EXPECT_CODE(ChangeTarget(nowhere, &catalogue_), Code::kNotFound);
  rpc::ChangeTarget many = Change();
  for (int i = 0; i < 65; ++i) many.add_allow("iqn.y:" + std::to_string(i));
  EXPECT_CODE(ChangeTarget(many, &catalogue_), Code::kNoSpace);
  EXPECT_EQ(catalogue_.SerializeAsString(), before);
}

// An older one would ignore them, and tell secrets to everyone.
TEST_F(TargetRules, ThereAreNoneUntilEveryNodeKnowsThem) {
  catalogue_.set_feature_level(kTargetRulesLevel - 1);
  EXPECT_CODE(Allow("iqn.x:a"), Code::kFailedPrecondition);
  rpc::CreateVolume create;
  create.set_name("other");
  create.set_bytes(1 << 20);
  create.set_no_target(true);
  EXPECT_CODE(AddVolume(create, &catalogue_), Code::kFailedPrecondition);
  EXPECT_EQ(catalogue_.volumes_size(), 1);
  catalogue_.set_feature_level(kTargetRulesLevel);
  ASSERT_OK(AddVolume(create, &catalogue_));
  EXPECT_TRUE(catalogue_.volumes(1).target().off());
}

TEST_F(TargetRules, ClientsHearEverythingButSecrets) {
  ASSERT_OK(Allow("iqn.x:a"));
  ASSERT_OK(SetChap(kSecret, kOther));
  const rpc::Catalogue told = WithoutSecrets(catalogue_);
  const std::string bytes = told.SerializeAsString();
  EXPECT_THAT(catalogue_.SerializeAsString(), HasSubstr(kSecret));
  EXPECT_THAT(bytes, Not(HasSubstr(kSecret)));
  EXPECT_THAT(bytes, Not(HasSubstr(kOther)));
  EXPECT_EQ(told.volumes(0).target().initiator().name(), "alice");
  EXPECT_THAT(told.volumes(0).target().allow(), ElementsAre("iqn.x:a"));
}

TEST_F(TargetRules, ThePortalGetsAccountsWithTheirRevision) {
  TargetAccounts accounts;
  const uint32_t id = volume().id();
  accounts.Take(catalogue_);
  EXPECT_FALSE(accounts.Find(id).has_value());
  ASSERT_OK(SetChap(kSecret, kOther));
  accounts.Take(catalogue_);
  auto found = accounts.Find(id);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->revision, 1u);
  EXPECT_EQ(found->accounts.initiator->secret, kSecret);
  EXPECT_EQ(found->accounts.target->secret, kOther);
  ASSERT_OK(SetChap(""));
  accounts.Take(catalogue_);
  found = accounts.Find(id);
  ASSERT_TRUE(found.has_value()) << "that there are none any more is news, too";
  EXPECT_EQ(found->revision, 2u);
  EXPECT_FALSE(found->accounts.initiator.has_value());
}

}  // namespace
}  // namespace hydra
