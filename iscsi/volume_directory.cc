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
#include <fmt/format.h>

#include "base/logging.h"
#include "iscsi/volume_disk.h"

namespace hydra::iscsi {
namespace {

namespace asio = boost::asio;

constexpr std::chrono::milliseconds kRefresh(2'000);
// What a discovery or a login waits for news: longer than a master's place is empty, shorter than
// initiators wait for an answer.
constexpr std::chrono::milliseconds kPatience(5'000);
// What TEST UNIT READY waits for it. Linux' error handler, which asks so whether a path is worth
// more commands, gives it 10 s.
constexpr std::chrono::milliseconds kReadyPatience(4'000);
// The cluster is asked again and again whether it can decide: that often, and it is out of reach if
// it cannot tell for so long.
constexpr std::chrono::milliseconds kProbePause(1'000);
constexpr std::chrono::milliseconds kProbePatience(4'000);
// What a login waits for accounts that are on their way.
constexpr std::chrono::milliseconds kAccountPause(20);
constexpr int kAccountLooks = 50;

}  // namespace

class VolumeDirectory::Impl : public std::enable_shared_from_this<Impl> {
 public:
  using Opened = Result<std::shared_ptr<LogicalUnit>>;

  Impl(asio::io_context* io, Options options)
      : io_(io), options_(std::move(options)), timer_(*io), probe_timer_(*io) {}

  void Connect(Cluster cluster);
  void Stop();
  void Refresh();
  void RefreshNames(std::function<void()> done);
  void Open(const std::string& name, std::function<void(Opened)> done);
  std::vector<std::string> Names() const;
  const std::vector<PortalAddress>& portals() const { return portals_; }
  LoginPolicy::Decision Decide(const std::string& initiator, const std::string& target) const;

 private:
  struct Known {
    uint32_t id = 0;
    std::shared_ptr<LogicalUnit> unit;
    bool current = true;  // the last login that asked for news got them
  };
  struct Listed {
    uint32_t id = 0;
    uint64_t epoch = 0;  // of the next two
    AccessRules rules;
    uint64_t chap_revision = 0;
  };

  void Wait();
  void Probe();
  UnitOptions UnitOptionsOf(const Volume& volume);
  // Calls back once: when `work` has called what it is given, or after that time.
  void WithPatience(std::chrono::milliseconds patience, std::function<void()> done,
                    const std::function<void(std::function<void()>)>& work);
  // Ends an Open when the accounts that count are known here, or after a moment.
  void AwaitAccounts(std::shared_ptr<LogicalUnit> unit, uint32_t id, int looks,
                     std::function<void(Opened)> done);
  bool AccountsAreKnown(uint32_t id, uint64_t revision) const;
  // As last heard of, by the unit or by name.
  std::optional<Listed> Find(const std::string& volume) const;
  void TakeVolumes(const std::vector<VolumeInfo>& volumes);
  void TakeNodes(const std::vector<NodeInfo>& nodes);
  std::vector<PortalGroup> Groups() const;
  void NotePortalGroups();
  void FinishOpen(const std::string& volume, Result<Volume> opened,
                  const std::function<void(Opened)>& done);
  template <typename Handler>
  auto Here(Handler handler) {
    return asio::bind_executor(io_->get_executor(), std::move(handler));
  }

  asio::io_context* io_;
  Options options_;
  asio::steady_timer timer_;
  std::optional<Cluster> cluster_;
  std::map<std::string, Listed> volumes_;
  std::map<std::string, Known> units_;
  std::vector<PortalAddress> portals_;
  asio::steady_timer probe_timer_;
  bool lost_ = false;  // the cluster is out of reach, or cannot decide anything
  bool stopped_ = false;
};

void VolumeDirectory::Impl::Connect(Cluster cluster) {
  cluster_ = std::move(cluster);
  Refresh();
  Probe();
}

void VolumeDirectory::Impl::Stop() {
  stopped_ = true;
  timer_.cancel();
  probe_timer_.cancel();
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
      self->NotePortalGroups();
      self->Wait();
    }));
  }));
}

// Not by whether the above succeeds: this node alone answers it with what it knows.
void VolumeDirectory::Impl::Probe() {
  cluster_->AsyncProbe(
      kProbePatience, Here([self = shared_from_this()](const Status& reached) {
        if (self->stopped_) return;
        if (std::exchange(self->lost_, !reached.ok()) == reached.ok()) {
          HYDRA_LOG_INFO("iSCSI portal: the cluster {}",
                         reached.ok() ? "is within reach again" : "is out of reach");
          self->NotePortalGroups();
        }
        self->probe_timer_.expires_after(kProbePause);
        self->probe_timer_.async_wait([self](const boost::system::error_code& error) {
          if (!error && !self->stopped_) self->Probe();
        });
      }));
}

void VolumeDirectory::Impl::WithPatience(std::chrono::milliseconds patience,
                                         std::function<void()> done,
                                         const std::function<void(std::function<void()>)>& work) {
  const auto waiting = std::make_shared<std::function<void()>>(std::move(done));
  const auto timer = std::make_shared<asio::steady_timer>(*io_, patience);
  const auto end = [waiting, timer] {
    timer->cancel();
    if (*waiting) std::exchange(*waiting, {})();
  };
  timer->async_wait([waiting](const boost::system::error_code& error) {
    if (!error && *waiting) std::exchange(*waiting, {})();
  });
  work(end);
}

void VolumeDirectory::Impl::RefreshNames(std::function<void()> done) {
  if (!cluster_ || stopped_) return done();
  WithPatience(kPatience, std::move(done), [this](const std::function<void()>& end) {
    cluster_->AsyncVolumes(
        Here([self = shared_from_this(), end](Result<std::vector<VolumeInfo>> volumes) {
          if (volumes.ok() && !self->stopped_) self->TakeVolumes(*volumes);
          end();
        }));
  });
}

void VolumeDirectory::Impl::TakeVolumes(const std::vector<VolumeInfo>& volumes) {
  volumes_.clear();
  for (const VolumeInfo& volume : volumes) {
    if (!volume.active) continue;
    volumes_[volume.name] = {volume.id, volume.epoch, RulesOf(volume.target),
                             volume.target.chap_revision};
  }
  // The cluster can be asked again.
  for (const auto& [name, known] : units_) {
    if (known.unit->unconfirmed()) known.unit->RefreshShared([](const Status&) {});
  }
  // A volume that is gone, or another of the same name: sessions keep what they have, to no avail.
  std::erase_if(units_, [&](const auto& entry) {
    const auto found = volumes_.find(entry.first);
    return found == volumes_.end() || found->second.id != entry.second.id;
  });
}

void VolumeDirectory::Impl::TakeNodes(const std::vector<NodeInfo>& nodes) {
  portals_.clear();
  for (const NodeInfo& node : nodes) {
    if (node.iscsi.empty()) continue;
    portals_.push_back({node.iscsi, static_cast<uint16_t>(node.node), node.reachable.ok()});
  }
}

std::vector<PortalGroup> VolumeDirectory::Impl::Groups() const {
  std::vector<PortalGroup> groups;
  for (const PortalAddress& portal : portals_) {
    groups.push_back({portal.tag, portal.reachable, portal.tag == options_.portal_group && lost_});
  }
  return groups;
}

void VolumeDirectory::Impl::NotePortalGroups() {
  for (const auto& [name, known] : units_) known.unit->NotePortalGroups();
}

std::vector<std::string> VolumeDirectory::Impl::Names() const {
  std::vector<std::string> names;
  for (const auto& [name, listed] : volumes_) names.push_back(std::string(kTargetPrefix) + name);
  return names;
}

std::optional<VolumeDirectory::Impl::Listed> VolumeDirectory::Impl::Find(
    const std::string& volume) const {
  std::optional<Listed> found;
  const auto listed = volumes_.find(volume);
  if (listed != volumes_.end()) found = listed->second;
  const auto known = units_.find(volume);
  if (known == units_.end()) return found;
  const LogicalUnit& unit = *known->second.unit;
  if (found && (found->epoch > unit.epoch() || found->id != known->second.id)) return found;
  return Listed{known->second.id, unit.epoch(), unit.rules(), unit.chap_revision()};
}

LoginPolicy::Decision VolumeDirectory::Impl::Decide(const std::string& initiator,
                                                    const std::string& target) const {
  if (target.empty()) return {LoginStatus::kSuccess, options_.chap};
  const auto found =
      target.starts_with(kTargetPrefix) ? Find(target.substr(kTargetPrefix.size())) : std::nullopt;
  const auto known = units_.find(target.substr(std::min(kTargetPrefix.size(), target.size())));
  const bool current = known == units_.end() || known->second.current;
  const bool offered = found && found->rules.offered;
  if (!offered || !found->rules.Allows(initiator)) {
    // Initiators take these for the last word, so they are not said of what may have changed.
    if (!current) return {LoginStatus::kUnavailable, {}};
    return {offered ? LoginStatus::kForbidden : LoginStatus::kNotFound, {}};
  }
  if (found->chap_revision == 0) return {LoginStatus::kSuccess, options_.chap, 0, current};
  // Which accounts count is known; what they are comes another way, and may be late.
  if (!AccountsAreKnown(found->id, found->chap_revision)) return {LoginStatus::kUnavailable, {}};
  const auto accounts = options_.accounts(found->id);
  if (!accounts) return {LoginStatus::kUnavailable, {}};
  const bool own = accounts->accounts.initiator.has_value();
  return {LoginStatus::kSuccess, own ? accounts->accounts : options_.chap, accounts->revision,
          current};
}

bool VolumeDirectory::Impl::AccountsAreKnown(uint32_t id, uint64_t revision) const {
  if (revision == 0) return true;
  const auto accounts = options_.accounts ? options_.accounts(id) : std::nullopt;
  return accounts && accounts->revision >= revision;
}

void VolumeDirectory::Impl::AwaitAccounts(std::shared_ptr<LogicalUnit> unit, uint32_t id, int looks,
                                          std::function<void(Opened)> done) {
  if (looks == 0 || stopped_ || AccountsAreKnown(id, unit->chap_revision())) return done(unit);
  const auto timer = std::make_shared<asio::steady_timer>(*io_, kAccountPause);
  timer->async_wait(
      [self = shared_from_this(), timer, unit, id, looks, done](const boost::system::error_code&) {
        self->AwaitAccounts(unit, id, looks - 1, done);
      });
}

void VolumeDirectory::Impl::Open(const std::string& name, std::function<void(Opened)> done) {
  if (!name.starts_with(kTargetPrefix)) {
    return done(Status::NotFound(fmt::format("there is no target {}", name)));
  }
  if (!cluster_ || stopped_) return done(Status::Unavailable("the cluster is not reached yet"));
  const std::string volume = name.substr(kTargetPrefix.size());
  const auto known = units_.find(volume);
  if (known != units_.end()) {
    const auto unit = known->second.unit;
    const uint32_t id = known->second.id;
    const auto heard = std::make_shared<bool>(false);
    return WithPatience(
        kPatience,
        [self = shared_from_this(), volume, unit, id, heard, done] {
          const auto still = self->units_.find(volume);
          if (still != self->units_.end()) still->second.current = *heard;
          self->AwaitAccounts(unit, id, kAccountLooks, done);
        },
        [unit, heard](std::function<void()> end) {
          unit->RefreshShared([heard, end = std::move(end)](const Status& status) {
            *heard = status.ok();
            end();
          });
        });
  }
  Volume::AsyncOpen(*cluster_, volume,
                    Here([self = shared_from_this(), volume, done](Result<Volume> opened) {
                      self->FinishOpen(volume, std::move(opened), done);
                    }));
}

UnitOptions VolumeDirectory::Impl::UnitOptionsOf(const Volume& volume) {
  UnitOptions options;
  options.logical_block = volume.logical_block();
  options.target_name = std::string(kTargetPrefix) + volume.name();
  options.portal_groups = [weak = weak_from_this()] {
    const auto self = weak.lock();
    return self ? self->Groups() : std::vector<PortalGroup>();
  };
  options.with_patience = [weak = weak_from_this()](
                              std::function<void()> done,
                              const std::function<void(std::function<void()>)>& work) {
    const auto self = weak.lock();
    if (!self) return work(std::move(done));
    self->WithPatience(kReadyPatience, std::move(done), work);
  };
  return options;
}

void VolumeDirectory::Impl::FinishOpen(const std::string& volume, Result<Volume> opened,
                                       const std::function<void(Opened)>& done) {
  if (stopped_) return done(Status::Unavailable("the portal stops"));
  if (!opened.ok()) return done(opened.status());
  const uint32_t id = opened->id();
  const auto known = units_.find(volume);  // two asked at the same time
  if (known != units_.end()) return done(known->second.unit);
  UnitOptions options = UnitOptionsOf(*opened);
  auto disk = std::make_unique<VolumeDisk>(io_, *opened, IdentityOf(options_.cluster, id, volume));
  auto unit = std::make_shared<LogicalUnit>(std::move(disk), std::move(options));
  unit->RefreshShared([self = shared_from_this(), volume, id, unit, done](const Status& refreshed) {
    if (self->stopped_) return done(Status::Unavailable("the portal stops"));
    if (!refreshed.ok()) return done(refreshed);
    const auto [entry, added] = self->units_.try_emplace(volume, Known{id, unit});
    if (added) {
      self->volumes_[volume] = {id, unit->epoch(), unit->rules(), unit->chap_revision()};
    }
    const auto known = entry->second.unit;  // two may have asked at the same time
    // Whoever reserved it through this portal before it was restarted is gone.
    const std::string holder = known->reserved_by();
    const bool ours = holder.ends_with(fmt::format(",t,0x{:04x}", self->options_.portal_group));
    const auto end = [self, known, id, done] {
      self->AwaitAccounts(known, id, kAccountLooks, done);
    };
    if (!added || !ours) return end();
    known->Release(holder, end);
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
LoginPolicy::Decision VolumeDirectory::Decide(const std::string& initiator,
                                              const std::string& target) {
  return impl_->Decide(initiator, target);
}

}  // namespace hydra::iscsi
