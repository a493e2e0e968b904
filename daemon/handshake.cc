// SPDX-License-Identifier: Apache-2.0
#include "daemon/handshake.h"

#include <sys/random.h>

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "base/check.h"
#include "base/coding.h"

namespace hydra {

std::string MakeNonce() {
  std::string nonce(kNonceBytes, '\0');
  HYDRA_CHECK(getrandom(nonce.data(), nonce.size(), 0) == static_cast<ssize_t>(nonce.size()));
  return nonce;
}

std::string MakeProof(std::string_view secret, ProofOf who, const HandshakeFacts& facts) {
  std::string text = who == ProofOf::kCaller ? "hydra caller" : "hydra callee";
  text.append(reinterpret_cast<const char*>(facts.cluster.bytes.data()),
              facts.cluster.bytes.size());
  PutFixed32(&text, facts.caller);
  PutFixed32(&text, facts.callee);
  text += facts.caller_nonce;
  text += facts.callee_nonce;
  std::string proof(EVP_MAX_MD_SIZE, '\0');
  unsigned length = 0;
  const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
  HYDRA_CHECK(HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()), bytes, text.size(),
                   reinterpret_cast<unsigned char*>(proof.data()), &length) != nullptr);
  proof.resize(length);
  return proof;
}

bool ProofIsGood(std::string_view secret, ProofOf who, const HandshakeFacts& facts,
                 std::string_view proof) {
  if (facts.caller_nonce.size() != kNonceBytes || facts.callee_nonce.size() != kNonceBytes) {
    return false;
  }
  const std::string expected = MakeProof(secret, who, facts);
  return proof.size() == expected.size() &&
         CRYPTO_memcmp(proof.data(), expected.data(), expected.size()) == 0;
}

}  // namespace hydra
