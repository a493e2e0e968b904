// SPDX-License-Identifier: Apache-2.0
//
// NOP, text, logout, task management, asynchronous messages.
#include <algorithm>

#include "base/logging.h"
#include "iscsi/session.h"

namespace hydra::iscsi {
namespace {

// Task management functions and responses (11.5, 11.6).
enum Function : uint8_t {
  kAbortTask = 1,
  kAbortTaskSet = 2,
  kClearAca = 3,
  kClearTaskSet = 4,
  kLunReset = 5,
  kWarmReset = 6,
  kColdReset = 7,
  kReassign = 8,
};
constexpr uint8_t kComplete = 0;
constexpr uint8_t kNoSuchTask = 1;
constexpr uint8_t kNoSuchLun = 2;
constexpr uint8_t kReassignNotSupported = 4;
constexpr uint8_t kNotSupported = 5;
constexpr uint8_t kRejected = 255;

constexpr uint8_t kAsyncLogout = 1;  // event: the target asks for a logout

}  // namespace

// --- NOP ----------------------------------------------------------------------------------------

void Session::HandleNop(const Header& header, std::vector<uint8_t> data) {
  // An answer to our own, which needs none.
  if (header.task_tag() == kNoTag) {
    const auto asked = asks_.find(header.transfer_tag());
    if (asked != asks_.end() && stalled_ && asked->second.since >= *stalled_) stalled_.reset();
    return AnswerAsks([&](uint32_t tag, const Ask&) { return tag == header.transfer_tag(); }, true);
  }
  Header answer(Opcode::kNopIn);
  answer.set_lun(header.lun());
  answer.set_task_tag(header.task_tag());
  answer.set_transfer_tag(kNoTag);
  const size_t most = std::min<size_t>(data.size(), parameters_.max_send_data);
  SendStatus(answer, std::string(data.begin(), data.begin() + static_cast<ptrdiff_t>(most)));
}

void Session::NoteTime(Nanos now) {
  if (now - now_ >= kStalled) stalled_ = resumed_ = now;
  now_ = std::max(now_, now);
}

void Session::Tick(Nanos now) {
  NoteTime(now);
  if (closed_) return;
  if (pinged_ != 0 && now - pinged_ >= kPingTimeout) {
    return output_->Close("the initiator does not answer");
  }
  for (const auto& [tag, ask] : asks_) {
    if (now - ask.since >= kPingTimeout) return output_->Close("the initiator answers no NOP");
  }
  // Whichever task it is for: the others wait for their turn on the same connection.
  if (!WaitsForData()) data_heard_ = now;
  // What the initiator did while this process did not run may not have been looked at yet.
  if (now - std::max(data_heard_, resumed_) >= kDataTimeout) {
    return output_->Close("the initiator does not send what it was asked for");
  }
  const std::optional<Nanos> stuck = output_->StuckSince();
  if (stuck && now - std::max(*stuck, resumed_) >= kDataTimeout) {
    return output_->Close("the initiator does not take its answers");
  }
  if (pinged_ != 0 || now - heard_ < kPingAfter) return;
  pinged_ = now;
  SendPing();
}

// Its tag, which the answer brings back.
uint32_t Session::SendPing() {
  const uint32_t tag = next_tag_++;
  if (next_tag_ == kNoTag) next_tag_ = 1;
  OutPdu ping;
  ping.header = Header(Opcode::kNopIn);
  ping.header.set_task_tag(kNoTag);
  ping.header.set_transfer_tag(tag);
  PutCounters(&ping.header, false);
  output_->Send(std::move(ping));
  return tag;
}

// An initiator that answers on this connection has not given it up, and so waits for every command
// that it has not aborted.
void Session::AskWhetherItWaits(const std::weak_ptr<ScsiTask>& weak,
                                std::function<void(bool)> done) {
  const TaskPtr task = weak.lock();
  if (closed_ || task == nullptr || task->aborted) return done(false);
  const uint32_t tag = SendPing();
  asks_[tag] = {weak, now_, std::move(done)};
}

void Session::AnswerAsks(const std::function<bool(uint32_t, const Ask&)>& which, bool waits) {
  std::vector<std::function<void(bool)>> calls;
  for (auto it = asks_.begin(); it != asks_.end();) {
    if (!which(it->first, it->second)) {
      ++it;
      continue;
    }
    calls.push_back(std::move(it->second.done));
    it = asks_.erase(it);
  }
  for (const auto& call : calls) call(waits);
}

// Figure 11.12: event at 36, parameters at 38, 40, 42.
void Session::RequestLogout(uint16_t seconds) {
  Header message(Opcode::kAsyncMessage);
  message.set_task_tag(kNoTag);
  message.bytes[36] = kAsyncLogout;
  Put16(&message.bytes[42], seconds);
  SendStatus(message);
}

// --- Text ---------------------------------------------------------------------------------------

void Session::HandleText(const Header& header, const std::vector<uint8_t>& data) {
  const bool continues = (header.flags() & 0x40) != 0;
  if (header.transfer_tag() != kNoTag) {
    // The next piece of an answer, or of a request.
    if (header.transfer_tag() != text_tag_) {
      return Reject(header, RejectReason::kInvalidField);
    }
    // While we answer, the initiator asks for more of the answer and says nothing.
    if (!text_answer_.empty() && !data.empty())
      return EndText(header, RejectReason::kProtocolError);
  } else {
    text_request_.clear();
    text_answer_.clear();
  }
  text_request_.append(data.begin(), data.end());
  if (text_request_.size() > kMaxTextBytes) return EndText(header, RejectReason::kOutOfResources);
  if (continues) return SendText(header);
  if (!text_request_.empty()) {
    const auto keys =
        ParseText({reinterpret_cast<const uint8_t*>(text_request_.data()), text_request_.size()});
    text_request_.clear();
    if (!keys.ok()) return EndText(header, RejectReason::kProtocolError);
    for (const KeyValue& pair : *keys) {
      if (pair.key == "MaxRecvDataSegmentLength") {
        TakeDataLimit(pair.value);
      } else if (pair.key != "SendTargets") {
        AppendText(pair.key, "NotUnderstood", &text_answer_);
      } else if (pair.value == "All" && !parameters_.discovery) {
        AppendText(pair.key, "Reject", &text_answer_);
      } else {
        const std::string one = pair.value.empty() ? parameters_.target : pair.value;
        text_answer_ += environment_.list_targets(pair.value == "All" ? "" : one);
      }
    }
  }
  SendText(header);
}

// What the initiator takes at a time may be declared anew at any time (13.12), and is not answered.
void Session::TakeDataLimit(const std::string& value) {
  const auto bytes = ParseNumber(value);
  if (!bytes || *bytes < kMinDataSegment || *bytes > kMaxDataSegment) {
    return AppendText("MaxRecvDataSegmentLength", "Reject", &text_answer_);
  }
  parameters_.max_send_data = *bytes;
}

// What an exchange that is refused has piled up is gone with it.
void Session::EndText(const Header& request, RejectReason reason) {
  text_request_.clear();
  text_answer_.clear();
  text_tag_ = kNoTag;
  Reject(request, reason);
}

// As much of the answer as the initiator takes at a time; it asks for the rest with our tag, and
// goes on with it if it has more to say (no F).
void Session::SendText(const Header& request) {
  const bool receiving = (request.flags() & 0x40) != 0;
  const size_t now =
      receiving ? 0 : std::min<size_t>(text_answer_.size(), parameters_.max_send_data);
  const bool rest = !receiving && now < text_answer_.size();
  const bool more = receiving || rest || !request.final();
  Header answer(Opcode::kTextResponse, rest ? 0x40 : more ? 0x00 : 0x80);
  answer.set_lun(request.lun());
  answer.set_task_tag(request.task_tag());
  text_tag_ = more ? next_tag_++ : kNoTag;
  if (next_tag_ == kNoTag) next_tag_ = 1;
  answer.set_transfer_tag(text_tag_);
  SendStatus(answer, text_answer_.substr(0, now));
  text_answer_.erase(0, now);
}

// --- Logout -------------------------------------------------------------------------------------

void Session::HandleLogout(const Header& header) {
  const uint8_t reason = header.flags() & 0x7f;
  Header answer(Opcode::kLogoutResponse);
  answer.set_task_tag(header.task_tag());
  Put16(&answer.bytes[40], 2);  // Time2Wait; nothing is retained
  if (reason > 1) {
    // Removing a connection for recovery: there is no recovery.
    answer.bytes[2] = 2;
    return SendStatus(answer);
  }
  if (reason == 1 && Get16(&header.bytes[20]) != parameters_.cid) {
    answer.bytes[2] = 1;  // no such connection
    return SendStatus(answer);
  }
  logged_out_ = true;
  const auto leave = [self = shared_from_this(), answer] {
    if (self->closed_) return;
    self->SendStatus(answer);
    self->output_->Close("logged out");
  };
  AbortTasks([self = shared_from_this(), leave] {
    if (!self->environment_.unit) return leave();
    self->environment_.unit->Release(self->nexus_.id(), leave);
  });
}

// --- Task management ----------------------------------------------------------------------------

void Session::AnswerTaskRequest(const Header& header, uint8_t response) {
  Header answer(Opcode::kTaskResponse);
  answer.bytes[2] = response;
  answer.set_task_tag(header.task_tag());
  SendStatus(answer);
}

// What may still happen is not aborted, and the initiator had better reset the unit, which fences
// it.
uint8_t Session::OutcomeOf(const std::vector<TaskPtr>& aborted) {
  const auto unknown = [](const TaskPtr& task) { return task->unknown; };
  return std::any_of(aborted.begin(), aborted.end(), unknown) ? kRejected : kComplete;
}

void Session::HandleTaskRequest(const Header& header) {
  const uint8_t function = header.flags() & 0x7f;
  if (!environment_.unit) return AnswerTaskRequest(header, kRejected);
  const bool for_unit = function <= kLunReset && function != kAbortTask;
  if (for_unit && header.lun() != 0) return AnswerTaskRequest(header, kNoSuchLun);
  const auto answer_reset = [self = shared_from_this(), header](const Status& reset) {
    if (!reset.ok()) HYDRA_LOG_WARN("iSCSI: a reset failed: {}", reset.ToString());
    self->AnswerTaskRequest(header, reset.ok() ? kComplete : kRejected);
  };
  HYDRA_LOG_INFO("iSCSI session of {}: task management function {}, {} tasks",
                 parameters_.initiator, function, tasks_.size());
  switch (function) {
    case kAbortTask: return AbortOne(header);
    // Each nexus has a task set of its own (TST in the control mode page), so these are the same.
    case kAbortTaskSet:
    case kClearTaskSet: {
      std::vector<TaskPtr> aborted;
      for (const auto& [tag, task] : tasks_) aborted.push_back(task);
      return AbortTasks([self = shared_from_this(), header, aborted] {
        self->AnswerTaskRequest(header, OutcomeOf(aborted));
      });
    }
    case kLunReset: return environment_.unit->Reset(Asc::kLunReset, answer_reset, &nexus_);
    case kWarmReset: return environment_.unit->Reset(Asc::kResetOccurred, answer_reset, &nexus_);
    case kColdReset:
      return environment_.unit->Reset(
          Asc::kResetOccurred,
          [answer_reset, unit = environment_.unit](const Status& reset) {
            answer_reset(reset);
            if (reset.code() != Code::kFenced) unit->Disconnect();
          },
          &nexus_);
    case kReassign: return AnswerTaskRequest(header, kReassignNotSupported);
    default: return AnswerTaskRequest(header, kNotSupported);
  }
}

// Figure 11.5: the task's tag at 20, its CmdSN at 32.
void Session::AbortOne(const Header& header) {
  const auto found = tasks_.find(header.Field32(20));
  const uint32_t sn = header.Field32(32);
  if (found != tasks_.end()) {
    const TaskPtr task = found->second;
    return AbortTask(task, [self = shared_from_this(), header, task] {
      self->AnswerTaskRequest(header, OutcomeOf({task}));
    });
  }
  const bool to_come = !SerialLess(sn, expected_sn_) && !SerialLess(max_sn_, sn);
  if (!to_come || held_.contains(sn)) return AnswerTaskRequest(header, kNoSuchTask);
  // It has not come yet. Should it, it is not carried out; its number is taken.
  Held gone;
  gone.skip = true;
  Deliver(sn, std::move(gone));
  AnswerTaskRequest(header, kComplete);
}

}  // namespace hydra::iscsi
