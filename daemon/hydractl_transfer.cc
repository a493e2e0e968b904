// SPDX-License-Identifier: Apache-2.0
//
// hydractl io import|export
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <iostream>
#include <memory>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "daemon/hydractl.h"
#include "daemon/hydractl_copy.h"

namespace hydra::ctl {
namespace {

using std::chrono::steady_clock;

struct TransferArguments {
  std::string volume;
  std::string file = "-";
  CopyOptions copy;
  bool quiet = false;
};

// A line on the terminal that is drawn over and over.
class ProgressBar {
 public:
  void Show(uint64_t done, uint64_t all) {
    const auto now = steady_clock::now();
    if (now < next_ && done != all) return;
    next_ = now + std::chrono::milliseconds(200);
    const double seconds = std::chrono::duration<double>(now - begin_).count();
    const double rate = seconds > 0 ? static_cast<double>(done) / seconds / 1e6 : 0;
    if (all == 0) {
      std::cerr << fmt::format("\r{}, {:.0f} MB/s   ", BytesText(done), rate);
    } else {
      constexpr uint64_t kWidth = 40;
      const uint64_t filled = static_cast<uint64_t>(
          static_cast<double>(kWidth) * static_cast<double>(done) / static_cast<double>(all));
      const double percent = 100 * static_cast<double>(done) / static_cast<double>(all);
      std::cerr << fmt::format("\r[{:<{}}] {:3.0f} %  {:.0f} MB/s   ", std::string(filled, '#'),
                               kWidth, percent, rate);
    }
    std::cerr << std::flush;
    drawn_ = true;
  }
  ~ProgressBar() {
    if (drawn_) std::cerr << "\n";
  }

 private:
  const steady_clock::time_point begin_ = steady_clock::now();
  steady_clock::time_point next_ = begin_;
  bool drawn_ = false;
};

// A descriptor: of a file that is opened and closed here, or a standard one.
class File {
 public:
  File(const std::string& path, bool write) {
    if (path == "-") {
      number_ = write ? STDOUT_FILENO : STDIN_FILENO;
      return;
    }
    own_ = true;
    number_ = write ? open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)
                    : open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (number_ >= 0) return;
    status_ = Status(errno == ENOENT ? Code::kNotFound : Code::kIoError,
                     fmt::format("cannot open '{}': {}", path, std::strerror(errno)));
  }
  ~File() {
    if (own_ && number_ >= 0) close(number_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  const Status& status() const { return status_; }
  int number() const { return number_; }

 private:
  Status status_;
  int number_ = -1;
  bool own_ = false;
};

int Copy(const Context& context, TransferArguments a, bool import) {
  if (import && a.file == "-" && isatty(STDIN_FILENO) != 0) {
    return context.Fail(Status::InvalidArgument("name a file, or send one to standard input"));
  }
  if (!import && a.file == "-" && isatty(STDOUT_FILENO) != 0) {
    return context.Fail(Status::InvalidArgument("name a file, or send standard output to one"));
  }
  Result<Volume> volume = context.Open(a.volume);
  if (!volume.ok()) return context.Fail(volume.status());
  const File file(a.file, !import);
  if (!file.status().ok()) return context.Fail(file.status());
  const auto begin = steady_clock::now();
  Result<CopyReport> report = CopyReport();
  {
    ProgressBar bar;
    if (isatty(STDERR_FILENO) != 0 && !context.json && !a.quiet) {
      a.copy.progress = [&](uint64_t done, uint64_t all) { bar.Show(done, all); };
    }
    report =
        import ? Import(*volume, file.number(), a.copy) : Export(*volume, file.number(), a.copy);
  }
  if (!report.ok()) return context.Fail(report.status());
  const double seconds =
      std::max(1e-6, std::chrono::duration<double>(steady_clock::now() - begin).count());
  // What was exported to standard output has it for itself.
  std::ostream& out = import || a.file != "-" ? std::cout : std::cerr;
  if (context.json) {
    const Json json{{"done", import ? "import" : "export"},
                    {"volume", a.volume},
                    {"bytes", report->bytes},
                    {"data_bytes", report->data},
                    {"padding_bytes", report->padding},
                    {"seconds", seconds}};
    out << json.dump(2) << "\n";
  } else if (!a.quiet) {
    out << fmt::format("{} {} {} {}, {} of it data, in {:.1f} s ({:.0f} MB/s)\n",
                       import ? "imported" : "exported", BytesText(report->bytes),
                       import ? "into" : "from", a.volume, BytesText(report->data), seconds,
                       static_cast<double>(report->bytes) / seconds / 1e6);
    if (report->padding > 0) {
      out << fmt::format("the last block was filled up with {} zeroes\n", report->padding);
    }
  }
  return kExitOk;
}

}  // namespace

void AddCopyCommands(CLI::App* io, Context* context) {
  const auto a = std::make_shared<TransferArguments>();
  for (const bool import : {true, false}) {
    CLI::App* command =
        io->add_subcommand(import ? "import" : "export",
                           import ? "Copy a file into a volume; runs of zeroes are not written."
                                  : "Copy a volume into a file; runs of zeroes become holes.");
    command->add_option("VOLUME", a->volume)->required();
    command->add_option("FILE", a->file,
                        import ? "default -: standard input" : "default -: standard output");
    command->add_option("--offset", a->copy.offset, "Where in the volume; default 0")
        ->transform(SizeOption());
    command->add_option("--length", a->copy.length, "How much; default all")
        ->transform(SizeOption());
    command->add_option("--iodepth", a->copy.depth, "Requests of 1 MiB under way; default 8")
        ->check(CLI::Range(1, 256));
    command->add_flag("-q,--quiet", a->quiet, "No progress, no summary");
    command->callback([=] { context->action = [=] { return Copy(*context, *a, import); }; });
  }
}

}  // namespace hydra::ctl
