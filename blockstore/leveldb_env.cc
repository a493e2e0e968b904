// SPDX-License-Identifier: Apache-2.0
#include "blockstore/leveldb_env.h"

#include <algorithm>
#include <array>
#include <cstdarg>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include <leveldb/slice.h>

#include "base/background.h"
#include "base/buffer.h"
#include "base/check.h"
#include "base/coding.h"
#include "base/crc32c.h"
#include "base/logging.h"
#include "base/probe.h"

namespace hydra {

namespace {

// Enough to make a table of many small appends few large writes.
constexpr size_t kWriteBuffer = 64u << 10;
// A table is synced when it is whole. The device is given it piece by piece before that: whoever
// flushes a batch at that moment would wait for all of it.
constexpr uint64_t kStartWritingBytes = 256u << 10;

std::string ParentOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

std::string_view NameOf(std::string_view path) {
  const size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

// The number of a log by its name: 7 of "000007.log".
std::optional<uint64_t> LogNumber(std::string_view name) {
  constexpr std::string_view kSuffix = ".log";
  if (name.size() <= kSuffix.size() || !name.ends_with(kSuffix)) return std::nullopt;
  name.remove_suffix(kSuffix.size());
  uint64_t number = 0;
  for (const char c : name) {
    if (c < '0' || c > '9') return std::nullopt;
    number = number * 10 + static_cast<uint64_t>(c - '0');
  }
  return number;
}

bool IsManifest(std::string_view name) { return name.starts_with("MANIFEST-"); }

// --- Tails of logs and MANIFESTs -------------------------------------------------------------
//
// Both are sequences of 32 KiB blocks of fragments: masked CRC (u32) of what follows the length,
// length (u16), type (u8), payload. A record is one kFull fragment, or kFirst, any number of
// kMiddle, and kLast. No fragment crosses a block; less than a header's room at a block's end is
// zeroes.

constexpr size_t kBlockSize = 32u << 10;
constexpr size_t kHeaderSize = 7;
enum FragmentType : uint8_t { kInvalid = 0, kFull = 1, kFirst = 2, kMiddle = 3, kLast = 4 };

using Bytes = std::span<const uint8_t>;

// The fragment that starts the block's rest; its payload if it is valid.
FragmentType ReadFragment(Bytes rest, Bytes* payload) {
  if (rest.size() < kHeaderSize) return kInvalid;
  const size_t length = DecodeFixed16(rest.data() + 4);
  const uint8_t type = rest[6];
  if (type < kFull || type > kLast || length > rest.size() - kHeaderSize) return kInvalid;
  const uint32_t crc = Crc32c(rest.subspan(6, 1 + length));
  if (DecodeFixed32(rest.data()) != ((crc >> 15 | crc << 17) + 0xa282ead8u)) return kInvalid;
  *payload = rest.subspan(kHeaderSize, length);
  return static_cast<FragmentType>(type);
}

struct Tail {
  uint64_t end = 0;       // of the last whole record
  uint64_t records = 0;   // whole ones before `end`
  bool torn = false;      // something that is no record follows
  bool followed = false;  // and behind it, another record starts
};

// True if any record starts in the file at `offset` or later. Looks at every byte, because a bad
// header hides where the next one is.
Result<bool> RecordStartsBehind(File* file, uint64_t offset) {
  std::array<uint8_t, kBlockSize> block;
  for (uint64_t start = offset / kBlockSize * kBlockSize;; start += kBlockSize) {
    HYDRA_ASSIGN_OR_RETURN(const size_t length, file->PRead(start, block));
    for (size_t at = offset > start ? offset - start : 0; at < length; ++at) {
      Bytes payload;
      const FragmentType type = ReadFragment(Bytes(block).first(length).subspan(at), &payload);
      if (type == kFull || type == kFirst) return true;
    }
    if (length < block.size()) return false;
  }
}

// Walks the file from the start, calling visit() with each whole record.
Result<Tail> FindTail(File* file, const std::function<void(const std::string&)>& visit) {
  Tail tail;
  std::array<uint8_t, kBlockSize> block;
  std::string record;
  bool inside = false;  // of a record in several fragments
  for (uint64_t start = 0;; start += kBlockSize) {
    HYDRA_ASSIGN_OR_RETURN(const size_t length, file->PRead(start, block));
    size_t at = 0;
    while (length - at >= kHeaderSize) {
      Bytes payload;
      const FragmentType type = ReadFragment(Bytes(block).first(length).subspan(at), &payload);
      if (type == kInvalid || inside != (type == kMiddle || type == kLast)) {
        tail.torn = true;
        // A start inside a record is itself the proof; what is invalid may hide it.
        const uint64_t from = start + at + (type == kInvalid ? 1 : 0);
        HYDRA_ASSIGN_OR_RETURN(tail.followed, RecordStartsBehind(file, from));
        return tail;
      }
      if (!inside) record.clear();
      PutBytes(&record, payload);
      at += kHeaderSize + payload.size();
      inside = type == kFirst || type == kMiddle;
      if (inside) continue;
      visit(record);
      ++tail.records;
      tail.end = start + at;
    }
    if (length < block.size()) {
      tail.torn = tail.end != start + at || at != length;
      return tail;
    }
  }
}

// True if a log of the same database with a higher number has a whole record.
Result<bool> LaterLogHasRecords(FileSystem* fs, const std::string& path, uint64_t number) {
  HYDRA_ASSIGN_OR_RETURN(const auto names, fs->List(ParentOf(path)));
  for (const std::string& name : names) {
    if (LogNumber(name).value_or(0) <= number) continue;
    HYDRA_ASSIGN_OR_RETURN(const auto file,
                           fs->Open(ParentOf(path) + "/" + name, {.read_only = true}));
    HYDRA_ASSIGN_OR_RETURN(const Tail tail, FindTail(file.get(), [](const std::string&) {}));
    if (tail.records > 0) return true;
  }
  return false;
}

// The log that a MANIFEST's record says is the oldest needed. The field comes first, or after the
// name of the comparator; a record without it is the snapshot at the MANIFEST's start.
void ReadLogNumber(const std::string& edit, uint64_t* number) {
  constexpr uint32_t kComparator = 1;
  constexpr uint32_t kLogNumber = 2;
  Decoder decoder(AsBytes(edit));
  uint32_t tag = 0;
  uint32_t length = 0;
  if (!decoder.Varint32(&tag)) return;
  if (tag == kComparator) {
    if (!decoder.Varint32(&length) || !decoder.Skip(length) || !decoder.Varint32(&tag)) return;
  }
  if (tag == kLogNumber) decoder.Varint64(number);
}

// Where a log or MANIFEST ends for LevelDB: at its end, or before a torn last record. kCorruption
// if what is bad there was once whole; see the header for what proves that.
Result<uint64_t> JudgeTail(FileSystem* fs, File* file, const std::string& path) {
  uint64_t needed_log = 0;
  HYDRA_ASSIGN_OR_RETURN(const Tail tail, FindTail(file, [&](const std::string& record) {
                           ReadLogNumber(record, &needed_log);
                         }));
  if (!tail.torn) return tail.end;

  const char* proof = nullptr;
  const std::optional<uint64_t> number = LogNumber(NameOf(path));
  if (tail.followed) {
    proof = "valid records follow";
  } else if (number) {
    HYDRA_ASSIGN_OR_RETURN(const bool later, LaterLogHasRecords(fs, path, *number));
    if (later) proof = "a later log has records";
  } else if (needed_log != 0) {
    const std::string log = fmt::format("{}/{:06}.log", ParentOf(path), needed_log);
    if (!fs->Exists(log)) proof = "the log it needs is gone";
  }
  if (proof != nullptr) {
    return Status::Corruption(
        fmt::format("{}: the record at byte {} is rotten: {}", path, tail.end, proof));
  }
  HYDRA_LOG_WARN("{}: cut a torn last record at byte {}", path, tail.end);
  return tail.end;
}

// --- Small files of the Env ------------------------------------------------------------------

class RandomAccess final : public leveldb::RandomAccessFile {
 public:
  RandomAccess(std::unique_ptr<File> file, std::string path)
      : file_(std::move(file)), path_(std::move(path)) {}

  leveldb::Status Read(uint64_t offset, size_t n, leveldb::Slice* result,
                       char* scratch) const override {
    const Result<size_t> got = file_->PRead(offset, {reinterpret_cast<uint8_t*>(scratch), n});
    *result = leveldb::Slice(scratch, got.ok() ? *got : 0);
    return LevelDbEnv::ToLevelDb(got.status(), path_);
  }

 private:
  const std::unique_ptr<File> file_;
  const std::string path_;
};

class HeldLock final : public leveldb::FileLock {
 public:
  explicit HeldLock(std::unique_ptr<hydra::FileLock> lock) : lock_(std::move(lock)) {}

 private:
  const std::unique_ptr<hydra::FileLock> lock_;
};

// LevelDB's info log tells of each compaction: of use to whoever debugs, and to nobody else.
class DebugLogger final : public leveldb::Logger {
 public:
  void Logv(const char* format, std::va_list arguments) override {
    if (!LogEnabled(LogLevel::kDebug)) return;
    std::array<char, 512> line;  // longer ones are cut
    const int length = std::vsnprintf(line.data(), line.size(), format, arguments);
    if (length < 0) return;
    std::string_view text(line.data(), std::min<size_t>(length, line.size() - 1));
    while (text.ends_with('\n')) text.remove_suffix(1);
    HYDRA_LOG_DEBUG("leveldb: {}", text);
  }
};

}  // namespace

// Recovery's reads. A failure stops the Env: LevelDB takes an unreadable log for one that ends.
class LevelDbEnv::Readable final : public leveldb::SequentialFile {
 public:
  Readable(LevelDbEnv* env, std::unique_ptr<File> file, std::string path, uint64_t end)
      : env_(env), file_(std::move(file)), path_(std::move(path)), end_(end) {}

  leveldb::Status Read(size_t n, leveldb::Slice* result, char* scratch) override {
    n = std::min<uint64_t>(n, end_ - offset_);
    const Result<size_t> got = file_->PRead(offset_, {reinterpret_cast<uint8_t*>(scratch), n});
    *result = leveldb::Slice(scratch, got.ok() ? *got : 0);
    if (!got.ok()) return ToLevelDb(env_->Keep(got.status()), path_);
    offset_ += *got;
    return leveldb::Status::OK();
  }

  leveldb::Status Skip(uint64_t n) override {
    offset_ += std::min(n, end_ - offset_);
    return leveldb::Status::OK();
  }

 private:
  LevelDbEnv* const env_;
  const std::unique_ptr<File> file_;
  const std::string path_;
  const uint64_t end_;
  uint64_t offset_ = 0;
};

class LevelDbEnv::Writable final : public leveldb::WritableFile {
 public:
  Writable(LevelDbEnv* env, std::unique_ptr<File> file, std::string path, uint64_t offset)
      : env_(env),
        file_(std::move(file)),
        path_(std::move(path)),
        offset_(offset),
        started_(offset / kPageSize * kPageSize) {
    buffer_.reserve(kWriteBuffer);
  }

  // LevelDB does not close a log before it deletes it.
  ~Writable() override {
    if (file_ != nullptr) Write({}).IgnoreError();  // kept by the Env
  }

  leveldb::Status Append(const leveldb::Slice& data) override {
    if (buffer_.size() + data.size() > kWriteBuffer) {
      return Translated(Write({reinterpret_cast<const uint8_t*>(data.data()), data.size()}));
    }
    if (Status stopped = env_->last_error(); !stopped.ok()) return Translated(stopped);
    buffer_.append(data.data(), data.size());
    return leveldb::Status::OK();
  }

  leveldb::Status Flush() override { return Translated(Write({})); }

  leveldb::Status Sync() override {
    Status status = Write({});
    if (status.ok()) status = env_->Change([this] { return file_->Sync(); });
    if (status.ok() && !named_) {
      status = env_->Change([this] { return env_->fs_->SyncDirectory(ParentOf(path_)); });
      named_ = status.ok();
    }
    return Translated(status);
  }

  leveldb::Status Close() override {
    const Status status = Write({});
    file_.reset();
    return Translated(status);
  }

 private:
  // Writes the buffer and `more` behind it.
  Status Write(Bytes more) {
    if (file_ == nullptr) return Status::FailedPrecondition("the file is closed");
    const size_t length = buffer_.size() + more.size();
    Status status = env_->ChangeWithRoom([&]() -> Status {
      if (length == 0) return Status::Ok();
      const IoSlice slices[] = {{AsBytes(buffer_).data(), buffer_.size()},
                                {more.data(), more.size()}};
      const size_t first = buffer_.empty() ? 1 : 0;
      const size_t count = more.empty() ? 1 : 2 - first;
      return file_->PWriteV(offset_, std::span(slices).subspan(first, count),
                            Durability::kBuffered);
    });
    buffer_.clear();
    if (!status.ok()) return status;
    offset_ += length;
    env_->bytes_written_.fetch_add(length, std::memory_order_relaxed);
    if (offset_ - started_ >= kStartWritingBytes) {
      const uint64_t end = offset_ / kPageSize * kPageSize;  // none is written twice
      file_->StartWriting(started_, end - started_);
      started_ = end;
    }
    return status;
  }

  leveldb::Status Translated(const Status& status) const { return ToLevelDb(status, path_); }

  LevelDbEnv* const env_;
  std::unique_ptr<File> file_;
  const std::string path_;
  std::string buffer_;
  uint64_t offset_;     // where the buffer goes
  uint64_t started_;    // a page's begin; the device was given what is before it
  bool named_ = false;  // the directory was synced since the file was opened
};

// --- The Env ---------------------------------------------------------------------------------

LevelDbEnv::LevelDbEnv(FileSystem* fs, Compactions compactions)
    : fs_(fs), compactions_(compactions) {
  HYDRA_CHECK(fs != nullptr);
}

LevelDbEnv::~LevelDbEnv() { HYDRA_CHECK(queue_.empty()); }

Status LevelDbEnv::last_error() const {
  std::lock_guard lock(mutex_);
  return last_error_;
}

Status LevelDbEnv::Keep(Status status) {
  switch (status.code()) {
    case Code::kOk:
    case Code::kNotFound:
    case Code::kAlreadyExists:
    case Code::kBusy: return status;
    default: break;
  }
  std::lock_guard lock(mutex_);
  if (last_error_.ok()) last_error_ = status;
  return status;
}

template <typename Function>
Status LevelDbEnv::Change(Function change) {
  Status stopped = last_error();
  return stopped.ok() ? Keep(change()) : stopped;
}

template <typename Function>
Status LevelDbEnv::ChangeWithRoom(Function change) {
  return Change([&]() -> Status {
    Status status = change();
    if (status.code() != Code::kNoSpace || !make_room_) return status;
    make_room_();  // or another thread has just done so
    HYDRA_PROBE("map: a write that found no space is repeated");
    return change();
  });
}

leveldb::Status LevelDbEnv::ToLevelDb(const Status& status, const std::string& path) {
  const leveldb::Slice message(status.message().data(), status.message().size());
  switch (status.code()) {
    case Code::kOk: return leveldb::Status::OK();
    case Code::kNotFound: return leveldb::Status::NotFound(path, message);
    case Code::kCorruption: return leveldb::Status::Corruption(path, message);
    case Code::kUnsupported: return leveldb::Status::NotSupported(path, message);
    case Code::kInvalidArgument: return leveldb::Status::InvalidArgument(path, message);
    default: return leveldb::Status::IOError(path, message);
  }
}

Status LevelDbEnv::FromLevelDb(const leveldb::Status& status) const {
  if (status.ok()) return Status::Ok();
  if (status.IsNotFound()) return Status::NotFound(status.ToString());
  if (status.IsCorruption()) return Status::Corruption(status.ToString());
  if (status.IsInvalidArgument()) return Status::InvalidArgument(status.ToString());
  if (status.IsNotSupportedError()) return Status::Unsupported(status.ToString());
  if (last_error().code() == Code::kNoSpace) return Status::NoSpace(status.ToString());
  return Status::IoError(status.ToString());
}

leveldb::Status LevelDbEnv::NewSequentialFile(const std::string& path,
                                              leveldb::SequentialFile** result) {
  *result = nullptr;
  Result<std::unique_ptr<File>> file = fs_->Open(path, {.read_only = true});
  if (!file.ok()) return ToLevelDb(Keep(file.status()), path);
  const bool has_tail = LogNumber(NameOf(path)) || IsManifest(NameOf(path));
  const Result<uint64_t> end = has_tail ? JudgeTail(fs_, file->get(), path) : (*file)->Size();
  if (!end.ok()) return ToLevelDb(Keep(end.status()), path);
  *result = new Readable(this, std::move(*file), path, *end);
  return leveldb::Status::OK();
}

leveldb::Status LevelDbEnv::NewRandomAccessFile(const std::string& path,
                                                leveldb::RandomAccessFile** result) {
  *result = nullptr;
  // A table is opened by who may wait: what cannot be read of it now would be missing for ever.
  if (NoWaitReads::on()) return leveldb::Status::IOError(path, "not now");
  Result<std::unique_ptr<File>> file = fs_->Open(path, {.read_only = true});
  if (file.ok()) {
    *result = new RandomAccess(std::move(*file), path);
    return leveldb::Status::OK();
  }
  // DB::Get would pass NotFound on, and its caller take the key for absent.
  if (file.status().code() == Code::kNotFound) {
    return leveldb::Status::Corruption(path, "the table is missing");
  }
  return ToLevelDb(file.status(), path);
}

leveldb::Status LevelDbEnv::OpenForWriting(const std::string& path, bool truncate,
                                           leveldb::WritableFile** result) {
  *result = nullptr;
  std::unique_ptr<File> file;
  uint64_t offset = 0;
  const Status status = ChangeWithRoom([&]() -> Status {
    HYDRA_ASSIGN_OR_RETURN(file, fs_->Open(path, {.create = true, .truncate = truncate}));
    if (truncate) return Status::Ok();
    HYDRA_ASSIGN_OR_RETURN(offset, file->Size());
    return Status::Ok();
  });
  if (status.ok()) *result = new Writable(this, std::move(file), path, offset);
  return ToLevelDb(status, path);
}

leveldb::Status LevelDbEnv::NewWritableFile(const std::string& path,
                                            leveldb::WritableFile** result) {
  return OpenForWriting(path, true, result);
}

leveldb::Status LevelDbEnv::NewAppendableFile(const std::string& path,
                                              leveldb::WritableFile** result) {
  *result = nullptr;
  // LevelDB then starts a new one. Behind a torn record, what is appended would be lost: reading
  // skips the rest of the block.
  if (LogNumber(NameOf(path)) || IsManifest(NameOf(path))) {
    return leveldb::Status::NotSupported(path, "logs are not appended to");
  }
  return OpenForWriting(path, false, result);
}

bool LevelDbEnv::FileExists(const std::string& path) { return fs_->Exists(path); }

leveldb::Status LevelDbEnv::GetChildren(const std::string& dir, std::vector<std::string>* result) {
  result->clear();
  Result<std::vector<std::string>> names = fs_->List(dir);
  if (names.ok()) *result = std::move(*names);
  return ToLevelDb(names.status(), dir);
}

// Not synced: a name that comes back is one that LevelDB ignores and removes again. A failure is
// harmless for the same reason.
leveldb::Status LevelDbEnv::RemoveFile(const std::string& path) {
  const Status stopped = last_error();
  return ToLevelDb(stopped.ok() ? fs_->Unlink(path) : stopped, path);
}

// The parent is synced even if the directory is there: whoever made it may have died before.
leveldb::Status LevelDbEnv::CreateDir(const std::string& dir) {
  const Status status = Change([&]() -> Status {
    Status made = fs_->CreateDirectory(dir);
    if (!made.ok() && made.code() != Code::kAlreadyExists) return made;
    return fs_->SyncDirectory(ParentOf(dir));
  });
  return ToLevelDb(status, dir);
}

leveldb::Status LevelDbEnv::RemoveDir(const std::string& dir) {
  const Status stopped = last_error();
  return ToLevelDb(stopped.ok() ? fs_->RemoveDirectory(dir) : stopped, dir);
}

leveldb::Status LevelDbEnv::GetFileSize(const std::string& path, uint64_t* size) {
  *size = 0;
  const Result<std::unique_ptr<File>> file = fs_->Open(path, {.read_only = true});
  if (!file.ok()) return ToLevelDb(file.status(), path);
  const Result<uint64_t> bytes = (*file)->Size();
  if (bytes.ok()) *size = *bytes;
  return ToLevelDb(bytes.status(), path);
}

leveldb::Status LevelDbEnv::RenameFile(const std::string& from, const std::string& to) {
  const Status status = Change([&]() -> Status {
    HYDRA_RETURN_IF_ERROR(fs_->Rename(from, to));
    HYDRA_RETURN_IF_ERROR(fs_->SyncDirectory(ParentOf(to)));
    if (ParentOf(from) == ParentOf(to)) return Status::Ok();
    return fs_->SyncDirectory(ParentOf(from));
  });
  return ToLevelDb(status, from);
}

leveldb::Status LevelDbEnv::LockFile(const std::string& path, leveldb::FileLock** lock) {
  *lock = nullptr;
  Result<std::unique_ptr<FileLock>> held = fs_->Lock(path);
  if (held.ok()) *lock = new HeldLock(std::move(*held));
  return ToLevelDb(held.status(), path);
}

leveldb::Status LevelDbEnv::UnlockFile(leveldb::FileLock* lock) {
  delete lock;
  return leveldb::Status::OK();
}

// leveldb::Env's contract asks for a thread; LevelDB has one, which lives as long as the process.
void LevelDbEnv::Schedule(void (*function)(void*), void* argument) {
  if (compactions_ == Compactions::kThread) {
    static std::once_flag once;  // it is one thread, whatever the number of stores
    std::call_once(
        once, [] { leveldb::Env::Default()->Schedule([](void*) { LowerPriority(); }, nullptr); });
    leveldb::Env::Default()->Schedule(function, argument);
    return;
  }
  std::lock_guard lock(mutex_);
  queue_.emplace_back(function, argument);
}

void LevelDbEnv::RunQueued() {
  std::unique_lock lock(mutex_);
  while (!queue_.empty()) {
    const auto [function, argument] = queue_.front();
    queue_.pop_front();
    lock.unlock();
    function(argument);
    lock.lock();
  }
}

// LevelDB itself never calls this.
void LevelDbEnv::StartThread(void (*function)(void*), void* argument) {
  if (compactions_ == Compactions::kThread) {
    leveldb::Env::Default()->StartThread(function, argument);
  } else {
    Schedule(function, argument);
  }
}

leveldb::Status LevelDbEnv::GetTestDirectory(std::string* path) {
  path->clear();
  return leveldb::Status::NotSupported("GetTestDirectory");
}

leveldb::Status LevelDbEnv::NewLogger(const std::string&, leveldb::Logger** result) {
  *result = new DebugLogger();
  return leveldb::Status::OK();
}

uint64_t LevelDbEnv::NowMicros() {
  if (compactions_ == Compactions::kThread) return leveldb::Env::Default()->NowMicros();
  return ticks_.fetch_add(1, std::memory_order_relaxed) + 1;
}

// Only a writer that wants compaction to catch up sleeps; inline, it has.
void LevelDbEnv::SleepForMicroseconds(int micros) {
  if (compactions_ == Compactions::kThread) leveldb::Env::Default()->SleepForMicroseconds(micros);
}

}  // namespace hydra
