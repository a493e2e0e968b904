// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/gtest_status.h"
#include "tests/support/install_driver.h"

namespace hydra::test {

inline InstallDriver::Options Delta() {
  InstallDriver::Options options;
  options.mode = InstallMode::kDelta;
  return options;
}

inline InstallDriver::Options Newer() {
  InstallDriver::Options options;
  options.newer = true;
  return options;
}

// A source and a target with group 1, blocks of one page; nothing applied yet.
class InstallTest : public testing::Test {
 protected:
  InstallTest() : source_(Store::Options()), target_(Store::Options()) {
    source_.MustStart();
    target_.MustStart();
  }
  ~InstallTest() override {
    EXPECT_EQ(source_.Problems(), "");
    EXPECT_EQ(target_.Problems(), "");
  }

  // An entry at the source, chosen, applied and checkpointed.
  void AtSource(std::vector<Operation> operations) {
    ASSERT_OK(source_.Propose(1, std::move(operations)));
    ASSERT_OK(source_.Settle());
    ASSERT_OK(source_.Checkpoint());
  }

  InstallDriver Driver(const InstallDriver::Options& options = {}) {
    return InstallDriver(&source_, &target_, 1, options);
  }

  GroupInfo Info() { return *target_->Info(1); }

  void ExpectEqualReplicas() {
    EXPECT_EQ(Differences(&source_, &target_, 1), "");
    EXPECT_EQ(target_.VerifySettled(), "");
  }

  Store source_;
  Store target_;
};

}  // namespace hydra::test
