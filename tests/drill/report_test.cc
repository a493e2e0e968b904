// SPDX-License-Identifier: Apache-2.0
//
// What a drill's report says, from histories made by hand.
#include <unistd.h>

#include <cstdio>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/drill_report.h"

namespace hydra::drill {
namespace {

using history::History;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr uint32_t kFinal = 9;

void WriteAt(History* history, history::Block block, Nanos begin, Nanos end) {
  const auto op = history->Write(1, {{.block = block, .value = history->NewValue()}}, begin);
  history->Ok(op, end);
}

void FinalRead(History* history, history::Block block, history::Value value, Nanos at) {
  const auto op = history->Read(kFinal, {block}, at);
  history->ReadOk(op, {value}, at + 1);
}

// Group 1 writes every 10 ms up to one second and again from 1.5 s on; group 2 all the time.
Report WithAPause() {
  History history;
  Report report;
  report.drill = "test";
  report.length = 2 * kSecond;
  report.max_gap = 600 * kMillisecond;
  FaultRecord fault;
  fault.what = "pause";
  fault.begin = 990 * kMillisecond;
  fault.restored = 1400 * kMillisecond;
  fault.healthy = 1500 * kMillisecond;
  report.faults = {fault};
  for (Nanos at = 0; at < report.length; at += 10 * kMillisecond) {
    const bool paused = at >= kSecond && at < 1500 * kMillisecond;
    if (!paused) WriteAt(&history, 1, at, at + kMillisecond);
    WriteAt(&history, 2, at, at + 2 * kMillisecond);
  }
  Measure(
      history, [](history::Block block) { return static_cast<uint32_t>(block); }, kFinal, &report);
  report.check = CheckLinearizable(history);
  return report;
}

TEST(DrillReport, GapIsThatOfTheGroupThatStoodStill) {
  const Report report = WithAPause();
  EXPECT_EQ(report.faults[0].gap_group, 1u);
  EXPECT_EQ(report.faults[0].gap, 510 * kMillisecond);  // from 991 ms to 1501 ms
  EXPECT_EQ(report.calm_gap, 10 * kMillisecond);
  EXPECT_EQ(report.WorstRecovery(), 510 * kMillisecond);
  EXPECT_TRUE(report.passed()) << report.Verdict();
  EXPECT_THAT(report.slots, SizeIs(20));
  EXPECT_EQ(report.slots[0].writes, 20u);
  EXPECT_EQ(report.slots[12].writes, 10u);
  EXPECT_EQ(report.slots[0].max, 2 * kMillisecond);
}

TEST(DrillReport, AGapThatIsTooLongFails) {
  Report report = WithAPause();
  report.max_gap = 500 * kMillisecond;
  EXPECT_FALSE(report.passed());
  EXPECT_THAT(report.Verdict(), HasSubstr("FAILED: writes paused for 510 ms, longer than 500 ms"));
  report.faults[0].writes_stop = true;  // ... unless that is what the fault is for
  report.faults[0].reads = 1;
  EXPECT_TRUE(report.passed());
}

void ReadAt(History* history, Nanos begin, Nanos end, bool answered) {
  const auto op = history->Read(2, {1}, begin);
  if (answered) {
    history->ReadOk(op, {history::kAbsent}, end);
  } else {
    history->Unknown(op, end);
  }
}

Report WithReads(const History& history) {
  Report report;
  report.length = 10 * kSecond;
  report.max_gap = kSecond;
  FaultRecord fault;
  fault.what = "every disk full";
  fault.begin = 2 * kSecond;
  fault.restored = 5 * kSecond;
  fault.healthy = 6 * kSecond;
  fault.writes_stop = true;
  report.faults = {fault};
  Measure(
      history, [](history::Block) { return 1u; }, kFinal, &report);
  report.totals.writes = 1;  // not what this is about
  return report;
}

TEST(DrillReport, ReadsThatGoOnWhileWritesStopPass) {
  History history;
  ReadAt(&history, kSecond, kSecond + 1, true);
  ReadAt(&history, 3 * kSecond, 3 * kSecond + 700 * kMillisecond, true);
  ReadAt(&history, 8 * kSecond, 8 * kSecond + 900 * kMillisecond, true);
  const Report report = WithReads(history);
  EXPECT_TRUE(report.passed()) << report.Verdict();
  EXPECT_EQ(report.faults[0].reads, 1u);
  EXPECT_EQ(report.faults[0].read_wait, 900 * kMillisecond) << "also while it recovers";
}

TEST(DrillReport, WhereOnlyWritesAreToStopNoReadThatIsAnsweredIsNoPass) {
  History history;
  ReadAt(&history, kSecond, kSecond + 1, true);
  ReadAt(&history, 6 * kSecond, 6 * kSecond + 1, true);
  EXPECT_THAT(WithReads(history).Verdict(), HasSubstr("FAILED: no read was answered: every disk"));
}

TEST(DrillReport, AReadThatWaitsTooLongFails) {
  History history;
  ReadAt(&history, 3 * kSecond, 3 * kSecond + 1, true);
  ReadAt(&history, 3 * kSecond, 4 * kSecond + 100 * kMillisecond, true);
  EXPECT_THAT(WithReads(history).Verdict(),
              HasSubstr("a read waited for 1.1 s, longer than 1.0 s"));
}

TEST(DrillReport, ReadsThatFailAreCountedAndFail) {
  History history;
  ReadAt(&history, 3 * kSecond, 3 * kSecond + 1, true);
  ReadAt(&history, 3 * kSecond, 3 * kSecond + 2, false);
  Report report = WithReads(history);
  EXPECT_EQ(report.totals.failed_reads, 1u);
  EXPECT_EQ(report.totals.unknown, 0u);
  EXPECT_THAT(report.Verdict(), HasSubstr("FAILED: 1 reads were not answered"));
  report.max_gap = 0;  // any outage will do
  EXPECT_TRUE(report.passed()) << report.Verdict();
  report.told_damaged = 1;
  EXPECT_THAT(report.Verdict(), HasSubstr("FAILED: 1 operations were told that their blocks"));
}

TEST(DrillReport, WhereClientsAreToSeeAPauseAnErrorFails) {
  Report report = WithAPause();
  report.totals.refused = 1;
  EXPECT_TRUE(report.passed()) << "of drills that cannot do without";
  report.errors_fail = true;
  EXPECT_THAT(report.Verdict(), HasSubstr("FAILED: clients saw errors: 1 writes refused, 0 of"));
  report.totals = WithAPause().totals;
  EXPECT_TRUE(report.passed()) << report.Verdict();
  report.totals.unknown = 2;
  EXPECT_THAT(report.Verdict(), HasSubstr("0 writes refused, 2 of unknown outcome"));
  report.max_gap = 0;  // any outage will do
  EXPECT_TRUE(report.passed()) << report.Verdict();
}

TEST(DrillReport, NothingDoneIsNoPass) {
  Report report;
  EXPECT_THAT(report.Problems(), ElementsAre("no fault was injected", "no write was acknowledged"));
}

TEST(DrillReport, WhateverIsWrongWithTheDataFails) {
  for (int i = 0; i < 5; ++i) {
    Report report = WithAPause();
    if (i == 0) report.check.ok = false;
    if (i == 1) report.check.undecided = 1;
    if (i == 2) report.damage = {"block 1"};
    if (i == 3) report.lost = {"block 1"};
    if (i == 4) report.broken_off = "interrupted";
    EXPECT_FALSE(report.passed()) << i;
    EXPECT_EQ(report.data_is_good(), i == 4) << i;
  }
}

TEST(DrillReport, AnOverwrittenValueThatIsThereAgainIsALostWrite) {
  History history;
  WriteAt(&history, 1, 1, 2);
  WriteAt(&history, 1, 3, 4);
  FinalRead(&history, 1, 1, 5);
  EXPECT_THAT(FindLost(history, kFinal), ElementsAre(HasSubstr("block 1")));
  EXPECT_FALSE(CheckLinearizable(history).ok);
}

TEST(DrillReport, ABlockThatReadsAsZeroesLostItsWrite) {
  History history;
  WriteAt(&history, 1, 1, 2);
  FinalRead(&history, 1, history::kAbsent, 5);
  EXPECT_THAT(FindLost(history, kFinal), SizeIs(1));
}

TEST(DrillReport, ADiscardThatCameBackIsLost) {
  History history;
  WriteAt(&history, 1, 1, 2);
  history.Ok(history.Delete(1, {1}, 3), 4);
  FinalRead(&history, 1, 1, 5);
  EXPECT_THAT(FindLost(history, kFinal), SizeIs(1));
}

TEST(DrillReport, WhatMayHaveComeLaterIsNotLost) {
  History history;
  WriteAt(&history, 1, 1, 2);
  const auto unknown = history.Write(1, {{.block = 1, .value = 77}}, 3);
  history.Unknown(unknown, 4);
  WriteAt(&history, 1, 5, 6);
  FinalRead(&history, 1, 77, 9);  // it took effect late
  const auto first = history.Write(1, {{.block = 2, .value = 100}}, 10);
  const auto second = history.Write(2, {{.block = 2, .value = 101}}, 11);
  history.Ok(second, 12);
  history.Ok(first, 13);
  FinalRead(&history, 2, 100, 14);  // both orders are fine
  EXPECT_THAT(FindLost(history, kFinal), IsEmpty());
  EXPECT_TRUE(CheckLinearizable(history).ok);
}

// Python's parser takes the page for XML; `query` is evaluated with `page` as its root. The file is
// this process's own: tests run at the same time.
std::string AskXml(const std::string& page, const std::string& query) {
  const std::string path =
      testing::TempDir() + "/drill_report_test_" + std::to_string(getpid()) + ".html";
  std::FILE* file = std::fopen(path.c_str(), "w");
  std::fwrite(page.data(), 1, page.size(), file);
  std::fclose(file);
  const std::string command = "python3 -c \"import xml.etree.ElementTree as t; page = t.parse('" +
                              path + "').getroot(); print(" + query + ", end='')\" 2>&1";
  std::FILE* python = popen(command.c_str(), "r");
  std::string answer(4096, '\0');
  answer.resize(std::fread(answer.data(), 1, answer.size(), python));
  pclose(python);
  unlink(path.c_str());
  return answer;
}

TEST(DrillReport, ThePageIsWellFormedWhateverItSays) {
  Report report = WithAPause();
  report.faults[0].what = "a & b < \"c\" \x01";
  report.check.ok = false;
  report.check.explanation = "#1 client 1 <- 2 & more";
  report.first_masters = {{1, 1}, {2, 2}};
  report.changes = {{kSecond, 1, 1, 0}, {kSecond + 1, 1, 0, 3}};
  report.environment = {{"seen from", "<here>"}};
  const std::string page = RenderHtml(report);
  EXPECT_EQ(AskXml(page, "page.tag[-4:]"), "html");
  const std::string in = "{http://www.w3.org/2000/svg}";
  EXPECT_EQ(AskXml(page, "len(list(page.iter('" + in + "svg')))"), "1");
  // Three curves, and a triangle per change of master.
  EXPECT_EQ(AskXml(page, "len(list(page.iter('" + in + "path')))"), "5");
  EXPECT_THAT(page, HasSubstr("FAILED"));
  EXPECT_THAT(page, testing::Not(HasSubstr("<script")));
  EXPECT_THAT(page, testing::Not(HasSubstr("src=")));
}

TEST(DrillReport, AnEmptyRunHasAPageAsWell) {
  Report report;
  Measure(
      History(), [](history::Block) { return 0u; }, kFinal, &report);
  EXPECT_EQ(AskXml(RenderHtml(report), "page.tag[-4:]"), "html");
}

TEST(DrillReport, LongRunsHaveCoarserSlots) {
  Report report;
  report.length = 1800 * kSecond;
  Measure(
      History(), [](history::Block) { return 0u; }, kFinal, &report);
  EXPECT_EQ(report.slot, 3 * kSecond);
  EXPECT_THAT(report.slots, SizeIs(600));
}

}  // namespace
}  // namespace hydra::drill
