# SPDX-License-Identifier: Apache-2.0
"""Ports for a cluster of three nodes, as scripts/cluster gives them out from a base port."""
import random
import socket

ATTEMPTS = 200


def free_base():
    """A base port whose ports for three nodes nobody uses."""
    for _ in range(ATTEMPTS):
        base = random.randrange(20000, 30000)
        try:
            for port in [base + step + node for step in (0, 100, 200) for node in (1, 2, 3)]:
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
            return base
        except OSError:
            continue
    raise RuntimeError(f"no free ports found in {ATTEMPTS} attempts")
