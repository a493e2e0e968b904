// SPDX-License-Identifier: Apache-2.0
//
// A main for fuzz targets in builds without libFuzzer: runs the target once on the empty input and
// once on every file named, or found below a directory named, on the command line, in sorted order.
// A finding is a crash; a path that cannot be read is an error.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

namespace fs = std::filesystem;

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

bool Run(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return false;
  const std::vector<char> bytes{std::istreambuf_iterator<char>(in), {}};
  if (in.bad()) return false;
  // Named before it runs, so that a crash shows which input it was.
  std::printf("%s (%zu bytes)\n", path.c_str(), bytes.size());
  std::fflush(stdout);
  LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<fs::path> files;
  for (int i = 1; i < argc; ++i) {
    if (!Collect(argv[i], &files)) {
      std::fprintf(stderr, "error: cannot read %s\n", argv[i]);
      return 2;
    }
  }
  std::sort(files.begin(), files.end());

  const std::uint8_t nothing = 0;
  LLVMFuzzerTestOneInput(&nothing, 0);
  for (const fs::path& file : files) {
    if (!Run(file)) {
      std::fprintf(stderr, "error: cannot read %s\n", file.c_str());
      return 2;
    }
  }
  std::printf("%zu inputs replayed, no finding\n", files.size() + 1);
  return 0;
}
