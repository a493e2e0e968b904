# SPDX-License-Identifier: Apache-2.0
"""What processes use, and what a load reports, in the same units for every contender."""
import json
import os
import resource
import subprocess

TICKS = os.sysconf("SC_CLK_TCK")


class Failed(Exception):
    """Something that was started did not do what it should; the text is for the user."""


def run(*command, timeout=600, **more):
    """Standard output of a command that has to succeed."""
    try:
        done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=timeout, **more)
    except subprocess.TimeoutExpired as late:
        raise Failed(f"{' '.join(str(word) for word in command)}\nhas not ended within {timeout} s") from late
    if done.returncode != 0:
        raise Failed(f"{' '.join(str(word) for word in command)}\nexit code {done.returncode}\n"
                     f"{(done.stderr or done.stdout).strip()}")
    return done.stdout


def run_json(*command, **more):
    return json.loads(run(*command, **more))


def usage(pids):
    """(seconds of CPU, bytes given to the device) of these processes since they began."""
    seconds = written = 0
    for pid in pids:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        seconds += (int(fields[11]) + int(fields[12])) / TICKS
        with open(f"/proc/{pid}/io", encoding="ascii") as file:
            written += next(int(line.split()[1]) for line in file if line.startswith("write_bytes"))
    return seconds, written


def resident_mib(pids):
    total = 0
    for pid in pids:
        with open(f"/proc/{pid}/status", encoding="ascii") as file:
            total += next(int(line.split()[1]) for line in file if line.startswith("VmRSS")) / 1024
    return total


def children_cpu():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def busy_seconds():
    """Of all processors, whoever used them."""
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, _, _, interrupts, soft_interrupts = (int(word) for word in file.readline().split()[1:8])
    return (user + nice + system + interrupts + soft_interrupts) / TICKS


def note_others(sample, busy, seconds):
    """How many processors were busy with something else during a measurement: above 0.2 or so its figures
    say more about the machine than about the contender."""
    own = (sample.get("server_cpu_us", 0) + sample.get("client_cpu_us", 0)) * sample["operations"] / 1e6
    sample["other_processors"] = max(0.0, (busy - own) / seconds)


class Meter:
    """Around one load: what the servers and the load's own process used for it."""

    def __init__(self, pids):
        self.pids = pids
        self.server_seconds, self.written = usage(pids)
        self.client_seconds = children_cpu()

    def add_cpu(self, sample):
        operations = max(1, sample["operations"])
        sample["server_cpu_us"] = (usage(self.pids)[0] - self.server_seconds) * 1e6 / operations
        sample["client_cpu_us"] = (children_cpu() - self.client_seconds) * 1e6 / operations
        sample["server_resident_mib"] = resident_mib(self.pids)
        return sample

    def add_bytes(self, sample, replicas, sources=None):
        """`sources` are bytes that the servers themselves count, since the meter was made: of them
        zero_fill is not counted as the load's. Nothing for a load that only reads."""
        payload = sample.get("payload_bytes", 0) * replicas
        if payload:
            written = usage(self.pids)[1] - self.written
            shares = {name: count / payload for name, count in (sources or {}).items()}
            sample["device_bytes"] = written / payload - shares.get("zero_fill", 0)
            if shares:
                sample["device_sources"] = shares
        return sample


def from_percentiles(report, block_bytes, writes):
    """A sample of what light-bench and iscsi-bench print."""
    operations = report.get("commands") or round(report["iops"] * report["seconds"])
    sample = {"operations": operations, "iops": report["iops"],
              "mb_per_second": report["iops"] * block_bytes / 1e6}
    for name in ("p50", "p90", "p99", "p999"):
        sample[name + "_us"] = report[name + "_us"]
    if writes:
        sample["payload_bytes"] = operations * block_bytes
    return sample


def together(samples):
    """One sample of several short ones, weighted by their operations. (The percentile of all would
    need every latency; the mean of the pieces' percentiles is near it when the pieces are alike.)"""
    whole = sum(sample["operations"] for sample in samples)
    result = {name: sum(sample[name] * sample["operations"] for sample in samples) / whole
              for name in samples[0] if all(name in sample for sample in samples)}
    result["operations"] = whole
    if "payload_bytes" in samples[0]:
        result["payload_bytes"] = sum(sample["payload_bytes"] for sample in samples)
    result["iops"] = sum(sample["iops"] for sample in samples) / len(samples)
    result["mb_per_second"] = sum(sample["mb_per_second"] for sample in samples) / len(samples)
    return result
