// SPDX-License-Identifier: Apache-2.0
//
// What arrives: commands and their data, in order, within limits.
#include "iscsi/session.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/check.h"
#include "base/logging.h"

namespace hydra::iscsi {
namespace {

constexpr uint8_t kReadFlag = 0x40;
constexpr uint8_t kWriteFlag = 0x20;
constexpr uint8_t kExtendedCdb = 1;  // type of additional header

}  // namespace

std::shared_ptr<Session> Session::Create(SessionParameters parameters, Environment environment,
                                         Output* output, Nanos now) {
  std::shared_ptr<Session> session(
      new Session(std::move(parameters), std::move(environment), output, now));
  Session* self = session.get();
  self->nexus_.abort_tasks = [self](std::function<void()> done) {
    self->AbortTasks(std::move(done));
  };
  self->nexus_.disconnect = [self](const std::string& why) { self->output_->Close(why); };
  if (self->environment_.unit) self->environment_.unit->Join(&self->nexus_);
  if (self->nexus_.expelled) output->Close("the initiator is not allowed any more");
  return session;
}

Session::Session(SessionParameters parameters, Environment environment, Output* output, Nanos now)
    : parameters_(std::move(parameters)),
      environment_(std::move(environment)),
      output_(output),
      share_(environment_.memory),
      stat_sn_(parameters_.stat_sn),
      expected_sn_(parameters_.command_sn),
      max_sn_(parameters_.command_sn + kWindow - 1),
      now_(now),
      heard_(now),
      data_heard_(now) {
  nexus_.initiator = parameters_.PortName();
  nexus_.portal_group = environment_.portal_group;
  nexus_.chap_revision = parameters_.chap_revision;
  nexus_.confirmed = parameters_.confirmed;
  if (environment_.metrics) environment_.metrics->sessions->Add(1);
}

SessionMetrics SessionMetrics::Of(const std::string& target, MetricsRegistry* registry) {
  const MetricLabels labels = {{"target", target}};
  SessionMetrics metrics;
  const auto counter = [&](const char* name, const char* help) {
    return registry->GetCounter(name, help, labels);
  };
  metrics.commands = counter("hydra_iscsi_commands", "SCSI commands received");
  metrics.read_bytes = counter("hydra_iscsi_read_bytes", "data sent to initiators");
  metrics.written_bytes = counter("hydra_iscsi_written_bytes", "data taken from initiators");
  metrics.failed = counter("hydra_iscsi_failed", "commands not answered with GOOD");
  metrics.aborted = counter("hydra_iscsi_aborted", "commands aborted by task management");
  metrics.damaged = counter("hydra_iscsi_damaged", "digests or sequences that were wrong");
  metrics.digests =
      counter("hydra_iscsi_digest_errors", "PDUs whose header or data did not match its digest");
  metrics.sessions = registry->GetGauge("hydra_iscsi_sessions", "sessions now", labels);
  metrics.latency = registry->GetHistogram("hydra_iscsi_latency_seconds", "of SCSI commands",
                                           HistogramOptions::Latency(), labels);
  return metrics;
}

void Session::Count(uint64_t SessionStats::*stat, Counter* SessionMetrics::*metric, uint64_t n) {
  stats_.*stat += n;
  if (environment_.metrics) ((*environment_.metrics).*metric)->Add(n);
}

Session::~Session() { HYDRA_CHECK(closed_ && tasks_.empty()); }

void Session::Closed() {
  if (closed_) return;
  closed_ = true;
  if (environment_.metrics) environment_.metrics->sessions->Add(-1);
  const std::shared_ptr<Session> self = shared_from_this();
  if (environment_.unit) environment_.unit->Leave(&nexus_);
  held_.clear();
  held_bytes_ = 0;
  AnswerAsks([](uint32_t, const Ask&) { return true; }, false);
  // Those that run keep this alive until they end.
  AbortTasks([self] {
    const auto drained = [self] {
      if (self->drained_) std::exchange(self->drained_, {})();
    };
    // A RESERVE may have been among them.
    if (!self->environment_.unit) return drained();
    self->environment_.unit->Release(self->nexus_.id(), drained);
  });
}

void Session::OnDrained(std::function<void()> done) {
  if (closed_ && tasks_.empty()) return done();
  drained_ = std::move(done);
}

// --- Sink ---------------------------------------------------------------------------------------

Result<std::span<uint8_t>> Session::Begin(const Header& header, std::span<const uint8_t> ahs) {
  current_ = header;
  current_task_ = nullptr;
  current_data_.clear();
  ignore_ = false;
  if (environment_.clock != nullptr) NoteTime(environment_.clock->Now());
  if (now_ - heard_ >= kStalled) stalled_ = now_;
  heard_ = now_;
  pinged_ = 0;  // whatever it says, it is there
  switch (header.opcode()) {
    case Opcode::kScsiCommand: return BeginCommand(header, ahs);
    case Opcode::kDataOut: return BeginDataOut(header);
    default: return Take(header);
  }
}

// Small requests: their data is kept with them, outside the memory for data.
Result<std::span<uint8_t>> Session::Take(const Header& header) {
  const bool nop = header.opcode() == Opcode::kNopOut;
  if (!nop && header.data_bytes() > kMaxTextBytes) {
    return Status::InvalidArgument("too much data for such a request");
  }
  // Nobody looks at that of others.
  if (!nop && header.opcode() != Opcode::kTextRequest) return std::span<uint8_t>();
  current_data_.resize(header.data_bytes());
  return std::span(current_data_);
}

// Whether a request's number is one that we wait for. Immediate ones have none of their own.
bool Session::Accept(const Header& header, bool* ignore) {
  *ignore = false;
  if (header.immediate()) return true;
  const uint32_t sn = header.command_sn();
  const bool inside = !SerialLess(sn, expected_sn_) && !SerialLess(max_sn_, sn);
  *ignore = !inside || held_.contains(sn);
  return !*ignore;
}

Status Session::CheckCommand(const Header& header) const {
  const bool writes = (header.flags() & kWriteFlag) != 0;
  const uint32_t expected = header.Field32(20);
  const uint32_t data = header.data_bytes();
  if (data > 0 && (!writes || !parameters_.immediate_data)) {
    return Status::InvalidArgument("immediate data that was not agreed on");
  }
  if (data > std::min(parameters_.first_burst, expected)) {
    return Status::InvalidArgument("more immediate data than agreed on");
  }
  if (!header.final() && (!writes || parameters_.initial_r2t)) {
    return Status::InvalidArgument("unsolicited data that was not agreed on");
  }
  return Status::Ok();
}

Session::TaskPtr Session::MakeTask(const Header& header, std::span<const uint8_t> ahs) {
  auto task = std::make_shared<ScsiTask>();
  task->header = header;
  task->tag = header.task_tag();
  const uint8_t attribute = header.flags() & 7;
  task->attribute = attribute == 2   ? Attribute::kOrdered
                    : attribute == 3 ? Attribute::kHeadOfQueue
                                     : Attribute::kSimple;
  task->reads = (header.flags() & kReadFlag) != 0;
  task->writes = (header.flags() & kWriteFlag) != 0;
  task->expected = header.Field32(20);
  Command& command = task->command;
  std::copy_n(&header.bytes[32], 16, command.cdb.begin());
  // An extended CDB: length, type, reserved, the rest of it. No command that we know has one.
  if (ahs.size() >= 4 && ahs[2] == kExtendedCdb) {
    const size_t rest = std::min<size_t>(std::min<size_t>(Get16(&ahs[0]), ahs.size() - 4), 16);
    std::copy_n(&ahs[4], rest, &command.cdb[16]);
  }
  command.unit = environment_.unit.get();
  command.nexus = &nexus_;
  command.memory = environment_.memory.get();
  command.share = &share_;
  command.late = stalled_.has_value();
  if (command.unit != nullptr) {
    command.epoch = command.unit->epoch();
    command.resets = command.unit->resets();
    command.arrived = command.unit->disk()->Arrive(command.epoch);
    command.still_waits = [this, weak = std::weak_ptr<ScsiTask>(task)](auto done) {
      AskWhetherItWaits(weak, std::move(done));
    };
    command.aborted = [weak = std::weak_ptr<ScsiTask>(task)] {
      const TaskPtr aborted = weak.lock();
      return aborted == nullptr || aborted->aborted;
    };
  }
  command.lun = header.lun();
  command.expected_out = task->writes ? task->expected : 0;
  command.expected_in = task->reads ? task->expected : 0;
  if (task->reads && task->writes) {
    task->refused = Response::Check(SenseKey::kIllegalRequest, Asc::kInvalidOpcode);
  }
  if (!task->writes || task->expected == 0) return task;
  if (task->expected > kMaxExpected) {
    task->refused = Response::Check(SenseKey::kIllegalRequest, Asc::kInvalidFieldInCdb);
  }
  if (task->refused) return task;
  Result<CountedBuffer> buffer = share_.Get(task->expected);
  if (buffer.ok()) {
    task->buffer = std::move(*buffer);
  } else {
    task->refused = Response::Status(ScsiStatus::kTaskSetFull);
  }
  return task;
}

size_t Session::ImmediateTasks() const {
  return static_cast<size_t>(std::count_if(tasks_.begin(), tasks_.end(), [](const auto& entry) {
    return entry.second->header.immediate();
  }));
}

Result<std::span<uint8_t>> Session::BeginCommand(const Header& header,
                                                 std::span<const uint8_t> ahs) {
  if (!Accept(header, &ignore_)) return std::span<uint8_t>();
  if (!environment_.unit) return Status::InvalidArgument("a SCSI command in a discovery session");
  if (tasks_.contains(header.task_tag())) {
    return Status::InvalidArgument("a task tag that is in use");
  }
  // Others have the window for a limit.
  if (header.immediate() && ImmediateTasks() >= kWindow) {
    ignore_ = true;
    Reject(header, RejectReason::kTooManyImmediate);
    return std::span<uint8_t>();
  }
  HYDRA_RETURN_IF_ERROR(CheckCommand(header));
  current_task_ = MakeTask(header, ahs);
  if (current_task_->refused || header.data_bytes() == 0) return std::span<uint8_t>();
  return std::span(current_task_->buffer.data(), header.data_bytes());
}

// Figure 11.7: TTT at 20, DataSN at 36, buffer offset at 40.
Result<std::span<uint8_t>> Session::BeginDataOut(const Header& header) {
  const auto found = tasks_.find(header.task_tag());
  // Of a task that was aborted or refused meanwhile.
  if (found == tasks_.end() || !found->second->writes) {
    ignore_ = true;
    return std::span<uint8_t>();
  }
  const TaskPtr& task = found->second;
  if (header.data_bytes() > 0) data_heard_ = now_;
  const uint32_t tag = header.transfer_tag();
  const uint32_t offset = header.Field32(40);
  const uint32_t length = header.data_bytes();
  uint32_t expected_sn = 0;
  uint32_t expected_offset = 0;
  uint32_t end = 0;
  if (tag == kNoTag) {
    if (!task->unsolicited) return Status::InvalidArgument("data that nobody asked for");
    expected_sn = task->unsolicited_sn++;
    expected_offset = task->received;
    end = std::min(parameters_.first_burst, task->expected);
  } else {
    // Sequences come in the order of their R2Ts.
    if (task->r2ts.empty() || task->r2ts.front().tag != tag) {
      ignore_ = true;
      Reject(header, RejectReason::kInvalidField);
      return std::span<uint8_t>();
    }
    R2t& r2t = task->r2ts.front();
    expected_sn = r2t.next_sn++;
    expected_offset = r2t.offset + r2t.received;
    end = r2t.offset + r2t.length;
  }
  if (header.Field32(36) != expected_sn || offset != expected_offset) task->damaged = true;
  if (length > end - std::min(end, expected_offset)) {
    return Status::InvalidArgument("more data than was asked for");
  }
  current_task_ = task;
  if (task->damaged || task->refused || length == 0) return std::span<uint8_t>();
  return std::span(task->buffer.data() + offset, length);
}

void Session::HeaderDamaged() {
  Count(&SessionStats::damaged, &SessionMetrics::damaged);
  Count(&SessionStats::digests, &SessionMetrics::digests);
}

Status Session::End(bool intact) {
  if (!intact) Count(&SessionStats::digests, &SessionMetrics::digests);
  if (ignore_) return Status::Ok();
  if (logged_out_) return Status::Ok();
  if (current_.opcode() == Opcode::kDataOut) return EndDataOut(intact);
  if (current_.opcode() == Opcode::kScsiCommand) {
    EndCommand(intact);
    return Status::Ok();
  }
  if (!intact) {
    Count(&SessionStats::damaged, &SessionMetrics::damaged);
    Reject(current_, RejectReason::kDataDigest);
    // Its number is lost with it: without error recovery the session cannot go on.
    if (!current_.immediate()) return Status::Corruption("a request with a wrong data digest");
    return Status::Ok();
  }
  // A NOP that wants no answer takes no number.
  bool ignore = false;
  if (!Accept(current_, &ignore)) return Status::Ok();
  std::vector<uint8_t> data = std::exchange(current_data_, {});
  // Copied, since a vector that is cut keeps its memory.
  if (current_.opcode() == Opcode::kNopOut && data.size() > kMaxEchoBytes) {
    data = std::vector<uint8_t>(data.begin(), data.begin() + kMaxEchoBytes);
  }
  Held held{nullptr, current_, std::move(data), false};
  if (current_.immediate()) {
    Dispatch(std::move(held));
    return Status::Ok();
  }
  Deliver(current_.command_sn(), std::move(held));
  if (held_bytes_ > kMaxHeldBytes) return Status::Busy("too much waits for what has not come");
  return Status::Ok();
}

void Session::EndCommand(bool intact) {
  const TaskPtr task = std::move(current_task_);
  if (!intact) {
    task->damaged = true;
    Reject(task->header, RejectReason::kDataDigest);
  }
  task->received = task->header.data_bytes();
  task->requested = task->received;
  task->unsolicited = !task->header.final();
  tasks_.emplace(task->tag, task);
  Count(&SessionStats::commands, &SessionMetrics::commands);
  if (task->header.immediate()) {
    Dispatch({task, task->header, {}, false});
  } else {
    Deliver(task->header.command_sn(), {task, task->header, {}, false});
  }
  if (task->writes && !task->aborted) DataArrived(task);
}

Status Session::EndDataOut(bool intact) {
  const TaskPtr task = std::move(current_task_);
  if (task == nullptr) return Status::Ok();
  if (!intact && !task->damaged) Reject(current_, RejectReason::kDataDigest);
  if (!intact) task->damaged = true;
  const uint32_t length = current_.data_bytes();
  task->received += length;
  const bool last = current_.final();
  if (current_.transfer_tag() == kNoTag) {
    if (last) {
      task->unsolicited = false;
      task->requested = task->received;
    }
  } else {
    R2t& r2t = task->r2ts.front();
    r2t.received += length;
    if (last != (r2t.received == r2t.length)) task->damaged = true;
    if (last) task->r2ts.pop_front();
  }
  // One that was aborted while this PDU came in gets no more, and is asked for none.
  if (!task->aborted) DataArrived(task);
  return Status::Ok();
}

// --- Order --------------------------------------------------------------------------------------

void Session::Deliver(uint32_t command_sn, Held held) {
  held_bytes_ += held.data.size();
  held_.emplace(command_sn, std::move(held));
  while (true) {
    const auto next = held_.find(expected_sn_);
    if (next == held_.end()) return;
    Held now = std::move(next->second);
    held_.erase(next);
    held_bytes_ -= now.data.size();
    ++expected_sn_;
    if (!now.skip) Dispatch(std::move(now));
  }
}

void Session::Dispatch(Held held) {
  if (held.task) {
    if (held.task->aborted) return;
    held.task->delivered = true;
    queue_.push_back(held.task);
    if (held.task->attribute == Attribute::kOrdered) ++ordered_;
    if (held.task->attribute == Attribute::kHeadOfQueue) ++heads_;
    if (!held.task->writes) Pump();
    return;
  }
  switch (held.header.opcode()) {
    case Opcode::kNopOut: return HandleNop(held.header, std::move(held.data));
    case Opcode::kTaskRequest: return HandleTaskRequest(held.header);
    case Opcode::kTextRequest: return HandleText(held.header, held.data);
    case Opcode::kLogoutRequest: return HandleLogout(held.header);
    case Opcode::kSnack: return Reject(held.header, RejectReason::kSnack);
    case Opcode::kLoginRequest: return Reject(held.header, RejectReason::kProtocolError);
    default: return Reject(held.header, RejectReason::kNotSupported);
  }
}

// --- Data for a command -------------------------------------------------------------------------

void Session::DataArrived(const TaskPtr& task) {
  if (task->unsolicited) return;
  RequestData(task);
  Pump();
}

bool Session::WaitsForData() const {
  return std::any_of(tasks_.begin(), tasks_.end(), [](const auto& entry) {
    return entry.second->unsolicited || !entry.second->r2ts.empty();
  });
}

// Figure 11.8: R2TSN at 36, offset at 40, length at 44.
void Session::RequestData(const TaskPtr& task) {
  if (task->damaged || task->refused) return;
  while (task->requested < task->expected && task->r2ts.size() < parameters_.max_outstanding_r2t) {
    R2t r2t;
    r2t.tag = next_tag_++;
    if (next_tag_ == kNoTag) next_tag_ = 1;
    r2t.offset = task->requested;
    r2t.length = std::min(task->expected - task->requested, parameters_.max_burst);
    task->requested += r2t.length;
    OutPdu pdu;
    pdu.header = Header(Opcode::kReadyToTransfer);
    pdu.header.set_lun(task->header.lun());
    pdu.header.set_task_tag(task->tag);
    pdu.header.set_transfer_tag(r2t.tag);
    PutCounters(&pdu.header, false);
    pdu.header.SetField32(36, task->r2t_count++);
    pdu.header.SetField32(40, r2t.offset);
    pdu.header.SetField32(44, r2t.length);
    task->r2ts.push_back(r2t);
    output_->Send(std::move(pdu));
  }
}

}  // namespace hydra::iscsi
