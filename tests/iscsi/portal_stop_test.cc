// SPDX-License-Identifier: Apache-2.0
//
// A portal that stops while it is used, and what one counts, on sockets.
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/metrics.h"
#include "tests/iscsi/support/portal_thread.h"
#include "tests/iscsi/support/raw_initiator.h"

namespace hydra::iscsi {
namespace {

constexpr char kStopTarget[] = "iqn.2026-11.io.hydra:disk";

// The next thing said is the request to log out, within `seconds`.
testing::AssertionResult AsksForLogout(RawInitiator* initiator, uint16_t seconds) {
  const auto message = initiator->Receive();
  if (!message) return testing::AssertionFailure() << "the connection ended";
  if (message->opcode() != Opcode::kAsyncMessage) {
    return testing::AssertionFailure() << "opcode " << int(message->header.bytes[0]);
  }
  EXPECT_EQ(message->header.task_tag(), kNoTag);
  EXPECT_EQ(message->header.bytes[36], 1) << "the target requests a logout";
  EXPECT_EQ(Get16(&message->header.bytes[42]), seconds);
  return testing::AssertionSuccess();
}

TEST(PlannedStop, WhoIsAskedToLogOutDoesAndIsNotCutOff) {
  PortalThread portal(1, {}, 60 * kSecond);
  portal.Run([&] { portal.directory().Add("disk", 1 << 20); });
  RawInitiator initiator(portal.port());
  ASSERT_TRUE(initiator.LogIn(kStopTarget).moves_on());
  portal.Stop();
  ASSERT_TRUE(AsksForLogout(&initiator, 61));
  // Until then it is served as ever.
  const std::vector<uint8_t> data(512, 'l');
  initiator.Send(initiator.Write(7, 0, 1), data);
  const auto written = initiator.Receive();
  ASSERT_TRUE(written && written->opcode() == Opcode::kScsiResponse);
  EXPECT_EQ(written->status(), 0);
  Header logout(Opcode::kLogoutRequest);
  logout.bytes[0] |= 0x40;
  logout.set_task_tag(9);
  RawInitiator::SetCommandNumber(&logout, initiator.next_command());
  initiator.Send(logout);
  const auto answer = initiator.Receive();
  ASSERT_TRUE(answer && answer->opcode() == Opcode::kLogoutResponse);
  EXPECT_EQ(answer->header.bytes[2], 0);
  EXPECT_TRUE(initiator.WaitForEnd());
  EXPECT_TRUE(portal.WaitForSessions(0));
}

TEST(PlannedStop, WhoTakesNoNoticeIsCutOff) {
  PortalThread portal(1, {}, kSecond / 20);
  portal.Run([&] { portal.directory().Add("disk", 1 << 20); });
  RawInitiator initiator(portal.port());
  ASSERT_TRUE(initiator.LogIn(kStopTarget).moves_on());
  portal.Stop();
  EXPECT_TRUE(AsksForLogout(&initiator, 1));
  EXPECT_TRUE(initiator.WaitForEnd());
  EXPECT_TRUE(portal.WaitForSessions(0));
}

TEST(PortalMetrics, CountDigestsOfHeadersAndOfData) {
  MetricsRegistry registry;
  PortalOptions options;
  options.metrics = &registry;
  PortalThread portal(1, options);
  portal.Run([&] { portal.directory().Add("disk", 1 << 20); });
  const auto counted = [&] { return SessionMetrics::Of(kStopTarget, &registry).digests->value(); };
  RawInitiator initiator(portal.port());
  ASSERT_TRUE(initiator.LogIn(kStopTarget, {{"HeaderDigest", "CRC32C"}, {"DataDigest", "CRC32C"}})
                  .moves_on());
  EXPECT_EQ(counted(), 0u);
  const std::vector<uint8_t> data(512, 'd');
  initiator.Send(initiator.Write(7, 0, 1), data, RawInitiator::Damage::kDataDigest);
  const auto reject = initiator.Receive();
  ASSERT_TRUE(reject && reject->opcode() == Opcode::kReject);
  EXPECT_EQ(counted(), 1u);
  initiator.Send(initiator.Write(8, 0, 1), data, RawInitiator::Damage::kHeaderDigest);
  EXPECT_TRUE(initiator.WaitForEnd());
  EXPECT_EQ(counted(), 2u);
}

}  // namespace
}  // namespace hydra::iscsi
