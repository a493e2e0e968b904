# SPDX-License-Identifier: Apache-2.0
"""QEMU's tools as initiators of a cluster: what one node was given, the others hand out."""
import contextlib
import filecmp
import json
import os
import random
import socket
import subprocess
import sys
import time

TOOLS = ("qemu-img", "qemu-io", "qemu-nbd", "fio")
KIB = 1 << 10
MIB = 1 << 20
SIZE = 64 * MIB
PIECE = 128 * KIB  # of the image: each is random, one byte repeated, or nothing
SECONDS = 120  # for one command
SEED = 20261116


class Failed(Exception):
    """Something is not as it has to be."""


def run(*command, fails=False):
    """Its standard output. `fails`: it has to end with another status than 0."""
    print("$", *command, flush=True)
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=SECONDS, check=False)
    if (done.returncode != 0) != fails:
        raise Failed(f"{command[0]} ended with status {done.returncode}:\n{done.stdout}")
    return done.stdout


def require(condition, what):
    if not condition:
        raise Failed(what)


def make_image(path):
    """Data and holes. Returns for each piece whether it has data."""
    source = random.Random(SEED)
    mapped = []
    with open(path, "wb") as image:
        image.truncate(SIZE)
        for piece in range(SIZE // PIECE):
            kind = source.randrange(4)
            mapped.append(kind < 2)
            if kind < 2:
                image.seek(piece * PIECE)
                image.write(source.randbytes(PIECE) if kind == 0 else bytes([1 + piece % 255]) * PIECE)
    return mapped


# --- qemu-img -------------------------------------------------------------------------------------

def images(urls, folder):
    one, two, three = urls
    information = json.loads(run("qemu-img", "info", "--output", "json", one))
    require(information["virtual-size"] == SIZE and information["format"] == "raw",
            f"qemu-img info says {information}")

    source = os.path.join(folder, "source")
    mapped = make_image(source)
    packed = os.path.join(folder, "packed.qcow2")
    run("qemu-img", "convert", "-f", "raw", "-O", "qcow2", source, packed)
    run("qemu-img", "convert", "-n", "-W", "-f", "qcow2", "-O", "raw", packed, one)
    run("qemu-img", "compare", "-f", "raw", "-F", "raw", source, two)
    out = os.path.join(folder, "out")
    run("qemu-img", "convert", "-f", "raw", "-O", "raw", three, out)
    require(filecmp.cmp(source, out, shallow=False), "what was converted out is not what went in")
    run("qemu-img", "convert", "-f", "raw", "-O", "qcow2", two, out)
    run("qemu-img", "compare", "-f", "raw", "-F", "qcow2", source, out)
    check_map(json.loads(run("qemu-img", "map", "-f", "raw", "--output", "json", one)), mapped)

    # Had it been another disk, it would have been seen.
    run("qemu-io", "-f", "raw", "-c", "write -P 0x77 4096 512", one)
    run("qemu-img", "compare", "-f", "raw", "-F", "raw", source, two, fails=True)


def check_map(ranges, mapped):
    """They cover the disk, and where there is data they do not say that there is none."""
    at = 0
    for piece in ranges:
        require(piece["start"] == at and piece["length"] > 0, f"qemu-img map: a gap at {at}")
        at += piece["length"]
        if not piece["data"] or piece["zero"]:
            first = piece["start"] // PIECE
            last = (at - 1) // PIECE
            require(not any(mapped[first:last + 1]), f"qemu-img map: data is missing in {piece}")
    require(at == SIZE, f"qemu-img map: {at} bytes of {SIZE}")


def bench(urls):
    one, two, three = urls
    requests = 1500
    run("qemu-img", "bench", "-w", "-f", "raw", "-t", "none", "-c", str(requests), "-d", "16", "-s", "4096",
        "-o", str(32 * MIB), "--pattern", "0x5b", "--flush-interval", "100", one)
    run("qemu-io", "-r", "-f", "raw", "-c", f"read -P 0x5b {32 * MIB} {requests * 4096}", two)
    run("qemu-img", "bench", "-f", "raw", "-t", "none", "-c", str(requests), "-d", "16", "-s", "16384",
        three)


# --- qemu-io --------------------------------------------------------------------------------------

def patterns(urls):
    def io(url, *commands, **options):
        words = [word for command in commands for word in ("-c", command)]
        return run("qemu-io", "-f", "raw", "-d", "unmap", *words, url, **options)

    one, two, three = urls
    io(one, "write -P 0x11 0 4M", "write -P 0x22 1M 512", "write -P 0x33 1049088 3k",
       "writev -P 0x44 2M 64k 512 4k", "aio_write -P 0x55 3M 256k", "aio_flush", "flush")
    expected = ("read -P 0x11 0 1M", "read -P 0x22 1M 512", "read -P 0x33 1049088 3k",
                "read -P 0x11 1052160 512", "read -P 0x44 2M 70144", "read -P 0x11 2167296 4k",
                "read -P 0x55 3M 256k")
    io(two, *expected)
    io(three, *expected)
    io(two, "read -P 0x12 0 512", fails=True)  # that it would be noticed

    # Zeroes in three ways: one keeps the space, the others give it back.
    io(two, "write -z 0 256k", "write -z -u 256k 256k", "discard 512k 256k", "discard 1049088 1k")
    io(three, "read -P 0 0 768k", "read -P 0x11 768k 256k", "read -P 0x22 1M 512", "read -P 0 1049088 1k",
       "read -P 0x33 1050112 2k")
    io(three, "write -P 0x66 300k 4k")
    io(one, "read -P 0 256k 44k", "read -P 0x66 300k 4k", "read -P 0 304k 464k")
    # Less than a block: QEMU reads, changes and writes.
    io(one, "write -P 0x77 4000001 333")
    io(two, "read -P 0x77 4000001 333", "read -P 0x11 4000334 100")


# --- fio through qemu-nbd -------------------------------------------------------------------------

@contextlib.contextmanager
def exported(url, path):
    """The disk as NBD on a socket."""
    command = ["qemu-nbd", "--format", "raw", "--cache", "none", "--discard", "unmap", "--persistent",
               "--shared", "4", "--socket", path, url]
    with subprocess.Popen(command) as server:
        try:
            deadline = time.monotonic() + 20
            while True:
                with socket.socket(socket.AF_UNIX) as probe:
                    try:
                        probe.connect(path)
                        break
                    except OSError:
                        require(server.poll() is None and time.monotonic() < deadline,
                                "qemu-nbd does not serve")
                time.sleep(0.05)
            yield f"nbd+unix:///?socket={path}"
        finally:
            server.terminate()


def verified_load(urls, folder):
    # Whole physical blocks. qemu-nbd asks for the status of what it reads, and QEMU takes an answer that
    # begins with the next physical block, as the conformance suite wants it, for an error.
    def fio(uri, *options, **more):
        run("fio", "--name=load", "--ioengine=nbd", f"--uri={uri}", "--rw=randwrite", "--bsrange=4k-64k",
            "--blockalign=4k", "--offset=8M", "--size=24M", "--iodepth=16", f"--randseed={SEED}",
            "--verify=crc32c", "--verify_fatal=1", "--verify_state_save=0", *options, **more)

    with exported(urls[0], os.path.join(folder, "nbd1")) as uri:
        fio(uri, "--do_verify=1")
    with exported(urls[1], os.path.join(folder, "nbd2")) as uri:
        fio(uri, "--verify_only")
        run("qemu-io", "-f", "raw", "-c", "write -P 0x99 8M 24M", urls[2])
        fio(uri, "--verify_only", fails=True)


# --- Logical blocks of 4096 -----------------------------------------------------------------------

def large_blocks(urls, folder):
    one, two, three = urls
    source = os.path.join(folder, "large-source")
    mapped = make_image(source)
    run("qemu-img", "convert", "-n", "-W", "-f", "raw", "-O", "raw", source, one)
    run("qemu-img", "compare", "-f", "raw", "-F", "raw", source, two)
    check_map(json.loads(run("qemu-img", "map", "-f", "raw", "--output", "json", three)), mapped)

    def io(url, *commands):
        run("qemu-io", "-f", "raw", "-d", "unmap", *[word for each in commands for word in ("-c", each)], url)

    # Whole blocks: QEMU breaks off, by an assertion of its own, where it reads less of such a disk.
    io(one, "write -P 0x11 0 1M", "write -P 0x22 4k 4k", "write -P 0x33 16k 12k", "discard 64k 8k",
       "write -z -u 128k 4k")
    io(two, "read -P 0x11 0 4k", "read -P 0x22 4k 4k", "read -P 0x11 8k 8k", "read -P 0x33 16k 12k",
       "read -P 0x11 28k 36k", "read -P 0 64k 8k", "read -P 0x11 72k 56k", "read -P 0 128k 4k",
       "read -P 0x11 132k 4k")


def check(urls, large_urls, folder):
    """Exit status."""
    try:
        large_blocks(large_urls, folder)
        images(urls, folder)
        patterns(urls)
        bench(urls)
        verified_load(urls, folder)
    except (Failed, subprocess.TimeoutExpired) as failure:
        print(failure, file=sys.stderr)
        return 1
    return 0
