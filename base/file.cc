// SPDX-License-Identifier: Apache-2.0
#include "base/file.h"

namespace hydra {

Status File::ReadExactly(uint64_t offset, std::span<uint8_t> out, const std::string& what) {
  HYDRA_ASSIGN_OR_RETURN(const size_t got, PRead(offset, out));
  if (got == out.size()) return Status::Ok();
  return Status::Corruption(what + ": the file ends " + std::to_string(out.size() - got) +
                            " bytes early (wanted " + std::to_string(out.size()) + " at offset " +
                            std::to_string(offset) + ")");
}

Result<std::string> FileSystem::ReadSmallFile(const std::string& path, size_t limit) {
  OpenOptions options;
  options.read_only = true;
  HYDRA_ASSIGN_OR_RETURN(auto file, Open(path, options));
  HYDRA_ASSIGN_OR_RETURN(const uint64_t size, file->Size());
  if (size > limit) {
    return Status::OutOfRange(path + " has " + std::to_string(size) + " bytes, more than the " +
                              std::to_string(limit) + " expected of it");
  }
  std::string contents(size, '\0');
  HYDRA_ASSIGN_OR_RETURN(
      const size_t got,
      file->PRead(0, {reinterpret_cast<uint8_t*>(contents.data()), contents.size()}));
  contents.resize(got);
  return contents;
}

namespace {

Status WriteAndSync(FileSystem* fs, const std::string& path, const std::string& contents) {
  OpenOptions options;
  options.create = true;
  options.truncate = true;  // an earlier attempt may have left one behind
  HYDRA_ASSIGN_OR_RETURN(auto file, fs->Open(path, options));
  const IoSlice slice{reinterpret_cast<const uint8_t*>(contents.data()), contents.size()};
  HYDRA_RETURN_IF_ERROR(file->PWriteV(0, {&slice, 1}, Durability::kBuffered));
  return file->Sync();
}

}  // namespace

Status FileSystem::ReplaceFile(const std::string& directory, const std::string& name,
                               const std::string& contents) {
  const std::string path = directory + "/" + name;
  const std::string temporary = path + ".tmp";
  Status status = WriteAndSync(this, temporary, contents);
  if (status.ok()) status = Rename(temporary, path);
  if (!status.ok()) {
    // Gives the space back on a full disk; where that fails too, the next attempt truncates it.
    Unlink(temporary).IgnoreError();
    return status.WithContext("replace " + path);
  }
  return SyncDirectory(directory);
}

}  // namespace hydra
