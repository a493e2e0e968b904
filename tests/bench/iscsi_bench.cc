// SPDX-License-Identifier: Apache-2.0
//
// A load on an iSCSI unit, whoever serves it, so that Hydra and another target are measured by the
// same initiator (scripts/bench runs them in turn). One thread drives all sessions through
// libiscsi; each keeps its own number of commands under way.
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <iscsi/iscsi.h>
#include <iscsi/scsi-lowlevel.h>
#include <nlohmann/json.hpp>

#include "tests/support/command_line.h"

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kAttentions = 20;  // that a unit may tell before it takes commands

struct Load {
  std::vector<std::string> urls;
  std::string rw = "randread";
  uint32_t block = 4096;
  uint32_t depth = 16;
  uint32_t sessions = 1;
  uint32_t seconds = 5;
  uint64_t size = uint64_t{1} << 30;
  bool json = false;

  bool writes() const { return rw == "randwrite" || rw == "write"; }
  bool random() const { return rw == "randwrite" || rw == "randread"; }
};

[[noreturn]] void Stop(const std::string& why) {
  fmt::print(stderr, "iscsi-bench: {}\n", why);
  std::exit(1);
}

class Session {
 public:
  Session(const Load& load, uint32_t number)
      : load_(load), rng_(std::random_device()() + number), number_(number) {
    const std::string name = fmt::format("iqn.2026-11.io.hydra:bench-{}", number);
    context_ = iscsi_create_context(name.c_str());
    const std::string& text = load.urls[number % load.urls.size()];
    iscsi_url* url = iscsi_parse_full_url(context_, text.c_str());
    if (url == nullptr) {
      Stop(
          fmt::format("{}: {} Use iscsi://HOST:PORT/TARGET/LUN.", text, iscsi_get_error(context_)));
    }
    lun_ = url->lun;
    iscsi_set_targetname(context_, url->target);
    iscsi_set_session_type(context_, ISCSI_SESSION_NORMAL);
    iscsi_set_noautoreconnect(context_, 1);
    if (iscsi_full_connect_sync(context_, url->portal, lun_) != 0) {
      Stop(fmt::format("{}: {}", text, iscsi_get_error(context_)));
    }
    iscsi_destroy_url(url);
    Measure();
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  ~Session() { iscsi_destroy_context(context_); }

  void Start() {
    commands_.resize(load_.depth);
    for (Command& command : commands_) {
      command.session = this;
      command.data.resize(load_.block);
      for (uint8_t& byte : command.data) byte = static_cast<uint8_t>(rng_());
    }
    for (Command& command : commands_) {
      Issue(&command);
    }
  }

  pollfd Poll() const {
    return {iscsi_get_fd(context_), static_cast<short>(iscsi_which_events(context_)), 0};
  }
  void Serve(short events) {
    if (iscsi_service(context_, events) != 0) {
      Stop(fmt::format("session {}: {}", number_, iscsi_get_error(context_)));
    }
  }

  // From now on nothing new is sent.
  void End() { ending_ = true; }
  uint32_t under_way() const { return under_way_; }
  const std::vector<uint32_t>& microseconds() const { return microseconds_; }

 private:
  struct Command {
    Session* session = nullptr;
    std::vector<uint8_t> data;  // of a write
    Clock::time_point sent;
  };

  void Measure() {
    for (int i = 0; i < kAttentions; ++i) {
      scsi_task* task = iscsi_readcapacity16_sync(context_, lun_);
      const bool good = task != nullptr && task->status == SCSI_STATUS_GOOD;
      if (good) {
        const auto* capacity = static_cast<scsi_readcapacity16*>(scsi_datain_unmarshall(task));
        if (capacity == nullptr) Stop("READ CAPACITY (16): an answer that cannot be read");
        sector_ = capacity->block_length;
        sectors_ = capacity->returned_lba + 1;
      }
      if (task != nullptr) scsi_free_scsi_task(task);
      if (good) break;
    }
    if (sector_ == 0) Stop(fmt::format("READ CAPACITY (16): {}", iscsi_get_error(context_)));
    if (load_.block % sector_ != 0) {
      Stop(fmt::format("--bs {} is not in whole sectors of {} bytes", load_.block, sector_));
    }
    slots_ = std::min<uint64_t>(load_.size, sectors_ * sector_) / load_.block;
    if (slots_ == 0) Stop("--size is less than one --bs");
    next_ = slots_ / load_.sessions * number_;
  }

  void Issue(Command* command) {
    const uint64_t slot = load_.random() ? rng_() % slots_ : next_++ % slots_;
    const uint64_t lba = slot * (load_.block / sector_);
    ++numbers_;  // in what is written, so that no two blocks are the same
    std::memcpy(command->data.data(), &numbers_, sizeof(numbers_));
    command->sent = Clock::now();
    ++under_way_;
    scsi_task* task =
        load_.writes()
            ? iscsi_write16_task(context_, lun_, lba, command->data.data(), load_.block,
                                 static_cast<int>(sector_), 0, 0, 0, 0, 0, &Session::Done, command)
            : iscsi_read16_task(context_, lun_, lba, load_.block, static_cast<int>(sector_), 0, 0,
                                0, 0, 0, &Session::Done, command);
    if (task == nullptr) Stop(fmt::format("session {}: {}", number_, iscsi_get_error(context_)));
  }

  static void Done(iscsi_context*, int status, void* data, void* private_data) {
    auto* command = static_cast<Command*>(private_data);
    auto* task = static_cast<scsi_task*>(data);
    Session* session = command->session;
    if (status != SCSI_STATUS_GOOD) {
      Stop(fmt::format("session {}: a command ended with status {}: {}", session->number_, status,
                       iscsi_get_error(session->context_)));
    }
    const auto took = Clock::now() - command->sent;
    session->microseconds_.push_back(
        static_cast<uint32_t>(std::chrono::duration_cast<std::chrono::microseconds>(took).count()));
    --session->under_way_;
    scsi_free_scsi_task(task);
    if (!session->ending_) session->Issue(command);
  }

  const Load& load_;
  std::mt19937_64 rng_;
  const uint32_t number_;
  iscsi_context* context_ = nullptr;
  int lun_ = 0;
  uint32_t sector_ = 0;
  uint64_t sectors_ = 0;
  uint64_t slots_ = 0;
  uint64_t next_ = 0;
  uint64_t numbers_ = 0;  // of the commands issued
  std::vector<Command> commands_;
  uint32_t under_way_ = 0;
  bool ending_ = false;
  std::vector<uint32_t> microseconds_;
};

void ServeAll(std::vector<std::unique_ptr<Session>>* sessions) {
  std::vector<pollfd> polls;
  for (const auto& session : *sessions) polls.push_back(session->Poll());
  if (poll(polls.data(), polls.size(), 1000) < 0 && errno != EINTR) Stop("poll failed");
  for (size_t i = 0; i < polls.size(); ++i) {
    if (polls[i].revents != 0) (*sessions)[i]->Serve(polls[i].revents);
  }
}

double Percentile(const std::vector<uint32_t>& sorted, double share) {
  if (sorted.empty()) return 0;
  return sorted[static_cast<size_t>(share * static_cast<double>(sorted.size() - 1))];
}

void Report(const Load& load, const std::vector<std::unique_ptr<Session>>& sessions,
            double seconds) {
  std::vector<uint32_t> all;
  size_t least = SIZE_MAX;
  size_t most = 0;
  for (const auto& session : sessions) {
    const std::vector<uint32_t>& own = session->microseconds();
    all.insert(all.end(), own.begin(), own.end());
    least = std::min(least, own.size());
    most = std::max(most, own.size());
  }
  std::sort(all.begin(), all.end());
  const double iops = static_cast<double>(all.size()) / seconds;
  const double fairness = most == 0 ? 0 : static_cast<double>(least) / static_cast<double>(most);
  const double p50 = Percentile(all, 0.5);
  const double p99 = Percentile(all, 0.99);
  if (load.json) {
    const nlohmann::json json = {{"rw", load.rw},
                                 {"bs", load.block},
                                 {"iodepth", load.depth},
                                 {"sessions", load.sessions},
                                 {"iops", iops},
                                 {"p50_us", p50},
                                 {"p90_us", Percentile(all, 0.9)},
                                 {"p99_us", p99},
                                 {"p999_us", Percentile(all, 0.999)},
                                 {"fairness", fairness},
                                 {"commands", all.size()},
                                 {"seconds", seconds}};
    fmt::print("{}\n", json.dump());
    return;
  }
  fmt::print(
      "{} bs={} iodepth={} sessions={}: {:.0f} IOPS, p50 {:.0f} us, p99 {:.0f} us, slowest/fastest "
      "session {:.2f}\n",
      load.rw, load.block, load.depth, load.sessions, iops, p50, p99, fairness);
}

int Run(const Load& load) {
  std::vector<std::unique_ptr<Session>> sessions;
  for (uint32_t i = 0; i < load.sessions; ++i) {
    sessions.push_back(std::make_unique<Session>(load, i));
  }
  const auto start = Clock::now();
  const auto end = start + std::chrono::seconds(load.seconds);
  for (auto& session : sessions) session->Start();
  while (Clock::now() < end) ServeAll(&sessions);
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  const auto under_way = [&] {
    return std::any_of(sessions.begin(), sessions.end(),
                       [](const auto& session) { return session->under_way() > 0; });
  };
  for (auto& session : sessions) session->End();
  const auto patience = Clock::now() + std::chrono::seconds(30);
  while (under_way() && Clock::now() < patience) ServeAll(&sessions);
  if (under_way()) Stop("commands were not answered within 30 s");
  Report(load, sessions, seconds);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Load load;
  hydra::test::CommandLine line("Measures an iSCSI unit with libiscsi.");
  line.Add("url", &load.urls, "iscsi://HOST:PORT/TARGET/LUN; sessions go to them in turn")
      .Required();
  line.Add("--rw", &load.rw, "randread, randwrite, read or write")
      .OneOf({"randread", "randwrite", "read", "write"});
  line.Add("--bs", &load.block, "bytes per command").Between(512, 1u << 20);
  line.Add("--iodepth", &load.depth, "commands under way per session").Between(1, 256);
  line.Add("--sessions", &load.sessions).Between(1, 256);
  line.Add("--runtime", &load.seconds, "seconds").Between(1, 600);
  line.Add("--size", &load.size, "bytes of the unit that are used").Size();
  line.Add("--json", &load.json);
  if (const std::optional<int> status = line.Parse(argc, argv)) return *status;
  return Run(load);
}
