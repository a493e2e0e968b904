// SPDX-License-Identifier: Apache-2.0
//
// The page of a drill. XHTML, so that a test can parse it; the pictures are SVG.
#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>

#include <fmt/format.h>

#include "daemon/drill_report.h"

namespace hydra::drill {
namespace {

constexpr double kLeft = 64, kRight = 20, kWidth = 1080;
constexpr double kPlotWidth = kWidth - kLeft - kRight;
constexpr double kChartHeight = 170, kChartGap = 54, kTop = 64;
constexpr size_t kMostChangeLines = 60;
constexpr double kStrip = 15;  // a group's row in the picture of the masters
constexpr size_t kMostStrips = 16;
constexpr std::array<const char*, 8> kNodeColours = {"#4f7cac", "#e0a458", "#6a994e", "#a76d9f",
                                                     "#5fa8a8", "#bc6c5c", "#8d8d5a", "#7a7a9e"};

constexpr std::string_view kStyle = R"CSS(
:root { --ink: #1d2733; --soft: #5c6b7a; --line: #dfe5ea; --paper: #ffffff; --ground: #f4f6f8;
        --good: #1f7a4d; --bad: #b3261e; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink);
       font: 15px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; }
main { max-width: 1160px; margin: 0 auto; padding: 28px 24px 48px; }
header { display: flex; align-items: flex-start; justify-content: space-between; gap: 24px;
         margin-bottom: 20px; }
h1 { font-size: 28px; line-height: 1.2; margin: 0 0 6px; }
h2 { font-size: 17px; margin: 0 0 12px; }
p { margin: 0; }
.soft { color: var(--soft); }
.badge { flex: none; font-weight: 700; font-size: 18px; letter-spacing: .06em; color: #fff;
         padding: 8px 20px; border-radius: 8px; }
.badge.good { background: var(--good); } .badge.bad { background: var(--bad); }
section { background: var(--paper); border: 1px solid var(--line); border-radius: 10px;
          padding: 18px 20px; margin-bottom: 18px; }
.cards { display: grid; grid-template-columns: repeat(6, 1fr); gap: 12px; margin-bottom: 18px; }
.card { background: var(--paper); border: 1px solid var(--line); border-radius: 10px;
        padding: 12px 14px; }
.card b { display: block; font-size: 23px; line-height: 1.25; font-variant-numeric: tabular-nums; }
.card span { color: var(--soft); font-size: 13px; line-height: 1.3; display: block; }
.card.bad b { color: var(--bad); } .card.good b { color: var(--good); }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 600; font-size: 13px; color: var(--soft); }
th, td { padding: 6px 14px 6px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
tr:last-child td { border-bottom: 0; }
td.n, th.n { text-align: right; white-space: nowrap; }
.columns { display: grid; grid-template-columns: 1fr 1fr; gap: 18px; }
.columns section { margin: 0; }
.no { color: var(--bad); font-weight: 600; } .yes { color: var(--good); font-weight: 600; }
.problems { border-left: 5px solid var(--bad); }
pre { white-space: pre-wrap; font: 12px/1.45 ui-monospace, "DejaVu Sans Mono", monospace;
      background: var(--ground); padding: 10px 12px; border-radius: 6px; margin: 8px 0 0;
      overflow-wrap: anywhere; }
svg { display: block; width: 100%; height: auto; }
svg text { font: 12px system-ui, "Segoe UI", "DejaVu Sans", sans-serif; fill: #5c6b7a; }
svg text.title { font-weight: 600; fill: #1d2733; font-size: 13px; }
svg text.mark { font-size: 11px; fill: #b3261e; font-weight: 600; }
footer { color: var(--soft); font-size: 13px; margin-top: 20px; }
@media (max-width: 900px) { .cards { grid-template-columns: repeat(3, 1fr); }
                            .columns { grid-template-columns: 1fr; } }
@media print { body { background: #fff; font-size: 12px; } main { padding: 0; max-width: none; }
               section, .card { break-inside: avoid; }
               * { -webkit-print-color-adjust: exact; print-color-adjust: exact; } }
)CSS";

std::string Escape(std::string_view text) {
  std::string safe;
  for (const char c : text) {
    switch (c) {
      case '&': safe += "&amp;"; break;
      case '<': safe += "&lt;"; break;
      case '>': safe += "&gt;"; break;
      case '"': safe += "&quot;"; break;
      default:
        // XML has no other control characters, and no stray bytes.
        safe += (static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t') || c == '\x7f'
                    ? '?'
                    : c;
    }
  }
  return safe;
}

std::string Thousands(uint64_t number) {
  std::string digits = std::to_string(number);
  for (size_t at = digits.size(); at > 3; at -= 3) digits.insert(at - 3, ",");
  return digits;
}

double Seconds(Nanos time) { return static_cast<double>(time) / kSecond; }
double Millis(Nanos time) { return static_cast<double>(time) / kMillisecond; }

// The next of 1, 2, 5, 10, 20 ... that is not smaller.
double Round125(double value) {
  double step = std::pow(10, std::floor(std::log10(std::max(value, 1e-9))));
  for (const double factor : {1.0, 2.0, 5.0, 10.0}) {
    if (step * factor >= value * 0.999999) return step * factor;
  }
  return step * 10;
}

std::string Plain(double value) {
  return value >= 1000 ? Thousands(static_cast<uint64_t>(std::llround(value)))
                       : fmt::format("{:g}", value);
}

// --- The timeline -------------------------------------------------------------------------------

class Timeline {
 public:
  explicit Timeline(const Report& report) : report_(report) {}

  std::string Render() {
    strips_ = report_.first_masters.size() <= kMostStrips ? report_.first_masters.size() : 0;
    const double throughput = kTop;
    const double latency = throughput + kChartHeight + kChartGap;
    const double masters = latency + kChartHeight + kChartGap;
    bottom_ =
        strips_ > 0 ? masters + static_cast<double>(strips_) * kStrip : latency + kChartHeight;
    Faults(throughput);
    Throughput(throughput);
    Latency(latency);
    if (strips_ > 0) Masters(masters);
    Changes(throughput);
    TimeAxis();
    return fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" "
        "aria-label=\"Throughput, latency and masters over time\">\n{}</svg>\n",
        kWidth, bottom_ + 40, svg_);
  }

 private:
  double X(Nanos at) const {
    const double part = Seconds(at) / std::max(1e-3, Seconds(report_.length));
    return kLeft + kPlotWidth * std::clamp(part, 0.0, 1.0);
  }
  double MiddleOf(size_t slot) const {
    return X(static_cast<Nanos>(slot) * report_.slot + report_.slot / 2);
  }
  void Text(double x, double y, const std::string& anchor, const std::string& text,
            const std::string& kind = "") {
    svg_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>\n", x, y,
                        anchor, kind.empty() ? "" : " class=\"" + kind + "\"", Escape(text));
  }
  void Line(double x1, double y1, double x2, double y2, const std::string& style) {
    svg_ += fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" {}/>\n", x1,
                        y1, x2, y2, style);
  }
  void Legend(double top, const std::vector<std::pair<std::string, std::string>>& entries) {
    double x = kLeft + kPlotWidth;
    for (auto it = entries.rbegin(); it != entries.rend(); ++it) {
      x -= 7.2 * static_cast<double>(it->first.size());
      Text(x, top - 9, "start", it->first);
      svg_ +=
          fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"12\" height=\"4\" fill=\"{}\"/>\n",
                      x - 17, top - 15, it->second);
      x -= 36;
    }
  }

  void Faults(double top) {
    double label_free_from = 0;
    for (size_t i = 0; i < report_.faults.size(); ++i) {
      const FaultRecord& fault = report_.faults[i];
      const double begin = X(fault.begin);
      const double restored = X(fault.restored == 0 ? report_.length : fault.restored);
      const double healthy = X(fault.healthy == 0 ? report_.length : fault.healthy);
      const double height = bottom_ - top;
      svg_ += fmt::format(
          "<g><title>{}</title><rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" "
          "fill=\"#b3261e\" fill-opacity=\"0.11\"/><rect x=\"{:.1f}\" y=\"{:.1f}\" "
          "width=\"{:.1f}\" height=\"{:.1f}\" fill=\"#e0a458\" fill-opacity=\"0.16\"/></g>\n",
          Escape(fault.what), begin, top, std::max(1.5, restored - begin), height, restored, top,
          std::max(0.0, healthy - restored), height);
      if (begin < label_free_from) continue;
      Text(begin, top - 46, "start", fmt::format("fault {}", i + 1), "mark");
      label_free_from = begin + 62;
    }
  }

  void Axis(double top, double most, double step, const std::string& title) {
    Text(0, top - 26, "start", title, "title");
    for (double value = 0; value <= most * 1.0001; value += step) {
      const double y = top + kChartHeight * (1 - value / most);
      Line(kLeft, y, kLeft + kPlotWidth, y, "stroke=\"#dfe5ea\"");
      Text(kLeft - 8, y + 4, "end", Plain(value));
    }
  }

  void Throughput(double top) {
    const double per_second = 1 / Seconds(report_.slot);
    double most = 1;
    for (const Slot& slot : report_.slots) {
      most = std::max(most, (slot.writes + slot.reads) * per_second);
    }
    const double step = Round125(most / 4);
    most = std::ceil(most / step) * step;
    Axis(top, most, step, "Operations per second");
    std::string all, writes;
    const auto y = [&](double count) {
      return top + kChartHeight * (1 - count * per_second / most);
    };
    const double base = top + kChartHeight;
    for (size_t i = 0; i < report_.slots.size(); ++i) {
      const Slot& slot = report_.slots[i];
      all += fmt::format("{:.1f},{:.1f} ", MiddleOf(i), y(slot.writes + slot.reads));
      writes += fmt::format("{:.1f},{:.1f} ", MiddleOf(i), y(slot.writes));
    }
    const auto area = [&](const std::string& points, const char* colour) {
      svg_ += fmt::format(
          "<polygon points=\"{:.1f},{:.1f} {}{:.1f},{:.1f}\" fill=\"{}\" fill-opacity=\"0.75\"/>\n",
          MiddleOf(0), base, points, MiddleOf(report_.slots.size() - 1), base, colour);
    };
    area(all, "#9ec5c1");
    area(writes, "#33658a");
    Legend(top, {{"acknowledged writes", "#33658a"}, {"reads, on top", "#9ec5c1"}});
  }

  // Logarithmic: a pause is a thousand times what is usual.
  void Latency(double top) {
    double most = 10, least = 1;
    for (const Slot& slot : report_.slots) {
      most = std::max(most, Millis(slot.max));
      if (slot.p50 > 0) least = std::min(least, Millis(slot.p50));
    }
    const double low = std::floor(std::log10(std::max(least, 0.01)));
    const double high = std::ceil(std::log10(most));
    const auto y = [&](double milliseconds) {
      const double part = (std::log10(std::max(milliseconds, 0.01)) - low) / (high - low);
      return top + kChartHeight * (1 - std::clamp(part, 0.0, 1.0));
    };
    Text(0, top - 26, "start", "Latency, ms (logarithmic)", "title");
    for (double power = low; power <= high; ++power) {
      const double at = y(std::pow(10, power));
      Line(kLeft, at, kLeft + kPlotWidth, at, "stroke=\"#dfe5ea\"");
      Text(kLeft - 8, at + 4, "end", Plain(std::pow(10, power)));
    }
    Curve(&Slot::max, "#c8553d", "1", y);
    Curve(&Slot::p99, "#e0a458", "1.6", y);
    Curve(&Slot::p50, "#33658a", "1.8", y);
    Legend(top, {{"p50", "#33658a"}, {"p99", "#e0a458"}, {"longest", "#c8553d"}});
  }

  // Where nothing was answered there is no line.
  template <typename Y>
  void Curve(Nanos Slot::*value, const char* colour, const char* width, const Y& y) {
    std::string path;
    bool down = false;
    for (size_t i = 0; i < report_.slots.size(); ++i) {
      const Nanos time = report_.slots[i].*value;
      if (time > 0) {
        path += fmt::format("{}{:.1f} {:.1f} ", down ? "L" : "M", MiddleOf(i), y(Millis(time)));
      }
      down = time > 0;
    }
    if (path.empty()) return;
    svg_ += fmt::format(
        "<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{}\" stroke-linejoin=\"round\" "
        "stroke-linecap=\"round\"/>\n",
        path, colour, width);
  }

  // A row per group: who led it.
  void Masters(double top) {
    Text(0, top - 26, "start", "Who leads each group", "title");
    std::set<uint32_t> nodes;
    for (size_t i = 0; i < report_.first_masters.size(); ++i) {
      const auto [group, first] = report_.first_masters[i];
      const double y = top + static_cast<double>(i) * kStrip;
      uint32_t master = first;
      Nanos since = 0;
      const auto stretch = [&](Nanos until) {
        if (master != 0) {
          nodes.insert(master);
          svg_ += fmt::format(
              "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\">"
              "<title>group {}: node {}</title></rect>\n",
              X(since), y, std::max(0.5, X(until) - X(since)), kStrip - 3,
              kNodeColours[master % kNodeColours.size()], group, master);
        }
        since = until;
      };
      for (const MasterChange& change : report_.changes) {
        if (change.group != group) continue;
        stretch(change.at);
        master = change.to;
      }
      stretch(report_.length);
      Text(kLeft - 8, y + kStrip - 5, "end", fmt::format("group {}", group));
    }
    std::vector<std::pair<std::string, std::string>> entries;
    for (const uint32_t node : nodes) {
      entries.emplace_back(fmt::format("node {}", node), kNodeColours[node % kNodeColours.size()]);
    }
    Legend(top, entries);
  }

  // So many lines would hide what they are about; the triangles and the strips say it.
  void Changes(double top) {
    const bool many = report_.changes.size() > kMostChangeLines;
    for (const MasterChange& change : report_.changes) {
      const double x = X(change.at);
      svg_ += fmt::format(
          "<g><title>{} s: group {} from node {} to {}</title><path d=\"M{:.1f} {:.1f} l-4 -7 h8 "
          "z\" "
          "fill=\"#6d597a\"/><line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" "
          "stroke=\"#6d597a\" stroke-width=\"0.8\" stroke-dasharray=\"2 3\"/></g>\n",
          fmt::format("{:.1f}", Seconds(change.at)), change.group, change.from,
          change.to == 0 ? "nobody" : "node " + std::to_string(change.to), x, top, x, top, x,
          many ? top : bottom_);
    }
  }

  void TimeAxis() {
    Line(kLeft, bottom_ + 4, kLeft + kPlotWidth, bottom_ + 4, "stroke=\"#5c6b7a\"");
    const double step = Round125(Seconds(report_.length) / 12);
    for (double at = 0; at <= Seconds(report_.length) * 1.0001; at += step) {
      const double x = X(static_cast<Nanos>(at * kSecond));
      Line(x, bottom_ + 4, x, bottom_ + 9, "stroke=\"#5c6b7a\"");
      Text(x, bottom_ + 23, "middle", fmt::format("{:g} s", at));
    }
  }

  const Report& report_;
  size_t strips_ = 0;
  double bottom_ = 0;
  std::string svg_;
};

// --- The rest of the page -----------------------------------------------------------------------

std::string Card(const std::string& value, const std::string& name, const char* kind = "") {
  return fmt::format("<div class=\"card {}\"><b>{}</b><span>{}</span></div>\n", kind, Escape(value),
                     Escape(name));
}

std::string Cards(const Report& r) {
  const bool slow = r.max_gap > 0 && r.WorstGap() > r.max_gap;
  const size_t lost = r.lost.size() + r.damage.size();
  const bool linear = r.check.ok && r.check.undecided == 0;
  return "<div class=\"cards\">\n" +
         Card(TimeText(r.WorstGap()),
              fmt::format("longest write gap (limit {})",
                          r.max_gap > 0 ? TimeText(r.max_gap) : std::string("none")),
              slow ? "bad" : "good") +
         Card(TimeText(r.MedianGap()), fmt::format("median gap of {} fault{}", r.faults.size(),
                                                   r.faults.size() == 1 ? "" : "s")) +
         Card(r.WorstRecovery() == 0 ? "never" : TimeText(r.WorstRecovery()),
              "slowest recovery, from the fault on", r.WorstRecovery() == 0 ? "bad" : "") +
         Card(std::to_string(lost), "acknowledged writes lost or damaged",
              lost == 0 ? "good" : "bad") +
         Card(linear ? "yes" : "no",
              fmt::format("linearizable, {} operations", Thousands(r.check.operations)),
              linear ? "good" : "bad") +
         Card(std::to_string(r.NewMasters()), "changes of master") + "</div>\n";
}

std::string FaultTable(const Report& r) {
  std::string rows;
  for (size_t i = 0; i < r.faults.size(); ++i) {
    const FaultRecord& f = r.faults[i];
    const bool good = f.writes_stop || r.max_gap == 0 || f.gap <= r.max_gap;
    rows += fmt::format(
        "<tr><td class=\"n\">{}</td><td class=\"n\">{:.1f} s</td><td>{}</td><td class=\"n "
        "{}\">{}</td><td class=\"n\">{}</td><td class=\"n {}\">{}</td><td class=\"n\">{}</td>"
        "<td class=\"n\">{}</td></tr>\n",
        i + 1, Seconds(f.begin), Escape(f.what), good ? "" : "no",
        TimeText(f.gap) + (f.writes_stop ? " (expected)" : ""), f.gap_group,
        r.max_gap == 0 || f.read_wait <= r.max_gap ? "" : "no", TimeText(f.read_wait),
        f.restored == 0 ? "never" : TimeText(f.restored - f.begin),
        f.healthy == 0 ? "never" : TimeText(f.healthy - f.begin));
  }
  return "<section><h2>Faults</h2><table><tr><th class=\"n\">#</th><th class=\"n\">at</th>"
         "<th>what was done</th><th class=\"n\">write gap</th><th class=\"n\">in group</th>"
         "<th class=\"n\">longest read</th><th class=\"n\">undone after</th><th "
         "class=\"n\">healthy after</th></tr>\n" +
         rows + "</table></section>\n";
}

std::string Rows(const std::string& title,
                 const std::vector<std::pair<std::string, std::string>>& rows) {
  std::string text = "<section><h2>" + Escape(title) + "</h2><table>\n";
  for (const auto& [name, value] : rows) {
    text += fmt::format("<tr><td class=\"soft\">{}</td><td>{}</td></tr>\n", Escape(name),
                        Escape(value));
  }
  return text + "</table></section>\n";
}

std::string CheckAndLoad(const Report& r) {
  const Totals& t = r.totals;
  const double seconds = std::max(1e-3, Seconds(r.length));
  const std::string shipped =
      r.shipped_bytes < 0
          ? "not known"
          : fmt::format("{:.1f} MiB", static_cast<double>(r.shipped_bytes) / (1 << 20));
  return "<div class=\"columns\">\n" +
         Rows("Check", {{"linearizable", r.check.ok ? "yes" : "no"},
                        {"operations with an answer", Thousands(r.check.operations)},
                        {"blocks", fmt::format("{}, {} of them by a search", r.check.blocks,
                                               r.check.searched)},
                        {"pairs of blocks checked together", std::to_string(r.check.pairs)},
                        {"undecided searches", std::to_string(r.check.undecided)},
                        {"acknowledged writes lost", std::to_string(r.lost.size())},
                        {"damaged blocks", std::to_string(r.damage.size())},
                        {"shipped to replicas that were behind", shipped}}) +
         Rows("Load",
              {{"operations", fmt::format("{} ({:.0f} per second)", Thousands(t.operations),
                                          static_cast<double>(t.operations) / seconds)},
               {"writes, discards",
                fmt::format("{}, {}", Thousands(t.writes), Thousands(t.discards))},
               {"reads, of them not answered",
                fmt::format("{}, {}", Thousands(t.reads + t.failed_reads),
                            Thousands(t.failed_reads))},
               {"compare-and-writes", fmt::format("{} written, {} differed", Thousands(t.compares),
                                                  Thousands(t.mismatches))},
               {"refused, outcome unknown",
                fmt::format("{}, {}", Thousands(t.refused), Thousands(t.unknown))},
               {"latency p50, p99, longest",
                fmt::format("{}, {}, {}", TimeText(t.p50), TimeText(t.p99), TimeText(t.max))},
               {"longest gap before the first fault", TimeText(r.calm_gap)}}) +
         "</div>\n";
}

std::string Problems(const Report& r) {
  const std::vector<std::string> problems = r.Problems();
  if (problems.empty()) return "";
  std::string text = "<section class=\"problems\"><h2>What went wrong</h2>";
  for (const std::string& problem : problems) text += "<p>" + Escape(problem) + "</p>";
  if (!r.check.ok) text += "<pre>" + Escape(r.check.explanation) + "</pre>";
  for (const auto* lines : {&r.lost, &r.damage}) {
    if (lines->empty()) continue;
    text += "<pre>";
    for (const std::string& line : *lines) text += Escape(line) + "\n";
    text += "</pre>";
  }
  return text + "</section>\n";
}

}  // namespace

std::string RenderHtml(const Report& report) {
  const bool passed = report.passed();
  const std::string title = fmt::format("Drill {}: {}", report.drill, passed ? "passed" : "failed");
  std::string page = fmt::format(
      "<!DOCTYPE html>\n<html xmlns=\"http://www.w3.org/1999/xhtml\" lang=\"en\">\n<head>\n"
      "<meta charset=\"utf-8\"/>\n<meta name=\"viewport\" content=\"width=device-width, "
      "initial-scale=1\"/>\n<title>{}</title>\n<style>{}</style>\n</head>\n<body><main>\n",
      Escape(title), kStyle);
  page += fmt::format(
      "<header><div><h1>Drill: {}</h1><p>{}</p><p class=\"soft\">{} · volume {} · {} · seed {}</p>"
      "</div><div class=\"badge {}\">{}</div></header>\n",
      Escape(report.drill), Escape(report.summary), Escape(report.started), Escape(report.volume),
      TimeText(report.length), report.seed, passed ? "good" : "bad", passed ? "PASSED" : "FAILED");
  page += Cards(report) + Problems(report);
  page +=
      "<section><h2>Timeline</h2>\n" + Timeline(report).Render() +
      "<p class=\"soft\">Red: while the fault lasts. Amber: until every node, master and replica "
      "is well again. Triangles: changes of master. A gap in a curve: nothing was answered in "
      "that " +
      TimeText(report.slot) + ".</p></section>\n";
  page += FaultTable(report) + CheckAndLoad(report);
  page += "<div style=\"height: 18px\"></div>" + Rows("Environment", report.environment);
  page +=
      "<footer>The write gap is the longest time, from the fault on, in which no write of some "
      "group was acknowledged. Every operation of the load was recorded; the history is "
      "linearizable if "
      "one order of all operations explains every answer and keeps to real time.</footer>\n"
      "</main></body></html>\n";
  return page;
}

}  // namespace hydra::drill
