#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that probes and sabotages are in the simulator's objects and nowhere else.

usage: no_hooks_test.py --nm NM --header base/sabotage.h --root DIR --with-hooks FILE... --without FILE...

Looks for their symbols, and for the names of the sabotages, which only the simulator can need. Every
object of the simulator must have some, or it need not be compiled twice. A header must have none: what
is compiled without HYDRA_SIM is linked into the simulator as well, and an inline function of which there
are two versions is the linker's choice.
"""
import argparse
import pathlib
import re
import subprocess
import sys

SYMBOL = re.compile(r"sabotage|hydra::Probe|hydra::ResetProbes", re.IGNORECASE)
HOOK = re.compile(r"\bHYDRA_(PROBE|SABOTAGE)\(")
SHARED = ("base", "blockstore", "paxos", "daemon", "client", "iscsi")
DEFINED_IN = ("base/probe.h", "base/sabotage.h")


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


def hooks_in_headers(root):
    """Headers that may be compiled both ways, and have hooks."""
    headers = [path for folder in SHARED for path in sorted((root / folder).glob("*.h"))]
    if len(headers) < 20:
        sys.exit(f"{root}: found {len(headers)} headers only")
    return [path for path in headers
            if str(path.relative_to(root)) not in DEFINED_IN
            and HOOK.search(path.read_text(encoding="utf-8"))]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--nm", required=True)
    parser.add_argument("--header", required=True)
    parser.add_argument("--root", required=True, type=pathlib.Path)
    parser.add_argument("--with-hooks", nargs="+", required=True)
    parser.add_argument("--without", nargs="+", required=True)
    args = parser.parse_args()

    with open(args.header, encoding="utf-8") as file:
        names = re.findall(r'^\s*X\(k\w+,\s*"([a-z-]+)"', file.read(), re.MULTILINE)
    if len(names) < 22:
        sys.exit(f"{args.header}: found {len(names)} sabotages only")

    bad = False
    found_names = set()
    for path in args.with_hooks:
        symbols, strings = hooks_in(path, args.nm, names)
        found_names.update(strings)
        if not symbols:
            print(f"{path}: no hooks, though it was compiled for them")
            bad = True
    if found_names != set(names):
        sys.exit("the names of the sabotages were not found, so this test cannot fail")
    for path in args.without:
        symbols, strings = hooks_in(path, args.nm, names)
        for hook in symbols + strings:
            print(f"{path}: {hook}")
            bad = True
    for path in hooks_in_headers(args.root):
        print(f"{path}: a hook in a header; move it into a .cc file")
        bad = True
    print(f"{len(names)} sabotages, {len(args.with_hooks)} files with hooks, {len(args.without)} without")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
