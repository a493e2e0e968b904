// SPDX-License-Identifier: Apache-2.0
#include "base/status.h"

#include <cstdio>
#include <cstdlib>

namespace hydra {

std::string_view CodeName(Code code) {
  switch (code) {
    case Code::kOk: return "ok";
    case Code::kInvalidArgument: return "invalid argument";
    case Code::kNotFound: return "not found";
    case Code::kAlreadyExists: return "already exists";
    case Code::kOutOfRange: return "out of range";
    case Code::kFailedPrecondition: return "failed precondition";
    case Code::kCorruption: return "corruption";
    case Code::kIoError: return "I/O error";
    case Code::kNoSpace: return "no space";
    case Code::kBusy: return "busy";
    case Code::kUnavailable: return "unavailable";
    case Code::kPoisoned: return "poisoned";
    case Code::kUnsupported: return "unsupported";
    case Code::kAborted: return "aborted";
    case Code::kStale: return "stale";
    case Code::kFenced: return "fenced";
  }
  return "unknown code";
}

Status::Status(Code code, std::string message) {
  if (code != Code::kOk) rep_ = std::make_shared<const Rep>(Rep{code, std::move(message)});
}

std::string Status::ToString() const {
  if (ok()) return "ok";
  std::string text(CodeName(rep_->code));
  if (!rep_->message.empty()) text.append(": ").append(rep_->message);
  return text;
}

Status Status::WithContext(std::string_view context) const {
  if (ok()) return *this;
  std::string text(context);
  text.append(": ").append(rep_->message);
  return Status(rep_->code, std::move(text));
}

namespace status_internal {

void DieOnBadAccess(const Status& status) {
  std::fprintf(stderr, "fatal: value of a failed Result: %s\n", status.ToString().c_str());
  std::abort();
}

}  // namespace status_internal
}  // namespace hydra
