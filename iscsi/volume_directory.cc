// SPDX-License-Identifier: Apache-2.0
#include "iscsi/volume_directory.h"

#include <chrono>
#include <map>
#include <optional>
#include <utility>

#include <boost/asio/bind_executor.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <fmt/format.h>

#include "base/logging.h"
#include "iscsi/volume_disk.h"

namespace hydra::iscsi {
namespace {

namespace asio = boost::asio;

constexpr std::chrono::milliseconds kRefresh(2'000);
// What a discovery waits for news.
constexpr std::chrono::milliseconds kPatience(1'000);

// Blocks.
Result<uint32_t> IdOf(Cluster cluster, const std::string& name) {
  HYDRA_ASSIGN_OR_RETURN(const std::vector<VolumeInfo> volumes, cluster.volumes());
  for (const VolumeInfo& volume : volumes) {
    if (volume.name == name) return volume.id;
  }
  return Status::NotFound(fmt::format("there is no volume '{}'", name));
}

}  // namespace

class VolumeDirectory::Impl : public std::enable_shared_from_this<Impl> {
 public:
  using Opened = Result<std::shared_ptr<LogicalUnit>>;

  Impl(asio::io_context* io, Options options)
      : io_(io), options_(std::move(options)), timer_(*io), opener_(1) {}

  void Connect(Cluster cluster);
  void Stop();
  void Refresh();
  void RefreshNames(std::function<void()> done);
  void Open(const std::string& name, std::function<void(Opened)> done);
  std::vector<std::string> Names() const;
  const std::vector<PortalAddress>& portals() const { return portals_; }
  const ChapAccounts& chap() const { return options_.chap; }

 private:
  struct Known {
    uint32_t id = 0;
    std::shared_ptr<LogicalUnit> unit;
  };

  void Wait();
  void TakeVolumes(const std::vector<VolumeInfo>& volumes);
  void TakeNodes(const std::vector<NodeInfo>& nodes);
  void FinishOpen(const std::string& volume, uint32_t id, Result<Volume> opened,
                  const std::function<void(Opened)>& done);
  template <typename Handler>
  auto Here(Handler handler) {
    return asio::bind_executor(io_->get_executor(), std::move(handler));
  }

  asio::io_context* io_;
  Options options_;
  asio::steady_timer timer_;
  asio::thread_pool opener_;  // opening a volume blocks
  std::optional<Cluster> cluster_;
  std::map<std::string, uint32_t> volumes_;  // name -> id
  std::map<std::string, Known> units_;
  std::vector<PortalAddress> portals_;
  bool stopped_ = false;
};

void VolumeDirectory::Impl::Connect(Cluster cluster) {
  cluster_ = std::move(cluster);
  Refresh();
}

void VolumeDirectory::Impl::Stop() {
  stopped_ = true;
  timer_.cancel();
  opener_.join();
  units_.clear();
  cluster_.reset();
}

void VolumeDirectory::Impl::Wait() {
  if (stopped_) return;
  timer_.expires_after(kRefresh);
  timer_.async_wait([self = shared_from_this()](const boost::system::error_code& error) {
    if (!error && !self->stopped_) self->Refresh();
  });
}

void VolumeDirectory::Impl::Refresh() {
  cluster_->AsyncVolumes(Here([self = shared_from_this()](Result<std::vector<VolumeInfo>> volumes) {
    if (self->stopped_) return;
    if (volumes.ok()) self->TakeVolumes(*volumes);
    self->cluster_->AsyncGetStatus(false, self->Here([self](Result<std::vector<NodeInfo>> nodes) {
      if (self->stopped_) return;
      if (nodes.ok()) self->TakeNodes(*nodes);
      self->Wait();
    }));
  }));
}

void VolumeDirectory::Impl::RefreshNames(std::function<void()> done) {
  if (!cluster_ || stopped_) return done();
  // The first of the two calls back.
  const auto waiting = std::make_shared<std::function<void()>>(std::move(done));
  const auto timer = std::make_shared<asio::steady_timer>(*io_, kPatience);
  const auto end = [waiting, timer] {
    timer->cancel();
    if (*waiting) std::exchange(*waiting, {})();
  };
  timer->async_wait([waiting](const boost::system::error_code& error) {
    if (!error && *waiting) std::exchange(*waiting, {})();
  });
  cluster_->AsyncVolumes(
      Here([self = shared_from_this(), end](Result<std::vector<VolumeInfo>> volumes) {
        if (volumes.ok() && !self->stopped_) self->TakeVolumes(*volumes);
        end();
      }));
}

void VolumeDirectory::Impl::TakeVolumes(const std::vector<VolumeInfo>& volumes) {
  volumes_.clear();
  for (const VolumeInfo& volume : volumes) {
    if (volume.active) volumes_[volume.name] = volume.id;
  }
  // A volume that is gone, or another of the same name: sessions keep what they have, to no avail.
  std::erase_if(units_, [&](const auto& entry) {
    const auto found = volumes_.find(entry.first);
    return found == volumes_.end() || found->second != entry.second.id;
  });
}

void VolumeDirectory::Impl::TakeNodes(const std::vector<NodeInfo>& nodes) {
  portals_.clear();
  for (const NodeInfo& node : nodes) {
    if (node.iscsi.empty()) continue;
    portals_.push_back({node.iscsi, static_cast<uint16_t>(node.node), node.reachable.ok()});
  }
}

std::vector<std::string> VolumeDirectory::Impl::Names() const {
  std::vector<std::string> names;
  for (const auto& [name, id] : volumes_) names.push_back(std::string(kTargetPrefix) + name);
  return names;
}

void VolumeDirectory::Impl::Open(const std::string& name, std::function<void(Opened)> done) {
  if (!name.starts_with(kTargetPrefix)) {
    return done(Status::NotFound(fmt::format("there is no target {}", name)));
  }
  if (!cluster_ || stopped_) return done(Status::Unavailable("the cluster is not reached yet"));
  const std::string volume = name.substr(kTargetPrefix.size());
  const auto known = units_.find(volume);
  if (known != units_.end()) return done(known->second.unit);
  asio::post(opener_, [self = shared_from_this(), cluster = *cluster_, volume,
                       done = std::move(done)]() mutable {
    Result<Volume> opened = Volume::Open(cluster, volume);
    // Its number tells it from others that had the same name.
    const auto id = opened.ok() ? IdOf(cluster, volume) : Result<uint32_t>(0u);
    if (!id.ok()) opened = id.status();
    asio::post(*self->io_, [self, volume, id, opened = std::move(opened), done = std::move(done)] {
      self->FinishOpen(volume, opened.ok() ? *id : 0, opened, done);
    });
  });
}

void VolumeDirectory::Impl::FinishOpen(const std::string& volume, uint32_t id,
                                       Result<Volume> opened,
                                       const std::function<void(Opened)>& done) {
  if (stopped_) return done(Status::Unavailable("the portal stops"));
  if (!opened.ok()) return done(opened.status());
  const auto known = units_.find(volume);  // two asked at the same time
  if (known != units_.end()) return done(known->second.unit);
  UnitOptions options;
  options.logical_block = options_.logical_block;
  options.target_name = std::string(kTargetPrefix) + volume;
  options.portal_groups = [weak = weak_from_this()] {
    std::vector<PortalGroup> groups;
    const auto self = weak.lock();
    if (!self) return groups;
    for (const PortalAddress& portal : self->portals_) {
      groups.push_back({portal.tag, portal.reachable});
    }
    return groups;
  };
  auto disk = std::make_unique<VolumeDisk>(io_, *opened, IdentityOf(options_.cluster, id, volume));
  auto unit = std::make_shared<LogicalUnit>(std::move(disk), std::move(options));
  unit->RefreshShared([self = shared_from_this(), volume, id, unit, done](const Status& refreshed) {
    if (self->stopped_) return done(Status::Unavailable("the portal stops"));
    if (!refreshed.ok()) return done(refreshed);
    const auto [entry, added] = self->units_.try_emplace(volume, Known{id, unit});
    if (added) self->volumes_[volume] = id;
    const auto known = entry->second.unit;  // two may have asked at the same time
    // Whoever reserved it through this portal before it was restarted is gone.
    const std::string holder = known->reserved_by();
    const bool ours = holder.ends_with(fmt::format(",t,0x{:04x}", self->options_.portal_group));
    if (!added || !ours) return done(known);
    known->Release(holder, [known, done] { done(known); });
  });
}

// --- VolumeDirectory ----------------------------------------------------------------------------

VolumeDirectory::VolumeDirectory(asio::io_context* io, Options options)
    : impl_(std::make_shared<Impl>(io, std::move(options))) {}

VolumeDirectory::~VolumeDirectory() = default;

void VolumeDirectory::Connect(Cluster cluster) { impl_->Connect(std::move(cluster)); }
void VolumeDirectory::Stop() { impl_->Stop(); }
void VolumeDirectory::Refresh(std::function<void()> done) { impl_->RefreshNames(std::move(done)); }
std::vector<std::string> VolumeDirectory::Names() { return impl_->Names(); }
std::vector<PortalAddress> VolumeDirectory::Portals() { return impl_->portals(); }
void VolumeDirectory::Open(const std::string& name,
                           std::function<void(Result<std::shared_ptr<LogicalUnit>>)> done) {
  impl_->Open(name, std::move(done));
}
LoginPolicy::Decision VolumeDirectory::Decide(const std::string&, const std::string&) {
  return {LoginStatus::kSuccess, impl_->chap()};
}

}  // namespace hydra::iscsi
