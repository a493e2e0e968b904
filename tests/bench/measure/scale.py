# SPDX-License-Identifier: Apache-2.0
"""How the cost of an operation changes as one thing grows: curves, without a peer and without bars."""
import contextlib
import os
import statistics

from measure.curves import Panel, picture, short
from measure.hydra import load_pages
from measure.processes import run_json
from measure.sections import BLOCK
from measure.table import number

DEPTHS = (1, 4, 16, 64, 256)
SHARDS = (1, 4, 16, 64)
VOLUMES = (1, 8, 64)
SESSIONS = (1, 4, 16, 64, 256)
OUTSTANDING = 256  # commands of all sessions together
MAP_BLOCKS = (100_000, 1_000_000, 10_000_000, 100_000_000)
MAP_BLOCKS_QUICK = (100_000, 1_000_000)


class Axis:
    """Samples by line ("read", "write") and by what grows."""

    def __init__(self, name, title, x_title):
        self.name, self.title, self.x_title = name, title, x_title
        self.samples = {}

    def add(self, line, x, sample):
        self.samples.setdefault(line, {}).setdefault(x, []).append(sample)

    def line(self, metric, scale=1.0):
        return {line: [(x, scale * statistics.median(sample[metric] for sample in points[x]))
                       for x in sorted(points)] for line, points in self.samples.items()}

    def picture(self):
        return picture(self.title, [Panel("operations a second", self.x_title, self.line("iops")),
                                    Panel("us of CPU of all nodes for each", self.x_title, self.line("server_cpu_us"))])

    def rows(self):
        for line, points in self.samples.items():
            for x in sorted(points):
                middle = lambda metric, known=points[x]: number(statistics.median(s[metric] for s in known))
                yield (self.x_title, short(x), line, middle("iops"), middle("p50_us"), middle("p99_us"),
                       middle("server_cpu_us"))


HEAD = ("what grows", "to", "operation", "IOPS", "p50 (us)", "p99 (us)", "CPU (us)")


def depth(run, hydra):
    axis = Axis("depth", "Cost of an operation by queue depth", "operations under way, one client, 4 shards")
    for _ in range(run.rounds):
        for value in DEPTHS:
            for line, rw in (("read", "randread"), ("write", "randwrite")):
                axis.add(line, value, hydra.native("scale", rw, BLOCK, value, run.seconds, run.size))
                run.say(f"{line}, depth {value}: {axis.samples[line][value][-1]['iops']:.0f} IOPS")
    return axis


def shards(run, hydra):
    axis = Axis("shards", "Cost of an operation by shards", "shards of the volume, depth 64")
    names = {1: "one", 4: "scale", 16: "sixteen", 64: "sixty-four"}
    for value, name in names.items():
        if name != "scale":
            hydra.create(name, run.size // 2, value)
            hydra.fill(name, run.size // 2)
    load_pages(hydra.files())
    for _ in range(run.rounds):
        for value in SHARDS:
            for line, rw in (("read", "randread"), ("write", "randwrite")):
                sample = hydra.native(names[value], rw, BLOCK, 64, run.seconds, run.size // 2)
                axis.add(line, value, sample)
                run.say(f"{line}, {value} shards: {sample['iops']:.0f} IOPS")
    return axis


def sessions(run, hydra):
    axis = Axis("connections", "Cost of an operation by connections",
                f"iSCSI sessions over all nodes, {OUTSTANDING} commands under way")
    for _ in range(run.rounds):
        for value in SESSIONS:
            for line, rw in (("read", "randread"), ("write", "randwrite")):
                sample = hydra.iscsi("scale", rw, BLOCK, OUTSTANDING // value, run.seconds, run.size, sessions=value,
                                     count_bytes=False)
                axis.add(line, value, sample)
                run.say(f"{line}, {value} sessions: {sample['iops']:.0f} IOPS")
    return axis


def volumes(run, hydra):
    """The others are idle: what does it cost that they are there? They cannot be removed in between, so there
    is one turn of each number, of all rounds."""
    axis = Axis("volumes", "Cost of an operation by volumes", "volumes of 4 shards, one of which is used, depth 64")
    there = 1
    for value in VOLUMES:
        for number_of in range(there, value):
            hydra.create(f"idle-{number_of}", 64 << 20)
        there = max(there, value)
        for _ in range(run.rounds):
            for line, rw in (("read", "randread"), ("write", "randwrite")):
                sample = hydra.native("scale", rw, BLOCK, 64, run.seconds, run.size)
                axis.add(line, value, sample)
                run.say(f"{line}, {value} volumes: {sample['iops']:.0f} IOPS")
    return axis


class MapAxis:
    name = "map"

    def __init__(self, points):
        self.points = points

    def picture(self):
        x_title = "blocks mapped, one replica's engine"
        line = lambda key, scale=1.0: [(point["blocks"], scale * point[key]) for point in self.points]
        return picture("Cost of a map by its size", [
            Panel("us for a look-up", x_title, {"as written": line("lookup_us"),
                                                "after random overwrites": line("lookup_again_us")}),
            Panel("blocks applied a second", x_title, {"in order": line("grown_per_second"),
                                                       "at random": line("overwritten_per_second")}),
            Panel("MiB", x_title, {"memory": line("resident_bytes", 1 / (1 << 20)),
                                   "on disk": line("map_bytes", 1 / (1 << 20))})])


def table(axes):
    lines = ["| " + " | ".join(HEAD) + " |", "|" + " --- |" * len(HEAD)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for axis in axes for row in axis.rows()])


def measure_map(run):
    sizes = MAP_BLOCKS_QUICK if run.quick else MAP_BLOCKS
    return run_json(os.path.join(run.root, "build/release/bin/store-bench"), "--dir", run.folder("map"), "--map-blocks",
                    ",".join(str(size) for size in sizes), timeout=7200)


def measure(run):
    """What is written as scale.json, and the axes."""
    axes = []
    with contextlib.ExitStack() as stack:
        wanted = [axis for axis in (depth, shards, sessions, volumes) if run.wants(axis.__name__)]
        if wanted:
            hydra = run.hydra(stack, 6)
            hydra.create("scale", run.size)
            hydra.fill("scale", run.size)
            load_pages(hydra.files())
            axes = [axis(run, hydra) for axis in wanted]
    points = measure_map(run) if run.wants("map") else []
    report = {"axes": {axis.name: axis.samples for axis in axes}, "map": points}
    return report, axes, ([MapAxis(points)] if points else [])
