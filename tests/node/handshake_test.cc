// SPDX-License-Identifier: Apache-2.0
#include "daemon/handshake.h"

#include <gtest/gtest.h>

namespace hydra {
namespace {

constexpr std::string_view kSecret = "a secret of the cluster";

HandshakeFacts Facts() { return {Uuid::Random(), 1, 2, MakeNonce(), MakeNonce()}; }

TEST(Handshake, ProvesTheSecretToTheOtherSide) {
  const HandshakeFacts facts = Facts();
  const std::string caller = MakeProof(kSecret, ProofOf::kCaller, facts);
  EXPECT_TRUE(ProofIsGood(kSecret, ProofOf::kCaller, facts, caller));
  // What one side said proves nothing for the other.
  EXPECT_FALSE(ProofIsGood(kSecret, ProofOf::kCallee, facts, caller));
  EXPECT_FALSE(ProofIsGood("another secret", ProofOf::kCaller, facts, caller));
  EXPECT_FALSE(ProofIsGood(kSecret, ProofOf::kCaller, facts, ""));
  EXPECT_FALSE(ProofIsGood(kSecret, ProofOf::kCaller, facts, caller.substr(1)));
}

TEST(Handshake, IsBoundToEverythingThatWasSaid) {
  const HandshakeFacts facts = Facts();
  const std::string proof = MakeProof(kSecret, ProofOf::kCaller, facts);
  HandshakeFacts other = facts;
  other.cluster = Uuid::Random();
  EXPECT_FALSE(ProofIsGood(kSecret, ProofOf::kCaller, other, proof));
  other = facts;
  other.caller = 3;
  EXPECT_FALSE(ProofIsGood(kSecret, ProofOf::kCaller, other, proof));
  other = facts;
  other.callee = 3;
  EXPECT_FALSE(ProofIsGood(kSecret, ProofOf::kCaller, other, proof));
  other = facts;
  other.callee_nonce = MakeNonce();
  EXPECT_FALSE(ProofIsGood(kSecret, ProofOf::kCaller, other, proof));
  other = facts;
  other.caller_nonce = "short";
  EXPECT_FALSE(ProofIsGood(kSecret, ProofOf::kCaller, other, proof));
}

TEST(Handshake, NoNonceComesTwice) { EXPECT_NE(MakeNonce(), MakeNonce()); }

}  // namespace
}  // namespace hydra
