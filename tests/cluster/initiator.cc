// SPDX-License-Identifier: Apache-2.0
#include "tests/cluster/initiator.h"

#include <poll.h>

#include <algorithm>
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
                     const std::string& volume)
    : context_(iscsi_create_context(name.c_str())), sent_(std::make_shared<Sent>()) {
  iscsi_set_isid_random(context_, number, 0);
  iscsi_set_targetname(context_, ("iqn.2026-11.io.hydra:" + volume).c_str());
  iscsi_set_session_type(context_, ISCSI_SESSION_NORMAL);
  iscsi_set_noautoreconnect(context_, 1);
  iscsi_set_timeout(context_, 20);
  const std::string portal = fmt::format("127.0.0.1:{}", port);
  EXPECT_EQ(iscsi_full_connect_sync(context_, portal.c_str(), kLun), 0)
      << iscsi_get_error(context_);
}

Initiator::~Initiator() { iscsi_destroy_context(context_); }

int Initiator::Write(uint32_t lba, uint8_t value) {
  std::vector<uint8_t> data(kBlock, value);
  return Repeat([&] {
    return iscsi_write10_sync(context_, kLun, lba, data.data(), kBlock, kBlock, 0, 0, 0, 0, 0);
  });
}

std::optional<uint8_t> Initiator::Read(uint32_t lba) {
  std::optional<uint8_t> value;
  Repeat([&] {
    scsi_task* task = iscsi_read10_sync(context_, kLun, lba, kBlock, kBlock, 0, 0, 0, 0, 0);
    if (task != nullptr && task->status == SCSI_STATUS_GOOD && task->datain.size == int{kBlock}) {
      const uint8_t* bytes = task->datain.data;
      const bool same =
          std::all_of(bytes, bytes + kBlock, [&](uint8_t b) { return b == bytes[0]; });
      if (same) value = bytes[0];
    }
    return task;
  });
  return value;
}

void Initiator::Send(uint32_t lba, uint8_t value) {
  sent_ = std::make_shared<Sent>();
  sent_->data.assign(kBlock, value);
  const auto ended = [](iscsi_context*, int status, void*, void* sent) {
    static_cast<Sent*>(sent)->status = status;
  };
  ASSERT_NE(iscsi_write10_task(context_, kLun, lba, sent_->data.data(), kBlock, kBlock, 0, 0, 0, 0,
                               0, ended, sent_.get()),
            nullptr);
  for (int i = 0; i < 5; ++i) Serve(20);  // until it lies in the socket
}

void Initiator::Serve(int milliseconds) {
  pollfd fd{iscsi_get_fd(context_), static_cast<short>(iscsi_which_events(context_)), 0};
  if (poll(&fd, 1, milliseconds) >= 0) iscsi_service(context_, fd.revents);
}

std::optional<int> Initiator::WaitForSent(milliseconds patience) {
  const auto until = std::chrono::steady_clock::now() + patience;
  while (!sent_->status && std::chrono::steady_clock::now() < until) Serve(50);
  return sent_->status;
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
