#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Does what docs/operations.md says: types its commands, and checks what it promises.

usage: operations_test.py ROOT

Commands are taken from the page: from the indented lines of a section, or from the inline code in it. Only
ports, directories and what it leaves open are filled in. What it says in prose is added here, next to the
sentence. Known blocks are written before every procedure, during most, and have to be there after it.
A command in an indented line that was not typed is an error. At most ten minutes.
"""
import contextlib
import glob
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from free_ports import free_base

END, PATIENCE = time.monotonic() + 540, 180  # of all, and the seconds of one command
MIB = 1 << 20
FILLER, KNOWN, KNOWN_BYTES, PIECE = 512 * MIB, 768 * MIB, 8 * MIB, 64 << 10  # of the volume data
SOON_FULL = "--segment-size 16M --capacity 256M"
FILL = "hydractl io write data --offset {} --fill 0x5a --length 16M"


def need(right, what):
    if not right:
        raise AssertionError(what)


def until(condition, what, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        need(time.monotonic() < end, f"not within {seconds} s: {what}")
        time.sleep(0.2)


class Page:
    """The commands of docs/operations.md, by section."""

    def __init__(self, text):
        self.text = dict(part.split("\n", 1) for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:])
        self.left = {(title, line) for title in self.text for line in self.indented(title)
                     if re.match(r"(hydractl|hydrad|scripts/\w+|cat|\(umask) ", line)}
        self.taken = 0

    def indented(self, title):
        blocks = re.findall(r"^ {4,}(\S(?:.*\\\n)*.*)$", self.text[title], re.MULTILINE)
        return [re.sub(r"\s*\\\n\s*", " ", block) for block in blocks]

    def take(self, title, start):
        """The first command of that section that begins so."""
        lines = self.indented(title) + re.findall(r"`([^`\n]+)`", self.text[title])
        found = [line for line in lines if line.startswith(start)]
        need(found, f"'{title}' has no command that begins with: {start}")
        self.left.discard((title, found[0]))
        self.taken += 1
        return found[0]


class Place:
    """A shell, at a cluster of this machine."""

    def __init__(self, page, root, folder, cwd, nodes):
        self.page, self.folder, self.cwd, self.base, self.title = page, folder, cwd, free_base(nodes), ""
        addresses = ",".join(f"127.0.0.1:{self.base + node}" for node in (1, 2, 3))
        self.environment = dict(os.environ, HYDRA_CLUSTER=addresses, HYDRA_BASE_PORT=str(self.base),
                                XDG_STATE_HOME=folder, PATH=f"{root}/build/release/bin:{os.environ['PATH']}")
        self.nodes, self.known = {}, None  # nodes that were started by hand

    def here(self, text):
        return re.sub(r":7([1-3]\d\d)\b", lambda m: f":{self.base + int(m.group(1)) - 100}", text)

    def run(self, command, data=b""):
        """Exit code, output, errors."""
        with subprocess.Popen(["bash", "-c", command], cwd=self.cwd, env=self.environment,
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              start_new_session=True) as process:
            try:
                output, errors = process.communicate(data, max(0.1, min(PATIENCE, END - time.monotonic())))
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)
                raise
        return process.returncode, output, errors.decode(errors="replace")

    def type(self, command, code=0, says=""):
        """Types it. It has to end with `code`, and what it prints, to contain `says`."""
        command = self.here(command)
        print(f"$ {command}", flush=True)
        ended, output, errors = self.run(command)
        text = output.decode(errors="replace") + errors
        print(f"{text[-2000:]}[exit {ended}]", flush=True)
        need(ended == code, f"'{command}' ended with {ended}, not with {code}")
        need(says in text, f"'{command}' does not say: {says}")
        return text

    def follow(self, start, old="", new="", title="", **expected):
        """A command of the page, of this section unless told, with `new` for what it leaves open."""
        command = self.page.take(title or self.title, start)
        need(old in command, f"'{command}' has no '{old}'")
        return self.type(command.replace(old, new) if old else command, **expected)

    def healthy(self, start="hydractl status --wait", **where):
        self.follow(start, says="cluster: healthy", **where)

    def get(self, address, code, says):
        """GET http://`address`; status and body have to be as told."""
        try:
            with urllib.request.urlopen(f"http://{self.here(address)}", timeout=10) as answer:
                found, body = answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            found, body = error.code, error.read().decode()
        print(f"GET {self.here(address)}\n[{found}]", flush=True)
        need(found == code and says in body, f"{address} is not {code} with '{says}' but {found}: {body}")

    def log_says(self, node, words):
        until(lambda: self.run(f"grep '{words}' node{node}.log")[0] == 0, f"node {node} says '{words}'")

    def replicas(self):
        """The nodes that have one, of each shard of the volume data."""
        text = self.type("hydractl volume show data")
        return [row.split() for row in re.findall(r"^\d+ +\d+ +\d+ +(\d+(?: \d+)*)  ", text, re.MULTILINE)]

    def hydrad(self, node, command):
        """Starts a node by hand, 'likewise with [its] numbers, directories and addresses'."""
        command = re.sub(r"--node \d+", f"--node {node}", command).replace("/var/lib/hydra", f"node{node}")
        command = self.here(re.sub(r"(--(listen|http) [\d.]+:7\d0)\d", rf"\g<1>{node}", command))
        print(f"$ {command} &", flush=True)
        with open(f"{self.folder}/node{node}.log", "wb") as log:
            self.nodes[node] = subprocess.Popen(["bash", "-c", "exec " + command], cwd=self.cwd,
                                                env=self.environment, stdout=log, stderr=log)

    def end(self, node):
        # "SIGTERM: it hands over its masterships, writes a checkpoint and ends with 0 within five seconds"
        self.nodes[node].terminate()
        code = self.nodes[node].wait(timeout=6)
        print(f"$ kill -TERM $(pid of node {node})\n[exit {code}]", flush=True)
        need(code == 0, f"node {node} ended with {code}")

    def close(self):
        for process in self.nodes.values():
            process.kill()
            process.wait()
        if os.path.isdir(f"{self.folder}/hydra"):
            subprocess.run(["scripts/cluster", "stop"], cwd=self.cwd, env=self.environment, timeout=60,
                           check=False)


class Known:
    """Blocks of the volume data whose content is known. In a with block they are written all the while."""

    def __init__(self, place):
        self.place, self.random, self.content = place, random.Random(1), bytearray(KNOWN_BYTES)
        self.writes, self.failed, self.stop, self.thread = 0, None, threading.Event(), None
        place.type("hydractl volume create data --size 1G")
        for _ in range(KNOWN_BYTES // PIECE):
            self.write()

    def write(self):
        at, piece = self.writes * PIECE % KNOWN_BYTES, self.random.randbytes(PIECE)
        code, _, errors = self.place.run(f"hydractl io write data --offset {KNOWN + at}", piece)
        need(code == 0, f"write {self.writes} ended with {code}: {errors}")
        self.content[at:at + PIECE] = piece
        self.writes += 1

    def check(self):
        command = f"hydractl io read data --offset {KNOWN} --length {KNOWN_BYTES}"
        code, output, errors = self.place.run(command)
        need(code == 0 and output == self.content, f"not what was acknowledged, or exit {code}: {errors}")
        print(f"$ {command} | compare\n{self.writes} writes until now, nothing is missing", flush=True)

    def load(self):
        try:
            while not self.stop.wait(0.1):
                self.write()
        except (AssertionError, OSError, subprocess.TimeoutExpired) as error:
            self.failed = error

    def __enter__(self):
        self.stop.clear()
        self.thread = threading.Thread(target=self.load)
        self.thread.start()

    def __exit__(self, kind, *_):
        self.stop.set()
        self.thread.join()
        need(kind or not self.failed, f"during '{self.place.title}': {self.failed}")


def forming(place):
    place.follow("cat /proc")
    place.follow("(umask")
    start = place.page.take(place.title, "hydrad")
    place.hydrad(1, start)
    # "A node that is alone says that it waits for a majority."
    place.log_says(1, "waits for a majority")
    place.hydrad(2, start)
    place.hydrad(3, start)
    place.healthy(title="Day to day")
    place.known = Known(place)
    for node in (1, 2, 3):
        place.end(node)
    # "From the second start on leave `--bootstrap` out"; node 1 with the file of "Options".
    toml = "\n".join(place.page.indented("Options"))
    with open(f"{place.folder}/cluster-id", encoding="utf-8") as file:
        toml = re.sub(r"(cluster-id = ).*", rf'\1"{file.read().strip()}"', place.here(toml))
    with open(f"{place.folder}/hydrad.toml", "w", encoding="utf-8") as file:
        file.write(toml.replace("/var/lib/hydra", "node1").replace("/etc/hydra/secret", "secret") + "\n")
    place.hydrad(1, place.page.take("Options", "hydrad --config"))
    again = start.replace(" --bootstrap", "")
    place.hydrad(2, again)
    place.hydrad(3, again)
    place.healthy(title="Day to day")
    place.get("127.0.0.1:7301/healthz", 200, "")  # "200 when it serves"
    # "a node whose directory is lost must not begin afresh [...] Such a node is refused by the others."
    place.end(3)
    place.follow("hydractl debug verify", "DIR", "node3", title="Day to day")
    os.rename(f"{place.folder}/node3", f"{place.folder}/kept")
    place.hydrad(3, start)
    place.log_says(3, "refuses this node: node 3 comes with another data directory")
    place.nodes[3].kill()
    place.nodes[3].wait()
    shutil.rmtree(f"{place.folder}/node3")
    os.rename(f"{place.folder}/kept", f"{place.folder}/node3")
    place.hydrad(3, again)
    place.healthy(title="Day to day")


def adding(place):
    # "[Removing] is refused where a volume would be left with fewer replicas than it asks for"
    place.follow("hydractl node remove", title="Removing a node", code=1, says="would be left with")
    place.follow("hydractl node add", "HOST:PORT", "127.0.0.1:7104", says="node 4")
    place.hydrad(4, place.page.take(place.title, "hydrad"))
    place.healthy()
    # "replicas and masters are spread anew over all nodes"
    need(any("4" in nodes for nodes in place.replicas()), "node 4 has no replica")


def removing(place):
    place.follow("hydractl node remove")
    need(not any("1" in nodes for nodes in place.replicas()), "node 1 has a replica")
    # "then it is forgotten and the process ends by itself. Its number is never used again."
    need(place.nodes[1].wait(timeout=30) == 0, "node 1 did not end with 0")
    place.type("hydractl node add --id 1 --rpc 127.0.0.1:7101", code=2, says="numbers are never used again")
    place.healthy(title="Day to day")
    place.follow("hydractl debug verify", "DIR", "node1", title="Day to day")


def fill(place, at):
    """Until it is refused as the page says; returns where."""
    text = place.page.text[place.title]
    words, exits = re.search(r"`hydractl` says \*(.+?)\* and exits with (\d+)", text).groups()
    for at in range(at, FILLER, 16 * MIB):
        command = FILL.format(at)
        code, _, errors = place.run(command)
        if code != 0:
            print(f"$ {command}\n{errors}[exit {code}]", flush=True)
            need(code == int(exits) and words in errors, f"not refused with '{words}' and {exits}")
            return at
    raise AssertionError("writes are never refused")


def writes_again(place, at, free):
    """... what is refused until `free`."""
    need(place.run(FILL.format(at))[0] != 0, "writing works again before anything was freed")
    free()
    # "Writing resumes by itself when there is room", "within seconds"
    command = FILL.format(at)
    until(lambda: place.run(command)[0] == 0, "writing works again", 20)
    print(f"$ {command}\n[exit 0]", flush=True)


def disk_full(place):
    place.type(f"scripts/cluster start -- {SOON_FULL}")
    place.type("hydractl status --wait")
    place.known = Known(place)
    place.type("hydractl volume create old --size 1G")
    place.type("hydractl io write old --fill 0xa5 --length 48M")
    at = fill(place, 0)
    # "nothing that was acknowledged is harmed. Reads, discards and deletes go on"
    place.known.check()
    need(place.run(f"hydractl io read data --length {at}")[1] == b"\x5a" * at, "not what was acknowledged")
    writes_again(place, at, lambda: place.follow("hydractl volume delete old"))
    at = fill(place, at)
    writes_again(place, at, lambda: place.follow("hydractl io discard data"))
    writes_again(place, fill(place, 0), lambda: enlarge(place))


def enlarge(place):
    for node in (1, 2, 3):  # "raise `--capacity`, one node after the other"
        place.follow("scripts/cluster stop", "stop 1", f"stop {node}")
        place.follow("scripts/cluster start", "start 1", f"start {node}")
        place.healthy()


def power_lost(place):
    place.type("for n in 1 2 3; do scripts/cluster kill $n; done")
    place.follow("scripts/cluster start")
    place.healthy()


def node_died(place):
    place.type("scripts/cluster kill 2")
    time.sleep(3)
    place.follow("scripts/cluster logs 2")
    place.follow("scripts/cluster start 2")
    place.healthy()


def disk_lost(place):
    # "It is refused while node 2 answers with its old disk"
    place.follow("hydractl node replace 2", code=1)
    place.follow("scripts/cluster wipe 2")
    place.follow("scripts/cluster start 2")
    # "It waits to be let in: its log says so, `/healthz` answers 503."
    place.get("127.0.0.1:7302/healthz", 503, "let in")
    place.type("scripts/cluster logs 2 | grep 'to be let in'")
    place.follow("hydractl node replace 2")
    place.follow("hydractl group list")
    place.healthy()


def upgrading(place):
    place.healthy()
    for node in (1, 2, 3):  # "One node after the other"
        place.follow("scripts/cluster restart", "restart 2", f"restart {node}")
        place.healthy("hydractl status --wait --timeout")
    place.get("127.0.0.1:7301/api/status", 200, "cluster_feature_level")


def rot(place):
    start, show, stop = (place.page.take(place.title, "hydractl scrub " + what)
                         for what in ("start", "status", "stop"))
    for command in (start, show, stop):  # without what is in brackets, then with it
        place.type(re.sub(r" \[.*?\]", "", command))
    place.type(re.sub(r"[][]", "", start).replace("N", "1"))
    searched = re.compile(r"^1 +complete +[1-9].*/s +0 +0 +20\d\d-", re.MULTILINE)
    until(lambda: searched.search(place.run(show)[1].decode()), "node 1 is searched and not rotten", 60)
    # "says how much was verified, what was found rotten [...], and when the last complete round was"
    place.type(show)
    place.type(re.sub(r"[][]", "", stop).replace("N", "1"))


def majority_lost(place):
    place.type("hydractl status --wait")
    time.sleep(6)  # "... and in the first five seconds of the node"
    place.follow("hydractl --cluster", code=1, says="a majority of the nodes answers")
    place.type("scripts/cluster wipe 2 && scripts/cluster wipe 3")  # "Two of three disks are gone"
    time.sleep(3)
    place.type("hydractl io read data --length 4K --timeout 3s > /dev/null", code=4)
    # "of each replica that answers, by how many entries it is behind the best of them"
    place.follow("hydractl group list", says=" 1:0")
    place.follow("hydractl --cluster")
    # "Within some seconds `hydractl status` says that everything is served; the others are *lost*."
    until(lambda: b"everything is served" in place.run("hydractl status")[1], "everything is served")
    place.type("hydractl status", says="lost")
    place.known.check()
    for node in ("2", "3"):  # "likewise 3"
        place.follow("scripts/cluster wipe 2;", "2", node)
    place.healthy()


def five(place):
    place.follow("hydractl volume set-replicas", code=1, says="each needs a node of its own")  # "Five need five nodes."
    for _ in range(2):  # "`scripts/cluster add` does 1 and 2"
        place.follow("scripts/cluster add", title="Adding a node")
        place.healthy(title="Adding a node")
    for count in (5, 3):  # "and back with 3"
        place.follow("hydractl volume set-replicas", "data 5", f"data {count}")
        need([len(nodes) for nodes in place.replicas()] == [count] * 4, f"not {count} replicas of each shard")
    place.follow("hydractl rebalance")
    place.healthy(title="Day to day")
    # "A node that is down may be removed as well."
    place.type("scripts/cluster kill 1")
    place.follow("scripts/cluster remove", title="Removing a node")
    place.healthy(title="Day to day")


BY_HAND = [("Forming a cluster", forming), ("Adding a node", adding), ("Removing a node", removing)]
BY_SCRIPT = [("A disk is full", disk_full), ("A node died", node_died), ("All nodes lost power", power_lost),
             ("A disk was lost", disk_lost), ("Upgrading", upgrading), ("Rot", rot), ("A majority is lost for good", majority_lost),
             ("Three replicas or five", five)]


def procedures(place, table):
    try:
        for place.title, procedure in table:
            print(f"\n== {place.title}", flush=True)
            quiet = procedure in (forming, disk_full, power_lost, majority_lost)  # nothing can be written for a while
            with contextlib.nullcontext() if quiet else place.known:
                procedure(place)
            place.known.check()
    finally:
        place.close()


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    root = os.path.abspath(sys.argv[1])
    with open(os.path.join(root, "docs/operations.md"), encoding="utf-8") as file:
        page = Page(file.read())
    folder = tempfile.mkdtemp(prefix="hydra-operations-")
    try:
        procedures(Place(page, root, folder, folder, 4), BY_HAND)
        procedures(Place(page, root, folder, root, 5), BY_SCRIPT)
        need(not page.left, f"these commands were not typed: {page.left}")
    except (AssertionError, OSError, LookupError, subprocess.TimeoutExpired) as error:
        for log in sorted(glob.glob(f"{folder}/**/node?.log", recursive=True)):
            subprocess.run(["tail", "-v", "-n", "12", log], check=False)
        sys.exit(f"docs/operations.md: {error}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    count = len(BY_HAND) + len(BY_SCRIPT)
    print(f"docs/operations.md: {count} procedures, {page.taken} commands, ended with 0")


if __name__ == "__main__":
    main()
