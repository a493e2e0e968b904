// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <set>

#include "base/clock.h"
#include "base/ids.h"

namespace hydra {

class NodeCore;

// Replicas of this node that the catalogue does not list any more, until they are gone. One thread.
//
// One of a deleted volume goes at once. One whose group has moved away goes only when its own log
// says that it does not vote any more: the catalogue here may be wrong about that, and what a voter
// has accepted may be needed. What the store refuses, because it is full or busy, is tried again.
class UnwantedReplicas {
 public:
  // In the place of what was said before.
  void Set(const std::set<GroupId>& deleted, const std::set<GroupId>& moved);
  void Clear() { replicas_.clear(); }
  // Drops those that may go. Now and then.
  void Tend(NodeCore* core, Nanos now);
  bool empty() const { return replicas_.empty(); }

 private:
  struct State {
    bool deleted = false;
    bool refused = false;  // by the store, which was logged
  };
  std::map<GroupId, State> replicas_;
};

}  // namespace hydra
