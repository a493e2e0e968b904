#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every drill of `hydractl drill list`, in a short form, on a cluster of three nodes on this machine.

usage: on_cluster.py ROOT BUILD [DRILL...]

Also what must not pass: an executor that does not work, commands that are missing, nodes that do not take
part in drills, a gap that is too long. Exit status: 0 all is right, 1 it is not.
"""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from free_ports import free_base

# What is waited for, whatever the machine does meanwhile.
PATIENT = ["--max-gap", "20000"]
# One fault leaves a majority: writes go on after some hundred milliseconds. This many milliseconds are no
# figure, but what no hiccup explains.
MAX_GAP = {"master-kill": 5000, "master-pause": 5000, "node-kill": 5000, "rolling-restart": 5000,
           "partition-master": 5000, "partition-minority": 5000, "flapping-link": 5000, "hand-over": 3000}
# It fails if so many runs exceed that, unless more processes than this want each processor meanwhile.
ATTEMPTS = 3
BUSY_LOAD = 8
# Long enough for the others to take over.
USUAL_HOLD = "1500ms"
# Drills that prove something only if they last: a node that is ill has to notice, a cut has to be seen.
HOLD = {"slow-disk": "12s", "slow-link": "12s", "partition-master": "2500ms", "partition-minority": "2500ms"}
# Several of the others.
CHAOS_FAULTS = 4
CHAOS_SEED = "5"


def short(hold, faults=1):
    return ["--faults", str(faults), "--hold", hold, "--rate", "400", "--clients", "8"]


def busy():
    return os.getloadavg()[0] > BUSY_LOAD * (os.cpu_count() or 1)


SHORT = short(USUAL_HOLD)


class Cluster:
    """Three nodes, as long as the with block lasts."""

    def __init__(self, root, build, hydrad=(), timeout=900):
        self.root = root
        self.build = os.path.basename(build)
        self.hydractl = os.path.join(build, "bin", "hydractl")
        self.hydrad = hydrad  # options of the first start
        self.timeout = timeout  # seconds that a command of hydractl may take
        self.folder = tempfile.mkdtemp(prefix="hydra-drill-")
        self.base = free_base()
        addresses = ",".join(f"127.0.0.1:{self.base + node}" for node in (1, 2, 3))
        self.environment = dict(os.environ, HYDRA_CLUSTER=addresses)

    def __enter__(self):
        try:
            self.node("start", hydrad=self.hydrad)
            self.healthy()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        subprocess.run([f"{self.root}/scripts/cluster", "stop", "--dir", self.folder], check=False)
        shutil.rmtree(self.folder, ignore_errors=True)

    def node(self, command, *arguments, hydrad=(), check=True):
        subprocess.run([f"{self.root}/scripts/cluster", command, *map(str, arguments), "--dir",
                        self.folder, "--base-port", str(self.base), "--build", self.build, "--", *hydrad],
                       check=check, stdout=subprocess.DEVNULL)

    def ctl(self, *arguments, **more):
        return subprocess.run([self.hydractl, *arguments], env={**self.environment, **more},
                              capture_output=True, text=True, timeout=self.timeout)

    def healthy(self):
        done = self.ctl("status", "--wait", "--timeout", "60s")
        assert done.returncode == 0, done.stdout + done.stderr
        # A node's own pages are in the catalogue a moment after it has joined.
        for _ in range(100):
            if all(node.get("http") for node in json.loads(self.ctl("node", "list", "--json").stdout)):
                return
            time.sleep(0.1)
        raise AssertionError("nodes without --http")

    def drill(self, name, *arguments, **more):
        return self.ctl("drill", "run", name, "--cluster-dir", self.folder, *arguments, **more)


def expect(done, code, *says):
    text = done.stdout + done.stderr
    assert done.returncode == code, f"exit {done.returncode}, not {code}:\n{text}"
    for words in says:
        assert words in text, f"'{words}' is not in:\n{text}"


def check_refusals(cluster):
    """What can never work breaks nothing, and says what is missing."""
    expect(cluster.drill("earthquake"), 2, "drill list")
    expect(cluster.drill("partition-master", *SHORT), 2, "--drill")
    expect(cluster.drill("master-kill", "--cluster-script", "/nowhere"), 2, "--cluster-script")
    expect(cluster.drill("master-kill", "--executor", "command"), 2, "--kill-command")
    expect(cluster.drill("master-kill", "--executor", "ssh"), 2, "--ssh-host")
    commands = [word for name in ("kill", "start") for word in (f"--{name}-command", "true")]
    expect(cluster.drill("disk-loss", "--executor", "command", *commands), 2, "--wipe-command")
    expect(cluster.drill("grow-3-to-5", "--executor", "command", *commands), 2, "--add-command")
    expect(cluster.drill("master-kill", "--volume", "none"), 3, "none")
    check_other_cluster(cluster)
    volumes = cluster.ctl("volume", "list", "-q").stdout
    assert volumes == "", f"a refused drill left volumes: {volumes}"


def check_other_cluster(cluster):
    """A local cluster that is not the one that is drilled keeps its data, also at the same ports."""
    other = os.path.join(cluster.folder, "other")
    os.makedirs(os.path.join(other, "node2"))
    with open(os.path.join(cluster.folder, "cluster"), encoding="utf-8") as file:
        formed = file.read()
    with open(os.path.join(other, "cluster"), "w", encoding="utf-8") as file:
        file.write(re.sub("cluster_id=.*", "cluster_id=00000000-0000-4000-8000-000000000000", formed))
    for folder in (other, os.path.join(cluster.folder, "nowhere")):
        for name in ("disk-loss", "master-kill"):
            expect(cluster.ctl("drill", "run", name, *SHORT, "--cluster-dir", folder), 2, "--cluster-dir")
    assert os.path.isdir(os.path.join(other, "node2"))


def check_broken_executor(cluster):
    done = cluster.drill("node-kill", *SHORT, "--executor", "command", "--kill-command",
                         "echo cannot >&2; false", "--start-command", "true")
    expect(done, 1, "FAILED", "failed with 1: cannot")
    cluster.healthy()


def check_idle_executor(cluster):
    """Commands that succeed and break nothing prove nothing."""
    idle = [word for name in ("kill", "start", "pause", "resume", "restart")
            for word in (f"--{name}-command", "true")]
    for name, says in (("node-kill", "runs since before the fault"),
                       ("power-cycle-all", "runs since before the fault"),
                       ("rolling-restart", "runs since before the fault"),
                       ("master-pause", "answers although it was stopped")):
        expect(cluster.drill(name, *SHORT, "--executor", "command", *idle), 1, "FAILED", says)
    idle = [word for name in ("partition", "slow-link", "heal") for word in (f"--{name}-command", "true")]
    for name, says in (("partition-master", "although it was cut off"),
                       ("partition-minority", "although it was cut off")):
        expect(cluster.drill(name, *short("2500ms"), "--executor", "command", *idle), 1, "FAILED", says)
    # Half a second of writes shows that the link was there, if the machine lets them go on for so long.
    for _ in range(ATTEMPTS):
        done = cluster.drill("flapping-link", *short("2500ms"), "--executor", "command", *idle)
        if done.returncode != 0:
            break
    expect(done, 1, "FAILED", "all the while")


def check_options(cluster):
    """scripts/cluster gives a node the options that it had, until others are given."""
    def slow_ms(*given):
        subprocess.run([f"{cluster.root}/scripts/cluster", "restart", "2", "--dir", cluster.folder, "--build",
                        cluster.build, *given], check=True, stdout=subprocess.DEVNULL)
        with open(f"{cluster.folder}/node2.pid", encoding="utf-8") as file:
            process = file.read().strip()
        with open(f"/proc/{process}/cmdline", encoding="utf-8") as file:
            words = file.read().split("\0")
        return [words[i + 1] for i, word in enumerate(words) if word == "--slow-ms"]

    assert slow_ms("--", "--slow-ms", "1234") == ["1234"]
    assert slow_ms() == ["1234"], "it was forgotten"
    assert slow_ms("--") == [], "it was not to be kept"
    assert slow_ms() == []
    cluster.healthy()


def levels(cluster):
    """What each node can, and what it knows the cluster to use."""
    nodes = json.loads(cluster.ctl("node", "list", "--json").stdout)
    return {(node["feature_level"], node["cluster_feature_level"]) for node in nodes}


def check_half_done(cluster):
    """What fails half-way is mended as well."""
    script = f"{cluster.root}/scripts/cluster"
    where = f"--dir {cluster.folder} --build {cluster.build}"
    restart = ["--restart-command", f"{script} kill {{n}} {where}; echo half >&2; false",
               "--start-command", f"{script} start {{n}} {where}"]
    expect(cluster.drill("rolling-restart", *SHORT, "--executor", "command", *restart), 1, "FAILED", "half")
    cluster.healthy()
    before = [node["node"] for node in json.loads(cluster.ctl("node", "list", "--json").stdout)]
    add = f"{cluster.hydractl} node add --rpc 127.0.0.1:{cluster.base + 99}; echo half >&2; false"
    members = ["--add-command", add, "--remove-command", "false"]
    expect(cluster.drill("grow-3-to-5", *SHORT, "--executor", "command", *members), 1, "FAILED", "half")
    cluster.healthy()
    after = [node["node"] for node in json.loads(cluster.ctl("node", "list", "--json").stdout)]
    assert after == before, f"nodes {before} before, {after} after"


def check_unwritable_report(cluster):
    """The verdict does not depend on it."""
    expect(cluster.drill("hand-over", *SHORT, *PATIENT, "--report", "/dev/null/report"), 1, "PASSED",
           "could not be written")


def check_one_client(cluster):
    """Every group has its load, however few clients there are to be."""
    done = cluster.drill("hand-over", "--faults", "1", "--clients", "1", *PATIENT, "--json")
    expect(done, 0)
    said = json.loads(done.stdout)["environment"]
    shards = int(re.search(r"in (\d+) shards", said["volume"]).group(1))
    assert f"{shards} clients" in said["load"] and f"in {shards} of {shards} groups" in said["load"], said


def check_gap_limit(cluster):
    """All nodes are dead for a while: there is a gap, and nothing is lost."""
    expect(cluster.drill("power-cycle-all", *SHORT, "--max-gap", "10"), 1, "FAILED: writes paused",
           "0 lost", "linearizable")


def check_ssh(cluster):
    """A stand-in for ssh that runs what it is given here."""
    folder = os.path.join(cluster.folder, "bin")
    os.makedirs(folder)
    path = os.path.join(folder, "ssh")
    with open(path, "w", encoding="utf-8") as file:
        file.write('#!/bin/sh\n[ "$1" = host2 ] || [ "$1" = host1 ] || [ "$1" = host3 ] || exit 9\n'
                   'exec sh -c "$2"\n')
    os.chmod(path, 0o755)
    script = f"{cluster.root}/scripts/cluster"
    commands = []
    for action in ("kill", "start"):
        commands += [f"--{action}-command", f"{script} {action} {{n}} --dir {cluster.folder} --build "
                     f"{cluster.build}"]
    hosts = [word for n in (1, 2, 3) for word in ("--ssh-host", f"{n}=host{n}")]
    expect(cluster.drill("node-kill", *SHORT, *PATIENT, "--executor", "ssh", "--ssh-command", path,
                         *hosts, *commands), 0, "PASSED")


def check_interrupt(cluster):
    """Ctrl-C mends what is broken."""
    running = subprocess.Popen([cluster.hydractl, "drill", "run", "node-kill", "--cluster-dir",
                                cluster.folder, "--hold", "60s"], env=cluster.environment,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        line = ""
        while "fault 1" not in line:
            line = running.stderr.readline()
            assert line, "it ended by itself"
        running.send_signal(signal.SIGINT)
        text = running.communicate(timeout=120)[0]
    finally:
        running.kill()
    assert running.returncode == 1 and "interrupted" in text, text
    cluster.healthy()


def check_rot_for_good(cluster):
    """What has no other replica cannot be mended, and the drill notices."""
    expect(cluster.ctl("volume", "create", "single", "--size", "16M", "--replicas", "1"), 0)
    done = cluster.drill("bit-rot", *SHORT, "--volume", "single")
    expect(done, 1, "FAILED", "blocks damaged" if "given up" in done.stdout else "are rotten after")
    expect(cluster.ctl("volume", "delete", "single", "--yes"), 0)
    for volume in cluster.ctl("volume", "list", "-q").stdout.split():
        expect(cluster.ctl("volume", "delete", volume, "--yes"), 0)
    cluster.healthy()


def scrub_totals(cluster, what):
    """By node; they count from when its process began."""
    nodes = json.loads(cluster.ctl("scrub", "status", "--json").stdout)
    return {node["node"]: node.get(what + " total") for node in nodes}


def check_rot(cluster, faults, given_up):
    """All that was damaged is accounted for, and the nodes say the same."""
    for fault in faults:
        said = re.search(r"(\d+) blocks damaged, (\d+) found .* (\d+) mended, (\d+) overwritten", fault["what"])
        assert said, fault
        damaged, found, mended, overwritten = map(int, said.groups())
        assert damaged >= 64 and mended >= 32 and found >= mended, fault
        assert mended + overwritten == damaged, fault
    assert sum(filter(None, scrub_totals(cluster, "repaired").values())) >= 32, faults
    assert scrub_totals(cluster, "given up") == given_up, faults
    left = cluster.ctl("volume", "list", "-q").stdout
    assert "drill-rot" not in left, left


def check_drill(cluster, name):
    report = os.path.join(cluster.folder, "report-" + name)
    given_up = scrub_totals(cluster, "given up")
    began = time.monotonic()
    chosen = short(HOLD.get(name, USUAL_HOLD))
    if name == "chaos":
        chosen = short(USUAL_HOLD, CHAOS_FAULTS) + ["--seed", CHAOS_SEED]
    for attempt in range(ATTEMPTS):
        done = cluster.drill(name, *chosen, *PATIENT, "--json", "--report", report)
        assert done.returncode == 0, f"{name}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        said = json.loads(done.stdout)
        if said["longest_gap_ms"] <= MAX_GAP.get(name, 20000):
            break
        print(f"{name}: writes paused for {said['longest_gap_ms']} ms", flush=True)
        assert busy() or attempt + 1 < ATTEMPTS, f"{name}: more than {MAX_GAP[name]} ms each time"
    assert said["passed"] and said["check"]["linearizable"] and not said["check"]["lost"], said
    assert said["totals"]["writes"] > 100 and said["totals"]["reads"] > 50, said["totals"]
    assert len(said["faults"]) >= 1 and all("healthy_after_ms" in f for f in said["faults"]), said
    page = xml.etree.ElementTree.parse(os.path.join(report, "index.html")).getroot()
    assert list(page.iter("{http://www.w3.org/2000/svg}svg")), "no picture"
    with open(os.path.join(report, "report.json"), encoding="utf-8") as file:
        written = json.load(file)
    assert written["timeline"] and written["verdict"] == said["verdict"]
    if name == "bit-rot":
        check_rot(cluster, said["faults"], given_up)
    print(f"{name}: {said['verdict']} ({time.monotonic() - began:.0f} s)", flush=True)
    return said["faults"]


def check_upgrade(root, build):
    """Nodes that are like an older build, restarted one by one as what they are."""
    old = ["--feature-level", "1"]
    with Cluster(root, build, old) as cluster:
        expect(cluster.ctl("volume", "create", "v", "--size", "16M"), 0)
        refused = cluster.ctl("target", "disable", "v")
        assert refused.returncode != 0 and "every node" in refused.stderr, refused
        assert levels(cluster) == {(1, 1)}, levels(cluster)
        faults = check_drill(cluster, "rolling-upgrade")
        (can, acts), = levels(cluster)
        assert can == acts > 1, (can, acts)
        assert len(faults) == 3, faults
        assert [f"rises to {can}" in fault["what"] for fault in faults] == [False, False, True], faults
        expect(cluster.ctl("target", "disable", "v"), 0)
        # There is no way back, and no way further.
        expect(cluster.drill("rolling-upgrade", *SHORT), 1, "FAILED", "install a newer build first")
        cluster.node("stop", 3)
        cluster.node("start", 3, hydrad=old, check=False)
        log = os.path.join(cluster.folder, "node3.log")
        for _ in range(200):
            with open(log, encoding="utf-8") as file:
                if "upgrade it" in file.read():
                    break
            time.sleep(0.1)
        else:
            raise AssertionError("an older node was let in")
        cluster.node("stop", 3)
        cluster.node("start", 3)
        cluster.healthy()


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    with Cluster(sys.argv[1], sys.argv[2]) as cluster:
        listed = cluster.ctl("drill", "list", "--json")
        names = [drill["name"] for drill in json.loads(listed.stdout)]
        assert "master-kill" in names and "chaos" in names, names
        if len(sys.argv) == 3:
            check_refusals(cluster)
            check_broken_executor(cluster)
            check_idle_executor(cluster)
            check_unwritable_report(cluster)
            check_one_client(cluster)
            check_gap_limit(cluster)
            check_options(cluster)
            check_ssh(cluster)
            check_interrupt(cluster)
            print("what must not pass does not", flush=True)
        cluster.node("stop")
        cluster.node("start", "--drill")
        cluster.healthy()
        if len(sys.argv) == 3:
            check_rot_for_good(cluster)
        for name in sys.argv[3:] or names:
            if name != "rolling-upgrade":
                check_drill(cluster, name)
        if len(sys.argv) == 3:
            check_half_done(cluster)
    if "rolling-upgrade" in (sys.argv[3:] or names):
        check_upgrade(sys.argv[1], sys.argv[2])


if __name__ == "__main__":
    main()
