#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs libiscsi's conformance suite against a target in memory and compares with what is expected.

usage: libiscsi_suite.py TARGET EXPECTED [PATTERN]   TARGET: the iscsi-memory-target binary
       libiscsi_suite.py --url URL EXPECTED [PATTERN]

EXPECTED lists the tests that must pass, one per line; "-" in front: cannot pass here. A test passes if
it asserted something, nothing failed and nothing was skipped, whatever of its log would usually be
shown. Each runs in a process of its own. One that must pass and is not in the suite did not pass. Exit
status: 0 all that must pass did, 1 one did not or none ran, 77 the suite is not installed.
"""
import re
import shutil
import subprocess
import sys

TOOL = "iscsi-test-cu"
SECONDS = 60


def all_tests():
    listed = subprocess.run([TOOL, "--list"], capture_output=True, text=True, check=False).stdout
    names = [line.strip() for line in listed.splitlines()]
    return [name for name in names if re.fullmatch(r"ALL\.[^.]+\.[^.]+", name)]


def verdict(name, urls):
    # -V: some parts of tests say only there that they were left out.
    command = [TOOL, "--dataloss", "--allow-sanitize", "-v", "-V", "--test", name, *urls]
    try:
        run = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return "hangs", ""
    text = run.stdout.decode(errors="replace")
    counted = re.search(r"^\s*asserts\s+\d+\s+(\d+)\s+(\d+)\s+(\d+)", text, re.MULTILINE)
    if counted is None:
        return "breaks", text[-400:]
    ran, _, failed = (int(number) for number in counted.groups())
    if failed > 0:
        reasons = re.findall(r"^\s+\d+\. (.*)", text, re.MULTILINE)
        return "fails", reasons[0] if reasons else ""
    skipped = re.search(r"\[SKIPPED\]\s*(.*)", text)
    if skipped or ran == 0:
        return "skips", skipped.group(1) if skipped else "asserts nothing"
    return "passes", ""


def expectations(path):
    with open(path, encoding="utf-8") as file:
        lines = [line.split("#")[0].strip() for line in file]
    names = [line for line in lines if line]
    excused = {name.removeprefix("-").strip() for name in names if name.startswith("-")}
    return {name for name in names if not name.startswith("-")}, excused


def run_suite(urls, expected, pattern):
    """The tests whose name matches, with one path or two; expected: those that must, may not pass."""
    required, excused = expected
    bad = 0
    passed = 0
    names = [name.removeprefix("ALL.") for name in all_tests()]
    names = [name for name in names if re.search(pattern, name)]
    for short in names:
        result, why = verdict("ALL." + short, urls)
        passed += result == "passes"
        wrong = (short in required and result != "passes") or result in ("hangs", "breaks") or (
            result == "fails" and short not in excused)
        bad += wrong
        if wrong or result != "passes":
            print(f"{'WRONG ' if wrong else ''}{short} {result}: {why}", flush=True)
    for short in sorted(required - set(names)):
        if re.search(pattern, short):
            bad += 1
            print(f"WRONG {short} must pass and is not in the suite", flush=True)
    print(f"{passed} pass, {bad} are not as they should be")
    if not names:
        print(f"no test of the suite matches '{pattern}'")
    return 1 if bad or not names else 0


def main():
    arguments = sys.argv[1:]
    url = None
    if arguments[:1] == ["--url"]:
        url = arguments[1]
        arguments = arguments[1:]
    if len(arguments) < 2:
        print(__doc__)
        return 2
    if shutil.which(TOOL) is None:
        print(f"{TOOL} is not installed (Debian: libiscsi-bin)")
        return 77
    expected = expectations(arguments[1])
    pattern = arguments[2] if len(arguments) > 2 else ""
    if url:
        return run_suite([url], expected, pattern)
    with subprocess.Popen([arguments[0], "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, text=True) as target:
        try:
            port = target.stdout.readline().split()[1]
            url = f"iscsi://127.0.0.1:{port}/iqn.2026-11.io.hydra:memory/0"
            result = run_suite([url], expected, pattern)
            if target.poll() is not None:
                print("the target ended by itself")
                result = 1
        finally:
            target.terminate()
    return result


if __name__ == "__main__":
    sys.exit(main())
