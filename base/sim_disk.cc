// SPDX-License-Identifier: Apache-2.0
#include "base/sim_disk.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <mutex>
#include <set>
#include <string_view>
#include <utility>

#include "base/buffer.h"
#include "base/check.h"
#include "base/rng.h"
#include "base/sim_inode.h"

namespace hydra {

static_assert(SimDisk::kSectorSize == SimFile::kSectorSize);

namespace {

// What is to become of a call.
enum class Verdict { kGo, kFail, kCutPower };

std::vector<std::string> SplitPath(std::string_view path) {
  std::vector<std::string> parts;
  while (!path.empty()) {
    const size_t slash = std::min(path.find('/'), path.size());
    if (slash > 0) parts.emplace_back(path.substr(0, slash));
    path.remove_prefix(std::min(slash + 1, path.size()));
  }
  return parts;
}

Status NoPower() { return Status::IoError("the simulated disk has no power"); }

Status Injected(const char* call, const std::string& path) {
  return Status::IoError(std::string(call) + " " + path + ": injected failure");
}

bool PageAligned(const uint8_t* data, uint64_t length) {
  return reinterpret_cast<uintptr_t>(data) % kPageSize == 0 && length % kPageSize == 0;
}

Status Misaligned(const char* call, const std::string& path) {
  return Status::InvalidArgument(std::string(call) + " " + path +
                                 ": direct I/O needs page-aligned offset, length and memory");
}

}  // namespace

// The disk behind its one mutex, which SimDisk, Handle and HeldLock take before they touch
// anything here.
class SimDisk::Impl {
 public:
  explicit Impl(const Options& with) : options(with), rng(with.seed), capacity(with.capacity) {
    root->directory = std::make_unique<SimDirectory>();
  }

  // Where a path leads: the directory that holds or would hold its last part.
  struct Location {
    SimDirectory* parent = nullptr;
    std::string name;
    SimNodePtr node;  // null: no such entry
  };

  SimNodePtr Find(const std::string& path) const;
  Result<Location> Locate(const std::string& path) const;
  Result<SimDirectory*> FindDirectory(const std::string& path) const;
  SimNodePtr NewNode(bool directory);

  // Counts a call and decides its fate. A changing call that is to be cut goes on without becoming
  // durable, and then through Settle().
  Verdict Begin(IoKind kind, bool changes, const std::string& path, const std::string& other = "");
  Status Settle(Verdict verdict);
  Verdict Failed(bool changes, const std::string& path);

  bool SyncIsIgnored(const std::string& path) const {
    return !ignore_syncs.empty() && path.find(ignore_syncs) != std::string::npos;
  }
  uint64_t FreePages() const;
  // Runs `change` on a file that has a name or a handle, and books the pages it takes or gives.
  template <typename Change>
  void ChangeFile(SimFile* file, Change change) {
    used_pages -= file->allocated_pages();
    change();
    used_pages += file->allocated_pages();
  }
  void ReleaseIfUnused(const SimNode& node);
  void LoseName(const SimNodePtr& node);
  void CutPowerNow();
  void ForgetProcess();

  Status Write(SimFile* file, const std::string& path, uint64_t offset,
               std::span<const IoSlice> slices, Durability durability);
  Status Move(const std::string& from, const std::string& to);

  mutable std::mutex mutex;
  Options options;
  Rng rng;
  SimNodePtr root = std::make_shared<SimNode>();
  uint64_t next_id = 1;
  uint64_t next_transaction = 1;
  uint64_t capacity;
  uint64_t used_pages = 0;  // of files with a name or a handle
  uint64_t bytes_written = 0;
  bool powered = true;
  uint64_t epoch = 0;  // of the process; files and locks of an earlier one are dead
  std::set<std::string> locks;

  // Orders for faults. Numbers are absolute: of all changing calls, of all calls of a kind.
  uint64_t io_count = 0;
  uint64_t cut_at = 0;
  std::array<uint64_t, kIoKinds> calls{};
  std::set<std::pair<IoKind, uint64_t>> fail_at;
  std::map<IoKind, std::string> fail_all;
  std::map<std::string, uint64_t> failed_calls;  // changing ones, by path
  std::set<uint64_t> drop_at;
  std::map<uint64_t, uint64_t> misdirect_at;  // call -> offset
  std::string ignore_syncs;

 private:
  uint64_t TornLength(uint64_t offset, uint64_t length);
};

SimNodePtr SimDisk::Impl::Find(const std::string& path) const {
  SimNodePtr node = root;
  for (const std::string& part : SplitPath(path)) {
    if (!node->directory) return nullptr;
    const auto found = node->directory->entries.find(part);
    if (found == node->directory->entries.end()) return nullptr;
    node = found->second;
  }
  return node;
}

Result<SimDisk::Impl::Location> SimDisk::Impl::Locate(const std::string& path) const {
  const std::vector<std::string> parts = SplitPath(path);
  if (parts.empty()) return Status::InvalidArgument("'" + path + "' names no entry");
  SimNodePtr parent = root;
  for (size_t i = 0; i + 1 < parts.size(); ++i) {
    const auto found = parent->directory->entries.find(parts[i]);
    if (found == parent->directory->entries.end() || !found->second->directory) {
      return Status::NotFound(path + ": no directory " + parts[i]);
    }
    parent = found->second;
  }
  Location location{parent->directory.get(), parts.back(), nullptr};
  const auto found = location.parent->entries.find(location.name);
  if (found != location.parent->entries.end()) location.node = found->second;
  return location;
}

Result<SimDirectory*> SimDisk::Impl::FindDirectory(const std::string& path) const {
  const SimNodePtr node = Find(path);
  if (node == nullptr) return Status::NotFound(path + ": no such directory");
  if (!node->directory) return Status::IoError(path + ": not a directory");
  return node->directory.get();
}

SimNodePtr SimDisk::Impl::NewNode(bool directory) {
  auto node = std::make_shared<SimNode>();
  node->id = next_id++;
  if (directory) {
    node->directory = std::make_unique<SimDirectory>();
  } else {
    node->file = std::make_unique<SimFile>();
  }
  return node;
}

Verdict SimDisk::Impl::Begin(IoKind kind, bool changes, const std::string& path,
                             const std::string& other) {
  if (options.clock != nullptr) options.clock->Advance(options.latency);
  const uint64_t call = ++calls[static_cast<unsigned>(kind)];
  if (changes && ++io_count == cut_at) return Verdict::kCutPower;
  if (fail_at.erase({kind, call}) > 0) return Failed(changes, path);
  if (const auto all = fail_all.find(kind); all != fail_all.end()) {
    const std::string& part = all->second;
    if (path.find(part) != std::string::npos || other.find(part) != std::string::npos) {
      return Failed(changes, path);
    }
  }
  return Verdict::kGo;
}

Verdict SimDisk::Impl::Failed(bool changes, const std::string& path) {
  if (changes) ++failed_calls[path];
  return Verdict::kFail;
}

Status SimDisk::Impl::Settle(Verdict verdict) {
  if (verdict != Verdict::kCutPower) return Status::Ok();
  CutPowerNow();
  return NoPower();
}

uint64_t SimDisk::Impl::FreePages() const {
  const uint64_t pages = capacity / kPageSize;
  return pages > used_pages ? pages - used_pages : 0;
}

void SimDisk::Impl::ReleaseIfUnused(const SimNode& node) {
  if (!node.linked && node.handles == 0 && node.file) used_pages -= node.file->allocated_pages();
}

void SimDisk::Impl::LoseName(const SimNodePtr& node) {
  node->linked = false;
  ReleaseIfUnused(*node);
}

void SimDisk::Impl::CutPowerNow() {
  LosePower(root, {options.lose_percent, options.garble_percent}, &rng);
  powered = false;
  cut_at = 0;
  ForgetProcess();
}

void SimDisk::Impl::ForgetProcess() {
  ++epoch;
  locks.clear();
  for (const auto& [id, node] : ReachableNodes(root)) {
    node->linked = false;
    node->handles = 0;
  }
  used_pages = 0;
  for (const auto& [id, node] : LinkedNodes(root)) {
    node->linked = true;
    if (node->file) used_pages += node->file->allocated_pages();
  }
}

uint64_t SimDisk::Impl::TornLength(uint64_t offset, uint64_t length) {
  const uint64_t first = offset / kSectorSize;
  const uint64_t last = (offset + length - 1) / kSectorSize;
  const uint64_t border = rng.Between(first, last) * kSectorSize;
  return border > offset ? border - offset : 0;
}

Status SimDisk::Impl::Write(SimFile* file, const std::string& path, uint64_t offset,
                            std::span<const IoSlice> slices, Durability durability) {
  uint64_t total = 0;
  for (const IoSlice& slice : slices) total += slice.length;
  if (total == 0) return Status::Ok();
  if (offset > std::numeric_limits<int64_t>::max() - total) {
    return Status::InvalidArgument("write " + path + ": beyond the largest file");
  }
  const Verdict verdict = Begin(IoKind::kWrite, true, path);
  const uint64_t number = calls[static_cast<unsigned>(IoKind::kWrite)];
  const uint64_t wanted = verdict == Verdict::kFail ? TornLength(offset, total) : total;
  const uint64_t length = file->LengthThatFits(offset, wanted, FreePages());

  const bool dropped = drop_at.erase(number) > 0;
  uint64_t target = offset;
  if (const auto found = misdirect_at.find(number); found != misdirect_at.end()) {
    target = found->second;
    misdirect_at.erase(found);
  }
  ChangeFile(file, [&] {
    if (dropped || target != offset) file->Extend(offset, length);
    uint64_t done = 0;
    for (const IoSlice& slice : slices) {
      if (dropped || done == length) break;
      const uint64_t n = std::min<uint64_t>(slice.length, length - done);
      file->Write(target + done, {slice.data, n});
      done += n;
    }
    bytes_written += done;
  });

  HYDRA_RETURN_IF_ERROR(Settle(verdict));
  if (verdict == Verdict::kFail) {
    file->AbandonUnsynced(offset, length);
    return Injected("write", path);
  }
  if (length < total) return Status::NoSpace("write " + path + ": the simulated disk is full");
  if (durability == Durability::kDsync && !SyncIsIgnored(path)) {
    file->SyncRange(offset, length);
    if (target != offset) file->SyncRange(target, length);
  }
  return Status::Ok();
}

Status SimDisk::Impl::Move(const std::string& from, const std::string& to) {
  HYDRA_ASSIGN_OR_RETURN(const Location source, Locate(from));
  HYDRA_ASSIGN_OR_RETURN(const Location target, Locate(to));
  if (source.node == nullptr) return Status::NotFound("rename " + from + ": no such entry");
  if (source.node == target.node) return Status::Ok();
  if (target.node != nullptr && (target.node->directory || source.node->directory)) {
    return Status::AlreadyExists("rename " + from + " to " + to + ": only files replace files");
  }
  const std::vector<std::string> below = SplitPath(to);
  const std::vector<std::string> above = SplitPath(from);
  if (below.size() > above.size() && std::equal(above.begin(), above.end(), below.begin())) {
    return Status::InvalidArgument("rename " + from + " to " + to + ": into itself");
  }
  const Verdict verdict = Begin(IoKind::kRename, true, from, to);
  if (verdict == Verdict::kFail) return Injected("rename", from);
  if (source.parent == target.parent) {
    source.parent->Apply({{{source.name, nullptr}, {target.name, source.node}}, 0});
  } else {
    const uint64_t transaction = next_transaction++;
    target.parent->Apply({{{target.name, source.node}}, transaction});
    source.parent->Apply({{{source.name, nullptr}}, transaction});
  }
  if (target.node != nullptr) LoseName(target.node);
  return Settle(verdict);
}

// --- Open files and locks --------------------------------------------------------------------

class SimDisk::Handle final : public File {
 public:
  Handle(std::shared_ptr<Impl> disk, SimNodePtr node, std::string path, const OpenOptions& options)
      : disk_(std::move(disk)),
        node_(std::move(node)),
        path_(std::move(path)),
        read_only_(options.read_only),
        direct_(options.direct),
        epoch_(disk_->epoch) {
    ++node_->handles;
  }

  ~Handle() override {
    std::lock_guard<std::mutex> lock(disk_->mutex);
    if (epoch_ != disk_->epoch) return;
    --node_->handles;
    disk_->ReleaseIfUnused(*node_);
  }

  Result<size_t> PRead(uint64_t offset, std::span<uint8_t> out) override {
    std::lock_guard<std::mutex> lock(disk_->mutex);
    HYDRA_RETURN_IF_ERROR(CheckAlive());
    if (direct_ && (offset % kPageSize != 0 || !PageAligned(out.data(), out.size()))) {
      return Misaligned("read", path_);
    }
    if (disk_->Begin(IoKind::kRead, false, path_) == Verdict::kFail) {
      return Injected("read", path_);
    }
    return file().Read(offset, out);
  }

  Status PWriteV(uint64_t offset, std::span<const IoSlice> slices, Durability durability) override {
    std::lock_guard<std::mutex> lock(disk_->mutex);
    HYDRA_RETURN_IF_ERROR(CheckWritable());
    if (direct_) {
      bool aligned = offset % kPageSize == 0;
      for (const IoSlice& slice : slices) aligned &= PageAligned(slice.data, slice.length);
      if (!aligned) return Misaligned("write", path_);
    }
    return disk_->Write(&file(), path_, offset, slices, durability);
  }

  Status Sync() override {
    std::lock_guard<std::mutex> lock(disk_->mutex);
    HYDRA_RETURN_IF_ERROR(CheckAlive());
    const Verdict verdict = disk_->Begin(IoKind::kSync, true, path_);
    HYDRA_RETURN_IF_ERROR(disk_->Settle(verdict));
    if (verdict == Verdict::kFail) {
      file().AbandonUnsynced();
      return Injected("sync", path_);
    }
    if (!disk_->SyncIsIgnored(path_)) file().Sync();
    return Status::Ok();
  }

  Status Allocate(uint64_t length) override {
    std::lock_guard<std::mutex> lock(disk_->mutex);
    HYDRA_RETURN_IF_ERROR(CheckWritable());
    const Verdict verdict = disk_->Begin(IoKind::kAllocate, true, path_);
    if (verdict == Verdict::kFail) return Injected("allocate", path_);
    if (file().PagesToReserve(length) > disk_->FreePages()) {
      HYDRA_RETURN_IF_ERROR(disk_->Settle(verdict));
      return Status::NoSpace("allocate " + path_ + ": the simulated disk is full");
    }
    disk_->ChangeFile(&file(), [&] { file().Reserve(length); });
    return disk_->Settle(verdict);
  }

  Status Truncate(uint64_t length) override {
    std::lock_guard<std::mutex> lock(disk_->mutex);
    HYDRA_RETURN_IF_ERROR(CheckWritable());
    const Verdict verdict = disk_->Begin(IoKind::kTruncate, true, path_);
    if (verdict == Verdict::kFail) return Injected("truncate", path_);
    disk_->ChangeFile(&file(), [&] { file().Truncate(length); });
    return disk_->Settle(verdict);
  }

  Result<uint64_t> Size() override {
    std::lock_guard<std::mutex> lock(disk_->mutex);
    HYDRA_RETURN_IF_ERROR(CheckAlive());
    return file().size();
  }

  void DropCache() override {}

 private:
  SimFile& file() const { return *node_->file; }

  Status CheckAlive() const {
    if (!disk_->powered) return NoPower();
    if (epoch_ == disk_->epoch) return Status::Ok();
    return Status::IoError(path_ + ": opened by a process that died since");
  }

  Status CheckWritable() const {
    HYDRA_RETURN_IF_ERROR(CheckAlive());
    return read_only_ ? Status::IoError(path_ + ": opened for reading only") : Status::Ok();
  }

  const std::shared_ptr<Impl> disk_;
  const SimNodePtr node_;
  const std::string path_;
  const bool read_only_;
  const bool direct_;
  const uint64_t epoch_;
};

class SimDisk::HeldLock final : public FileLock {
 public:
  HeldLock(std::shared_ptr<Impl> disk, std::string path)
      : disk_(std::move(disk)), path_(std::move(path)), epoch_(disk_->epoch) {}

  ~HeldLock() override {
    std::lock_guard<std::mutex> lock(disk_->mutex);
    if (epoch_ == disk_->epoch) disk_->locks.erase(path_);
  }

 private:
  const std::shared_ptr<Impl> disk_;
  const std::string path_;
  const uint64_t epoch_;
};

// --- FileSystem ------------------------------------------------------------------------------

SimDisk::SimDisk(const Options& options) : impl_(std::make_shared<Impl>(options)) {}
SimDisk::~SimDisk() = default;

Result<std::unique_ptr<File>> SimDisk::Open(const std::string& path, const OpenOptions& options) {
  std::lock_guard<std::mutex> lock(impl_->mutex);
  if (!impl_->powered) return NoPower();
  HYDRA_ASSIGN_OR_RETURN(Impl::Location at, impl_->Locate(path));
  const bool creates = at.node == nullptr;
  if (creates && !options.create) return Status::NotFound("open " + path + ": no such file");
  if (!creates && options.create && options.exclusive) {
    return Status::AlreadyExists("open " + path + ": exists");
  }
  if (!creates && at.node->directory) return Status::IoError("open " + path + ": is a directory");
  if (options.read_only && options.truncate) {
    return Status::InvalidArgument("open " + path + ": truncating needs write access");
  }
  if (options.direct && !impl_->options.supports_direct) {
    return Status::Unsupported("open " + path + ": no direct I/O on this disk");
  }
  const bool truncates = !creates && options.truncate && at.node->file->size() > 0;
  const Verdict verdict = impl_->Begin(IoKind::kOpen, creates || truncates, path);
  if (verdict == Verdict::kFail) return Injected("open", path);
  if (creates) {
    at.node = impl_->NewNode(/*directory=*/false);
    at.parent->Apply({{{at.name, at.node}}, 0});
  }
  SimFile* const file = at.node->file.get();
  if (truncates) impl_->ChangeFile(file, [&] { file->Truncate(0); });
  HYDRA_RETURN_IF_ERROR(impl_->Settle(verdict));
  return std::unique_ptr<File>(new Handle(impl_, at.node, path, options));
}

Status SimDisk::CreateDirectory(const std::string& path) {
  std::lock_guard<std::mutex> lock(impl_->mutex);
  if (!impl_->powered) return NoPower();
  if (impl_->Find(path) != nullptr) return Status::AlreadyExists("mkdir " + path + ": exists");
  HYDRA_ASSIGN_OR_RETURN(const Impl::Location at, impl_->Locate(path));
  const Verdict verdict = impl_->Begin(IoKind::kOpen, true, path);
  if (verdict == Verdict::kFail) return Injected("mkdir", path);
  at.parent->Apply({{{at.name, impl_->NewNode(/*directory=*/true)}}, 0});
  return impl_->Settle(verdict);
}

Status SimDisk::SyncDirectory(const std::string& path) {
  std::lock_guard<std::mutex> lock(impl_->mutex);
  if (!impl_->powered) return NoPower();
  HYDRA_ASSIGN_OR_RETURN(SimDirectory* const directory, impl_->FindDirectory(path));
  const Verdict verdict = impl_->Begin(IoKind::kSyncDirectory, true, path);
  HYDRA_RETURN_IF_ERROR(impl_->Settle(verdict));
  if (verdict == Verdict::kFail) return Injected("sync directory", path);
  if (!impl_->SyncIsIgnored(path)) SyncDirectoryTree(impl_->root, directory);
  return Status::Ok();
}

Status SimDisk::Rename(const std::string& from, const std::string& to) {
  std::lock_guard<std::mutex> lock(impl_->mutex);
  if (!impl_->powered) return NoPower();
  return impl_->Move(from, to);
}

Status SimDisk::Unlink(const std::string& path) {
  std::lock_guard<std::mutex> lock(impl_->mutex);
  if (!impl_->powered) return NoPower();
  HYDRA_ASSIGN_OR_RETURN(const Impl::Location at, impl_->Locate(path));
  if (at.node == nullptr) return Status::NotFound("unlink " + path + ": no such file");
  if (at.node->directory) return Status::IoError("unlink " + path + ": is a directory");
  const Verdict verdict = impl_->Begin(IoKind::kUnlink, true, path);
  if (verdict == Verdict::kFail) return Injected("unlink", path);
  at.parent->Apply({{{at.name, nullptr}}, 0});
  impl_->LoseName(at.node);
  return impl_->Settle(verdict);
}

Status SimDisk::RemoveDirectory(const std::string& path) {
  std::lock_guard<std::mutex> lock(impl_->mutex);
  if (!impl_->powered) return NoPower();
  HYDRA_ASSIGN_OR_RETURN(const Impl::Location at, impl_->Locate(path));
  HYDRA_ASSIGN_OR_RETURN(const SimDirectory* directory, impl_->FindDirectory(path));
  if (!directory->entries.empty()) {
    return Status::FailedPrecondition("rmdir " + path + ": not empty");
  }
  const Verdict verdict = impl_->Begin(IoKind::kUnlink, true, path);
  if (verdict == Verdict::kFail) return Injected("rmdir", path);
  at.parent->Apply({{{at.name, nullptr}}, 0});
  return impl_->Settle(verdict);
}

Result<std::vector<std::string>> SimDisk::List(const std::string& path) {
  std::lock_guard<std::mutex> lock(impl_->mutex);
  if (!impl_->powered) return NoPower();
  HYDRA_ASSIGN_OR_RETURN(const SimDirectory* directory, impl_->FindDirectory(path));
  std::vector<std::string> names;
  for (const auto& [name, node] : directory->entries) names.push_back(name);
  return names;
}

bool SimDisk::Exists(const std::string& path) {
  std::lock_guard<std::mutex> lock(impl_->mutex);
  return impl_->powered && impl_->Find(path) != nullptr;
}

Result<uint64_t> SimDisk::FreeBytes(const std::string& /*path*/) {
  std::lock_guard<std::mutex> lock(impl_->mutex);
  if (!impl_->powered) return NoPower();
  return impl_->FreePages() * kPageSize;
}

Result<std::unique_ptr<FileLock>> SimDisk::Lock(const std::string& path) {
  OpenOptions options;
  options.create = true;
  HYDRA_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, Open(path, options));
  std::lock_guard<std::mutex> lock(impl_->mutex);
  if (!impl_->powered) return NoPower();
  std::string canonical;
  for (const std::string& part : SplitPath(path)) canonical += "/" + part;
  if (!impl_->locks.insert(canonical).second) return Status::Busy("lock " + path + ": is held");
  return std::unique_ptr<FileLock>(new HeldLock(impl_, canonical));
}

// --- Faults ----------------------------------------------------------------------------------

uint64_t SimDisk::io_count() const {
  std::lock_guard<std::mutex> lock(impl_->mutex);
  return impl_->io_count;
}

void SimDisk::CutPowerAfter(uint64_t n) {
  std::lock_guard<std::mutex> lock(impl_->mutex);
  impl_->cut_at = n == 0 ? 0 : impl_->io_count + n;
}

void SimDisk::PowerLoss() {
  std::lock_guard<std::mutex> lock(impl_->mutex);
  if (impl_->powered) impl_->CutPowerNow();
}

bool SimDisk::powered() const {
  std::lock_guard<std::mutex> lock(impl_->mutex);
  return impl_->powered;
}

void SimDisk::Restart() {
  std::lock_guard<std::mutex> lock(impl_->mutex);
  impl_->powered = true;
}

void SimDisk::Crash() {
  std::lock_guard<std::mutex> lock(impl_->mutex);
  impl_->ForgetProcess();
}

void SimDisk::FailNth(IoKind kind, uint64_t n) {
  HYDRA_CHECK(n > 0);
  std::lock_guard<std::mutex> lock(impl_->mutex);
  impl_->fail_at.insert({kind, impl_->calls[static_cast<unsigned>(kind)] + n});
}

uint64_t SimDisk::failed_calls(const std::string& part) const {
  std::lock_guard<std::mutex> lock(impl_->mutex);
  uint64_t failed = 0;
  for (const auto& [path, calls] : impl_->failed_calls) {
    if (path.find(part) != std::string::npos) failed += calls;
  }
  return failed;
}

void SimDisk::FailAll(IoKind kind, const std::string& part) {
  std::lock_guard<std::mutex> lock(impl_->mutex);
  impl_->fail_all.erase(kind);
  if (!part.empty()) impl_->fail_all[kind] = part;
}

void SimDisk::FlipBit(const std::string& path, uint64_t byte, unsigned bit) {
  std::lock_guard<std::mutex> lock(impl_->mutex);
  const SimNodePtr node = impl_->Find(path);
  HYDRA_CHECK(node != nullptr && node->file);
  impl_->ChangeFile(node->file.get(), [&] { node->file->FlipBit(byte, bit); });
}

void SimDisk::DropNthWrite(uint64_t n) {
  HYDRA_CHECK(n > 0);
  std::lock_guard<std::mutex> lock(impl_->mutex);
  impl_->drop_at.insert(impl_->calls[static_cast<unsigned>(IoKind::kWrite)] + n);
}

void SimDisk::MisdirectNthWrite(uint64_t n, uint64_t offset) {
  HYDRA_CHECK(n > 0);
  std::lock_guard<std::mutex> lock(impl_->mutex);
  impl_->misdirect_at[impl_->calls[static_cast<unsigned>(IoKind::kWrite)] + n] = offset;
}

void SimDisk::SetCapacity(uint64_t bytes) {
  std::lock_guard<std::mutex> lock(impl_->mutex);
  impl_->capacity = bytes;
}

uint64_t SimDisk::used_bytes() const {
  std::lock_guard<std::mutex> lock(impl_->mutex);
  return impl_->used_pages * kPageSize;
}

void SimDisk::IgnoreSyncs(const std::string& part) {
  std::lock_guard<std::mutex> lock(impl_->mutex);
  impl_->ignore_syncs = part;
}

std::unique_ptr<SimDisk> SimDisk::Clone(uint64_t seed) const {
  std::lock_guard<std::mutex> lock(impl_->mutex);
  Options options = impl_->options;
  options.seed = seed;
  options.capacity = impl_->capacity;
  options.clock = nullptr;
  auto copy = std::make_unique<SimDisk>(options);
  copy->impl_->root = CloneTree(impl_->root);
  copy->impl_->next_id = impl_->next_id;
  copy->impl_->next_transaction = impl_->next_transaction;
  copy->impl_->ForgetProcess();
  return copy;
}

uint64_t SimDisk::bytes_written() const {
  std::lock_guard<std::mutex> lock(impl_->mutex);
  return impl_->bytes_written;
}

}  // namespace hydra
