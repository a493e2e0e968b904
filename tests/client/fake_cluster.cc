// SPDX-License-Identifier: Apache-2.0
#include "tests/client/fake_cluster.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <set>
#include <thread>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <fmt/format.h>

#include "base/check.h"
#include "base/crc32c.h"
#include "client/connection.h"
#include "client/layout.h"
#include "client/protocol.pb.h"

namespace hydra::test {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

constexpr char kClusterId[] = "0123456789abcdef";

size_t Pages(size_t bytes) { return (bytes + kPageSize - 1) / kPageSize * kPageSize; }

}  // namespace

struct FakeCluster::Impl {
  explicit Impl(unsigned nodes);
  ~Impl();

  void AddVolume(const std::string& name, uint64_t bytes, uint32_t block_bytes, uint32_t shards);
  void ExpireSessions();
  void SetJoining(uint32_t node, const std::string& store);
  void StopNode(uint32_t id);

  struct Outcome {
    rpc::Reply::Answer answer = rpc::Reply::DONE;
    uint64_t version = 0;
  };
  struct Session {
    uint64_t lowest = 1;
    std::map<uint64_t, Outcome> outcomes;
  };
  struct Group {
    uint32_t master = 1;
    uint32_t block_bytes = 4096;
    uint64_t commit = 1;
    std::map<uint64_t, std::string> blocks;
    std::map<uint64_t, Session> sessions;
  };
  struct Node {
    uint32_t id = 0;
    uint16_t port = 0;
    std::unique_ptr<boost::asio::ip::tcp::acceptor> acceptor;
    std::set<std::shared_ptr<Connection>> connections;
  };

  void Listen(Node* node);
  void Accept(Node* node);
  void OnFrame(Node* node, const std::shared_ptr<Connection>& connection, const Frame& frame);
  void OnRequest(Node* node, const std::shared_ptr<Connection>& connection, const Frame& frame);
  rpc::Reply Execute(const Node& node, const rpc::Request& request, const Frame& frame,
                     std::string* payload);
  rpc::Reply ExecuteIo(const Node& node, const rpc::Io& io, const Frame& frame,
                       std::string* payload);
  Outcome Mutate(Group* group, const rpc::Io& io, const Frame& frame);
  rpc::Reply Read(const Group& group, const rpc::Io& io, std::string* payload);
  void Reply(const std::shared_ptr<Connection>& connection, uint64_t id, const rpc::Reply& reply,
             std::string payload);
  rpc::Reply Admin(const rpc::Request& request);

  boost::asio::io_context context_{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::vector<std::string> addresses_;
  rpc::Catalogue catalogue_;
  std::map<uint32_t, Group> groups_;
  Chooser chooser_;
  Counts counts_;
  bool ignore_map_only_ = false;
  std::function<rpc::Reply(uint32_t node, const rpc::Purge& purge)> purge_;
  std::thread thread_;
};

FakeCluster::Impl::Impl(unsigned nodes) : work_(context_.get_executor()) {
  catalogue_.set_version(1);
  catalogue_.set_cluster(kClusterId);
  catalogue_.set_next_group(1);
  catalogue_.set_next_volume(1);
  for (unsigned i = 0; i < nodes; ++i) {
    auto node = std::make_unique<Node>();
    node->id = i + 1;
    Listen(node.get());
    addresses_.push_back(fmt::format("127.0.0.1:{}", node->port));
    auto* listed = catalogue_.add_nodes();
    listed->set_id(node->id);
    listed->set_rpc(addresses_.back());
    nodes_.push_back(std::move(node));
  }
  thread_ = std::thread([this] { context_.run(); });
}

FakeCluster::Impl::~Impl() {
  asio::post(context_, [this] {
    for (const auto& node : nodes_) StopNode(node->id);
    context_.stop();
  });
  thread_.join();
}

void FakeCluster::Impl::Listen(Node* node) {
  const tcp::endpoint endpoint(asio::ip::address_v4::loopback(), node->port);
  node->acceptor = std::make_unique<tcp::acceptor>(context_, endpoint, true);
  node->port = node->acceptor->local_endpoint().port();
  Accept(node);
}

void FakeCluster::Impl::Accept(Node* node) {
  node->acceptor->async_accept(
      [this, node](const boost::system::error_code& error, tcp::socket socket) {
        if (error) return;
        auto connection = Connection::Adopt(std::move(socket), {});
        node->connections.insert(connection);
        const std::weak_ptr<Connection> weak = connection;
        connection->Start({[this, node, weak](const Frame& frame) {
                             if (const auto held = weak.lock()) OnFrame(node, held, frame);
                           },
                           [node, weak](const Status&) {
                             if (const auto held = weak.lock()) node->connections.erase(held);
                           }});
        Accept(node);
      });
}

void FakeCluster::Impl::StopNode(uint32_t id) {
  Node* node = nodes_[id - 1].get();
  node->acceptor.reset();
  for (const auto& connection : node->connections) connection->Close();
  node->connections.clear();
}

void FakeCluster::Impl::AddVolume(const std::string& name, uint64_t bytes, uint32_t block_bytes,
                                  uint32_t shards) {
  auto* volume = catalogue_.add_volumes();
  volume->set_id(catalogue_.next_volume());
  catalogue_.set_next_volume(volume->id() + 1);
  volume->set_name(name);
  volume->set_bytes(bytes);
  volume->set_block_bytes(block_bytes);
  volume->set_state(rpc::CatalogueVolume::ACTIVE);
  for (uint32_t i = 0; i < shards; ++i) {
    const uint32_t id = catalogue_.next_group();
    catalogue_.set_next_group(id + 1);
    volume->add_shards(id);
    auto* group = catalogue_.add_groups();
    group->set_id(id);
    for (const auto& node : nodes_) group->add_replicas()->set_node(node->id);
    groups_[id].master = static_cast<uint32_t>(1 + id % nodes_.size());
    groups_[id].block_bytes = block_bytes;
  }
  catalogue_.set_version(catalogue_.version() + 1);
}

void FakeCluster::Impl::SetJoining(uint32_t id, const std::string& store) {
  auto* node = catalogue_.mutable_nodes(static_cast<int>(id) - 1);
  node->set_state(rpc::CatalogueNode::JOINING);
  node->set_incarnation(2);
  node->set_store(store);
  for (auto& group : *catalogue_.mutable_groups()) {
    for (int i = group.replicas_size() - 1; i >= 0; --i) {
      if (group.replicas(i).node() == id) group.mutable_replicas()->DeleteSubrange(i, 1);
    }
  }
  catalogue_.set_version(catalogue_.version() + 1);
}

void FakeCluster::Impl::ExpireSessions() {
  for (auto& [id, group] : groups_) group.sessions.clear();
}

// --- Frames -------------------------------------------------------------------------------------

void FakeCluster::Impl::OnFrame(Node* node, const std::shared_ptr<Connection>& connection,
                                const Frame& frame) {
  if (frame.type == FrameType::kHello) {
    rpc::Welcome welcome;
    welcome.set_protocol(1);
    welcome.set_cluster(kClusterId);
    welcome.set_node(node->id);
    connection->Send(FrameType::kWelcome, 0, welcome.SerializeAsString());
    connection->Send(FrameType::kReady, 0, rpc::Ready().SerializeAsString());
    return;
  }
  if (frame.type == FrameType::kRequest) OnRequest(node, connection, frame);
}

void FakeCluster::Impl::Reply(const std::shared_ptr<Connection>& connection, uint64_t id,
                              const rpc::Reply& reply, std::string payload) {
  std::vector<BufferSlice> slices;
  if (!payload.empty()) {
    Buffer buffer = Buffer::Allocate(payload.size());
    std::memcpy(buffer.data(), payload.data(), payload.size());
    slices.push_back({buffer, 0, buffer.size()});
  }
  connection->Send(FrameType::kReply, id, reply.SerializeAsString(), std::move(slices),
                   static_cast<uint32_t>(payload.size()));
}

void FakeCluster::Impl::OnRequest(Node* node, const std::shared_ptr<Connection>& connection,
                                  const Frame& frame) {
  rpc::Request request;
  HYDRA_CHECK(request.ParseFromString(frame.header));
  const bool question = request.has_get_catalogue() || request.has_get_status();
  const Fault fault = chooser_ && !question ? chooser_(node->id, request) : Fault::kNone;
  const auto refuse = [&](rpc::Reply::Answer answer) {
    rpc::Reply reply;
    reply.set_answer(answer);
    Reply(connection, frame.id, reply, "");
  };
  switch (fault) {
    case Fault::kDropRequest: return;
    case Fault::kCloseBefore: connection->Close(); return;
    case Fault::kBusy: return refuse(rpc::Reply::BUSY);
    case Fault::kNotMaster: return refuse(rpc::Reply::NOT_MASTER);
    case Fault::kDamaged: return refuse(rpc::Reply::DAMAGED);
    case Fault::kNoGroup: return refuse(rpc::Reply::NO_GROUP);
    case Fault::kExpire: ExpireSessions(); break;
    default: break;
  }
  std::string payload;
  rpc::Reply reply = Execute(*node, request, frame, &payload);
  if (fault == Fault::kDropReply) return;
  if (fault == Fault::kCloseAfter) return connection->Close();
  if (fault == Fault::kUnknown && reply.answer() == rpc::Reply::DONE) {
    return refuse(rpc::Reply::UNKNOWN);
  }
  if (fault == Fault::kCorrupt && !payload.empty()) payload[payload.size() / 2] ^= 1;
  if (fault == Fault::kDelay) {
    auto timer = std::make_shared<asio::steady_timer>(context_, std::chrono::milliseconds(300));
    timer->async_wait([this, timer, connection, id = frame.id, reply, payload](const auto& error) {
      if (!error) Reply(connection, id, reply, payload);
    });
    return;
  }
  Reply(connection, frame.id, reply, std::move(payload));
}

// --- Requests -----------------------------------------------------------------------------------

rpc::Reply FakeCluster::Impl::Execute(const Node& node, const rpc::Request& request,
                                      const Frame& frame, std::string* payload) {
  rpc::Reply reply;
  if (request.has_io()) return ExecuteIo(node, request.io(), frame, payload);
  if (request.has_get_catalogue()) {
    ++counts_.catalogues;
    if (catalogue_.version() > request.get_catalogue().newer_than()) {
      reply.set_catalogue(catalogue_.SerializeAsString());
    }
    return reply;
  }
  if (request.has_get_status()) {
    reply.mutable_status()->set_node(node.id);
    reply.mutable_status()->set_version("fake");
    return reply;
  }
  if (request.has_purge()) return purge_(node.id, request.purge());
  if (request.has_fence()) {
    reply.set_commit(++groups_.at(request.fence().group()).commit);
    return reply;
  }
  uint32_t id = 0;
  if (request.has_open_session()) id = request.open_session().group();
  if (request.has_keep_alive()) id = request.keep_alive().group();
  if (request.has_close_session()) id = request.close_session().group();
  if (id == 0) return Admin(request);
  Group& group = groups_.at(id);
  if (group.master != node.id) {
    reply.set_answer(rpc::Reply::NOT_MASTER);
    reply.set_master(group.master);
    return reply;
  }
  if (request.has_open_session()) {
    ++counts_.opened;
    reply.set_session(++group.commit);
    group.sessions[group.commit];
  } else if (request.has_keep_alive()) {
    ++counts_.keep_alives;
    if (!group.sessions.contains(request.keep_alive().session())) {
      reply.set_answer(rpc::Reply::SESSION_EXPIRED);
    }
  } else {
    ++counts_.closed;
    group.sessions.erase(request.close_session().session());
  }
  return reply;
}

rpc::Reply FakeCluster::Impl::Admin(const rpc::Request& request) {
  rpc::Reply reply;
  const auto fail = [&](Code code, const std::string& message) {
    reply.set_answer(rpc::Reply::FAILED);
    reply.set_code(static_cast<uint32_t>(code));
    reply.set_message(message);
    return reply;
  };
  auto* volumes = catalogue_.mutable_volumes();
  const auto find = [&](const std::string& name) {
    return std::find_if(volumes->begin(), volumes->end(),
                        [&](const auto& volume) { return volume.name() == name; });
  };
  if (request.has_create_volume()) {
    const auto& create = request.create_volume();
    if (find(create.name()) != volumes->end()) {
      return fail(Code::kAlreadyExists, "there is a volume of that name");
    }
    AddVolume(create.name(), create.bytes(), create.block_bytes() ? create.block_bytes() : 4096,
              create.shards() ? create.shards() : 4);
  } else if (request.has_resize_volume()) {
    const auto found = find(request.resize_volume().name());
    if (found == volumes->end()) return fail(Code::kNotFound, "no such volume");
    found->set_bytes(request.resize_volume().bytes());
    catalogue_.set_version(catalogue_.version() + 1);
  } else if (request.has_delete_volume()) {
    const auto found = find(request.delete_volume().name());
    if (found == volumes->end()) return fail(Code::kNotFound, "no such volume");
    volumes->erase(found);
    catalogue_.set_version(catalogue_.version() + 1);
  } else if (request.has_move_master()) {
    groups_.at(request.move_master().group()).master = request.move_master().node();
  }
  return reply;
}

rpc::Reply FakeCluster::Impl::ExecuteIo(const Node& node, const rpc::Io& io, const Frame& frame,
                                        std::string* payload) {
  rpc::Reply reply;
  const auto found = groups_.find(io.group());
  if (found == groups_.end()) {
    reply.set_answer(rpc::Reply::NO_GROUP);
    return reply;
  }
  Group& group = found->second;
  reply.set_commit(group.commit);
  if (io.kind() == rpc::Io::READ) {
    ++counts_.reads;
    return Read(group, io, payload);
  }
  if (group.master != node.id) {
    reply.set_answer(rpc::Reply::NOT_MASTER);
    reply.set_master(group.master);
    return reply;
  }
  const auto session = group.sessions.find(io.session());
  if (session == group.sessions.end()) {
    reply.set_answer(rpc::Reply::SESSION_EXPIRED);
    return reply;
  }
  Session& state = session->second;
  counts_.max_span = std::max(counts_.max_span, io.seq() - io.lowest_unanswered());
  state.lowest = std::max(state.lowest, io.lowest_unanswered());
  state.outcomes.erase(state.outcomes.begin(), state.outcomes.lower_bound(state.lowest));
  if (io.seq() < state.lowest) {
    reply.set_answer(rpc::Reply::FORGOTTEN);
    return reply;
  }
  const auto done = state.outcomes.find(io.seq());
  Outcome outcome;
  if (done != state.outcomes.end()) {
    ++counts_.repeats;
    outcome = done->second;
  } else {
    ++counts_.executed;
    outcome = Mutate(&group, io, frame);
    state.outcomes[io.seq()] = outcome;
  }
  reply.set_answer(outcome.answer);
  reply.set_version(outcome.version);
  return reply;
}

FakeCluster::Impl::Outcome FakeCluster::Impl::Mutate(Group* group, const rpc::Io& io,
                                                     const Frame& frame) {
  const size_t block = group->block_bytes;
  const std::string payload(reinterpret_cast<const char*>(frame.payload.data()),
                            frame.payload_bytes);
  Outcome outcome;
  outcome.version = ++group->commit;
  const auto get = [&](uint64_t lba) {
    const auto at = group->blocks.find(lba);
    return at == group->blocks.end() ? std::string(block, '\0') : at->second;
  };
  const auto miscompare = [&] {
    outcome.answer = rpc::Reply::MISCOMPARE;
    outcome.version = 0;
    return outcome;
  };
  switch (io.kind()) {
    case rpc::Io::WRITE:
    case rpc::Io::COMPARE_AND_WRITE: {
      const bool compare = io.kind() == rpc::Io::COMPARE_AND_WRITE;
      HYDRA_CHECK(payload.size() == io.count() * block * (compare ? 2 : 1));
      HYDRA_CHECK(static_cast<uint64_t>(io.crcs_size()) == io.count());
      for (uint64_t i = 0; compare && i < io.count(); ++i) {
        if (get(io.lba() + i) != payload.substr(i * block, block)) return miscompare();
      }
      const size_t from = compare ? io.count() * block : 0;
      for (uint64_t i = 0; i < io.count(); ++i) {
        std::string data = payload.substr(from + i * block, block);
        HYDRA_CHECK(Crc32c(data.data(), block) == io.crcs(static_cast<int>(i)));
        group->blocks[io.lba() + i] = std::move(data);
      }
      return outcome;
    }
    case rpc::Io::WRITE_PART:
    case rpc::Io::COMPARE_PART: {
      const size_t padded = Pages(io.part_bytes());
      const bool compare = io.kind() == rpc::Io::COMPARE_PART;
      HYDRA_CHECK(payload.size() == padded * (compare ? 2 : 1));
      HYDRA_CHECK(io.part_offset() + io.part_bytes() <= io.count() * block);
      std::string all;
      for (uint64_t i = 0; i < io.count(); ++i) all += get(io.lba() + i);
      if (compare && all.compare(io.part_offset(), io.part_bytes(), payload, 0, io.part_bytes())) {
        return miscompare();
      }
      const std::string data = payload.substr(compare ? padded : 0, io.part_bytes());
      HYDRA_CHECK(Crc32c(data.data(), data.size()) == io.crcs(0));
      all.replace(io.part_offset(), data.size(), data);
      for (uint64_t i = 0; i < io.count(); ++i) {
        group->blocks[io.lba() + i] = all.substr(i * block, block);
      }
      return outcome;
    }
    case rpc::Io::ZERO:
    case rpc::Io::UNMAP: {
      HYDRA_CHECK(static_cast<size_t>(io.extents_size()) <= kMaxExtentsPerIo);
      const uint64_t per_extent = kExtentBytes / block;
      const auto drop = [&](uint64_t first, uint64_t count) {
        group->blocks.erase(group->blocks.lower_bound(first),
                            group->blocks.lower_bound(first + count));
      };
      for (const uint64_t extent : io.extents()) drop(extent * per_extent, per_extent);
      if (io.extents_size() == 0) drop(io.lba(), io.count());
      return outcome;
    }
    default: break;
  }
  HYDRA_CHECK(false);
  return outcome;
}

rpc::Reply FakeCluster::Impl::Read(const Group& group, const rpc::Io& io, std::string* payload) {
  rpc::Reply reply;
  std::string kinds;
  for (uint64_t lba = io.lba(); lba < io.lba() + io.count(); ++lba) {
    const auto at = group.blocks.find(lba);
    const bool data = at != group.blocks.end();
    kinds.push_back(static_cast<char>(data ? 1 : 3));
    if (io.map_only() && !ignore_map_only_) continue;
    reply.add_crcs(data ? Crc32c(at->second.data(), at->second.size()) : 0);
    reply.add_versions(1);
    if (data) *payload += at->second;
  }
  reply.set_kinds(kinds);
  reply.set_commit(group.commit);
  reply.set_master(group.master);
  return reply;
}

// --- The front ----------------------------------------------------------------------------------

FakeCluster::FakeCluster(unsigned nodes) : impl_(std::make_unique<Impl>(nodes)) {}
FakeCluster::~FakeCluster() = default;

std::vector<std::string> FakeCluster::addresses() const { return impl_->addresses_; }

void FakeCluster::Post(std::function<void()> function) {
  asio::post(impl_->context_, std::move(function));
}

void FakeCluster::AddVolume(const std::string& name, uint64_t bytes, uint32_t block_bytes,
                            uint32_t shards) {
  impl_->AddVolume(name, bytes, block_bytes, shards);
}
void FakeCluster::SetPurge(
    std::function<rpc::Reply(uint32_t node, const rpc::Purge& purge)> purge) {
  impl_->purge_ = std::move(purge);
}
void FakeCluster::IgnoreMapOnly() { impl_->ignore_map_only_ = true; }
void FakeCluster::SetMaster(uint32_t group, uint32_t node) {
  impl_->groups_.at(group).master = node;
}
void FakeCluster::ExpireSessions() { impl_->ExpireSessions(); }
void FakeCluster::SetJoining(uint32_t node, const std::string& store) {
  impl_->SetJoining(node, store);
}
void FakeCluster::StopNode(uint32_t node) { impl_->StopNode(node); }
void FakeCluster::StartNode(uint32_t node) { impl_->Listen(impl_->nodes_[node - 1].get()); }

void FakeCluster::SetFaults(Chooser chooser) {
  Do([&] { impl_->chooser_ = std::move(chooser); });
}

FakeCluster::Counts FakeCluster::counts() {
  return Do([&] { return impl_->counts_; });
}

}  // namespace hydra::test
