# SPDX-License-Identifier: Apache-2.0
"""What Hydra is measured beside: the bare disk, the lean baseline and tgt. Ceph has a file of its own."""
import json
import os
import shutil
import subprocess
import time

from measure.hydra import iscsi_load
from measure.processes import Failed, Meter, from_percentiles, run, run_json


def fio(words, timeout=600, env=None):
    """A sample of one fio job. It says the words that every job shares."""
    output = run("fio", "--name=bench", "--output-format=json", "--refill_buffers=1", "--norandommap=1",
                 "--percentile_list=50:90:99:99.9", *words, timeout=timeout, env=env)
    job = json.loads(output[output.index("{"):])["jobs"][0]
    side = job["write"] if job["write"]["total_ios"] else job["read"]
    percentile = {float(name): value / 1e3 for name, value in side["clat_ns"]["percentile"].items()}
    seconds = job["job_runtime"] / 1e3
    operations = max(1, side["total_ios"])
    sample = {"operations": side["total_ios"], "iops": side["iops"], "mb_per_second": side["bw_bytes"] / 1e6,
              "p50_us": percentile[50], "p90_us": percentile[90], "p99_us": percentile[99],
              "p999_us": percentile[99.9],
              "client_cpu_us": (job["usr_cpu"] + job["sys_cpu"]) / 100 * seconds * 1e6 / operations}
    if job["write"]["total_ios"]:
        sample["payload_bytes"] = side["io_bytes"]
    return sample


def fill_file(path, size):
    run("fio", "--name=fill", f"--filename={path}", f"--size={size}", "--rw=write", "--bs=1m", "--direct=1",
        "--ioengine=psync", "--refill_buffers=1", "--end_fsync=1")


class Disk:
    """One file on the disk, one copy, past the page cache; a write is answered when it is flushed."""

    def __init__(self, directory, size):
        self.path = os.path.join(directory, "disk.img")
        self.size = size
        fill_file(self.path, size)

    def stop(self):
        os.unlink(self.path)

    def measure(self, rw, block, depth, seconds):
        return fio([f"--filename={self.path}", f"--size={self.size}", f"--rw={rw}", f"--bs={block}",
                    f"--iodepth={depth}", "--ioengine=libaio" if depth > 1 else "--ioengine=psync", "--direct=1",
                    "--time_based=1", f"--runtime={seconds}", *(["--sync=dsync"] if "write" in rw else [])])


class Light:
    """Three durable copies and nothing else: tests/bench/light.h."""

    def __init__(self, root, directory):
        self.bin = os.path.join(root, "build/release/bin/light-bench")
        self.dir = directory

    def stop(self):
        pass  # it ends with each measurement

    def measure(self, depth, seconds):
        report = run_json(self.bin, "--iodepth", depth, "--runtime", seconds, "--dir", self.dir, "--json")
        sample = from_percentiles(report, report["bs"], writes=True)
        sample["server_cpu_us"] = report["server_cpu_us_per_operation"]
        sample["client_cpu_us"] = report["client_cpu_us_per_operation"]
        sample["device_bytes"] = report["device_bytes_per_payload_byte"]
        return sample


class Tgt:
    """A user space iSCSI target with one copy. Only with synchronous writes is an answered one on the disk."""

    NAME = "iqn.2026-11.io.hydra.peer:tgt"

    def __init__(self, root, directory, port, size):
        if shutil.which("tgtd") is None:
            raise Failed("tgt is not there; install it (scripts/deps tgt) or leave it out: --peers disk,light")
        self.bin = os.path.join(root, "build/release/bin")
        self.control = port  # of its administration; the number is part of a socket's name
        self.image = os.path.join(directory, "tgt.img")
        self.url = f"iscsi://127.0.0.1:{port}/{self.NAME}/1"
        fill_file(self.image, size)
        os.makedirs("/var/run/tgtd", exist_ok=True)
        self.log = open(os.path.join(directory, "tgtd.log"), "w", encoding="utf-8")
        self.process = subprocess.Popen(["tgtd", "-f", "-C", str(self.control), "--iscsi",
                                         f"portal=127.0.0.1:{port}"], stdout=self.log, stderr=self.log)
        try:
            self._await()
            self._admin("--mode", "target", "--op", "new", "--tid", "1", "-T", self.NAME)
            self._admin("--mode", "logicalunit", "--op", "new", "--tid", "1", "--lun", "1", "-b", self.image,
                        "--bsoflags", "sync")
            self._admin("--mode", "target", "--op", "bind", "--tid", "1", "-I", "ALL")
        except BaseException:
            self.stop()
            raise

    def _admin(self, *words):
        run("tgtadm", "-C", self.control, "--lld", "iscsi", *words)

    def _await(self):
        for _ in range(100):
            try:
                return self._admin("--mode", "system", "--op", "show")
            except Failed:
                if self.process.poll() is not None:
                    break
                time.sleep(0.1)
        raise Failed(f"tgtd did not start; see {self.log.name}")

    def stop(self):
        self.process.kill()  # it has nothing to lose, and does not end by SIGTERM while it has a target
        self.process.wait()
        self.log.close()
        for name in (f"/var/run/tgtd/socket.{self.control}", f"/var/run/tgtd/socket.{self.control}.lock", self.image):
            if os.path.exists(name):
                os.unlink(name)

    def measure(self, rw, block, depth, seconds, size, sessions=1):
        meter = Meter([self.process.pid])
        # Its bytes are not counted: it writes through the page cache, where the kernel charges a process
        # for all of a large folio when 4 KiB of it become dirty.
        return meter.add_cpu(iscsi_load(self.bin, [self.url], rw, block, depth, seconds, size, sessions))
