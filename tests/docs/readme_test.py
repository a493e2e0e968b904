#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Types the README's shell blocks, in order, into one shell, and compiles its C++ example.

usage: readme_test.py ROOT

Only where the cluster is differs from what a reader gets: its data are in a temporary directory, and
its ports are free ones instead of 7101 to 7303. Blocks are fenced: ```sh is typed, ```cpp FILE is saved
as FILE.
"""
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from free_ports import free_base

BLOCK = re.compile(r"^```(sh|cpp (\S+))\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SKIPPED = "./scripts/test"  # runs this
PATIENCE = 540


def script_of(readme, base, saved):
    """One script that types every block. C++ blocks become files; `saved` collects their names."""
    lines = ["set -eu"]

    def elsewhere(text):
        return re.sub(r"\b7([1-3]\d\d)\b", lambda m: str(base + int(m.group(1)) - 100), text)

    for match in BLOCK.finditer(readme):
        name, body = match.group(2), match.group(3)
        if name is not None:
            lines.append(f"cat > {name} <<'END_OF_FILE'\n{elsewhere(body)}END_OF_FILE")
            saved.append(name)
            continue
        for line in elsewhere(body).splitlines():
            if not line.startswith(SKIPPED):
                lines += [f"printf '\\n$ %s\\n' {shlex.quote(line)}", line]
    return "\n".join(lines) + "\n"


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    root = sys.argv[1]
    with open(os.path.join(root, "README.md"), encoding="utf-8") as file:
        readme = file.read()
    state = tempfile.mkdtemp(prefix="hydra-readme-")
    base = free_base()
    addresses = ",".join(f"127.0.0.1:{base + node}" for node in (1, 2, 3))
    environment = dict(os.environ, XDG_STATE_HOME=state, HYDRA_BASE_PORT=str(base),
                       HYDRA_CLUSTER=addresses)
    saved = []
    script = script_of(readme, base, saved)
    if "./scripts/run" not in script or not saved:
        sys.exit("the README has no ./scripts/run or no C++ example any more")
    try:
        code = subprocess.run(["bash", "-c", script], cwd=root, env=environment, timeout=PATIENCE,
                              check=False).returncode
    except subprocess.TimeoutExpired:
        code = "a time-out"
    finally:
        subprocess.run(["scripts/cluster", "stop"], cwd=root, env=environment, check=False)
        shutil.rmtree(state, ignore_errors=True)
    print(f"the README's commands ended with {code}")
    sys.exit(0 if code == 0 else 1)


if __name__ == "__main__":
    main()
