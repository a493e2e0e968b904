// SPDX-License-Identifier: Apache-2.0
//
// Carrying commands out, and answering them.
#include <algorithm>

#include "base/check.h"
#include "base/logging.h"
#include "iscsi/session.h"

namespace hydra::iscsi {
namespace {

constexpr uint8_t kOverflow = 0x04;
constexpr uint8_t kUnderflow = 0x02;
constexpr uint8_t kHasStatus = 0x01;

}  // namespace

// --- Starting -----------------------------------------------------------------------------------

// Simple tasks start when their data is there; one that is ordered waits for all before it, and all
// behind it wait for it. One for the head of the queue waits for none, and all others, wherever
// they are, wait for it (SAM-5, 8.6).
void Session::Pump() {
  // Starting one may end it, and others, at once: begin anew after each.
  while (!closed_) {
    const auto ready = FindReady();
    if (ready == nullptr) return;
    StartTask(ready);
  }
}

Session::TaskPtr Session::FindReady() const {
  bool first = true;
  bool blocked = false;
  for (const TaskPtr& task : queue_) {
    const bool waits_for_data =
        task->writes && (task->unsolicited || !task->r2ts.empty() ||
                         (!task->damaged && !task->refused && task->requested < task->expected));
    bool may = !task->running && !waits_for_data;
    if (task->attribute == Attribute::kOrdered) {
      may = may && first && heads_ == 0;
      blocked = true;
    } else if (task->attribute != Attribute::kHeadOfQueue) {
      may = may && !blocked && heads_ == 0;
    }
    if (may) return task;
    first = false;
  }
  return nullptr;
}

void Session::StartTask(const TaskPtr& task) {
  task->running = true;
  if (environment_.clock != nullptr) task->started = environment_.clock->Now();
  if (task->damaged) {
    Count(&SessionStats::damaged, &SessionMetrics::damaged);
    return Finish(task, Response::Check(SenseKey::kAbortedCommand, Asc::kProtocolCrcError));
  }
  if (task->refused) return Finish(task, *task->refused);
  if (task->writes && task->expected > 0) {
    task->command.out = {task->buffer.data(), task->received};
  }
  iscsi::Start<Response>(Execute(task->command),
                         [self = shared_from_this(), task](Response response) {
                           self->Finish(task, std::move(response));
                         });
}

void Session::Finish(const TaskPtr& task, Response response) {
  const bool answered = !task->aborted && !closed_;
  const bool held_back = ordered_ > 0 || heads_ > 0;
  task->unknown = response.unknown;
  Forget(task);
  if (answered) Answer(*task, response);
  if (answered && environment_.clock != nullptr) {
    const auto took = static_cast<uint64_t>(environment_.clock->Now() - task->started);
    latency_.Observe(took);
    if (environment_.metrics) environment_.metrics->latency->Observe(took);
  }
  const auto ended = std::exchange(task->when_ended, {});
  for (const auto& call : ended) call();
  if (held_back) Pump();  // others may have waited for it
}

void Session::Forget(const TaskPtr& task) {
  tasks_.erase(task->tag);
  if (!task->delivered) return;
  queue_.remove(task);
  if (task->attribute == Attribute::kOrdered) --ordered_;
  if (task->attribute == Attribute::kHeadOfQueue) --heads_;
}

// --- Aborting -----------------------------------------------------------------------------------

void Session::AbortTask(const TaskPtr& task, std::function<void()> done) {
  if (!task->aborted) Count(&SessionStats::aborted, &SessionMetrics::aborted);
  task->aborted = true;
  if (!task->running) {
    Forget(task);
    done();
    return Pump();  // others may have waited for it
  }
  task->when_ended.push_back(std::move(done));
  AnswerAsks([&](uint32_t, const Ask& ask) { return ask.task.lock() == task; }, false);
}

void Session::AbortTasks(std::function<void()> done) {
  const auto last = std::shared_ptr<void>(nullptr, [done = std::move(done)](void*) { done(); });
  const std::unordered_map<uint32_t, TaskPtr> tasks = tasks_;
  for (const auto& [tag, task] : tasks) AbortTask(task, [last] {});
}

// --- Answering ----------------------------------------------------------------------------------

// StatSN at 24 (a number of its own only if the PDU counts as a status), ExpCmdSN at 28, MaxCmdSN
// at 32.
void Session::PutCounters(Header* header, bool counts) {
  const auto busy = static_cast<uint32_t>(std::min<size_t>(tasks_.size(), kWindow));
  const uint32_t max = expected_sn_ + (kWindow - busy) - 1;
  if (SerialLess(max_sn_, max)) max_sn_ = max;
  header->SetField32(24, counts ? stat_sn_++ : stat_sn_);
  header->SetField32(28, expected_sn_);
  header->SetField32(32, max_sn_);
}

void Session::SendStatus(Header header, std::string data) {
  if (closed_) return;
  OutPdu pdu;
  pdu.header = header;
  pdu.text = std::move(data);
  PutCounters(&pdu.header, true);
  output_->Send(std::move(pdu));
}

void Session::Reject(const Header& header, RejectReason reason) {
  HYDRA_LOG_DEBUG("iSCSI session of {}: rejects opcode {:#x} for reason {:#x}",
                  parameters_.initiator, static_cast<unsigned>(header.opcode()),
                  static_cast<unsigned>(reason));
  Header answer(Opcode::kReject);
  answer.bytes[2] = static_cast<uint8_t>(reason);
  answer.set_task_tag(kNoTag);
  SendStatus(answer, std::string(header.bytes.begin(), header.bytes.end()));
}

// How much the command meant to move against how much the initiator expected (11.4.5).
void Session::Answer(const ScsiTask& task, const Response& response) {
  const uint64_t have = response.buffer_bytes > 0 ? response.buffer_bytes : response.in.size();
  if (!response.good()) Count(&SessionStats::failed, &SessionMetrics::failed);
  uint64_t wanted = response.wanted_known ? response.wanted : have;
  if (!response.good() && !response.wanted_known) wanted = task.reads ? 0 : task.expected;
  uint8_t flag = 0;
  uint32_t residual = 0;
  if (wanted > task.expected) {
    flag = kOverflow;
    residual = static_cast<uint32_t>(std::min<uint64_t>(wanted - task.expected, UINT32_MAX));
  } else if (wanted < task.expected) {
    flag = kUnderflow;
    residual = task.expected - static_cast<uint32_t>(wanted);
  }
  // One that failed may have some: what it read before.
  const uint32_t bytes =
      task.reads ? static_cast<uint32_t>(std::min<uint64_t>(have, task.expected)) : 0;
  Count(&SessionStats::read_bytes, &SessionMetrics::read_bytes, bytes);
  if (task.writes && response.good()) {
    Count(&SessionStats::written_bytes, &SessionMetrics::written_bytes, task.received);
  }
  uint32_t data_count = task.r2t_count;
  if (bytes > 0) {
    data_count = SendDataIn(task, response, bytes, flag, residual, response.good());
    if (response.good()) return;
  }
  // Figure 11.4: response at 2, status at 3, ExpDataSN at 36, residual count at 44.
  Header header(Opcode::kScsiResponse, static_cast<uint8_t>(0x80 | flag));
  header.bytes[3] = static_cast<uint8_t>(response.status);
  header.set_task_tag(task.tag);
  header.SetField32(36, data_count);
  header.SetField32(44, residual);
  std::string data;
  if (response.status == ScsiStatus::kCheckCondition) {
    const std::vector<uint8_t> sense =
        EncodeSense(response.sense, environment_.unit->descriptor_sense);
    data.resize(2);
    Put16(reinterpret_cast<uint8_t*>(data.data()), static_cast<uint16_t>(sense.size()));
    data.append(sense.begin(), sense.end());
  }
  SendStatus(header, std::move(data));
}

// Figure 11.7: TTT at 20, DataSN at 36, buffer offset at 40, residual at 44. The last one brings
// the status with it.
uint32_t Session::SendDataIn(const ScsiTask& task, const Response& response, uint32_t bytes,
                             uint8_t residual_flag, uint32_t residual, bool with_status) {
  uint32_t count = 0;
  uint32_t burst = 0;
  for (uint32_t at = 0; at < bytes;) {
    const uint32_t length =
        std::min({bytes - at, parameters_.max_send_data, parameters_.max_burst - burst});
    const bool last = at + length == bytes;
    burst += length;
    const bool end_of_burst = burst == parameters_.max_burst;
    if (end_of_burst) burst = 0;
    OutPdu pdu;
    pdu.header = Header(Opcode::kDataIn, last || end_of_burst ? 0x80 : 0x00);
    const bool status = last && with_status;
    if (status) {
      pdu.header.bytes[1] = static_cast<uint8_t>(pdu.header.bytes[1] | kHasStatus | residual_flag);
      pdu.header.bytes[3] = static_cast<uint8_t>(response.status);
      pdu.header.SetField32(44, residual);
    }
    pdu.header.set_task_tag(task.tag);
    pdu.header.set_transfer_tag(kNoTag);
    PutCounters(&pdu.header, status);
    if (!status) pdu.header.SetField32(24, 0);
    pdu.header.SetField32(36, count++);
    pdu.header.SetField32(40, at);
    if (response.buffer_bytes > 0) {
      pdu.buffer = response.buffer;
      pdu.offset = at;
      pdu.length = length;
    } else {
      pdu.text.assign(reinterpret_cast<const char*>(response.in.data()) + at, length);
    }
    output_->Send(std::move(pdu));
    at += length;
  }
  return count;
}

}  // namespace hydra::iscsi
