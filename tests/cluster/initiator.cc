// SPDX-License-Identifier: Apache-2.0
#include "tests/cluster/initiator.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <thread>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <iscsi/iscsi.h>
#include <iscsi/scsi-lowlevel.h>

namespace hydra::cluster_test {
namespace {

constexpr int kLun = 0;
constexpr int kExclusiveAccess = 3;

// Unit attentions are told once, and a unit may take a while to be ready.
bool IsPassing(const scsi_task& task) {
  return task.status == SCSI_STATUS_CHECK_CONDITION &&
         (task.sense.key == SCSI_SENSE_UNIT_ATTENTION || task.sense.key == SCSI_SENSE_NOT_READY);
}

template <typename Call>
int Repeat(Call call) {
  for (int attempt = 0; attempt < 40; ++attempt) {
    scsi_task* task = call();
    if (task == nullptr) return -1;
    const int status = task->status;
    const bool again = IsPassing(*task);
    scsi_free_scsi_task(task);
    if (!again) return status;
    std::this_thread::sleep_for(milliseconds(250));
  }
  return SCSI_STATUS_CHECK_CONDITION;
}

}  // namespace

Initiator::Initiator(const std::string& name, uint32_t number, uint16_t port,
                     const std::string& volume, bool ready)
    : context_(iscsi_create_context(name.c_str())), sent_(std::make_shared<Sent>()) {
  iscsi_set_isid_random(context_, number, 0);
  iscsi_set_targetname(context_, ("iqn.2026-11.io.hydra:" + volume).c_str());
  iscsi_set_session_type(context_, ISCSI_SESSION_NORMAL);
  iscsi_set_noautoreconnect(context_, 1);
  iscsi_set_timeout(context_, 20);
  const std::string portal = fmt::format("127.0.0.1:{}", port);
  if (ready) {
    EXPECT_EQ(iscsi_full_connect_sync(context_, portal.c_str(), kLun), 0)
        << iscsi_get_error(context_);
    return;
  }
  EXPECT_EQ(iscsi_connect_sync(context_, portal.c_str()), 0) << iscsi_get_error(context_);
  EXPECT_EQ(iscsi_login_sync(context_), 0) << iscsi_get_error(context_);
}

Initiator::~Initiator() { iscsi_destroy_context(context_); }

void Initiator::set_patience(std::chrono::seconds patience) {
  iscsi_set_timeout(context_, static_cast<int>(patience.count()));
}

namespace {

Initiator::End EndOf(scsi_task* task) {
  Initiator::End end;
  if (task == nullptr) return end;
  end.status = task->status;
  if (task->status == SCSI_STATUS_CHECK_CONDITION) {
    end.key = task->sense.key;
    end.code = task->sense.ascq;
  }
  scsi_free_scsi_task(task);
  return end;
}

}  // namespace

Initiator::End Initiator::TestUnitReadyOnce() {
  return EndOf(iscsi_testunitready_sync(context_, kLun));
}

Initiator::End Initiator::ReadOnce(uint32_t lba) {
  return EndOf(iscsi_read10_sync(context_, kLun, lba, block_, size(), 0, 0, 0, 0, 0));
}

Initiator::End Initiator::WriteOnce(uint32_t lba, uint8_t value) {
  std::vector<uint8_t> data(block_, value);
  return EndOf(iscsi_write10_sync(context_, kLun, lba, data.data(), block_, size(), 0, 0, 0, 0, 0));
}

Initiator::End Initiator::ReserveOnce() { return EndOf(iscsi_reserve6_sync(context_, kLun)); }

std::pair<uint64_t, uint32_t> Initiator::Capacity() {
  scsi_task* task = iscsi_readcapacity16_sync(context_, kLun);
  std::pair<uint64_t, uint32_t> capacity;
  if (task != nullptr && task->status == SCSI_STATUS_GOOD) {
    const auto* said = static_cast<scsi_readcapacity16*>(scsi_datain_unmarshall(task));
    if (said != nullptr) capacity = {said->returned_lba + 1, said->block_length};
  }
  if (task != nullptr) scsi_free_scsi_task(task);
  return capacity;
}

std::map<int, int> Initiator::PortGroups() {
  std::array<unsigned char, 12> cdb = {0xa3, 0x0a, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0};
  scsi_task* task = scsi_create_task(static_cast<int>(cdb.size()), cdb.data(), SCSI_XFER_READ, 256);
  std::map<int, int> states;
  if (iscsi_scsi_command_sync(context_, kLun, task, nullptr) != nullptr &&
      task->status == SCSI_STATUS_GOOD) {
    const uint8_t* data = task->datain.data;
    for (int at = 4; at + 12 <= task->datain.size; at += 12) {
      states[data[at + 2] << 8 | data[at + 3]] = data[at] & 0x0f;
    }
  }
  scsi_free_scsi_task(task);
  return states;
}

int Initiator::Write(uint32_t lba, uint8_t value) {
  std::vector<uint8_t> data(block_, value);
  return Repeat([&] {
    return iscsi_write10_sync(context_, kLun, lba, data.data(), block_, size(), 0, 0, 0, 0, 0);
  });
}

std::optional<uint8_t> Initiator::Read(uint32_t lba) {
  std::optional<uint8_t> value;
  Repeat([&] {
    scsi_task* task = iscsi_read10_sync(context_, kLun, lba, block_, size(), 0, 0, 0, 0, 0);
    if (task != nullptr && task->status == SCSI_STATUS_GOOD && task->datain.size == size()) {
      const uint8_t* bytes = task->datain.data;
      const bool same =
          std::all_of(bytes, bytes + block_, [&](uint8_t b) { return b == bytes[0]; });
      if (same) value = bytes[0];
    }
    return task;
  });
  return value;
}

void Initiator::Send(uint32_t lba, uint8_t value) {
  sent_ = std::make_shared<Sent>();
  sent_->data.assign(block_, value);
  const auto ended = [](iscsi_context*, int status, void*, void* sent) {
    static_cast<Sent*>(sent)->status = status;
  };
  ASSERT_NE(iscsi_write10_task(context_, kLun, lba, sent_->data.data(), block_, size(), 0, 0, 0, 0,
                               0, ended, sent_.get()),
            nullptr);
  for (int i = 0; i < 5; ++i) Serve(20);  // until it lies in the socket
}

bool Initiator::Serve(int milliseconds) {
  pollfd fd{iscsi_get_fd(context_), static_cast<short>(iscsi_which_events(context_)), 0};
  return poll(&fd, 1, milliseconds) >= 0 && iscsi_service(context_, fd.revents) == 0;
}

bool Initiator::WaitUntilClosed(milliseconds patience) {
  const auto until = std::chrono::steady_clock::now() + patience;
  while (std::chrono::steady_clock::now() < until) {
    if (!Serve(50)) return true;
  }
  return false;
}

namespace {

// A context that is gone with the object.
class Context {
 public:
  Context(const std::string& name, const ChapUser& chap)
      : context_(iscsi_create_context(name.c_str())) {
    iscsi_set_noautoreconnect(context_, 1);
    iscsi_set_timeout(context_, 20);
    if (!chap.user.empty()) {
      iscsi_set_initiator_username_pwd(context_, chap.user.c_str(), chap.secret.c_str());
    }
    if (!chap.mutual_user.empty()) {
      iscsi_set_target_username_pwd(context_, chap.mutual_user.c_str(), chap.mutual_secret.c_str());
    }
  }
  ~Context() { iscsi_destroy_context(context_); }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  iscsi_context* get() const { return context_; }

 private:
  iscsi_context* context_;
};

std::string PortalAt(uint16_t port) { return fmt::format("127.0.0.1:{}", port); }

}  // namespace

int Initiator::TryLogin(const std::string& name, uint16_t port, const std::string& volume,
                        const ChapUser& chap) {
  const Context context(name, chap);
  iscsi_set_targetname(context.get(), ("iqn.2026-11.io.hydra:" + volume).c_str());
  iscsi_set_session_type(context.get(), ISCSI_SESSION_NORMAL);
  if (iscsi_connect_sync(context.get(), PortalAt(port).c_str()) != 0) return -1;
  if (iscsi_login_sync(context.get()) == 0) return 0;
  // "Failed to log in to target. Status: Forbidden(514)"
  const std::string error = iscsi_get_error(context.get());
  const size_t open = error.rfind('(');
  return open == std::string::npos ? -1 : std::atoi(error.c_str() + open + 1);
}

std::optional<std::vector<std::string>> Initiator::Discover(const std::string& name, uint16_t port,
                                                            const ChapUser& chap) {
  const Context context(name, chap);
  iscsi_set_session_type(context.get(), ISCSI_SESSION_DISCOVERY);
  if (iscsi_connect_sync(context.get(), PortalAt(port).c_str()) != 0) return std::nullopt;
  if (iscsi_login_sync(context.get()) != 0) return std::nullopt;
  iscsi_discovery_address* found = iscsi_discovery_sync(context.get());
  std::vector<std::string> names;
  for (const auto* one = found; one != nullptr; one = one->next) names.push_back(one->target_name);
  if (found != nullptr) iscsi_free_discovery_data(context.get(), found);
  return names;
}

std::optional<int> Initiator::WaitForSent(milliseconds patience) {
  const auto until = std::chrono::steady_clock::now() + patience;
  while (!sent_->status && std::chrono::steady_clock::now() < until) Serve(50);
  return sent_->status;
}

int Initiator::Sanitize() {
  return Repeat([&] { return iscsi_sanitize_block_erase_sync(context_, kLun, 1, 0); });
}

int Initiator::NotReady() {
  for (int attempt = 0; attempt < 20; ++attempt) {
    scsi_task* task = iscsi_testunitready_sync(context_, kLun);
    if (task == nullptr) return -1;
    const bool attention =
        task->status == SCSI_STATUS_CHECK_CONDITION && task->sense.key == SCSI_SENSE_UNIT_ATTENTION;
    const int answer = task->status == SCSI_STATUS_GOOD ? 0 : task->sense.ascq;
    scsi_free_scsi_task(task);
    if (!attention) return answer;
  }
  return -1;
}

int Initiator::Persistent(Action action, uint64_t key, uint64_t other) {
  return Repeat([&] {
    scsi_persistent_reserve_out_basic list{};
    list.reservation_key = key;
    list.service_action_reservation_key = other;
    return iscsi_persistent_reserve_out_sync(context_, kLun, action, 0, kExclusiveAccess, &list);
  });
}

}  // namespace hydra::cluster_test
