#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What scripts/bench makes of its measurements: ratios, verdicts, the table and the page."""
import os
import sys
import unittest
import xml.etree.ElementTree

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

# pylint: disable=wrong-import-position
from measure.curves import Panel, ceiling, picture, short  # noqa: E402
from measure.page import render  # noqa: E402
from measure.processes import Failed, run, together, usage  # noqa: E402
from measure.rows import Experiment, rows_of  # noqa: E402
from measure.scale import Axis, MapAxis, table  # noqa: E402
from measure.table import markdown, text  # noqa: E402


def sample(iops, **more):
    return {"operations": 100, "iops": iops, "mb_per_second": iops / 10, "p50_us": 10.0, "p90_us": 20.0,
            "p99_us": 50.0, "p999_us": 90.0, **more}


def result(title="some <work> & more", heat="hot", **samples):
    return {"title": title, "heat": heat, "samples": samples}


def report(experiments):
    return {"commit": "0123456789", "date": "2026-01-01 00:00", "machine": "2 cores", "rounds": 3, "seconds": 1,
            "rows": rows_of(experiments), "experiments": experiments}


class Rows(unittest.TestCase):
    def test_a_ratio_is_of_medians_and_its_spread_of_rounds(self):
        rows = rows_of({"native_write_1": result(
            hydra=[sample(70), sample(80), sample(1000)], light=[sample(100), sample(100), sample(2000)])})
        self.assertEqual(len(rows), 1)
        self.assertAlmostEqual(rows[0]["ratio"], 0.8)
        self.assertEqual(rows[0]["ratio_spread"], [0.5, 0.8])
        self.assertEqual(rows[0]["verdict"], "met")

    def test_a_missed_bar_says_so(self):
        rows = rows_of({"native_write_1": result(hydra=[sample(69)], light=[sample(100)])})
        self.assertEqual(rows[0]["verdict"], "MISSED")
        self.assertIn("MISSED", text(rows))

    def test_for_a_latency_less_is_better(self):
        slow = result(hydra=[sample(1, p99_us=301.0)], light=[sample(1, p99_us=100.0)])
        quick = result(hydra=[sample(1, p99_us=299.0)], light=[sample(1, p99_us=100.0)])
        self.assertEqual(rows_of({"native_write_16": slow})[0]["verdict"], "MISSED")
        self.assertEqual(rows_of({"native_write_16": quick})[0]["verdict"], "met")

    def test_a_bar_without_a_peer_is_of_the_figure_itself(self):
        rows = rows_of({"amplification_off": result(hydra=[sample(1, device_bytes=1.31)])})
        self.assertEqual(rows[0]["verdict"], "MISSED")
        self.assertNotIn("ratio", rows[0])

    def test_a_peer_that_was_not_measured_has_no_row(self):
        self.assertEqual(rows_of({"native_write_1": result(hydra=[sample(1)])}), [])

    def test_contenders_take_turns(self):
        order = []
        load = lambda name: (name, lambda: order.append(name) or sample(1))
        Experiment("key", "title", "", [load("a"), load("b")]).measure(3, lambda _: None)
        self.assertEqual(order, ["a", "b"] * 3)


class Samples(unittest.TestCase):
    def test_pieces_weigh_by_their_operations(self):
        whole = together([sample(100, operations=300, p99_us=10.0), sample(300, operations=100, p99_us=50.0)])
        self.assertEqual(whole["operations"], 400)
        self.assertEqual(whole["iops"], 200)
        self.assertEqual(whole["p99_us"], 20)

    def test_usage_is_that_of_the_process(self):
        seconds, written = usage([os.getpid()])
        self.assertGreaterEqual(seconds, 0)
        self.assertGreaterEqual(written, 0)

    def test_a_command_that_fails_says_why(self):
        with self.assertRaisesRegex(Failed, "no such thing"):
            run("sh", "-c", "echo no such thing >&2; exit 3")


class Pages(unittest.TestCase):
    EXPERIMENTS = {
        "native_write_1": result(hydra=[sample(80, server_cpu_us=5.0, device_bytes=1.1)], light=[sample(100)]),
        "amplification_off": result("device bytes", "", hydra=[sample(1, device_bytes=1.2)]),
    }

    def test_the_page_is_well_formed_and_needs_nothing_else(self):
        page = render(report(self.EXPERIMENTS))
        tree = xml.etree.ElementTree.fromstring(page.split("\n", 1)[1])
        names = [element.tag.rsplit("}", 1)[-1] for element in tree.iter()]
        self.assertGreaterEqual(names.count("svg"), 4)
        for forbidden in ("script", "link", "img"):
            self.assertNotIn(forbidden, names)
        for element in tree.iter():
            self.assertFalse({"src", "href"} & set(element.attrib))

    def test_the_page_of_nothing_is_well_formed_too(self):
        xml.etree.ElementTree.fromstring(render(report({})).split("\n", 1)[1])

    def test_the_table_has_a_line_per_row(self):
        rows = rows_of(self.EXPERIMENTS)
        self.assertEqual(len(rows), 2)
        self.assertEqual(len(markdown(rows).splitlines()), 4)
        self.assertEqual(len(text(rows).splitlines()), 4)


class Curves(unittest.TestCase):
    def test_a_round_number_is_not_below(self):
        for value, expected in ((0, 1), (1, 1), (1.01, 1.5), (99, 100), (101, 150), (0.07, 0.08)):
            self.assertAlmostEqual(ceiling(value), expected)
        self.assertEqual([short(value) for value in (1, 256, 100_000, 1e8)], ["1", "256", "100k", "100M"])

    def test_pictures_are_well_formed_and_have_every_point(self):
        lines = {"a <b> & c": [(1, 5), (4, 10), (256, 20)], "d": [(1, 1), (4, 0)]}
        for panels in ([Panel("title", "x & y", lines)], [Panel("one", "x", {"a": [(3, 1)]})] * 3):
            tree = xml.etree.ElementTree.fromstring(picture("a > b", panels))
            points = [element for element in tree.iter() if element.tag.endswith("circle")]
            self.assertEqual(len(points), 5 if len(panels) == 1 else 3)
            for point in points:
                self.assertTrue(0 <= float(point.get("cx")) and 0 <= float(point.get("cy")) <= 300)

    def test_an_axis_has_medians(self):
        axis = Axis("depth", "title", "depth")
        for iops in (10, 30, 500):
            axis.add("write", 4, sample(iops, server_cpu_us=7.0))
        axis.add("write", 1, sample(5, server_cpu_us=9.0))
        self.assertEqual(axis.line("iops"), {"write": [(1, 5), (4, 30)]})
        self.assertEqual(len(table([axis]).splitlines()), 4)
        xml.etree.ElementTree.fromstring(axis.picture())

    def test_the_map_is_drawn(self):
        point = {"blocks": 100000, "grown_per_second": 1.0, "lookup_us": 2.0, "overwritten_per_second": 3.0,
                 "lookup_again_us": 4.0, "resident_bytes": 5, "map_bytes": 6}
        xml.etree.ElementTree.fromstring(MapAxis([point, {**point, "blocks": 1000000}]).picture())


if __name__ == "__main__":
    unittest.main()
