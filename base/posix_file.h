// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/file.h"

namespace hydra {

// The machine's own files. Every failed call becomes a Status that names the call, the path and
// the reason. No state of its own: any number may exist, and any thread may call.
//
// Where a file system refuses O_DIRECT (tmpfs did for long) the file is opened without it and one
// warning per file system says so: everything works and is as durable, but each payload byte is
// copied through the page cache.
class PosixFileSystem final : public FileSystem {
 public:
  Result<std::unique_ptr<File>> Open(const std::string& path, const OpenOptions& options) override;
  Status CreateDirectory(const std::string& path) override;
  Status SyncDirectory(const std::string& path) override;
  Status Rename(const std::string& from, const std::string& to) override;
  Status Unlink(const std::string& path) override;
  Status RemoveDirectory(const std::string& path) override;
  Result<std::vector<std::string>> List(const std::string& path) override;
  bool Exists(const std::string& path) override;
  Result<uint64_t> FreeBytes(const std::string& path) override;
  Result<std::unique_ptr<FileLock>> Lock(const std::string& path) override;
};

}  // namespace hydra
