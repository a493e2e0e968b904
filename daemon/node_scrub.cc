// SPDX-License-Identifier: Apache-2.0
//
// Scrubbing at work: when, how fast, and what is remembered of it across restarts.
//
// The file SCRUB in the data directory holds two lines: "since T", from when the time to the next
// scheduled round counts (in seconds of the wall clock), and "completed T FOUND", the last round
// that came to its end. It is replaced as a whole. Nothing depends on it: without it the schedule
// begins anew.
#include <ctime>
#include <sstream>

#include <boost/asio/post.hpp>
#include <fmt/format.h>

#include "base/logging.h"
#include "daemon/node_impl.h"

namespace hydra {
namespace {

namespace asio = boost::asio;

constexpr char kScrubFile[] = "SCRUB";
constexpr size_t kScrubFileLimit = 4096;
// A round that failed is not tried again at once.
constexpr int64_t kAfterFailure = 3600;

int64_t WallSeconds() { return static_cast<int64_t>(std::time(nullptr)); }

}  // namespace

void Node::Impl::LoadScrub() {
  const int64_t now = WallSeconds();
  const auto text = fs_.ReadSmallFile(options_.dir + "/" + kScrubFile, kScrubFileLimit);
  std::istringstream in(text.ok() ? *text : std::string());
  std::string word;
  while (in >> word) {
    if (word == "since") {
      in >> scrub_.since;
    } else if (word == "completed") {
      in >> scrub_.completed >> scrub_.found;
    }
  }
  // A clock that was ahead must not put it off for years.
  if (scrub_.since > 0 && scrub_.since <= now) return;
  scrub_.since = now;
  SaveScrub();
}

// Elsewhere, one after the other: a disk may take longer to sync than a lease lasts.
void Node::Impl::SaveScrub() {
  asio::post(saver_, [this, text = fmt::format("since {}\ncompleted {} {}\n", scrub_.since,
                                               scrub_.completed, scrub_.found)] {
    const Status saved = fs_.ReplaceFile(options_.dir, kScrubFile, text);
    if (!saved.ok()) HYDRA_LOG_WARN("cannot remember when the scrub was: {}", saved.ToString());
  });
}

void Node::Impl::NoteScrub() {
  const Scrubber& scrubber = core_->scrubber();
  if (scrubber.rounds() == scrub_.rounds) return;
  scrub_.rounds = scrubber.rounds();
  scrub_.since = scrub_.completed = WallSeconds();
  scrub_.found = scrubber.round().found;
  SaveScrub();
}

void Node::Impl::TendScrub() {
  NoteScrub();
  Scrubber& scrubber = core_->scrubber();
  const int64_t now = WallSeconds();
  if (scrubber.round().running || options_.scrub_every == 0 || stopping_) return;
  if (now < scrub_.since + static_cast<int64_t>(options_.scrub_every)) return;
  if (!scrubber.round().failed.empty() && now < scrub_.tried + kAfterFailure) return;
  scrub_.tried = now;
  scrub_.repaired_before = core_->Repairs().repaired;
  scrubber.Start(options_.scrub_rate, clock_.Now());
}

void Node::Impl::Scrub(const Server::ClientPtr& client, const Frame& frame,
                       const rpc::Scrub& request) {
  NoteScrub();
  Scrubber& scrubber = core_->scrubber();
  const Nanos now = clock_.Now();
  if (request.action() == rpc::Scrub::START) {
    if (!scrubber.round().running) scrub_.repaired_before = core_->Repairs().repaired;
    scrub_.tried = WallSeconds();
    scrubber.Start(request.rate() == 0 ? options_.scrub_rate : request.rate(), now);
  } else if (request.action() == rpc::Scrub::STOP) {
    scrubber.Stop(now);
    scrub_.since = WallSeconds();  // until the schedule's next turn
    SaveScrub();
  } else {
    return AnswerStatus(client, frame,
                        Status::InvalidArgument("an action of a newer version: upgrade this node"));
  }
  AnswerStatus(client, frame, Status::Ok());
  Wake();
}

void Node::Impl::FillScrub(rpc::ScrubStatus* out) {
  NoteScrub();
  const Scrubber::Round& round = core_->scrubber().round();
  const RepairStats repairs = core_->Repairs();
  const Nanos end = round.running ? clock_.Now() : round.ended;
  out->set_running(round.running);
  out->set_complete(round.complete);
  out->set_rate(round.running ? round.rate : options_.scrub_rate);
  out->set_bytes(round.bytes);
  out->set_total(round.total);
  out->set_found(round.found);
  out->set_elapsed_ms(static_cast<uint64_t>((end - round.began) / kMillisecond));
  out->set_failed(round.failed);
  out->set_last_completed(static_cast<uint64_t>(scrub_.completed));
  out->set_last_found(scrub_.found);
  if (options_.scrub_every != 0) {
    out->set_next(static_cast<uint64_t>(scrub_.since) + options_.scrub_every);
  }
  if (round.began != 0) out->set_repaired(repairs.repaired - scrub_.repaired_before);
  out->set_under_repair(repairs.under_way);
  out->set_rotten_total(repairs.found);
  out->set_repaired_total(repairs.repaired);
  out->set_given_up_total(repairs.given_up);
}

void Node::Impl::UpdateScrubMetrics() {
  const auto gauge = [&](const char* name, const char* help, uint64_t value) {
    node_->metrics_.GetGauge(name, help)->Set(static_cast<int64_t>(value));
  };
  const Scrubber& scrubber = core_->scrubber();
  const RepairStats repairs = core_->Repairs();
  gauge("hydra_scrub_running", "1 while a scrub runs", scrubber.round().running ? 1 : 0);
  gauge("hydra_scrub_bytes", "verified by scrubs since start", scrubber.bytes_total());
  gauge("hydra_scrub_found", "rotten blocks and entries found by scrubs", scrubber.found_total());
  gauge("hydra_scrub_rounds", "scrubs completed since start", scrubber.rounds());
  gauge("hydra_rot_found", "rotten blocks to be repaired, since start", repairs.found);
  gauge("hydra_rot_repaired", "rotten blocks repaired from peers", repairs.repaired);
  gauge("hydra_rot_given_up",
        "rotten blocks of which no peer had a good copy, or this node no room for it",
        repairs.given_up);
  gauge("hydra_rot_under_repair", "rotten blocks being repaired", repairs.under_way);
  gauge("hydra_rot_reads", "reads answered with a peer's copy", repairs.reads);
}

}  // namespace hydra
