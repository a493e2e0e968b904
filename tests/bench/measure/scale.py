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
MAP_PATIENCE = 7200  # seconds
HEAD = ("what grows", "to", "operation", "IOPS", "p50 (us)", "p99 (us)", "CPU (us)")


class Axis:
    """Samples by line ("read", "write") and by what grows."""

    def __init__(self, name, title, x_title):
        self.name, self.title, self.x_title = name, title, x_title
        self.samples = {}

    def add(self, line, x, sample):
        self.samples.setdefault(line, {}).setdefault(x, []).append(sample)

    def measure(self, run, values, load, hydra):
        """`load(rw, value)` in turn for all values. Reads come first, with everything in the page cache: writes
        go past it, and what they replace is no longer in it."""
        load_pages(hydra.files())
        for line in ("read", "write"):
            for _ in range(run.rounds):
                for value in values:
                    self.add(line, value, load("rand" + line, value))
                    run.say(f"{self.x_title}: {value}, {line}: {self.samples[line][value][-1]['iops']:.0f} IOPS")
        return self

    def line(self, metric):
        return {line: [(x, statistics.median(sample[metric] for sample in points[x])) for x in sorted(points)]
                for line, points in self.samples.items()}

    def picture(self):
        return picture(self.title, [Panel("operations a second", self.x_title, self.line("iops")),
                                    Panel("us of CPU of all nodes for each", self.x_title, self.line("server_cpu_us"))])

    def rows(self):
        for line, points in self.samples.items():
            for x in sorted(points):
                middle = lambda metric, known=points[x]: number(statistics.median(s[metric] for s in known))
                yield (self.x_title, short(x), line, middle("iops"), middle("p50_us"), middle("p99_us"),
                       middle("server_cpu_us"))

    def report(self):
        return self.samples


class MapAxis:
    """What store-bench --map-blocks says."""
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

    def rows(self):
        return ()

    def report(self):
        return self.points


def start(run, stack, number_of):
    hydra = run.hydra(stack, number_of)
    hydra.create("scale", run.size)
    hydra.fill("scale", run.size)
    return hydra


def depth(run):
    axis = Axis("depth", "Cost of an operation by queue depth", "operations under way, one client, 4 shards")
    with contextlib.ExitStack() as stack:
        hydra = start(run, stack, 6)
        return axis.measure(run, DEPTHS, lambda rw, value: hydra.native(
            "scale", rw, BLOCK, value, run.seconds, run.size), hydra)


def shards(run):
    axis = Axis("shards", "Cost of an operation by shards", "shards of the volume, depth 64")
    with contextlib.ExitStack() as stack:
        hydra = run.hydra(stack, 7)
        for value in SHARDS:
            hydra.create(f"shards-{value}", run.size // 2, value)
            hydra.fill(f"shards-{value}", run.size // 2)
        return axis.measure(run, SHARDS, lambda rw, value: hydra.native(
            f"shards-{value}", rw, BLOCK, 64, run.seconds, run.size // 2), hydra)


def sessions(run):
    axis = Axis("sessions", "Cost of an operation by sessions",
                f"iSCSI sessions over all nodes, {OUTSTANDING} commands under way")
    with contextlib.ExitStack() as stack:
        hydra = start(run, stack, 8)
        return axis.measure(run, SESSIONS, lambda rw, value: hydra.iscsi(
            "scale", rw, BLOCK, OUTSTANDING // value, run.seconds, run.size, sessions=value, count_bytes=False), hydra)


def volumes(run):
    """All but one are idle: what does it cost that they are there? Each number has its turn once, with all its
    rounds."""
    axis = Axis("volumes", "Cost of an operation by volumes", "volumes of 4 shards, one of which is used, depth 64")
    with contextlib.ExitStack() as stack:
        hydra = start(run, stack, 9)
        there = 1
        for value in VOLUMES:
            for idle in range(there, value):
                hydra.create(f"idle-{idle}", 64 << 20)
            there = value
            axis.measure(run, [value], lambda rw, _: hydra.native("scale", rw, BLOCK, 64, run.seconds, run.size), hydra)
    return axis


def block_map(run):
    sizes = MAP_BLOCKS_QUICK if run.quick else MAP_BLOCKS
    return MapAxis(run_json(os.path.join(run.root, "build/release/bin/store-bench"), "--dir", run.folder("map"),
                            "--map-blocks", ",".join(str(size) for size in sizes), timeout=MAP_PATIENCE))


AXES = {"depth": depth, "shards": shards, "sessions": sessions, "volumes": volumes, "map": block_map}


def table(axes):
    lines = ["| " + " | ".join(HEAD) + " |", "|" + " --- |" * len(HEAD)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for axis in axes for row in axis.rows()])
