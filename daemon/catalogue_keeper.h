// SPDX-License-Identifier: Apache-2.0
//
// Keeps a node's copy of the catalogue up to date with its replica of group 0 and, where that is
// the master, changes it: one change at a time, by compare-and-write.
#pragma once

#include <deque>
#include <functional>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "client/protocol.pb.h"
#include "daemon/catalogue.h"
#include "daemon/node_core.h"

namespace hydra {

class CatalogueKeeper {
 public:
  struct Handlers {
    // It is another one, or the same and confirmed() now.
    std::function<void(const rpc::Catalogue& catalogue)> changed;
    // Sends a request of the keeper's own to group 0; its answer comes to OnReply.
    std::function<uint64_t(ShardRequest request)> submit;
  };
  using Change = std::function<Status(rpc::Catalogue* catalogue)>;
  using Done = std::function<void(const Status& status)>;

  CatalogueKeeper(NodeCore* core, Engine* engine, Handlers handlers);

  // After every step of the node: looks whether group 0 has applied something, and goes on with
  // changes.
  void Look(Nanos now);
  // False if the reply is not to a request of the keeper.
  bool OnReply(const ShardReply& reply, Nanos now);

  // kUnavailable: this node is not the master of group 0 (any more). Otherwise `done` is called
  // when the change is chosen and `changed` has been told, or with what is wrong with it; that too
  // only if this node was the master still, and so judged by the newest catalogue.
  void Submit(Change change, Done done, Nanos now);

  // Whether it is what this node's replica of group 0 has applied.
  bool current() const;
  bool known() const { return known_; }
  // Whether it is as new as any that a node has acted on before this one started. What a replica
  // finds on its disk is not: the newest entries were not known to be chosen there.
  bool confirmed() const { return confirmed_; }
  bool busy() const { return !pending_.empty(); }
  const rpc::Catalogue& catalogue() const { return catalogue_; }

 private:
  struct Pending {
    Change change;
    Done done;
    Nanos deadline = 0;
  };
  enum class Step { kIdle, kOpening, kWriting, kRefusing };

  Status Load();
  void LoadIfChanged();
  // A linearizable read of group 0: what is applied here when it is answered is new enough.
  uint64_t Read();
  void Confirm(Nanos now);
  void OnConfirmed(const ShardReply& reply, Nanos now);
  void Start(Nanos now);
  void Finish(const Status& status);

  NodeCore* const core_;
  Engine* const engine_;
  const Handlers handlers_;
  rpc::Catalogue catalogue_;
  bool known_ = false;
  Buffer blocks_;           // what it was decoded from
  Instance loaded_at_ = 0;  // applied instance of group 0
  bool load_again_ = true;
  bool confirmed_ = false;
  uint64_t confirming_ = 0;  // the read under way
  Nanos confirm_at_ = 0;

  std::deque<Pending> pending_;
  Step step_ = Step::kIdle;
  uint64_t request_ = 0;
  Instance session_ = 0;
  uint64_t seq_ = 0;
  Status refusal_;  // of the first, by the catalogue of this version
  uint64_t refused_by_ = 0;
};

}  // namespace hydra
