// SPDX-License-Identifier: Apache-2.0
//
// The recovery table exists twice: in docs/disk-format.md, section 7, for people, and in
// blockstore/batch_format.cc. This test reads the one from the document and walks all combinations
// of the evidence through both.
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "blockstore/batch_format.h"

namespace hydra {
namespace {

std::string DocumentPath() {
  // <root>/tests/blockstore/recovery_table_test.cc
  const std::filesystem::path here(__FILE__);
  return here.parent_path().parent_path().parent_path() / "docs" / "disk-format.md";
}

std::string Trim(const std::string& text) {
  const size_t first = text.find_first_not_of(" *");
  if (first == std::string::npos) return "";
  return text.substr(first, text.find_last_not_of(" *") - first + 1);
}

// A row of the document: what it demands of each column, and its verdict in words.
struct Row {
  std::map<std::string, std::string> demands;
  std::string verdict;
};

std::vector<std::string> Cells(const std::string& line) {
  std::vector<std::string> cells;
  std::istringstream in(line.substr(1));
  for (std::string cell; std::getline(in, cell, '|');) cells.push_back(Trim(cell));
  return cells;
}

std::vector<Row> ReadTable() {
  std::ifstream in(DocumentPath());
  EXPECT_TRUE(in.good()) << DocumentPath();
  std::vector<Row> rows;
  std::vector<std::string> columns;
  for (std::string line; std::getline(in, line);) {
    if (columns.empty()) {
      if (line.starts_with("| # | readable |")) columns = Cells(line);
      continue;
    }
    if (!line.starts_with("|")) break;
    if (line.starts_with("| ---")) continue;
    const std::vector<std::string> cells = Cells(line);
    EXPECT_EQ(cells.size(), columns.size()) << line;
    Row row;
    for (size_t i = 1; i + 1 < cells.size(); ++i) row.demands[columns[i]] = cells[i];
    row.verdict = line.substr(line.find("**"));
    rows.push_back(row);
  }
  return rows;
}

bool Meets(const Row& row, const std::string& column, const std::string& yes, const std::string& no,
           bool fact) {
  const auto it = row.demands.find(column);
  if (it == row.demands.end()) {
    ADD_FAILURE() << "no column " << column;
    return false;
  }
  if (it->second == "-") return true;
  EXPECT_TRUE(it->second == yes || it->second == no) << column << ": " << it->second;
  return it->second == (fact ? yes : no);
}

bool Matches(const Row& row, const BatchEvidence& e) {
  return Meets(row, "readable", "yes", "no", e.readable) &&
         Meets(row, "header valid", "yes", "no", e.header_valid) &&
         Meets(row, "generation", "ok", "older", e.generation_ok) &&
         Meets(row, "chain", "valid", "broken", e.chain_valid) &&
         Meets(row, "successor", "yes", "no", e.successor) &&
         Meets(row, "payload valid", "yes", "no", e.payload_valid);
}

// What the words of a verdict mean in the code.
BatchVerdict InCode(const std::string& words) {
  const bool rotten = words.find("payload rotten") != std::string::npos;
  if (words.starts_with("**accept after a gap**")) {
    return rotten ? BatchVerdict::kAcceptAfterGapPayloadRotten : BatchVerdict::kAcceptAfterGap;
  }
  if (words.starts_with("**accept**")) {
    return rotten ? BatchVerdict::kAcceptPayloadRotten : BatchVerdict::kAccept;
  }
  if (words.starts_with("**header rotten**")) return BatchVerdict::kHeaderRotten;
  if (words.starts_with("**torn**")) {
    return words.find("gap") != std::string::npos ? BatchVerdict::kTornAfterGap
                                                  : BatchVerdict::kTorn;
  }
  EXPECT_TRUE(words.starts_with("**end**")) << words;
  return BatchVerdict::kEnd;
}

BatchEvidence Combination(unsigned bits) {
  return {.readable = (bits & 1) != 0,
          .header_valid = (bits & 2) != 0,
          .generation_ok = (bits & 4) != 0,
          .chain_valid = (bits & 8) != 0,
          .successor = (bits & 16) != 0,
          .payload_valid = (bits & 32) != 0};
}

TEST(RecoveryTable, CodeAndDocumentAgreeOnAllCombinations) {
  const std::vector<Row> rows = ReadTable();
  ASSERT_GE(rows.size(), 10u);
  std::vector<unsigned> used(rows.size());
  for (unsigned bits = 0; bits < 64; ++bits) {
    const BatchEvidence evidence = Combination(bits);
    size_t at = 0;
    while (at < rows.size() && !Matches(rows[at], evidence)) ++at;
    ASSERT_LT(at, rows.size()) << "the document has no row for combination " << bits;
    ++used[at];
    EXPECT_EQ(VerdictName(Judge(evidence)), VerdictName(InCode(rows[at].verdict)))
        << "combination " << bits << ", row " << at + 1;
  }
  for (size_t i = 0; i < rows.size(); ++i) EXPECT_GT(used[i], 0u) << "row " << i + 1 << " is dead";
}

// The rules behind the table, said once more and independently of it.
TEST(RecoveryTable, NothingIsCutThatSomethingValidFollows) {
  for (unsigned bits = 0; bits < 64; ++bits) {
    const BatchEvidence e = Combination(bits);
    const BatchVerdict verdict = Judge(e);
    const bool cut = verdict == BatchVerdict::kTorn || verdict == BatchVerdict::kTornAfterGap ||
                     verdict == BatchVerdict::kEnd;
    EXPECT_FALSE(cut && e.successor) << bits;
    EXPECT_FALSE(cut && !e.readable && !e.header_valid) << "an unreadable page is no tear";
    EXPECT_FALSE(cut && e.header_valid && e.generation_ok && e.payload_valid) << bits;
  }
}

TEST(RecoveryTable, NothingIsAcceptedWithoutAValidHeaderOfThisRun) {
  for (unsigned bits = 0; bits < 64; ++bits) {
    const BatchEvidence e = Combination(bits);
    const BatchVerdict verdict = Judge(e);
    const bool accepted = verdict != BatchVerdict::kTorn &&
                          verdict != BatchVerdict::kTornAfterGap && verdict != BatchVerdict::kEnd &&
                          verdict != BatchVerdict::kHeaderRotten;
    EXPECT_TRUE(!accepted || (e.header_valid && e.generation_ok)) << bits;
    const bool gap = verdict == BatchVerdict::kAcceptAfterGap ||
                     verdict == BatchVerdict::kAcceptAfterGapPayloadRotten ||
                     verdict == BatchVerdict::kTornAfterGap;
    EXPECT_FALSE(gap && e.chain_valid) << bits;
  }
}

}  // namespace
}  // namespace hydra
