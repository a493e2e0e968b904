// SPDX-License-Identifier: Apache-2.0
#include "tests/iscsi/support/portal_thread.h"

#include <chrono>
#include <future>
#include <thread>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>

#include "base/check.h"

namespace hydra::iscsi {

namespace asio = boost::asio;

class PortalThread::Loop {
 public:
  asio::io_context io{1};
  asio::executor_work_guard<asio::io_context::executor_type> work{io.get_executor()};
  std::vector<std::unique_ptr<Portal>> portals;
  std::thread thread;

  size_t Sessions() const;
};

PortalThread::PortalThread(size_t portals, PortalOptions options, Nanos patience)
    : loop_(std::make_unique<Loop>()) {
  options.listen = "127.0.0.1:0";
  options.stop_patience = patience;
  for (size_t i = 0; i < portals; ++i) {
    options.group = static_cast<uint16_t>(i + 1);
    auto portal = std::make_unique<Portal>(&loop_->io, &directory_, options);
    HYDRA_CHECK(portal->Listen().ok());
    ports_.push_back(portal->port());
    loop_->portals.push_back(std::move(portal));
  }
  loop_->thread = std::thread([io = &loop_->io] { io->run(); });
}

PortalThread::~PortalThread() {
  std::promise<void> stopped;
  asio::post(loop_->io, [&] {
    const auto last = std::shared_ptr<void>(nullptr, [&](void*) { stopped.set_value(); });
    for (const auto& portal : loop_->portals) portal->Stop([last] {});
  });
  stopped.get_future().wait();
  loop_->work.reset();
  loop_->thread.join();
}

void PortalThread::Stop() {
  Run([this] {
    for (const auto& portal : loop_->portals) portal->Stop([] {});
  });
}

void PortalThread::Run(const std::function<void()>& work) {
  std::promise<void> done;
  asio::post(loop_->io, [&] {
    work();
    done.set_value();
  });
  done.get_future().wait();
}

size_t PortalThread::Loop::Sessions() const {
  size_t count = 0;
  for (const auto& portal : portals) count += portal->sessions().size();
  return count;
}

size_t PortalThread::Sessions() {
  size_t count = 0;
  Run([&] { count = loop_->Sessions(); });
  return count;
}

bool PortalThread::WaitForSessions(size_t count) {
  return WaitUntil([&] { return loop_->Sessions() == count; });
}

bool PortalThread::WaitUntil(const std::function<bool()>& so) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (std::chrono::steady_clock::now() < deadline) {
    bool yes = false;
    Run([&] { yes = so(); });
    if (yes) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return false;
}

}  // namespace hydra::iscsi
