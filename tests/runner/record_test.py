# SPDX-License-Identifier: Apache-2.0
"""The state of inputs, and the record of green runs."""

from __future__ import annotations

import tempfile
import unittest
from pathlib import Path

import record
from inputs import digest, without_comments
from record import Green


class State(unittest.TestCase):
    def test_comments_and_blank_lines_do_not_count(self) -> None:
        plain = b'int a = 1;\nchar const* b = "// no comment";\n'
        self.assertEqual(without_comments(b"// one\nint a = 1; /* two\nlines */\n\n" + plain[11:]), without_comments(plain))

    def test_all_else_counts(self) -> None:
        for one, other in ((b"int a;", b"int b;"), (b'"// a"', b'"// b"'), (b"R\"x(/* a */)x\"", b"R\"x(/* b */)x\""),
                           (b"'\"' // a\n\"b\"", b"'\"' // a\n\"c\""), (b"1'000; // a\nint b;", b"1'000; // a\nint c;")):  # fmt: skip
            self.assertNotEqual(without_comments(one), without_comments(other))

    def test_names_contents_and_the_command_count(self) -> None:
        whole = digest("run", [("a", "1"), ("b", "2")])
        self.assertEqual(whole, digest("run", [("b", "2"), ("a", "1")]))
        for other in (digest("run", [("a", "1"), ("b", "3")]), digest("run", [("a", "1")]), digest("walk", [("a", "1"), ("b", "2")])):
            self.assertNotEqual(whole, other)


def green(step: str, state: str, date: str = "2026-01-01") -> Green:
    return Green(step, state, "12.2.0+16.0.6", date, 10, 3)


class Record(unittest.TestCase):
    def test_what_is_written_is_read(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "build/record"
            self.assertEqual(record.read(path), {})
            lines = {"a": green("a", "1"), "b:c": green("b:c", "2")}
            record.write(path, lines)
            self.assertEqual(record.read(path), lines)

    def test_newer_lines_replace_older_ones_unless_these_are_green(self) -> None:
        committed = {"a": green("a", "now"), "b": green("b", "old"), "c": green("c", "old")}
        local = {"a": green("a", "other", "2026-01-02"), "b": green("b", "now", "2026-01-02")}
        merged = record.merge(committed, local, lambda line: line.state == "now")
        self.assertEqual(merged, {"a": committed["a"], "b": local["b"], "c": committed["c"]})

    def test_a_compiler_that_is_not_there_compares_with_any(self) -> None:
        self.assertTrue(record.same_compilers("12.2.0+16.0.6", "12.2.0+-"))
        self.assertFalse(record.same_compilers("12.2.0+16.0.6", "13.1.0+16.0.6"))
