// SPDX-License-Identifier: Apache-2.0
#include "daemon/peer_links.h"

#include <chrono>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <boost/asio/ip/tcp.hpp>
#include <fmt/format.h>
#include <gtest/gtest.h>

namespace hydra {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

// Ports of this machine from which someone tries to connect to that port, and is not answered.
std::set<std::string> CallersOf(uint16_t port) {
  constexpr const char* kSynSent = "02";
  const std::string wanted = fmt::format(":{:04X}", port);
  std::set<std::string> callers;
  std::ifstream table("/proc/net/tcp");
  std::string line;
  while (std::getline(table, line)) {
    std::istringstream words(line);
    std::string number;
    std::string local;
    std::string remote;
    std::string state;
    words >> number >> local >> remote >> state;
    if (state == kSynSent && remote.ends_with(wanted)) callers.insert(local);
  }
  return callers;
}

// A machine that is switched off answers nothing. So does a listener that has more callers than it
// wants to keep.
TEST(PeerLinks, ACallThatIsNotAnsweredIsGivenUpAndMadeAgain) {
  asio::io_context io(1);
  tcp::acceptor silent(io);
  silent.open(tcp::v4());
  silent.bind({asio::ip::address_v4::loopback(), 0});
  silent.listen(0);
  std::vector<std::unique_ptr<tcp::socket>> crowd;
  const uint16_t port = silent.local_endpoint().port();
  const auto run = [&](std::chrono::milliseconds time, const auto& done) {
    const auto end = std::chrono::steady_clock::now() + time;
    while (!done() && std::chrono::steady_clock::now() < end) {
      io.restart();
      io.run_one_for(std::chrono::milliseconds(20));
    }
    return done();
  };
  int connected = 0;
  for (int i = 0; i < 4; ++i) {
    crowd.push_back(std::make_unique<tcp::socket>(io));
    crowd.back()->async_connect(silent.local_endpoint(), [&](const boost::system::error_code& e) {
      connected += e ? 0 : 1;
    });
  }
  run(std::chrono::milliseconds(200), [] { return false; });
  if (connected == 4) GTEST_SKIP() << "this system keeps more callers than it was told to";
  const std::set<std::string> others = CallersOf(port);

  PeerLinks links(&io, {.node = 1, .cluster = Uuid::Random(), .store = {}, .secret = "secret"},
                  1u << 20, {});
  links.SetPeers({{2, fmt::format("127.0.0.1:{}", port)}});
  std::set<std::string> calls;
  EXPECT_TRUE(run(std::chrono::milliseconds(10'000), [&] {
    for (const std::string& caller : CallersOf(port)) {
      if (!others.contains(caller)) calls.insert(caller);
    }
    return calls.size() >= 2;
  })) << calls.size();
  // Of those that were given up nothing is left.
  EXPECT_LE(CallersOf(port).size(), others.size() + 1);
  EXPECT_FALSE(links.connected(2));
  links.Close();
  crowd.clear();
  silent.close();
  io.restart();
  io.run_for(std::chrono::milliseconds(100));
}

}  // namespace
}  // namespace hydra
