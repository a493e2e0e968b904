#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Initiators that we did not write, against a cluster of three nodes on this machine.

usage: on_cluster.py ROOT suite EXPECTED   libiscsi's conformance suite: all of it through one node, and
                                           its tests of several paths through two
       on_cluster.py ROOT guest            a Linux kernel with a file system on paths to all nodes, while
                                           one after the other is killed, paused and started again

Takes hydrad and hydractl from ROOT/build/release. Exit status: 0 all is right, 1 it is not, 77 something
that it needs is not installed.
"""
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time

import libiscsi_suite

TARGET = "iqn.2026-11.io.hydra:disk"
TWO_PATHS = {"MultipathIO.Simple", "MultipathIO.Reset", "MultipathIO.CompareAndWrite",
             "MultipathIO.CompareAndWriteAsync"}
GUEST_MIB = 120
NOT_INSTALLED = 77


def free_base():
    """A base port whose ports for three nodes nobody uses."""
    while True:
        base = random.randrange(20000, 30000)
        try:
            for port in [base + step + node for step in (0, 100, 200) for node in (1, 2, 3)]:
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
            return base
        except OSError:
            continue


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

    def healthy(self):
        self.hydractl("status", "--wait", "--timeout", "60s")

    def port(self, node):
        return self.base + 100 + node

    def url(self, node):
        return f"iscsi://127.0.0.1:{self.port(node)}/{TARGET}/0"

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


def guest(root):
    with Cluster(root, "512M") as cluster:
        command = ["scripts/guest", "disk", *(str(cluster.port(node)) for node in (1, 2, 3)), "--mib",
                   str(GUEST_MIB)]
        with subprocess.Popen(command, cwd=root) as kernel:
            disturbed = 0
            while True:
                try:
                    code = kernel.wait(timeout=8)
                    break
                except subprocess.TimeoutExpired:
                    pass
                node = disturbed % 3 + 1
                begin, end = (("pause", "resume") if disturbed % 2 else ("kill", "start"))
                cluster.node(begin, node)
                time.sleep(4)
                cluster.node(end, node)
                cluster.healthy()
                disturbed += 1
    print(f"{disturbed} times a node was killed or paused meanwhile")
    if code == 2:
        return NOT_INSTALLED
    return 0 if code == 0 and disturbed > 0 else 1


def main():
    if len(sys.argv) == 4 and sys.argv[2] == "suite":
        return suite(sys.argv[1], sys.argv[3])
    if len(sys.argv) == 3 and sys.argv[2] == "guest":
        return guest(sys.argv[1])
    print(__doc__)
    return 2


if __name__ == "__main__":
    sys.exit(main())
