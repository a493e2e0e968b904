// SPDX-License-Identifier: Apache-2.0
//
// hydractl io read|write|discard|zero|cas|map
#include <unistd.h>

#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <sstream>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "base/crc32c.h"
#include "daemon/hydractl.h"

namespace hydra::ctl {
namespace {

// What is longer is for import and export.
constexpr uint64_t kMaxBytes = 64ull << 20;

struct IoArguments {
  std::string volume;
  uint64_t offset = 0;
  uint64_t length = 0;
  std::string input;
  std::string output;
  std::string text;
  std::string compare;
  std::string compare_text;
  std::string fill;
  bool pad = false;
  bool hex = false;
  bool local = false;
};

Result<std::string> ReadAll(const std::string& path) {
  std::string bytes;
  std::ifstream file;
  std::istream* in = &std::cin;
  if (path != "-") {
    file.open(path, std::ios::binary);
    if (!file) return Status::NotFound(fmt::format("cannot open '{}'", path));
    in = &file;
  }
  char buffer[1 << 16];
  while (in->read(buffer, sizeof(buffer)) || in->gcount() > 0) {
    bytes.append(buffer, static_cast<size_t>(in->gcount()));
    if (bytes.size() > kMaxBytes) {
      return Status::InvalidArgument(fmt::format("'{}' is longer than {}; use `hydractl io import`",
                                                 path, BytesText(kMaxBytes)));
    }
  }
  return bytes;
}

std::span<const uint8_t> Bytes(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

// Of `bytes` as given: checked, or filled up with zeroes.
Status Pad(bool pad, uint32_t block_bytes, std::string* bytes) {
  if (bytes->empty()) return Status::InvalidArgument("there is nothing to write");
  if (pad) bytes->resize((bytes->size() + block_bytes - 1) / block_bytes * block_bytes);
  if (bytes->size() % 512 == 0) return Status::Ok();
  return Status::InvalidArgument(fmt::format(
      "{} bytes: a volume is written in multiples of 512; --pad fills the last block with zeroes",
      bytes->size()));
}

// The bytes that --text, --fill or --input (or standard input) give.
Result<std::string> Content(const IoArguments& a) {
  if (!a.text.empty()) return a.text;
  if (a.fill.empty()) return ReadAll(a.input.empty() ? "-" : a.input);
  unsigned long byte = 0;
  try {
    byte = std::stoul(a.fill, nullptr, 0);
  } catch (const std::exception&) {
    byte = 256;
  }
  if (byte > 255 || a.length == 0 || a.length > kMaxBytes) {
    return Status::InvalidArgument(
        fmt::format("--fill takes a byte, such as 0xa5, and needs a --length of at most {}",
                    BytesText(kMaxBytes)));
  }
  return std::string(a.length, static_cast<char>(byte));
}

void PrintHex(uint64_t offset, std::span<const uint8_t> bytes) {
  std::string last;
  bool starred = false;
  for (size_t at = 0; at < bytes.size(); at += 16) {
    const auto line = bytes.subspan(at, std::min<size_t>(16, bytes.size() - at));
    std::string hex;
    std::string text;
    for (size_t i = 0; i < line.size(); ++i) {
      hex += fmt::format("{:02x}{}", line[i], i == 7 ? "  " : " ");
      text += line[i] >= 32 && line[i] < 127 ? static_cast<char>(line[i]) : '.';
    }
    if (hex == last) {
      if (!starred) std::cout << "*\n";
      starred = true;
      continue;
    }
    starred = false;
    last = hex;
    std::cout << fmt::format("{:010x}  {:<49} |{}|\n", offset + at, hex, text);
  }
  std::cout << fmt::format("{:010x}\n", offset + bytes.size());
}

int Read(const Context& context, const IoArguments& a) {
  if (a.length == 0 || a.length > kMaxBytes) {
    return context.Fail(Status::InvalidArgument(
        fmt::format("--length {}: read 512 bytes to {}, or use `hydractl io export`", a.length,
                    BytesText(kMaxBytes))));
  }
  Result<Volume> volume = context.Open(a.volume);
  if (!volume.ok()) return context.Fail(volume.status());
  std::vector<uint8_t> bytes(a.length);
  const Status read =
      volume->Read(a.offset, bytes, a.local ? Consistency::kLocal : Consistency::kLinearizable);
  if (!read.ok()) return context.Fail(read);
  const bool to_file = !a.output.empty() && a.output != "-";
  if (to_file) {
    std::ofstream file(a.output, std::ios::binary | std::ios::trunc);
    file.write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
    file.close();
    if (!file) return context.Fail(Status::IoError(fmt::format("cannot write '{}'", a.output)));
  }
  if (context.json) {
    Json json{{"volume", a.volume},
              {"offset", a.offset},
              {"length", a.length},
              {"crc32c", fmt::format("{:08x}", Crc32c(bytes))}};
    if (!to_file) {
      std::string hex;
      hex.reserve(bytes.size() * 2);
      for (const uint8_t byte : bytes) fmt::format_to(std::back_inserter(hex), "{:02x}", byte);
      json["hex"] = hex;
    }
    Print(json);
  } else if (!to_file && (a.hex || (a.output.empty() && isatty(STDOUT_FILENO) != 0))) {
    PrintHex(a.offset, bytes);
  } else if (!to_file) {
    std::cout.write(reinterpret_cast<const char*>(bytes.data()),
                    static_cast<std::streamsize>(bytes.size()));
  }
  return kExitOk;
}

// The whole range, piece by piece; runs that go on in the next piece are one.
Result<std::vector<MapRun>> WholeMap(Volume* volume, uint64_t offset, uint64_t length) {
  std::vector<MapRun> all;
  for (uint64_t at = offset; at < offset + length;) {
    HYDRA_ASSIGN_OR_RETURN(const auto runs, volume->GetMap(at, offset + length - at));
    for (const MapRun& run : runs) {
      if (!all.empty() && all.back().mapped == run.mapped) {
        all.back().length += run.length;
      } else {
        all.push_back(run);
      }
    }
    at = all.back().offset + all.back().length;
  }
  return all;
}

int Map(const Context& context, const IoArguments& a) {
  Result<Volume> volume = context.Open(a.volume);
  if (!volume.ok()) return context.Fail(volume.status());
  const uint64_t size = volume->size();
  if (a.offset > size || a.length > size - a.offset) {
    return context.Fail(Status::OutOfRange(fmt::format("{} has {} bytes", a.volume, size)));
  }
  const uint64_t length = a.length != 0 ? a.length : size - a.offset;
  const Result<std::vector<MapRun>> runs = WholeMap(&*volume, a.offset, length);
  if (!runs.ok()) return context.Fail(runs.status());
  if (context.json) {
    Json json = Json::array();
    for (const MapRun& run : *runs) {
      json.push_back({{"offset", run.offset}, {"length", run.length}, {"mapped", run.mapped}});
    }
    Print({{"volume", a.volume}, {"map", json}});
    return kExitOk;
  }
  for (const MapRun& run : *runs) {
    std::cout << fmt::format("{:>16} {:>16}  {}\n", run.offset, run.length,
                             run.mapped ? "data" : "hole");
  }
  return kExitOk;
}

int Done(const Context& context, const IoArguments& a, const char* what, uint64_t length) {
  if (context.json) {
    Print({{"done", what}, {"volume", a.volume}, {"offset", a.offset}, {"length", length}});
  } else {
    std::cout << fmt::format("{} {} bytes at {} of {}\n", what, length, a.offset, a.volume);
  }
  return kExitOk;
}

int Write(const Context& context, const IoArguments& a) {
  Result<std::string> bytes = Content(a);
  if (!bytes.ok()) return context.Fail(bytes.status());
  Result<Volume> volume = context.Open(a.volume);
  if (!volume.ok()) return context.Fail(volume.status());
  const Status padded = Pad(a.pad, volume->block_bytes(), &*bytes);
  if (!padded.ok()) return context.Fail(padded);
  const Status written = volume->Write(a.offset, Bytes(*bytes));
  if (!written.ok()) return context.Fail(written);
  return Done(context, a, "wrote", bytes->size());
}

int Clear(const Context& context, const IoArguments& a, bool discard) {
  Result<Volume> volume = context.Open(a.volume);
  if (!volume.ok()) return context.Fail(volume.status());
  const Status cleared =
      discard ? volume->Discard(a.offset, a.length) : volume->WriteZeroes(a.offset, a.length);
  if (!cleared.ok()) return context.Fail(cleared);
  return Done(context, a, discard ? "discarded" : "zeroed", a.length);
}

int Cas(const Context& context, const IoArguments& a) {
  if (a.compare.empty() == a.compare_text.empty() || a.input.empty() == a.text.empty()) {
    return context.Fail(Status::InvalidArgument(
        "give what to compare with (--compare FILE or --compare-text TEXT) and what to write "
        "(--input FILE or --text TEXT)"));
  }
  Result<std::string> expected = a.compare.empty() ? a.compare_text : ReadAll(a.compare);
  if (!expected.ok()) return context.Fail(expected.status());
  Result<std::string> desired = Content(a);
  if (!desired.ok()) return context.Fail(desired.status());
  Result<Volume> volume = context.Open(a.volume);
  if (!volume.ok()) return context.Fail(volume.status());
  for (std::string* bytes : {&*expected, &*desired}) {
    const Status padded = Pad(a.pad, volume->block_bytes(), bytes);
    if (!padded.ok()) return context.Fail(padded);
  }
  const Result<bool> swapped = volume->CompareAndWrite(a.offset, Bytes(*expected), Bytes(*desired));
  if (!swapped.ok()) return context.Fail(swapped.status());
  if (*swapped) return Done(context, a, "compared and wrote", desired->size());
  if (context.json) {
    Print({{"done", "miscompare"}, {"volume", a.volume}, {"offset", a.offset}});
  } else {
    std::cerr << fmt::format("hydractl: {} holds something else at {}; nothing was written\n",
                             a.volume, a.offset);
  }
  return kExitMiscompare;
}

}  // namespace

void AddIoCommands(CLI::App* app, Context* context) {
  const auto a = std::make_shared<IoArguments>();
  CLI::App* io = app->add_subcommand("io", "Read and write volumes.");
  io->require_subcommand(1);
  const auto add = [&](const char* name, const char* help) {
    CLI::App* command = io->add_subcommand(name, help);
    command->add_option("VOLUME", a->volume)->required();
    command->add_option("--offset", a->offset, "In bytes, a multiple of 512; default 0")
        ->transform(SizeOption());
    return command;
  };

  CLI::App* read = add("read", "Print bytes: raw, or in hex on a terminal.");
  read->add_option("--length", a->length, "How many")->transform(SizeOption())->required();
  read->add_option("--output", a->output, "A file to write them to; -: standard output, raw");
  read->add_flag("--hex", a->hex, "In hex");
  read->add_flag("--local", a->local, "Any replica's, perhaps a moment old");
  read->callback([=] { context->action = [=] { return Read(*context, *a); }; });

  CLI::App* map = add("map", "Print which bytes take space: offset, length, data or hole.");
  map->add_option("--length", a->length, "How many; default all")->transform(SizeOption());
  map->callback([=] { context->action = [=] { return Map(*context, *a); }; });

  CLI::App* write = add("write", "Write a file, standard input, a text or a filling.");
  write->add_option("--input", a->input, "The file; - or none of these: standard input");
  write->add_option("--text", a->text, "The bytes themselves")->excludes("--input");
  write->add_option("--fill", a->fill, "A byte, such as 0xa5, --length times")
      ->excludes("--input")
      ->excludes("--text");
  write->add_option("--length", a->length, "Of the filling")->transform(SizeOption());
  write->add_flag("--pad", a->pad, "Fill the last block up with zeroes");
  write->callback([=] { context->action = [=] { return Write(*context, *a); }; });

  CLI::App* discard = add("discard", "Give the space of whole blocks back; they read as zeroes.");
  discard->add_option("--length", a->length, "In bytes")->transform(SizeOption())->required();
  discard->callback([=] { context->action = [=] { return Clear(*context, *a, true); }; });

  CLI::App* zero = add("zero", "Make a range read as zeroes.");
  zero->add_option("--length", a->length, "In bytes")->transform(SizeOption())->required();
  zero->callback([=] { context->action = [=] { return Clear(*context, *a, false); }; });

  CLI::App* cas = add("cas", "Write if the volume holds what is expected; else exit with 5.");
  cas->add_option("--compare", a->compare, "A file with what is expected");
  cas->add_option("--compare-text", a->compare_text, "... or the bytes themselves");
  cas->add_option("--input", a->input, "A file with what to write");
  cas->add_option("--text", a->text, "... or the bytes themselves");
  cas->add_flag("--pad", a->pad, "Fill the last block of both up with zeroes");
  cas->callback([=] { context->action = [=] { return Cas(*context, *a); }; });

  AddCopyCommands(io, context);
}

}  // namespace hydra::ctl
