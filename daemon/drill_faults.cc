// SPDX-License-Identifier: Apache-2.0
#include "daemon/drill_faults.h"

#include <algorithm>
#include <limits>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/logging.h"

namespace hydra {
namespace {

using Json = nlohmann::json;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr int64_t kLongest = 600'000;      // ms that faults may last
constexpr int64_t kLongestDelay = 10'000;  // ms
constexpr size_t kMaxDelayed = 100'000;    // messages; the next ones are lost

Status Wrong(const std::string& what) {
  return Status::InvalidArgument(what + "; see docs/drills.md, \"Fault hooks\"");
}

Result<int64_t> Number(const Json& object, const char* name, int64_t most, int64_t otherwise = 0) {
  const auto found = object.find(name);
  if (found == object.end()) return otherwise;
  if (!found->is_number_integer() || found->get<int64_t>() < 0 || found->get<int64_t>() > most) {
    return Wrong(fmt::format("'{}' is to be a number from 0 to {}", name, most));
  }
  return found->get<int64_t>();
}

Result<bool> Flag(const Json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end()) return false;
  if (!found->is_boolean()) return Wrong(fmt::format("'{}' is to be true or false", name));
  return found->get<bool>();
}

Status OnlyThese(const Json& object, const char* where,
                 std::initializer_list<std::string_view> names) {
  if (!object.is_object()) return Wrong(fmt::format("{} is to be an object", where));
  for (const auto& [name, value] : object.items()) {
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      return Wrong(fmt::format("'{}' is not known in {}", name, where));
    }
  }
  return Status::Ok();
}

}  // namespace

DrillFaults::DrillFaults(boost::asio::io_context* io) : timer_(*io), expiry_(*io), rng_(1) {}

DrillFaults::~DrillFaults() { Clear(false); }

Status DrillFaults::Set(const std::string& body) {
  const Json json = Json::parse(body, nullptr, false);
  HYDRA_RETURN_IF_ERROR(OnlyThese(json, "what was posted", {"for_ms", "links", "disk"}));
  HYDRA_ASSIGN_OR_RETURN(const int64_t lasts, Number(json, "for_ms", kLongest, kLongest));
  std::map<NodeId, Link> links;
  const Json wanted = json.value("links", Json::object());
  if (!wanted.is_object()) return Wrong("'links' is to be an object");
  for (const auto& [name, value] : wanted.items()) {
    HYDRA_RETURN_IF_ERROR(OnlyThese(value, "a link", {"drop", "delay_ms", "loss_percent"}));
    char* end = nullptr;
    const unsigned long peer = std::strtoul(name.c_str(), &end, 10);
    if (peer == 0 || peer > std::numeric_limits<NodeId>::max() || *end != '\0') {
      return Wrong(fmt::format("'{}' is not the number of a node", name));
    }
    Link& link = links[static_cast<NodeId>(peer)];
    HYDRA_ASSIGN_OR_RETURN(link.drop, Flag(value, "drop"));
    HYDRA_ASSIGN_OR_RETURN(const int64_t delay, Number(value, "delay_ms", kLongestDelay));
    HYDRA_ASSIGN_OR_RETURN(const int64_t loss, Number(value, "loss_percent", 100));
    link.delay = milliseconds(delay);
    link.loss_percent = static_cast<unsigned>(loss);
  }
  const Json disk = json.value("disk", Json::object());
  HYDRA_RETURN_IF_ERROR(OnlyThese(disk, "'disk'", {"write_delay_ms", "fail_writes", "full"}));
  HYDRA_ASSIGN_OR_RETURN(const int64_t write_delay, Number(disk, "write_delay_ms", kLongestDelay));
  HYDRA_ASSIGN_OR_RETURN(const bool fail, Flag(disk, "fail_writes"));
  HYDRA_ASSIGN_OR_RETURN(const bool full, Flag(disk, "full"));

  Clear(true);
  if (json.empty()) {
    HYDRA_LOG_INFO("drill: no faults any more");
    return Status::Ok();
  }
  links_ = std::move(links);
  write_delay_ms_ = write_delay;
  fail_writes_ = fail;
  full_ = full;
  HYDRA_LOG_WARN("drill: {}", body.substr(0, 400));
  until_ = steady_clock::now() + milliseconds(lasts);
  expiry_.expires_at(until_);
  expiry_.async_wait([this](const boost::system::error_code& error) {
    if (error) return;
    HYDRA_LOG_WARN(
        "drill: the faults have lasted as long as they were to; there are none any more");
    Clear(true);
  });
  return Status::Ok();
}

void DrillFaults::Clear(bool deliver) {
  links_.clear();
  write_delay_ms_ = 0;
  fail_writes_ = false;
  full_ = false;
  expiry_.cancel();
  timer_.cancel();
  std::multimap<TimePoint, std::function<void()>> delayed = std::move(delayed_);
  delayed_.clear();
  if (!deliver) return;
  for (const auto& [due, call] : delayed) call();
}

std::string DrillFaults::Describe() const {
  Json links = Json::object();
  for (const auto& [peer, link] : links_) {
    links[std::to_string(peer)] = {
        {"drop", link.drop}, {"delay_ms", link.delay.count()}, {"loss_percent", link.loss_percent}};
  }
  const bool any = !links_.empty() || write_delay_ms_ > 0 || fail_writes_ || full_;
  const auto left = std::chrono::duration_cast<milliseconds>(until_ - steady_clock::now()).count();
  const Json json{{"for_ms", any ? std::max<int64_t>(left, 0) : 0},
                  {"links", links},
                  {"disk",
                   {{"write_delay_ms", write_delay_ms_.load()},
                    {"fail_writes", fail_writes_.load()},
                    {"full", full_.load()}}},
                  {"messages_lost", dropped_},
                  {"messages_delayed_now", delayed_.size()},
                  {"writes_delayed", delayed_writes_.load()}};
  return json.dump(2) + "\n";
}

void DrillFaults::Pass(NodeId peer, std::function<void()> deliver) {
  const Link& link = links_.at(peer);
  const bool lost = link.drop || (link.loss_percent > 0 && rng_.Percent(link.loss_percent));
  if (lost || (link.delay.count() > 0 && delayed_.size() >= kMaxDelayed)) {
    ++dropped_;
    return;
  }
  if (link.delay.count() == 0) return deliver();
  const auto added = delayed_.emplace(steady_clock::now() + link.delay, std::move(deliver));
  if (added == delayed_.begin()) Arm();
}

// One timer for all, set to what is due first.
void DrillFaults::Arm() {
  timer_.expires_at(delayed_.begin()->first);
  timer_.async_wait([this](const boost::system::error_code& error) {
    if (error) return;
    while (!delayed_.empty() && delayed_.begin()->first <= steady_clock::now()) {
      const std::function<void()> call = std::move(delayed_.begin()->second);
      delayed_.erase(delayed_.begin());
      call();
    }
    if (!delayed_.empty()) Arm();
  });
}

Status DrillFaults::BeforeWrite() {
  const int64_t delay = write_delay_ms_.load(std::memory_order_relaxed);
  if (delay > 0) {
    ++delayed_writes_;
    std::this_thread::sleep_for(milliseconds(delay));
  }
  if (fail_writes_.load(std::memory_order_relaxed)) {
    return Status::IoError("a drill made this write fail");
  }
  return Status::Ok();
}

}  // namespace hydra
