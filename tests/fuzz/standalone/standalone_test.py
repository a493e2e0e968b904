#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: standalone_test.py TARGET: that a run of a fuzz target without libFuzzer finds what a change of an input
brings to light, leaves the input, and does the same each time. TARGET: one with a planted bug."""
import os
import subprocess
import sys
import tempfile
import unittest

TARGET = ""


class Standalone(unittest.TestCase):
    def run_target(self, folder, *arguments):
        return subprocess.run([TARGET, *arguments], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, timeout=60, check=False)

    def test_a_bug_next_to_an_input_is_found_and_its_input_kept(self):
        left = []
        for _ in range(2):
            with tempfile.TemporaryDirectory() as folder:
                # One bit away.
                with open(os.path.join(folder, "seed"), "wb") as file:
                    file.write(b"buf")
                replayed = self.run_target(folder, "seed")
                self.assertEqual(replayed.returncode, 0, replayed.stdout)
                run = self.run_target(folder, "--mutations", "100000", "--seconds", "50", "seed")
                self.assertLess(run.returncode, 0, run.stdout)
                self.assertRegex(run.stdout, "with seed 0x[0-9a-f]+\n")
                name = "crash-" + os.path.basename(TARGET)
                self.assertIn(f"this input is in {name}\n", run.stdout)
                with open(os.path.join(folder, name), "rb") as file:
                    left.append(file.read())
                self.assertLess(self.run_target(folder, name).returncode, 0)
        self.assertIn(b"bug", left[0])
        self.assertEqual(left[0], left[1], "chance has a fixed seed")

    def test_it_ends(self):
        with tempfile.TemporaryDirectory() as folder:
            run = self.run_target(folder, "--mutations", "3000")
            self.assertEqual(run.returncode, 0, run.stdout)
            self.assertIn("3000 of 3000 mutated inputs, no finding", run.stdout)
            run = self.run_target(folder, "--mutations", "3000", "--seconds", "0")
            self.assertIn("0 of 3000 mutated inputs, no finding", run.stdout)
            self.assertEqual(os.listdir(folder), [])


if __name__ == "__main__":
    TARGET = os.path.abspath(sys.argv.pop(1))
    unittest.main()
