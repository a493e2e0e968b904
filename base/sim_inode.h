// SPDX-License-Identifier: Apache-2.0
//
// What SimDisk (base/sim_disk.h) keeps per file and directory: the state that a process sees and
// the state that a power loss leaves. Internal to SimDisk, which also provides the locking.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <boost/smart_ptr/intrusive_ptr.hpp>

#include "base/buffer.h"
#include "base/rng.h"

namespace hydra {

// The bytes of a page, counted by hand because whoever finds itself the only holder may write, and
// shared_ptr::use_count() gives no order between threads that run clones.
struct SimPageBytes {
  std::array<uint8_t, kPageSize> bytes;
  std::atomic<unsigned> references{0};

  bool shared() const { return references.load(std::memory_order_acquire) > 1; }
  friend void intrusive_ptr_add_ref(SimPageBytes* page) {
    page->references.fetch_add(1, std::memory_order_relaxed);
  }
  friend void intrusive_ptr_release(SimPageBytes* page) {
    if (page->references.fetch_sub(1, std::memory_order_acq_rel) == 1) delete page;
  }
};

// The contents of one file. Pages are sparse: an absent one, and one without bytes, reads as
// zeroes. Bytes are shared between the two states of a page and between clones of a disk, and
// copied before they change, so that cloning and syncing cost pointers.
//
// An unsynced shrink is a border: the durable state before it is kept aside as a whole, and a
// power loss either goes back to that or continues from the shrunk file. So bytes that were
// synced and then cut off come back intact or not at all.
class SimFile {
 public:
  static constexpr size_t kSectorSize = 512;

  struct Survival {
    unsigned lose_percent;
    unsigned garble_percent;
  };

  uint64_t size() const { return size_; }
  uint64_t allocated_pages() const { return reserved_ + unreserved_pages_; }

  size_t Read(uint64_t offset, std::span<uint8_t> out) const;

  // How much of a write needs at most `free_pages` pages that are not allocated yet.
  uint64_t LengthThatFits(uint64_t offset, uint64_t length, uint64_t free_pages) const;
  void Write(uint64_t offset, std::span<const uint8_t> bytes);
  // The metadata of a write whose bytes never arrived.
  void Extend(uint64_t offset, uint64_t length);

  void SyncRange(uint64_t offset, uint64_t length);
  void Sync();
  // A sync of this range failed: the system now believes these sectors clean, so no later Sync()
  // makes them durable unless they are written again.
  void AbandonUnsynced(uint64_t offset, uint64_t length);
  void AbandonUnsynced() { AbandonUnsynced(0, size_); }

  void Truncate(uint64_t length);
  uint64_t PagesToReserve(uint64_t length) const;
  void Reserve(uint64_t length);
  void FlipBit(uint64_t byte, unsigned bit);

  void PowerLoss(const Survival& survival, Rng* rng);

 private:
  using PagePtr = boost::intrusive_ptr<SimPageBytes>;  // null: zeroes
  using SectorMask = uint8_t;
  static_assert(kPageSize / kSectorSize == 8);

  struct Page {
    PagePtr current;
    PagePtr durable;       // valid while dirty != 0; otherwise current is durable
    SectorMask dirty = 0;  // sectors written since they were last durable
    SectorMask whole = 0;  // of these: no byte of the durable one is left
    SectorMask stuck = 0;  // of these: a sync failed meanwhile
  };

  struct BeforeShrink {
    std::map<uint64_t, PagePtr> pages;
    uint64_t size;
    uint64_t reserved;
  };

  static uint8_t* Own(PagePtr* page);
  static SectorMask Sectors(size_t begin, size_t end);
  static void CopySector(const PagePtr& from, PagePtr* to, unsigned sector);
  static void Garble(Page* page, unsigned sector, Rng* rng);

  Page& Allocated(uint64_t index);
  void CountUnreserved();
  void WriteInPage(uint64_t index, size_t begin, std::span<const uint8_t> bytes);
  void Promote(uint64_t index, SectorMask mask);
  void ZeroTail(uint64_t length);
  BeforeShrink DurableState() const;

  std::map<uint64_t, Page> pages_;
  std::set<uint64_t> dirty_pages_;
  uint64_t size_ = 0;
  uint64_t durable_size_ = 0;
  uint64_t reserved_ = 0;  // pages from the start that are allocated, written or not
  uint64_t durable_reserved_ = 0;
  uint64_t unreserved_pages_ = 0;  // of pages_, those at reserved_ and above
  std::optional<BeforeShrink> before_shrink_;
};

struct SimNode;
using SimNodePtr = std::shared_ptr<SimNode>;

// Entries as seen, entries as durable, and the changes that lead from these to those.
struct SimDirectory {
  struct Change {
    std::vector<std::pair<std::string, SimNodePtr>> edits;  // all or none; null: removed
    uint64_t transaction = 0;  // not 0: shared with a change of another directory (a move)
  };

  void Apply(Change change);
  void MakeDurable(size_t changes);  // the first so many

  std::map<std::string, SimNodePtr> entries;
  std::map<std::string, SimNodePtr> durable;
  std::vector<Change> changes;
};

// A file or a directory, whichever pointer is set.
struct SimNode {
  uint64_t id = 0;  // in order of creation; iteration follows it, so that a seed repeats
  std::unique_ptr<SimFile> file;
  std::unique_ptr<SimDirectory> directory;
  unsigned handles = 0;  // open files of this process
  bool linked = true;    // has a name (as seen, durable or not)
};

// Everything that is reachable from `root` now or after some power loss, by id.
std::map<uint64_t, SimNodePtr> ReachableNodes(const SimNodePtr& root);
// Only what has a name now.
std::map<uint64_t, SimNodePtr> LinkedNodes(const SimNodePtr& root);

void SyncDirectoryTree(const SimNodePtr& root, SimDirectory* directory);
// Keeps a random prefix of every directory's unsynced changes, then what that leaves of files.
void LosePower(const SimNodePtr& root, const SimFile::Survival& survival, Rng* rng);
SimNodePtr CloneTree(const SimNodePtr& root);

}  // namespace hydra
