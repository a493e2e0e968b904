// SPDX-License-Identifier: Apache-2.0
#include "iscsi/text.h"

#include <gtest/gtest.h>

#include "base/coding.h"
#include "tests/support/gtest_status.h"

namespace hydra::iscsi {
namespace {

Result<std::vector<KeyValue>> Parse(std::string_view text) { return ParseText(AsBytes(text)); }

TEST(Text, KeysKeepTheirOrderAndEmptyValues) {
  const auto keys = Parse(std::string_view("B=2\0A=\0\0", 8));
  ASSERT_OK(keys.status());
  ASSERT_EQ(keys->size(), 2u);
  EXPECT_EQ((*keys)[0].key, "B");
  EXPECT_EQ((*keys)[1].value, "");
}

TEST(Text, WhatIsNotKeysIsRefused) {
  EXPECT_FALSE(Parse("no equals").ok());
  EXPECT_FALSE(Parse("lower=1").ok());
  EXPECT_FALSE(Parse("=1").ok());
  EXPECT_FALSE(Parse(std::string(64, 'K') + "=1").ok());
  EXPECT_FALSE(Parse("Key=" + std::string(kMaxKeyValue + 1, 'v')).ok());
  EXPECT_FALSE(Parse(std::string_view("A=1\0A=2\0", 8)).ok()) << "one of them twice";
  EXPECT_FALSE(Parse(std::string(kMaxTextBytes + 1, '\0')).ok());
  std::string many;
  for (size_t i = 0; i <= kMaxKeys; ++i) AppendText("K" + std::to_string(i), "v", &many);
  EXPECT_FALSE(Parse(many).ok());
}

TEST(Text, Numbers) {
  EXPECT_EQ(ParseNumber("512"), 512u);
  EXPECT_EQ(ParseNumber("0x200"), 512u);
  EXPECT_FALSE(ParseNumber("").has_value());
  EXPECT_FALSE(ParseNumber("12k").has_value());
  EXPECT_FALSE(ParseNumber("4294967296").has_value());
  EXPECT_FALSE(ParseNumber("-1").has_value());
}

TEST(Text, BinaryValues) {
  EXPECT_EQ(ParseBinary("0x0aFF", 2), (std::vector<uint8_t>{0x0a, 0xff}));
  EXPECT_EQ(ParseBinary("0xabc", 2), (std::vector<uint8_t>{0x0a, 0xbc}));
  EXPECT_EQ(ParseBinary("0bAQID", 3), (std::vector<uint8_t>{1, 2, 3}));
  EXPECT_FALSE(ParseBinary("0x010203", 2).has_value()) << "longer than allowed";
  EXPECT_FALSE(ParseBinary("0xzz", 2).has_value());
  EXPECT_FALSE(ParseBinary("0b!!", 2).has_value());
  EXPECT_FALSE(ParseBinary("0x", 2).has_value());
  EXPECT_FALSE(ParseBinary("12", 2).has_value());
  EXPECT_EQ(HexBinary(std::vector<uint8_t>{0x0a, 0xff}), "0x0aff");
}

TEST(Text, Names) {
  EXPECT_TRUE(ValidName("iqn.1993-08.org.debian:01:abc"));
  EXPECT_FALSE(ValidName("iqn.a b"));
  EXPECT_FALSE(ValidName("iqn.a,b"));
  EXPECT_FALSE(ValidName("nobody"));
  EXPECT_FALSE(ValidName("iqn." + std::string(220, 'x')));
}

}  // namespace
}  // namespace hydra::iscsi
