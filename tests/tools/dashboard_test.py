#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The dashboard and the docs name metrics that there are, and all of them:  dashboard_test.py REPOSITORY"""

import json
import re
import sys
import unittest
from pathlib import Path

REPO = Path()
WRITTEN_IN = ("framework/src/session/metrics_text.cpp", "framework/tools/gpurxd/metrics.cpp")


def names_in(text: str) -> set[str]:
    return set(re.findall(r"\bgpurxd?_[a-z_]+[a-z]\b", text))


class Dashboard(unittest.TestCase):
    def setUp(self) -> None:
        # Each is written once, as the name of a family.
        self.known = set().union(*(names_in((REPO / file).read_text(encoding="utf-8")) for file in WRITTEN_IN))
        self.dashboard = json.loads((REPO / "framework/tools/dashboards/grafana.json").read_text(encoding="utf-8"))

    def test_the_dashboard_asks_for_what_there_is(self) -> None:
        asked = set().union(*(names_in(target["expr"]) for panel in self.dashboard["panels"] for target in panel["targets"]))
        self.assertGreater(len(self.known), 20)
        self.assertEqual(asked - self.known, set())
        self.assertGreater(len(asked), 10)

    def test_the_docs_have_every_metric_and_no_other(self) -> None:
        documented = names_in((REPO / "framework/docs/monitoring.md").read_text(encoding="utf-8"))
        self.assertEqual(documented, self.known)
        alerts = names_in((REPO / "framework/docs/operations.md").read_text(encoding="utf-8"))
        self.assertEqual(alerts - self.known, set())

    def test_panels_lie_beside_each_other(self) -> None:
        taken: set[tuple[int, int]] = set()
        for panel in self.dashboard["panels"]:
            place = panel["gridPos"]
            cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
            self.assertLessEqual(place["x"] + place["w"], 24)
            self.assertFalse(cells & taken, panel["title"])
            taken |= cells


if __name__ == "__main__":
    REPO = Path(sys.argv.pop())
    unittest.main()
