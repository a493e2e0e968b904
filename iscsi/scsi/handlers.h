// SPDX-License-Identifier: Apache-2.0
//
// The handlers of the table, one family per file, and what several of them need.
#pragma once

#include <cstdint>
#include <optional>

#include "base/status.h"
#include "iscsi/scsi/command.h"

namespace hydra::iscsi {

// --- blocks.cc ---

struct BlockRange {
  uint64_t lba = 0;
  uint64_t count = 0;
  uint64_t offset(uint32_t block) const { return lba * block; }
  uint64_t bytes(uint32_t block) const { return count * block; }
};
// Of a CDB of 6, 10, 12 or 16 bytes that has both where most have them.
BlockRange RangeOf(const Command& command);
// Nothing, or why the range is refused.
std::optional<Response> CheckRange(const Command& command, const BlockRange& range);
// ... for commands that move the range's data.
std::optional<Response> CheckTransfer(const Command& command, const BlockRange& range);
// What an initiator is told of a failure of the disk, on the way to `lba`.
Response DiskFailure(const hydra::Status& status, uint64_t lba);

Await<hydra::Status> ReadDisk(Command& command, uint64_t offset, std::span<uint8_t> data);
Await<hydra::Status> WriteDisk(Command& command, uint64_t offset, std::span<const uint8_t> data);
// TASK SET FULL if there is none.
Result<CountedBuffer> Memory(Command& command, uint64_t bytes);
// After a read of the range into `data` found something corrupt: reads it again in halves, until
// one physical block of the disk is left, the first that cannot be read. `*good` are the bytes
// before it, which `data` then holds. Says what an initiator is told.
Task<Response> FindCorruption(Command& command, BlockRange range, std::span<uint8_t> data,
                              uint64_t* good);
// Reads the range and compares it: nothing if it is the same, or the response that says why not.
// The expected bytes are repeated as often as it takes.
Task<std::optional<Response>> CompareRange(Command& command, BlockRange range,
                                           std::span<const uint8_t> expected);

// --- table.cc ---
// From now on the command counts as one that arrived now; nothing, or why it is not to go on. With
// `access`, under the rights of now: then it has to be checked again, which Execute does alone.
Task<std::optional<Response>> Renew(Command& command, bool access);

// --- inquiry.cc ---
Response Inquiry(Command& command);

// --- capacity.cc ---
Response ReadCapacity10(Command& command);
Response ReadCapacity16(Command& command);
Task<Response> GetLbaStatus(Command& command);

// --- read_write.cc ---
Task<Response> Read(Command& command);
Task<Response> Write(Command& command);
Task<Response> WriteAtomic(Command& command);
Task<Response> WriteAndVerify(Command& command);
Task<Response> Verify(Command& command);
Task<Response> PreFetch(Command& command);
Task<Response> SynchronizeCache(Command& command);

// --- update.cc: what reads before it writes ---
Task<Response> CompareAndWrite(Command& command);
Task<Response> OrWrite(Command& command);

// --- provisioning.cc ---
Task<Response> WriteSame(Command& command);
Task<Response> Unmap(Command& command);

// --- sanitize.cc ---
Task<Response> SanitizeErase(Command& command);
Task<Response> SanitizeExitFailure(Command& command);
// Why the unit is not to be used; nothing if no SANITIZE is under way and none has failed.
std::optional<Response> SanitizeRefusal(const Command& command);

// --- mode.cc ---
Response ModeSense(Command& command);
Response ModeSelect(Command& command);

// --- report.cc ---
Response ReportLuns(Command& command);
Response ReportOpcodes(Command& command);
Response ReportTaskFunctions(Command& command);
Response ReportPortGroups(Command& command);

// --- simple.cc ---
Response TestUnitReady(Command& command);
Response RequestSense(Command& command);
Response StartStopUnit(Command& command);
Response ReadDefectData10(Command& command);
Response ReadDefectData12(Command& command);

// --- reserve.cc ---
Task<Response> Reserve(Command& command);
Task<Response> Release(Command& command);
Task<Response> PersistentReserveIn(Command& command);
Task<Response> PersistentReserveOut(Command& command);

// --- copy.cc ---
Task<Response> ExtendedCopy(Command& command);
Response CopyStatus(Command& command);
Response CopyParameters(Command& command);

}  // namespace hydra::iscsi
