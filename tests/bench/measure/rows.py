# SPDX-License-Identifier: Apache-2.0
"""What is measured, and what is claimed of it.

An experiment runs its contenders in turn, A B A B, and keeps a sample of each run. A row holds one figure
of Hydra against one of a peer (or of Hydra otherwise set up) and, where there is one, against a bar.
"""
import dataclasses
import statistics
import time
from typing import Optional

from measure.processes import busy_seconds, note_others

UNITS = {"iops": "IOPS", "mb_per_second": "MB/s", "p50_us": "us", "p99_us": "us", "device_bytes": "x"}


@dataclasses.dataclass
class Experiment:
    key: str
    title: str
    heat: str  # "hot", "cold" or "" where nothing is read
    contenders: list  # [(name, function of no arguments -> sample)]

    def measure(self, rounds, say):
        samples = {name: [] for name, _ in self.contenders}
        for number in range(1, rounds + 1):
            for name, load in self.contenders:
                busy, begin = busy_seconds(), time.monotonic()
                sample = load()
                note_others(sample, busy_seconds() - busy, time.monotonic() - begin)
                samples[name].append(sample)
                say(f"{self.title}, round {number}, {name}: {describe(sample)}")
        return {"title": self.title, "heat": self.heat, "samples": samples}


@dataclasses.dataclass
class Claim:
    """`ours / theirs` of one experiment, or `ours` alone, and what it should be."""
    experiment: str
    ours: str = "hydra"
    theirs: Optional[str] = None
    metric: str = "iops"
    at_least: Optional[float] = None
    at_most: Optional[float] = None
    reach: Optional[float] = None
    note: str = ""


CLAIMS = [
    Claim("native_write_1", theirs="light", at_least=0.7, reach=0.9),
    Claim("native_write_64", theirs="light", at_least=0.4, reach=0.7),
    Claim("native_write_16", theirs="light", metric="p99_us", at_most=3, reach=2, note="p99 latency"),
    Claim("native_write_1", theirs="disk", note="one copy, O_DSYNC"),
    Claim("native_write_64", theirs="disk", note="one copy, O_DSYNC"),
    Claim("iscsi_write_1", theirs="tgt", at_least=0.45, reach=0.6),
    Claim("iscsi_write_64", theirs="tgt", at_least=1.0, reach=1.5),
    Claim("iscsi_write_1", ours="hydra, masters here", theirs="tgt", note="masters on the session's node"),
    Claim("iscsi_write_64", ours="hydra, masters here", theirs="tgt", note="masters on the session's node"),
    Claim("iscsi_read_1", theirs="tgt", at_least=0.6, reach=0.8, note="masters spread"),
    Claim("iscsi_read_64", theirs="tgt", at_least=0.5, reach=0.8, note="masters spread"),
    Claim("iscsi_read_1", ours="hydra, masters here", theirs="tgt", at_least=0.8, reach=1.0,
          note="masters on the session's node"),
    Claim("iscsi_read_64", ours="hydra, masters here", theirs="tgt", at_least=0.8, reach=1.0,
          note="masters on the session's node"),
    Claim("iscsi_read_64_cold", theirs="tgt", note="masters spread"),
    Claim("iscsi_sequential_read", theirs="tgt", metric="mb_per_second", at_least=0.8, reach=1.2),
    Claim("iscsi_sessions_read", theirs="tgt", note="over all nodes"),
    Claim("iscsi_sessions_write", theirs="tgt", note="over all nodes"),
    Claim("ceph_write_1", theirs="ceph", at_least=5, reach=7),
    Claim("ceph_write_64", theirs="ceph", at_least=18, reach=35),
    Claim("ceph_read_64", theirs="ceph", at_least=5, reach=10),
    Claim("ceph_sequential_write", theirs="ceph", metric="mb_per_second", at_least=3, reach=5),
    Claim("native_read_64", note="no peer"),
    Claim("native_sequential_write", metric="mb_per_second", note="no peer"),
    Claim("amplification_off", metric="device_bytes", at_most=1.30, reach=1.2,
          note="per replica, without first zero-fill of segments"),
    Claim("amplification_skew", metric="device_bytes", at_most=1.9, reach=1.7, note="per replica"),
    Claim("amplification_uniform", metric="device_bytes", at_most=2.7, reach=2.4, note="per replica"),
    Claim("replicas", ours="3 replicas", theirs="1 replica", metric="p50_us", at_most=3.2, reach=2.7,
          note="median latency, 3 replicas / 1 replica"),
    Claim("shards", ours="64 shards", theirs="4 shards", at_least=0.7, reach=0.9, note="64 shards / 4 shards"),
]


def describe(sample):
    parts = [f"{sample['iops']:,.0f} IOPS", f"p50 {sample['p50_us']:,.0f} us", f"p99 {sample['p99_us']:,.0f} us"]
    if "server_cpu_us" in sample:
        parts.append(f"servers {sample['server_cpu_us']:.0f} us of CPU per operation")
    if "device_bytes" in sample:
        parts.append(f"{sample['device_bytes']:.2f} bytes to the device per byte and replica")
    if sample.get("device_sources", {}).get("relocated"):
        parts.append(f"of them {sample['device_sources']['relocated']:.2f} moved by vacuum")
    if "other_processors" in sample:
        parts.append(f"others {sample['other_processors']:.2f} processors")
    return ", ".join(parts)


def others(result):
    """The median of what else the machine did meanwhile; None in reports that do not say."""
    known = [sample["other_processors"] for samples in result["samples"].values() for sample in samples
             if "other_processors" in sample]
    return statistics.median(known) if known else None


def rows_of(experiments):
    """The rows that these results (as Experiment.measure returns them, by key) allow."""
    rows = []
    for claim in CLAIMS:
        result = experiments.get(claim.experiment)
        if result is None or claim.ours not in result["samples"]:
            continue
        if claim.theirs is not None and claim.theirs not in result["samples"]:
            continue
        rows.append(row_of(claim, result))
    return rows


def row_of(claim, result):
    ours = [sample[claim.metric] for sample in result["samples"][claim.ours]]
    row = {"work": result["title"], "note": claim.note, "heat": result["heat"], "metric": claim.metric,
           "unit": UNITS[claim.metric], "ours_name": claim.ours, "ours": statistics.median(ours),
           "ours_spread": [min(ours), max(ours)], "peer": claim.theirs, "rounds": len(ours),
           "reach": claim.reach, "bar": None, "verdict": "",
           "other_processors": others(result)}
    value, values = row["ours"], ours
    if claim.theirs is not None:
        theirs = [sample[claim.metric] for sample in result["samples"][claim.theirs]]
        row["theirs"] = statistics.median(theirs)
        row["theirs_spread"] = [min(theirs), max(theirs)]
        value = row["ours"] / row["theirs"]
        values = [a / b for a, b in zip(ours, theirs)]
        row["ratio"] = value
        row["ratio_spread"] = [min(values), max(values)]
    if claim.at_least is not None:
        row["bar"] = f">= {claim.at_least:g}"
        row["verdict"] = "met" if value >= claim.at_least else "MISSED"
    if claim.at_most is not None:
        row["bar"] = f"<= {claim.at_most:g}"
        row["verdict"] = "met" if value <= claim.at_most else "MISSED"
    return row
