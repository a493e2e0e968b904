#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Installs the client library into a new prefix and builds the examples against it, out of the tree: with
find_package(Hydra), and one of them with pkg-config alone.

usage: install_test.py SOURCE-DIR BUILD-DIR COMPILER
"""
import os
import subprocess
import sys
import tempfile


def run(*command, **options):
    print("+", *command, flush=True)
    return subprocess.run(command, check=True, text=True, **options)


def main():
    source, build, compiler = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="hydra-install-") as work:
        prefix = os.path.join(work, "prefix")
        run("cmake", "--install", build, "--prefix", prefix, "--component", "client",
            stdout=subprocess.DEVNULL)
        headers = sorted(
            os.path.relpath(os.path.join(folder, name), prefix)
            for folder, _, names in os.walk(prefix) for name in names if name.endswith(".h"))
        expected = ["include/hydra/base/status.h", "include/hydra/client/async.h",
                    "include/hydra/client/hydra.h", "include/hydra/client/target.h"]
        if headers != expected:
            sys.exit(f"installed headers are {headers}, not {expected}")

        # A copy, so that nothing of the source tree is found by chance.
        examples = os.path.join(work, "examples")
        run("cp", "-r", os.path.join(source, "client/examples"), examples)
        out = os.path.join(work, "build")
        run("cmake", "-S", examples, "-B", out, f"-DCMAKE_PREFIX_PATH={prefix}",
            f"-DCMAKE_CXX_COMPILER={compiler}", stdout=subprocess.DEVNULL)
        run("cmake", "--build", out)
        for name in ("hello_block_device", "async_copy", "counter"):
            if subprocess.run([os.path.join(out, name)], stderr=subprocess.DEVNULL).returncode != 2:
                sys.exit(f"{name} does not say how it is used")

        pkgconfig = next(os.path.join(folder, "pkgconfig")
                         for folder, names, _ in os.walk(prefix) if "pkgconfig" in names)
        flags = run("pkg-config", "--cflags", "--libs", "hydra", stdout=subprocess.PIPE,
                    env={**os.environ, "PKG_CONFIG_PATH": pkgconfig}).stdout.split()
        counter = os.path.join(work, "counter")
        run(compiler, os.path.join(examples, "counter.cc"), "-o", counter, *flags)
        if subprocess.run([counter], stderr=subprocess.DEVNULL).returncode != 2:
            sys.exit("counter does not say how it is used")
    print("installed, found and linked")


if __name__ == "__main__":
    main()
