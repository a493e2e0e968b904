// SPDX-License-Identifier: Apache-2.0
//
// What is inside Router: links to nodes, clients of groups, the catalogue, and the bounds.
// Everything on one thread.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include "base/rng.h"
#include "client/node_link.h"
#include "client/router.h"

namespace hydra {

class GroupClient;
using SteadyClock = std::chrono::steady_clock;
using TimePoint = SteadyClock::time_point;

// How long to wait before the next attempt: the first comes quickly, since most trouble is a
// redirect or a full queue; the others are spread, so that many clients do not come back together.
class BackOff {
 public:
  std::chrono::microseconds Next(Rng* rng);
  void Reset() { tries_ = 0; }

 private:
  unsigned tries_ = 0;
};

// One request of a group on its way.
struct GroupOp {
  enum class Purpose { kIo, kOpenSession, kKeepAlive, kCloseSession };
  Purpose purpose = Purpose::kIo;
  GroupRequest request;
  GroupDone done;
  TimePoint deadline;
  size_t bytes = 0;  // counted against max_in_flight_bytes

  // Mutations: given once.
  uint64_t session = 0;  // 0: none yet
  uint64_t seq = 0;
  bool maybe_executed = false;  // a copy was sent whose fate is not known

  uint64_t attempt = 0;
  bool out = false;  // the attempt is with `node`
  NodeId node = 0;
  TimePoint attempted;
  TimePoint attempt_deadline;
  unsigned redirects = 0;  // in a row
  BackOff back_off;
  std::set<NodeId> damaged;        // nodes whose copy is rotten
  TimePoint out_of_range_since{};  // a node said so; {}: none did
  uint64_t commit = 0;             // of the group, the highest that an answer said
  Status last_error;
  bool finished = false;
  std::optional<boost::asio::steady_timer> retry_timer;  // once it was needed
  std::list<std::shared_ptr<GroupOp>>::iterator active;  // in GroupClient::ops_

  bool needs_session() const { return purpose == Purpose::kIo && request.is_mutation(); }
};

class Router::Core : public std::enable_shared_from_this<Router::Core> {
 public:
  Core(boost::asio::io_context* context, RouterOptions options);

  // router.cc: admission
  void Submit(GroupRequest&& request, GroupDone&& done);
  void Release(size_t bytes);

  // router_catalogue.cc
  void SetDirectory(CatalogueView directory);
  void Refresh(std::chrono::milliseconds timeout, std::function<void(Status)> done,
               bool current = false);
  // Asks all nodes, and takes the newest: what one node does not know yet, another may. Nodes that
  // do not answer soon are passed over. OK if any answered.
  void RefreshFromAll(std::function<void(Status)> done);
  void RefreshSoon();  // something seems to be out of date
  void Call(const rpc::Request& request, std::chrono::milliseconds timeout, NodeId only,
            AdminDone done);

  // Null if the node's address is not known.
  std::shared_ptr<NodeLink> LinkOf(NodeId node);
  std::shared_ptr<NodeLink> LinkAt(const std::string& address);
  std::shared_ptr<GroupClient> GroupOf(GroupId id);

  void Wake(TimePoint at);  // Tick no later than this
  void Stop();

  boost::asio::io_context* context;
  RouterOptions options;
  Rng rng;
  RouterStats stats;
  std::shared_ptr<BufferPool> pool;  // links may outlive this
  rpc::Io io;                        // the one that is being sent: kept so that its memory is
  std::shared_ptr<const CatalogueView> catalogue;
  std::vector<std::function<void()>> listeners;
  std::set<std::shared_ptr<boost::asio::steady_timer>> timers;  // of After
  bool stopped = false;

 private:
  struct AdminCall;
  struct Queued {
    GroupRequest request;
    GroupDone done;
    TimePoint deadline;
    size_t bytes = 0;
  };

  void Admit(Queued&& queued);
  void Tick();
  Status Adopt(const rpc::Reply& reply);
  void Apply(CatalogueView view);
  void TryAdmin(const std::shared_ptr<AdminCall>& call);
  void OnAdmin(const std::shared_ptr<AdminCall>& call, const std::shared_ptr<NodeLink>& link,
               NodeLink::Answer answer);
  void RetryAdmin(const std::shared_ptr<AdminCall>& call, const Status& why);
  void FinishAdmin(const std::shared_ptr<AdminCall>& call, Status status, const rpc::Reply& reply);
  std::shared_ptr<NodeLink> PickAdminLink(AdminCall* call);

  std::map<std::string, std::shared_ptr<NodeLink>> links_;  // by address
  std::map<GroupId, std::shared_ptr<GroupClient>> groups_;
  std::list<Queued> queue_;
  bool releasing_ = false;
  bool refreshing_ = false;  // because something seemed to be out of date
  TimePoint last_refresh_{};
  std::list<std::shared_ptr<AdminCall>> admin_;
  size_t admin_turn_ = 0;
  std::shared_ptr<NodeLink> admin_link_;  // to the node that answered last
  boost::asio::steady_timer tick_;
  std::optional<TimePoint> tick_at_;
};

// The client of one group: its session, its master as far as known, and what is under way.
class GroupClient : public std::enable_shared_from_this<GroupClient> {
 public:
  // Outcomes that the group keeps for us: from the lowest unanswered to the highest number in use.
  // Well below what the group allows one session (1024), so that a few dozen such clients fit side
  // by side.
  static constexpr uint64_t kWindow = 256;

  GroupClient(Router::Core* core, GroupId id) : core_(core), id_(id) {}

  void SetReplicas(const CatalogueView::Group& group);
  void Gone();  // the catalogue does not list it any more
  void Submit(std::shared_ptr<GroupOp> op);
  // Time-outs and keep-alives; returns when it wants to be called next.
  TimePoint Tick(TimePoint now);
  void Stop();
  size_t active() const { return ops_.size(); }

 private:
  void Add(const std::shared_ptr<GroupOp>& op);
  void Pump();  // lets waiting mutations into the session
  bool BeginNext();
  void OpenSession();
  void SendControl(GroupOp::Purpose purpose, uint64_t session, std::chrono::milliseconds timeout,
                   GroupDone done);
  void LoseSession(uint64_t session);
  uint64_t LowestUnanswered() const;

  void Attempt(const std::shared_ptr<GroupOp>& op);
  std::string Encode(const GroupOp& op) const;
  std::string EncodeIo(const GroupOp& op) const;
  std::string EncodeOther(const GroupOp& op) const;
  NodeId PickNode(const GroupOp& op);
  void OnAnswer(const std::shared_ptr<GroupOp>& op, uint64_t attempt, NodeId node,
                NodeLink::Answer* answer);
  void OnReply(const std::shared_ptr<GroupOp>& op, NodeId node, NodeLink::Answer* answer);
  void OnDone(const std::shared_ptr<GroupOp>& op, NodeId node, NodeLink::Answer* answer);
  void OnOutOfRange(const std::shared_ptr<GroupOp>& op, const rpc::Reply& reply);
  void OnExpired(const std::shared_ptr<GroupOp>& op);
  void ReadElsewhere(const std::shared_ptr<GroupOp>& op, NodeId node, Status why);
  void Suspect(NodeId node);   // it does not seem to be the master
  void NoAnswer(NodeId node);  // as little as that; and others are not believed that it is
  void FollowHint(NodeId node, NodeId master);  // `node` read, and says who leads

  // group_look.cc
  // Looks around if the node that has the request is silent; returns when to look again.
  TimePoint Watch(const GroupOp& op, TimePoint now);
  void LookAround(const GroupOp& op, TimePoint now);
  void OnLook(NodeId silent, NodeId master);
  bool IsSilent(NodeId node, TimePoint now);

  void Retry(const std::shared_ptr<GroupOp>& op, std::chrono::microseconds delay);
  void RetryLater(const std::shared_ptr<GroupOp>& op, Status why);
  void Finish(const std::shared_ptr<GroupOp>& op, GroupReply reply);
  void Fail(const std::shared_ptr<GroupOp>& op, Status status,
            GroupAnswer answer = GroupAnswer::kFailed);
  void GiveUp(const std::shared_ptr<GroupOp>& op, const std::string& why);

  Router::Core* core_;
  const GroupId id_;
  std::vector<NodeId> replicas_;
  NodeId master_ = 0;       // 0: not known
  size_t turn_ = 0;         // of replicas_, when the master is not known
  NodeId unanswering_ = 0;  // gave no answer to a request
  TimePoint avoided_until_{};

  bool looking_ = false;
  TimePoint look_at_{};   // not before
  uint64_t session_ = 0;  // 0: none
  bool opening_ = false;
  bool touching_ = false;  // a keep-alive is out
  uint64_t next_seq_ = 1;
  std::vector<uint64_t> unanswered_;              // numbers in session_, ascending
  std::deque<std::shared_ptr<GroupOp>> waiting_;  // for a session or its window
  bool pumping_ = false;
  bool pump_again_ = false;
  TimePoint last_touched_{};  // the session, by an answer
  TimePoint last_mutation_{};

  std::list<std::shared_ptr<GroupOp>> ops_;  // all that are not finished
};

}  // namespace hydra
