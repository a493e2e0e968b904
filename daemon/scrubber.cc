// SPDX-License-Identifier: Apache-2.0
#include "daemon/scrubber.h"

#include <algorithm>

#include "base/logging.h"

namespace hydra {
namespace {

constexpr double kShareWhileBusy = 0.25;

}  // namespace

void Scrubber::Start(uint64_t rate, Nanos now) {
  rate = std::max<uint64_t>(rate, 1);
  if (round_.running) {
    round_.rate = rate;
    return;
  }
  round_ = {};
  round_.running = true;
  round_.rate = rate;
  round_.began = now;
  for (const GroupId group : engine_->Groups()) {
    const auto info = engine_->Info(group);
    if (info.ok()) round_.total += info->data_blocks * info->block_pages * kPageSize;
  }
  ticked_ = now;
  credit_ = 0;
  engine_->RestartScrub();
  HYDRA_LOG_INFO("scrub: begins, about {} MiB", round_.total >> 20);
}

void Scrubber::Stop(Nanos now) {
  if (!round_.running) return;
  HYDRA_LOG_INFO("scrub: stopped after {} MiB", round_.bytes >> 20);
  End(now);
}

void Scrubber::End(Nanos now) {
  round_.running = false;
  round_.ended = now;
}

void Scrubber::Tick(Nanos now, bool clients, std::vector<ShardRead>* reads) {
  if (!round_.running) return;
  const double passed = static_cast<double>(std::max<Nanos>(now - ticked_, 0)) / kSecond;
  ticked_ = std::max(now, ticked_);
  const double share = clients ? kShareWhileBusy : 1.0;
  credit_ = std::min(credit_ + passed * share * static_cast<double>(round_.rate),
                     static_cast<double>(kLargestPiece));
  if (out_ || credit_ < static_cast<double>(kSmallestPiece)) return;
  auto job = engine_->PlanScrub(static_cast<uint64_t>(credit_));
  if (!job.ok()) return;  // its last piece is still out, or it will never scrub again
  out_ = true;
  reads->push_back({kNodeGroup, 0, std::move(*job), kLargestPiece});
}

std::vector<Damage> Scrubber::Done(std::unique_ptr<ReadJob> job, Nanos now) {
  out_ = false;
  auto piece = engine_->FinishScrub(std::move(job));
  if (!piece.ok()) {
    HYDRA_LOG_ERROR("scrub: {}", piece.status().ToString());
    round_.failed = piece.status().ToString();
    if (round_.running) End(now);
    return {};
  }
  // Rows without data cost a little, too.
  credit_ -= static_cast<double>(std::max(piece->bytes, kSmallestPiece));
  bytes_total_ += piece->bytes;
  found_total_ += piece->found.size();
  if (!round_.running) return std::move(piece->found);
  round_.bytes += piece->bytes;
  round_.found += piece->found.size();
  if (piece->end) {
    round_.complete = true;
    ++rounds_;
    HYDRA_LOG_INFO("scrub: complete, {} MiB verified, {} rotten", round_.bytes >> 20, round_.found);
    End(now);
  }
  return std::move(piece->found);
}

}  // namespace hydra
