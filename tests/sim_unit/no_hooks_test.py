#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that probes and sabotages are in the simulator's library and nowhere else.

usage: no_hooks_test.py --nm NM --header base/sabotage.h --with-hooks FILE --without FILE...

Looks for their symbols, and for the names of the sabotages, which only the simulator can need.
"""
import argparse
import re
import subprocess
import sys

SYMBOL = re.compile(r"sabotage|hydra::Probe|hydra::ResetProbes", re.IGNORECASE)


def hooks_in(path, nm, names):
    """Everything in the file that belongs to a probe or a sabotage."""
    listing = subprocess.run([nm, "--demangle", path], capture_output=True, text=True, check=True)
    if not listing.stdout.strip():
        sys.exit(f"{path} has no symbols: nothing was checked")
    # Not the lines that name an archive's members.
    found = [line for line in listing.stdout.splitlines()
             if SYMBOL.search(line) and not line.endswith(".o:")]
    with open(path, "rb") as file:
        data = file.read()
    return found, [name for name in names if name.encode() in data]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--nm", required=True)
    parser.add_argument("--header", required=True)
    parser.add_argument("--with-hooks", required=True)
    parser.add_argument("--without", nargs="+", required=True)
    args = parser.parse_args()

    with open(args.header, encoding="utf-8") as file:
        names = re.findall(r'^\s*X\(k\w+,\s*"([a-z-]+)"', file.read(), re.MULTILINE)
    if len(names) < 18:
        sys.exit(f"{args.header}: found {len(names)} sabotages only")

    symbols, strings = hooks_in(args.with_hooks, args.nm, names)
    if not symbols or set(strings) != set(names):
        sys.exit(f"{args.with_hooks}: the hooks were not found, so this test cannot fail")
    bad = False
    for path in args.without:
        symbols, strings = hooks_in(path, args.nm, names)
        for hook in symbols + strings:
            print(f"{path}: {hook}")
            bad = True
    print(f"{len(names)} sabotages, {len(args.without)} files looked at")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
