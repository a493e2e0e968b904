// SPDX-License-Identifier: Apache-2.0
//
// store-demo DIR: the storage engine at work, on a real disk, in half a minute. A child process
// writes blocks and reports each one that is durable; it is killed with SIGKILL in mid-write; the
// store is opened again and every reported block is read back. Then one bit of the data is flipped
// behind the engine's back, and found.
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>

#include "base/clock.h"
#include "base/crc32c.h"
#include "base/logging.h"
#include "base/posix_file.h"
#include "base/rng.h"
#include "blockstore/engine.h"

namespace hydra {
namespace {

constexpr GroupId kGroup = 1;
constexpr Ballot kBallot{1, 1};
constexpr uint64_t kBlocks = 20'000;
constexpr uint64_t kDepth = 32;
constexpr uint64_t kSegmentBytes = 16u << 20;
constexpr int kRounds = 3;
constexpr uint64_t kWritesPerRound = 15'000;

struct Written {
  Lba lba;
  uint64_t value;
};

Buffer MakeBlock(uint64_t value) {
  Buffer block = Buffer::Allocate(kPageSize);
  Rng rng(value);
  for (size_t i = 0; i < kPageSize; i += sizeof(uint64_t)) {
    const uint64_t word = rng.Next();
    std::memcpy(block.data() + i, &word, sizeof(word));
  }
  return block;
}

Result<std::unique_ptr<Engine>> OpenStore(FileSystem* fs, const std::string& dir) {
  EngineOptions options;
  options.fs = fs;
  options.dir = dir;
  options.capacity_bytes = 24 * kSegmentBytes;
  options.ballast_bytes = 0;
  HYDRA_ASSIGN_OR_RETURN(auto engine, Engine::Open(options));
  if (!engine->Info(kGroup).ok()) {
    HYDRA_RETURN_IF_ERROR(engine->CreateGroup(kGroup, 1, 0));
    HYDRA_RETURN_IF_ERROR(engine->Drain(nullptr));
  }
  // There is no consensus here yet: whatever this replica accepted counts as chosen.
  HYDRA_ASSIGN_OR_RETURN(const GroupInfo info, engine->Info(kGroup));
  for (const LogEntryInfo& entry : engine->LogEntries(kGroup, info.applied + 1, info.last)) {
    HYDRA_RETURN_IF_ERROR(engine->Apply(kGroup, entry.instance, entry.ballot));
  }
  return engine;
}

// Writes at queue depth kDepth for ever, and tells `report` about each block once it is durable.
Status WriteForEver(const std::string& dir, uint64_t seed, int report) {
  PosixFileSystem fs;
  HYDRA_ASSIGN_OR_RETURN(auto engine, OpenStore(&fs, dir));
  HYDRA_ASSIGN_OR_RETURN(const GroupInfo info, engine->Info(kGroup));
  const RealClock clock;
  Rng rng(seed);
  Instance next = info.applied + 1;
  std::map<uint64_t, Written> queued;
  std::vector<Completion> done;
  while (true) {
    while (queued.size() < kDepth) {
      const Written write{rng.Below(kBlocks), rng.Next()};
      const Buffer block = MakeBlock(write.value);
      Operation op;
      op.kind = OpKind::kWrite;
      op.lba = write.lba;
      op.count = 1;
      op.crcs = {Crc32c(block.span())};
      const Status accepted =
          engine->Accept(kGroup, next, kBallot, Entry{{op}}, {{block, 0, kPageSize}}, next);
      if (accepted.code() == Code::kBusy) break;
      HYDRA_RETURN_IF_ERROR(accepted);
      queued[next++] = write;
    }
    if (Batch* batch = engine->NextBatch(clock.Now())) {
      engine->BatchDone(batch, batch->Write(), clock.Now(), &done);
    }
    for (const Completion& completion : done) {
      if (!queued.contains(completion.token)) continue;  // the group's creation
      Status applied = engine->Apply(kGroup, completion.token, kBallot);
      if (applied.code() == Code::kBusy) {
        HYDRA_RETURN_IF_ERROR(engine->Checkpoint());
        applied = engine->Apply(kGroup, completion.token, kBallot);
      }
      HYDRA_RETURN_IF_ERROR(applied);
      const Written& write = queued.at(completion.token);
      if (::write(report, &write, sizeof(write)) != sizeof(write)) return Status::Ok();
      queued.erase(completion.token);
    }
    done.clear();
    if (auto job = engine->NextJob()) {
      job->Run();
      engine->FinishJob(std::move(job));
    }
    HYDRA_RETURN_IF_ERROR(engine->poisoned());
  }
}

// Lets a child write until `count` blocks were acknowledged, then kills it. Adds what it reported.
Status WriteAndKill(const std::string& dir, uint64_t seed, uint64_t count,
                    std::map<Lba, uint64_t>* acknowledged) {
  int pipe_ends[2];
  if (pipe(pipe_ends) != 0) return Status::IoError("pipe");
  const pid_t child = fork();
  if (child < 0) return Status::IoError("fork");
  if (child == 0) {
    close(pipe_ends[0]);
    const Status status = WriteForEver(dir, seed, pipe_ends[1]);
    std::fprintf(stderr, "writer: %s\n", status.ToString().c_str());
    _exit(1);
  }
  close(pipe_ends[1]);
  Written write;
  uint64_t seen = 0;
  while (read(pipe_ends[0], &write, sizeof(write)) == sizeof(write)) {
    (*acknowledged)[write.lba] = write.value;
    if (++seen == count) kill(child, SIGKILL);
  }
  close(pipe_ends[0]);
  int how = 0;
  waitpid(child, &how, 0);
  if (seen < count) return Status::Unavailable("the writer ended by itself");
  return Status::Ok();
}

// Blocks that are not what was acknowledged, or a later write that was not yet reported.
Status VerifyAll(Engine* engine, const std::map<Lba, uint64_t>& acknowledged) {
  for (const auto& [lba, value] : acknowledged) {
    HYDRA_ASSIGN_OR_RETURN(const ReadResult read, engine->Read(kGroup, lba, 1));
    const Buffer expected = MakeBlock(value);
    if (std::memcmp(read.data.data(), expected.data(), kPageSize) != 0) {
      return Status::Corruption("block " + std::to_string(lba) + " is not what was written");
    }
  }
  return Status::Ok();
}

// What the killed writer had made durable but not yet reported counts as well.
Status TakeUnreported(Engine* engine, std::map<Lba, uint64_t>* acknowledged) {
  for (auto it = acknowledged->begin(); it != acknowledged->end();) {
    HYDRA_ASSIGN_OR_RETURN(const ReadResult read, engine->Read(kGroup, it->first, 1));
    const Buffer expected = MakeBlock(it->second);
    const bool same = std::memcmp(read.data.data(), expected.data(), kPageSize) == 0;
    // Only the last writes in flight can have overwritten a reported block.
    HYDRA_ASSIGN_OR_RETURN(const GroupInfo info, engine->Info(kGroup));
    const bool newest = VersionInstance(read.blocks[0].version) + 2 * kDepth > info.applied;
    if (!same && !newest) {
      return Status::Corruption("block " + std::to_string(it->first) + " lost its last write");
    }
    it = same ? std::next(it) : acknowledged->erase(it);
  }
  return Status::Ok();
}

Status FlipABit(const std::string& dir, std::map<Lba, uint64_t>* acknowledged) {
  // The first payload page of the newest segment with data belongs to some block.
  PosixFileSystem fs;
  HYDRA_ASSIGN_OR_RETURN(auto names, fs.List(dir + "/segments"));
  std::string path;
  for (const std::string& name : names) {
    if (name.ends_with(".seg")) path = dir + "/segments/" + name;
  }
  HYDRA_ASSIGN_OR_RETURN(auto file, fs.Open(path, {}));
  uint8_t byte = 0;
  const uint64_t offset = 2 * kPageSize + 1234;
  HYDRA_RETURN_IF_ERROR(file->ReadExactly(offset, {&byte, 1}, path));
  byte ^= 0x10;
  const IoSlice slice{&byte, 1};
  HYDRA_RETURN_IF_ERROR(file->PWriteV(offset, {&slice, 1}, Durability::kDsync));
  std::printf("flipped one bit at byte %lu of %s\n", static_cast<unsigned long>(offset),
              path.c_str());
  HYDRA_ASSIGN_OR_RETURN(auto engine, OpenStore(&fs, dir));
  std::vector<Damage> found;
  while (true) {
    HYDRA_ASSIGN_OR_RETURN(const bool done, engine->Scrub(64u << 20, &found));
    if (done) break;
  }
  size_t wrong = 0;
  size_t refused = 0;
  for (const auto& [lba, value] : *acknowledged) {
    auto read = engine->Read(kGroup, lba, 1);
    if (!read.ok()) {
      ++refused;
    } else if (std::memcmp(read->data.data(), MakeBlock(value).data(), kPageSize) != 0) {
      ++wrong;
    }
  }
  std::printf("scrub found %zu rotten block(s); reads: %zu refused, %zu wrong\n", found.size(),
              refused, wrong);
  if (wrong != 0) return Status::Corruption("rot went unnoticed");
  byte ^= 0x10;
  HYDRA_RETURN_IF_ERROR(file->PWriteV(offset, {&slice, 1}, Durability::kDsync));
  return engine->Close();
}

Status Demo(const std::string& dir) {
  PosixFileSystem fs;
  CreateOptions create;
  create.cluster = Uuid::Random();
  create.segment_bytes = kSegmentBytes;
  HYDRA_RETURN_IF_ERROR(Engine::Create(&fs, dir, create));
  std::map<Lba, uint64_t> acknowledged;
  for (int round = 1; round <= kRounds; ++round) {
    HYDRA_RETURN_IF_ERROR(
        WriteAndKill(dir, static_cast<uint64_t>(round), kWritesPerRound, &acknowledged));
    HYDRA_ASSIGN_OR_RETURN(auto engine, OpenStore(&fs, dir));
    HYDRA_RETURN_IF_ERROR(TakeUnreported(engine.get(), &acknowledged));
    HYDRA_RETURN_IF_ERROR(VerifyAll(engine.get(), acknowledged));
    std::printf(
        "round %d: killed -9 after %lu acknowledged writes; reopened: %s; %zu blocks "
        "verified\n",
        round, static_cast<unsigned long>(kWritesPerRound), engine->recovery().ToString().c_str(),
        acknowledged.size());
    HYDRA_RETURN_IF_ERROR(engine->Close());
  }
  return FlipABit(dir, &acknowledged);
}

}  // namespace
}  // namespace hydra

int main(int argc, char** argv) {
  const std::string dir = argc == 2 ? argv[1] : "";
  if (dir.empty() || dir.starts_with("-")) {
    const bool help = dir == "-h" || dir == "--help";
    std::fprintf(help ? stdout : stderr,
                 "usage: store-demo DIR\n"
                 "Shows Hydra's storage engine surviving kill -9 and finding a flipped bit, in a "
                 "directory that\nmust not exist or be empty.\n");
    return help ? 0 : 2;
  }
  hydra::SetLogLevel(hydra::LogLevel::kWarn);
  const hydra::Status status = hydra::Demo(dir);
  if (!status.ok()) {
    std::fprintf(stderr, "store-demo: %s\n", status.ToString().c_str());
    return 1;
  }
  std::printf("nothing acknowledged was lost. Look inside with:\n  store-tool dump %s\n",
              dir.c_str());
  return 0;
}
