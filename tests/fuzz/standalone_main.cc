// SPDX-License-Identifier: Apache-2.0
//
// A main for fuzz targets in builds without libFuzzer.
//
//   usage: TARGET [--mutations N] [--seconds S] [FILE | FOLDER]...
//
// Runs the target once on the empty input and once on every file named, or found below a folder
// named, on the command line, in sorted order; then on N inputs made of those by chance. Chance has
// a fixed seed: every run makes the same inputs, and one that was stopped after S seconds (2) the
// first of them. A finding is a crash; the input that it was made with is left in the working
// directory. A path that cannot be read is an error.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
// Sanitizers end a process by themselves, after this. Null without one.
extern "C" void __sanitizer_set_death_callback(void (*callback)()) __attribute__((weak));

namespace {

namespace fs = std::filesystem;

using Input = std::vector<std::uint8_t>;

constexpr std::uint64_t kSeed = 0x68796472'61000001;
constexpr std::size_t kMaxBytes = 16 << 10;
constexpr std::uint64_t kMaxChanges = 6;  // of one input

bool Collect(const fs::path& path, std::vector<fs::path>* files) {
  std::error_code error;
  if (fs::is_directory(path, error)) {
    for (fs::recursive_directory_iterator it(path, error), end; !error && it != end;
         it.increment(error)) {
      if (it->is_regular_file(error)) files->push_back(it->path());
    }
    return !error;
  }
  files->push_back(path);
  return fs::is_regular_file(path, error);
}

bool Load(const fs::path& path, Input* input) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return false;
  input->assign(std::istreambuf_iterator<char>(in), {});
  return !in.bad();
}

void Run(const Input& input) {
  // Memory of exactly that size, so that a sanitizer sees what is read beyond it.
  const Input exact(input);
  const std::uint8_t nothing = 0;
  LLVMFuzzerTestOneInput(exact.empty() ? &nothing : exact.data(), exact.size());
}

// --- What is left of a crash --------------------------------------------------------------------

// The mutated input that runs, and where it goes if it crashes. Only what a signal handler may do
// is done with them.
Input running;
std::string left_as;

void Leave() {
  if (left_as.empty()) return;
  const int file = open(left_as.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) return;
  const ssize_t written = write(file, running.data(), running.size());
  close(file);
  const std::string_view before = "this input is in ";
  if (written < 0 || write(STDERR_FILENO, before.data(), before.size()) < 0) return;
  if (write(STDERR_FILENO, left_as.data(), left_as.size()) < 0) return;
  if (write(STDERR_FILENO, "\n", 1) < 0) return;
}

void LeaveAndDie(int signal) {
  Leave();
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

void WatchForCrashes() {
  std::signal(SIGABRT, LeaveAndDie);  // of assertions, which sanitizers do not see
  if (__sanitizer_set_death_callback != nullptr) return __sanitizer_set_death_callback(Leave);
  for (const int signal : {SIGSEGV, SIGBUS, SIGILL, SIGFPE}) std::signal(signal, LeaveAndDie);
}

// --- Mutation -----------------------------------------------------------------------------------

// splitmix64: the same numbers everywhere.
class Chance {
 public:
  std::uint64_t Next() {
    state_ += 0x9e3779b97f4a7c15;
    std::uint64_t z = state_;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
  }
  std::size_t Below(std::size_t limit) { return limit == 0 ? 0 : Next() % limit; }
  std::uint8_t Byte() {
    constexpr std::uint8_t kEdges[] = {0x00, 0x01, 0x7f, 0x80, 0xfe, 0xff};
    return Below(2) == 0 ? kEdges[Below(std::size(kEdges))] : static_cast<std::uint8_t>(Next());
  }

 private:
  std::uint64_t state_ = kSeed;
};

void Change(const std::vector<Input>& inputs, Chance* chance, Input* input) {
  const std::size_t at = chance->Below(input->size());
  const auto place = input->begin() + static_cast<std::ptrdiff_t>(at);
  const std::size_t left = input->size() - at;
  switch (chance->Below(7)) {
    case 0:
      if (left > 0) (*input)[at] ^= static_cast<std::uint8_t>(1 << chance->Below(8));
      return;
    case 1:
      if (left > 0) (*input)[at] = chance->Byte();
      return;
    case 2:  // a number
      for (std::size_t i = 0; i < std::min<std::size_t>(left, 4); ++i) {
        (*input)[at + i] = chance->Byte();
      }
      return;
    case 3: {
      const std::size_t count = 1 + chance->Below(16);
      const std::uint8_t value = chance->Byte();
      input->insert(place, count, value);
      return;
    }
    case 4:
      input->erase(place, place + static_cast<std::ptrdiff_t>(chance->Below(left + 1)));
      return;
    case 5: {  // some of it again
      const Input copy(place, place + static_cast<std::ptrdiff_t>(chance->Below(left + 1)));
      input->insert(input->begin() + static_cast<std::ptrdiff_t>(chance->Below(input->size() + 1)),
                    copy.begin(), copy.end());
      return;
    }
    default: {  // as another goes on
      const Input& other = inputs[chance->Below(inputs.size())];
      const std::size_t from = chance->Below(other.size() + 1);
      input->resize(at);
      input->insert(input->end(), other.begin() + static_cast<std::ptrdiff_t>(from), other.end());
      return;
    }
  }
}

std::size_t Mutate(const std::vector<Input>& inputs, std::size_t count, std::chrono::seconds most) {
  const auto until = std::chrono::steady_clock::now() + most;
  Chance chance;
  for (std::size_t i = 0; i < count; ++i) {
    if (std::chrono::steady_clock::now() >= until) return i;
    running = inputs[chance.Below(inputs.size())];
    for (std::uint64_t changes = 1 + chance.Below(kMaxChanges); changes > 0; --changes) {
      Change(inputs, &chance, &running);
    }
    if (running.size() > kMaxBytes) running.resize(kMaxBytes);
    Run(running);
  }
  return count;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<fs::path> files;
  std::size_t mutations = 0;
  std::chrono::seconds seconds(2);
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (i + 1 < argc && argument == "--mutations") {
      mutations = std::strtoul(argv[++i], nullptr, 10);
    } else if (i + 1 < argc && argument == "--seconds") {
      seconds = std::chrono::seconds(std::strtoul(argv[++i], nullptr, 10));
    } else if (!Collect(argv[i], &files)) {
      std::fprintf(stderr, "error: cannot read %s\n", argv[i]);
      return 2;
    }
  }
  std::sort(files.begin(), files.end());

  std::vector<Input> inputs(1);
  Run(inputs[0]);
  for (const fs::path& file : files) {
    if (!Load(file, &inputs.emplace_back())) {
      std::fprintf(stderr, "error: cannot read %s\n", file.c_str());
      return 2;
    }
    // Named before it runs, so that a crash shows which input it was.
    std::printf("%s (%zu bytes)\n", file.c_str(), inputs.back().size());
    std::fflush(stdout);
    Run(inputs.back());
  }
  std::printf("%zu inputs replayed, no finding\n", inputs.size());
  if (mutations == 0) return 0;

  std::printf("mutating them with seed %#llx\n", static_cast<unsigned long long>(kSeed));
  std::fflush(stdout);
  left_as = "crash-" + fs::path(argv[0]).filename().string();
  WatchForCrashes();
  const std::size_t run = Mutate(inputs, mutations, seconds);
  left_as.clear();
  std::printf("%zu of %zu mutated inputs, no finding\n", run, mutations);
  return 0;
}
