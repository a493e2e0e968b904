// SPDX-License-Identifier: Apache-2.0
//
// The session of a group, and the way of a request to an answer.
#include <algorithm>
#include <utility>

#include <boost/asio/post.hpp>
#include <fmt/format.h>

#include "base/check.h"
#include "base/crc32c.h"
#include "base/logging.h"
#include "client/io_codec.h"
#include "client/router_core.h"

namespace hydra {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using Answer = rpc::Reply;

constexpr microseconds kFirstRetry(500);
constexpr microseconds kLongestRetry(100'000);
// Redirects followed at once; more in a row means that nobody knows who the master is.
constexpr unsigned kQuickRedirects = 3;
constexpr milliseconds kOpenTimeout(10'000);
constexpr milliseconds kOutOfRangePatience(1'000);
// A node that gave no answer is asked again because others call it the master, but not so soon.
constexpr std::chrono::seconds kAvoided(5);
// A session that nothing was written through for so long is given up rather than kept alive: an
// idle client costs its groups nothing, and the next write opens another.
constexpr std::chrono::seconds kSessionIdle(120);

std::string Describe(const GroupOp& op) {
  switch (op.request.kind) {
    case GroupRequest::Kind::kRead: return "the read";
    case GroupRequest::Kind::kWrite:
    case GroupRequest::Kind::kWritePart: return "the write";
    case GroupRequest::Kind::kZero: return "the write of zeroes";
    case GroupRequest::Kind::kUnmap: return "the discard";
    case GroupRequest::Kind::kCompareAndWrite:
    case GroupRequest::Kind::kComparePart: return "the compare-and-write";
    case GroupRequest::Kind::kFence: return "the fence";
  }
  return "the request";
}

// What came for a read is what was asked for, and was not changed on its way.
Status CheckRead(const GroupRequest& request, const Answer& reply, const NodeLink::Answer& answer) {
  const auto count = static_cast<size_t>(request.count);
  if (request.map_only) {
    if (reply.kinds().size() == count) return Status::Ok();
    return Status::Corruption(fmt::format("the map of {} blocks was answered with {} kinds", count,
                                          reply.kinds().size()));
  }
  if (reply.kinds().size() != count || static_cast<size_t>(reply.crcs_size()) != count) {
    return Status::Corruption(
        fmt::format("a read of {} blocks was answered with {} kinds and {} checksums", count,
                    reply.kinds().size(), reply.crcs_size()));
  }
  size_t at = 0;
  for (size_t i = 0; i < count; ++i) {
    const auto kind = static_cast<ReadKind>(reply.kinds()[i]);
    if (kind == ReadKind::kZero || kind == ReadKind::kUnmapped) continue;
    if (kind != ReadKind::kData || answer.payload_bytes - at < request.block_bytes) {
      return Status::Corruption(
          "a read was answered with too few bytes, or blocks of no known kind");
    }
    if (Crc32c(answer.payload.data() + at, request.block_bytes) !=
        reply.crcs(static_cast<int>(i))) {
      return Status::Corruption(
          fmt::format("block {} arrived with a wrong checksum", request.lba + i));
    }
    at += request.block_bytes;
  }
  if (at != answer.payload_bytes)
    return Status::Corruption("a read was answered with too many bytes");
  return Status::Ok();
}

}  // namespace

microseconds BackOff::Next(Rng* rng) {
  const microseconds delay = std::min(kLongestRetry, kFirstRetry * (1 << std::min(tries_, 10u)));
  ++tries_;
  return delay / 2 + microseconds(rng->Below(static_cast<uint64_t>(delay.count())));
}

void GroupClient::SetReplicas(const CatalogueView::Group& group) {
  replicas_ = group.replicas;
  if (master_ == 0) master_ = group.preferred_master;
}

void GroupClient::Gone() {
  if (replicas_.empty()) return;  // it was never there
  replicas_.clear();
  master_ = 0;
  session_ = 0;
  unanswered_.clear();
  const auto self = shared_from_this();
  const std::vector<std::shared_ptr<GroupOp>> ops(ops_.begin(), ops_.end());
  for (const auto& op : ops) Fail(op, Status::NotFound("the volume was deleted"));
}

void GroupClient::Add(const std::shared_ptr<GroupOp>& op) {
  ops_.push_back(op);
  op->active = std::prev(ops_.end());
  core_->Wake(op->deadline);
}

void GroupClient::Submit(std::shared_ptr<GroupOp> op) {
  Add(op);
  if (!op->needs_session()) return Attempt(op);
  waiting_.push_back(std::move(op));
  Pump();
}

// --- The session --------------------------------------------------------------------------------

uint64_t GroupClient::LowestUnanswered() const {
  return unanswered_.empty() ? next_seq_ : unanswered_.front();
}

// One that ends at once (its time is up) calls this again. The loop that began it goes on instead:
// thousands of them would not fit on the stack.
void GroupClient::Pump() {
  pump_again_ = true;
  if (pumping_) return;
  const auto self = shared_from_this();
  pumping_ = true;
  while (std::exchange(pump_again_, false)) {
    while (BeginNext()) {
    }
  }
  pumping_ = false;
}

bool GroupClient::BeginNext() {
  if (waiting_.empty()) return false;
  if (waiting_.front()->finished) {
    waiting_.pop_front();
    return true;
  }
  if (session_ == 0) {
    OpenSession();
    return false;
  }
  if (next_seq_ - LowestUnanswered() >= kWindow) return false;
  const std::shared_ptr<GroupOp> op = std::move(waiting_.front());
  waiting_.pop_front();
  op->session = session_;
  op->seq = next_seq_++;
  unanswered_.push_back(op->seq);
  last_mutation_ = SteadyClock::now();
  Attempt(op);
  return true;
}

void GroupClient::SendControl(GroupOp::Purpose purpose, uint64_t session, milliseconds timeout,
                              GroupDone done) {
  auto op = std::make_shared<GroupOp>();
  op->purpose = purpose;
  op->session = session;
  op->request.kind = GroupRequest::Kind::kZero;  // for the master
  op->request.group = id_;
  op->deadline = SteadyClock::now() + timeout;
  op->done = std::move(done);
  Add(op);
  Attempt(op);
}

void GroupClient::OpenSession() {
  if (opening_) return;
  opening_ = true;
  SendControl(GroupOp::Purpose::kOpenSession, 0, kOpenTimeout,
              [self = shared_from_this()](GroupReply reply) {
                self->opening_ = false;
                if (reply.status.ok()) {
                  self->session_ = reply.version;
                  self->next_seq_ = 1;
                  self->last_touched_ = self->last_mutation_ = SteadyClock::now();
                  ++self->core_->stats.sessions;
                  self->core_->Wake(self->last_touched_ + self->core_->options.session_timeout / 3);
                } else {
                  for (const auto& op : self->waiting_) op->last_error = reply.status;
                }
                if (!self->core_->stopped) self->Pump();
              });
}

// Whatever is under way in it will be told by the group that it is gone.
void GroupClient::LoseSession(uint64_t session) {
  if (session_ != session) return;
  ++core_->stats.expired;
  session_ = 0;
  next_seq_ = 1;
  unanswered_.clear();
}

// --- Attempts -----------------------------------------------------------------------------------

NodeId GroupClient::PickNode(const GroupOp& op) {
  const auto good = [&](NodeId node) { return node != 0 && !op.damaged.contains(node); };
  if (good(master_)) return master_;
  // Links that are known to be down are passed over as long as there is another.
  NodeId any = 0;
  for (size_t i = 0; i < replicas_.size(); ++i) {
    const NodeId node = replicas_[turn_++ % replicas_.size()];
    if (!good(node)) continue;
    const auto link = core_->LinkOf(node);
    if (link && link->usable()) return node;
    any = node;
  }
  return any;
}

std::string GroupClient::Encode(const GroupOp& op) const {
  const bool is_io =
      op.purpose == GroupOp::Purpose::kIo && op.request.kind != GroupRequest::Kind::kFence;
  return is_io ? EncodeIo(op) : EncodeOther(op);
}

std::string GroupClient::EncodeOther(const GroupOp& op) const {
  rpc::Request message;
  switch (op.purpose) {
    case GroupOp::Purpose::kOpenSession: {
      auto* open = message.mutable_open_session();
      open->set_group(id_);
      open->set_timeout_ms(static_cast<uint32_t>(core_->options.session_timeout.count()));
      return message.SerializeAsString();
    }
    case GroupOp::Purpose::kKeepAlive: {
      auto* keep = message.mutable_keep_alive();
      keep->set_group(id_);
      keep->set_session(op.session);
      keep->set_lowest_unanswered(LowestUnanswered());
      return message.SerializeAsString();
    }
    case GroupOp::Purpose::kCloseSession: {
      auto* close = message.mutable_close_session();
      close->set_group(id_);
      close->set_session(op.session);
      return message.SerializeAsString();
    }
    case GroupOp::Purpose::kIo: break;
  }
  HYDRA_CHECK(op.request.kind == GroupRequest::Kind::kFence);
  message.mutable_fence()->set_group(id_);
  message.mutable_fence()->set_epoch(op.request.epoch);
  return message.SerializeAsString();
}

std::string GroupClient::EncodeIo(const GroupOp& op) const {
  const GroupRequest& request = op.request;
  rpc::Io* io = &core_->io;
  io->Clear();
  io->set_kind(static_cast<rpc::Io::Kind>(request.kind));
  io->set_group(id_);
  io->set_lba(request.lba);
  io->set_count(request.count);
  io->mutable_crcs()->Assign(request.crcs.begin(), request.crcs.end());
  io->mutable_extents()->Assign(request.extents.begin(), request.extents.end());
  io->set_part_offset(request.part_offset);
  io->set_part_bytes(request.part_bytes);
  io->set_epoch(request.epoch);
  io->set_request(request.request);
  if (request.is_read()) {
    io->set_local(request.local);
    io->set_map_only(request.map_only);
  } else {
    HYDRA_CHECK(op.session != 0 && op.seq != 0);
    io->set_session(op.session);
    io->set_seq(op.seq);
    // Numbers of a session that is gone count for nothing.
    io->set_lowest_unanswered(op.session == session_ ? LowestUnanswered() : 1);
    io->set_seen(request.seen);
  }
  return hydra::EncodeIo(*io);
}

void GroupClient::Attempt(const std::shared_ptr<GroupOp>& op) {
  if (op->finished) return;
  const TimePoint now = SteadyClock::now();
  if (now >= op->deadline) return GiveUp(op, "no answer in time");
  op->node = PickNode(*op);
  const auto link = op->node == 0 ? nullptr : core_->LinkOf(op->node);
  if (link == nullptr) {
    core_->RefreshSoon();
    Suspect(op->node);
    return RetryLater(op,
                      Status::Unavailable(fmt::format("no node is known to have group {}", id_)));
  }
  const uint64_t attempt = ++op->attempt;
  op->out = true;
  op->attempted = now;
  op->attempt_deadline = std::min(op->deadline, now + core_->options.attempt_timeout);
  core_->Wake(std::min(op->attempt_deadline, now + core_->options.look_around_after));
  ++core_->stats.attempts;
  if (op->maybe_executed) ++core_->stats.repeated_safe;
  link->Call(Encode(*op), op->request.payload, op->request.payload_bytes(),
             core_->options.attempt_timeout,
             [self = shared_from_this(), op, attempt, node = op->node](NodeLink::Answer&& answer) {
               self->OnAnswer(op, attempt, node, &answer);
             });
}

void GroupClient::Retry(const std::shared_ptr<GroupOp>& op, microseconds delay) {
  op->out = false;
  if (!op->retry_timer) op->retry_timer.emplace(*core_->context);
  op->retry_timer->expires_after(delay);
  op->retry_timer->async_wait(
      [self = shared_from_this(), op](const boost::system::error_code& error) {
        if (!error) self->Attempt(op);
      });
}

void GroupClient::RetryLater(const std::shared_ptr<GroupOp>& op, Status why) {
  op->last_error = std::move(why);
  op->redirects = 0;
  Retry(op, op->back_off.Next(&core_->rng));
}

void GroupClient::Suspect(NodeId node) {
  if (master_ == node) master_ = 0;
}

void GroupClient::NoAnswer(NodeId node) {
  Suspect(node);
  unanswering_ = node;
  avoided_until_ = SteadyClock::now() + kAvoided;
}

// A follower reads as well, but asks its master first: whoever only reads would stay with it. What
// it can reach, this client may not: nothing waits to find out, and who answers is asked until
// then.
void GroupClient::FollowHint(NodeId node, NodeId master) {
  if (master == 0 || master == master_) return;
  const auto link = core_->LinkOf(master);
  const bool avoided = master == unanswering_ && SteadyClock::now() < avoided_until_;
  if (!avoided && link && link->Reach()) {
    master_ = master;
  } else if (master_ == 0) {
    master_ = node;
  }
}

// --- Answers ------------------------------------------------------------------------------------

void GroupClient::OnAnswer(const std::shared_ptr<GroupOp>& op, uint64_t attempt, NodeId node,
                           NodeLink::Answer* answer) {
  if (op->finished) return;
  if (attempt != op->attempt || !op->out) {
    // An attempt that was given up. Its answer counts if it is an outcome.
    const bool outcome = answer->status.ok() && (answer->reply.answer() == Answer::DONE ||
                                                 answer->reply.answer() == Answer::MISCOMPARE);
    if (outcome) OnReply(op, node, answer);
    return;
  }
  op->out = false;
  if (answer->status.ok()) return OnReply(op, node, answer);
  if (answer->sent) {
    ++core_->stats.lost;
    op->maybe_executed = true;
    NoAnswer(node);
  } else {
    Suspect(node);
  }
  RetryLater(op, std::move(answer->status));
}

void GroupClient::OnReply(const std::shared_ptr<GroupOp>& op, NodeId node,
                          NodeLink::Answer* answer) {
  const Answer& reply = answer->reply;
  op->commit = std::max(op->commit, reply.commit());
  if (reply.answer() == Answer::DONE || reply.answer() == Answer::MISCOMPARE) {
    return OnDone(op, node, answer);
  }
  const std::string said = reply.message().empty() ? "" : ": " + reply.message();
  switch (reply.answer()) {
    case Answer::NOT_MASTER:
      ++core_->stats.redirects;
      op->last_error =
          Status::Unavailable(fmt::format("group {} has no master that node {} knows", id_, node));
      if (reply.master() != 0 && reply.master() != node) {
        master_ = reply.master();
        if (++op->redirects <= kQuickRedirects) return Retry(op, microseconds(0));
      } else if (reply.master() == 0) {
        Suspect(node);
      }
      return RetryLater(op, op->last_error);
    case Answer::BUSY:
      ++core_->stats.busy;
      return RetryLater(op, Status::Busy(fmt::format("node {} is busy{}", node, said)));
    case Answer::UNKNOWN:
      op->maybe_executed = true;
      Suspect(node);
      return RetryLater(op, Status::Unavailable(fmt::format("node {} lost mastership", node)));
    case Answer::NO_GROUP:
      Suspect(node);
      core_->RefreshSoon();
      return RetryLater(
          op, Status::Unavailable(fmt::format("node {} has no replica of group {}", node, id_)));
    case Answer::SESSION_EXPIRED: return OnExpired(op);
    case Answer::DAMAGED:
      if (op->request.is_read()) {
        return ReadElsewhere(
            op, node,
            Status::Corruption(fmt::format("the copy of node {} is damaged{}", node, said)));
      }
      // Compares and parts of blocks need the master's own copy: it is repaired, or the master
      // moves.
      return RetryLater(
          op, Status::Corruption(fmt::format("the copy of the master, node {}, is damaged", node)));
    case Answer::STALE:
      return Fail(op, Status::Stale("a newer write of these blocks stands" + said),
                  GroupAnswer::kStale);
    case Answer::FENCED:
      return Fail(op, Status::Fenced("access was narrowed meanwhile" + said), GroupAnswer::kFenced);
    case Answer::CANCELLED:
      return Fail(op, Status::FailedPrecondition("the request was cancelled" + said),
                  GroupAnswer::kCancelled);
    case Answer::FORGOTTEN:
      return Fail(op, Status::Aborted(Describe(*op) + " was executed, and its outcome forgotten"));
    case Answer::NO_SPACE:
      return Fail(
          op, Status::NoSpace("the cluster is out of space: discard data, or add disks" + said));
    case Answer::INVALID:
      if (static_cast<Code>(reply.code()) == Code::kOutOfRange) return OnOutOfRange(op, reply);
      return Fail(op, Status::InvalidArgument(said.empty() ? "the node refused the request"
                                                           : reply.message()));
    case Answer::FAILED:
      return Fail(op,
                  Status(reply.code() == 0 ? Code::kUnavailable : static_cast<Code>(reply.code()),
                         reply.message()));
    default: break;
  }
  Fail(op, Status::Unsupported(fmt::format("node {} answered {}, which this client does not know: "
                                           "upgrade the client",
                                           node, static_cast<int>(reply.answer()))));
}

void GroupClient::OnDone(const std::shared_ptr<GroupOp>& op, NodeId node,
                         NodeLink::Answer* answer) {
  rpc::Reply& reply = answer->reply;
  GroupReply result;
  result.node = node;
  result.commit = op->commit;
  result.version = reply.version();
  result.answer =
      reply.answer() == Answer::MISCOMPARE ? GroupAnswer::kMiscompare : GroupAnswer::kDone;
  if (op->purpose == GroupOp::Purpose::kOpenSession) {
    if (reply.session() == 0) {
      return RetryLater(op, Status::Corruption(fmt::format("node {} opened no session", node)));
    }
    result.version = reply.session();
  } else if (op->request.is_read()) {
    if (Status checked = CheckRead(op->request, reply, *answer); !checked.ok()) {
      return ReadElsewhere(op, node, checked.WithContext(fmt::format("from node {}", node)));
    }
    result.kinds = std::move(*reply.mutable_kinds());
    if (!op->request.map_only) {
      result.crcs.assign(reply.crcs().begin(), reply.crcs().end());
      result.versions.assign(reply.versions().begin(), reply.versions().end());
      result.payload = std::move(answer->payload);
    }
  }
  if (!op->request.is_read()) {
    master_ = node;
    if (op->session == session_) last_touched_ = SteadyClock::now();
  } else if (!op->request.local) {
    FollowHint(node, reply.master());
  }
  Finish(op, std::move(result));
}

void GroupClient::OnExpired(const std::shared_ptr<GroupOp>& op) {
  LoseSession(op->session);
  if (op->purpose != GroupOp::Purpose::kIo) {
    return Fail(op, Status::NotFound("the session is gone"));
  }
  if (op->maybe_executed) {
    return Fail(op,
                Status::Aborted(fmt::format(
                    "{} may or may not have happened: the session of group {} expired before an "
                    "answer came; read the blocks, and decide",
                    Describe(*op), id_)));
  }
  // No copy was ever taken: a new number in a new session is a first time.
  op->session = op->seq = 0;
  waiting_.push_front(op);
  Pump();
}

// The range was checked against the catalogue before: a node that refuses it may not know yet that
// the volume has grown.
void GroupClient::OnOutOfRange(const std::shared_ptr<GroupOp>& op, const rpc::Reply& reply) {
  const TimePoint now = SteadyClock::now();
  if (op->out_of_range_since == TimePoint{}) op->out_of_range_since = now;
  const Status why = Status::OutOfRange(reply.message());
  if (now - op->out_of_range_since > kOutOfRangePatience) return Fail(op, why);
  core_->RefreshSoon();
  RetryLater(op, why);
}

void GroupClient::ReadElsewhere(const std::shared_ptr<GroupOp>& op, NodeId node, Status why) {
  ++core_->stats.damaged;
  HYDRA_LOG_WARN("group {}: {}", id_, why.ToString());
  op->damaged.insert(node);
  const bool left = std::any_of(replicas_.begin(), replicas_.end(),
                                [&](NodeId replica) { return !op->damaged.contains(replica); });
  if (!left) return Fail(op, std::move(why));
  op->last_error = std::move(why);
  Retry(op, microseconds(0));
}

// --- Ends ---------------------------------------------------------------------------------------

void GroupClient::Finish(const std::shared_ptr<GroupOp>& op, GroupReply reply) {
  if (op->finished) return;
  op->finished = true;
  if (op->retry_timer) op->retry_timer->cancel();
  op->request.payload.clear();
  ops_.erase(op->active);
  // Whatever it was told is the last word: its number is not needed any more, and a copy that is
  // still on its way will come too late.
  if (op->needs_session() && op->session == session_ && session_ != 0) {
    const auto [from, to] = std::equal_range(unanswered_.begin(), unanswered_.end(), op->seq);
    unanswered_.erase(from, to);
  }
  const GroupDone done = std::move(op->done);
  const auto self = shared_from_this();
  core_->Release(op->bytes);
  if (done) done(std::move(reply));
  if (!core_->stopped) Pump();
}

void GroupClient::Fail(const std::shared_ptr<GroupOp>& op, Status status, GroupAnswer answer) {
  // A refusal speaks of the copy that was refused. An earlier one may still be on its way, or lie
  // with a former master whose entries are proposed again.
  if (op->needs_session() && op->maybe_executed && status.code() != Code::kAborted) {
    status =
        Status::Aborted(fmt::format("{} may or may not have happened: a later copy of it was "
                                    "refused ({}); read the blocks, and decide",
                                    Describe(*op), status.message()));
  }
  if (status.code() == Code::kAborted && op->needs_session()) ++core_->stats.unknown;
  GroupReply reply;
  reply.answer = answer;
  reply.commit = op->commit;
  reply.status = std::move(status);
  Finish(op, std::move(reply));
}

// The time is up, or everything ends.
void GroupClient::GiveUp(const std::shared_ptr<GroupOp>& op, const std::string& why) {
  std::string last;
  if (!op->last_error.ok()) last = fmt::format("; last: {}", op->last_error.message());
  if (op->needs_session() && (op->maybe_executed || op->out)) {
    return Fail(op, Status::Aborted(fmt::format("{} may or may not have happened: {}{}; read the "
                                                "blocks, and decide",
                                                Describe(*op), why, last)));
  }
  const std::string what =
      op->needs_session() ? Describe(*op) + " did not happen" : Describe(*op) + " failed";
  const Code code =
      op->last_error.code() == Code::kBusy || op->last_error.code() == Code::kCorruption
          ? op->last_error.code()
          : Code::kUnavailable;
  Fail(op, Status(code, fmt::format("{}: {}{}", what, why, last)));
}

TimePoint GroupClient::Tick(TimePoint now) {
  const auto self = shared_from_this();
  TimePoint next = TimePoint::max();
  const std::vector<std::shared_ptr<GroupOp>> ops(ops_.begin(), ops_.end());
  for (const auto& op : ops) {
    if (op->finished) continue;
    if (now >= op->deadline) {
      GiveUp(op, "no answer in time");
      continue;
    }
    next = std::min(next, op->deadline);
    if (!op->out) continue;
    if (now < op->attempt_deadline) {
      next = std::min({next, op->attempt_deadline, Watch(*op, now)});
      continue;
    }
    op->maybe_executed = true;
    NoAnswer(op->node);
    RetryLater(op, Status::Unavailable(fmt::format("node {} did not answer", op->node)));
  }
  if (session_ != 0 && !touching_) {
    const auto third = core_->options.session_timeout / 3;
    if (unanswered_.empty() && now - last_mutation_ > kSessionIdle) {
      SendControl(GroupOp::Purpose::kCloseSession, session_, kOpenTimeout, nullptr);
      session_ = 0;
    } else if (now - last_touched_ >= third) {
      touching_ = true;
      SendControl(GroupOp::Purpose::kKeepAlive, session_, core_->options.session_timeout,
                  [self](GroupReply) { self->touching_ = false; });
    } else {
      next = std::min(next, last_touched_ + third);
    }
  }
  return next;
}

void GroupClient::Stop() {
  const auto self = shared_from_this();
  const std::vector<std::shared_ptr<GroupOp>> ops(ops_.begin(), ops_.end());
  for (const auto& op : ops) GiveUp(op, "the client was closed");
  waiting_.clear();
}

}  // namespace hydra
