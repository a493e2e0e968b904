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
#include <fmt/format.h>

#include "base/logging.h"
#include "client/hydra.h"
#include "iscsi/volume_directory.h"

namespace hydra {
namespace {

namespace asio = boost::asio;

constexpr std::chrono::milliseconds kConnectPause(500);

}  // namespace

class IscsiPortal::Impl {
 public:
  explicit Impl(Options options)
      : options_(std::move(options)),
        work_(asio::make_work_guard(io_)),
        directory_(&io_,
                   {options_.cluster, 512, options_.chap, static_cast<uint16_t>(options_.node)}),
        portal_(&io_, &directory_, PortalOptionsOf(options_)) {}

  ~Impl() {
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
      asio::post(io_, [this] { directory_.Stop(); });
      thread_.join();
    }
  }

  Status Start() {
    HYDRA_RETURN_IF_ERROR(portal_.Listen());
    HYDRA_LOG_INFO("iSCSI portal on {}", options_.listen);
    thread_ = std::thread([this] { io_.run(); });
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
    if (!thread_.joinable() || stopped_) return {};
    std::promise<std::vector<iscsi::SessionInfo>> promise;
    asio::post(io_, [&] { promise.set_value(portal_.sessions()); });
    return promise.get_future().get();
  }

 private:
  static iscsi::PortalOptions PortalOptionsOf(const Options& options) {
    iscsi::PortalOptions portal;
    portal.listen = options.listen;
    portal.group = static_cast<uint16_t>(options.node);
    portal.metrics = options.metrics;
    return portal;
  }

  // Until it works: a cluster that is being formed takes a while.
  void Connect() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (!ending_) {
      lock.unlock();
      ClusterOptions client;
      client.name = fmt::format("iscsi-{}", options_.node);
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
