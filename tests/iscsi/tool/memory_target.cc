// SPDX-License-Identifier: Apache-2.0
//
// iscsi-memory-target: a portal with targets in memory, to try the protocol without a cluster.
// Prints the port when it is ready, and ends on SIGTERM.
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>

#include "base/logging.h"
#include "iscsi/portal.h"
#include "tests/iscsi/support/memory_directory.h"

namespace hydra::iscsi {
namespace {

constexpr char kUsage[] =
    "usage: iscsi-memory-target [--listen HOST:PORT] [--volume NAME]... [--mib N] [--block "
    "512|4096]\n"
    "                           [--chap NAME SECRET] [--mutual NAME SECRET] [--debug]\n";

struct Arguments {
  std::string listen = "127.0.0.1:3260";
  std::vector<std::string> volumes;
  uint64_t mib = 128;
  uint32_t block = 512;
  ChapAccounts chap;
};

// False: called wrongly.
bool Parse(const std::vector<std::string>& words, Arguments* out) {
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& option = words[i];
    const size_t left = words.size() - i - 1;
    if (option == "--debug") {
      SetLogLevel(LogLevel::kDebug);
    } else if (left == 0) {
      return false;
    } else if (option == "--listen") {
      out->listen = words[++i];
    } else if (option == "--volume") {
      out->volumes.push_back(words[++i]);
    } else if (option == "--mib") {
      out->mib = std::strtoull(words[++i].c_str(), nullptr, 10);
    } else if (option == "--block") {
      out->block = static_cast<uint32_t>(std::strtoul(words[++i].c_str(), nullptr, 10));
    } else if (left > 1 && (option == "--chap" || option == "--mutual")) {
      (option == "--chap" ? out->chap.initiator : out->chap.target) = {words[i + 1], words[i + 2]};
      i += 2;
    } else {
      return false;
    }
  }
  if (out->volumes.empty()) out->volumes = {"memory"};
  return out->mib > 0 && (out->block == 512 || out->block == 4096);
}

int Main(const std::vector<std::string>& words) {
  Arguments arguments;
  if (!Parse(words, &arguments)) {
    std::cerr << kUsage;
    return 2;
  }
  const Status accounts = arguments.chap.Check();
  if (!accounts.ok()) {
    std::cerr << accounts.ToString() << "\n";
    return 2;
  }
  MemoryDirectory directory;
  directory.chap = arguments.chap;
  for (const std::string& volume : arguments.volumes) {
    directory.Add(volume, arguments.mib << 20, arguments.block);
  }
  boost::asio::io_context io(1);
  PortalOptions options;
  options.listen = arguments.listen;
  Portal portal(&io, &directory, options);
  const Status listening = portal.Listen();
  if (!listening.ok()) {
    std::cerr << listening.ToString() << "\n";
    return 1;
  }
  std::cout << "port " << portal.port() << std::endl;
  boost::asio::signal_set signals(io, SIGTERM, SIGINT);
  signals.async_wait([&](const boost::system::error_code& error, int) {
    if (!error) portal.Stop([&] { io.stop(); });
  });
  io.run();
  return 0;
}

}  // namespace
}  // namespace hydra::iscsi

int main(int argc, char** argv) { return hydra::iscsi::Main({argv + 1, argv + argc}); }
