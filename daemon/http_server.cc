// SPDX-License-Identifier: Apache-2.0
#include "daemon/http_server.h"

#include <chrono>
#include <sstream>

#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include "base/uuid.h"
#include "daemon/drill_faults.h"
#include "daemon/drill_rot.h"

namespace hydra {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using Json = nlohmann::ordered_json;

constexpr std::chrono::seconds kClientPatience(10);
constexpr size_t kMaxConnections = 64;
constexpr size_t kMaxRequestBytes = 16u << 10;

struct Page {
  http::status status = http::status::ok;
  std::string type = "text/plain; charset=utf-8";
  std::string body;
};

std::string RenderMetrics(const MetricsRegistry& metrics) {
  std::vector<prometheus::MetricFamily> families;
  for (const MetricFamilySnapshot& from : metrics.Snapshot()) {
    prometheus::MetricFamily family;
    family.name = from.name;
    family.help = from.help;
    family.type = from.type == MetricType::kCounter ? prometheus::MetricType::Counter
                  : from.type == MetricType::kGauge ? prometheus::MetricType::Gauge
                                                    : prometheus::MetricType::Histogram;
    for (const SeriesSnapshot& series : from.series) {
      prometheus::ClientMetric metric;
      for (const auto& [name, value] : series.labels) metric.label.push_back({name, value});
      metric.counter.value = static_cast<double>(series.counter);
      metric.gauge.value = static_cast<double>(series.gauge);
      uint64_t below = 0;
      for (size_t i = 0; i < series.histogram.bounds.size(); ++i) {
        below += series.histogram.counts[i];
        metric.histogram.bucket.push_back({below, series.histogram.bounds[i]});
      }
      metric.histogram.sample_count = series.histogram.count;
      metric.histogram.sample_sum = series.histogram.sum;
      family.metric.push_back(std::move(metric));
    }
    families.push_back(std::move(family));
  }
  return prometheus::TextSerializer().Serialize(families);
}

std::string UuidText(const std::string& bytes) {
  Uuid uuid;
  if (bytes.size() != uuid.bytes.size()) return "";
  std::copy(bytes.begin(), bytes.end(), uuid.bytes.begin());
  return uuid.ToString();
}

std::string RenderStatus(Node* node) {
  rpc::NodeStatus status;
  node->FillStatus(true, &status);
  const Status health = node->health();
  Json json = {{"node", status.node()},
               {"store", UuidText(status.store())},
               {"version", status.version()},
               {"feature_level", status.feature_level()},
               {"uptime_ms", status.uptime_ms()},
               {"healthy", health.ok()},
               {"health", health.ok() ? "ok" : std::string(health.message())},
               {"space_bytes", status.space_bytes()},
               {"capacity_bytes", status.capacity_bytes()},
               {"free_bytes", status.free_bytes()},
               {"connected", Json::array()},
               {"groups", Json::array()},
               {"iscsi_sessions", Json::array()},
               {"nodes", Json::array()},
               {"volumes", Json::array()}};
  for (const uint32_t peer : status.connected()) json["connected"].push_back(peer);
  for (const rpc::ReplicaStatus& r : status.replicas()) {
    json["groups"].push_back({{"group", r.group()},
                              {"role", r.role()},
                              {"ready", r.ready()},
                              {"master", r.master()},
                              {"ballot", fmt::format("{}.{}", r.ballot_round(), r.ballot_node())},
                              {"commit", r.commit()},
                              {"applied", r.applied()},
                              {"data_blocks", r.data_blocks()},
                              {"owed_bytes", r.owed_bytes()}});
  }
  for (const rpc::IscsiSession& s : status.sessions()) {
    json["iscsi_sessions"].push_back({{"initiator", s.initiator()},
                                      {"target", s.target()},
                                      {"address", s.address()},
                                      {"commands", s.commands()},
                                      {"read_bytes", s.read_bytes()},
                                      {"written_bytes", s.written_bytes()},
                                      {"failed", s.failed()},
                                      {"aborted", s.aborted()},
                                      {"damaged", s.damaged()},
                                      {"tasks", s.tasks()}});
  }
  if (const rpc::Catalogue* catalogue = node->catalogue()) {
    json["cluster"] = UuidText(catalogue->cluster());
    json["catalogue_version"] = catalogue->version();
    json["cluster_feature_level"] = catalogue->feature_level();
    for (const rpc::CatalogueNode& n : catalogue->nodes()) {
      json["nodes"].push_back({{"node", n.id()}, {"rpc", n.rpc()}, {"store", UuidText(n.store())}});
    }
    for (const rpc::CatalogueVolume& v : catalogue->volumes()) {
      json["volumes"].push_back(
          {{"name", v.name()},
           {"bytes", v.bytes()},
           {"block_bytes", v.block_bytes()},
           {"logical_block", v.logical_block() == 0 ? 512 : v.logical_block()},
           {"shards", v.shards_size()}});
    }
  }
  // Initiators choose their names.
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Page DrillAnswer(const Status& status, const std::string& body) {
  if (status.ok()) return {http::status::ok, "application/json", body};
  return {status.code() == Code::kInvalidArgument ? http::status::bad_request
                                                  : http::status::internal_server_error,
          "text/plain; charset=utf-8", std::string(status.message()) + "\n"};
}

Page DescribeRot(DrillRot* rot) {
  const Result<std::string> said = rot->Describe();
  return DrillAnswer(said.status(), said.ok() ? *said : "");
}

Page Answer(Node* node, const std::string& target) {
  if (target == "/metrics") {
    node->UpdateMetrics();
    return {http::status::ok, "text/plain; version=0.0.4", RenderMetrics(node->metrics())};
  }
  if (target == "/healthz") {
    const Status health = node->health();
    if (health.ok()) return {http::status::ok, "text/plain; charset=utf-8", "ok\n"};
    return {http::status::service_unavailable, "text/plain; charset=utf-8",
            std::string(health.message()) + "\n"};
  }
  if (target == "/api/status") return {http::status::ok, "application/json", RenderStatus(node)};
  if (target == "/drill/faults" && node->drill_faults() != nullptr) {
    return {http::status::ok, "application/json", node->drill_faults()->Describe()};
  }
  if (target == "/drill/rot" && node->drill_rot() != nullptr) return DescribeRot(node->drill_rot());
  return {http::status::not_found, "text/plain; charset=utf-8",
          "there are /metrics, /healthz and /api/status\n"};
}

// Faults, of a node that was started with --drill. JSON only: no page in a browser can post that
// here without asking first, and it is refused when it asks.
Page AnswerPost(Node* node, const std::string& target, const std::string& type,
                const std::string& body) {
  const bool faults = target == "/drill/faults" && node->drill_faults() != nullptr;
  const bool rot = target == "/drill/rot" && node->drill_rot() != nullptr;
  if (!faults && !rot) {
    return {http::status::method_not_allowed, "text/plain; charset=utf-8", "only GET\n"};
  }
  if (type != "application/json") {
    return {http::status::unsupported_media_type, "text/plain; charset=utf-8",
            "post application/json\n"};
  }
  if (rot) {
    const Status damaged = node->drill_rot()->Damage(body);
    return damaged.ok() ? DescribeRot(node->drill_rot()) : DrillAnswer(damaged, "");
  }
  const Status set = node->drill_faults()->Set(body);
  return DrillAnswer(set, node->drill_faults()->Describe());
}

// One connection; lives in its own handlers.
class Visit : public std::enable_shared_from_this<Visit> {
 public:
  Visit(tcp::socket socket, Node* node, std::shared_ptr<size_t> count)
      : stream_(std::move(socket)), node_(node), count_(std::move(count)) {
    ++*count_;
  }
  ~Visit() { --*count_; }

  void Read() {
    parser_.emplace();
    parser_->body_limit(kMaxRequestBytes);
    parser_->header_limit(kMaxRequestBytes);
    stream_.expires_after(kClientPatience);
    http::async_read(stream_, buffer_, *parser_,
                     [self = shared_from_this()](const beast::error_code& error, size_t) {
                       if (!error) self->Write();
                     });
  }

 private:
  void Write() {
    const http::request<http::string_body>& request = parser_->get();
    Page page{http::status::method_not_allowed, "text/plain; charset=utf-8", "only GET\n"};
    const std::string target(request.target());
    if (request.method() == http::verb::get) page = Answer(node_, target);
    if (request.method() == http::verb::post) {
      const std::string type(request[http::field::content_type]);
      page = AnswerPost(node_, target, type, request.body());
    }
    response_ = {page.status, request.version()};
    response_.set(http::field::content_type, page.type);
    response_.keep_alive(request.keep_alive());
    response_.body() = std::move(page.body);
    response_.prepare_payload();
    stream_.expires_after(kClientPatience);
    http::async_write(stream_, response_,
                      [self = shared_from_this()](const beast::error_code& error, size_t) {
                        if (!error && self->response_.keep_alive()) self->Read();
                      });
  }

  beast::tcp_stream stream_;
  Node* const node_;
  const std::shared_ptr<size_t> count_;
  beast::flat_buffer buffer_;
  std::optional<http::request_parser<http::string_body>> parser_;
  http::response<http::string_body> response_;
};

}  // namespace

class HttpServer::Impl : public std::enable_shared_from_this<Impl> {
 public:
  Impl(Node* node, std::string listen)
      : node_(node), listen_(std::move(listen)), acceptor_(node->io()) {}

  Status Listen() {
    const size_t colon = listen_.rfind(':');
    beast::error_code error;
    tcp::resolver resolver(node_->io());
    const auto found =
        colon == std::string::npos
            ? tcp::resolver::results_type()
            : resolver.resolve(listen_.substr(0, colon), listen_.substr(colon + 1), error);
    if (error || found.empty()) {
      return Status::InvalidArgument(
          fmt::format("'{}' is no address to listen on: use host:port", listen_));
    }
    const tcp::endpoint endpoint = found.begin()->endpoint();
    acceptor_.open(endpoint.protocol(), error);
    if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
    if (!error) acceptor_.bind(endpoint, error);
    if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
    if (error) {
      return Status::IoError(fmt::format("cannot listen on {}: {}", listen_, error.message()));
    }
    AcceptNext();
    return Status::Ok();
  }

  void Close() {
    beast::error_code ignored;
    acceptor_.close(ignored);
  }

 private:
  void AcceptNext() {
    acceptor_.async_accept(
        [self = shared_from_this()](const beast::error_code& error, tcp::socket socket) {
          if (!self->acceptor_.is_open()) return;
          if (!error && *self->count_ < kMaxConnections) {
            std::make_shared<Visit>(std::move(socket), self->node_, self->count_)->Read();
          }
          self->AcceptNext();
        });
  }

  Node* const node_;
  const std::string listen_;
  tcp::acceptor acceptor_;
  const std::shared_ptr<size_t> count_ = std::make_shared<size_t>(0);
};

HttpServer::HttpServer(Node* node, std::string listen)
    : impl_(std::make_shared<Impl>(node, std::move(listen))) {}
HttpServer::~HttpServer() { impl_->Close(); }

Status HttpServer::Listen() { return impl_->Listen(); }

}  // namespace hydra
