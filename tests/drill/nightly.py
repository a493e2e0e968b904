#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What drills measure, and chaos, on clusters of three nodes on this machine: longer than the suite has time for.

usage: nightly.py ROOT BUILD MINUTES

Twenty faults of each drill that has a figure in docs/drills.md, of which it prints the median and the longest
write gap, then chaos with a seed that it prints, for MINUTES. Exit status: 0 every drill passed, 1 one did not.
"""
import json
import os
import random
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from on_cluster import Cluster

FIGURES = ("master-kill", "master-pause", "hand-over")
FAULTS = "20"
# The bars of the figures are for a machine that does nothing else; this is for one that may.
MAX_GAP = "5000"


def run(cluster, name, *arguments):
    done = cluster.drill(name, *arguments, "--json")
    try:
        said = json.loads(done.stdout)
    except ValueError:
        print(f"{name}: exit {done.returncode}\n{done.stdout}{done.stderr}", flush=True)
        return False
    print(f"{name}: write gap median {said['median_gap_ms']} ms, longest {said['longest_gap_ms']} ms, "
          f"{said['gap_before_faults_ms']} ms before the first of {len(said['faults'])} faults; "
          f"seed {said['seed']}; {said['verdict']}", flush=True)
    if done.returncode != 0:
        print(f"to repeat: hydractl drill run {name} {' '.join(arguments)}\n"
              f"{json.dumps(said, indent=1)}", flush=True)
    return done.returncode == 0


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    passed = []
    with Cluster(sys.argv[1], sys.argv[2], timeout=float(sys.argv[3]) * 60 + 900) as cluster:
        cluster.node("stop")
        cluster.node("start", "--drill")
        cluster.healthy()
        for name in FIGURES:
            passed.append(run(cluster, name, "--faults", FAULTS, "--max-gap", MAX_GAP))
        seed = random.SystemRandom().randrange(1, 1 << 31)
        print(f"chaos: seed {seed}", flush=True)
        passed.append(run(cluster, "chaos", "--duration", f"{sys.argv[3]}m", "--seed", str(seed)))
    sys.exit(0 if all(passed) else 1)


if __name__ == "__main__":
    main()
