// SPDX-License-Identifier: Apache-2.0
//
// Whose pages a drill reads: on another machine the same address may be another node's.
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/drill_http.h"
#include "daemon/drill_watch.h"

namespace hydra::drill {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using ::testing::HasSubstr;

// Answers whatever it is asked like this node would, that leads group 1.
class Page {
 public:
  explicit Page(uint32_t node)
      : answer_(fmt::format("HTTP/1.1 200 OK\r\n\r\n"
                            R"({{"node":{},"healthy":true,"uptime_ms":1,"groups":[{{"group":1,)"
                            R"("role":"master","ready":true,"ballot":"1.1","commit":5,)"
                            R"("applied":5}}]}})",
                            node)),
        socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(bind(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(listen(socket_, 16), 0);
    socklen_t size = sizeof(address);
    getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size);
    address_ = fmt::format("127.0.0.1:{}", ntohs(address.sin_port));
    thread_ = std::thread([this] { Serve(); });
  }
  ~Page() {
    stop_ = true;
    thread_.join();
    close(socket_);
  }
  const std::string& address() const { return address_; }
  int asked() const { return asked_; }

 private:
  void Serve() {
    while (!stop_) {
      pollfd waited{.fd = socket_, .events = POLLIN, .revents = 0};
      if (poll(&waited, 1, 20) != 1) continue;
      const int client = accept(socket_, nullptr, nullptr);
      char request[4096];
      const ssize_t got = recv(client, request, sizeof(request), 0);
      if (got > 0) send(client, answer_.data(), answer_.size(), MSG_NOSIGNAL);
      close(client);
      ++asked_;
    }
  }

  const std::string answer_;
  const int socket_;
  std::string address_;
  std::atomic<bool> stop_{false};
  std::atomic<int> asked_{0};
  std::thread thread_;
};

TEST(DrillPages, AnotherNodeThatAnswersIsNotTakenForTheOneThatWasMeant) {
  const Page page(1);
  EXPECT_TRUE(StatusPage(1, page.address()).ok());
  const Status other = StatusPage(2, page.address()).status();
  EXPECT_EQ(other.code(), Code::kInvalidArgument);
  EXPECT_THAT(std::string(other.message()),
              HasSubstr("where node 2 has its pages, node 1 answers"));
  EXPECT_EQ(StatusPage(1, "127.0.0.1:1").status().code(), Code::kUnavailable);
}

TEST(DrillWatch, SeesWhatTheNodesThemselvesSay) {
  const Page page(1);
  Watch watch({{1, page.address()}}, {1}, [] { return Nanos{1}; });
  const auto deadline = steady_clock::now() + std::chrono::seconds(20);
  while (watch.masters().empty() && steady_clock::now() < deadline) {
    std::this_thread::sleep_for(milliseconds(10));
  }
  EXPECT_EQ(watch.masters(), (std::map<uint32_t, uint32_t>{{1, 1}}));
}

TEST(DrillWatch, DropsTheAnswersOfAnotherNode) {
  const Page page(1);
  Watch watch({{2, page.address()}}, {1}, [] { return Nanos{1}; });
  const auto deadline = steady_clock::now() + std::chrono::seconds(20);
  while (page.asked() < 3 && steady_clock::now() < deadline) {
    std::this_thread::sleep_for(milliseconds(10));
  }
  EXPECT_GE(page.asked(), 3);
  EXPECT_TRUE(watch.masters().empty());
  EXPECT_EQ(watch.life(2).asked, 0);
  EXPECT_THAT(watch.Complaint(), HasSubstr("node 2 does not answer"));
}

}  // namespace
}  // namespace hydra::drill
