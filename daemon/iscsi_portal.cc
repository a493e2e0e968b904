// SPDX-License-Identifier: Apache-2.0
#include "daemon/iscsi_portal.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <fstream>
#include <future>
#include <mutex>
#include <sstream>
#include <thread>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <fmt/format.h>

#include "base/logging.h"
#include "client/hydra.h"
#include "daemon/event_loop.h"
#include "iscsi/volume_directory.h"

namespace hydra {
namespace {

namespace asio = boost::asio;

constexpr std::chrono::milliseconds kConnectPause(500);
// How long a command may wait for the cluster. Linux gives one 30 s, and begins to count before it
// gets here: who has given up on a command resets the unit instead of hearing that it is not ready.
constexpr std::chrono::milliseconds kCommandPatience(20'000);
// How old what sessions() says may be.
constexpr std::chrono::milliseconds kLookPause(200);

// Labels come from initiators.
std::string Printable(std::string text) {
  for (char& c : text) {
    if (c < 0x20 || c > 0x7e) c = '?';
  }
  return text;
}

// What is known of each session, as series that end with it. There are as many sessions as a portal
// has connections, at most.
void CollectSessions(const std::vector<iscsi::SessionInfo>& sessions,
                     std::vector<MetricFamilySnapshot>* families) {
  using iscsi::SessionInfo;
  if (sessions.empty()) return;
  const auto family = [&](const char* name, const char* help, MetricType type, auto fill) {
    MetricFamilySnapshot& out = families->emplace_back();
    out.name = std::string("hydra_iscsi_session_") + name;
    out.help = help;
    out.type = type;
    for (const SessionInfo& session : sessions) {
      SeriesSnapshot& series = out.series.emplace_back();
      series.labels = {{"address", session.address},
                       {"initiator", Printable(session.initiator)},
                       {"target", session.target.empty() ? "discovery" : session.target}};
      fill(session, &series);
    }
  };
  const auto counter = [&](const char* name, const char* help, auto value) {
    family(name, help, MetricType::kCounter,
           [&](const SessionInfo& s, SeriesSnapshot* series) { series->counter = value(s.stats); });
  };
  using Stats = const iscsi::SessionStats&;
  counter("commands", "SCSI commands received", [](Stats s) { return s.commands; });
  counter("read_bytes", "data sent to the initiator", [](Stats s) { return s.read_bytes; });
  counter("written_bytes", "data taken from it", [](Stats s) { return s.written_bytes; });
  counter("failed", "commands not answered with GOOD", [](Stats s) { return s.failed; });
  counter("aborted", "commands aborted by task management", [](Stats s) { return s.aborted; });
  counter("damaged", "digests or sequences that were wrong", [](Stats s) { return s.damaged; });
  family("tasks", "commands under way", MetricType::kGauge,
         [](const SessionInfo& s, SeriesSnapshot* series) {
           series->gauge = static_cast<int64_t>(s.tasks);
         });
  family("latency_seconds", "of SCSI commands", MetricType::kHistogram,
         [](const SessionInfo& s, SeriesSnapshot* series) { series->histogram = s.latency; });
}

}  // namespace

class IscsiPortal::Impl {
 public:
  explicit Impl(Options options)
      : options_(std::move(options)),
        work_(asio::make_work_guard(io_)),
        directory_(&io_, DirectoryOptionsOf(options_)),
        portal_(&io_, &directory_, PortalOptionsOf(options_)),
        look_(io_) {
    if (options_.metrics == nullptr) return;
    collector_ = options_.metrics->AddCollector(
        [this](std::vector<MetricFamilySnapshot>* into) { CollectSessions(sessions(), into); });
  }

  ~Impl() {
    if (options_.metrics != nullptr) options_.metrics->RemoveCollector(collector_);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    if (connector_.joinable()) connector_.join();
    if (thread_.joinable()) {
      if (!stopped_) {
        std::promise<void> done;
        Stop([&] { done.set_value(); });
        done.get_future().wait();
      }
      work_.reset();
      asio::post(io_, [this] {
        directory_.Stop();
        look_.cancel();
      });
      thread_.join();
    }
  }

  Status Start() {
    HYDRA_RETURN_IF_ERROR(portal_.Listen());
    HYDRA_LOG_INFO("iSCSI portal on {}", options_.listen);
    Look();
    // Whatever happens here is of a session, or happens five times a second.
    thread_ = std::thread([this] { RunLoop(&io_, {.at_most = options_.busy_wait}); });
    connector_ = std::thread([this] { Connect(); });
    return Status::Ok();
  }

  void Stop(std::function<void()> done) {
    asio::post(io_, [this, done = std::move(done)] {
      portal_.Stop([this, done] {
        stopped_ = true;
        done();
      });
    });
  }

  std::vector<iscsi::SessionInfo> sessions() {
    const std::lock_guard<std::mutex> lock(sessions_mutex_);
    return sessions_;
  }

 private:
  static iscsi::PortalOptions PortalOptionsOf(const Options& options) {
    iscsi::PortalOptions portal;
    portal.listen = options.listen;
    portal.advertise = options.advertise;
    portal.group = static_cast<uint16_t>(options.node);
    portal.metrics = options.metrics;
    return portal;
  }

  static iscsi::VolumeDirectory::Options DirectoryOptionsOf(const Options& options) {
    iscsi::VolumeDirectory::Options directory;
    directory.cluster = options.cluster;
    directory.chap = options.chap;
    directory.portal_group = static_cast<uint16_t>(options.node);
    directory.accounts = [accounts = options.accounts](uint32_t volume) {
      return accounts == nullptr ? std::nullopt : accounts->Find(volume);
    };
    return directory;
  }

  // Whoever asks for sessions is another thread, with better things to do than to wait.
  void Look() {
    std::vector<iscsi::SessionInfo> now = portal_.sessions();
    {
      const std::lock_guard<std::mutex> lock(sessions_mutex_);
      sessions_ = std::move(now);
    }
    look_.expires_after(kLookPause);
    look_.async_wait([this](const boost::system::error_code& error) {
      if (!error && !stopped_) Look();
    });
  }

  // Until it works: a cluster that is being formed takes a while.
  void Connect() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (!ending_) {
      lock.unlock();
      ClusterOptions client;
      client.name = fmt::format("iscsi-{}", options_.node);
      client.timeout = kCommandPatience;
      client.context = &io_;
      client.dial = [this](const std::string& address) {
        return address == options_.nodes[0] ? options_.dial(&io_) : nullptr;
      };
      Result<Cluster> cluster = Cluster::Connect(options_.nodes, client);
      lock.lock();
      if (cluster.ok()) {
        asio::post(io_, [this, connected = *cluster] { directory_.Connect(connected); });
        return;
      }
      changed_.wait_for(lock, kConnectPause, [this] { return ending_; });
    }
  }

  Options options_;
  asio::io_context io_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  iscsi::VolumeDirectory directory_;
  iscsi::Portal portal_;
  asio::steady_timer look_;
  std::mutex sessions_mutex_;
  std::vector<iscsi::SessionInfo> sessions_;  // guarded by sessions_mutex_
  size_t collector_ = 0;
  std::thread thread_;
  std::thread connector_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ending_ = false;  // guarded by mutex_
  std::atomic<bool> stopped_{false};
};

IscsiPortal::IscsiPortal(Options options) : impl_(std::make_unique<Impl>(std::move(options))) {}
IscsiPortal::~IscsiPortal() = default;

Status IscsiPortal::Start() { return impl_->Start(); }
void IscsiPortal::Stop(std::function<void()> done) { impl_->Stop(std::move(done)); }
std::vector<iscsi::SessionInfo> IscsiPortal::sessions() const { return impl_->sessions(); }

Result<iscsi::ChapAccounts> IscsiPortal::ReadChapFile(const std::string& path) {
  std::ifstream file(path);
  if (!file) return Status::NotFound(fmt::format("cannot read '{}'", path));
  iscsi::ChapAccounts accounts;
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    iscsi::ChapAccount account;
    if (!(words >> account.name >> account.secret)) continue;
    if (!accounts.initiator) {
      accounts.initiator = account;
    } else if (!accounts.target) {
      accounts.target = account;
    } else {
      return Status::InvalidArgument(fmt::format("'{}' has more than two accounts", path));
    }
  }
  if (!accounts.initiator) {
    return Status::InvalidArgument(fmt::format("'{}' has no line of the form NAME SECRET", path));
  }
  HYDRA_RETURN_IF_ERROR(accounts.Check().WithContext(path));
  return accounts;
}

}  // namespace hydra
