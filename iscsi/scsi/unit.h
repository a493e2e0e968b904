// SPDX-License-Identifier: Apache-2.0
//
// A logical unit: a disk, and what all initiators that use it share through this process. Lives as
// long as anyone holds it; one thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "iscsi/disk.h"
#include "iscsi/scsi/reservations.h"
#include "iscsi/scsi/sense.h"
#include "iscsi/scsi/shared_state.h"
#include "iscsi/task.h"

namespace hydra::iscsi {

class LogicalUnit;

// An initiator port's way to a logical unit through one portal (I_T nexus). Joins when its session
// begins, leaves when it ends.
struct Nexus {
  std::string initiator;  // "iqn...,i,0x<isid>"
  uint16_t portal_group = 1;
  std::deque<Asc> attentions;  // unit attentions not reported yet, each once
  // Ends the session's commands to the unit without an answer, and calls back when the last one has
  // ended.
  std::function<void(std::function<void()> done)> abort_tasks;
  std::function<void(const std::string& why)> disconnect;  // ends the session
  // It is not allowed any more: the session ends, and none of its commands is carried out.
  bool expelled = false;
  // The CHAP accounts that it logged in by. If the cluster could not be asked whether they still
  // count it is not confirmed: it ends if they turn out not to have.
  uint64_t chap_revision = 0;
  bool confirmed = true;
  uint64_t joined = 0;  // when: which one it was of those that did

  std::string name() const;  // of the initiator, without its port
  // What a persistent reservation knows it by, and remembers when it is gone.
  std::string id() const;
};

struct PortalGroup {
  uint16_t tag = 1;
  bool reachable = true;  // as far as other portals can tell
  bool waits = false;     // it is there, and does not reach the cluster itself
  friend bool operator==(const PortalGroup&, const PortalGroup&) = default;
};

// What is the same of every unit of a target.
struct UnitOptions {
  uint32_t logical_block = 512;
  std::string target_name;  // iqn
  // Portals of the cluster, this one too, for REPORT TARGET PORT GROUPS. Who knows them calls
  // NotePortalGroups when they may have changed.
  std::function<std::vector<PortalGroup>()> portal_groups;
  // Calls `done` once: when `work` has called what it is given, or when whoever asks whether the
  // unit is ready had better be told that it is not. Null: only the former.
  std::function<void(std::function<void()> done,
                     const std::function<void(std::function<void()> end)>& work)>
      with_patience;
};

class LogicalUnit : public std::enable_shared_from_this<LogicalUnit> {
 public:
  static constexpr uint64_t kMaxTransferBytes = 8 << 20;
  static constexpr uint32_t kMaxUnmapBlocks = 1 << 20;
  static constexpr uint32_t kMaxUnmapRanges = 256;
  // What is not zero is expanded: no more than a short command's length can say.
  static constexpr uint32_t kMaxSameBlocks = 0xffff;
  static constexpr uint32_t kMaxCompareBlocks = 255;
  // What WRITE ATOMIC takes, if it does not cross what the disk changes at once.
  static constexpr uint32_t kMaxAtomicBlocks = 256;
  static constexpr size_t kMaxAttentions = 16;

  LogicalUnit(std::unique_ptr<Disk> disk, UnitOptions options);
  ~LogicalUnit();
  LogicalUnit(const LogicalUnit&) = delete;
  LogicalUnit& operator=(const LogicalUnit&) = delete;

  Disk* disk() { return disk_.get(); }
  const UnitOptions& options() const { return options_; }
  uint32_t block() const { return options_.logical_block; }
  uint64_t blocks() const { return disk_->size() / options_.logical_block; }
  uint32_t blocks_per_physical() const { return disk_->block_bytes() / options_.logical_block; }

  void Join(Nexus* nexus);
  void Leave(Nexus* nexus);

  // To everyone but `except`.
  void Attention(Asc asc, const Nexus* except = nullptr);
  // Tells everyone if the state of a group is another than it was.
  void NotePortalGroups();
  // To the nexus of that id, if it is here.
  void AttentionTo(const std::string& id, Asc asc);
  // Of all nexuses, or of those with these ids.
  void AbortTasks(const std::set<std::string>* ids, std::function<void()> done);

  // LUN RESET and TARGET RESET: every task ends, through all portals, reservations by RESERVE and
  // changed mode parameters are gone, and everyone is told. OK: no command from before can change
  // anything any more.
  // Asked for by that nexus, if it is still allowed then; kFenced: it is not, and nothing happens.
  void Reset(Asc asc, Disk::Done done, const Nexus* by = nullptr);

  // TARGET COLD RESET: every session ends.
  void Disconnect();

  // Who may use it, and which of its CHAP accounts count, as of epoch().
  const AccessRules& rules() const { return rules_; }
  uint64_t chap_revision() const { return chap_revision_; }
  // Someone logged in when the cluster could not be asked: refresh as soon as it can.
  bool unconfirmed() const;

  // What all portals share, as last heard of: the disk has it. Who makes a unit refreshes it before
  // anyone joins; from then on it hears of changes by others.
  const Reservations& reservations() const { return shared_.reservations; }
  uint32_t resets() const { return shared_.resets; }
  Asc last_reset() const { return shared_.last_reset; }
  uint64_t epoch() const { return epoch_; }  // of the disk's access, to which that belongs
  void RefreshShared(Disk::Done done);
  // The same for who asks whether the unit is ready, and does not wait for the cluster as long as
  // others do (UnitOptions::with_patience): kUnavailable then.
  void CheckReady(Disk::Done done);
  // Applies the change to a copy of what the disk has and puts it in its place, again if another
  // was faster. It may refuse, or leave everything as it is: nothing happens then. Nobody here is
  // told what it did.
  Task<hydra::Status> ChangeShared(std::function<bool(SharedState*)> change);

  const std::string& reserved_by() const { return shared_.reserved_by; }  // RESERVE(6), RESERVE(10)
  // Ends a RESERVE of that nexus, which is gone. Keep the unit until it calls back.
  void Release(const std::string& nexus, std::function<void()> done);

  // --- SANITIZE (unit_sanitize.cc). Whichever portal it came through, all refuse the unit until it
  // has ended, and each goes on with it if it is asked for the unit meanwhile: the first one may be
  // gone.
  const SanitizeState& sanitize() const { return shared_.sanitize; }
  uint16_t sanitize_progress() const { return sanitize_progress_; }  // in 65536ths, as known here
  uint64_t sanitizing() const { return sanitizing_; }  // the key of the one worked at here; 0: none
  // OK: one is under way. `*key` is its key if this call began it, else 0. kFenced: access was
  // changed since `epoch`, in which the command arrived (nothing: it arrived now), and none began.
  Task<hydra::Status> BeginSanitize(std::optional<uint64_t> epoch, bool may_exit, uint64_t* key);
  void ContinueSanitize();
  // Whether one has ended elsewhere, and those who help with it may not have heard of that: what
  // they have under way would undo what is written now. The other makes sure that it does not.
  bool sanitize_lingers() const { return fenced_ < sanitize_end_; }
  Task<hydra::Status> FenceSanitize();
  // Calls back when something has moved, or might have; at least about once a second.
  void WhenSanitizeMoves(std::function<void(bool)> then) {
    sanitize_waiters_.push_back(std::move(then));
  }

  // Mode parameters that can be changed.
  bool write_protected = false;
  bool descriptor_sense = false;

  // Results of EXTENDED COPY by list identifier and nexus, until they are asked for.
  struct CopyResult {
    std::string nexus;
    uint8_t list = 0;
    uint32_t segments = 0;
    bool failed = false;
  };
  std::deque<CopyResult> copies;

 private:
  // One at a time calls back with true, and calls EndTurn; those who waited for one that did not
  // reach the cluster are called with false, and do not: they would only wait as long again.
  void BeginTurn(std::function<void(bool)> turn);
  void EndTurn(bool reached);
  // What others may have made of it: everyone here hears what they have to. `joins`: joins_ when
  // the cluster was asked.
  hydra::Status TakeShared(const DiskAccess& access, uint64_t joins);
  hydra::Status TakeNews(const DiskAccess& access);
  void ForgetStates(Asc asc);  // that a reset ends, and tells everyone
  bool IsProven(const Nexus& nexus) const {
    return nexus.confirmed || nexus.chap_revision >= chap_revision_;
  }
  void Expel();  // who is not allowed any more
  // Under the present epoch, in which it is under way.
  void RunSanitize(uint64_t key);
  void EraseDisk(uint64_t key, uint64_t epoch);
  void SanitizeStopped(uint64_t key, uint64_t epoch, const hydra::Status& how);
  void SanitizeEnded(uint64_t key, const hydra::Status& how);
  void SanitizeMoved();

  std::unique_ptr<Disk> disk_;
  UnitOptions options_;
  std::map<uint16_t, PortalGroup> groups_;  // as they were last noted, by tag
  std::set<Nexus*> nexuses_;
  uint64_t joins_ = 0;  // so far
  SharedState shared_;
  AccessRules rules_;
  uint64_t chap_revision_ = 0;
  uint64_t epoch_ = 0;
  uint64_t fenced_ = 0;  // the epoch before which nothing can happen any more, as far as known
  uint64_t sanitizing_ = 0;
  uint64_t sanitize_end_ = 0;  // the epoch in which the end of one was heard of
  uint16_t sanitize_progress_ = 0;
  std::vector<std::function<void(bool)>> sanitize_waiters_;
  bool changing_ = false;
  std::deque<std::function<void(bool)>> turns_;  // of those who wait to change or refresh it
  std::vector<Disk::Done> refreshes_;            // that begin with the next turn of that kind
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace hydra::iscsi
