// SPDX-License-Identifier: Apache-2.0
//
// StoreModel: what a store must hold, kept beside an engine by whoever drives it, and compared with
// the engine at any time and, above all, after a crash.
//
// A record is *pending* from the call that queued it until its token completes: after a crash it
// is there whole or not at all. Once completed, or once seen after a recovery, it is there for
// good. Applied is what the layer above has had chosen: after a crash the engine may be behind
// (it promises only what a completed checkpoint covers), and the driver applies again.
//
// Block contents are a function of (group, lba, proposal, operation), so that a block read back
// tells who wrote it. The model does no I/O of its own and depends on no test framework: checks
// return problems as text, "" meaning none.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "blockstore/engine.h"

namespace hydra::test {

// --- Contents --------------------------------------------------------------------------------

// Fills a block (whole pages) that only this author would write.
void FillBlock(GroupId group, Lba lba, uint64_t author, std::span<uint8_t> block);
// Who wrote it: "group 3 block 7 author 42", "zeroes", or "foreign bytes".
std::string DescribeBlock(std::span<const uint8_t> block);

Operation WriteOp(Lba lba, uint64_t count);  // checksums are filled in by NewProposal
Operation ZeroOp(Lba lba, uint64_t count);
Operation UnmapOp(Lba lba, uint64_t count);
Operation ZeroExtentsOp(std::vector<Extent> extents);
Operation OpaqueOp(std::string context);

// The value of one instance.
struct Proposal {
  GroupId group = 0;
  uint64_t id = 0;
  Entry entry;                     // with checksums
  std::optional<Buffer> contents;  // given by the test; otherwise FillBlock's
  Payload MakePayload() const;
};

// --- The expected state ----------------------------------------------------------------------

struct BlockState {
  BlockKind kind = BlockKind::kUnmapped;
  Version version = 0;        // of the last change, whatever its kind
  bool whole_extent = false;  // that change was a ZeroExtents
  uint32_t crc = 0;           // data only
};

struct AcceptState {
  Ballot ballot;
  const Proposal* value = nullptr;
  bool done = false;
};

struct HardState {
  Ballot promised;
  std::string opaque;
  bool done = false;
};

struct TruncateState {
  Instance instance = 0;
  bool done = false;
};

struct GroupModel {
  GroupId id = 0;
  uint32_t block_pages = 1;
  bool created = false;  // its create completed, or a recovery showed it
  bool drop_queued = false;
  bool dropped = false;  // the drop completed

  std::map<Instance, std::vector<AcceptState>> log;  // per instance, in the order of queuing
  std::vector<HardState> hard_states;                // in the order of queuing
  std::vector<TruncateState> truncates;

  // An install: whether the group is in one, whether it is once the queued record is durable, and
  // where a queued finish leads.
  bool installing = false;
  std::optional<bool> installing_next;
  Instance install_to = 0;
  bool installed = false;  // ever begun: blocks may be newer than `applied`, if the engine says so
  // Installed from a source that changed meanwhile. A deletion may have been noted in the version
  // of the image that did not list the block any more, or, of a whole extent, only where it changed
  // something.
  bool raced = false;
  bool bare = false;                 // rows came without payload: blocks may be owed
  std::map<Lba, Version> delivered;  // durably: never owed again in that version

  std::vector<const Proposal*> chosen;  // chosen[i - 1]
  Instance applied = 0;                 // by the engine as it runs now
  Instance covered = 0;                 // by a completed checkpoint
  std::map<Lba, BlockState> blocks;     // at `applied`
  std::set<Extent> touched;             // by any entry ever queued

  uint32_t extent_blocks() const { return kExtentPages / block_pages; }
  // Nothing can be applied.
  bool Installing() const { return installing || installing_next.has_value(); }
  BlockState At(Lba lba) const;
  Instance last() const;  // the highest instance accepted or chosen
  uint64_t DataBlocks() const;
  // The newest accept queued for an instance, or null.
  const AcceptState* Newest(Instance instance) const;
};

class StoreModel {
 public:
  // Copies share the proposals, which are never changed.
  const Proposal* NewProposal(const GroupModel& group, std::vector<Operation> operations,
                              std::optional<Buffer> contents = std::nullopt);

  // --- What the driver did; each call succeeded. ---
  void Created(GroupId group, uint32_t block_pages, uint64_t token);
  void DropQueued(GroupId group, uint64_t token);
  void Accepted(GroupId group, Instance instance, const Ballot& ballot, const Proposal* value,
                uint64_t token);
  void HardStateQueued(GroupId group, const Ballot& promised, std::string opaque, uint64_t token);
  void TruncateQueued(GroupId group, Instance instance, uint64_t token);
  // The group's replica elsewhere has had these chosen; its model outlives this one.
  void Learned(GroupId group, const GroupModel& elsewhere);
  // `to`: where a finish leads, otherwise 0.
  void InstallQueued(GroupId group, bool installing, Instance to, uint64_t token);
  void TookBareRows(GroupId group) { groups_.at(group).bare = true; }
  void DeliverQueued(GroupId group, std::vector<BlockName> blocks, uint64_t token);
  void Applied(GroupId group, Instance instance);
  void Covered(GroupId group, Instance instance);
  // Of a delivery the engine says what was left out; without it nothing is expected of one.
  std::string Completed(uint64_t token, Engine* engine = nullptr);
  void CompletedAll();  // the store was closed in order

  // --- Groups. ---
  GroupModel& group(GroupId id) { return groups_.at(id); }
  const GroupModel& group(GroupId id) const { return groups_.at(id); }
  bool Has(GroupId id) const { return groups_.contains(id); }
  std::vector<GroupId> Usable() const;  // not dropped, no drop queued
  const std::set<GroupId>& dropped() const { return dropped_; }
  size_t pending() const { return pending_.size(); }

  // --- Checks. ---
  // After a reopen: everything acknowledged is there, nothing is half there. Then takes over what
  // the engine shows: from now on that is durable.
  std::string Recover(Engine* engine);
  // Every block of every touched extent, at the model's applied instance.
  std::string VerifyBlocks(Engine* engine) const;
  std::string VerifyBlocks(Engine* engine, GroupId group) const;
  static std::string CompareRead(const GroupModel& group, Lba lba, const ReadResult& read,
                                 const std::vector<Lba>& owed = {});
  // A read that was planned when `since` was applied and the blocks were `blocks`: each block is
  // as it was then or at any time up to now.
  static std::string CompareReadSince(const GroupModel& group, Instance since,
                                      std::map<Lba, BlockState> blocks, Lba lba,
                                      const ReadResult& read, const std::vector<Lba>& owed = {});
  // Finishes a read. Blocks whose payload is owed do not fail it: they are in `owed`, and what
  // they are is compared, but not their bytes.
  static Result<ReadResult> FinishRead(Engine* engine, std::unique_ptr<ReadJob> job,
                                       std::vector<Lba>* owed);
  // Whether the engine says that the blocks are not those of `applied`, and may say so: then they
  // are not compared.
  bool Mixed(Engine* engine, GroupId group) const;
  // Log entries that are durable, against what was accepted.
  std::string VerifyLog(Engine* engine, GroupId group) const;
  // GroupInfo while the engine runs.
  std::string VerifyInfo(Engine* engine, GroupId group) const;
  // After a checkpoint with nothing queued: image, changes since every version, accounting.
  std::string VerifyScans(Engine* engine, GroupId group) const;
  std::string VerifyAccounting(Engine* engine) const;
  // What the engine lists as owed: as many as it counts, each as it has to be.
  std::string VerifyOwed(Engine* engine, GroupId group) const;

  // The blocks as they are after the first `applied` chosen entries.
  static std::map<Lba, BlockState> Replay(const GroupModel& group, Instance applied);
  static void ApplyEntry(const Proposal& value, Instance instance, uint32_t extent_blocks,
                         std::map<Lba, BlockState>* blocks);
  // "" if `entry` is what was accepted as `state`.
  static std::string CompareEntry(const GroupModel& group, Instance instance,
                                  const AcceptState& state, const LogEntry& entry);

 private:
  enum class What { kCreate, kDrop, kAccept, kHardState, kTruncate, kInstall, kDeliver };
  struct Pending {
    What what;
    GroupId group;
    Instance instance;
    size_t index;
    std::vector<BlockName> blocks = {};  // deliver
  };

  std::string RecoverGroup(Engine* engine, GroupModel* group);
  std::string RecoverInstall(const GroupInfo& info, GroupModel* group) const;
  std::string RecoverHardState(const GroupInfo& info, GroupModel* group) const;
  std::string RecoverLog(Engine* engine, const GroupInfo& info, GroupModel* group) const;

  std::map<GroupId, GroupModel> groups_;
  std::set<GroupId> dropped_;
  std::map<uint64_t, Pending> pending_;
  std::shared_ptr<std::deque<Proposal>> proposals_ = std::make_shared<std::deque<Proposal>>();
};

// What the tests' layer above keeps as its state, so that recovery can be checked.
std::string LayerState(GroupId group, Instance applied);

}  // namespace hydra::test
