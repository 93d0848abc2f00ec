# SPDX-License-Identifier: Apache-2.0
"""The checks of ./run release."""

import re
import sys
import unittest
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "cmake"))
import release  # noqa: E402

CMAKE = "project(gpurx\n    VERSION 0.2.0\n"
CHANGELOG = "# Changelog\n\n## 0.2.0 (2027-01-31)\n\n- News.\n\n## 0.1.0 (2026-12-01)\n\n- The first version.\n"


class Release(unittest.TestCase):
    def test_a_tree_that_is_ready(self) -> None:
        self.assertEqual(release.obstacles("0.2.0", CMAKE, CHANGELOG, ""), [])
        self.assertEqual(release.notes_of(CHANGELOG, "0.2.0"), "- News.\n")

    def test_another_version(self) -> None:
        (version, notes) = release.obstacles("0.3.0", CMAKE, CHANGELOG, "")
        self.assertIn("CMakeLists.txt has version 0.2.0", version)
        self.assertIn("CHANGELOG.md does not begin", notes)

    def test_a_changelog_without_a_date_or_behind_another_version(self) -> None:
        undated = CHANGELOG.replace(" (2027-01-31)", " (unreleased)")
        self.assertEqual(release.notes_of(undated, "0.2.0"), "")
        self.assertEqual(release.notes_of(CHANGELOG, "0.1.0"), "")
        self.assertEqual(release.notes_of("# Changelog\n", "0.1.0"), "")

    def test_changes_are_refused(self) -> None:
        (changed,) = release.obstacles("0.2.0", CMAKE, CHANGELOG, " M run\n")
        self.assertIn(" M run", changed)

    def test_open_steps_are_found(self) -> None:
        status = "green  docs   2026-11-28    0:52\nopen   demo   -   - never run\nnamed  ml     -   - never run\n"
        self.assertEqual(release.open_steps(status), ["demo"])
        with self.assertRaises(ValueError):
            release.open_steps("error: no Python\n")

    def test_the_tree_has_one_version(self) -> None:
        """Others take CMake's: the Python package, the packages, find_package in README.md."""
        version = release.declared_version((REPO / "CMakeLists.txt").read_text(encoding="utf-8"))
        self.assertRegex(version, r"^\d+\.\d+\.\d+$")
        changelog = (REPO / "CHANGELOG.md").read_text(encoding="utf-8")
        self.assertEqual(re.search(r"^## (\S+)", changelog, re.M)[1], version)
        found = re.findall(r"find_package\(gpurx ([0-9.]+)", (REPO / "README.md").read_text(encoding="utf-8"))
        self.assertEqual(set(found), {version.rpartition(".")[0]})


if __name__ == "__main__":
    unittest.main()
