# SPDX-License-Identifier: Apache-2.0
"""The report as one page that needs nothing else: XHTML, with its pictures as SVG."""
import html
import math
import statistics

from measure.table import HEAD, cells, number

COLOURS = ("#4f7cac", "#e0a458", "#6a994e", "#a76d9f", "#5fa8a8", "#bc6c5c")
WIDTH, LABEL, BAR, GAP = 1080, 250, 16, 12

STYLE = """
:root { --ink: #1d2733; --soft: #5c6b7a; --line: #dfe5ea; --paper: #ffffff; --ground: #f4f6f8;
        --good: #1f7a4d; --bad: #b3261e; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink);
       font: 15px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; }
main { max-width: 1160px; margin: 0 auto; padding: 28px 24px 48px; }
h1 { font-size: 28px; line-height: 1.2; margin: 0 0 6px; }
h2 { font-size: 17px; margin: 0 0 4px; }
p { margin: 0 0 12px; }
.soft { color: var(--soft); }
section { background: var(--paper); border: 1px solid var(--line); border-radius: 10px;
          padding: 18px 20px; margin: 18px 0; }
.cards { display: grid; grid-template-columns: repeat(4, 1fr); gap: 12px; margin: 18px 0; }
.card { background: var(--paper); border: 1px solid var(--line); border-radius: 10px; padding: 12px 14px; }
.card b { display: block; font-size: 23px; line-height: 1.25; font-variant-numeric: tabular-nums; }
.card span { color: var(--soft); font-size: 13px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: 14px; }
th { text-align: left; font-weight: 600; font-size: 13px; color: var(--soft); }
th, td { padding: 6px 14px 6px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td + td { white-space: nowrap; }
.met { color: var(--good); font-weight: 600; } .MISSED { color: var(--bad); font-weight: 600; }
svg { display: block; width: 100%; height: auto; }
svg text { font: 12px system-ui, "Segoe UI", "DejaVu Sans", sans-serif; fill: #5c6b7a; }
svg text.title { font-weight: 600; fill: #1d2733; }
footer { color: var(--soft); font-size: 13px; }
@media print { body { background: #fff; font-size: 12px; } section, .card { break-inside: avoid; }
               * { -webkit-print-color-adjust: exact; print-color-adjust: exact; } }
"""


def safe(value):
    return html.escape(str(value))


class Picture:
    def __init__(self, label):
        self.label = label
        self.parts = []
        self.y = 0

    def text(self, x, y, words, anchor="start", kind=""):
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
                          f'{f" class={chr(34)}{kind}{chr(34)}" if kind else ""}>{safe(words)}</text>')

    def rectangle(self, x, y, width, height, colour):
        self.parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.5):.1f}" height="{height:.1f}" '
                          f'rx="2" fill="{colour}"/>')

    def line(self, x1, y1, x2, y2, colour="#1d2733", width=1.0):
        self.parts.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" '
                          f'stroke-width="{width}"/>')

    def circle(self, x, y, colour):
        self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>')

    def draw(self):
        return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.y:.0f}" role="img" '
                f'aria-label="{safe(self.label)}">\n' + "\n".join(self.parts) + "\n</svg>")


def colours(experiments):
    names = []
    for result in experiments.values():
        names += [name for name in result["samples"] if name not in names]
    return {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}


def title_of(result):
    return result["title"] + (f" ({result['heat']})" if result["heat"] else "")


def bars(label, experiments, metrics, unit, palette):
    """A group of bars per experiment: the median of each contender, and a thin line from its least to its
    most. `metrics` are tried in turn; an experiment without any is left out. Bars of one group are to one
    scale, groups are not: nobody compares IOPS with MB/s."""
    picture = Picture(label)
    for result in experiments.values():
        metric = metrics(result)
        values = {name: [sample[metric] for sample in samples if metric in sample]
                  for name, samples in result["samples"].items()} if metric else {}
        values = {name: known for name, known in values.items() if known}
        if not values:
            continue
        most = max(max(known) for known in values.values()) or 1
        scale = (WIDTH - LABEL - 160) / most
        picture.text(0, picture.y + 14, title_of(result), kind="title")
        picture.y += 22
        for name, known in values.items():
            middle = statistics.median(known)
            picture.text(LABEL - 8, picture.y + 12, name, "end")
            picture.rectangle(LABEL, picture.y, middle * scale, BAR, palette[name])
            picture.line(LABEL + min(known) * scale, picture.y + BAR / 2, LABEL + max(known) * scale,
                         picture.y + BAR / 2)
            words = f"{number(middle)} {unit(metric)}".strip()
            picture.text(LABEL + max(known) * scale + 8, picture.y + 12, words)
            picture.y += BAR + 4
        picture.y += GAP
    return picture.draw() if picture.parts else '<p class="soft">Nothing was measured.</p>'


def latencies(experiments, palette):
    """p50, p90, p99 and p99.9 of each contender as points on one logarithmic scale per experiment."""
    picture = Picture("Latency percentiles")
    names = ("p50_us", "p90_us", "p99_us", "p999_us")
    for result in experiments.values():
        medians = {name: [statistics.median(sample[key] for sample in samples) for key in names]
                   for name, samples in result["samples"].items()}
        every = [max(value, 1) for known in medians.values() for value in known]
        low, high = math.floor(math.log10(min(every))), math.ceil(math.log10(max(every)))
        x = lambda value: LABEL + (math.log10(max(value, 1)) - low) / max(1, high - low) * (WIDTH - LABEL - 60)
        picture.text(0, picture.y + 14, title_of(result), kind="title")
        picture.y += 22
        bottom = picture.y + len(medians) * (BAR + 4)
        for power in range(low, high + 1):
            picture.line(x(10 ** power), picture.y, x(10 ** power), bottom, "#dfe5ea")
            words = f"{10 ** power} us" if power < 3 else f"{10 ** (power - 3)} ms"
            picture.text(x(10 ** power), bottom + 13, words, "middle")
        for name, known in medians.items():
            middle = picture.y + BAR / 2
            picture.text(LABEL - 8, picture.y + 12, name, "end")
            picture.line(x(known[0]), middle, x(known[-1]), middle, palette[name], 2)
            for value in known:
                picture.circle(x(value), middle, palette[name])
            picture.y += BAR + 4
        picture.y += 18 + GAP
    return picture.draw()


def table(rows):
    head = "".join(f"<th>{safe(word)}</th>" for word in HEAD)
    body = []
    for row in rows:
        words = cells(row)
        kinds = [word if word == row["verdict"] and word else "plain" for word in words]
        body.append("<tr>" + "".join(f'<td class="{kind}">{safe(word)}</td>' for kind, word in zip(kinds, words)) +
                    "</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def section(title, words, content):
    return f'<section><h2>{safe(title)}</h2><p class="soft">{safe(words)}</p>{content}</section>'


def throughput_metric(result):
    if result["title"].startswith("device bytes"):
        return None
    return "mb_per_second" if "128 KiB" in result["title"] else "iops"


def render(report):
    """`report` is what scripts/bench writes as JSON."""
    rows, experiments = report["rows"], report["experiments"]
    palette = colours(experiments)
    verdicts = [row["verdict"] for row in rows]
    cards = ((verdicts.count("met"), "bars met"), (verdicts.count("MISSED"), "bars missed"),
             (report["rounds"], "rounds, interleaved"), (f"{report['seconds']} s", "each measurement"))
    shown = "".join(f'<div class="card"><b>{safe(value)}</b><span>{safe(words)}</span></div>' for value, words in cards)
    parts = [
        section("The bars", "Ratio: Hydra's median by the peer's; the spread is that of the rounds' ratios. "
                "Hot: all that is read is in the page cache; cold: none of it is. Others: how many processors "
                "were busy with something else meanwhile.", table(rows)),
        section("Throughput", "Medians; the thin line goes from the least to the most.",
                bars("Throughput", experiments, throughput_metric,
                     lambda metric: "MB/s" if metric == "mb_per_second" else "IOPS", palette)),
        section("Latency", "p50, p90, p99 and p99.9, from left to right; medians of the rounds.",
                latencies(experiments, palette)),
        section("CPU per operation, servers", "Microseconds of CPU of all server processes by operations.",
                bars("CPU per operation", experiments, lambda _: "server_cpu_us", lambda _: "us", palette)),
        section("CPU per operation, load generator", "The same of the process that makes the load.",
                bars("CPU per operation of the load", experiments, lambda _: "client_cpu_us", lambda _: "us", palette)),
        section("Bytes to the device", "By payload byte and replica. A segment's first zero-fill is left out: it "
                "happens once in a segment's life.",
                bars("Bytes written per byte", experiments, lambda _: "device_bytes", lambda _: "", palette)),
    ]
    return (f'<!DOCTYPE html>\n<html xmlns="http://www.w3.org/1999/xhtml" lang="en"><head><meta charset="utf-8"/>'
            f'<title>Hydra bench</title><style>{STYLE}</style></head><body><main>'
            f'<h1>Hydra beside its peers</h1><p class="soft">{safe(report["machine"])}. Commit {safe(report["commit"])}, '
            f'{safe(report["date"])}.</p><div class="cards">{shown}</div>{"".join(parts)}'
            f'<footer>Made by scripts/bench; docs/performance.md says how it measures.</footer></main></body></html>\n')
