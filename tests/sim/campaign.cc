// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/campaign.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <memory>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/probe.h"

namespace hydra::sim {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxErrorText = 64 * 1024;  // of what a dying seed said, the end
constexpr int kPollMillis = 200;

// --- The child: runs every jobs-th seed and says so, a line of JSON each -------------------------

void WriteLine(int fd, const Json& json) {
  // What failed may hold any bytes.
  const std::string line = json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  size_t done = 0;
  while (done < line.size()) {
    const ssize_t n = write(fd, line.data() + done, line.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) _exit(3);  // nobody listens any more
    done += static_cast<size_t>(n);
  }
}

Json ProbesAsJson() {
  Json probes = Json::array();
  for (const ProbeCount& p : Probes()) probes.push_back({p.name, p.where, p.passed});
  return probes;
}

RunResult RunOnce(const CampaignOptions& options, const RunFunction& run, uint64_t seed) {
  RunOptions run_options = options.run;
  run_options.seed = seed;
  run_options.trace = nullptr;
  RunResult result = run(run_options);
  if (!options.twice || !result.ok) return result;
  const RunResult again = run(run_options);
  if (again.trace_hash != result.trace_hash || again.ok != result.ok) {
    result.ok = false;
    result.failure = fmt::format("two runs of the same seed differ: traces {:016x} and {:016x}",
                                 result.trace_hash, again.trace_hash);
  }
  return result;
}

void RunChild(const CampaignOptions& options, const RunFunction& run, uint64_t first, Nanos until,
              int fd) {
  const RealClock clock;
  for (uint64_t seed = first; seed <= options.seeds.last; seed += options.jobs) {
    if (until != 0 && clock.Now() >= until) break;
    WriteLine(fd, {{"start", seed}});
    ResetProbes();
    const RunResult r = RunOnce(options, run, seed);
    WriteLine(fd, {{"ok", r.ok},
                   {"failure", r.failure},
                   {"knobs", r.knobs},
                   {"simulated", r.simulated},
                   {"operations", r.operations_checked},
                   {"undecided", r.undecided},
                   {"faults", r.faults},
                   {"probes", ProbesAsJson()}});
    if (seed > options.seeds.last - std::min<uint64_t>(options.jobs, options.seeds.last)) break;
  }
}

// --- The parent ----------------------------------------------------------------------------------

struct Worker {
  pid_t pid = -1;
  int results = -1;
  int errors = -1;
  std::string line;  // of results, so far
  std::string error_text;
  std::optional<uint64_t> seed;  // being run
  Nanos seed_began = 0;
  bool hung = false;
};

class Campaign {
 public:
  Campaign(const CampaignOptions& options, const RunFunction& run)
      : options_(options), run_(run), began_(clock_.Now()) {}

  CampaignResult Run() {
    for (const ProbeCount& p : Probes()) result_.probes[{p.name, p.where}] = 0;
    for (unsigned job = 0; job < options_.jobs; ++job) Start(options_.seeds.first + job);
    while (!workers_.empty()) {
      Wait();
      if (result_.failures.size() >= options_.max_failures) break;
      if (options_.progress) options_.progress(result_.seeds);
    }
    for (Worker& worker : workers_) {
      kill(worker.pid, SIGKILL);
      Reap(&worker);
    }
    // Several may have come at once.
    std::vector<SeedFailure>& failures = result_.failures;
    std::sort(failures.begin(), failures.end(),
              [](const SeedFailure& a, const SeedFailure& b) { return a.seed < b.seed; });
    if (failures.size() > options_.max_failures) failures.resize(options_.max_failures);
    result_.wall = clock_.Now() - began_;
    return std::move(result_);
  }

 private:
  void Start(uint64_t first);
  void Wait();
  void Drain(Worker* worker);
  void OnLine(Worker* worker, const std::string& line);
  // Its exit status.
  static int Reap(Worker* worker);
  void OnDeath(Worker worker);

  const CampaignOptions& options_;
  const RunFunction& run_;
  const RealClock clock_;
  const Nanos began_;
  std::vector<Worker> workers_;
  CampaignResult result_;
};

void Campaign::Start(uint64_t first) {
  if (first > options_.seeds.last || first < options_.seeds.first) return;
  const Nanos until = options_.wall_time == 0 ? 0 : began_ + options_.wall_time;
  int results[2];
  int errors[2];
  HYDRA_CHECK(pipe2(results, O_CLOEXEC) == 0 && pipe2(errors, O_CLOEXEC) == 0);
  const pid_t pid = fork();
  HYDRA_CHECK(pid >= 0);
  if (pid == 0) {
    dup2(errors[1], STDERR_FILENO);
    RunChild(options_, run_, first, until, results[1]);
    _exit(0);
  }
  close(results[1]);
  close(errors[1]);
  for (const int fd : {results[0], errors[0]}) fcntl(fd, F_SETFL, O_NONBLOCK);
  Worker worker;
  worker.pid = pid;
  worker.results = results[0];
  worker.errors = errors[0];
  workers_.push_back(std::move(worker));
}

void Campaign::Wait() {
  std::vector<pollfd> fds;
  for (const Worker& worker : workers_) {
    fds.push_back({worker.results, POLLIN, 0});
    fds.push_back({worker.errors, POLLIN, 0});
  }
  poll(fds.data(), fds.size(), kPollMillis);
  std::vector<Worker> dead;
  for (size_t i = 0; i < workers_.size();) {
    Worker& worker = workers_[i];
    // Before looking for messages: what a dead child said is then all there.
    siginfo_t info{};
    const bool ended =
        waitid(P_PID, static_cast<id_t>(worker.pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
        info.si_pid == worker.pid;
    Drain(&worker);
    if (ended) {
      dead.push_back(std::move(worker));
      workers_.erase(workers_.begin() + static_cast<ptrdiff_t>(i));
      continue;
    }
    if (worker.seed && clock_.Now() - worker.seed_began > options_.seed_wall_time) {
      worker.hung = true;
      kill(worker.pid, SIGKILL);
    }
    ++i;
  }
  for (Worker& worker : dead) OnDeath(std::move(worker));
}

void Campaign::Drain(Worker* worker) {
  char buffer[16 * 1024];
  ssize_t n;
  // Errors first, and kept aside: when the results are read then, whatever was written before an
  // error is known, and the end of an earlier seed does not take it away.
  std::string errors;
  while ((n = read(worker->errors, buffer, sizeof(buffer))) > 0) {
    errors.append(buffer, static_cast<size_t>(n));
  }
  while ((n = read(worker->results, buffer, sizeof(buffer))) > 0) {
    worker->line.append(buffer, static_cast<size_t>(n));
  }
  size_t begin = 0;
  for (size_t end; (end = worker->line.find('\n', begin)) != std::string::npos; begin = end + 1) {
    OnLine(worker, worker->line.substr(begin, end - begin));
  }
  worker->line.erase(0, begin);
  worker->error_text += errors;
  if (worker->error_text.size() > kMaxErrorText) {
    worker->error_text.erase(0, worker->error_text.size() - kMaxErrorText);
  }
}

void Campaign::OnLine(Worker* worker, const std::string& line) {
  const Json json = Json::parse(line);
  if (json.contains("start")) {
    worker->seed = json["start"].get<uint64_t>();
    worker->seed_began = clock_.Now();
    return;
  }
  RunResult r;
  r.simulated = json["simulated"];
  r.operations_checked = json["operations"];
  r.undecided = json["undecided"];
  r.faults = json["faults"];
  result_.Add(r);
  for (const Json& probe : json["probes"]) {
    result_.probes[{probe[0], probe[1]}] += probe[2].get<uint64_t>();
  }
  if (!json["ok"].get<bool>()) {
    result_.failures.push_back({worker->seed.value(), json["failure"], json["knobs"]});
  }
  worker->seed.reset();
  worker->error_text.clear();
}

int Campaign::Reap(Worker* worker) {
  int status = 0;
  waitpid(worker->pid, &status, 0);
  close(worker->results);
  close(worker->errors);
  return status;
}

void Campaign::OnDeath(Worker worker) {
  const int status = Reap(&worker);
  if (!worker.seed.has_value()) {
    HYDRA_CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    return;
  }
  std::string text;
  if (worker.hung) {
    text = fmt::format("took longer than {} s", options_.seed_wall_time / kSecond);
  } else if (WIFSIGNALED(status)) {
    text = fmt::format("died of signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status)));
  } else {
    text = fmt::format("ended with status {}", WEXITSTATUS(status));
  }
  result_.failures.push_back({*worker.seed, text + "\n" + worker.error_text, ""});
  if (result_.failures.size() < options_.max_failures) Start(*worker.seed + options_.jobs);
}

}  // namespace

Result<SeedRange> ParseSeedRange(const std::string& text) {
  const size_t dots = text.find("..");
  SeedRange range;
  const auto parse = [](std::string_view number, uint64_t* value) {
    const char* end = number.data() + number.size();
    const auto [stopped, error] = std::from_chars(number.data(), end, *value);
    return error == std::errc() && stopped == end;
  };
  if (dots == std::string::npos || !parse(std::string_view(text).substr(0, dots), &range.first) ||
      !parse(std::string_view(text).substr(dots + 2), &range.last) || range.first > range.last) {
    return Status::InvalidArgument("'" + text + "' is no range of seeds; write it as 1..100");
  }
  return range;
}

uint64_t CampaignResult::faults_injected() const {
  uint64_t sum = 0;
  for (const auto& [kind, count] : faults) sum += count;
  return sum;
}

uint64_t CampaignResult::probes_reached() const {
  return static_cast<uint64_t>(
      std::count_if(probes.begin(), probes.end(), [](const auto& p) { return p.second > 0; }));
}

void CampaignResult::Add(const RunResult& result) {
  ++seeds;
  simulated += result.simulated;
  operations_checked += result.operations_checked;
  undecided += result.undecided;
  for (const auto& [kind, count] : result.faults) faults[kind] += count;
}

CampaignResult RunCampaign(const CampaignOptions& options, const RunFunction& run) {
  HYDRA_CHECK(options.jobs > 0 && options.max_failures > 0);
  return Campaign(options, run).Run();
}

}  // namespace hydra::sim
