// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <gmock/gmock.h>

#include "daemon/store_reader_verify.h"
#include "tests/tool/store_writer.h"

namespace hydra::tool_test {

// A small healthy store with something of everything: two lanes, a checkpoint at batch 6, and
// three batches behind it. Group 1 has blocks of one page.
//
//   lane 0, segment 1:  b1 (writes lba 0, 1)  b2 (writes lba 5)  b4 (seal)  b5 | b6 (8, 9)  b8 (12)
//   lane 1, segment 2:  b3 (moves lba 0)                                       | b7 (moves lba 1)
struct SampleStore : StoreWriter {
  Written b1, b2, b3, b4, b5, b6, b7, b8;

  SampleStore() {
    OpenSegment(0);
    b1 = Append(
        InLane(0)
            .Group(1, 1, 1)
            .HardState(1, 1, 3, "opaque")
            .Accept(1, 1, {WriteOp(0, {Block(10), Block(11)}, "context")}, Block(10) + Block(11)));
    b2 = Append(InLane(0).Accept(
        1, 2, {WriteOp(5, {Block(15)}), ZeroOp(2, 1), UnmapOp(3, 1), ZeroExtentsOp({7, 9})},
        Block(15), 1));
    OpenSegment(1);
    b3 = Append(InLane(1).Relocate(1, 0, Version(1), 1, b1.payload_page, Block(10)));
    BatchSpec seal = InLane(0).Stable(1, 2);
    seal.seal = true;
    b4 = Append(seal);
    b5 = Append(InLane(0).Accept(1, 3, {NoOp()}).Truncate(1, 1));
    PutData(1, 0, Version(1), 2, b3.payload_page, Block(10));
    PutData(1, 1, Version(1), 1, b1.payload_page + 1, Block(11));
    PutData(1, 5, Version(2), 1, b2.payload_page, Block(15));
    PutKind(1, 2, Version(2, 1), 2);
    PutKind(1, 3, Version(2, 2), 3);
    PutZero(1, 7, Version(2, 3));
    PutData(1, 7 * 256 + 1, Version(1), 99, 1, Block(0));  // shadowed: its place is long gone
    PutPresence(1, 0, {0, 1, 5});
    PutMeta(1, 1, 2, OpenEntry(3, 1, 3, b5, 64), 1);
    PutIntent(1);
    Checkpoint(1);
    b6 = Append(
        InLane(0).Accept(1, 4, {WriteOp(8, {Block(18), Block(19)})}, Block(18) + Block(19), 3));
    b7 = Append(InLane(1).Relocate(1, 1, Version(1), 1, b1.payload_page + 1, Block(11)));
    b8 = Append(InLane(0).Accept(1, 5, {WriteOp(12, {Block(22)})}, Block(22), 4));
  }

  store_reader::VerifyReport Verify() {
    PosixFileSystem fs;
    return Verify(&fs);
  }

  store_reader::VerifyReport Verify(FileSystem* fs) {
    if (!map_written_) WriteMap();
    map_written_ = true;
    auto report = store_reader::VerifyStore(fs, directory(), {});
    EXPECT_TRUE(report.ok()) << report.status().ToString();
    return report.ok() ? *report : store_reader::VerifyReport();
  }

  void WriteMapNow(bool compact = false) {
    WriteMap(compact);
    map_written_ = true;
  }

 private:
  bool map_written_ = false;
};

// "header 1/7" for a finding at segment 1, page 7.
inline std::vector<std::string> Findings(const store_reader::VerifyReport& report) {
  std::vector<std::string> all;
  for (const auto& finding : report.findings) {
    all.push_back(std::string(store_reader::FindingName(finding.kind)) + " " +
                  std::to_string(finding.segment) + "/" + std::to_string(finding.page));
  }
  return all;
}

inline std::string At(const std::string& kind, uint32_t segment, uint32_t page) {
  return kind + " " + std::to_string(segment) + "/" + std::to_string(page);
}

// Rows of the decision table other than 6, in order.
inline std::vector<int> Rows(const store_reader::VerifyReport& report) {
  std::vector<int> rows;
  for (const auto& decision : report.replay.decisions) rows.push_back(decision.row);
  return rows;
}

}  // namespace hydra::tool_test
