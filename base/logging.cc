// SPDX-License-Identifier: Apache-2.0
#include "base/logging.h"

#include <memory>
#include <mutex>
#include <utility>

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

namespace hydra {

namespace {

using Sink = std::function<void(LogLevel, std::string_view)>;

struct Output {
  std::mutex mutex;
  Sink sink;                                // guarded by mutex
  std::shared_ptr<spdlog::logger> stderr_;  // locks by itself
};

// Never destroyed: threads may log while the process exits.
Output& GetOutput() {
  static Output* const output = [] {
    auto* created = new Output;
    created->stderr_ = std::make_shared<spdlog::logger>(
        "hydra", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    created->stderr_->set_level(spdlog::level::trace);
    created->stderr_->flush_on(spdlog::level::trace);
    created->stderr_->set_pattern("%Y-%m-%dT%H:%M:%S.%e%z %t %l %v");
    return created;
  }();
  return *output;
}

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug: return spdlog::level::debug;
    case LogLevel::kInfo: return spdlog::level::info;
    case LogLevel::kWarn: return spdlog::level::warn;
    case LogLevel::kError: return spdlog::level::err;
    case LogLevel::kOff: break;
  }
  return spdlog::level::off;
}

}  // namespace

std::string_view LogLevelName(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug: return "debug";
    case LogLevel::kInfo: return "info";
    case LogLevel::kWarn: return "warning";
    case LogLevel::kError: return "error";
    case LogLevel::kOff: break;
  }
  return "off";
}

void SetLogLevel(LogLevel level) {
  log_internal::current_level.store(static_cast<int>(level), std::memory_order_relaxed);
}

void SetLogSink(Sink sink) {
  Output& output = GetOutput();
  std::lock_guard<std::mutex> lock(output.mutex);
  output.sink = std::move(sink);
}

namespace log_internal {

std::atomic<int> current_level{static_cast<int>(LogLevel::kInfo)};

void Write(LogLevel level, const std::string& line) {
  Output& output = GetOutput();
  {
    std::lock_guard<std::mutex> lock(output.mutex);
    if (output.sink) {
      output.sink(level, line);
      return;
    }
  }
  output.stderr_->log(ToSpdlog(level), line);
}

}  // namespace log_internal

}  // namespace hydra
