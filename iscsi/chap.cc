// SPDX-License-Identifier: Apache-2.0
#include "iscsi/chap.h"

#include <sys/random.h>

#include <algorithm>

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>

#include "base/check.h"
#include "iscsi/text.h"

namespace hydra::iscsi {
namespace {

Status CheckAccount(const ChapAccount& account) {
  if (account.name.empty() || account.name.size() > kMaxSecretBytes) {
    return Status::InvalidArgument("a CHAP name has 1 to 255 characters");
  }
  if (account.secret.size() < kMinSecretBytes || account.secret.size() > kMaxSecretBytes) {
    return Status::InvalidArgument(fmt::format("the CHAP secret of '{}' must have {} to {} bytes",
                                               account.name, kMinSecretBytes, kMaxSecretBytes));
  }
  return Status::Ok();
}

}  // namespace

Status ChapAccounts::Check() const {
  if (initiator) HYDRA_RETURN_IF_ERROR(CheckAccount(*initiator));
  if (target) HYDRA_RETURN_IF_ERROR(CheckAccount(*target));
  if (target && !initiator) {
    return Status::InvalidArgument("mutual CHAP needs a secret for initiators as well");
  }
  if (initiator && target && initiator->secret == target->secret) {
    return Status::InvalidArgument("the two secrets of mutual CHAP must differ");
  }
  return Status::Ok();
}

std::optional<ChapHash> ChooseChapHash(std::string_view offered) {
  const std::vector<std::string_view> items = SplitList(offered);
  for (const ChapHash hash : {ChapHash::kSha256, ChapHash::kMd5}) {
    for (const std::string_view item : items) {
      if (ParseNumber(item) == static_cast<uint32_t>(hash)) return hash;
    }
  }
  return std::nullopt;
}

size_t ChapResponseBytes(ChapHash hash) { return hash == ChapHash::kMd5 ? 16 : 32; }

std::vector<uint8_t> ChapResponse(ChapHash hash, uint8_t identifier, std::string_view secret,
                                  std::span<const uint8_t> challenge) {
  std::vector<uint8_t> digest(ChapResponseBytes(hash));
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  HYDRA_CHECK(context != nullptr);
  const EVP_MD* algorithm = hash == ChapHash::kMd5 ? EVP_md5() : EVP_sha256();
  unsigned length = 0;
  const bool done = EVP_DigestInit_ex(context, algorithm, nullptr) == 1 &&
                    EVP_DigestUpdate(context, &identifier, 1) == 1 &&
                    EVP_DigestUpdate(context, secret.data(), secret.size()) == 1 &&
                    EVP_DigestUpdate(context, challenge.data(), challenge.size()) == 1 &&
                    EVP_DigestFinal_ex(context, digest.data(), &length) == 1;
  EVP_MD_CTX_free(context);
  HYDRA_CHECK(done && length == digest.size());
  return digest;
}

std::vector<uint8_t> RandomBytes(size_t count) {
  std::vector<uint8_t> bytes(count);
  HYDRA_CHECK(count <= 256);  // up to here getrandom gives all or nothing
  HYDRA_CHECK(getrandom(bytes.data(), count, 0) == static_cast<ssize_t>(count));
  return bytes;
}

bool EqualInConstantTime(std::span<const uint8_t> a, std::span<const uint8_t> b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace hydra::iscsi
