// SPDX-License-Identifier: Apache-2.0
#include "base/sim_inode.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "base/check.h"

namespace hydra {

namespace {

constexpr unsigned kSectorsPerPage = kPageSize / SimFile::kSectorSize;

uint64_t PagesOf(uint64_t bytes) { return bytes / kPageSize + (bytes % kPageSize != 0); }

bool AllZero(std::span<const uint8_t> bytes) {
  return bytes[0] == 0 && std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0;
}

// Calls visit(page, begin, end) for the part of each page in [offset, offset + length).
template <typename Visit>
void ForEachPage(uint64_t offset, uint64_t length, Visit visit) {
  while (length > 0) {
    const size_t begin = offset % kPageSize;
    const size_t n = std::min<uint64_t>(length, kPageSize - begin);
    visit(offset / kPageSize, begin, begin + n);
    offset += n;
    length -= n;
  }
}

}  // namespace

uint8_t* SimFile::Own(PagePtr* page) {
  if (*page == nullptr) {
    page->reset(new SimPageBytes);
    (*page)->bytes.fill(0);
  } else if ((*page)->shared()) {
    PagePtr copy(new SimPageBytes);
    copy->bytes = (*page)->bytes;
    *page = std::move(copy);
  }
  return (*page)->bytes.data();
}

SimFile::SectorMask SimFile::Sectors(size_t begin, size_t end) {
  if (begin >= end) return 0;
  const unsigned first = static_cast<unsigned>(begin / kSectorSize);
  const unsigned last = static_cast<unsigned>((end - 1) / kSectorSize);
  return static_cast<SectorMask>((2u << last) - (1u << first));
}

void SimFile::CopySector(const PagePtr& from, PagePtr* to, unsigned sector) {
  uint8_t* target = Own(to) + sector * kSectorSize;
  if (from == nullptr) {
    std::memset(target, 0, kSectorSize);
  } else {
    std::memcpy(target, from->bytes.data() + sector * kSectorSize, kSectorSize);
  }
}

SimFile::Page& SimFile::Allocated(uint64_t index) {
  const auto [it, added] = pages_.try_emplace(index);
  if (added && index >= reserved_) ++unreserved_pages_;
  return it->second;
}

void SimFile::CountUnreserved() {
  unreserved_pages_ = static_cast<uint64_t>(
      std::distance(reserved_ == 0 ? pages_.begin() : pages_.lower_bound(reserved_), pages_.end()));
}

size_t SimFile::Read(uint64_t offset, std::span<uint8_t> out) const {
  if (offset >= size_) return 0;
  const size_t length = std::min<uint64_t>(out.size(), size_ - offset);
  uint8_t* to = out.data();
  ForEachPage(offset, length, [&](uint64_t index, size_t begin, size_t end) {
    const auto found = pages_.find(index);
    if (found == pages_.end() || found->second.current == nullptr) {
      std::memset(to, 0, end - begin);
    } else {
      std::memcpy(to, found->second.current->bytes.data() + begin, end - begin);
    }
    to += end - begin;
  });
  return length;
}

uint64_t SimFile::LengthThatFits(uint64_t offset, uint64_t length, uint64_t free_pages) const {
  uint64_t fits = 0;
  bool full = false;
  ForEachPage(offset, length, [&](uint64_t index, size_t begin, size_t end) {
    const bool allocated = index < reserved_ || pages_.contains(index);
    if (!allocated && free_pages == 0) full = true;
    if (full) return;
    if (!allocated) --free_pages;
    fits += end - begin;
  });
  return fits;
}

void SimFile::WriteInPage(uint64_t index, size_t begin, std::span<const uint8_t> bytes) {
  Page& page = Allocated(index);
  if (page.dirty == 0) {
    page.durable = page.current;
    dirty_pages_.insert(dirty_pages_.end(), index);
  }
  const size_t end = begin + bytes.size();
  const SectorMask touched = Sectors(begin, end);
  page.dirty |= touched;
  page.stuck &= static_cast<SectorMask>(~touched);
  page.whole |= Sectors((begin + kSectorSize - 1) / kSectorSize * kSectorSize,
                        end / kSectorSize * kSectorSize);

  if (bytes.size() < kPageSize) {
    std::memcpy(Own(&page.current) + begin, bytes.data(), bytes.size());
  } else if (AllZero(bytes)) {
    page.current = nullptr;
  } else {
    if (page.current == nullptr || page.current->shared()) page.current.reset(new SimPageBytes);
    std::memcpy(page.current->bytes.data(), bytes.data(), kPageSize);
  }
}

void SimFile::Write(uint64_t offset, std::span<const uint8_t> bytes) {
  const uint8_t* from = bytes.data();
  ForEachPage(offset, bytes.size(), [&](uint64_t index, size_t begin, size_t end) {
    WriteInPage(index, begin, {from, end - begin});
    from += end - begin;
  });
  if (!bytes.empty()) size_ = std::max(size_, offset + bytes.size());
}

void SimFile::Extend(uint64_t offset, uint64_t length) {
  ForEachPage(offset, length, [&](uint64_t index, size_t, size_t) { Allocated(index); });
  if (length > 0) size_ = std::max(size_, offset + length);
}

// Makes these sectors of a dirty page durable.
void SimFile::Promote(uint64_t index, SectorMask mask) {
  Page& page = pages_.at(index);
  mask &= page.dirty;
  if (mask == page.dirty) {
    page.durable = nullptr;
    page.dirty = page.whole = page.stuck = 0;
    dirty_pages_.erase(index);
    return;
  }
  for (unsigned s = 0; s < kSectorsPerPage; ++s) {
    if (mask >> s & 1) CopySector(page.current, &page.durable, s);
  }
  const SectorMask rest = static_cast<SectorMask>(~mask);
  page.dirty &= rest;
  page.whole &= rest;
  page.stuck &= rest;
}

void SimFile::SyncRange(uint64_t offset, uint64_t length) {
  if (length == 0) return;
  ForEachPage(offset, length, [&](uint64_t index, size_t begin, size_t end) {
    const auto found = pages_.find(index);
    if (found != pages_.end() && found->second.dirty != 0) Promote(index, Sectors(begin, end));
  });
  durable_size_ = std::max(durable_size_, std::min(size_, offset + length));
  // What is durable now must not be undone by going back behind the shrink.
  before_shrink_.reset();
}

void SimFile::Sync() {
  for (auto it = dirty_pages_.begin(); it != dirty_pages_.end();) {
    const uint64_t index = *it++;  // Promote() may erase it
    Promote(index, static_cast<SectorMask>(~pages_.at(index).stuck));
  }
  durable_size_ = size_;
  durable_reserved_ = reserved_;
  before_shrink_.reset();
}

void SimFile::AbandonUnsynced(uint64_t offset, uint64_t length) {
  if (length == 0) return;
  for (auto it = dirty_pages_.lower_bound(offset / kPageSize); it != dirty_pages_.end(); ++it) {
    const uint64_t start = *it * kPageSize;
    if (start >= offset + length) break;
    const size_t begin = offset > start ? offset - start : 0;
    const size_t end = std::min<uint64_t>(kPageSize, offset + length - start);
    Page& page = pages_.at(*it);
    page.stuck |= page.dirty & Sectors(begin, end);
  }
}

SimFile::BeforeShrink SimFile::DurableState() const {
  BeforeShrink state{{}, durable_size_, durable_reserved_};
  for (const auto& [index, page] : pages_) {
    state.pages.emplace(index, page.dirty != 0 ? page.durable : page.current);
  }
  return state;
}

// Forgets what lies beyond `length`, in both states.
void SimFile::ZeroTail(uint64_t length) {
  pages_.erase(pages_.lower_bound(PagesOf(length)), pages_.end());
  dirty_pages_.erase(dirty_pages_.lower_bound(PagesOf(length)), dirty_pages_.end());
  const size_t keep = length % kPageSize;
  const auto last = pages_.find(length / kPageSize);
  if (keep == 0 || last == pages_.end()) return;
  Page& page = last->second;
  for (PagePtr* bytes : {&page.current, &page.durable}) {
    if (*bytes == nullptr) continue;
    std::memset(Own(bytes) + keep, 0, kPageSize - keep);
  }
  if (page.dirty != 0) {
    Promote(last->first, Sectors((keep + kSectorSize - 1) / kSectorSize * kSectorSize, kPageSize));
  }
}

void SimFile::Truncate(uint64_t length) {
  if (length < size_) {
    if (length < durable_size_ && !before_shrink_) before_shrink_ = DurableState();
    ZeroTail(length);
    durable_size_ = std::min(durable_size_, length);
    reserved_ = std::min(reserved_, PagesOf(length));
    durable_reserved_ = std::min(durable_reserved_, reserved_);
    CountUnreserved();
  }
  size_ = length;
}

uint64_t SimFile::PagesToReserve(uint64_t length) const {
  const uint64_t end = PagesOf(length);
  if (end <= reserved_) return 0;
  uint64_t written = 0;
  for (auto it = pages_.lower_bound(reserved_); it != pages_.end() && it->first < end; ++it) {
    ++written;
  }
  return end - reserved_ - written;
}

void SimFile::Reserve(uint64_t length) {
  reserved_ = std::max(reserved_, PagesOf(length));
  CountUnreserved();
}

void SimFile::FlipBit(uint64_t byte, unsigned bit) {
  HYDRA_CHECK(byte < size_ && bit < 8);
  Page& page = Allocated(byte / kPageSize);
  const size_t at = byte % kPageSize;
  Own(&page.current)[at] ^= static_cast<uint8_t>(1u << bit);
  if (page.dirty != 0) Own(&page.durable)[at] ^= static_cast<uint8_t>(1u << bit);
}

// A sector that was written as a whole may hold anything. Where durable bytes share the sector
// with new ones, as at the end of a log, only the bytes that changed are at risk.
void SimFile::Garble(Page* page, unsigned sector, Rng* rng) {
  uint8_t* const bytes = Own(&page->current) + sector * kSectorSize;
  std::array<uint64_t, kSectorSize / sizeof(uint64_t)> noise;
  for (uint64_t& word : noise) word = rng->Next();
  if (page->whole >> sector & 1) {
    std::memcpy(bytes, noise.data(), kSectorSize);
    return;
  }
  const auto* const noise_bytes = reinterpret_cast<const uint8_t*>(noise.data());
  for (size_t i = 0; i < kSectorSize; ++i) {
    const uint8_t durable =
        page->durable == nullptr ? 0 : page->durable->bytes[sector * kSectorSize + i];
    if (bytes[i] != durable) bytes[i] = noise_bytes[i];
  }
}

void SimFile::PowerLoss(const Survival& survival, Rng* rng) {
  if (before_shrink_ && rng->Percent(50)) {
    pages_.clear();
    for (const auto& [index, bytes] : before_shrink_->pages) pages_[index].current = bytes;
    size_ = durable_size_ = before_shrink_->size;
    reserved_ = durable_reserved_ = before_shrink_->reserved;
    dirty_pages_.clear();
  }
  for (const uint64_t index : dirty_pages_) {
    Page& page = pages_.at(index);
    for (unsigned s = 0; s < kSectorsPerPage; ++s) {
      if ((page.dirty >> s & 1) == 0) continue;
      const uint64_t roll = rng->Below(100);
      if (roll < survival.lose_percent) {
        CopySector(page.durable, &page.current, s);
      } else if (roll < survival.lose_percent + survival.garble_percent) {
        Garble(&page, s, rng);
      }
    }
    page.durable = nullptr;
    page.dirty = page.whole = page.stuck = 0;
  }
  dirty_pages_.clear();
  before_shrink_.reset();

  if (size_ > durable_size_ && rng->Percent(50)) size_ = durable_size_;
  if (reserved_ > durable_reserved_ && rng->Percent(50)) reserved_ = durable_reserved_;
  ZeroTail(size_);
  durable_size_ = size_;
  durable_reserved_ = reserved_;
  CountUnreserved();
}

// --- Directories -----------------------------------------------------------------------------

namespace {

void ApplyEdits(const SimDirectory::Change& change, std::map<std::string, SimNodePtr>* entries) {
  for (const auto& [name, node] : change.edits) {
    if (node == nullptr) {
      entries->erase(name);
    } else {
      (*entries)[name] = node;
    }
  }
}

void Collect(const SimNodePtr& node, bool with_past, std::map<uint64_t, SimNodePtr>* out) {
  if (node == nullptr || !out->emplace(node->id, node).second || !node->directory) return;
  for (const auto& [name, child] : node->directory->entries) Collect(child, with_past, out);
  if (!with_past) return;
  for (const auto& [name, child] : node->directory->durable) Collect(child, with_past, out);
  for (const auto& change : node->directory->changes) {
    for (const auto& [name, child] : change.edits) Collect(child, with_past, out);
  }
}

// Holds the nodes: applying or dropping a change may take a directory's last other reference.
using Directories = std::vector<SimNodePtr>;

// The other directory of a move and the number of its changes up to and including it.
struct Peer {
  SimDirectory* directory = nullptr;
  size_t changes = 0;
};

Peer FindPeer(const Directories& all, const SimDirectory* one, uint64_t transaction) {
  for (const SimNodePtr& node : all) {
    SimDirectory* const other = node->directory.get();
    if (other == one) continue;
    for (size_t i = 0; i < other->changes.size(); ++i) {
      if (other->changes[i].transaction == transaction) return {other, i + 1};
    }
  }
  return {};
}

Directories AllDirectories(const SimNodePtr& root) {
  Directories directories;
  for (const auto& [id, node] : ReachableNodes(root)) {
    if (node->directory) directories.push_back(node);
  }
  return directories;
}

}  // namespace

void SimDirectory::Apply(Change change) {
  ApplyEdits(change, &entries);
  changes.push_back(std::move(change));
}

void SimDirectory::MakeDurable(size_t count) {
  for (size_t i = 0; i < count; ++i) ApplyEdits(changes[i], &durable);
  changes.erase(changes.begin(), changes.begin() + static_cast<ptrdiff_t>(count));
}

namespace {

// A move between directories is one transaction: syncing one side brings the other side with it,
// up to that change.
void SyncPrefix(const SimNodePtr& root, SimDirectory* directory, size_t count) {
  std::vector<uint64_t> moves;
  for (size_t i = 0; i < count; ++i) {
    if (directory->changes[i].transaction != 0) moves.push_back(directory->changes[i].transaction);
  }
  directory->MakeDurable(count);
  if (moves.empty()) return;
  const Directories all = AllDirectories(root);
  for (const uint64_t move : moves) {
    const Peer peer = FindPeer(all, directory, move);
    if (peer.directory != nullptr) SyncPrefix(root, peer.directory, peer.changes);
  }
}

}  // namespace

std::map<uint64_t, SimNodePtr> ReachableNodes(const SimNodePtr& root) {
  std::map<uint64_t, SimNodePtr> nodes;
  Collect(root, true, &nodes);
  return nodes;
}

std::map<uint64_t, SimNodePtr> LinkedNodes(const SimNodePtr& root) {
  std::map<uint64_t, SimNodePtr> nodes;
  Collect(root, false, &nodes);
  return nodes;
}

void SyncDirectoryTree(const SimNodePtr& root, SimDirectory* directory) {
  SyncPrefix(root, directory, directory->changes.size());
}

void LosePower(const SimNodePtr& root, const SimFile::Survival& survival, Rng* rng) {
  const Directories all = AllDirectories(root);
  std::map<const SimDirectory*, size_t> kept;  // looked up only, never iterated
  for (const SimNodePtr& node : all) {
    kept[node->directory.get()] = rng->Below(node->directory->changes.size() + 1);
  }
  // Half a move may not survive: shorten prefixes until none does.
  for (bool changed = true; changed;) {
    changed = false;
    for (const SimNodePtr& node : all) {
      size_t& count = kept[node->directory.get()];
      for (size_t i = 0; i < count; ++i) {
        const uint64_t transaction = node->directory->changes[i].transaction;
        if (transaction == 0) continue;
        const Peer peer = FindPeer(all, node->directory.get(), transaction);
        if (peer.directory == nullptr || peer.changes <= kept[peer.directory]) continue;
        count = i;
        changed = true;
      }
    }
  }
  for (const SimNodePtr& node : all) {
    SimDirectory* const directory = node->directory.get();
    directory->MakeDurable(kept[directory]);
    directory->changes.clear();
    directory->entries = directory->durable;
  }
  for (const auto& [id, node] : LinkedNodes(root)) {
    if (node->file) node->file->PowerLoss(survival, rng);
  }
}

SimNodePtr CloneTree(const SimNodePtr& root) {
  std::map<const SimNode*, SimNodePtr> copies{{nullptr, nullptr}};
  const auto nodes = ReachableNodes(root);
  for (const auto& [id, node] : nodes) {
    auto copy = std::make_shared<SimNode>();
    copy->id = id;
    copy->linked = node->linked;
    if (node->file) copy->file = std::make_unique<SimFile>(*node->file);
    copies[node.get()] = std::move(copy);
  }
  for (const auto& [id, node] : nodes) {
    if (!node->directory) continue;
    auto directory = std::make_unique<SimDirectory>(*node->directory);
    for (auto& [name, child] : directory->entries) child = copies.at(child.get());
    for (auto& [name, child] : directory->durable) child = copies.at(child.get());
    for (auto& change : directory->changes) {
      for (auto& [name, child] : change.edits) child = copies.at(child.get());
    }
    copies.at(node.get())->directory = std::move(directory);
  }
  return copies.at(root.get());
}

}  // namespace hydra
