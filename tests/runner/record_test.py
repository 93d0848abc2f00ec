# SPDX-License-Identifier: Apache-2.0
"""The state of what a step depends on, and the record of green runs."""

from __future__ import annotations

import os
import subprocess
import tempfile
import unittest
import unittest.mock
from pathlib import Path

import record
from record import Green, Records, without_comments
from steps import Step


def step(name: str, *inputs: str, command: str = "true") -> Step:
    return Step(name, "full", "check", 1, "1", (), inputs, command)


class States(unittest.TestCase):
    def test_comments_and_blank_lines_do_not_count(self) -> None:
        plain = b'int a = 1;\nchar const* b = "// no comment";\n'
        self.assertEqual(without_comments(b"// one\nint a = 1; /* two\nlines */\n\n" + plain[11:]), without_comments(plain))

    def test_all_else_counts(self) -> None:
        for one, other in ((b"int a;", b"int b;"), (b'"// a"', b'"// b"'), (b"R\"x(/* a */)x\"", b"R\"x(/* b */)x\""),
                           (b"'\"' // a\n\"b\"", b"'\"' // a\n\"c\""), (b"1'000; // a\nint b;", b"1'000; // a\nint c;")):  # fmt: skip
            self.assertNotEqual(without_comments(one), without_comments(other))

    def test_files_of_the_tree(self) -> None:
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.enterContext(tempfile.TemporaryDirectory()))
        subprocess.run(["git", "init", "--quiet"], check=True)
        Path("part/e").mkdir(parents=True)

        def states(file: str, text: str) -> list[str]:
            """Those of steps with each kind of inputs, once the file has this text."""
            Path(file).write_text(text, encoding="utf-8")
            subprocess.run(["git", "add", "--intent-to-add", "part"], check=True)
            record.files_of.cache_clear()
            record.hash_of.cache_clear()
            kinds = ((".",), (".", "+comments"), (".", "*.md"), ("part/e", ":!part/e/a.cpp"))
            return [record.state_of(step("a", *inputs)) for inputs in kinds]

        before = states("part/e/a.cpp", "int a;")
        self.assertNotEqual(before[0], record.state_of(step("a", ".", command="false")))
        # The file, what it then has, and in which of the states that is to be seen.
        for file, text, seen in (("part/e/a.cpp", "int a;  // 1", [False, True, False, False]),
                                 ("part/e/a.cpp", "int b;", [True, True, True, False]),
                                 ("part/e/a.md", "page", [False, False, True, False]),
                                 ("part/e/b.py", "1", [True, True, True, True]),
                                 ("new.py", "1", [True, True, True, False])):  # fmt: skip
            after = states(file, text)
            self.assertEqual([one != other for one, other in zip(before, after, strict=True)], seen, (file, text))
            before = after


class Record(unittest.TestCase):
    def setUp(self) -> None:
        place = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.enterContext(unittest.mock.patch.multiple(record, LOCAL=place / "build/record", COMMITTED=place / "record",
                                                       state_of=lambda _: "now", compilers=lambda: "12.2.0+-"))  # fmt: skip

    def lines(self, **states: str) -> dict[str, Green]:
        return {name: Green(name, state, "12.2.0+16.0.6", "2026-01-01", 10, 3) for name, state in states.items()}

    def test_newer_lines_replace_older_ones_unless_these_are_green(self) -> None:
        committed, local = self.lines(a="now", b="old", c="old", d="old", e="now"), self.lines(a="other", b="now", d="older")
        record.write(record.COMMITTED, committed)
        record.write(record.LOCAL, local)
        Records().commit([step(name) for name in ("a", "b", "c", "d", "never")])
        merged = {"a": committed["a"], "b": local["b"], "c": committed["c"], "d": local["d"]}
        self.assertEqual(record.read(record.COMMITTED), merged)

    def test_a_compiler_that_is_not_there_compares_with_any(self) -> None:
        line = self.lines(a="now")["a"]
        self.assertTrue(record.is_green(step("a"), line))
        self.assertFalse(record.is_green(step("a"), line._replace(compilers="13.1.0+16.0.6")))

    def test_two_runs_at_once_keep_both(self) -> None:
        one, other = Records(), Records()
        one.keep(step("a"), 1, 1, "now")
        other.keep(step("b"), 1, 1, "now")
        with unittest.mock.patch.dict(os.environ, GPURX_KERNEL_SOURCE="linux"):  # what it is of is not in the state
            one.keep(step("c"), 1, 1, "now")
        self.assertEqual(list(record.read(record.LOCAL)), ["a", "b"])
