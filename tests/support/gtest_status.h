// SPDX-License-Identifier: Apache-2.0
//
// GoogleTest's words for Status.
#pragma once

#include <gtest/gtest.h>

#include "base/status.h"

namespace hydra::test {

inline testing::AssertionResult IsOk(const char* expression, const Status& status) {
  if (status.ok()) return testing::AssertionSuccess();
  return testing::AssertionFailure() << expression << ": " << status.ToString();
}

// Fails with this code, and says something.
inline testing::AssertionResult HasCode(const char* expression, const char*, const Status& status,
                                        Code code) {
  if (status.code() == code && !status.message().empty()) return testing::AssertionSuccess();
  return testing::AssertionFailure()
         << expression << ": " << status.ToString() << "; expected: " << CodeName(code);
}

}  // namespace hydra::test

#define ASSERT_OK(expr) ASSERT_PRED_FORMAT1(::hydra::test::IsOk, expr)
#define EXPECT_OK(expr) EXPECT_PRED_FORMAT1(::hydra::test::IsOk, expr)
#define EXPECT_CODE(expr, code) EXPECT_PRED_FORMAT2(::hydra::test::HasCode, expr, code)
