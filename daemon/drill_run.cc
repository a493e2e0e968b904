// SPDX-License-Identifier: Apache-2.0
#include "daemon/drill_run.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <mutex>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "daemon/drill_http.h"

namespace hydra::drill {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kAdminPatience(30'000);
constexpr milliseconds kPagesPatience(5000);
constexpr unsigned kWarmUp = 1500;        // ms of load before the first fault
constexpr unsigned kBetween = 700;        // ... and before each other
constexpr unsigned kCoolDown = 700;       // ... and after the last
constexpr unsigned kMovePatience = 5000;  // ms for a hand-over, and how often it is asked for
constexpr unsigned kMoves = 4;
constexpr unsigned kNotice = 500;  // ms: a node that answers is heard from within that
constexpr milliseconds kPatienceToLook(2000);
constexpr unsigned kCutSettles = 1000;  // ms: what was on its way to a node arrives within that
constexpr unsigned kCutSeen = 2000;     // ms: after so long a cut is to be seen
constexpr unsigned kMostClients = 256;
constexpr uint64_t kVolumeBytes = 64ull << 20;
constexpr const char* kVolumePrefix = "drill-";

std::string Now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[64];
  std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S UTC", &parts);
  return text;
}

std::string Processor() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown processor";
}

}  // namespace

// --- Who ----------------------------------------------------------------------------------------

std::set<uint32_t> Run::PeersOf(uint32_t node) const {
  std::set<uint32_t> peers(nodes_.begin(), nodes_.end());
  peers.erase(node);
  return peers;
}

uint32_t Run::Master() const {
  const std::map<uint32_t, uint32_t> masters = watch_->masters();
  std::map<uint32_t, size_t> leads;
  for (const uint32_t group : groups_) {
    const auto found = masters.find(group);
    if (found != masters.end()) ++leads[found->second];
  }
  uint32_t best = nodes_.front();
  for (const uint32_t node : nodes_) {
    if (leads[node] > leads[best]) best = node;
  }
  return best;
}

size_t Run::NotLedByOthers(uint32_t node) const {
  const std::map<uint32_t, uint32_t> masters = watch_->masters();
  return static_cast<size_t>(std::count_if(groups_.begin(), groups_.end(), [&](uint32_t group) {
    const auto found = masters.find(group);
    return found == masters.end() || found->second == node;
  }));
}

std::set<uint32_t> Run::LedBy(uint32_t node) const {
  std::set<uint32_t> led;
  const std::map<uint32_t, uint32_t> masters = watch_->masters();
  for (const uint32_t group : groups_) {
    const auto found = masters.find(group);
    if (found != masters.end() && found->second == node) led.insert(group);
  }
  return led;
}

Result<bool> Run::Fit(uint32_t node) const {
  HYDRA_ASSIGN_OR_RETURN(const HttpAnswer answer, HttpCall(http_.at(node), "/metrics", ""));
  const std::string name = "\nhydra_unfit_to_lead ";
  const size_t at = answer.body.find(name);
  if (at == std::string::npos) {
    return Status::Unavailable(fmt::format("node {} does not say whether it is fit to lead", node));
  }
  return answer.body[at + name.size()] == '0';
}

uint32_t Run::Minor() {
  const uint32_t master = Master();
  std::vector<uint32_t> others;
  std::copy_if(nodes_.begin(), nodes_.end(), std::back_inserter(others),
               [&](uint32_t node) { return node != master; });
  return others.empty() ? master : others[rng_.Below(others.size())];
}

uint32_t Run::Any() { return nodes_[rng_.Below(nodes_.size())]; }

std::pair<uint32_t, uint32_t> Run::NextHandOver() {
  const uint32_t group = groups_[handed_over_++ % groups_.size()];
  const std::map<uint32_t, uint32_t> masters = watch_->masters();
  const auto master = masters.find(group);
  std::vector<uint32_t> others;
  std::copy_if(nodes_.begin(), nodes_.end(), std::back_inserter(others),
               [&](uint32_t node) { return master == masters.end() || node != master->second; });
  return {group, others.empty() ? nodes_.front() : others[rng_.Below(others.size())]};
}

// --- What ---------------------------------------------------------------------------------------

void Run::Begin(const std::string& what, bool writes_stop) {
  FaultRecord fault;
  fault.what = what;
  fault.begin = load_->now();
  fault.writes_stop = writes_stop;
  report_.faults.push_back(std::move(fault));
  phase_ = what;
  view_.event(fmt::format("{:6.1f} s  fault {}: {}", static_cast<double>(load_->now()) / kSecond,
                          report_.faults.size(), what));
}

void Run::Amend(const std::string& what) {
  report_.faults.back().what += ": " + what;
  view_.event(fmt::format("{:6.1f} s  {}", static_cast<double>(load_->now()) / kSecond, what));
}

Status Run::Do(const std::string& action, uint32_t node) {
  // A restart that fails may have come to the middle.
  if (action == "kill" || action == "wipe" || action == "restart") down_.insert(node);
  if (action == "wipe") lost_.insert(node);
  if (action == "pause") paused_.insert(node);
  HYDRA_RETURN_IF_ERROR(executor_->Do(action, node));
  if (action == "start" || action == "restart") down_.erase(node);
  if (action == "resume") paused_.erase(node);
  return Status::Ok();
}

Status Run::DoAll(const std::string& action) {
  std::mutex mutex;
  Status failed;
  std::vector<std::thread> threads;
  for (const uint32_t node : nodes_) {
    if (action == "kill") down_.insert(node);
    threads.emplace_back([&, node] {
      const Status done = executor_->Do(action, node);
      const std::lock_guard lock(mutex);
      if (!done.ok()) failed = done;
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (failed.ok() && action == "start") down_.clear();
  return failed;
}

Status Run::Set(uint32_t node, const NodeFaults& faults) {
  faulty_.insert(node);
  HYDRA_RETURN_IF_ERROR(executor_->Set(node, faults));
  if (FaultsJson(faults) == "{}") faulty_.erase(node);
  return Status::Ok();
}

Result<RotState> Run::Rot(uint32_t node, const RotBlocks& blocks) {
  rotten_.insert(node);
  return executor_->Rot(node, blocks);
}

Result<RotState> Run::Rotten(uint32_t node) {
  HYDRA_ASSIGN_OR_RETURN(RotState state, executor_->Rotten(node));
  if (state.rotten == 0) rotten_.erase(node);
  return state;
}

std::vector<std::pair<uint64_t, uint32_t>> Run::LoadBlocks() const {
  std::vector<std::pair<uint64_t, uint32_t>> blocks;
  for (const history::Block block : load_->Blocks()) {
    blocks.emplace_back(block, groups_[load_->ShardOf(block)]);
  }
  return blocks;
}

Status Run::MoveMaster(uint32_t group, uint32_t node) {
  // A master gives a hand-over up if its successor is not ready in time, so it is asked again.
  for (unsigned tries = 0; tries < kMoves && !interrupted(); ++tries) {
    HYDRA_RETURN_IF_ERROR(cluster_->MoveMaster(group, node));
    // It is under way now; what the watch says is a moment old.
    for (unsigned waited = 0; waited < kMovePatience; waited += 10) {
      const std::map<uint32_t, uint32_t> masters = watch_->masters();
      const auto master = masters.find(group);
      if (master != masters.end() && master->second == node) return Status::Ok();
      std::this_thread::sleep_for(milliseconds(10));
    }
  }
  return Status::Unavailable(
      fmt::format("node {} did not become the master of group {} within {} s", node, group,
                  kMoves * kMovePatience / 1000));
}

unsigned Run::Hold(unsigned ms) {
  const unsigned held = options_.hold_ms > 0 ? options_.hold_ms : ms;
  Wait(held);
  return held;
}

// An executor may succeed and break nothing, or something else.
Status Run::CheckRestarted(const std::vector<uint32_t>& nodes) const {
  for (const uint32_t node : nodes) {
    if (watch_->life(node).began > report_.faults.back().begin) continue;
    return Status::FailedPrecondition(
        fmt::format("node {} runs since before the fault: what was to end it did not", node));
  }
  return Status::Ok();
}

Status Run::HoldStopped(uint32_t node, unsigned ms) {
  const Nanos stopped = load_->now();
  const unsigned held = Hold(ms);
  if (held < kNotice) Wait(kNotice - held);
  if (interrupted() || watch_->life(node).asked <= stopped) return Status::Ok();
  return Status::FailedPrecondition(
      fmt::format("node {} answers although it was stopped: what was to stop it did not", node));
}

Result<std::map<uint32_t, uint64_t>> Run::Committed(uint32_t node) const {
  HYDRA_ASSIGN_OR_RETURN(const std::string page, StatusPage(node, http_.at(node), kPatienceToLook));
  const nlohmann::json json = nlohmann::json::parse(page);
  std::map<uint32_t, uint64_t> committed;
  for (const nlohmann::json& group : json["groups"]) {
    committed[group.value("group", 0u)] = group.value("commit", uint64_t{0});
  }
  return committed;
}

// What it knows to be chosen grows only by what it hears from others. (What it has applied waits
// for its own disk as well.) One that does not answer may be cut off from here too, which says
// nothing against it.
Status Run::HoldCut(uint32_t node, unsigned ms) {
  const unsigned hold = options_.hold_ms > 0 ? options_.hold_ms : ms;
  if (hold < kCutSeen) {
    Wait(hold);
    return Status::Ok();
  }
  Wait(kCutSettles);
  const auto before = Committed(node);
  Wait(hold - kCutSettles);
  const auto after = Committed(node);
  if (interrupted() || replicas_ < 2 || !before.ok() || !after.ok()) return Status::Ok();
  for (const uint32_t group : groups_) {
    const auto first = before->find(group);
    const auto last = after->find(group);
    if (first == before->end() || last == after->end() || last->second <= first->second) continue;
    return Status::FailedPrecondition(fmt::format(
        "node {} went on with group {} although it was cut off: what was to cut it off did not",
        node, group));
  }
  return Status::Ok();
}

void Run::Wait(unsigned ms) {
  const auto until = steady_clock::now() + milliseconds(ms);
  while (steady_clock::now() < until && !interrupted()) {
    ShowProgress();
    const auto left = std::chrono::duration_cast<milliseconds>(until - steady_clock::now());
    std::this_thread::sleep_for(std::min(left, milliseconds(kLook)));
  }
}

void Run::Restored() {
  report_.faults.back().restored = load_->now();
  phase_ = "recovering";
}

Status Run::Recover() {
  FaultRecord& fault = report_.faults.back();
  const Status well = AwaitHealth(fault.restored, kHealthPatience);
  watch_->ReadMetrics();
  if (!well.ok()) return well;
  fault.healthy = std::max(watch_->HealthySince(fault.restored), fault.restored);
  phase_ = "well";
  return Status::Ok();
}

Status Run::AwaitCaughtUp() { return AwaitHealth(load_->now(), kHealthPatience); }

Status Run::AwaitHealth(Nanos since, milliseconds patience) {
  const auto deadline = steady_clock::now() + patience;
  while (watch_->HealthySince(since) == 0) {
    if (interrupted()) return Status::Aborted("interrupted");
    if (steady_clock::now() >= deadline) {
      return Status::Unavailable(fmt::format("the cluster is not healthy after {} s: {}",
                                             patience.count() / 1000, watch_->Complaint()));
    }
    ShowProgress();
    std::this_thread::sleep_for(milliseconds(20));
  }
  return Status::Ok();
}

void Run::ShowProgress() {
  Progress progress;
  progress.seconds = static_cast<double>(load_->now()) / kSecond;
  progress.of = static_cast<double>(options_.duration.count()) / 1000;
  progress.faults = static_cast<unsigned>(report_.faults.size());
  progress.writes = load_->acknowledged_writes();
  progress.operations = load_->operations();
  progress.failed = load_->refused() + load_->unknown();
  progress.phase = phase_;
  view_.progress(progress);
}

// --- The course of a drill ----------------------------------------------------------------------

Status Run::MakeVolume() {
  own_volume_ = options_.volume.empty();
  volume_ = own_volume_ ? fmt::format("{}{}", kVolumePrefix, getpid()) : options_.volume;
  if (own_volume_) {
    VolumeSpec spec;
    spec.name = volume_;
    spec.bytes = kVolumeBytes;
    HYDRA_RETURN_IF_ERROR(CreateVolume(spec));
  }
  HYDRA_ASSIGN_OR_RETURN(const std::vector<VolumeInfo> volumes, cluster_->volumes());
  for (const VolumeInfo& volume : volumes) {
    if (volume.name != volume_) continue;
    groups_ = volume.groups;
    // Of a volume made by an older version it is not known.
    first_replicas_ = replicas_ = volume.replicas == 0 ? 3 : volume.replicas;
  }
  if (!groups_.empty()) return Status::Ok();
  return Status::NotFound(
      fmt::format("there is no volume '{}'; `hydractl volume list` shows what there is", volume_));
}

Status Run::CreateVolume(const VolumeSpec& spec) {
  const auto deadline = steady_clock::now() + kChangePatience;
  bool perhaps = false;  // the cluster could not say whether it was made
  while (true) {
    const Status created = cluster_->CreateVolume(spec);
    if (created.code() == Code::kAlreadyExists && perhaps) return Status::Ok();
    const bool again =
        created.code() == Code::kUnavailable && !interrupted() && steady_clock::now() < deadline;
    if (!again) return created;
    perhaps = true;
    std::this_thread::sleep_for(milliseconds(kLook));
  }
}

// Where a node's own pages are is known a moment after it has joined.
Result<std::vector<NodeInfo>> Run::AskNodes() {
  const auto deadline = steady_clock::now() + kPagesPatience;
  while (true) {
    HYDRA_ASSIGN_OR_RETURN(std::vector<NodeInfo> nodes, cluster_->GetStatus(false));
    const bool all = std::none_of(nodes.begin(), nodes.end(),
                                  [](const NodeInfo& node) { return node.http.empty(); });
    if (all || interrupted() || steady_clock::now() >= deadline) return nodes;
    std::this_thread::sleep_for(milliseconds(kLook));
  }
}

// Each of them answers by itself: what is watched is what is broken.
Status Run::CheckPages() const {
  for (const auto& [node, address] : http_) {
    HYDRA_RETURN_IF_ERROR(StatusPage(node, address).status());
  }
  return Status::Ok();
}

// Its UUID.
Result<std::string> Run::AskCluster() const {
  const auto& [node, address] = *http_.begin();
  HYDRA_ASSIGN_OR_RETURN(const std::string page, StatusPage(node, address));
  const nlohmann::json json = nlohmann::json::parse(page);
  if (json.contains("cluster")) return json.value("cluster", "");
  return Status::Unavailable(fmt::format("node {} does not say which cluster it is part of", node));
}

Status Run::Prepare() {
  ClusterOptions admin;
  admin.timeout = kAdminPatience;
  admin.name = "drill";
  HYDRA_ASSIGN_OR_RETURN(Cluster cluster, Cluster::Connect(options_.seeds, admin));
  cluster_ = std::make_unique<Cluster>(std::move(cluster));
  HYDRA_ASSIGN_OR_RETURN(const std::vector<NodeInfo> nodes, AskNodes());
  for (const NodeInfo& node : nodes) {
    if (!node.reachable.ok()) {
      return Status::Unavailable(
          fmt::format("node {} does not answer; a drill begins with a healthy cluster", node.node));
    }
    if (node.http.empty()) {
      return Status::InvalidArgument(
          fmt::format("node {} has no --http address, by which drills watch it", node.node));
    }
    nodes_.push_back(node.node);
    http_[node.node] = node.http;
    versions_[node.node] = node.version;
  }
  if (nodes_.size() < 3) {
    return Status::InvalidArgument("a drill needs three nodes: with fewer, none can be spared");
  }
  HYDRA_RETURN_IF_ERROR(CheckPages());
  ExecutorOptions executor = options_.executor;
  if (executor.kind == "local") {
    HYDRA_ASSIGN_OR_RETURN(executor.cluster, AskCluster());
  }
  executor_ = std::make_unique<Executor>(executor, http_);
  HYDRA_RETURN_IF_ERROR(executor_->Check(drill_.needs));
  HYDRA_RETURN_IF_ERROR(MakeVolume());
  LoadOptions load;
  load.seeds = options_.seeds;
  load.volume = volume_;
  load.shards = static_cast<uint32_t>(groups_.size());
  // Each client stays with one group, and each group is to be seen.
  load.clients = std::max(options_.clients, load.shards);
  if (load.clients > kMostClients) {
    return Status::InvalidArgument(
        fmt::format("volume '{}' has {} shards, and a drill has at most {} clients, one for each",
                    volume_, load.shards, kMostClients));
  }
  load.rate = options_.rate == 0 ? drill_.rate : options_.rate;
  load.blocks_per_shard = options_.blocks_per_shard;
  load.seed = options_.seed;
  HYDRA_ASSIGN_OR_RETURN(load_, Load::Prepare(load));
  report_.environment.emplace_back(
      "load", fmt::format("{} clients, {} on {} blocks in {} of {} groups", load.clients,
                          load.rate == 0 ? std::string("as fast as they can")
                                         : fmt::format("{} operations per second", load.rate),
                          load_->blocks(), load_->shards(), load.shards));
  return Status::Ok();
}

bool Run::More() const {
  if (interrupted() || enough_) return false;
  const unsigned least = drill_.faults == 0 ? static_cast<unsigned>(nodes_.size()) : drill_.faults;
  if (options_.faults > 0) return ordinal_ < options_.faults;
  if (ordinal_ < least) return true;
  return load_->now() - first_ < options_.duration.count() * kMillisecond;
}

Status Run::Loop() {
  phase_ = "warming up";
  HYDRA_RETURN_IF_ERROR(AwaitHealth(0, kHealthPatience));
  watch_->ReadMetrics();
  const std::map<uint32_t, uint32_t> masters = watch_->masters();
  for (const uint32_t group : groups_) {
    const auto found = masters.find(group);
    report_.first_masters.emplace_back(group, found == masters.end() ? 0 : found->second);
  }
  Wait(kWarmUp);
  first_ = load_->now();
  while (More()) {
    HYDRA_RETURN_IF_ERROR(drill_.once(*this));
    ++ordinal_;
    Wait(kBetween);
  }
  return interrupted() ? Status::Aborted("interrupted") : Status::Ok();
}

// Whatever a drill left broken. Errors are of no use to anybody here: the report says already why
// it broke off, and the cluster's own status what is still missing.
void Run::Mend() {
  for (const uint32_t node : std::set<uint32_t>(faulty_)) {
    if (!down_.contains(node)) Set(node, {}).IgnoreError();
  }
  // At the node's own pace: whoever interrupts a drill does not wait for it.
  for (const uint32_t node : rotten_) cluster_->StartScrub(node).IgnoreError();
  for (const uint32_t node : std::set<uint32_t>(paused_)) Do("resume", node).IgnoreError();
  for (const uint32_t node : std::set<uint32_t>(lost_)) Replace(node).IgnoreError();
  for (const uint32_t node : std::set<uint32_t>(down_)) {
    // Of a drill that restarts nodes there may be no command that starts one.
    if (!Do("start", node).ok()) Do("restart", node).IgnoreError();
  }
  if (replicas_ != first_replicas_) SetReplicas(first_replicas_).IgnoreError();
  for (const uint32_t node : std::set<uint32_t>(added_)) {
    if (!RemoveNode(node).ok()) Forget(node).IgnoreError();
  }
}

void Run::Finish(const Status& ended) {
  Mend();
  if (!ended.ok()) report_.broken_off = std::string(ended.message());
  phase_ = "cooling down";
  const Status well = AwaitHealth(load_->now(), kHealthPatience);
  if (!well.ok() && report_.broken_off.empty() && !interrupted()) {
    report_.broken_off = std::string(well.message());
  }
  if (!interrupted()) Wait(kCoolDown);
  report_.length = load_->now();
  view_.event(fmt::format("{:6.1f} s  the load ends; reading everything and checking the history",
                          static_cast<double>(report_.length) / kSecond));
  load_->Stop();
  watch_->ReadMetrics();
  watch_->Stop();
  const Status read = load_->ReadAll();
  if (!read.ok() && report_.broken_off.empty()) report_.broken_off = std::string(read.message());
  for (const MasterChange& change : watch_->changes()) {
    const bool ours = std::find(groups_.begin(), groups_.end(), change.group) != groups_.end();
    if (ours && change.from + change.to > 0 && change.at <= report_.length && change.at > 0 &&
        !(change.from == 0 && change.at < first_)) {
      report_.changes.push_back(change);
    }
  }
  report_.shipped_bytes = watch_->shipped_bytes();
  report_.damage.insert(report_.damage.end(), load_->damage().begin(), load_->damage().end());
  Measure(
      load_->history(), [this](history::Block block) { return groups_[load_->ShardOf(block)]; },
      load_->final_client(), &report_);
  report_.told_damaged = load_->told_damaged();
  report_.check = CheckLinearizable(load_->history());
  const Totals& totals = report_.totals;
  if (report_.damage.empty() && totals.refused + totals.unknown + totals.failed_reads > 0) {
    view_.event("          the last error a client saw: " + load_->last_error());
  }
  // What went wrong is best looked at where it happened.
  if (own_volume_ && report_.data_is_good()) cluster_->DeleteVolume(volume_).IgnoreError();
}

void Run::Describe() {
  report_.drill = drill_.name;
  report_.summary = drill_.summary;
  report_.started = Now();
  report_.volume = volume_;
  report_.seed = options_.seed;
  report_.max_gap =
      (options_.max_gap_ms < 0 ? drill_.max_gap_ms : options_.max_gap_ms) * kMillisecond;
  report_.errors_fail = !drill_.errors;
  utsname system{};
  uname(&system);
  std::set<std::string> versions;
  for (const auto& [node, version] : versions_) versions.insert(version);
  auto& rows = report_.environment;
  rows.emplace_back("cluster",
                    fmt::format("{} nodes, version {}", nodes_.size(), fmt::join(versions, ", ")));
  rows.emplace_back("volume", fmt::format("{} in {} shards", volume_, groups_.size()));
  rows.emplace_back("executor", options_.executor.kind);
  rows.emplace_back("seen from",
                    fmt::format("{}, {} {}, {} cores, {}", system.nodename, system.sysname,
                                system.release, std::thread::hardware_concurrency(), Processor()));
}

Result<Report> RunDrill(const Drill& drill, const RunOptions& options, const View& view) {
  Run run(drill, options, view);
  const Status prepared = run.Prepare();
  if (!prepared.ok()) {
    if (run.own_volume_ && run.cluster_) run.cluster_->DeleteVolume(run.volume_).IgnoreError();
    return prepared;
  }
  run.Describe();
  run.load_->Start();
  // Those of the volume, and the catalogue.
  std::set<uint32_t> groups(run.groups_.begin(), run.groups_.end());
  groups.insert(0);
  run.watch_ = std::make_unique<Watch>(run.http_, std::move(groups),
                                       [load = run.load_.get()] { return load->now(); });
  run.Finish(run.Loop());
  return std::move(run.report_);
}

}  // namespace hydra::drill
