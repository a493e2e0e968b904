// SPDX-License-Identifier: Apache-2.0
//
// A file system that forgets the contents of segments, for figures about the map alone.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"

namespace hydra::bench {

inline constexpr char kSinkNote[] =
    "segment writes are dropped (sparse files), so the disk serves only the map; map on the file "
    "system under test";

// A segment file that keeps its length but not its contents. The millions of blocks that are
// applied need payload to be accepted, and writing that would measure the disk. Apply and
// checkpoints never read it: if they did, a CRC check would fail and so would the figure.
class PayloadSinkFile final : public File {
 public:
  explicit PayloadSinkFile(std::unique_ptr<File> file) : file_(std::move(file)) {}

  Result<size_t> PRead(uint64_t offset, std::span<uint8_t> out) override {
    return file_->PRead(offset, out);
  }
  Status PWriteV(uint64_t offset, std::span<const IoSlice> slices, Durability) override {
    uint64_t end = offset;
    for (const IoSlice& slice : slices) end += slice.length;
    HYDRA_ASSIGN_OR_RETURN(const uint64_t size, file_->Size());
    return end > size ? file_->Truncate(end) : Status::Ok();
  }
  Status Sync() override { return Status::Ok(); }
  Status Allocate(uint64_t) override { return Status::Ok(); }
  Status Truncate(uint64_t length) override { return file_->Truncate(length); }
  Result<uint64_t> Size() override { return file_->Size(); }
  void DropCache() override {}

 private:
  const std::unique_ptr<File> file_;
};

// The real file system, but for the contents of segments. The map is written and synced for real.
class PayloadSinkFileSystem final : public FileSystem {
 public:
  explicit PayloadSinkFileSystem(FileSystem* base) : base_(base) {}

  Result<std::unique_ptr<File>> Open(const std::string& path, const OpenOptions& options) override {
    HYDRA_ASSIGN_OR_RETURN(auto file, base_->Open(path, options));
    if (path.find("/segments/") == std::string::npos) return file;
    return std::unique_ptr<File>(new PayloadSinkFile(std::move(file)));
  }
  Status CreateDirectory(const std::string& path) override { return base_->CreateDirectory(path); }
  Status SyncDirectory(const std::string& path) override { return base_->SyncDirectory(path); }
  Status Rename(const std::string& from, const std::string& to) override {
    return base_->Rename(from, to);
  }
  Status Unlink(const std::string& path) override { return base_->Unlink(path); }
  Status RemoveDirectory(const std::string& path) override { return base_->RemoveDirectory(path); }
  Result<std::vector<std::string>> List(const std::string& path) override {
    return base_->List(path);
  }
  bool Exists(const std::string& path) override { return base_->Exists(path); }
  Result<uint64_t> FreeBytes(const std::string&) override { return uint64_t{1} << 40; }
  Result<std::unique_ptr<FileLock>> Lock(const std::string& path) override {
    return base_->Lock(path);
  }

 private:
  FileSystem* const base_;
};

}  // namespace hydra::bench
