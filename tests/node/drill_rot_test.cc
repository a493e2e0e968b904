// SPDX-License-Identifier: Apache-2.0
#include "daemon/drill_rot.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/gtest_status.h"
#include "tests/support/store_fixture.h"

namespace hydra {
namespace {

using Json = nlohmann::json;

// Group 1 has blocks 0 to 15, the first eight of them in the checkpoint.
class DrillRotTest : public testing::Test {
 protected:
  void SetUp() override {
    store_.MustStart();
    for (Lba lba = 0; lba < 16; ++lba) {
      ASSERT_OK(store_.Write(1, lba));
      ASSERT_OK(store_.Flush());
      ASSERT_OK(store_.Apply(1));
      if (lba == 7) {
        ASSERT_OK(store_.Checkpoint());
      }
    }
    // The cluster's group 5 is group 1 of this store.
    const auto store_group = [](GroupId group) {
      return group == 5 ? std::optional<GroupId>(1) : std::nullopt;
    };
    rot_ = std::make_unique<DrillRot>(&store_.disk(), store_.engine(), test::kStoreDirectory,
                                      store_group, 1);
  }

  Json Said() {
    const Result<std::string> said = rot_->Describe();
    EXPECT_OK(said.status());
    return Json::parse(said.ok() ? *said : "null", nullptr, false);
  }
  std::vector<Damage> Scrubbed() {
    std::vector<Damage> found;
    for (bool end = false; !end;) {
      const Result<bool> scrubbed = store_->Scrub(1 << 20, &found);
      EXPECT_OK(scrubbed.status());
      end = !scrubbed.ok() || *scrubbed;
    }
    return found;
  }

  test::Store store_{{}};
  std::unique_ptr<DrillRot> rot_;
};

TEST_F(DrillRotTest, WhatMakesNoSenseIsRefusedAndDamagesNothing) {
  for (const char* body : {"", "[]", "{}", R"({"blocks":[1]})", R"({"blocks":{"5":3}})",
                           R"({"blocks":{"5":[-3]}})", R"({"blocks":{"one":[3]}})",
                           R"({"blocks":{"0":[3]}})", R"({"blocks":{"5":[3]},"bits":2})"}) {
    EXPECT_EQ(rot_->Damage(body).code(), Code::kInvalidArgument) << body;
  }
  std::vector<Lba> many(DrillRot::kMostBlocks + 1);
  EXPECT_EQ(rot_->Damage(Json{{"blocks", {{"5", many}}}}.dump()).code(), Code::kInvalidArgument);
  EXPECT_EQ(Said()["damaged"], 0);
  EXPECT_TRUE(Scrubbed().empty());
}

TEST_F(DrillRotTest, DamagesTheNamedBlocksAndNoOthersAndAScrubFindsJustThose) {
  // Block 99 holds nothing, and there is no group 1.
  ASSERT_OK(rot_->Damage(R"({"blocks":{"5":[2, 11, 99], "1":[1]}})"));
  const Json said = Said();
  EXPECT_EQ(said["asked"], 4);
  EXPECT_EQ(said["damaged"], 2);
  EXPECT_EQ(said["rotten"], 2);
  EXPECT_EQ(said["still"], Json({"group 5 block 2", "group 5 block 11"}));
  std::vector<Lba> found;
  for (const Damage& damage : Scrubbed()) found.push_back(damage.lba);
  EXPECT_THAT(found, testing::UnorderedElementsAre(2, 11));
  for (Lba lba = 0; lba < 16; ++lba) {
    EXPECT_EQ(store_->Read(1, lba, 1).ok(), lba != 2 && lba != 11) << lba;
  }
}

TEST_F(DrillRotTest, TellsRepairedFromOverwrittenFromStillRotten) {
  std::vector<Buffer> good;
  for (Lba lba = 0; lba < 4; ++lba) {
    auto read = store_->Read(1, lba, 1);
    ASSERT_OK(read.status());
    good.push_back(std::move(read->data));
  }
  ASSERT_OK(rot_->Damage(R"({"blocks":{"5":[0, 1, 2, 3]}})"));
  const std::vector<Damage> found = Scrubbed();
  ASSERT_EQ(found.size(), 4u);
  ASSERT_OK(store_->Repair(found[0], {{good[found[0].lba], 0, kPageSize}}, store_.NextToken()));
  ASSERT_OK(store_.Flush());
  ASSERT_OK(store_.Write(1, found[1].lba));
  ASSERT_OK(store_.Unmap(1, found[2].lba));
  ASSERT_OK(store_.Settle());
  const Json said = Said();
  EXPECT_EQ(said["damaged"], 4);
  EXPECT_EQ(said["repaired"], 1);
  EXPECT_EQ(said["overwritten"], 2);
  EXPECT_EQ(said["rotten"], 1);
}

}  // namespace
}  // namespace hydra
