# SPDX-License-Identifier: Apache-2.0
"""The parts of a run. Each has servers of its own, with fresh data, and removes them."""
import contextlib
import os

from measure.ceph import Ceph
from measure.hydra import Hydra, drop_pages, load_pages
from measure.peers import Disk, Light, Tgt
from measure.rows import Experiment

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
BLOCK = 4 * KIB
LARGE = 128 * KIB


class Run:
    """What a run was asked for, and the results so far."""

    def __init__(self, options, root, directory, say):
        self.peers = options.peers
        self.rounds = options.rounds
        self.seconds = options.runtime
        self.quick = options.quick
        self.port = options.base_port
        self.wanted = options.rows  # a compiled pattern, or None
        self.root = root
        self.dir = directory
        self.say = say
        self.size = 512 * MIB if options.quick else GIB
        self.results = {}

    def wants(self, key):
        return self.wanted is None or self.wanted.search(key) is not None

    def measure(self, key, title, heat, contenders):
        """Those whose name is None are left out."""
        if not self.wants(key):
            return
        present = [(name, load) for name, load in contenders if name is not None]
        self.results[key] = Experiment(key, title, heat, present).measure(self.rounds, self.say)

    def folder(self, name):
        path = os.path.join(self.dir, name)
        os.makedirs(path, exist_ok=True)
        return path

    @contextlib.contextmanager
    def stopping(self, make):
        server = make()
        try:
            yield server
        finally:
            server.stop()

    def peer(self, stack, name, make):
        """The peer, until the section is over; None if it was not asked for."""
        if name not in self.peers:
            return None
        self.say(f"starting {name}")
        return stack.enter_context(self.stopping(make))

    def hydra(self, stack, number, *options):
        self.say("starting Hydra")
        return stack.enter_context(self.stopping(
            lambda: Hydra(self.root, os.path.join(self.dir, f"hydra{number}"), self.port + 10 * number, options)))


def native(run):
    """The client library's writes, beside the lean baseline and the disk."""
    keys = ("native_write_1", "native_write_16", "native_write_64", "native_read_64", "native_sequential_write")
    if not any(run.wants(key) for key in keys):
        return
    with contextlib.ExitStack() as stack:
        disk = run.peer(stack, "disk", lambda: Disk(run.folder("disk"), run.size))
        light = run.peer(stack, "light", lambda: Light(run.root, run.folder("light")))
        hydra = run.hydra(stack, 0)
        hydra.create("native", run.size)
        hydra.fill("native", run.size)
        load_pages(hydra.files())
        seconds, size = run.seconds, run.size
        run.measure("native_read_64", "4 KiB random read, depth 64, native client", "hot", [
            ("hydra", lambda: hydra.native("native", "randread", BLOCK, 64, seconds, size))])
        for depth in (1, 16, 64):
            run.measure(f"native_write_{depth}", f"4 KiB random write, depth {depth}, native client", "", [
                (disk and "disk", lambda d=depth: disk.measure("randwrite", BLOCK, d, seconds)),
                (light and "light", lambda d=depth: light.measure(d, seconds)),
                ("hydra", lambda d=depth: hydra.native("native", "randwrite", BLOCK, d, seconds, size))])
        run.measure("native_sequential_write", "128 KiB sequential write, depth 16, native client", "", [
            ("hydra", lambda: hydra.native("native", "write", LARGE, 16, seconds, size))])


def iscsi(run):
    """The same initiator on Hydra's portal and on tgt's. Reads come first: writes go past the page cache,
    and what they replace is no longer in it."""
    keys = ("iscsi_read_1", "iscsi_read_64", "iscsi_sequential_read", "iscsi_read_64_cold", "iscsi_write_1",
            "iscsi_write_64", "iscsi_sessions_read", "iscsi_sessions_write")
    if not any(run.wants(key) for key in keys):
        return
    with contextlib.ExitStack() as stack:
        disk = run.peer(stack, "disk", lambda: Disk(run.folder("disk"), run.size))
        tgt = run.peer(stack, "tgt", lambda: Tgt(run.root, run.folder("tgt"), run.port + 50, run.size))
        hydra = run.hydra(stack, 1)
        hydra.create("iscsi", run.size)
        hydra.fill("iscsi", run.size)
        seconds, size = run.seconds, run.size

        def contenders(rw, block, depth, prepare=lambda: None, **more):
            def theirs():
                prepare()
                return tgt.measure(rw, block, depth, seconds, size, **more)

            def ours():
                prepare()
                return hydra.iscsi("iscsi", rw, block, depth, seconds, size, **more)
            return [(tgt and "tgt", theirs), ("hydra", ours)]

        def moved(rw, depth):
            return ("hydra, masters here", lambda: hydra.iscsi_moved("iscsi", rw, BLOCK, depth, seconds, size))

        files = lambda: hydra.files() + ([tgt.image] if tgt else [])
        load_pages(files())
        for depth in (1, 64):
            run.measure(f"iscsi_read_{depth}", f"4 KiB random read, depth {depth}, iSCSI", "hot", [
                (disk and "disk", lambda d=depth: disk.measure("randread", BLOCK, d, seconds)),
                *contenders("randread", BLOCK, depth), moved("randread", depth)])
        run.measure("iscsi_sequential_read", "128 KiB sequential read, depth 16, iSCSI", "hot",
                    contenders("read", LARGE, 16))
        run.measure("iscsi_sessions_read", "4 KiB random read, 64 sessions of depth 4, iSCSI", "hot",
                    contenders("randread", BLOCK, 4, sessions=64))
        run.measure("iscsi_read_64_cold", "4 KiB random read, depth 64, iSCSI", "cold",
                    contenders("randread", BLOCK, 64, prepare=lambda: drop_pages(files())))
        for depth in (1, 64):
            run.measure(f"iscsi_write_{depth}", f"4 KiB random write, depth {depth}, iSCSI", "",
                        [*contenders("randwrite", BLOCK, depth), moved("randwrite", depth)])
        run.measure("iscsi_sessions_write", "4 KiB random write, 64 sessions of depth 4, iSCSI", "",
                    contenders("randwrite", BLOCK, 4, sessions=64))


def layout(run):
    """What replicas and shards cost."""
    if not run.wants("replicas") and not run.wants("shards"):
        return
    with contextlib.ExitStack() as stack:
        hydra = run.hydra(stack, 2)
        size = run.size // 2
        volumes = {"four": (4, 3), "many": (64, 3), "single": (4, 1)}
        for name, (shards, replicas) in volumes.items():
            hydra.create(name, size, shards, replicas)
            hydra.fill(name, size)

        def load(volume, depth):
            return lambda: hydra.native(volume, "randwrite", BLOCK, depth, run.seconds, size,
                                        replicas=volumes[volume][1])
        run.measure("replicas", "4 KiB random write, depth 1, native client", "", [
            ("3 replicas", load("four", 1)), ("1 replica", load("single", 1))])
        run.measure("shards", "4 KiB random write, depth 64, native client", "", [
            ("4 shards", load("four", 64)), ("64 shards", load("many", 64))])


def amplification(run):
    """Bytes to the device in steady state: with room for ever, and when every segment has to be cleaned
    before it is used again. One run each; it is the length that makes it steady, not repetition."""
    measured = 15 if run.quick else 45
    turnovers = 1 if run.quick else 2  # every block written so often before it counts as steady

    def once(key, title, hydra, volume, size, skew=None):
        load = lambda seconds, writes=None: hydra.native(volume, "randwrite", BLOCK, 64, seconds, size,
                                                         operations=writes, skew=skew)
        run.say(f"{title}: to steady state")
        load(2 * measured, turnovers * size // BLOCK)
        run.results[key] = Experiment(key, title, "", [("hydra", lambda: load(measured))]).measure(1, run.say)

    if run.wants("amplification_off"):
        with contextlib.ExitStack() as stack:
            hydra = run.hydra(stack, 3)
            hydra.create("off", run.size)
            hydra.fill("off", run.size)
            once("amplification_off", "device bytes per payload byte, vacuum off", hydra, "off", run.size)
    if run.wants("amplification_skew") or run.wants("amplification_uniform"):
        # 96 segments: reserve and open ones are the share of the store that they are in a large one.
        segment = 10 * MIB if run.quick else 16 * MIB
        capacity = 96 * segment
        size = capacity * 7 // 10 // MIB * MIB
        with contextlib.ExitStack() as stack:
            hydra = run.hydra(stack, 4, "--segment-size", str(segment), "--capacity", str(capacity))
            hydra.create("full", size)
            hydra.fill("full", size)
            for name, words, skew in (("skew", "90/10 skew", "90/10"), ("uniform", "uniform", None)):
                key = f"amplification_{name}"
                if run.wants(key):
                    once(key, f"device bytes per payload byte, 70 % full, {words}", hydra, "full", size, skew)


def ceph(run):
    """Ceph's daemons are never quite idle, so they are there for their own rows only."""
    keys = ("ceph_write_1", "ceph_write_64", "ceph_read_64", "ceph_sequential_write")
    if "ceph" not in run.peers or not any(run.wants(key) for key in keys):
        return
    with contextlib.ExitStack() as stack:
        peer = run.peer(stack, "ceph", lambda: Ceph(run.folder("ceph"), run.port + 60, run.size))
        hydra = run.hydra(stack, 5)
        hydra.create("native", run.size)
        hydra.fill("native", run.size)
        load_pages(hydra.files())

        def pair(key, title, heat, rw, block, depth):
            run.measure(key, title, heat, [
                ("ceph", lambda: peer.measure(rw, block, depth, run.seconds)),
                ("hydra", lambda: hydra.native("native", rw, block, depth, run.seconds, run.size))])
        pair("ceph_read_64", "4 KiB random read, depth 64, native client", "hot", "randread", BLOCK, 64)
        pair("ceph_write_1", "4 KiB random write, depth 1, native client", "", "randwrite", BLOCK, 1)
        pair("ceph_write_64", "4 KiB random write, depth 64, native client", "", "randwrite", BLOCK, 64)
        pair("ceph_sequential_write", "128 KiB sequential write, depth 16, native client", "", "write", LARGE, 16)


SECTIONS = (native, iscsi, layout, amplification, ceph)
