# SPDX-License-Identifier: Apache-2.0
"""Hydra as a contender: three nodes on this machine, by scripts/cluster."""
import os
import re
import shutil
import time
import urllib.request

from measure.processes import Failed, Meter, from_percentiles, run, run_json, together, usage

NODES = 3
SESSION_NODE = 1  # whose portal iSCSI sessions use
# A mastership that was moved by hand goes back by itself after five seconds, so what is measured
# with masters elsewhere comes in pieces that are shorter.
MOVED_SECONDS = 3
MOVED_ATTEMPTS = 40
SETTLE_LOOKS = 40  # half a second apart
WARM_BLOCK, WARM_SECONDS = 128 << 10, 3


class Hydra:
    def __init__(self, root, directory, base_port, options=()):
        self.root = root
        self.dir = directory
        self.bin = os.path.join(root, "build/release/bin")
        self.port = base_port
        self._cluster("start", "--base-port", base_port, *(["--", *options] if options else []))
        self.address = self._cluster("address").strip()
        self.ctl("status", "--wait", "--timeout", "60s")

    def _cluster(self, command, *more):
        return run(os.path.join(self.root, "scripts/cluster"), command, "--dir", self.dir, *more)

    def stop(self):
        self._cluster("stop")
        shutil.rmtree(self.dir, ignore_errors=True)

    def pids(self):
        pids = []
        for node in range(1, NODES + 1):
            with open(os.path.join(self.dir, f"node{node}.pid"), encoding="ascii") as file:
                pids.append(int(file.read()))
        return pids

    def ctl(self, *words):
        return run_json(os.path.join(self.bin, "hydractl"), "--cluster", self.address, "--json", *words)

    def create(self, name, size, shards=4, replicas=3):
        self.ctl("volume", "create", name, "--size", size, "--shards", shards, "--replicas", replicas)
        self.ctl("status", "--wait", "--timeout", "60s")

    def fill(self, name, size, block=1 << 20):
        self.native(name, "write", block, 8, 600, size, operations=size // block)

    def metric(self, name):
        """The sum of a metric over all nodes."""
        total = 0.0
        for node in range(1, NODES + 1):
            url = f"http://127.0.0.1:{self.port + 200 + node}/metrics"
            with urllib.request.urlopen(url, timeout=10) as answer:
                text = answer.read().decode()
            total += sum(float(value) for value in
                         re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE))
        return total

    def settle(self):
        """Until no node writes on its own: a segment counts as zero-filled when all of it is, and the map
        is written some time after the blocks."""
        before = None
        for _ in range(SETTLE_LOOKS):
            now = usage(self.pids())[1]
            if now == before:
                return
            before = now
            time.sleep(0.5)

    def _measured(self, load, replicas, count_bytes):
        if not count_bytes:
            meter = Meter(self.pids())
            return meter.add_cpu(load())
        self.settle()
        before = self.sources()
        meter = Meter(self.pids())
        sample = meter.add_cpu(load())
        self.settle()
        after = self.sources()
        return meter.add_bytes(sample, replicas, {name: after[name] - before[name] for name in before})

    def sources(self):
        """Bytes that the nodes count themselves, summed over them: zero-fill, batches, and of the batches what
        vacuum moved. What a node writes beyond zero-fill and batches is the map's."""
        return {name: self.metric(f"hydra_store_{name}_bytes") for name in ("zero_fill", "batch", "relocated")}

    # --- Loads ---------------------------------------------------------------------------------

    def native(self, volume, rw, block, depth, seconds, size, operations=None, skew=None, replicas=NODES):
        """Through the client library, by hydractl bench."""
        words = ["bench", volume, "--rw", rw, "--bs", block, "--iodepth", depth, "--size", size,
                 "--runtime", f"{round(seconds * 1000)}ms"]
        words += ["--number-ios", operations] if operations else []
        words += ["--skew", skew] if skew else []
        side = "read" if "read" in rw else "write"

        def load():
            report = self.ctl(*words)[side]
            latency = report["latency_us"]
            sample = {"operations": report["operations"], "iops": report["iops"],
                      "mb_per_second": report["mb_per_second"],
                      "p50_us": latency["p50"], "p90_us": latency["p90"], "p99_us": latency["p99"],
                      "p999_us": latency["p99.9"]}
            if side == "write":
                sample["payload_bytes"] = report["operations"] * block
            return sample
        return self._measured(load, replicas, side == "write")

    def url(self, volume, node=SESSION_NODE):
        return f"iscsi://127.0.0.1:{self.port + 100 + node}/iqn.2026-11.io.hydra:{volume}/0"

    def iscsi(self, volume, rw, block, depth, seconds, size, sessions=1, count_bytes=True):
        """One session is with SESSION_NODE, several are with all nodes in turn."""
        urls = [self.url(volume)] if sessions == 1 else [self.url(volume, node) for node in range(1, NODES + 1)]
        return self._measured(
            lambda: iscsi_load(self.bin, urls, rw, block, depth, seconds, size, sessions), NODES,
            count_bytes and "write" in rw)

    def iscsi_moved(self, volume, rw, block, depth, seconds, size):
        """The same with every master of the volume on the session's node. There is no time to wait until the
        nodes are quiet, so bytes are not counted. For reads, that node has seen every block before, as the
        others have when they lead: what a master remembers of its map belongs to what is hot."""
        if "read" in rw:
            self.move_masters(volume)
            self.iscsi(volume, "read", WARM_BLOCK, 16, WARM_SECONDS, size, count_bytes=False)
        pieces = []
        for _ in range(MOVED_ATTEMPTS):
            self.move_masters(volume)
            piece = self.iscsi(volume, rw, block, depth, MOVED_SECONDS, size, count_bytes=False)
            if all(shard["master"] == SESSION_NODE for shard in self.shards(volume)):
                pieces.append(piece)
            if len(pieces) * MOVED_SECONDS >= seconds:
                return together(pieces)
        raise Failed("masterships went back again and again before a piece was over")

    def shards(self, volume):
        return self.ctl("volume", "show", volume)["shard_list"]

    def move_masters(self, volume):
        for shard in self.shards(volume):
            if shard["master"] != SESSION_NODE:
                self.ctl("master", "move", shard["group"], SESSION_NODE)

    def files(self):
        """What reads may need: segments and the map's tables."""
        return [os.path.join(folder, name) for folder, _, names in os.walk(self.dir)
                for name in names if name.endswith((".seg", ".ldb"))]


def load_pages(paths):
    """Into the page cache."""
    for path in paths:
        try:
            with open(path, "rb", buffering=0) as file:
                while file.read(1 << 20):
                    pass
        except FileNotFoundError:  # it was removed meanwhile
            continue


def drop_pages(paths):
    """Out of the page cache."""
    for path in paths:
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:  # it was removed meanwhile
            continue
        try:
            os.fdatasync(descriptor)  # a dirty page stays
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def iscsi_load(binaries, urls, rw, block, depth, seconds, size, sessions=1):
    report = run_json(os.path.join(binaries, "iscsi-bench"), *urls, "--rw", rw, "--bs", block, "--iodepth", depth,
                      "--runtime", max(1, round(seconds)), "--size", size, "--sessions", sessions, "--json")
    return from_percentiles(report, block, "write" in rw)
