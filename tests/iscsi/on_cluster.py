#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Initiators that we did not write, against a cluster of three nodes on this machine.

usage: on_cluster.py ROOT suite EXPECTED   libiscsi's conformance suite: all of it through one node, and
                                           its tests of several paths through two
       on_cluster.py ROOT guest FS PATHS   a Linux kernel with a file system, ext4 or xfs, on paths to one
                                           or to three nodes, while one after the other is killed, paused
                                           and started again; grown and trimmed meanwhile
       on_cluster.py ROOT guest-kills [COUNT [FS]]
                                           the same on paths to all nodes, which are killed COUNT times
                                           (50 unless told, on xfs) while it writes and checks
       on_cluster.py ROOT qemu             QEMU's tools, and fio through them, on all nodes in turn

Takes hydrad and hydractl from ROOT/build/release. Exit status: 0 all is right, 1 it is not, 77 something
that it needs is not installed.
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request

import libiscsi_suite
import qemu_tools

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from free_ports import free_base

TARGETS = "iqn.2026-11.io.hydra:"
TWO_PATHS = {"MultipathIO.Simple", "MultipathIO.Reset", "MultipathIO.CompareAndWrite",
             "MultipathIO.CompareAndWriteAsync"}
NOT_INSTALLED = 77

FILE_SYSTEMS = ("ext4", "xfs")
GUEST_MIB = 64
GUEST_SIZE = "384M"  # mkfs.xfs wants 300 MiB
GROWN_SIZE = "640M"
QUIET = 8  # seconds between a node that is back and the next one that is disturbed
DOWN = 4
PATIENCE = 60  # until a path is back
KILL, PAUSE = ("kill", "start"), ("pause", "resume")
# What happens in turn, by the number of paths; a single path goes to node 1.
DISTURBANCES = {1: [(1, *KILL), (2, *PAUSE), (1, *PAUSE), (3, *KILL)],
                3: [(1, *KILL), (2, *PAUSE), (3, *KILL), (1, *PAUSE), (2, *KILL), (3, *PAUSE)]}
KILLS = 50
SECONDS_PER_KILL = 40  # far more than it takes; limits the guest


class Cluster:
    """Three nodes with a volume named disk, as long as the with block lasts."""

    def __init__(self, root, size):
        self.root = root
        self.size = size
        self.folder = tempfile.mkdtemp(prefix="hydra-iscsi-")
        self.base = free_base()
        addresses = ",".join(f"127.0.0.1:{self.base + node}" for node in (1, 2, 3))
        self.environment = dict(os.environ, HYDRA_CLUSTER=addresses)

    def run(self, *command):
        subprocess.run(command, cwd=self.root, env=self.environment, check=True,
                       stdout=subprocess.DEVNULL)

    def node(self, command, *number):
        self.run("scripts/cluster", command, *map(str, number), "--dir", self.folder, "--base-port",
                 str(self.base))

    def hydractl(self, *arguments):
        self.run("build/release/bin/hydractl", *arguments)

    def data_bytes(self):
        """What each replica of the volume holds."""
        shown = subprocess.run(["build/release/bin/hydractl", "volume", "show", "disk", "--json"],
                               cwd=self.root, env=self.environment, check=True, capture_output=True)
        return json.loads(shown.stdout)["data_bytes"]

    def sessions(self, node):
        """How many initiators are logged in at this node."""
        url = f"http://127.0.0.1:{self.base + 200 + node}/metrics"
        with urllib.request.urlopen(url, timeout=10) as answer:
            text = answer.read().decode()
        found = re.findall(r"^hydra_iscsi_sessions\S* (\S+)$", text, re.MULTILINE)
        return sum(map(float, found))

    def healthy(self):
        self.hydractl("status", "--wait", "--timeout", "60s")

    def port(self, node):
        return self.base + 100 + node

    def url(self, node, volume="disk"):
        return f"iscsi://127.0.0.1:{self.port(node)}/{TARGETS}{volume}/0"

    def __enter__(self):
        self.node("start")
        self.healthy()
        self.hydractl("volume", "create", "disk", "--size", self.size)
        return self

    def __exit__(self, *_):
        subprocess.run(["scripts/cluster", "stop", "--dir", self.folder], cwd=self.root, check=False)
        shutil.rmtree(self.folder, ignore_errors=True)


def suite(root, expected):
    if shutil.which(libiscsi_suite.TOOL) is None:
        return NOT_INSTALLED
    required, excused = libiscsi_suite.expectations(expected)
    with Cluster(root, "64M") as cluster:
        one = libiscsi_suite.run_suite([cluster.url(1)], (required, excused), "")
        two = libiscsi_suite.run_suite([cluster.url(1), cluster.url(2)], (TWO_PATHS, set()),
                                       "^MultipathIO")
    return one or two


class Guest:
    """A kernel that scripts/guest boots, as long as the with block lasts."""

    def __init__(self, cluster, file_system, nodes, *options):
        self.folder = tempfile.mkdtemp(prefix="hydra-guest-")
        self.words = os.path.join(self.folder, "words")
        self.console = os.path.join(self.folder, "console")
        os.mkdir(self.words)
        self.command = ["scripts/guest", "disk", *(str(cluster.port(node)) for node in nodes), "--fs",
                        file_system, "--host", self.words, "--console", self.console, *options]
        self.root = cluster.root

    def said(self, line):
        """Whether its console has a line by now that begins so."""
        try:
            with open(self.console, encoding="utf-8", errors="replace") as console:
                return f"\nguest: {line}" in "\n" + console.read()
        except FileNotFoundError:
            return False

    def tell(self, word):
        path = os.path.join(self.words, word)
        with open(path + ".new", "w", encoding="utf-8") as file:
            file.write("done\n")
        os.rename(path + ".new", path)

    def lost_connections(self):
        with open(self.console, encoding="utf-8", errors="replace") as console:
            found = re.search(r"guest: no errors seen; (\d+) connections were lost", console.read())
        return int(found.group(1)) if found else 0

    def wait(self, seconds):
        """Its exit status, or None if it still runs after that time."""
        try:
            return self.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return None

    def __enter__(self):
        self.process = subprocess.Popen(self.command, cwd=self.root)
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def disturb(cluster, node, begin, end):
    cluster.node(begin, node)
    time.sleep(DOWN)
    cluster.node(end, node)
    cluster.healthy()


def guest(root, file_system, paths):
    disturbed = 0
    held = None
    with Cluster(root, GUEST_SIZE) as cluster, \
            Guest(cluster, file_system, range(1, paths + 1), "--mib", str(GUEST_MIB), "--timeout",
                  "600") as kernel:
        grown = False
        quiet_until = None
        while (code := kernel.wait(0.5)) is None:
            if kernel.said("waits for grow") and not grown:
                cluster.hydractl("volume", "resize", "disk", "--size", GROWN_SIZE)
                kernel.tell("grow")
                grown = True
            elif kernel.said("waits for trim") and held is None:
                held = cluster.data_bytes()
                kernel.tell("trim")
            elif quiet_until is None:
                # From here on it stays logged in, so that whoever dies is missed.
                quiet_until = time.monotonic() if kernel.said("the same bytes on the raw disk") else None
            elif time.monotonic() > quiet_until:
                disturb(cluster, *DISTURBANCES[paths][disturbed % len(DISTURBANCES[paths])])
                disturbed += 1
                quiet_until = time.monotonic() + QUIET
        if code == 2:
            return NOT_INSTALLED
        if code != 0:
            return 1
        lost = kernel.lost_connections()
        freed = held - cluster.data_bytes()
    print(f"{disturbed} times a node was killed or paused meanwhile; trimming freed"
          f" {freed >> 20} of {held >> 20} MiB")
    return 0 if lost > 0 and freed >= GUEST_MIB << 20 else 1


def wait_until(condition, what, seconds):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise RuntimeError(f"{what}: not within {seconds} s")
        time.sleep(0.2)


def guest_kills(root, count, file_system):
    with Cluster(root, GUEST_SIZE) as cluster, \
            Guest(cluster, file_system, (1, 2, 3), "--loop", "--timeout",
                  str(300 + count * SECONDS_PER_KILL)) as kernel:
        wait_until(lambda: kernel.said("writes until told to stop") or kernel.wait(0) is not None,
                   "the guest's file system", 300)
        killed = 0
        while killed < count and kernel.wait(0) is None:
            node = killed % 3 + 1
            # It is one of those that serve the guest again, not a bystander.
            wait_until(lambda: cluster.sessions(node) > 0, f"a session at node {node}", PATIENCE)
            kernel.wait(1 + killed % 4)
            cluster.node("kill", node)
            time.sleep(killed % 5)
            cluster.node("start", node)
            cluster.healthy()
            killed += 1
            print(f"node {node} was killed and is back: {killed} of {count}", flush=True)
        kernel.tell("stop")
        while (code := kernel.wait(600)) is None:
            pass
        if code == 2:
            return NOT_INSTALLED
        lost = kernel.lost_connections()
    print(f"{killed} times a node was killed during verified writes; {lost} connections were lost")
    return 0 if code == 0 and killed == count and lost >= count else 1


def made_large(cluster):
    """Not before the catalogue says that every node knows of such volumes."""
    try:
        cluster.hydractl("volume", "create", "large", "--size", str(qemu_tools.SIZE), "--logical-block", "4K")
    except subprocess.CalledProcessError:
        return False
    return True


def qemu(root):
    if any(shutil.which(tool) is None for tool in qemu_tools.TOOLS):
        return NOT_INSTALLED
    with Cluster(root, str(qemu_tools.SIZE)) as cluster:
        wait_until(lambda: made_large(cluster), "logical blocks of 4096", 20)
        return qemu_tools.check([cluster.url(node) for node in (1, 2, 3)],
                                [cluster.url(node, "large") for node in (1, 2, 3)], cluster.folder)


def main():
    if len(sys.argv) == 4 and sys.argv[2] == "suite":
        return suite(sys.argv[1], sys.argv[3])
    if len(sys.argv) == 5 and sys.argv[2] == "guest" and sys.argv[3] in FILE_SYSTEMS and \
            sys.argv[4] in ("1", "3"):
        return guest(sys.argv[1], sys.argv[3], int(sys.argv[4]))
    if 3 <= len(sys.argv) <= 5 and sys.argv[2] == "guest-kills":
        count, file_system = (sys.argv[3:] + [str(KILLS), "xfs"][len(sys.argv) - 3:])
        return guest_kills(sys.argv[1], int(count), file_system)
    if len(sys.argv) == 3 and sys.argv[2] == "qemu":
        return qemu(sys.argv[1])
    print(__doc__)
    return 2


if __name__ == "__main__":
    sys.exit(main())
