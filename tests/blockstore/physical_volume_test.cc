// SPDX-License-Identifier: Apache-2.0
#include "blockstore/physical_volume.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "base/rng.h"
#include "base/sim_disk.h"
#include "blockstore/batch_format.h"
#include "tests/support/gtest_status.h"

namespace hydra {
namespace {

class NoSink : public BatchSink {
 public:
  Status OnBatch(const ScannedBatch& batch, const StreamPosition&) override {
    ++batches;
    records += batch.records.size();
    return Status::Ok();
  }
  Status OnGap(uint64_t, uint64_t) override {
    ++gaps;
    return Status::Ok();
  }
  int batches = 0;
  size_t records = 0;
  int gaps = 0;
};

class PhysicalVolumeTest : public testing::Test {
 protected:
  PhysicalVolumeTest() : disk_(SimDisk::Options()) {
    EXPECT_OK(disk_.CreateDirectory("/v"));
    EXPECT_OK(disk_.SyncDirectory("/"));
    options_.fs = &disk_;
    options_.dir = "/v";
    options_.store = Uuid::Random();
    options_.segment_bytes = 4u << 20;
    options_.capacity_bytes = 16 * options_.segment_bytes;
    options_.reserve_segments = 4;
    options_.spare_segments = 6;
    options_.queue_bytes = 64u << 20;
    options_.queue_records = 100'000;
    options_.seal_after = 10 * kMillisecond;
    Open();
  }

  void Open() {
    auto volume = PhysicalVolume::Open(options_);
    ASSERT_OK(volume.status());
    volume_ = std::move(*volume);
    ASSERT_OK(volume_->Recover({}, 0, &sink_, &report_));
    while (auto job = volume_->NextSpareJob()) {
      job->Run();
      ASSERT_OK(volume_->FinishSpareJob(job.get()));
    }
  }

  void Push(Urgency urgency, uint32_t pages, uint32_t flow = 1, size_t longer = 0) {
    const std::string record = Encode(StableRecord{{{flow, 1}}}) + std::string(longer, '\xff');
    ASSERT_OK(volume_->CheckRoom(urgency, record.size(), pages));
    std::string sized = record;
    sized[2] = static_cast<char>(pages);
    sized[3] = static_cast<char>(pages >> 8);
    Payload payload;
    if (pages > 0) {
      Buffer bytes = Buffer::Allocate(pages * kPageSize);
      std::memset(bytes.data(), 0xff, bytes.size());
      payload.push_back({std::move(bytes), 0, pages * kPageSize});
    }
    volume_->Enqueue(urgency, flow, sized, std::move(payload), ++cookie_);
  }

  // Writes the next batch; its pages, or 0 if there is none.
  uint64_t WriteOne(Nanos now = 0) {
    Batch* batch = volume_->NextBatch(now);
    if (batch == nullptr) return 0;
    EXPECT_OK(batch->Write());
    const uint64_t pages = batch->bytes() / kPageSize;
    placed_.clear();
    volume_->BatchDone(batch, now, &placed_);
    return pages;
  }

  uint32_t LaneOf(const Placement& placement) { return volume_->Find(placement.segment)->lane; }

  SimDisk disk_;
  PhysicalVolume::Options options_;
  std::unique_ptr<PhysicalVolume> volume_;
  NoSink sink_;
  RecoveryReport report_;
  std::vector<PhysicalVolume::Placed> placed_;
  uint64_t cookie_ = 0;
};

TEST_F(PhysicalVolumeTest, CompletionsComeInTheOrderOfTheStream) {
  for (int i = 0; i < 300; ++i) Push(Urgency::kLog, 3);
  uint64_t last = 0;
  uint32_t page = 0;
  while (WriteOne() > 0) {
    for (const auto& placed : placed_) {
      EXPECT_EQ(placed.cookie, ++last);
      EXPECT_GE(placed.placement.payload_page, page);
      page = placed.placement.payload_page + 3;
    }
  }
  EXPECT_EQ(last, 300u);
}

// Their memory is used again and again: nothing of other batches may get to the disk with one.
TEST_F(PhysicalVolumeTest, BehindTheRecordsOfEachHeaderAreZeroes) {
  Rng rng(1);
  const Buffer buffer = Buffer::Allocate(kMaxHeaderPages * kPageSize);
  std::set<uint32_t> lengths;
  for (int i = 0; i < 300; ++i) {
    for (uint64_t n = 1 + rng.Below(8); n > 0; --n) {
      Push(Urgency::kLog, static_cast<uint32_t>(rng.Below(3)), 1,
           rng.Percent(30) ? rng.Below(3 * kPageSize) : 0);
    }
    while (WriteOne() > 0) {
      const Placement& placement = placed_.front().placement;
      const std::span<uint8_t> pages = buffer.span();
      File& file = *volume_->Find(placement.segment)->file->direct;
      const uint64_t at = uint64_t{placement.batch_page} * kPageSize;
      ASSERT_OK(file.ReadExactly(at, pages.first(kPageSize), "header"));
      const uint32_t count = PeekBatchHeader(placement.segment, placement.batch_page, pages);
      ASSERT_GT(count, 0u);
      ASSERT_OK(file.ReadExactly(at, pages.first(count * kPageSize), "header"));
      const auto header = DecodeBatchHeader(options_.store, placement.segment, placement.batch_page,
                                            options_.segment_bytes / kPageSize, pages);
      ASSERT_OK(header.status());
      lengths.insert(count);
      ASSERT_TRUE(std::all_of(pages.begin() + header->header_bytes,
                              pages.begin() + count * kPageSize, [](uint8_t b) { return b == 0; }));
    }
    while (auto job = volume_->NextSpareJob()) {
      job->Run();
      ASSERT_OK(volume_->FinishSpareJob(job.get()));
    }
    if (!volume_->CheckRoom(Urgency::kLog, 4 * kPageSize, 64).ok()) break;
  }
  EXPECT_GT(lengths.size(), 2u);
}

TEST_F(PhysicalVolumeTest, BackgroundGetsAQuarterWhileClientsWaitAndAllWhenTheyDoNot) {
  for (int i = 0; i < 1200; ++i) Push(Urgency::kLog, 1);
  for (int i = 0; i < 1200; ++i) Push(Urgency::kBackground, 1);
  uint64_t foreground = 0;
  uint64_t background = 0;
  size_t clients_left = 1200;
  while (clients_left > 0) {
    const uint64_t pages = WriteOne();
    ASSERT_GT(pages, 0u);
    if (LaneOf(placed_.front().placement) == kLogLane) {
      foreground += pages;
      clients_left -= placed_.size();
    } else {
      background += pages;
    }
  }
  EXPECT_GT(background, 0u) << "vacuum starves";
  EXPECT_LE(background, (foreground + background) / 4 + kMaxPayloadPages);
  EXPECT_GE(background, (foreground + background) / 6);
  while (WriteOne() > 0) {
  }
  EXPECT_TRUE(volume_->Idle());
}

TEST_F(PhysicalVolumeTest, ClientsMayNotTouchTheReserve) {
  size_t accepted = 0;
  Status status;
  while (true) {
    status = volume_->CheckRoom(Urgency::kLog, 64, 200);
    if (!status.ok()) break;
    Push(Urgency::kLog, 200);
    ASSERT_GT(WriteOne(), 0u);
    while (auto job = volume_->NextSpareJob()) {
      job->Run();
      ASSERT_OK(volume_->FinishSpareJob(job.get()));
    }
    ASSERT_LT(++accepted, 1000u);
  }
  EXPECT_EQ(volume_->total_segments(), 16u);
  EXPECT_GE(volume_->spares(), 4u);
  // Small records and vacuum go on.
  EXPECT_OK(volume_->CheckRoom(Urgency::kLog, 64, 0));
  EXPECT_OK(volume_->CheckRoom(Urgency::kHardState, 64, 0));
  EXPECT_OK(volume_->CheckRoom(Urgency::kBackground, 64, 200));
  // What clients hear depends on whether cleaning can help.
  EXPECT_CODE(status, Code::kBusy);
  volume_->SetAccountingComplete();
  EXPECT_CODE(volume_->CheckRoom(Urgency::kLog, 64, 200), Code::kBusy);
  for (const auto& [number, segment] : volume_->segments()) volume_->AddLive(number, 1000);
  EXPECT_CODE(volume_->CheckRoom(Urgency::kLog, 64, 200), Code::kNoSpace);
}

TEST_F(PhysicalVolumeTest, ARecoveredVolumeGoesOnWhereItStopped) {
  for (int i = 0; i < 20; ++i) {
    Push(Urgency::kLog, 2);
    if (i % 3 == 0) Push(Urgency::kBackground, 2);
    while (WriteOne() > 0) {
    }
  }
  const StreamPosition before = volume_->position();
  volume_.reset();
  disk_.PowerLoss();
  disk_.Restart();
  sink_ = {};
  Open();
  EXPECT_EQ(sink_.gaps, 0);
  EXPECT_EQ(sink_.records, cookie_);
  EXPECT_EQ(volume_->position().next_batch, before.next_batch);
  EXPECT_EQ(volume_->position().chain, before.chain);
  EXPECT_EQ(volume_->position().generation, before.generation + 1);
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    EXPECT_EQ(volume_->position().lanes[lane].segment, before.lanes[lane].segment);
    EXPECT_EQ(volume_->position().lanes[lane].page, before.lanes[lane].page);
  }
}

// A batch n that was cut stays in its lane as a leftover. The batch n that takes its place may go
// to the other lane; the generation says which one counts.
TEST_F(PhysicalVolumeTest, ALeftoverInOneLaneNeverBeatsItsReplacementInTheOther) {
  Push(Urgency::kLog, 1);
  ASSERT_GT(WriteOne(), 0u);
  Push(Urgency::kBackground, 1);
  ASSERT_GT(WriteOne(), 0u);
  // Batch 3 in lane 0: whole header, torn payload.
  Push(Urgency::kLog, 4);
  ASSERT_GT(WriteOne(), 0u);
  const Placement torn = placed_.front().placement;
  volume_.reset();
  const std::string path = "/v/" + SegmentFileName(torn.segment);
  // An accept is needed for its payload to be judged; flip the header's page instead of payload.
  auto file = disk_.Open(path, {});
  ASSERT_OK(file.status());
  Buffer page = Buffer::Allocate(kPageSize);
  ASSERT_OK((*file)->ReadExactly(torn.batch_page * kPageSize, page.span(), "header"));
  disk_.FlipBit(path, torn.batch_page * kPageSize + 70, 1);
  sink_ = {};
  Open();
  EXPECT_EQ(sink_.batches, 2);
  Push(Urgency::kBackground, 1);  // batch 3 again, in lane 1
  ASSERT_GT(WriteOne(), 0u);
  volume_.reset();
  // The leftover becomes readable again: the worst it can do.
  disk_.FlipBit(path, torn.batch_page * kPageSize + 70, 1);
  sink_ = {};
  Open();
  EXPECT_EQ(sink_.gaps, 0);
  EXPECT_EQ(sink_.batches, 3);
  EXPECT_EQ(volume_->position().lanes[kLogLane].page, torn.batch_page);
}

TEST_F(PhysicalVolumeTest, HalfMadeSparesAreRemovedAndForeignFilesLeftAlone) {
  volume_.reset();
  auto temporary = disk_.Open("/v/spare-0000000077.tmp", {.create = true});
  auto foreign = disk_.Open("/v/notes.txt", {.create = true});
  auto shortened = disk_.Open("/v/spare-0000000078", {.create = true});
  Open();
  EXPECT_FALSE(disk_.Exists("/v/spare-0000000077.tmp"));
  EXPECT_FALSE(disk_.Exists("/v/spare-0000000078"));
  EXPECT_TRUE(disk_.Exists("/v/notes.txt"));
}

// --- How spares are made ahead -------------------------------------------------------------------

class SparePaceTest : public PhysicalVolumeTest {
 protected:
  // A spare is wanted, and clients write.
  SparePaceTest() {
    options_.spare_segments += 1;
    volume_.reset();
    auto volume = PhysicalVolume::Open(options_);
    EXPECT_OK(volume.status());
    volume_ = std::move(*volume);
    EXPECT_OK(volume_->Recover({}, 0, &sink_, &report_));
    EXPECT_EQ(volume_->spares(), 10u);
    Push(Urgency::kLog, 1);
    WriteOne(kNow);
  }

  // Pieces that are made of spares until no more is due.
  int MakePieces() {
    int pieces = 0;
    while (auto job = volume_->NextSpareJob()) {
      job->Run();
      EXPECT_OK(volume_->FinishSpareJob(job.get()));
      ++pieces;
    }
    return pieces;
  }

  static constexpr Nanos kNow = 1000 * kSecond;
  static constexpr uint64_t kPieces = 16;  // of 256 KiB in a segment of 4 MiB
};

TEST_F(SparePaceTest, KeepsPaceWithWhatClientsWrite) {
  EXPECT_EQ(MakePieces(), 0) << "nothing to speak of was written";
  for (const int pages : {32, 250}) {
    uint64_t written = 0;
    int pieces = 0;
    const uint64_t before = volume_->counters().zero_fill_bytes;
    while (volume_->counters().zero_fill_bytes == before) {
      ASSERT_LT(written, options_.segment_bytes) << "it falls behind";
      Push(Urgency::kLog, static_cast<uint32_t>(pages));
      written += WriteOne(kNow) * kPageSize;
      const int now = MakePieces();
      EXPECT_LE(now, pages / 32) << "a client waits for that";
      pieces += now;
    }
    EXPECT_GE(pieces, kPieces - 1) << "long ones were made";
    EXPECT_GT(written, options_.segment_bytes / 2);
  }
}

TEST_F(SparePaceTest, GoesOnWhenNobodyWrites) {
  EXPECT_EQ(volume_->NextBatch(kNow + kMillisecond), nullptr);
  EXPECT_EQ(MakePieces(), 0);
  Batch* seal = volume_->NextBatch(kNow + kSecond);
  ASSERT_NE(seal, nullptr);
  EXPECT_EQ(MakePieces(), 0) << "a batch is being written";
  ASSERT_OK(seal->Write());
  volume_->BatchDone(seal, kNow + kSecond, &placed_);
  EXPECT_EQ(volume_->NextBatch(kNow + 2 * kSecond), nullptr);
  EXPECT_GE(MakePieces(), kPieces);
}

class IdleSparesTest : public SparePaceTest {
 protected:
  // Of a store that has grown to some segments, with as many spares as are always made.
  IdleSparesTest() {
    options_.capacity_bytes = 64 * options_.segment_bytes;
    options_.idle_spare_bytes = 16 * options_.segment_bytes;
    volume_.reset();
    Open();
    while (volume_->segments().size() < kSegments) {
      Push(Urgency::kLog, 250);
      WriteOne(kNow);
      MakePieces();
    }
    EXPECT_GE(volume_->spares() + 1, kAlways);
  }

  // How many spares there are when there is nothing more to do.
  size_t Rest(Nanos now) {
    for (; Batch* seal = volume_->NextBatch(now); now += kSecond) {
      EXPECT_OK(seal->Write());
      volume_->BatchDone(seal, now, &placed_);
    }
    volume_->NextBatch(now + kSecond);  // says what time it is
    MakePieces();
    return volume_->spares();
  }

  static constexpr size_t kSegments = 8;
  static constexpr size_t kAlways = 4 + 7;
};

TEST_F(IdleSparesTest, WhileNobodyWritesHalfAsManyAsThereAreSegmentsAreMadeBesides) {
  EXPECT_LE(volume_->spares(), kAlways) << "while somebody writes";
  EXPECT_EQ(Rest(kNow + kSecond), kAlways + volume_->segments().size() / 2);

  // A burst uses them up before any is filled beside it.
  const Nanos later = kNow + 100 * kSecond;
  const uint64_t filled = volume_->counters().zero_fill_bytes;
  while (volume_->spares() > kAlways) {
    Push(Urgency::kLog, 250);
    WriteOne(later);
    if (volume_->spares() < kAlways) break;
    EXPECT_EQ(MakePieces(), 0);
  }
  EXPECT_EQ(volume_->counters().zero_fill_bytes, filled);
}

TEST_F(IdleSparesTest, TheyAreBounded) {
  options_.idle_spare_bytes = 2 * options_.segment_bytes;
  volume_.reset();
  Open();
  EXPECT_EQ(Rest(kNow + kSecond), kAlways + 2);
}

TEST_F(IdleSparesTest, NoneWhereTheFileSystemHasLittleRoom) {
  disk_.SetCapacity(disk_.used_bytes() + 6 * options_.idle_spare_bytes);
  EXPECT_EQ(Rest(kNow + kSecond), kAlways);
}

// Clients wait for it: there is nothing to be kept from.
TEST_F(SparePaceTest, HurriesWhenItIsNeeded) {
  while (volume_->CheckRoom(Urgency::kLog, 64, 200).ok()) {
    Push(Urgency::kLog, 200);
  }
  EXPECT_GT(MakePieces(), 0);
  EXPECT_OK(volume_->CheckRoom(Urgency::kLog, 64, 200));
  EXPECT_GE(volume_->counters().zero_fill_bytes, options_.segment_bytes);
}

// It has the space of a segment, so it counts as one, also while no job is at it.
TEST_F(SparePaceTest, OneInTheMakingCounts) {
  const uint32_t before = volume_->total_segments();
  Push(Urgency::kLog, 60);
  WriteOne(kNow);
  EXPECT_EQ(MakePieces(), 1);
  EXPECT_EQ(volume_->total_segments(), before + 1);
  EXPECT_TRUE(disk_.Exists("/v/" + SpareName(11) + kTemporarySuffix));
  EXPECT_EQ(volume_->counters().zero_fill_bytes, 0u);
}

TEST_F(SparePaceTest, AFailureLeavesNothingBehind) {
  Push(Urgency::kLog, 60);
  WriteOne(kNow);
  EXPECT_EQ(MakePieces(), 1);
  Push(Urgency::kLog, 60);
  WriteOne(kNow);
  auto job = volume_->NextSpareJob();
  ASSERT_NE(job, nullptr);
  disk_.FailNth(IoKind::kWrite, 1);
  job->Run();
  EXPECT_CODE(volume_->FinishSpareJob(job.get()), Code::kIoError);
  EXPECT_FALSE(disk_.Exists("/v/" + SpareName(11) + kTemporarySuffix));
  EXPECT_EQ(volume_->total_segments(), 10u);
}

}  // namespace
}  // namespace hydra
