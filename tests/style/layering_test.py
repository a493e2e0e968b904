#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Enforces the layering of docs/architecture.md and a few rules of style from the sources alone.

usage: layering_test.py ROOT         checks the repository, prints each violation as file:line: text
       layering_test.py --self-test  checks that every rule reports what it should, and only that

A rule is a function (path, text, all_paths) -> [(line, message)]; to add one, write it, append it to
RULES, and add a snippet that breaks it to BAD_SNIPPETS: the self-test fails for a rule without one.
"""
import os
import re
import subprocess
import sys

# What each layer may include besides itself. A folder that is not listed here is not C++.
LAYERS = {
    "base": (),
    "blockstore": ("base",),
    "paxos": ("base",),
    "client": ("base",),
    "iscsi": ("client", "base"),
    "daemon": ("base", "blockstore", "paxos", "client", "iscsi"),
    "tests": ("base", "blockstore", "paxos", "client", "iscsi", "daemon"),
}
PURE_LAYERS = ("blockstore", "paxos")  # driven by events and a clock that is passed in
# ... and so are these of daemon/: what every replica must decide alike, and the master's part of it.
PURE_FILES = tuple("daemon/" + name for name in (
    "block_content", "digest", "history", "linearizability", "operation", "outcome", "range_locks",
    "register_search", "session_table", "write_order"))
ASIO_OR_PROTOBUF_HEADERS = ("client", "daemon")  # the only headers that may include either
MAX_LINES = 700
SPDX = "SPDX-License-Identifier: Apache-2.0"

ASIO = re.compile(r"^(boost/)?(asio|beast)(/|\.hpp$)")
PROTOBUF = re.compile(r"^google/protobuf/|\.pb\.h$")
IMPURE_INCLUDE = re.compile(r"^(thread|future|pthread\.h|ctime|time\.h|sys/time\.h)$")
IMPURE_CODE = re.compile(
    r"\bstd::j?thread\b|\bstd::async\b|\bpthread_create\b|\bthis_thread\b"
    r"|\b(steady|system|high_resolution|utc|tai|gps|file)_clock\b"
    r"|\bclock_gettime\b|\bgettimeofday\b|\bstd::time\s*\(|\btime\s*\(\s*(nullptr|NULL|0)\s*\)"
    r"|\bnanosleep\s*\(|\busleep\s*\(")
# Written in two halves so that this file passes its own check.
MARKERS = re.compile(r"\b(" + "TO" + "DO|FIX" + r"ME)\b")

TOKEN = re.compile(
    r'(?P<comment>//[^\n]*|/\*.*?\*/)'
    r'|(?P<string>R"(?P<tag>[^()\s\\]{0,16})\(.*?\)(?P=tag)"|"(?:\\.|[^"\\\n])*")'
    r"|(?P<char>(?<![0-9A-Za-z_])'(?:\\.|[^'\\\n])+')",
    re.DOTALL)
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"\n]+)[>"]', re.MULTILINE)


def blank(text, strings):
    """The text with comments, and with `strings` also literals, blanked; line numbers stay."""
    def replace(match):
        if match.group("comment") is None and not strings:
            return match.group(0)
        return re.sub(r"[^\n]", " ", match.group(0))
    return TOKEN.sub(replace, text)


def includes(text):
    """[(line, is_quoted, path)] of each #include that is not in a comment."""
    code = blank(text, strings=False)
    return [(code.count("\n", 0, m.start(1)) + 1, m.group(1) == '"', m.group(2))
            for m in INCLUDE.finditer(code)]


def layer_of(path):
    top = path.split("/", 1)[0]
    return top if "/" in path and top in LAYERS else None


def is_cpp(path):
    return path.endswith((".h", ".cc")) and layer_of(path) is not None


def check_layers(path, text, _):
    if not is_cpp(path):
        return []
    layer = layer_of(path)
    return [(line, f"{layer}/ must not include {target}")
            for line, _, target in includes(text)
            if layer_of(target) not in (None, layer) + LAYERS[layer]]


def check_include_form(path, text, all_paths):
    if not is_cpp(path):
        return []
    found = []
    for line, quoted, target in includes(text):
        source = re.sub(r"\.pb\.h$", ".proto", target)
        if quoted and source not in all_paths:
            found.append((line, f'"{target}" is not a file seen from the repository root'))
        if not quoted and source in all_paths:
            found.append((line, f"<{target}> is ours: write it in quotes"))
    return found


def check_pure(path, text, _):
    stem = path.rsplit(".", 1)[0]
    if not is_cpp(path) or (layer_of(path) not in PURE_LAYERS and stem not in PURE_FILES):
        return []
    layer = stem if stem in PURE_FILES else layer_of(path) + "/"
    found = [(line, f"{layer} is pure: no <{target}>") for line, _, target in includes(text)
             if ASIO.search(target) or IMPURE_INCLUDE.search(target)]
    code = blank(text, strings=True)
    found += [(code.count("\n", 0, m.start()) + 1, f"{layer} is pure: no {m.group(0)}")
              for m in IMPURE_CODE.finditer(code)]
    return found


def check_heavy_headers(path, text, _):
    if not is_cpp(path) or not path.endswith(".h") or layer_of(path) in ASIO_OR_PROTOBUF_HEADERS:
        return []
    return [(line, f"headers outside client/ and daemon/ do not include {target}")
            for line, _, target in includes(text) if ASIO.search(target) or PROTOBUF.search(target)]


def check_pragma_once(path, text, _):
    if not path.endswith(".h") or re.search(r"^#pragma once$", blank(text, strings=True).replace(
            "\r", ""), re.MULTILINE):
        return []
    return [(1, "no #pragma once")]


def check_spdx(path, text, _):
    lines = text.split("\n", 2)
    if path.endswith((".h", ".cc", ".proto")):
        good = lines[0] == "// " + SPDX
    elif path.endswith((".py", ".cmake")) or os.path.basename(path) == "CMakeLists.txt" or (
            lines[0].startswith("#!")):
        good = "# " + SPDX == lines[1 if lines[0].startswith("#!") and len(lines) > 1 else 0]
    else:
        return []
    return [] if good else [(1, f"does not start with the line '{SPDX}'")]


def check_proto_owner(path, text, all_paths):
    if not path.endswith(".proto"):
        return []
    layer = layer_of(path)
    if layer in (None, "tests"):
        return [(1, "a .proto file lives in the folder of the layer that owns it")]
    found = []
    for m in re.finditer(r'^[ \t]*import\s+(?:public\s+)?"([^"]+)"', blank(text, strings=False),
                         re.MULTILINE):
        owner = layer_of(m.group(1))
        if owner is not None and owner not in (layer,) + LAYERS[layer]:
            line = text.count("\n", 0, m.start(1)) + 1
            found.append((line, f"{layer}/ must not import {m.group(1)}"))
    return found


def check_length(path, text, _):
    count = text.count("\n")
    if not path.endswith((".h", ".cc")) or count <= MAX_LINES:
        return []
    return [(MAX_LINES + 1, f"{count} lines; at most {MAX_LINES}: split it")]


def check_markers(_, text, __):
    return [(text.count("\n", 0, m.start()) + 1, f"{m.group(0)}: do it, or open an issue")
            for m in MARKERS.finditer(text)]


RULES = (check_layers, check_include_form, check_pure, check_heavy_headers, check_pragma_once,
         check_spdx, check_proto_owner, check_length, check_markers)


def list_files(root):
    """Tracked files and new ones that are not ignored; every file if this is no git work tree."""
    command = ["git", "-c", "safe.directory=*", "-C", root, "ls-files", "-z", "--cached", "--others",
               "--exclude-standard"]
    try:
        listing = subprocess.run(command, capture_output=True, check=True).stdout
        paths = [os.fsdecode(name) for name in listing.split(b"\0") if name]
    except (OSError, subprocess.CalledProcessError):
        paths = [os.path.relpath(os.path.join(folder, name), root)
                 for folder, _, names in os.walk(root) for name in names]
        paths = [p for p in paths if not p.startswith(("build/", ".git/"))]
    return sorted(p for p in set(paths) if os.path.isfile(os.path.join(root, p)))


def check_tree(root):
    paths = list_files(root)
    all_paths = set(paths)
    violations = []
    sources = 0
    for path in paths:
        if path.startswith("tests/fuzz/corpus/"):
            continue
        with open(os.path.join(root, path), "rb") as file:
            data = file.read()
        if b"\0" in data:
            continue
        text = data.decode("utf-8", errors="replace")
        sources += is_cpp(path)
        for rule in RULES:
            violations += [(path, *violation) for violation in rule(path, text, all_paths)]
    for path, line, message in violations:
        print(f"{path}:{line}: {message}")
    print(f"{len(paths)} files ({sources} C++), {len(violations)} violations")
    if sources == 0:
        print(f"no C++ source found below {root}: nothing was checked")
        return False
    return not violations


# The self-test. Paths that exist, for the rules that ask.
KNOWN = {"base/status.h", "blockstore/engine.h", "paxos/core.h", "client/volume.h", "iscsi/pdu.h",
         "daemon/node.h", "tests/support/model.h", "daemon/peer.proto", "base/a.h"}
HEAD = "// " + SPDX + "\n"
HEADER = HEAD + "#pragma once\n"
# (rule that must report it, path, text, line). No other rule may report anything.
BAD_SNIPPETS = (
    (check_layers, "base/a.cc", HEAD + '#include "blockstore/engine.h"\n', 2),
    (check_layers, "base/a.cc", HEAD + '  #  include "client/volume.h"\n', 2),
    (check_layers, "blockstore/a.cc", HEAD + '\n#include "paxos/core.h"\n', 3),
    (check_layers, "paxos/a.h", HEADER + '#include "blockstore/engine.h"\n', 3),
    (check_layers, "client/a.cc", HEAD + '#include "daemon/node.h"\n', 2),
    (check_layers, "client/a.cc", HEAD + '#include "iscsi/pdu.h"\n', 2),
    (check_layers, "iscsi/a.cc", HEAD + '#include "blockstore/engine.h"\n', 2),
    (check_layers, "daemon/a.cc", HEAD + '#include "tests/support/model.h"\n', 2),
    (check_layers, "base/a.cc", HEAD + '/* x */ #include "paxos/core.h"  // y\n', 2),
    (check_layers, "base/a.cc", HEAD + "const int n = 1'000'000;\n#include \"paxos/core.h\"\n", 3),
    (check_include_form, "base/a.cc", HEAD + '#include "status.h"\n', 2),
    (check_include_form, "base/a.cc", HEAD + '#include "../base/status.h"\n', 2),
    (check_include_form, "base/a.cc", HEAD + "#include <base/status.h>\n", 2),
    (check_include_form, "daemon/a.cc", HEAD + '#include "daemon/missing.pb.h"\n', 2),
    (check_pure, "paxos/a.cc", HEAD + "#include <boost/asio.hpp>\n", 2),
    (check_pure, "blockstore/a.cc", HEAD + "#include <boost/asio/io_context.hpp>\n", 2),
    (check_pure, "blockstore/a.cc", HEAD + "#include <thread>\n", 2),
    (check_pure, "blockstore/a.cc", HEAD + "#include <future>\n", 2),
    (check_pure, "blockstore/a.h", HEADER + "std::thread writer_;\n", 3),
    (check_pure, "blockstore/a.cc", HEAD + "std::jthread t;\n", 2),
    (check_pure, "paxos/a.cc", HEAD + "auto t = std::chrono::steady_clock::now();\n", 2),
    (check_pure, "paxos/a.cc", HEAD + "using C = std::chrono::system_clock;\n", 2),
    (check_pure, "paxos/a.cc", HEAD + "clock_gettime(CLOCK_BOOTTIME, &t);\n", 2),
    (check_pure, "paxos/a.cc", HEAD + "auto t = time(nullptr);\n", 2),
    (check_pure, "paxos/a.cc", HEAD + "std::this_thread::yield();\n", 2),
    (check_pure, "daemon/session_table.h", HEADER + "#include <boost/asio.hpp>\n", 3),
    (check_pure, "daemon/write_order.cc", HEAD + "auto t = std::chrono::steady_clock::now();\n", 2),
    (check_heavy_headers, "base/a.h", HEADER + "#include <boost/asio.hpp>\n", 3),
    (check_heavy_headers, "iscsi/a.h", HEADER + "#include <boost/beast/http.hpp>\n", 3),
    (check_heavy_headers, "base/a.h", HEADER + "#include <google/protobuf/message.h>\n", 3),
    (check_heavy_headers, "tests/a.h", HEADER + '#include "daemon/peer.pb.h"\n', 3),
    (check_pragma_once, "base/a.h", HEAD + "int x;\n", 1),
    (check_pragma_once, "base/a.h", HEAD + "// #pragma once\n", 1),
    (check_spdx, "base/a.h", "#pragma once\n", 1),
    (check_spdx, "base/a.cc", "\n" + HEAD, 1),
    (check_spdx, "base/a.cc", "", 1),
    (check_spdx, "scripts/a", "#!/bin/sh\ntrue\n", 1),
    (check_spdx, "scripts/a", "#!/bin/sh", 1),
    (check_spdx, "base/CMakeLists.txt", "project(x)\n", 1),
    (check_proto_owner, "proto/a.proto", HEAD, 1),
    (check_proto_owner, "a.proto", HEAD, 1),
    (check_proto_owner, "tests/a.proto", HEAD, 1),
    (check_proto_owner, "client/a.proto", HEAD + 'import "daemon/peer.proto";\n', 2),
    (check_length, "base/a.cc", HEAD + "\n" * MAX_LINES, MAX_LINES + 1),
    (check_markers, "base/a.cc", HEAD + "// TO" + "DO(x): later\n", 2),
    (check_markers, "docs/a.md", "FIX" + "ME\n", 1),
)
# (path, text): nothing may be reported.
GOOD_SNIPPETS = (
    ("base/a.cc", HEAD + '#include "base/status.h"\n#include <vector>\n'),
    ("base/a.cc", HEAD + '// #include "paxos/core.h"\n/*\n#include "paxos/core.h"\n*/\n'),
    ("base/a.cc", HEAD + "std::thread t;\nauto n = std::chrono::steady_clock::now();\n"),
    ("base/a.cc", HEAD + "#include <boost/asio.hpp>\n#include <boost/crc.hpp>\n"),
    ("blockstore/a.cc", HEAD + '#include "base/status.h"\n#include "blockstore/engine.h"\n'),
    ("blockstore/a.cc", HEAD + "#include <chrono>\n// std::thread is not ours\n"),
    ("blockstore/a.cc", HEAD + 'Log("std::thread"); auto s = R"(" clock_gettime ")";\n'),
    ("blockstore/a.cc", HEAD + "int lifetime(int x); uint64_t b = lifetime(0); char q = '\"';\n"),
    ("iscsi/a.cc", HEAD + '#include "client/volume.h"\n#include "base/status.h"\n'),
    ("daemon/a.h", HEADER + '#include "paxos/core.h"\n#include "daemon/peer.pb.h"\n'),
    ("tests/a.cc", HEAD + '#include "tests/support/model.h"\n#include "daemon/node.h"\n'),
    ("base/a.h", HEAD + "//\n// What it is for.\n#pragma once\n"),
    ("daemon/session_server.cc", HEAD + "#include <boost/asio.hpp>\nstd::thread t;\n"),
    ("daemon/a.proto", HEAD + 'syntax = "proto3";\nimport "client/volume.proto";\n'),
    ("base/a.cc", HEAD + "\n" * (MAX_LINES - 1)),
    ("scripts/a", "#!/bin/sh\n# " + SPDX + "\n"),
    ("README.md", "TO" + "DOS is not a marker\n"),
)


def self_test():
    failures = []
    for rule, path, text, line in BAD_SNIPPETS:
        for other in RULES:
            lines = [violation[0] for violation in other(path, text, KNOWN)]
            if lines != ([line] if other is rule else []):
                failures.append(f"{other.__name__} reports {lines} in bad {path}: {text[:120]!r}")
    for path, text in GOOD_SNIPPETS:
        for rule in RULES:
            for violation in rule(path, text, KNOWN):
                failures.append(f"{rule.__name__} reports {violation} in good {path}: {text!r}")
    untested = set(RULES) - {snippet[0] for snippet in BAD_SNIPPETS}
    failures += [f"{rule.__name__} has no bad snippet" for rule in untested]
    print("\n".join(failures + [
        f"{len(BAD_SNIPPETS)} bad and {len(GOOD_SNIPPETS)} good snippets, {len(failures)} failures"]))
    return not failures


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    good = self_test() if sys.argv[1] == "--self-test" else check_tree(sys.argv[1])
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
