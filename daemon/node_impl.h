// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>

#include <boost/asio/steady_timer.hpp>

#include "base/posix_file.h"
#include "daemon/catalogue_keeper.h"
#include "daemon/disk_threads.h"
#include "daemon/node.h"
#include "daemon/peer_links.h"
#include "daemon/server.h"

namespace hydra {

// node.cc: life; node_serve.cc: what clients ask; node_admin.cc: the catalogue and administration.
class Node::Impl {
 public:
  Impl(Node* node, const NodeOptions& options);
  ~Impl();

  Status Open();
  Status Start();
  void BeginStop();
  Status Close();

  void FillStatus(bool groups, rpc::NodeStatus* status);
  void UpdateMetrics();
  Status health() const;
  const Uuid& cluster() const { return options_.cluster; }
  const CatalogueKeeper& keeper() const { return *keeper_; }
  const Status& ended() const { return ended_; }

 private:
  // A request of a client that a shard has.
  struct Asked {
    Server::ClientPtr client;
    Frame frame;  // without its payload
    GroupId group = 0;
    Nanos since = 0;
    const char* what = "";
    bool opens_session = false;
    rpc::GetCatalogue catalogue = {};
    bool by_own_epoch = false;  // of access rights, this node's rather than the caller's
  };

  // --- Life. ---
  Status MakeStore();
  Status CreateSystemGroup();
  void Wake();
  void Act();
  void Tick();
  void EndWith(const Status& status);
  void StopStep();

  // --- Serving. ---
  void OnRequest(const Server::ClientPtr& client, Frame frame);
  void GetCatalogue(const Server::ClientPtr& client, Frame frame, const rpc::GetCatalogue& request);
  // `read`: everything that was answered before is applied here.
  void TellCatalogue(const Server::ClientPtr& client, const Frame& frame,
                     const rpc::GetCatalogue& request, bool read);
  void Serve(const Server::ClientPtr& client, Frame frame, const rpc::Io& io);
  // `epoch`: under which the caller checked that it may; 0: it did not.
  void Ask(const Server::ClientPtr& client, Frame frame, GroupId group, ShardRequest request,
           const char* what, uint64_t epoch = 0);
  void FenceOff(const Server::ClientPtr& client, Frame frame, const rpc::Fence& fence);
  void OnReply(ShardReply reply);
  void Answer(const Server::ClientPtr& client, const Frame& frame, rpc::Reply::Answer answer,
              const std::string& message = {}, NodeId master = 0);
  void AnswerStatus(const Server::ClientPtr& client, const Frame& frame, const Status& status);
  void NoteSlow(const Asked& asked, const ShardReply& reply, Nanos took);

  // --- Administration. ---
  Status Admit(const rpc::Hello& hello);
  void OnCatalogue(const rpc::Catalogue& catalogue);
  void Reconcile(const rpc::Catalogue& catalogue);
  void TendCatalogue();
  void TendMasterships();
  void Change(const Server::ClientPtr& client, const Frame& frame, CatalogueKeeper::Change change);
  void MoveMaster(const Server::ClientPtr& client, const Frame& frame,
                  const rpc::MoveMaster& request);
  bool HandOver(GroupId group, NodeId to);

  Node* const node_;
  NodeOptions options_;
  const RealClock clock_;
  PosixFileSystem fs_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<NodeCore> core_;
  std::unique_ptr<CatalogueKeeper> keeper_;
  std::unique_ptr<DiskThreads> disk_;
  std::unique_ptr<PeerLinks> links_;
  std::unique_ptr<Server> server_;
  boost::asio::steady_timer tick_;

  NodeOutput out_;
  bool awake_ = false;
  Nanos started_ = 0;
  uint64_t next_request_ = 1;
  std::unordered_map<uint64_t, Asked> asked_;
  std::map<NodeId, rpc::Hello> peer_hellos_;  // what they said when they called
  struct Served {
    uint64_t blocks = 0;  // of the volume
    uint64_t kept = 0;    // ... of them, those that it has after a shrink that is under way
    uint32_t block_pages = 1;
    uint64_t epoch = 1;  // of access rights
  };
  std::map<GroupId, Served> served_;
  std::map<GroupId, NodeId> preferred_;
  std::map<GroupId, Nanos> not_preferred_since_;
  Nanos tended_ = 0;
  bool waiting_told_ = false;
  bool stopping_ = false;
  Nanos stop_by_ = 0;
  Status ended_;

  // Metrics.
  Histogram* request_time_ = nullptr;
  Histogram* read_time_ = nullptr;
  Counter* requests_ = nullptr;
  Counter* slow_ = nullptr;
};

}  // namespace hydra
