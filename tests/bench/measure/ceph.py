# SPDX-License-Identifier: Apache-2.0
"""Ceph RBD on this machine: one monitor, one manager, three OSDs with BlueStore on files; three copies, of
which two have to be there. The image is written once before anything is measured; librbd does not cache."""
import os
import shutil
import subprocess
import time
import uuid

from measure.peers import fio
from measure.processes import Failed, Meter, run, run_json

OSDS = 3
OSD_BYTES = 6 << 30  # of each file, all of it allocated when it is made
POOL, IMAGE = "bench", "image"
PLACEMENT_GROUPS = 32
PATIENCE = 120  # seconds, for a daemon to come up

# Debian's build of 16.2. Everything is in one directory, without cephx, on loopback; "ssd" because virtual
# disks say that they rotate, and the settings for those are slower.
CONFIG = """[global]
fsid = {fsid}
mon initial members = a
mon host = [v2:127.0.0.1:{port},v1:127.0.0.1:{second}]
public addr = 127.0.0.1
cluster addr = 127.0.0.1
ms bind ipv6 = false
ms bind port min = {lowest}
ms bind port max = {highest}
auth cluster required = none
auth service required = none
auth client required = none
run dir = {dir}/run
pid file = {dir}/run/$name.pid
admin socket = {dir}/run/$name.asok
log file = {dir}/log/$name.log
crash dir = {dir}/crash
osd pool default size = 3
osd pool default min size = 2
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
rbd cache = false
debug ms = 0
debug osd = 0
debug mon = 0
debug bluestore = 0
debug rocksdb = 0
[mon]
mon data = {dir}/mon
[mgr]
mgr data = {dir}/mgr
mgr initial modules =
[osd]
osd data = {dir}/osd.$id
osd objectstore = bluestore
osd memory target = 1073741824
osd memory target autodetect = false
bluestore block size = {osd_bytes}
bluestore block create = true
bluestore block preallocate file = true
bluestore debug enforce settings = ssd
"""


class Ceph:
    def __init__(self, directory, port, size):
        missing = [name for name in ("ceph", "ceph-mon", "ceph-mgr", "ceph-osd", "rbd", "monmaptool")
                   if shutil.which(name) is None]
        if missing:
            raise Failed(f"Ceph is not there ({', '.join(missing)}); install it (scripts/deps ceph-mon ceph-mgr "
                         "ceph-osd ceph-common) or leave it out of --peers")
        self.dir = directory
        self.size = size
        self.daemons = []
        self.config = os.path.join(directory, "ceph.conf")
        self.environment = dict(os.environ, CEPH_CONF=self.config)
        try:
            self._start(port)
            self._make_image()
        except BaseException:
            self.stop()
            raise

    def _run(self, *words, timeout=PATIENCE):
        return run(*words, timeout=timeout, env=self.environment)

    def _ceph(self, *words):
        return run_json("ceph", "--connect-timeout", 30, "--format", "json", *words, timeout=PATIENCE,
                        env=self.environment)

    def _daemon(self, program, name):
        log = os.path.join(self.dir, "log", f"{program}.{name}.out")
        with open(log, "w", encoding="utf-8") as file:
            self.daemons.append(subprocess.Popen([program, "-f", "-i", name, "-c", self.config], stdout=file,
                                                 stderr=file, env=self.environment))

    def _await(self, what, ready):
        for _ in range(PATIENCE):
            if any(daemon.poll() is not None for daemon in self.daemons):
                break
            if ready():
                return
            time.sleep(1)
        raise Failed(f"Ceph: {what} did not come up; see {self.dir}/log")

    def _start(self, port):
        for name in ("run", "log", "crash", "mon", "mgr", *(f"osd.{osd}" for osd in range(OSDS))):
            os.makedirs(os.path.join(self.dir, name))
        cluster = str(uuid.uuid4())
        with open(self.config, "w", encoding="utf-8") as file:
            file.write(CONFIG.format(fsid=cluster, port=port, second=port + 1, lowest=port + 2, highest=port + 39,
                                     dir=self.dir, osd_bytes=OSD_BYTES))
        map_file = os.path.join(self.dir, "monmap")
        self._run("monmaptool", "--create", "--fsid", cluster, "--addv", "a",
                  f"[v2:127.0.0.1:{port},v1:127.0.0.1:{port + 1}]", map_file)
        self._run("ceph-mon", "--mkfs", "-i", "a", "--monmap", map_file, "-c", self.config)
        self._daemon("ceph-mon", "a")
        self._await("the monitor", lambda: "a" in self._ceph("quorum_status")["quorum_names"])
        self._daemon("ceph-mgr", "x")
        for osd in range(OSDS):
            identity = str(uuid.uuid4())
            self._run("ceph", "osd", "new", identity, osd)
            self._run("ceph-osd", "--mkfs", "-i", osd, "--osd-uuid", identity, "-c", self.config)
            self._daemon("ceph-osd", str(osd))
        self._await("the OSDs", lambda: self._ceph("osd", "stat")["num_up_osds"] == OSDS)

    def _clean(self):
        states = self._ceph("pg", "stat")["pg_summary"]["num_pg_by_state"]
        return any(state["name"] == "active+clean" and state["num"] >= PLACEMENT_GROUPS for state in states)

    def _make_image(self):
        self._run("ceph", "osd", "pool", "create", POOL, PLACEMENT_GROUPS, PLACEMENT_GROUPS, "replicated")
        self._run("ceph", "osd", "pool", "application", "enable", POOL, "rbd")
        self._await("the pool", self._clean)
        self._run("rbd", "create", f"{POOL}/{IMAGE}", "--size", f"{self.size >> 20}M", "--image-feature",
                  "layering,exclusive-lock")
        self._load("--rw=write", "--bs=1m", "--iodepth=8", f"--size={self.size}")

    def _load(self, *words):
        return fio(["--ioengine=rbd", "--clientname=admin", f"--pool={POOL}", f"--rbdname={IMAGE}", *words],
                   env=self.environment)

    def measure(self, rw, block, depth, seconds):
        meter = Meter([daemon.pid for daemon in self.daemons])
        sample = meter.add_cpu(self._load(f"--rw={rw}", f"--bs={block}", f"--iodepth={depth}", "--time_based=1",
                                          f"--runtime={seconds}"))
        return meter.add_bytes(sample, OSDS)

    def stop(self):
        for daemon in reversed(self.daemons):
            daemon.terminate()
        for daemon in self.daemons:
            try:
                daemon.wait(timeout=20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        shutil.rmtree(self.dir, ignore_errors=True)
