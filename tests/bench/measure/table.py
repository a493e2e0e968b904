# SPDX-License-Identifier: Apache-2.0
"""Rows as text, for a terminal and for docs/performance.md."""

HEAD = ("work", "Hydra", "peer", "ratio", "spread", "bar", "reach for", "verdict", "others")


def number(value):
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def spread(pair):
    return f"{number(pair[0])}-{number(pair[1])}"


def work_of(row):
    notes = [note for note in (row["note"], row["heat"]) if note]
    return row["work"] + (f" ({', '.join(notes)})" if notes else "")


def cells(row):
    unit = "" if row["unit"] == "x" else " " + row["unit"]
    peer = ratio = ""
    if row["peer"] is not None:
        peer = f"{row['peer']}: {number(row['theirs'])}{unit}"
        ratio = number(row["ratio"])
    values = row.get("ratio_spread", row["ours_spread"])
    reach = "" if row["reach"] is None else f"{row['reach']:g}"
    return (work_of(row), f"{number(row['ours'])}{unit}", peer, ratio,
            spread(values) if row["rounds"] > 1 else "one round", row["bar"] or "", reach, row["verdict"],
            "" if row["other_processors"] is None else f"{row['other_processors']:.1f}")


def text(rows):
    lines = [HEAD, *(cells(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEAD))]
    drawn = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines]
    drawn.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(drawn)


def markdown(rows):
    lines = ["| " + " | ".join(HEAD) + " |", "|" + " --- |" * len(HEAD)]
    return "\n".join(lines + ["| " + " | ".join(cells(row)) + " |" for row in rows])
