# SPDX-License-Identifier: Apache-2.0
"""Ports for a cluster, as scripts/cluster gives them out from a base port."""
import random
import socket

ATTEMPTS = 200


def free_base(nodes=3):
    """A base port whose ports for so many nodes nobody uses."""
    for _ in range(ATTEMPTS):
        base = random.randrange(20000, 30000)
        try:
            for port in [base + step + node for step in (0, 100, 200) for node in range(1, nodes + 1)]:
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
            return base
        except OSError:
            continue
    raise RuntimeError(f"no free ports found in {ATTEMPTS} attempts")
