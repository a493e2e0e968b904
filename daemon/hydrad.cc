// SPDX-License-Identifier: Apache-2.0
//
// hydrad: one node of a cluster. Exit status: 0 stopped as asked, 1 it cannot start or had to stop
// (the last line of the log says why and what to do), 2 it was called wrongly.
#include <csignal>
#include <fstream>
#include <iostream>
#include <sstream>

#include <CLI/CLI.hpp>
#include <boost/asio/signal_set.hpp>
#include <fmt/format.h>

#include "base/logging.h"
#include "daemon/handshake.h"
#include "daemon/http_server.h"
#include "daemon/iscsi_portal.h"
#include "daemon/node.h"
#include "daemon/version.h"

namespace hydra {
namespace {

struct Arguments {
  uint32_t node = 0;
  std::string dir;
  std::string cluster_id;
  std::string secret_file;
  std::string listen = "127.0.0.1:7100";
  std::string http;
  std::string iscsi;
  std::string iscsi_advertise;
  std::string iscsi_chap_file;
  std::vector<std::string> peers;
  bool bootstrap = false;
  bool join = false;
  bool insecure = false;
  bool drill = false;
  uint32_t feature_level = kFeatureLevel;
  uint64_t capacity = 0;
  uint64_t segment = 256ull << 20;
  unsigned readers = 4;
  unsigned slow_ms = 100;
  Nanos busy_wait = NodeOptions().busy_wait / kMicrosecond;
  uint64_t scrub_rate = 8ull << 20;
  uint64_t recovery_rate = 128ull << 20;
  uint64_t scrub_every = 7ull * 24 * 3600;
  std::string log_level = "info";
};

bool IsLoopback(const std::string& address) {
  return address.empty() || address.starts_with("127.") || address.starts_with("localhost:") ||
         address.starts_with("[::1]:");
}

std::string HostOf(const std::string& address) { return address.substr(0, address.rfind(':')); }

// Every address of this machine, whoever reads it: others who are told to call it call themselves.
bool IsWildcard(const std::string& address) {
  return address.find(':') != std::string::npos &&
         HostOf(address).find_first_not_of("0.:[]*") == std::string::npos;
}

// As initiators read it: an IPv6 address is in brackets.
bool IsHostAndPort(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == address.size()) return false;
  const std::string host = address.substr(0, colon);
  const bool bracketed = host.front() == '[' && host.back() == ']';
  return address.find_first_not_of("0123456789", colon + 1) == std::string::npos &&
         (bracketed || host.find_first_of("[]:") == std::string::npos);
}

Status CheckAddresses(const Arguments& a) {
  for (const std::string& address : {a.listen, a.http, a.iscsi}) {
    if (!IsLoopback(address) && !a.insecure) {
      return Status::InvalidArgument(
          fmt::format("{} can be reached from other machines, and connections are not encrypted; "
                      "say --insecure "
                      "if the network is trusted",
                      address));
    }
  }
  if (IsWildcard(a.iscsi) && a.iscsi_advertise.empty()) {
    return Status::InvalidArgument(
        fmt::format("--iscsi {}: every node tells initiators where the portals of all nodes are, "
                    "and there they would find themselves; give the address of this machine that "
                    "they reach, or say it with --iscsi-advertise HOST:PORT",
                    a.iscsi));
  }
  if (a.iscsi_advertise.empty()) return Status::Ok();
  if (a.iscsi.empty() || !IsHostAndPort(a.iscsi_advertise) || IsWildcard(a.iscsi_advertise)) {
    return Status::InvalidArgument(
        fmt::format("--iscsi-advertise {}: use HOST:PORT, by which initiators reach what --iscsi "
                    "listens on",
                    a.iscsi_advertise));
  }
  return Status::Ok();
}

Status TakePeers(const Arguments& a, NodeOptions* options) {
  for (const std::string& peer : a.peers) {
    const size_t equals = peer.find('=');
    uint64_t id = 0;
    try {
      id = equals == std::string::npos ? 0 : std::stoull(peer.substr(0, equals));
    } catch (const std::exception&) {
      id = 0;
    }
    if (id == 0 || id > UINT32_MAX || peer.find(':', equals) == std::string::npos ||
        IsWildcard(peer.substr(equals + 1))) {
      return Status::InvalidArgument(
          fmt::format("--peer {}: use ID=HOST:PORT, by which all nodes reach it", peer));
    }
    options->peers[static_cast<NodeId>(id)] = peer.substr(equals + 1);
  }
  const std::string& own = options->peers.emplace(a.node, a.listen).first->second;
  if (a.bootstrap && IsWildcard(own)) {
    return Status::InvalidArgument(
        fmt::format("--listen {}: the other nodes have to call this one by an address of its own; "
                    "say it with --peer {}=HOST:PORT, on all of them",
                    a.listen, a.node));
  }
  // The same machine, as far as others know it.
  if (IsWildcard(a.http) && !IsWildcard(own)) {
    options->http_advertise = HostOf(own) + a.http.substr(a.http.rfind(':'));
  }
  return Status::Ok();
}

Result<NodeOptions> ToOptions(const Arguments& a) {
  NodeOptions options;
  options.node = a.node;
  options.dir = a.dir;
  options.listen = a.listen;
  options.http_listen = a.http;
  options.iscsi_listen = a.iscsi;
  options.iscsi_advertise = a.iscsi_advertise;
  options.bootstrap = a.bootstrap;
  options.drill = a.drill;
  options.feature_level = a.feature_level;
  if (a.drill && (a.http.empty() || !IsLoopback(a.http))) {
    return Status::InvalidArgument(
        "--drill lets whoever reaches --http break this node, so that has to be a loopback "
        "address such as 127.0.0.1:7301");
  }
  options.join = a.join;
  if (a.bootstrap && a.join) {
    return Status::InvalidArgument(
        "--bootstrap forms a new cluster, --join asks to be let into one: use one of them");
  }
  options.capacity_bytes = a.capacity;
  options.segment_bytes = a.segment;
  options.readers = a.readers;
  options.scrub_rate = a.scrub_rate;
  options.core.recovery_rate = a.recovery_rate;
  options.scrub_every = a.scrub_every;
  options.slow_request = static_cast<Nanos>(a.slow_ms) * kMillisecond;
  options.busy_wait = a.busy_wait * kMicrosecond;
  if (!a.cluster_id.empty()) {
    HYDRA_ASSIGN_OR_RETURN(options.cluster, Uuid::Parse(a.cluster_id));
  }
  HYDRA_RETURN_IF_ERROR(CheckAddresses(a));
  std::ifstream file(a.secret_file);
  std::stringstream secret;
  secret << file.rdbuf();
  options.secret = secret.str();
  while (!options.secret.empty() && options.secret.back() == '\n') options.secret.pop_back();
  if (options.secret.size() < 16) {
    return Status::InvalidArgument(fmt::format(
        "'{}' holds no secret of 16 or more characters; make one with: openssl rand -hex 32",
        a.secret_file));
  }
  HYDRA_RETURN_IF_ERROR(TakePeers(a, &options));
  return options;
}

std::vector<rpc::IscsiSession> SessionsOf(const IscsiPortal& portal) {
  std::vector<rpc::IscsiSession> sessions;
  for (const iscsi::SessionInfo& info : portal.sessions()) {
    rpc::IscsiSession& session = sessions.emplace_back();
    session.set_initiator(info.initiator);
    session.set_target(info.target);
    session.set_address(info.address);
    session.set_commands(info.stats.commands);
    session.set_read_bytes(info.stats.read_bytes);
    session.set_written_bytes(info.stats.written_bytes);
    session.set_failed(info.stats.failed);
    session.set_aborted(info.stats.aborted);
    session.set_damaged(info.stats.damaged);
    session.set_tasks(static_cast<uint32_t>(info.tasks));
  }
  return sessions;
}

// Null if there is to be none.
Result<std::unique_ptr<IscsiPortal>> StartIscsi(const Arguments& arguments,
                                                const NodeOptions& options, Node& node) {
  std::unique_ptr<IscsiPortal> portal;
  if (options.iscsi_listen.empty()) return portal;
  IscsiPortal::Options iscsi;
  iscsi.listen = options.iscsi_listen;
  iscsi.advertise = options.iscsi_advertise;
  iscsi.node = options.node;
  iscsi.cluster = node.cluster();
  iscsi.nodes = {options.listen};
  iscsi.dial = [&node](boost::asio::io_context* io) { return node.Dial(io); };
  iscsi.metrics = &node.metrics();
  iscsi.busy_wait = options.busy_wait;
  iscsi.accounts = &node.accounts();
  for (const auto& [id, address] : options.peers) {
    if (id != options.node) iscsi.nodes.push_back(address);
  }
  if (!arguments.iscsi_chap_file.empty()) {
    HYDRA_ASSIGN_OR_RETURN(iscsi.chap, IscsiPortal::ReadChapFile(arguments.iscsi_chap_file));
  }
  portal = std::make_unique<IscsiPortal>(std::move(iscsi));
  HYDRA_RETURN_IF_ERROR(portal->Start());
  node.SetSessions([from = portal.get()] { return SessionsOf(*from); });
  return portal;
}

int Main(const Arguments& arguments) {
  for (const LogLevel level :
       {LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarn, LogLevel::kError}) {
    if (LogLevelName(level) == arguments.log_level) SetLogLevel(level);
  }
  const Result<NodeOptions> options = ToOptions(arguments);
  if (!options.ok()) {
    std::cerr << "hydrad: " << options.status().message() << "\n";
    return 2;
  }
  Result<std::unique_ptr<Node>> node = Node::Open(*options);
  if (!node.ok()) {
    HYDRA_LOG_ERROR("cannot start: {}", node.status().ToString());
    return 1;
  }
  Result<std::unique_ptr<IscsiPortal>> iscsi = StartIscsi(arguments, *options, **node);
  if (!iscsi.ok()) {
    HYDRA_LOG_ERROR("cannot start: {}", iscsi.status().ToString());
    return 1;
  }
  boost::asio::signal_set signals((*node)->io(), SIGTERM, SIGINT);
  signals.async_wait([&](const boost::system::error_code& error, int) {
    if (error) return;
    // Initiators leave while the node still serves them.
    if (!*iscsi) return (*node)->Stop();
    (*iscsi)->Stop([&] { (*node)->Stop(); });
  });
  std::unique_ptr<HttpServer> http;
  if (!options->http_listen.empty()) {
    http = std::make_unique<HttpServer>(node->get(), options->http_listen);
    const Status listening = http->Listen();
    if (!listening.ok()) {
      HYDRA_LOG_ERROR("cannot start: {}", listening.ToString());
      return 1;
    }
  }
  const Status ended = (*node)->Run();
  http.reset();
  iscsi->reset();
  if (ended.ok()) return 0;
  HYDRA_LOG_ERROR("ended: {}", ended.ToString());
  return 1;
}

}  // namespace
}  // namespace hydra

int main(int argc, char** argv) {
  hydra::Arguments a;
  CLI::App app("hydrad: one node of a Hydra cluster.");
  app.set_version_flag("--version", hydra::BuildVersion());
  app.set_config("--config", "", "a TOML file with these options, under the same names");
  app.add_option("--node", a.node, "this node's number, never given to another")->required();
  app.add_option("--dir", a.dir, "its data directory")->required();
  app.add_option("--listen", a.listen, "host:port for clients and peers");
  app.add_option("--http", a.http, "host:port for /metrics, /healthz and /api/status");
  app.add_option("--iscsi", a.iscsi, "host:port of the iSCSI portal");
  app.add_option("--iscsi-advertise", a.iscsi_advertise,
                 "host:port of the portal as initiators reach it, if it listens on another");
  app.add_option("--iscsi-chap-file", a.iscsi_chap_file,
                 "NAME SECRET of initiators; on a second line the target's own, for mutual CHAP");
  app.add_option("--peer", a.peers, "ID=HOST:PORT of every node; repeat it")->delimiter(',');
  app.add_option("--cluster-id", a.cluster_id, "a UUID, the same on all nodes");
  app.add_option("--secret-file", a.secret_file, "holds the secret that all nodes share")
      ->required();
  app.add_flag("--bootstrap", a.bootstrap, "form a new cluster of the peers listed, once");
  app.add_flag("--join", a.join,
               "if the data directory is empty: make it, and wait to be let into a cluster");
  app.add_flag("--insecure", a.insecure, "allow addresses that other machines can reach");
  app.add_flag("--drill", a.drill,
               "let hydractl drill break this node, through --http on loopback");
  app.add_option("--feature-level", a.feature_level,
                 "be like an older build, which knows no newer features; to try upgrades")
      ->check(CLI::Range(1u, hydra::kFeatureLevel));
  app.add_option("--capacity", a.capacity, "bytes of disk to use at most; 0: what there is")
      ->transform(CLI::AsSizeValue(false));
  app.add_option("--segment-size", a.segment, "of a new store")->transform(CLI::AsSizeValue(false));
  app.add_option("--readers", a.readers, "threads that read from the disk")
      ->check(CLI::Range(1, 64));
  app.add_option("--busy-wait", a.busy_wait,
                 "microseconds for which a thread that served a client looks for more before it "
                 "sleeps, if nobody else wants its processor; 0: none")
      ->check(CLI::Range(0, 1000));
  app.add_option("--slow-ms", a.slow_ms, "log requests that take longer; 0: none");
  app.add_option("--scrub-rate", a.scrub_rate,
                 "bytes per second that the search for rot reads; a quarter while clients work")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::PositiveNumber);
  app.add_option("--recovery-rate", a.recovery_rate,
                 "bytes per second that replicas which are behind are sent; while clients work, "
                 "as much as they write, or 8M, later more; 0: no limit")
      ->transform(CLI::AsSizeValue(false));
  const std::map<std::string, uint64_t> units = {
      {"s", 1}, {"m", 60}, {"h", 3600}, {"d", 24 * 3600}, {"w", 7 * 24 * 3600}};
  app.add_option("--scrub-every", a.scrub_every,
                 "how often the whole store is searched for rot, such as 12h or 7d; 0: never")
      ->transform(CLI::AsNumberWithUnit(units));
  app.add_option("--log-level", a.log_level, "debug, info, warn or error");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);
    return code == 0 ? 0 : 2;
  }
  return hydra::Main(a);
}
