// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>

#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>

#include "base/posix_file.h"
#include "client/outbox.h"
#include "daemon/catalogue_keeper.h"
#include "daemon/disk_threads.h"
#include "daemon/drill_faults.h"
#include "daemon/drill_rot.h"
#include "daemon/node.h"
#include "daemon/peer_links.h"
#include "daemon/self_watch.h"
#include "daemon/server.h"
#include "daemon/stage_times.h"
#include "daemon/unwanted_replicas.h"

namespace hydra {

// Whether the store may take later what it refuses now, because it is full or busy.
inline bool IsForNow(const Status& status) {
  return status.code() == Code::kBusy || status.code() == Code::kNoSpace;
}

// node.cc: life; node_serve.cc: what clients ask; node_admin.cc: the catalogue and administration;
// node_members.cc: the members of groups; node_purge.cc: sanitizing; node_scrub.cc: the search for
// rot.
class Node::Impl {
 public:
  Impl(Node* node, const NodeOptions& options);
  ~Impl();

  Status Open();
  Status Start();
  void BeginStop();
  Status Close();
  void Accept(const std::shared_ptr<Connection>& connection);

  void FillStatus(bool groups, rpc::NodeStatus* status);
  void UpdateMetrics();
  Status health() const;
  DrillFaults* drill_faults() { return faults_.get(); }
  DrillRot* drill_rot() { return drill_rot_.get(); }
  const Uuid& cluster() const { return options_.cluster; }
  const CatalogueKeeper& keeper() const { return *keeper_; }
  const Status& ended() const { return ended_; }
  Outbox& outbox() { return outbox_; }
  Nanos busy_wait() const { return options_.busy_wait; }
  bool AskedJustNow() const;  // by a client
  void Act();                 // at the end of a turn of the loop

 private:
  // A request of a client that a shard has.
  struct Asked {
    Server::ClientPtr client;
    Server::Question question;
    GroupId group = 0;
    Nanos since = 0;
    const char* what = "";
    bool opens_session = false;
    std::unique_ptr<const rpc::GetCatalogue> catalogue = {};  // if that is what it is
    bool by_own_epoch = false;  // of access rights, this node's rather than the caller's
  };

  // --- Life. ---
  Status MakeStore();
  Status CreateSystemGroup();
  void Wake();
  void ActOnce();
  void Tick();
  void EndWith(const Status& status);
  void StopStep();

  // --- Serving. ---
  void OnRequest(const Server::ClientPtr& client, const Frame& frame);
  void OnOtherRequest(const Server::ClientPtr& client,
                      const Frame& frame);  // than a common rpc::Io
  void GetCatalogue(const Server::ClientPtr& client, const Frame& frame,
                    const rpc::GetCatalogue& request);
  // `read`: everything that was answered before is applied here.
  void TellCatalogue(const Server::ClientPtr& client, const Server::Question& question,
                     const rpc::GetCatalogue& request, bool read);
  void Serve(const Server::ClientPtr& client, const Frame& frame, const rpc::Io& io);
  // `epoch`: under which the caller checked that it may; 0: it did not.
  void Ask(const Server::ClientPtr& client, const Server::Question& question, GroupId group,
           ShardRequest&& request, const char* what, uint64_t epoch = 0);
  void FenceOff(const Server::ClientPtr& client, const Frame& frame, const rpc::Fence& fence);
  void OnReply(ShardReply reply);
  void Answer(const Server::ClientPtr& client, const Server::Question& question,
              rpc::Reply::Answer answer, const std::string& message = {}, NodeId master = 0);
  void AnswerStatus(const Server::ClientPtr& client, const Frame& frame, const Status& status);
  void NoteSlow(const Asked& asked, const ShardReply& reply, Nanos took);

  // --- Administration. ---
  Result<rpc::Ready> Admit(const rpc::Hello& hello);
  void OnCatalogue(const rpc::Catalogue& catalogue);
  bool IsKnownStore(const rpc::Catalogue& catalogue) const;
  void NameReplicas(const rpc::Catalogue& catalogue);
  void Reconcile(const rpc::Catalogue& catalogue);
  void MakeReplicas(const rpc::Catalogue& catalogue);
  void TendCatalogue();
  void TendMasterships();
  void Change(const Server::ClientPtr& client, const Frame& frame, CatalogueKeeper::Change change);
  void MoveMaster(const Server::ClientPtr& client, const Frame& frame,
                  const rpc::MoveMaster& request);
  bool HandOver(GroupId group, NodeId to);
  bool IsWhole(const Shard& shard, NodeId node) const;
  std::vector<NodeId> Successors(GroupId group) const;
  void Purge(const Server::ClientPtr& client, const Frame& frame, const rpc::Purge& request);
  Status BeginPurge(const rpc::Purge& request);

  // --- Scrubbing (node_scrub.cc). ---
  void LoadScrub();
  void SaveScrub();
  void NoteScrub();
  void TendScrub();
  void Scrub(const Server::ClientPtr& client, const Frame& frame, const rpc::Scrub& request);
  void FillScrub(rpc::ScrubStatus* out);
  void UpdateScrubMetrics();

  // --- Fitness to lead (node_health.cc). ---
  void TendHealth();
  void GiveAway(GroupId group);
  void CountBeat(const PeerMessage& message, bool sent);
  void OnUnfit(NodeId peer, const rpc::Unfit& unfit);
  bool IsAvoided(NodeId peer) const;

  // --- Members. ---
  void LetIn(uint32_t incarnation);
  std::set<NodeId> AliveNodes();
  // Those that have not answered for so long.
  std::set<NodeId> SilentNodes(Nanos patience);
  // It is connected, and did answer lately: on a busy machine nodes are silent for moments.
  bool StillAnswers(NodeId node);
  bool KeepsCatalogue(const rpc::Catalogue& catalogue);
  // Until then what its replica of group 0 says may be from before it was let in.
  bool IsSystemMember();
  void DropStrangers(const rpc::Catalogue& catalogue);
  void DropReplicas(const std::set<GroupId>& wanted, const rpc::Catalogue& catalogue);
  void ChangeMembers(const Server::ClientPtr& client, const Frame& frame,
                     const rpc::ChangeNodes& request);
  void TendMembers();
  void TendGroup(GroupId group, const std::vector<paxos::Member>& wanted, size_t* busy);
  void Report(GroupId group, NodeId to);
  void OnReport(const rpc::GroupReport& report);
  void TendSystem();
  void ForceSurvivor(const Server::ClientPtr& client, const Frame& frame,
                     const rpc::ForceSurvivor& request);
  Status BeSurvivor();
  // Why this node may not go on alone.
  Status MayBeSurvivor();
  bool DecidesAlone();
  Status ForceGroups();  // whether group 0 is among them, or has its majority

  Node* const node_;
  NodeOptions options_;
  const RealClock clock_;
  PosixFileSystem fs_;
  std::unique_ptr<DrillFaults> faults_;  // null: no drills here
  std::unique_ptr<DrillFileSystem> drill_fs_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<DrillRot> drill_rot_;  // null: no drills here
  std::unique_ptr<NodeCore> core_;
  std::unique_ptr<CatalogueKeeper> keeper_;
  Outbox outbox_;  // of all connections
  std::unique_ptr<DiskThreads> disk_;
  std::unique_ptr<PeerLinks> links_;
  std::unique_ptr<Server> server_;
  boost::asio::steady_timer tick_;

  NodeOutput out_;
  bool awake_ = false;  // something is to be acted upon at the end of this turn
  Nanos started_ = 0;
  Nanos last_asked_ = 0;       // when a client asked last
  uint64_t next_request_ = 1;  // random at the start: late answers to a former process fit nothing
  std::unordered_map<uint64_t, Asked> asked_;
  // What is being taken, and what is being answered: kept so that their memory is.
  rpc::Io io_;
  rpc::Reply reply_;
  std::map<NodeId, rpc::Hello> peer_hellos_;  // what they said when they called
  struct Served {
    uint64_t blocks = 0;  // of the volume
    uint64_t kept = 0;    // ... of them, those that it has after a shrink that is under way
    uint32_t block_pages = 1;
    uint64_t epoch = 1;  // of access rights
  };
  std::map<GroupId, Served> served_;
  std::string told_catalogue_;  // what clients get of that version
  uint64_t told_version_ = 0;
  std::map<GroupId, NodeId> preferred_;
  uint64_t acted_on_ = 0;  // version of the catalogue
  uint32_t let_in_ = 0;    // as which incarnation
  struct Missing {
    uint32_t incarnation = 0;
    bool refused = false;  // by the store, for now, which was logged
  };
  std::map<GroupId, Missing> missing_;  // replicas to be made
  std::map<GroupId, std::vector<paxos::Member>> wanted_members_;
  std::set<GroupId> rows_pending_;  // groups of which the catalogue waits for a report
  UnwantedReplicas unwanted_;
  std::map<GroupId, std::string> changes_;       // under way, of groups that this node leads
  std::map<GroupId, rpc::GroupReport> reports_;  // for the catalogue
  Nanos tended_system_ = 0;
  std::map<NodeId, Nanos> answered_;  // when nodes did last, as of every TendMembers
  bool survivor_ = false;             // by force, and the catalogue does not say so yet
  std::map<GroupId, Nanos> not_preferred_since_;
  std::map<std::string, uint64_t> purges_;  // the engine's number by key; since the start
  Nanos tended_ = 0;
  struct ScrubMemory {
    int64_t since = 0;  // seconds of the wall clock
    int64_t completed = 0;
    uint64_t found = 0;
    int64_t tried = 0;
    uint64_t rounds = 0;           // of this process that were noted
    uint64_t repaired_before = 0;  // ... blocks, when the round began
  };
  ScrubMemory scrub_;
  boost::asio::thread_pool saver_{1};  // of that
  SelfWatch self_watch_;
  std::string unfit_;  // to lead, and why; empty: it is fit
  Nanos told_unfit_ = 0;
  std::map<NodeId, Nanos> avoided_until_;  // peers that are not
  std::map<GroupId, Nanos> gave_away_;     // since this node is not fit: when, last
  std::map<NodeId, SelfWatch::Beats> beats_;
  uint64_t answers_ = 0;  // to requests that changed something
  uint64_t answer_nanos_ = 0;
  bool waiting_told_ = false;
  bool stopping_ = false;
  Nanos stop_by_ = 0;
  Status ended_;

  // Metrics.
  Histogram* request_time_ = nullptr;
  Histogram* read_time_ = nullptr;
  std::unique_ptr<StageTimes> stages_;
  Counter* requests_ = nullptr;
  Counter* slow_ = nullptr;
};

}  // namespace hydra
