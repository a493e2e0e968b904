#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""When libiscsi_suite.py says that all is well, with a suite that is made up."""
import contextlib
import io
import os
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import libiscsi_suite as suite  # noqa: E402  pylint: disable=wrong-import-position

# Behaves as its tests are called. Of a log, it shows everything only if asked to.
TOOL = """#!/usr/bin/env bash
[[ $1 != --list ]] || { printf '%s\\n' {tests}; exit 0; }
log=
for argument; do
  [[ $argument != -V ]] || log=1
  [[ $argument != ALL.* ]] || name=$argument
done
asserts=3 failed=0
case $name in
  *Fails) failed=1 && echo "    1. something is not as it should be" ;;
  *Skips) echo "    [SKIPPED] not here" ;;
  *SkipsAPart) [[ -z $log ]] || echo "    [SKIPPED] a part of it" ;;
  *AssertsNothing) asserts=0 ;;
  *Breaks) exit 0 ;;
esac
echo "             asserts      $asserts      $asserts      $((asserts - failed))        $failed      n/a"
"""


class Gate(unittest.TestCase):
    def run_suite(self, tests, required, excused=(), pattern=""):
        with tempfile.TemporaryDirectory() as folder:
            tool = os.path.join(folder, "tool")
            with open(tool, "w", encoding="utf-8") as file:
                file.write(TOOL.replace("{tests}", " ".join(f"ALL.{test}" for test in tests)))
            os.chmod(tool, 0o755)
            suite.TOOL = tool
            said = io.StringIO()
            with contextlib.redirect_stdout(said):
                status = suite.run_suite(["url"], (set(required), set(excused)), pattern)
            return status, said.getvalue()

    def test_all_that_must_pass_do(self):
        status, said = self.run_suite(["A.Simple", "B.Simple"], ["A.Simple", "B.Simple"])
        self.assertEqual((status, said), (0, "2 pass, 0 are not as they should be\n"))

    def test_one_that_must_pass_is_not_in_the_suite(self):
        status, said = self.run_suite(["A.Simple"], ["A.Simple", "B.Simple"])
        self.assertEqual(status, 1)
        self.assertIn("WRONG B.Simple", said)
        # Nobody asked for it.
        self.assertEqual(self.run_suite(["A.Simple"], ["A.Simple", "B.Simple"], pattern="^A")[0], 0)

    def test_an_empty_suite_proves_nothing(self):
        self.assertEqual(self.run_suite([], ["A.Simple"])[0], 1)
        self.assertEqual(self.run_suite([], [])[0], 1)
        self.assertEqual(self.run_suite(["A.Simple"], ["A.Simple"], pattern="Nowhere")[0], 1)

    def test_what_was_not_tested_has_not_passed(self):
        for how in ("Fails", "Skips", "SkipsAPart", "AssertsNothing", "Breaks"):
            status, said = self.run_suite([f"A.{how}"], [f"A.{how}"])
            self.assertEqual(status, 1, how)
            self.assertIn(f"WRONG A.{how}", said)

    def test_what_cannot_pass_here_may_fail_but_not_break(self):
        for how, expected in (("Fails", 0), ("Skips", 0), ("SkipsAPart", 0), ("Breaks", 1)):
            self.assertEqual(self.run_suite([f"A.{how}"], [], [f"A.{how}"])[0], expected, how)

    def test_a_test_that_nobody_knows_must_not_fail(self):
        self.assertEqual(self.run_suite(["A.Fails"], [])[0], 1)
        self.assertEqual(self.run_suite(["A.Skips"], [])[0], 0)


if __name__ == "__main__":
    unittest.main()
