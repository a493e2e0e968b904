// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/store_bench_fio.h"

#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/buffer.h"
#include "tests/bench/store_bench_system.h"

namespace hydra::bench {

namespace {

Result<FioResult> RunFio(std::vector<std::string> arguments, const char* direction) {
  std::vector<std::string> command = {
      "fio",        "--name=yardstick", "--output-format=json", "--ioengine=psync",
      "--direct=1", "--fallocate=none", "--randrepeat=0"};
  command.insert(command.end(), arguments.begin(), arguments.end());
  HYDRA_ASSIGN_OR_RETURN(const std::string output, RunChild(command));

  // fio may print warnings before the document.
  const size_t start = output.find('{');
  const auto parsed = nlohmann::json::parse(output.substr(start == std::string::npos ? 0 : start),
                                            nullptr, /*allow_exceptions=*/false);
  const auto pointer = nlohmann::json::json_pointer(std::string("/jobs/0/") + direction);
  if (parsed.is_discarded() || !parsed.contains(pointer)) {
    return Status::IoError("fio printed something else than its result: " + output.substr(0, 200));
  }
  const auto& job = parsed[pointer];
  FioResult result;
  result.iops = job.value("iops", 0.0);
  result.bytes_per_second = job.value("bw_bytes", 0.0);
  if (result.iops <= 0) return Status::IoError("fio measured nothing");
  return result;
}

}  // namespace

Result<FioResult> FioSequentialDsync(const std::string& file, uint64_t file_bytes,
                                     uint64_t block_bytes) {
  return RunFio(
      {"--filename=" + file, fmt::format("--size={}", file_bytes),
       fmt::format("--bs={}", block_bytes), "--rw=write", "--sync=dsync", "--overwrite=1"},
      "write");
}

Result<FioResult> FioRandomRead(const std::vector<std::string>& files, uint64_t reads) {
  return RunFio(
      {fmt::format("--filename={}", fmt::join(files, ":")), "--readonly", "--allow_file_create=0",
       "--file_service_type=random", fmt::format("--io_size={}", reads * kPageSize),
       fmt::format("--bs={}", kPageSize), "--rw=randread", "--norandommap=1"},
      "read");
}

}  // namespace hydra::bench
