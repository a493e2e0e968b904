// SPDX-License-Identifier: Apache-2.0
#include "base/posix_file.h"

#include <limits.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/buffer.h"
#include "base/logging.h"
#include "tests/base/sim_disk_fixture.h"

namespace hydra {
namespace {

OpenOptions Create() {
  OpenOptions options;
  options.create = true;
  return options;
}

IoSlice Slice(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

std::string ReadText(File* file, uint64_t offset, size_t length) {
  std::string text(length, '\0');
  auto got = file->PRead(offset, {reinterpret_cast<uint8_t*>(text.data()), length});
  if (!got.ok()) return got.status().ToString();
  text.resize(*got);
  return text;
}

class PosixFiles : public ::testing::Test {
 protected:
  explicit PosixFiles(const std::string& parent = ::testing::TempDir()) {
    std::string pattern = parent + "/hydra-posix-XXXXXX";
    const char* made = ::mkdtemp(pattern.data());
    EXPECT_NE(made, nullptr);
    dir_ = pattern;
  }
  ~PosixFiles() override { std::filesystem::remove_all(dir_); }

  std::string Path(const std::string& name) const { return dir_ + "/" + name; }
  std::unique_ptr<File> Make(const std::string& name, OpenOptions options = Create()) {
    return fs_.Open(Path(name), options).value();
  }

  PosixFileSystem fs_;
  std::string dir_;
};

TEST_F(PosixFiles, ReadWhatWasWrittenAndStopAtTheEnd) {
  auto file = Make("f");
  const std::vector<IoSlice> slices{Slice("abc"), Slice(""), Slice("defg")};
  ASSERT_TRUE(file->PWriteV(2, slices, Durability::kDsync).ok());
  EXPECT_EQ(file->Size().value(), 9u);
  EXPECT_EQ(ReadText(file.get(), 0, 100), std::string("\0\0abcdefg", 9));
  EXPECT_EQ(ReadText(file.get(), 9, 10), "");
  EXPECT_EQ(ReadText(file.get(), 1000, 10), "");
  ASSERT_TRUE(file->Sync().ok());
  ASSERT_TRUE(file->Truncate(4).ok());
  EXPECT_EQ(ReadText(file.get(), 2, 10), "ab");
  file->DropCache();
  EXPECT_EQ(ReadText(file.get(), 2, 10), "ab");
}

TEST_F(PosixFiles, ReadsThatMayNotWaitSucceedOrSayBusy) {
  auto file = Make("f");
  ASSERT_TRUE(file->PWriteV(0, std::vector<IoSlice>{Slice("abcd")}, Durability::kDsync).ok());
  EXPECT_EQ(ReadText(file.get(), 0, 4), "abcd");
  std::vector<uint8_t> bytes(4);
  {
    const NoWaitReads no_wait;
    const Result<size_t> cached = file->PRead(0, bytes);
    if (cached.ok()) {
      EXPECT_EQ(*cached, 4u);
      EXPECT_EQ(std::string(bytes.begin(), bytes.end()), "abcd");
    } else {
      EXPECT_EQ(cached.status().code(), Code::kBusy);  // a file system that cannot tell
    }
    OpenOptions direct;
    direct.read_only = direct.direct = true;
    auto around = fs_.Open(dir_ + "/f", direct);
    ASSERT_TRUE(around.ok());
    Buffer page = Buffer::Allocate(kPageSize);
    const Result<size_t> waits = (*around)->PRead(0, page.span());
    EXPECT_TRUE(waits.ok() || waits.status().code() == Code::kBusy);
  }
  EXPECT_FALSE(NoWaitReads::on());
  EXPECT_EQ(ReadText(file.get(), 0, 4), "abcd");
}

TEST_F(PosixFiles, BringIntoMemoryWhatWillBeRead) {
  auto file = Make("f");
  const std::string contents(256u << 10, 'x');
  ASSERT_TRUE(file->PWriteV(0, std::vector<IoSlice>{Slice(contents)}, Durability::kDsync).ok());
  const auto in_memory = [&] {
    const NoWaitReads no_wait;
    std::vector<uint8_t> bytes(kPageSize);
    return file->PRead(contents.size() - kPageSize, bytes).ok();
  };
  if (!in_memory()) GTEST_SKIP() << "a file system that cannot tell";
  file->DropCache();
  if (in_memory()) GTEST_SKIP() << "a file system that is memory";
  file->WillRead(0, contents.size());
  file->StartWriting(0, contents.size());
  for (int i = 0; i < 5'000 && !in_memory(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_TRUE(in_memory());
}

TEST_F(PosixFiles, WriteMoreSlicesThanTheKernelTakesAtOnce) {
  auto file = Make("f");
  std::string expected(3 * IOV_MAX + 5, '\0');
  std::iota(expected.begin(), expected.end(), '\0');
  std::vector<IoSlice> slices;
  for (size_t i = 0; i < expected.size(); ++i) {
    slices.push_back(Slice(std::string_view(expected).substr(i, 1)));
  }
  ASSERT_TRUE(file->PWriteV(10, slices, Durability::kDsync).ok());
  EXPECT_EQ(ReadText(file.get(), 10, expected.size() + 1), expected);
}

TEST_F(PosixFiles, NothingToWriteIsFine) {
  auto file = Make("f");
  EXPECT_TRUE(file->PWriteV(5, {}, Durability::kDsync).ok());
  EXPECT_TRUE(WriteText(file.get(), 5, "").ok());
  EXPECT_EQ(file->Size().value(), 0u);
}

TEST_F(PosixFiles, AllocateReservesSpaceAndChangesNothingElse) {
  auto file = Make("f");
  ASSERT_TRUE(WriteText(file.get(), 0, "abc").ok());
  ASSERT_TRUE(file->Allocate(1 << 20).ok());
  EXPECT_TRUE(file->Allocate(0).ok());
  EXPECT_EQ(file->Size().value(), 3u);
  EXPECT_EQ(ReadText(file.get(), 0, 10), "abc");
  struct stat info;
  ASSERT_EQ(::stat(Path("f").c_str(), &info), 0);
  EXPECT_GE(info.st_blocks * 512, 1 << 20);
}

TEST_F(PosixFiles, ReadExactlyNamesWhatIsTooShort) {
  auto file = Make("f");
  ASSERT_TRUE(WriteText(file.get(), 0, "abc").ok());
  uint8_t bytes[4];
  EXPECT_TRUE(file->ReadExactly(0, {bytes, 3}, "superblock").ok());
  const Status status = file->ReadExactly(0, {bytes, 4}, "superblock");
  EXPECT_EQ(status.code(), Code::kCorruption);
  EXPECT_NE(status.message().find("superblock"), std::string::npos);
}

TEST_F(PosixFiles, ErrorsNameCallPathAndReason) {
  const Status missing = fs_.Open(Path("none"), {}).status();
  EXPECT_EQ(missing.code(), Code::kNotFound);
  EXPECT_EQ(missing.message(), "open " + Path("none") + ": No such file or directory");

  OpenOptions exclusive = Create();
  exclusive.exclusive = true;
  Make("there", exclusive);
  EXPECT_EQ(fs_.Open(Path("there"), exclusive).status().code(), Code::kAlreadyExists);
  EXPECT_EQ(fs_.CreateDirectory(dir_).code(), Code::kAlreadyExists);
  EXPECT_EQ(fs_.Unlink(Path("none")).code(), Code::kNotFound);
  EXPECT_EQ(fs_.Rename(Path("none"), Path("x")).code(), Code::kNotFound);
  EXPECT_EQ(fs_.List(Path("none")).status().code(), Code::kNotFound);
  EXPECT_EQ(fs_.SyncDirectory(Path("none")).code(), Code::kNotFound);
  EXPECT_EQ(fs_.RemoveDirectory(dir_).code(), Code::kFailedPrecondition);
  EXPECT_EQ(fs_.FreeBytes(Path("none")).status().code(), Code::kNotFound);
  EXPECT_EQ(fs_.Open(Path("there") + "/below", Create()).status().code(), Code::kIoError);
}

TEST_F(PosixFiles, AFullDeviceIsNoSpace) {
  auto full = fs_.Open("/dev/full", {});
  if (!full.ok()) GTEST_SKIP() << "no /dev/full";
  EXPECT_EQ(WriteText(full->get(), 0, "x").code(), Code::kNoSpace);
}

TEST_F(PosixFiles, MissingPermissionComesWithAHint) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may do everything";
  Make("f");
  ASSERT_EQ(::chmod(Path("f").c_str(), 0), 0);
  const Status status = fs_.Open(Path("f"), {}).status();
  EXPECT_EQ(status.code(), Code::kFailedPrecondition);
  EXPECT_NE(status.message().find("own"), std::string::npos);
}

TEST_F(PosixFiles, ReadOnlyFilesRefuseWrites) {
  ASSERT_TRUE(WriteText(Make("f").get(), 0, "abc").ok());
  OpenOptions options;
  options.read_only = true;
  auto file = Make("f", options);
  EXPECT_EQ(ReadText(file.get(), 0, 3), "abc");
  EXPECT_EQ(WriteText(file.get(), 0, "x").code(), Code::kIoError);
  options.truncate = true;
  EXPECT_EQ(fs_.Open(Path("f"), options).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(ReadText(file.get(), 0, 3), "abc");
}

TEST_F(PosixFiles, DirectoriesListSortedAndRenameReplaces) {
  ASSERT_TRUE(fs_.CreateDirectory(Path("d")).ok());
  ASSERT_TRUE(WriteText(Make("d/b").get(), 0, "b").ok());
  ASSERT_TRUE(WriteText(Make("d/a").get(), 0, "a").ok());
  Make("d/c");
  EXPECT_EQ(fs_.List(Path("d")).value(), (std::vector<std::string>{"a", "b", "c"}));
  ASSERT_TRUE(fs_.Rename(Path("d/b"), Path("d/a")).ok());
  ASSERT_TRUE(fs_.Unlink(Path("d/c")).ok());
  ASSERT_TRUE(fs_.SyncDirectory(Path("d")).ok());
  EXPECT_EQ(fs_.List(Path("d")).value(), (std::vector<std::string>{"a"}));
  EXPECT_EQ(fs_.ReadSmallFile(Path("d/a"), 10).value(), "b");
  EXPECT_FALSE(fs_.Exists(Path("d/b")));
  EXPECT_TRUE(fs_.Exists(Path("d")));
  ASSERT_TRUE(fs_.Unlink(Path("d/a")).ok());
  EXPECT_TRUE(fs_.RemoveDirectory(Path("d")).ok());
}

TEST_F(PosixFiles, ReplaceFileSwapsWholeContentsAndLeavesNothingBehind) {
  for (const std::string contents : {"one", "a longer second version", "", "3"}) {
    ASSERT_TRUE(fs_.ReplaceFile(dir_, "config", contents).ok());
    EXPECT_EQ(fs_.ReadSmallFile(Path("config"), 100).value(), contents);
  }
  ASSERT_TRUE(WriteText(Make("config.tmp").get(), 0, "left over by a crash").ok());
  ASSERT_TRUE(fs_.ReplaceFile(dir_, "config", "4").ok());
  EXPECT_EQ(fs_.ReadSmallFile(Path("config"), 100).value(), "4");
  EXPECT_EQ(fs_.List(dir_).value(), (std::vector<std::string>{"config"}));
  EXPECT_EQ(fs_.ReplaceFile(Path("none"), "config", "5").code(), Code::kNotFound);
}

TEST_F(PosixFiles, SmallFilesHaveALimit) {
  ASSERT_TRUE(fs_.ReplaceFile(dir_, "f", "12345").ok());
  EXPECT_TRUE(fs_.ReadSmallFile(Path("f"), 5).ok());
  EXPECT_EQ(fs_.ReadSmallFile(Path("f"), 4).status().code(), Code::kOutOfRange);
  EXPECT_EQ(fs_.ReadSmallFile(Path("none"), 4).status().code(), Code::kNotFound);
}

TEST_F(PosixFiles, ALockExcludesEvenTheSameProcessUntilReleased) {
  auto first = fs_.Lock(Path("LOCK"));
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(fs_.Lock(Path("LOCK")).status().code(), Code::kBusy);
  EXPECT_EQ(PosixFileSystem().Lock(Path("LOCK")).status().code(), Code::kBusy);
  EXPECT_TRUE(fs_.Lock(Path("OTHER")).ok());
  first->reset();
  EXPECT_TRUE(fs_.Lock(Path("LOCK")).ok());
}

TEST_F(PosixFiles, FreeBytesIsSomethingSensible) { EXPECT_GT(fs_.FreeBytes(dir_).value(), 0u); }

void WriteAndReadDirect(PosixFileSystem* fs, const std::string& path) {
  OpenOptions options = Create();
  options.exclusive = true;
  options.direct = true;
  auto opened = fs->Open(path, options);
  ASSERT_TRUE(opened.ok()) << opened.status().ToString();
  auto& file = *opened;
  const Buffer out = Buffer::Allocate(2 * kPageSize);
  std::memset(out.data(), 'a', kPageSize);
  std::memset(out.data() + kPageSize, 'b', kPageSize);
  const std::vector<IoSlice> slices{{out.data() + kPageSize, kPageSize}, {out.data(), kPageSize}};
  ASSERT_TRUE(file->PWriteV(kPageSize, slices, Durability::kDsync).ok());
  const Buffer in = Buffer::Allocate(8 * kPageSize);
  EXPECT_EQ(file->PRead(0, in.span()).value(), 3 * kPageSize);
  EXPECT_EQ(in.data()[0], 0);
  EXPECT_EQ(in.data()[kPageSize], 'b');
  EXPECT_EQ(in.data()[3 * kPageSize - 1], 'a');
  // The partial page at the end comes back by its true length.
  ASSERT_TRUE(file->Truncate(2 * kPageSize + 700).ok());
  EXPECT_EQ(file->PRead(0, in.span()).value(), 2 * kPageSize + 700);
  EXPECT_EQ(file->PRead(2 * kPageSize, in.span()).value(), 700u);
}

TEST_F(PosixFiles, DirectFilesWork) { WriteAndReadDirect(&fs_, Path("f")); }

// tmpfs refused O_DIRECT before Linux 6.6. Whichever this machine does, callers notice nothing.
class PosixFilesInMemory : public PosixFiles {
 protected:
  PosixFilesInMemory() : PosixFiles(::access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp") {}
};

TEST_F(PosixFilesInMemory, DirectFilesWorkWhereDirectIsRefusedAndWarnAtMostOnce) {
  int warnings = 0;
  SetLogSink([&](LogLevel level, std::string_view line) {
    warnings += level == LogLevel::kWarn && line.find("O_DIRECT") != std::string_view::npos;
  });
  WriteAndReadDirect(&fs_, Path("one"));
  WriteAndReadDirect(&fs_, Path("two"));
  SetLogSink(nullptr);
  EXPECT_LE(warnings, 1);
}

// /proc has never known direct I/O, so this takes the other path on every machine.
TEST(PosixDirect, IsReplacedByPlainIoWithOneWarningPerFileSystem) {
  PosixFileSystem fs;
  OpenOptions options;
  options.read_only = true;
  options.direct = true;
  std::vector<std::string> warnings;
  SetLogSink([&](LogLevel, std::string_view line) { warnings.emplace_back(line); });
  for (int i = 0; i < 2; ++i) {
    auto file = fs.Open("/proc/self/stat", options);
    ASSERT_TRUE(file.ok()) << file.status().ToString();
    EXPECT_GT(ReadText(file->get(), 0, 10).size(), 0u);
  }
  SetLogSink(nullptr);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NE(warnings[0].find("refuses O_DIRECT"), std::string::npos);
}

}  // namespace
}  // namespace hydra
