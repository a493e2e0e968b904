// SPDX-License-Identifier: Apache-2.0
//
// The full feature phase of one session, which has one connection (RFC 7143; error recovery level
// 0). Pure: PDUs come in through PduReader::Sink and go out through Output; time through Tick. One
// thread.
//
// Order. Commands are delivered in the order of their CmdSN; what is outside the window is ignored,
// as 4.2.2.1 has it. The window is what is left of kWindow after the commands under way: an
// initiator that waits for answers is never refused. Commands end, and are answered, in any order.
//
// Ending. Nothing below can take a write back. So who asks for a task to be aborted is answered
// when the task has ended and can change nothing any more; and a session is drained only then.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/metrics.h"
#include "iscsi/login.h"
#include "iscsi/pdu.h"
#include "iscsi/scsi/command.h"
#include "iscsi/scsi/unit.h"

namespace hydra::iscsi {

struct SessionStats {
  uint64_t commands = 0;
  uint64_t read_bytes = 0;
  uint64_t written_bytes = 0;
  uint64_t failed = 0;   // answered with something else than GOOD
  uint64_t aborted = 0;  // by task management
  uint64_t damaged = 0;  // digests or sequences that were wrong
  uint64_t digests = 0;  // of those: PDUs whose header or data did not match its digest
};

// The same, counted for all sessions of a target. All are there.
struct SessionMetrics {
  Counter* commands = nullptr;
  Counter* read_bytes = nullptr;
  Counter* written_bytes = nullptr;
  Counter* failed = nullptr;
  Counter* aborted = nullptr;
  Counter* damaged = nullptr;
  Counter* digests = nullptr;
  Gauge* sessions = nullptr;
  Histogram* latency = nullptr;  // from the last byte of a command to its status

  static SessionMetrics Of(const std::string& target, MetricsRegistry* registry);
};

class Session : public PduReader::Sink, public std::enable_shared_from_this<Session> {
 public:
  static constexpr uint32_t kWindow = 128;
  // Data for one command, whatever its CDB says.
  static constexpr uint32_t kMaxExpected = 16 << 20;
  // A silent initiator is asked whether it is there, and given up if it does not say so.
  static constexpr Nanos kPingAfter = 2 * kSecond;
  static constexpr Nanos kPingTimeout = 28 * kSecond;
  // Who answers pings, but sends none of the data that it was asked for or takes none of what was
  // sent to it, holds buffers that others need. As patient as with who says nothing at all.
  static constexpr Nanos kDataTimeout = kPingAfter + kPingTimeout;
  // What is kept of the data of a NOP, and sent back: less than all of it is allowed, and real
  // pings have hardly any.
  static constexpr size_t kMaxEchoBytes = kDefaultDataSegment;
  // Data of requests that wait for their turn. On one connection they come in order, so that an
  // initiator that has lost nothing never has any.
  static constexpr size_t kMaxHeldBytes = 64 << 10;
  // A process that did not run for so long, or heard nothing, may then read commands that were sent
  // before, and given up by an initiator that has gone on elsewhere. (Less than any initiator
  // waits; who is there answers a ping before.)
  static constexpr Nanos kStalled = 3 * kSecond;

  class Output {
   public:
    virtual ~Output() = default;
    virtual void Send(OutPdu pdu) = 0;
    // Since when the initiator has taken nothing of what waits to be sent. Nothing: none waits.
    virtual std::optional<Nanos> StuckSince() const { return std::nullopt; }
    // After what was sent. The session hears of it by Closed().
    virtual void Close(const std::string& why) = 0;
  };
  struct Environment {
    std::shared_ptr<LogicalUnit> unit;  // null: a discovery session
    // The answer to SendTargets: all targets, or the one named.
    std::function<std::string(const std::string& target)> list_targets;
    std::shared_ptr<BufferPool> memory;
    uint16_t portal_group = 1;
    std::optional<SessionMetrics> metrics;
    const Clock* clock = nullptr;  // for the latency
  };

  static std::shared_ptr<Session> Create(SessionParameters parameters, Environment environment,
                                         Output* output, Nanos now);
  ~Session() override;

  // --- PduReader::Sink ---
  Result<std::span<uint8_t>> Begin(const Header& header, std::span<const uint8_t> ahs) override;
  void HeaderDamaged() override;
  Status End(bool intact) override;

  void Tick(Nanos now);
  // Asks the initiator to log out within that time (Async Message).
  void RequestLogout(uint16_t seconds);
  // The connection is gone: nothing is sent any more.
  void Closed();

  // Called once, when the connection is gone and every task has ended.
  void OnDrained(std::function<void()> done);
  const SessionParameters& parameters() const { return parameters_; }
  const SessionStats& stats() const { return stats_; }
  const Histogram& latency() const { return latency_; }  // as SessionMetrics::latency
  size_t tasks() const { return tasks_.size(); }

 private:
  struct R2t {
    uint32_t tag = 0;
    uint32_t offset = 0;
    uint32_t length = 0;
    uint32_t received = 0;
    uint32_t next_sn = 0;
  };
  enum class Attribute : uint8_t { kUntagged, kSimple, kOrdered, kHeadOfQueue };
  struct ScsiTask {
    Header header;
    uint32_t tag = 0;
    Attribute attribute = Attribute::kSimple;
    bool reads = false;
    bool writes = false;
    uint32_t expected = 0;
    Command command;

    // Data from the initiator.
    CountedBuffer buffer;
    bool unsolicited = false;  // more of it follows
    uint32_t unsolicited_sn = 0;
    uint32_t received = 0;   // in order, from the beginning
    uint32_t requested = 0;  // by R2Ts, or not to be requested
    uint32_t r2t_count = 0;
    std::deque<R2t> r2ts;  // that are not answered in full
    bool damaged = false;
    std::optional<Response> refused;  // why it will not be executed; its data is dropped

    bool delivered = false;  // its turn came
    bool running = false;
    Nanos started = 0;
    bool aborted = false;
    bool unknown = false;  // it ended, and may still happen
    std::vector<std::function<void()>> when_ended;
  };
  using TaskPtr = std::shared_ptr<ScsiTask>;
  // Whether the initiator still waits for a task; a NOP asks.
  struct Ask {
    std::weak_ptr<ScsiTask> task;
    Nanos since = 0;
    std::function<void(bool)> done;
  };
  // A request that waits for its turn.
  struct Held {
    TaskPtr task;
    Header header;
    std::vector<uint8_t> data;
    bool skip = false;  // aborted before it came
  };

  Session(SessionParameters parameters, Environment environment, Output* output, Nanos now);

  void Count(uint64_t SessionStats::*stat, Counter* SessionMetrics::*metric, uint64_t n = 1);

  // --- session.cc: what arrives ---
  Result<std::span<uint8_t>> BeginCommand(const Header& header, std::span<const uint8_t> ahs);
  Result<std::span<uint8_t>> BeginDataOut(const Header& header);
  Result<std::span<uint8_t>> Take(const Header& header);
  Status CheckCommand(const Header& header) const;
  size_t ImmediateTasks() const;
  TaskPtr MakeTask(const Header& header, std::span<const uint8_t> ahs);
  bool Accept(const Header& header, bool* ignore);
  Status EndDataOut(bool intact);
  void EndCommand(bool intact);
  void Deliver(uint32_t command_sn, Held held);
  void Dispatch(Held held);
  void DataArrived(const TaskPtr& task);
  void RequestData(const TaskPtr& task);
  bool WaitsForData() const;

  // --- session_tasks.cc: execution and answers ---
  void Pump();
  TaskPtr FindReady() const;
  void StartTask(const TaskPtr& task);
  void Finish(const TaskPtr& task, Response response);
  void Forget(const TaskPtr& task);
  void Answer(const ScsiTask& task, const Response& response);
  uint32_t SendDataIn(const ScsiTask& task, const Response& response, uint32_t bytes,
                      uint8_t residual_flag, uint32_t residual, bool with_status);
  void SendStatus(Header header, std::string data = {});
  void PutCounters(Header* header, bool counts);
  void Reject(const Header& header, RejectReason reason);
  void AbortTask(const TaskPtr& task, std::function<void()> done);
  void AbortTasks(std::function<void()> done);

  // --- session_manage.cc: everything that is not a SCSI command ---
  void HandleNop(const Header& header, std::vector<uint8_t> data);
  void NoteTime(Nanos now);
  void AskWhetherItWaits(const std::weak_ptr<ScsiTask>& task, std::function<void(bool)> done);
  void AnswerAsks(const std::function<bool(uint32_t tag, const Ask& ask)>& which, bool waits);
  uint32_t SendPing();
  void HandleText(const Header& header, const std::vector<uint8_t>& data);
  void TakeDataLimit(const std::string& value);
  void SendText(const Header& request);
  void EndText(const Header& request, RejectReason reason);
  void HandleLogout(const Header& header);
  void HandleTaskRequest(const Header& header);
  void AbortOne(const Header& header);
  static uint8_t OutcomeOf(const std::vector<TaskPtr>& aborted);
  void AnswerTaskRequest(const Header& header, uint8_t response);

  SessionParameters parameters_;
  Environment environment_;
  Output* output_;
  MemoryShare share_;
  Nexus nexus_;
  bool closed_ = false;
  bool logged_out_ = false;
  std::function<void()> drained_;
  SessionStats stats_;
  Histogram latency_{HistogramOptions::Latency()};

  uint32_t stat_sn_;
  uint32_t expected_sn_;           // ExpCmdSN
  uint32_t max_sn_;                // MaxCmdSN
  std::map<uint32_t, Held> held_;  // by CmdSN, which are ahead of their turn
  size_t held_bytes_ = 0;          // data of those
  std::map<uint32_t, Ask> asks_;   // by tag of the NOP that asks whether a command is waited for
  std::unordered_map<uint32_t, TaskPtr> tasks_;
  std::list<TaskPtr> queue_;  // delivered and not ended, in order
  size_t ordered_ = 0;        // of those
  size_t heads_ = 0;          // of those: with HEAD OF QUEUE
  uint32_t next_tag_ = 1;     // Target Transfer Tag

  // The PDU that is being received.
  Header current_;
  TaskPtr current_task_;  // SCSI command, or Data-Out
  std::vector<uint8_t> current_data_;
  bool ignore_ = false;

  std::string text_request_;
  std::string text_answer_;
  uint32_t text_tag_ = kNoTag;

  Nanos now_;
  std::optional<Nanos> stalled_;  // when it was noticed; until a NOP sent since then is answered
  Nanos heard_;
  Nanos resumed_ = 0;  // when a stall was noticed last
  Nanos data_heard_;   // when data last came, or none was waited for
  Nanos pinged_ = 0;   // 0: no ping is out
  uint32_t ping_tag_ = kNoTag;
};

}  // namespace hydra::iscsi
