// SPDX-License-Identifier: Apache-2.0
#include "tests/tool/store_writer.h"

#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <fmt/format.h>
#include <leveldb/db.h>
#include <leveldb/write_batch.h>

#include "base/check.h"
#include "base/coding.h"
#include "base/crc32c.h"
#include "base/rng.h"

namespace hydra::tool_test {

namespace fs = std::filesystem;

std::string Block(uint64_t seed, uint32_t pages) {
  Rng rng(seed);
  std::string block;
  while (block.size() < size_t{pages} * kPage) PutFixed64(&block, rng.Next());
  return block;
}

uint64_t Version(uint64_t instance, uint64_t operation) { return instance << 16 | operation; }

namespace {

std::string Operation(uint8_t kind, const std::string& body, const std::string& context = "") {
  std::string op;
  PutU8(&op, kind);
  PutU8(&op, 1);
  PutU8(&op, context.empty() ? 0 : 1);
  op += body;
  if (!context.empty()) {
    PutVarint64(&op, context.size());
    op += context;
  }
  return op;
}

std::string Varints(const std::vector<uint64_t>& values) {
  std::string out;
  for (const uint64_t value : values) PutVarint64(&out, value);
  return out;
}

}  // namespace

std::string NoOp() { return Operation(0, ""); }

std::string WriteOp(uint64_t lba, const std::vector<std::string>& blocks,
                    const std::string& context) {
  std::string body = Varints({lba, blocks.size()});
  PutU8(&body, static_cast<uint8_t>(blocks.at(0).size() / kPage));
  for (const std::string& block : blocks) PutFixed32(&body, Crc32c(AsBytes(block)));
  return Operation(1, body, context);
}

std::string ZeroOp(uint64_t lba, uint64_t count) { return Operation(2, Varints({lba, count})); }
std::string UnmapOp(uint64_t lba, uint64_t count) { return Operation(3, Varints({lba, count})); }

std::string ZeroExtentsOp(const std::vector<uint64_t>& extents) {
  std::string body = Varints({extents.size()});
  for (size_t i = 0; i < extents.size(); ++i) {
    PutVarint64(&body, i == 0 ? extents[0] : extents[i] - extents[i - 1]);
  }
  return Operation(4, body);
}

std::string DataRow(uint64_t lba, uint64_t version, const std::string& block) {
  std::string row = Varints({1, lba, version});
  PutFixed32(&row, Crc32c(AsBytes(block)));
  return row;
}

std::string ExtentRow(uint64_t extent, uint64_t version) { return Varints({4, extent, version}); }

std::string EraseRow(uint64_t lba, uint64_t count, uint64_t version) {
  return Varints({5, lba, count, version});
}

// --- Batches ---------------------------------------------------------------------------------

BatchSpec InLane(int lane) {
  BatchSpec spec;
  spec.lane = lane;
  return spec;
}

BatchSpec& BatchSpec::Record(uint8_t type, const std::string& body,
                             const std::string& payload_bytes, uint8_t version) {
  PutU8(&records, type);
  PutU8(&records, version);
  PutFixed16(&records, static_cast<uint16_t>(payload_bytes.size() / kPage));
  PutFixed32(&records, static_cast<uint32_t>(8 + body.size()));
  records += body;
  payload += payload_bytes;
  ++record_count;
  return *this;
}

BatchSpec& BatchSpec::Accept(uint32_t group, uint64_t instance,
                             const std::vector<std::string>& operations,
                             const std::string& payload_bytes, uint64_t stable) {
  std::string body = Varints({group, instance, 1, 3, stable, operations.size()});
  for (const std::string& op : operations) body += op;
  return Record(1, body, payload_bytes);
}

BatchSpec& BatchSpec::Group(uint32_t group, uint8_t action, uint8_t pages_per_block) {
  std::string body = Varints({group});
  PutU8(&body, action);
  PutU8(&body, pages_per_block);
  return Record(6, body);
}

BatchSpec& BatchSpec::HardState(uint32_t group, uint64_t round, uint64_t node,
                                const std::string& opaque) {
  return Record(2, Varints({group, round, node, opaque.size()}) + opaque);
}

BatchSpec& BatchSpec::Truncate(uint32_t group, uint64_t instance) {
  return Record(3, Varints({group, instance}));
}

BatchSpec& BatchSpec::Relocate(uint32_t group, uint64_t lba, uint64_t version, uint32_t old_segment,
                               uint32_t old_page, const std::string& block) {
  std::string body = Varints({group, lba, version, old_segment, old_page});
  PutFixed32(&body, Crc32c(AsBytes(block)));
  PutU8(&body, static_cast<uint8_t>(block.size() / kPage));
  return Record(5, body, block);
}

BatchSpec& BatchSpec::InstallBegin(uint32_t group, uint8_t mode, uint64_t applied, uint64_t floor) {
  return Record(8, Varints({group, 1, mode, applied, floor}));
}

BatchSpec& BatchSpec::InstallFinish(uint32_t group, uint64_t instance, const std::string& state) {
  std::string pages = state;
  pages.resize((state.size() + kPage - 1) / kPage * kPage, '\0');
  std::string body = Varints({group, 2, instance, state.size()});
  PutFixed32(&body, Crc32c(AsBytes(pages)));
  return Record(8, body, pages);
}

BatchSpec& BatchSpec::InstallAbort(uint32_t group) { return Record(8, Varints({group, 3})); }

BatchSpec& BatchSpec::Chunk(uint32_t group, uint64_t as_of, uint64_t newest, uint64_t covered,
                            const std::string& cursor, const std::vector<std::string>& rows,
                            const std::string& payload_bytes) {
  std::string body = Varints({group, as_of, newest, covered, cursor.size()}) + cursor;
  PutU8(&body, cursor.empty() ? 1 : 0);
  PutU8(&body, 1);
  body += Varints({rows.size()});
  for (const std::string& row : rows) body += row;
  return Record(9, body, payload_bytes);
}

BatchSpec& BatchSpec::Stable(uint32_t group, uint64_t instance) {
  return Record(7, Varints({1, group, instance}));
}

// --- The store -------------------------------------------------------------------------------

namespace {

uint32_t HeaderCrc(const Uuid& store, uint32_t segment, uint32_t page, std::string header) {
  std::string bytes(reinterpret_cast<const char*>(store.bytes.data()), store.bytes.size());
  PutFixed32(&bytes, segment);
  PutFixed32(&bytes, page);
  header.replace(8, 4, 4, '\0');
  return Crc32c(AsBytes(bytes + header));
}

void SetCrc(std::string* header, uint32_t crc) {
  std::string bytes;
  PutFixed32(&bytes, crc);
  header->replace(8, 4, bytes);
}

}  // namespace

StoreWriter::StoreWriter() {
  std::string pattern = (fs::temp_directory_path() / "tool-test-XXXXXX").string();
  HYDRA_CHECK(mkdtemp(pattern.data()) != nullptr);
  directory_ = pattern;
  fs::create_directory(directory_ + "/segments");
  std::ofstream(directory_ + "/LOCK") << "";
  store_ = *Uuid::Parse("1b4e28ba-2fa1-41d2-883f-0016d3cca427");
  std::string text = fmt::format(
      "hydra-store 1\nstore {}\ncluster 6fa459ea-ee8a-4ca4-894e-db77e160355e\nnode 3\n"
      "segment-bytes {}\n",
      store_.ToString(), kSegmentPages * kPage);
  text += fmt::format("crc {:08x}\n", Crc32c(AsBytes(text)));
  std::ofstream(directory_ + "/IDENTITY") << text;
}

StoreWriter::~StoreWriter() { fs::remove_all(directory_); }

std::string StoreWriter::SegmentPath(uint32_t segment) const {
  return fmt::format("{}/segments/{:010}.seg", directory_, segment);
}

uint32_t StoreWriter::OpenSegment(int lane) {
  const uint32_t number = ++highest_segment_;
  std::string page;
  PutFixed32(&page, 0x47455348);
  PutFixed16(&page, 1);
  PutU8(&page, static_cast<uint8_t>(lane));
  PutU8(&page, 0);
  PutFixed32(&page, 0);
  PutFixed32(&page, number);
  PutBytes(&page, store_.bytes);
  PutFixed64(&page, kSegmentPages * kPage);
  PutFixed64(&page, next_);
  PutFixed32(&page, chain_);
  page.resize(kPage, '\0');
  SetCrc(&page, HeaderCrc(store_, number, 0, page));
  // The rest is the recycled file's earlier life.
  std::ofstream(SegmentPath(number), std::ios::binary)
      << page << Block(1000 + number, kSegmentPages - 1);
  lanes_[static_cast<size_t>(lane)] = {number, 1};
  return number;
}

Written StoreWriter::Append(const BatchSpec& spec) {
  Lane& lane = lanes_[static_cast<size_t>(spec.lane)];
  const uint64_t number = spec.number != 0 ? spec.number : next_;
  const auto header_pages = static_cast<uint32_t>((64 + spec.records.size() + kPage - 1) / kPage);
  const auto payload_pages = static_cast<uint32_t>(spec.payload.size() / kPage);
  HYDRA_CHECK(lane.segment != 0 && lane.page + header_pages + payload_pages <= kSegmentPages);
  std::string header;
  PutFixed32(&header, 0x54414248);
  PutFixed16(&header, 1);
  PutU8(&header, spec.seal ? 1 : 0);
  PutU8(&header, static_cast<uint8_t>(spec.lane));
  PutFixed32(&header, 0);
  PutFixed32(&header, static_cast<uint32_t>(64 + spec.records.size()));
  PutFixed64(&header, number);
  PutFixed32(&header, lane.segment);
  PutFixed32(&header, lane.page);
  PutFixed32(&header, chain_);
  PutFixed16(&header, static_cast<uint16_t>(header_pages));
  PutFixed16(&header,
             static_cast<uint16_t>(static_cast<int>(payload_pages) + spec.extra_payload_pages));
  PutFixed32(&header, spec.generation != 0 ? spec.generation : generation_);
  PutFixed32(&header, spec.record_count);
  header.resize(64, '\0');
  header += spec.records;
  header.resize(size_t{header_pages} * kPage, '\0');
  const uint32_t crc = HeaderCrc(store_, lane.segment, lane.page, header);
  SetCrc(&header, crc);
  Overwrite(SegmentPath(lane.segment), uint64_t{lane.page} * kPage, header + spec.payload);
  const Written written{number,
                        lane.segment,
                        lane.page,
                        lane.page + header_pages,
                        lane.page + header_pages + payload_pages,
                        crc};
  lane.page = written.end_page;
  next_ = number + 1;
  chain_ = crc;
  return written;
}

void StoreWriter::Cut(const Written& batch, int lane, uint32_t chain_before) {
  lanes_[static_cast<size_t>(lane)] = {batch.segment, batch.page};
  next_ = batch.number;
  chain_ = chain_before;
}

// --- The map ---------------------------------------------------------------------------------

std::string StoreWriter::Key(uint32_t group, char tag) {
  std::string key;
  PutBig32(&key, group);
  key.push_back(tag);
  return key;
}

std::string StoreWriter::Key(uint32_t group, char tag, uint64_t number) {
  std::string key = Key(group, tag);
  PutBig64(&key, number);
  return key;
}

void StoreWriter::PutData(uint32_t group, uint64_t lba, uint64_t version, uint32_t segment,
                          uint32_t page, const std::string& block) {
  std::string value;
  PutU8(&value, 1);
  PutFixed64(&value, version);
  PutFixed32(&value, segment);
  PutFixed32(&value, page);
  PutFixed32(&value, Crc32c(AsBytes(block)));
  PutRow(Key(group, 'm', lba), value);
  std::string key = Key(group, 'v', version);
  PutBig64(&key, lba);
  PutRow(key, std::string(1, '\1'));
}

void StoreWriter::PutKind(uint32_t group, uint64_t lba, uint64_t version, uint8_t kind) {
  std::string value;
  PutU8(&value, kind);
  PutFixed64(&value, version);
  PutRow(Key(group, 'm', lba), value);
}

void StoreWriter::PutZero(uint32_t group, uint64_t extent, uint64_t version) {
  std::string value;
  PutFixed64(&value, version);
  PutRow(Key(group, 'z', extent), value);
}

void StoreWriter::PutPresence(uint32_t group, uint64_t extent, const std::vector<uint32_t>& blocks,
                              uint32_t bytes) {
  std::string bitmap(bytes, '\0');
  for (const uint32_t block : blocks) bitmap[block / 8] |= static_cast<char>(1 << (block % 8));
  PutRow(Key(group, 'p', extent), bitmap);
}

void StoreWriter::PutMeta(uint32_t group, uint8_t pages_per_block, uint64_t applied,
                          const std::string& open_entries, uint64_t open_count, uint8_t flags) {
  std::string value;
  PutU8(&value, 1);
  PutU8(&value, pages_per_block);
  PutU8(&value, flags);
  value += Varints({applied, 0, 1, 3, 4}) + "hard" + Varints({0, 5}) + "state";
  value += Varints({open_count}) + open_entries;
  PutRow(Key(group, 'M'), value);
}

std::string StoreWriter::OpenEntry(uint64_t instance, uint64_t round, uint64_t node,
                                   const Written& batch, uint32_t record_offset) {
  std::string entry = Varints({instance, round, node});
  PutU8(&entry, 0);
  return entry + Varints({batch.segment, batch.page, record_offset});
}

void StoreWriter::PutIntent(uint64_t id) {
  PutRow(Key(0xFFFFFFFF, 'i'), std::string(1, '\1') + Varints({id, 1, 1, 2}));
}

void StoreWriter::PutDropped(uint32_t group, bool swept) {
  std::string key = Key(0xFFFFFFFF, 'd');
  PutBig32(&key, group);
  PutRow(key, std::string(1, swept ? '\1' : '\0'));
}

void StoreWriter::Checkpoint(uint64_t id) {
  PutRow(Key(0xFFFFFFFF, 'c'), CheckpointValue(id, next_, chain_,
                                               {std::pair{lanes_[0].segment, lanes_[0].page},
                                                std::pair{lanes_[1].segment, lanes_[1].page}}));
}

std::string StoreWriter::CheckpointValue(
    uint64_t id, uint64_t next, uint32_t chain,
    const std::array<std::pair<uint32_t, uint32_t>, 2>& lanes) const {
  std::string value(1, '\1');
  value += Varints({id, next});
  PutFixed32(&value, chain);
  value += Varints({generation_, highest_segment_});
  for (const auto& [segment, page] : lanes) value += Varints({segment, page});
  PutU8(&value, 0);
  return value;
}

void StoreWriter::WriteMap(bool compact) {
  const std::string path = directory_ + "/map";
  fs::remove_all(path);
  leveldb::Options options;
  options.create_if_missing = true;
  leveldb::DB* raw = nullptr;
  HYDRA_CHECK(leveldb::DB::Open(options, path, &raw).ok());
  const std::unique_ptr<leveldb::DB> db(raw);
  for (const auto& [key, value] : rows_) HYDRA_CHECK(db->Put({}, key, value).ok());
  if (compact) db->CompactRange(nullptr, nullptr);
}

// --- Damage ----------------------------------------------------------------------------------

void StoreWriter::Flip(const std::string& path, uint64_t byte, uint8_t mask) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekg(static_cast<std::streamoff>(byte));
  const char c = static_cast<char>(file.get() ^ mask);
  file.seekp(static_cast<std::streamoff>(byte));
  file.put(c);
  HYDRA_CHECK(file.good());
}

void StoreWriter::FlipPage(uint32_t segment, uint32_t page, uint32_t byte) {
  Flip(SegmentPath(segment), uint64_t{page} * kPage + byte);
}

void StoreWriter::Overwrite(const std::string& path, uint64_t offset, const std::string& bytes) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(static_cast<std::streamoff>(offset));
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  HYDRA_CHECK(file.good());
}

std::string StoreWriter::ReadFile(const std::string& path) const {
  std::ifstream in(path, std::ios::binary);
  std::stringstream out;
  out << in.rdbuf();
  return out.str();
}

std::string StoreWriter::MapFile(const std::string& ending) const {
  std::string found;
  for (const auto& entry : fs::directory_iterator(directory_ + "/map")) {
    const std::string path = entry.path().string();
    if (path.ends_with(ending) && entry.file_size() > 0) found = path;
  }
  HYDRA_CHECK(!found.empty());
  return found;
}

std::map<std::string, std::string> Snapshot(const std::string& directory) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    std::string state;
    if (entry.is_regular_file()) {
      std::ifstream in(entry.path(), std::ios::binary);
      std::stringstream out;
      out << in.rdbuf();
      state = out.str();
    }
    struct stat info = {};
    HYDRA_CHECK(stat(entry.path().c_str(), &info) == 0);
    files[entry.path().string()] =
        fmt::format("{}.{} ", info.st_mtim.tv_sec, info.st_mtim.tv_nsec) + state;
  }
  return files;
}

// --- UnreadablePages -------------------------------------------------------------------------

namespace {

class BrokenFile : public File {
 public:
  BrokenFile(std::unique_ptr<File> file, std::vector<uint32_t> pages)
      : file_(std::move(file)), pages_(std::move(pages)) {}

  Result<size_t> PRead(uint64_t offset, std::span<uint8_t> out) override {
    for (const uint64_t page : pages_) {
      if (page * kPage < offset + out.size() && (page + 1) * kPage > offset) {
        return Status::IoError("this page is gone");
      }
    }
    return file_->PRead(offset, out);
  }
  Status PWriteV(uint64_t, std::span<const IoSlice>, Durability) override {
    return Status::IoError("read-only");
  }
  Status Sync() override { return Status::IoError("read-only"); }
  Status Allocate(uint64_t) override { return Status::IoError("read-only"); }
  Status Truncate(uint64_t) override { return Status::IoError("read-only"); }
  Result<uint64_t> Size() override { return file_->Size(); }
  void DropCache() override {}

 private:
  std::unique_ptr<File> file_;
  std::vector<uint32_t> pages_;
};

}  // namespace

Result<std::unique_ptr<File>> UnreadablePages::Open(const std::string& path,
                                                    const OpenOptions& options) {
  HYDRA_ASSIGN_OR_RETURN(auto file, fs_.Open(path, options));
  const auto it = broken_.find(path);
  if (it == broken_.end()) return file;
  return std::unique_ptr<File>(new BrokenFile(std::move(file), it->second));
}

}  // namespace hydra::tool_test
