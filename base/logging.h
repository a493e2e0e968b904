// SPDX-License-Identifier: Apache-2.0
//
// Logging in one line: HYDRA_LOG_WARN("segment {}: {}", number, status.ToString()). Arguments are
// not evaluated below the current level. spdlog stays behind this header, so that logging costs
// other files little to compile. Thread-safe.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <string_view>

#include <fmt/format.h>

namespace hydra {

enum class LogLevel : int { kDebug = 0, kInfo = 1, kWarn = 2, kError = 3, kOff = 4 };

std::string_view LogLevelName(LogLevel level);

// Starts as kInfo.
void SetLogLevel(LogLevel level);

// Where lines go instead of stderr; an empty function goes back to stderr. The sink is called by
// the thread that logs, one call at a time, and must not log itself.
void SetLogSink(std::function<void(LogLevel, std::string_view)> sink);

namespace log_internal {
extern std::atomic<int> current_level;
void Write(LogLevel level, const std::string& line);
}  // namespace log_internal

inline bool LogEnabled(LogLevel level) {
  return static_cast<int>(level) >= log_internal::current_level.load(std::memory_order_relaxed);
}

}  // namespace hydra

#define HYDRA_LOG_AT(level, ...)                                       \
  do {                                                                 \
    if (::hydra::LogEnabled(level)) {                                  \
      ::hydra::log_internal::Write(level, ::fmt::format(__VA_ARGS__)); \
    }                                                                  \
  } while (0)

#define HYDRA_LOG_DEBUG(...) HYDRA_LOG_AT(::hydra::LogLevel::kDebug, __VA_ARGS__)
#define HYDRA_LOG_INFO(...) HYDRA_LOG_AT(::hydra::LogLevel::kInfo, __VA_ARGS__)
#define HYDRA_LOG_WARN(...) HYDRA_LOG_AT(::hydra::LogLevel::kWarn, __VA_ARGS__)
#define HYDRA_LOG_ERROR(...) HYDRA_LOG_AT(::hydra::LogLevel::kError, __VA_ARGS__)
