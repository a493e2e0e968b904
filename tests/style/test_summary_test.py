#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: test_summary_test.py ROOT: what scripts/test says at its end, with a real ctest and tests that are made up."""
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = "."
TESTS = """
add_test(good true)
add_test(suite/not-here sh "-c" "exit 77")
set_tests_properties(suite/not-here PROPERTIES SKIP_RETURN_CODE 77)
add_test(other.NotHere sh "-c" "exit 77")
set_tests_properties(other.NotHere PROPERTIES SKIP_RETURN_CODE 77)
add_test(bad false)
"""
PRESETS = """{"version": 3, "configurePresets": [
  {"name": "release", "generator": "Ninja", "binaryDir": "${sourceDir}/build/release"}],
 "testPresets": [{"name": "release", "configurePreset": "release"}]}"""


class Summary(unittest.TestCase):
    def run_tests(self, pattern):
        with tempfile.TemporaryDirectory() as folder:
            for path, text in (("build/release/CTestTestfile.cmake", TESTS), ("CMakePresets.json", PRESETS),
                               ("scripts/build", "#!/bin/sh\n")):
                path = os.path.join(folder, path)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text)
                os.chmod(path, 0o755)
            shutil.copy(os.path.join(ROOT, "scripts/test"), os.path.join(folder, "scripts/test"))
            run = subprocess.run([os.path.join(folder, "scripts/test"), "-R", pattern], stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT, text=True, timeout=60, check=False)
            return run.returncode, run.stdout.rstrip().splitlines()

    def test_what_was_skipped_is_named_and_has_not_passed(self):
        status, lines = self.run_tests("good|ot")
        self.assertEqual(status, 0, lines)
        self.assertEqual(lines[-5:], ["2 skipped:", "  release: suite/not-here", "  release: other.NotHere",
                                      "1 passed, 0 failed", "100% tests passed, 0 tests failed out of 3"])

    def test_failures_count_as_ever(self):
        status, lines = self.run_tests(".")
        self.assertEqual(status, 1)
        self.assertEqual(lines[-2:], ["1 passed, 1 failed", "75% tests passed, 1 tests failed out of 4"])

    def test_nothing_skipped_nothing_said(self):
        status, lines = self.run_tests("good")
        self.assertEqual(status, 0)
        self.assertEqual(lines[-2:], ["1 passed, 0 failed", "100% tests passed, 0 tests failed out of 1"])
        self.assertFalse([line for line in lines if "skipped" in line])


if __name__ == "__main__":
    ROOT = os.path.abspath(sys.argv.pop(1))
    unittest.main()
