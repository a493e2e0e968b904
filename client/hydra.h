// SPDX-License-Identifier: Apache-2.0
//
// Hydra's C++ API: replicated block volumes.
//
//   auto cluster = hydra::Cluster::Connect({"127.0.0.1:7101", "127.0.0.1:7102"});
//   if (!cluster.ok()) return Fail(cluster.status());
//   auto volume = hydra::Volume::Open(*cluster, "demo");
//   if (!volume.ok()) return Fail(volume.status());
//
//   std::vector<uint8_t> block(4096, 0x42);
//   hydra::Status written = volume->Write(0, block);   // durable on a majority when it returns
//   hydra::Status read = volume->Read(0, block);       // linearizable
//
// Errors. Nothing throws. Whatever may fail returns a Status, or a Result that holds a value or a
// Status: a code, and a sentence that says what to do. Every call ends, at the latest after its
// time-out; until then it is repeated for you through redirects, lost connections and failing
// nodes, and happens once. Of a call that changes something, remember one rule:
//
//   kAborted          it may or may not have happened; nobody can know. Read, and decide.
//   any other error   it has not happened and will not. (Where a call spans several extents, that
//   is
//                     true of each of them; some may have been written.)
//
//   kInvalidArgument  the call can never work: an offset that is no multiple of 512, length 0, ...
//   kOutOfRange       beyond the end of the volume
//   kUnavailable      no majority, or no node, could be reached in time
//   kBusy             too much is under way; wait for answers before asking for more
//   kNoSpace          the cluster is full; reading and discarding still work
//   kCorruption       no replica has an intact copy of a block
//   kNotFound         no volume of that name
//   kStale, kFenced   only of calls under a Guard: see there
//
// Blocking and asynchronous. Each operation exists twice: Write(...) blocks and returns,
// AsyncWrite(..., token) takes an Asio completion token: a callback, boost::asio::use_future,
// boost::asio::use_awaitable and so on. Both are the same code. A handler runs where its associated
// executor says; one without runs on the library's own thread and must neither block nor make a
// blocking call (which would fail with kFailedPrecondition). Memory that is passed in must stay
// valid until the operation ends.
//
// Threads. Cluster and Volume are cheap handles to shared state: copy them as you like, and use
// them from any number of threads. When the last handle of a cluster is gone, operations still
// under way end as if their time were up, and the connections are closed.
//
// Order. Operations that are under way at the same time may happen in any order. One that is
// started after another has ended sees it. Once a write has ended it is durable: there is nothing
// to flush.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "client/async.h"
#include "client/target.h"

namespace boost::asio {
class io_context;
}

namespace hydra {

class Connection;

// --- Cluster ------------------------------------------------------------------------------------

struct ClusterOptions {
  // Of each call, and of Connect.
  std::chrono::milliseconds timeout{30'000};
  // A node that has not answered after this is given up for another. The call goes on.
  std::chrono::milliseconds attempt_timeout{3'000};
  std::chrono::milliseconds connect_timeout{2'000};
  // How long the cluster remembers this client after its last sign of life: a client that comes
  // back after a longer pause in mid-write gets kAborted.
  std::chrono::milliseconds session_timeout{30'000};
  // Data under way, in both directions. More waits, in a queue of this many pieces (a call has at
  // most 16 of them there at a time); when that is full, calls fail with kBusy.
  size_t max_in_flight_bytes = 64u << 20;
  size_t max_queued = 4096;
  // Shown in the nodes' logs.
  std::string name = "hydra-client";
  // For clients that reach nodes under other addresses than the nodes themselves (port forwarding,
  // a proxy): gets a node's address (host:port), returns the one to call. Called on the library's
  // thread.
  std::function<std::string(const std::string& address)> translate;
  // Everything happens on the one thread that runs this context, instead of on one of the library's
  // own: for programs that have such a thread and want no switch to another. It has to run while
  // Connect, or any other blocking call, waits elsewhere; until the handles are gone it has work;
  // and it has to outlive them.
  boost::asio::io_context* context = nullptr;
  // For hydrad itself: a connection to a node that runs in this process, or null if the address is
  // another's. Called as `translate` is, with what that returned.
  std::function<std::shared_ptr<Connection>(const std::string& address)> dial;
};

struct VolumeInfo {
  std::string name;
  uint32_t id = 0;
  uint64_t bytes = 0;
  uint32_t block_bytes = 0;
  uint32_t logical_block = 512;  // of its iSCSI target
  std::vector<uint32_t> groups;  // one per shard
  bool active = false;           // false: still being created
  uint64_t epoch = 0;            // of access rights (VolumeAccess)
  TargetInfo target;
  uint32_t replicas = 0;  // of each shard, wanted; 0: not known
};

struct VolumeSpec {
  std::string name;
  uint64_t bytes = 0;        // a multiple of block_bytes
  uint32_t block_bytes = 0;  // 0: 4096
  uint32_t shards = 0;       // 0: as the cluster thinks best; cannot be changed later
  uint32_t replicas = 0;     // 0: 3, or the number of nodes if there are fewer
  bool target = true;        // false: not offered over iSCSI
  // Of its iSCSI target, for good: 512 or 4096; 0: 512. Here, bytes are addressed as ever.
  uint32_t logical_block = 0;
};

struct ReplicaInfo {
  uint32_t group = 0;
  uint32_t incarnation = 0;
  std::string role;  // master, follower, candidate, learner, suspect, installing
  uint64_t ballot_round = 0;
  uint32_t ballot_node = 0;
  uint64_t commit = 0;
  uint64_t applied = 0;
  uint32_t master = 0;  // as this replica knows it; 0: it does not
  bool ready = false;   // a master that serves
  uint64_t data_blocks = 0;
  uint64_t owed_bytes = 0;  // of blocks that it knows, and peers have yet to send
  uint64_t lag = 0;         // entries that were chosen and are not applied here
  std::string change;       // of a master: the change of members that is under way
};

// A node's search for rotten blocks: the round that runs, or the last one since the node started.
struct ScrubInfo {
  bool running = false;
  bool complete = false;
  uint64_t rate = 0;   // bytes per second
  uint64_t bytes = 0;  // verified
  uint64_t total = 0;  // about
  uint64_t found = 0;
  uint64_t repaired = 0;  // since it began
  std::chrono::milliseconds elapsed{};
  std::string failed;
  // In seconds since 1970; 0: never.
  uint64_t last_completed = 0;
  uint64_t last_found = 0;
  uint64_t next = 0;
  // Since the node started, whoever found them.
  uint64_t under_repair = 0;
  uint64_t rotten_total = 0;
  uint64_t repaired_total = 0;
  uint64_t given_up_total = 0;
};

struct NodeInfo {
  uint32_t node = 0;
  std::string address;
  std::string iscsi;
  std::string http;
  std::string state;  // active; joining, lost, draining: being changed
  Status reachable;   // not OK: why there is nothing below
  std::string version;
  uint32_t feature_level = 0;  // of what the node can do
  uint32_t cluster_feature_level =
      0;  // what the cluster uses, as far as the node has heard; 0: unknown
  std::chrono::milliseconds uptime{};
  std::vector<uint32_t> connected;  // peers
  uint64_t space_bytes = 0;
  uint64_t capacity_bytes = 0;
  // Data that clients can still write to this node's store, as far as it knows: live data is
  // counted, what can be cleaned is not, and the reserve is not. For a moment after a start, when
  // live data has not been counted yet, only what was never written to.
  uint64_t free_bytes = 0;
  size_t changes = 0;  // of nodes and replicas, under way as this node knows
  std::string failed;  // why the node does not serve; empty if it does
  ScrubInfo scrub;
  std::vector<ReplicaInfo> replicas;       // if asked for
  std::vector<IscsiSessionInfo> sessions;  // likewise
};

// Which nodes there are, and where replicas lie.
struct NodeChange {
  enum class Kind {
    kAdd,          // `node` (0: the next free number) at `address`; then start it with --join
    kReplace,      // `node` lost its disk; it is started with --join, at `address` unless empty
    kRemove,       // `node`, after its replicas have moved to others
    kSetReplicas,  // of `volume`, to `replicas`
    kRebalance,    // spreads replicas and masters evenly
  };
  Kind kind = Kind::kRebalance;
  uint32_t node = 0;
  std::string address;
  std::string iscsi;
  std::string http;
  std::string volume;
  uint32_t replicas = 0;
  bool force = false;
};

struct ClusterStats {
  uint64_t requests = 0;   // pieces of calls
  uint64_t attempts = 0;   // ... sent, including again
  uint64_t redirects = 0;  // answered: ask another node
  uint64_t busy = 0;       // answered: not now
  uint64_t lost = 0;       // connections lost with a request out
  uint64_t repeated = 0;   // changes sent again because their outcome was not known
  uint64_t damaged = 0;    // reads that went to another replica
  uint64_t sessions = 0;   // opened
  uint64_t expired = 0;    // sessions lost
  uint64_t unknown = 0;    // changes given up with kAborted
  size_t in_flight_bytes = 0;
  size_t queued = 0;
};

class Cluster {
 public:
  // `seeds` are addresses (host:port) of some nodes; one that answers is enough, and the others are
  // learned from it. kUnavailable: none does.
  static Result<Cluster> Connect(std::vector<std::string> seeds, ClusterOptions options = {});

  // As the cluster says now, by name.
  Result<std::vector<VolumeInfo>> volumes();

  // Returns when the volume can be used. kAlreadyExists: there is one of that name. A volume is
  // thin: it takes no space before it is written to, and reads as zeroes.
  Status CreateVolume(const VolumeSpec& spec);
  // Growing always works. Shrinking destroys what is beyond the new end and needs `force`.
  Status ResizeVolume(const std::string& name, uint64_t bytes, bool force = false);
  // At once and for good, with all its data.
  Status DeleteVolume(const std::string& name);

  // Who may use a volume over iSCSI. When it succeeds, nothing that initiators without the right
  // sent is executed any more, through any portal; kAborted: it may be, repeat the call.
  Status ChangeTarget(const std::string& name, const TargetChange& change);

  // Every node, and what it says about itself; with `groups` also each of its replicas and of its
  // iSCSI sessions. A node that does not answer is listed with the reason.
  Result<std::vector<NodeInfo>> GetStatus(bool groups = false);
  // OK: the cluster can decide, a majority of those that hold the catalogue has answered.
  // kUnavailable: not within that time.
  Status Probe(std::chrono::milliseconds timeout);
  // Hands the mastership of a group to another of its replicas, between two requests.
  Status MoveMaster(uint32_t group, uint32_t node);
  // A node begins to look for rotten blocks, which it mends from its peers, or ends it. `rate` in
  // bytes per second; 0: the node's own.
  Status StartScrub(uint32_t node, uint64_t rate = 0);
  Status StopScrub(uint32_t node);

  // Returns when it is decided. What follows from it goes on by itself, while everything is served:
  // NodeInfo::changes says whether something is left. kFailedPrecondition: why it would be unsafe,
  // and what to do first.
  Status ChangeNodes(const NodeChange& change);
  // The majority is lost for good: makes `node` decide alone, from what it has. Everything that was
  // acknowledged and is only on the lost nodes is lost. kFailedPrecondition: a majority answers.
  Status ForceSurvivor(uint32_t node);

  ClusterStats stats() const;

  // The same with a completion token.
  template <typename Token>
  auto AsyncVolumes(Token&& token) {
    return internal::Initiate<Result<std::vector<VolumeInfo>>>(
        [self = *this](auto done) { self.StartVolumes(std::move(done)); },
        std::forward<Token>(token));
  }
  template <typename Token>
  auto AsyncCreateVolume(VolumeSpec spec, Token&& token) {
    return internal::Initiate<Status>([self = *this, spec = std::move(spec)](
                                          auto done) { self.StartCreate(spec, std::move(done)); },
                                      std::forward<Token>(token));
  }
  template <typename Token>
  auto AsyncResizeVolume(std::string name, uint64_t bytes, bool force, Token&& token) {
    return internal::Initiate<Status>(
        [self = *this, name = std::move(name), bytes, force](auto done) {
          self.StartResize(name, bytes, force, std::move(done));
        },
        std::forward<Token>(token));
  }
  template <typename Token>
  auto AsyncDeleteVolume(std::string name, Token&& token) {
    return internal::Initiate<Status>([self = *this, name = std::move(name)](
                                          auto done) { self.StartDelete(name, std::move(done)); },
                                      std::forward<Token>(token));
  }
  template <typename Token>
  auto AsyncChangeTarget(std::string name, TargetChange change, Token&& token) {
    return internal::Initiate<Status>(
        [self = *this, name = std::move(name), change = std::move(change)](auto done) {
          self.StartChangeTarget(name, change, std::move(done));
        },
        std::forward<Token>(token));
  }
  template <typename Token>
  auto AsyncGetStatus(bool groups, Token&& token) {
    return internal::Initiate<Result<std::vector<NodeInfo>>>(
        [self = *this, groups](auto done) { self.StartGetStatus(groups, std::move(done)); },
        std::forward<Token>(token));
  }
  template <typename Token>
  auto AsyncProbe(std::chrono::milliseconds timeout, Token&& token) {
    return internal::Initiate<Status>(
        [self = *this, timeout](auto done) { self.StartProbe(timeout, std::move(done)); },
        std::forward<Token>(token));
  }
  template <typename Token>
  auto AsyncMoveMaster(uint32_t group, uint32_t node, Token&& token) {
    return internal::Initiate<Status>(
        [self = *this, group, node](auto done) {
          self.StartMoveMaster(group, node, std::move(done));
        },
        std::forward<Token>(token));
  }

 private:
  friend class Volume;
  struct Impl;
  explicit Cluster(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

  void StartVolumes(internal::Callback<Result<std::vector<VolumeInfo>>> done) const;
  void StartCreate(const VolumeSpec& spec, internal::Callback<Status> done) const;
  void StartResize(const std::string& name, uint64_t bytes, bool force,
                   internal::Callback<Status> done) const;
  void StartDelete(const std::string& name, internal::Callback<Status> done) const;
  void StartChangeTarget(const std::string& name, const TargetChange& change,
                         internal::Callback<Status> done) const;
  void StartGetStatus(bool groups, internal::Callback<Result<std::vector<NodeInfo>>> done) const;
  void StartProbe(std::chrono::milliseconds timeout, internal::Callback<Status> done) const;
  void StartMoveMaster(uint32_t group, uint32_t node, internal::Callback<Status> done) const;
  void StartChangeNodes(const NodeChange& change, internal::Callback<Status> done) const;

  std::shared_ptr<Impl> impl_;
};

// --- Volume -------------------------------------------------------------------------------------

enum class Consistency {
  // A read sees every write that ended before it began.
  kLinearizable,
  // A read sees what some replica has applied: perhaps a moment old, and needs no majority.
  kLocal,
};

struct VolumeStats {
  uint64_t reads = 0;
  uint64_t writes = 0;  // zeroes and compares included
  uint64_t discards = 0;
  uint64_t read_bytes = 0;
  uint64_t written_bytes = 0;
  uint64_t errors = 0;
};

// A part of a volume that is of one kind.
struct MapRun {
  uint64_t offset = 0;
  uint64_t length = 0;
  bool mapped = false;  // false: takes no space and reads as zeroes
};

// For gateways: programs that pass on what other machines ask, such as an iSCSI frontend. The
// machine behind a gateway may lose patience with it, go on through another gateway, and be
// overtaken there by what the first one still holds. A guard is made when a command arrives and
// prevents that.
struct Guard {
  // The commit index of each shard, as far as it was known. A change of blocks that were changed by
  // anyone since fails with kStale: make a new guard, make sure that whoever asked still waits for
  // the answer, and try again.
  std::vector<uint64_t> seen;
  // Of the access rights (VolumeAccess) that the command was checked against; 0: none. If they have
  // changed, it fails with kFenced: look at them, and check again.
  uint64_t epoch = 0;
};

// Who may use a volume: kept by the cluster, understood by gateways alone.
struct VolumeAccess {
  uint64_t epoch = 0;  // one higher with each change, and when the volume is made smaller
  std::string reservations;
  TargetInfo target;
};

// A volume is an array of bytes, read and written in multiples of 512 at multiples of 512.
// Underneath are blocks (usually of 4096 bytes). Writing part of a block is safe, whoever writes
// the rest of it at the same time: the master of the block's shard merges them. It costs the master
// a read.
//
// Extents. The volume is striped over its shards in extents of 1 MiB. What lies within one extent
// is atomic: a write happens whole or not at all, a read sees all or nothing of it. A longer write
// is split at multiples of 1 MiB, and its parts happen independently; if it fails, some may have
// happened.
class Volume {
 public:
  // kNotFound: there is none of that name.
  static Result<Volume> Open(const Cluster& cluster, const std::string& name);
  template <typename Token>
  static auto AsyncOpen(const Cluster& cluster, const std::string& name, Token&& token) {
    return internal::Initiate<Result<Volume>>(
        [cluster, name](auto done) { StartOpen(cluster, name, std::move(done)); },
        std::forward<Token>(token));
  }

  // Fills `data` from `offset` on.
  Status Read(uint64_t offset, std::span<uint8_t> data,
              Consistency consistency = Consistency::kLinearizable);

  // Durable on a majority when it returns OK.
  Status Write(uint64_t offset, std::span<const uint8_t> data);

  // The range reads as zeroes afterwards. Takes no space, and little time however long the range
  // is.
  Status WriteZeroes(uint64_t offset, uint64_t length);

  // As WriteZeroes, for the whole blocks within the range; parts of blocks at its ends are left as
  // they are.
  Status Discard(uint64_t offset, uint64_t length);

  // If the volume holds `expected` at `offset`, writes `desired` there, atomically; says whether it
  // did. Both have the same length, and the range lies within one extent.
  Result<bool> CompareAndWrite(uint64_t offset, std::span<const uint8_t> expected,
                               std::span<const uint8_t> desired);

  // Adds to the little-endian number in the 8 bytes at `offset` (a multiple of 8), atomically, and
  // returns what it was before. Exact, however often messages are lost and repeated: unless it
  // fails with kAborted, the sum holds `add` once if it succeeded and not at all if it failed.
  Result<uint64_t> FetchAdd(uint64_t offset, uint64_t add);

  // What the range consists of, from its beginning, neighbours of one kind made one; of more than 4
  // GiB, the first 4 GiB. As a read of each extent would find it, and no data is read.
  Result<std::vector<MapRun>> GetMap(uint64_t offset, uint64_t length);

  // Ends when every change that was started before through this Volume (or a copy of it) has ended.
  // Changes that have ended are durable already.
  Status Flush();

  const std::string& name() const;
  uint32_t id() const;  // tells it from others that had or will have its name
  uint32_t block_bytes() const;
  uint32_t logical_block() const;  // of its iSCSI target
  // As last known. A change of the size is noticed by reads and writes that go beyond it, and by
  // watchers.
  uint64_t size() const;
  // Asks the cluster.
  Result<uint64_t> Refresh();

  // Calls `changed` with the new size whenever it changes, on the library's thread, at most `every`
  // late. Ends when the returned handle is destroyed; `changed` may be running then on another
  // thread.
  class Watch;
  Watch WatchSize(std::function<void(uint64_t bytes)> changed,
                  std::chrono::milliseconds every = std::chrono::milliseconds(1'000));

  VolumeStats stats() const;

  // For gateways. The same for the epoch of access rights.
  Watch WatchAccess(std::function<void(uint64_t epoch)> changed,
                    std::chrono::milliseconds every = std::chrono::milliseconds(1'000));
  // A guard of what is known now; and this volume, with everything that is done
  // through the returned handle under a guard.
  Guard MakeGuard(uint64_t epoch) const;
  Volume Under(Guard guard) const;

  // Makes what was in the volume, and was discarded, unreadable on the disks of all nodes (one that
  // has no replica may have had one): every segment that may hold some of it is emptied and
  // overwritten, which takes as long as writing those nodes' data anew. Discard first, and let
  // nobody write meanwhile. `key` names the purge: whoever asks with the same key, also after a
  // failure, joins it. `progress` (0 to 1) is called about once a second, on the library's thread.
  // A node that is down is waited for; when nothing has moved for `patience`, it fails with
  // kUnavailable. kCorruption: a node cannot empty a segment; it says why.
  Status Purge(const std::string& key, std::function<void(double)> progress = {},
               std::chrono::milliseconds patience = std::chrono::minutes(10));

  // As the cluster says now.
  Result<VolumeAccess> GetAccess();
  // Replaces the reservations (at most 16 KiB), and returns the new epoch. When it succeeds,
  // nothing that was checked under an older epoch is executed any more, by any gateway.
  // kFailedPrecondition: the epoch is another by now.
  Result<uint64_t> ChangeAccess(uint64_t epoch, std::string reservations);
  // Makes sure of the same, without a change.
  Status Fence(uint64_t epoch);

  // The same with a completion token. They end with a Status, or a Result as above.
  template <typename Token>
  auto AsyncRead(uint64_t offset, std::span<uint8_t> data, Token&& token) {
    return AsyncRead(offset, data, Consistency::kLinearizable, std::forward<Token>(token));
  }
  template <typename Token>
  auto AsyncRead(uint64_t offset, std::span<uint8_t> data, Consistency consistency, Token&& token) {
    return internal::Initiate<Status>(
        [self = *this, offset, data, consistency](auto done) {
          self.StartRead(offset, data, consistency, std::move(done));
        },
        std::forward<Token>(token));
  }
  template <typename Token>
  auto AsyncWrite(uint64_t offset, std::span<const uint8_t> data, Token&& token) {
    return internal::Initiate<Status>(
        [self = *this, offset, data](auto done) { self.StartWrite(offset, data, std::move(done)); },
        std::forward<Token>(token));
  }
  template <typename Token>
  auto AsyncWriteZeroes(uint64_t offset, uint64_t length, Token&& token) {
    return internal::Initiate<Status>(
        [self = *this, offset, length](auto done) {
          self.StartZeroes(offset, length, std::move(done));
        },
        std::forward<Token>(token));
  }
  template <typename Token>
  auto AsyncDiscard(uint64_t offset, uint64_t length, Token&& token) {
    return internal::Initiate<Status>(
        [self = *this, offset, length](auto done) {
          self.StartDiscard(offset, length, std::move(done));
        },
        std::forward<Token>(token));
  }
  template <typename Token>
  auto AsyncCompareAndWrite(uint64_t offset, std::span<const uint8_t> expected,
                            std::span<const uint8_t> desired, Token&& token) {
    return internal::Initiate<Result<bool>>(
        [self = *this, offset, expected, desired](auto done) {
          self.StartCompare(offset, expected, desired, std::move(done));
        },
        std::forward<Token>(token));
  }
  template <typename Token>
  auto AsyncFetchAdd(uint64_t offset, uint64_t add, Token&& token) {
    return internal::Initiate<Result<uint64_t>>(
        [self = *this, offset, add](auto done) {
          self.StartFetchAdd(offset, add, std::move(done));
        },
        std::forward<Token>(token));
  }
  template <typename Token>
  auto AsyncGetMap(uint64_t offset, uint64_t length, Token&& token) {
    return internal::Initiate<Result<std::vector<MapRun>>>(
        [self = *this, offset, length](auto done) {
          self.StartGetMap(offset, length, std::move(done));
        },
        std::forward<Token>(token));
  }
  template <typename Token>
  auto AsyncGetAccess(Token&& token) {
    return internal::Initiate<Result<VolumeAccess>>(
        [self = *this](auto done) { self.StartGetAccess(std::move(done)); },
        std::forward<Token>(token));
  }
  template <typename Token>
  auto AsyncChangeAccess(uint64_t epoch, std::string reservations, Token&& token) {
    return internal::Initiate<Result<uint64_t>>(
        [self = *this, epoch, reservations = std::move(reservations)](auto done) {
          self.StartChangeAccess(epoch, reservations, std::move(done));
        },
        std::forward<Token>(token));
  }
  template <typename Token>
  auto AsyncFence(uint64_t epoch, Token&& token) {
    return internal::Initiate<Status>(
        [self = *this, epoch](auto done) { self.StartFence(epoch, std::move(done)); },
        std::forward<Token>(token));
  }
  template <typename Token>
  auto AsyncPurge(std::string key, std::function<void(double)> progress,
                  std::chrono::milliseconds patience, Token&& token) {
    return internal::Initiate<Status>(
        [self = *this, key = std::move(key), progress = std::move(progress), patience](auto done) {
          self.StartPurge(key, progress, patience, std::move(done));
        },
        std::forward<Token>(token));
  }
  template <typename Token>
  auto AsyncFlush(Token&& token) {
    return internal::Initiate<Status>(
        [self = *this](auto done) { self.StartFlush(std::move(done)); },
        std::forward<Token>(token));
  }

 private:
  struct Impl;
  explicit Volume(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

  void StartRead(uint64_t offset, std::span<uint8_t> data, Consistency consistency,
                 internal::Callback<Status> done) const;
  void StartWrite(uint64_t offset, std::span<const uint8_t> data,
                  internal::Callback<Status> done) const;
  void StartZeroes(uint64_t offset, uint64_t length, internal::Callback<Status> done) const;
  void StartDiscard(uint64_t offset, uint64_t length, internal::Callback<Status> done) const;
  void StartCompare(uint64_t offset, std::span<const uint8_t> expected,
                    std::span<const uint8_t> desired, internal::Callback<Result<bool>> done) const;
  void StartFetchAdd(uint64_t offset, uint64_t add,
                     internal::Callback<Result<uint64_t>> done) const;
  void StartGetMap(uint64_t offset, uint64_t length,
                   internal::Callback<Result<std::vector<MapRun>>> done) const;
  void StartFlush(internal::Callback<Status> done) const;
  void StartGetAccess(internal::Callback<Result<VolumeAccess>> done) const;
  void StartChangeAccess(uint64_t epoch, const std::string& reservations,
                         internal::Callback<Result<uint64_t>> done) const;
  static void StartOpen(const Cluster& cluster, const std::string& name,
                        internal::Callback<Result<Volume>> done);
  void StartFence(uint64_t epoch, internal::Callback<Status> done) const;
  void StartPurge(const std::string& key, std::function<void(double)> progress,
                  std::chrono::milliseconds patience, internal::Callback<Status> done) const;

  std::shared_ptr<Impl> impl_;
};

// Watches as long as it lives. May be moved.
class Volume::Watch {
 public:
  struct State;
  explicit Watch(std::shared_ptr<State> state);
  Watch(Watch&&) noexcept;
  Watch& operator=(Watch&&) noexcept;
  ~Watch();

 private:
  std::shared_ptr<State> state_;
};

}  // namespace hydra
