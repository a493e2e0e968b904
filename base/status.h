// SPDX-License-Identifier: Apache-2.0
//
// Status and Result<T>: how everything that may fail in a healthy program reports it. Both are
// [[nodiscard]]: a failure nobody looked at is a bug. What may not fail in a healthy program is
// asserted with HYDRA_CHECK (base/check.h) instead. No exception crosses a module border.
#pragma once

#include <cassert>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace hydra {

enum class Code : unsigned char {
  kOk = 0,
  kInvalidArgument,     // the caller passed something that can never work
  kNotFound,            // a named thing does not exist
  kAlreadyExists,       // a named thing exists already
  kOutOfRange,          // beyond the end, or behind a horizon
  kFailedPrecondition,  // the thing is in the wrong state for this call
  kCorruption,          // bytes were read that are not what was written
  kIoError,             // the operating system refused a call
  kNoSpace,             // out of space; reading and freeing still work
  kBusy,                // a bounded queue is full; try again later
  kUnavailable,         // cannot be had now, through no fault of the caller
  kPoisoned,            // an earlier write or flush failed; nothing works any more
  kUnsupported,         // a newer format or an unknown operation
  kAborted,             // given up, for example by a shutdown
  kStale,               // something newer stands than the caller knew of
  kFenced,              // the caller's rights were narrowed since it looked
};

// The code's name as a person reads it: "no space".
std::string_view CodeName(Code code);

// A code and a sentence that says what happened and, where possible, what to do. Cheap to copy
// when OK (one null pointer).
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message);

  static Status Ok() { return Status(); }
  static Status InvalidArgument(std::string m) { return {Code::kInvalidArgument, std::move(m)}; }
  static Status NotFound(std::string m) { return {Code::kNotFound, std::move(m)}; }
  static Status AlreadyExists(std::string m) { return {Code::kAlreadyExists, std::move(m)}; }
  static Status OutOfRange(std::string m) { return {Code::kOutOfRange, std::move(m)}; }
  static Status FailedPrecondition(std::string m) {
    return {Code::kFailedPrecondition, std::move(m)};
  }
  static Status Corruption(std::string m) { return {Code::kCorruption, std::move(m)}; }
  static Status IoError(std::string m) { return {Code::kIoError, std::move(m)}; }
  static Status NoSpace(std::string m) { return {Code::kNoSpace, std::move(m)}; }
  static Status Busy(std::string m) { return {Code::kBusy, std::move(m)}; }
  static Status Unavailable(std::string m) { return {Code::kUnavailable, std::move(m)}; }
  static Status Poisoned(std::string m) { return {Code::kPoisoned, std::move(m)}; }
  static Status Unsupported(std::string m) { return {Code::kUnsupported, std::move(m)}; }
  static Status Aborted(std::string m) { return {Code::kAborted, std::move(m)}; }
  static Status Stale(std::string m) { return {Code::kStale, std::move(m)}; }
  static Status Fenced(std::string m) { return {Code::kFenced, std::move(m)}; }

  bool ok() const { return rep_ == nullptr; }
  Code code() const { return rep_ ? rep_->code : Code::kOk; }
  std::string_view message() const { return rep_ ? std::string_view(rep_->message) : ""; }

  // "no space: the disk limit of 10 GiB is reached"
  std::string ToString() const;

  // The same failure with `context` put before its message: "open segment 7: ...".
  Status WithContext(std::string_view context) const;

  // For the rare place where a failure is known to be harmless; says so to the reader.
  void IgnoreError() const {}

 private:
  struct Rep {
    Code code;
    std::string message;
  };
  std::shared_ptr<const Rep> rep_;
};

// Either a value or a failed Status. Reading the value of a failed Result aborts.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}         // NOLINT: implicit by design
  Result(Status status) : status_(std::move(status)) {  // NOLINT: implicit by design
    assert(!status_.ok());
  }

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }

  T& value() & { return Checked(); }
  const T& value() const& { return const_cast<Result*>(this)->Checked(); }
  T&& value() && { return std::move(Checked()); }
  T& operator*() & { return Checked(); }
  const T& operator*() const& { return const_cast<Result*>(this)->Checked(); }
  T* operator->() { return &Checked(); }
  const T* operator->() const { return &const_cast<Result*>(this)->Checked(); }

 private:
  T& Checked();

  Status status_;
  std::optional<T> value_;
};

namespace status_internal {
[[noreturn]] void DieOnBadAccess(const Status& status);
}

template <typename T>
T& Result<T>::Checked() {
  if (!value_.has_value()) status_internal::DieOnBadAccess(status_);
  return *value_;
}

}  // namespace hydra

#define HYDRA_CONCAT_INNER(a, b) a##b
#define HYDRA_CONCAT(a, b) HYDRA_CONCAT_INNER(a, b)

// Returns from the enclosing function when `expr` (a Status) failed.
#define HYDRA_RETURN_IF_ERROR(expr)                                    \
  do {                                                                 \
    if (::hydra::Status hydra_status_ = (expr); !hydra_status_.ok()) { \
      return hydra_status_;                                            \
    }                                                                  \
  } while (0)

// HYDRA_ASSIGN_OR_RETURN(auto file, fs->Open(path)): unwraps a Result or returns its Status.
#define HYDRA_ASSIGN_OR_RETURN(lhs, expr) \
  HYDRA_ASSIGN_OR_RETURN_IMPL(HYDRA_CONCAT(hydra_result_, __LINE__), lhs, expr)
#define HYDRA_ASSIGN_OR_RETURN_IMPL(tmp, lhs, expr) \
  auto tmp = (expr);                                \
  if (!tmp.ok()) return tmp.status();               \
  lhs = std::move(tmp).value()
