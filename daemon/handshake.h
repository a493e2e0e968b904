// SPDX-License-Identifier: Apache-2.0
//
// Who may talk to whom. A peer proves that it knows the cluster's secret, and so does the one it
// calls, without saying it: each answers the other's random number.
#pragma once

#include <string>
#include <string_view>

#include "base/ids.h"
#include "base/uuid.h"

namespace hydra {

inline constexpr uint32_t kProtocolVersion = 1;
// What this build can read and do, beyond what every build can. The cluster uses a feature only
// when all its nodes can (Catalogue::feature_level), so that they may be upgraded one after the
// other.
// 2: rules of targets; 3: logical blocks of 4096; 4: owed blocks.
inline constexpr uint32_t kFeatureLevel = 4;
inline constexpr size_t kNonceBytes = 16;

// What both sides of a handshake know.
struct HandshakeFacts {
  Uuid cluster;
  NodeId caller = 0;
  NodeId callee = 0;
  std::string caller_nonce;
  std::string callee_nonce;
};

enum class ProofOf { kCaller, kCallee };

std::string MakeNonce();
std::string MakeProof(std::string_view secret, ProofOf who, const HandshakeFacts& facts);
// In constant time.
bool ProofIsGood(std::string_view secret, ProofOf who, const HandshakeFacts& facts,
                 std::string_view proof);

}  // namespace hydra
