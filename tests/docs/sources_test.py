# SPDX-License-Identifier: Apache-2.0
"""How pages are made of what the repository has: headers' comments, Markdown, docstrings."""

from __future__ import annotations

import ast
import json
import sys
import tempfile
import unittest
from pathlib import Path
from xml.etree import ElementTree

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "framework/docs/site"))
import cpp_reference  # noqa: E402
import examples  # noqa: E402
import figures  # noqa: E402
import floors  # noqa: E402
import guides  # noqa: E402
import python_reference  # noqa: E402


class Reference(unittest.TestCase):
    """Doxygen's XML, as breathe is to find it."""

    FILE = (
        '<doxygen><compounddef id="b_8hpp"><compoundname>b.hpp</compoundname><innerclass>a::c</innerclass>'
        "<innernamespace>a</innernamespace><sectiondef><memberdef><name>f</name>"
        "<qualifiedname>a::f</qualifiedname></memberdef></sectiondef>"
        "<briefdescription><para>Does <ref>f</ref>.\n</para></briefdescription>"
        '<location file="a/b.hpp"/></compounddef></doxygen>'
    )

    def setUp(self) -> None:
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.xml = Path(directory.name)
        compound = '<compound refid="b_8hpp" kind="file"><name>b.hpp</name></compound>'
        (self.xml / "index.xml").write_text(f"<doxygenindex>{compound}</doxygenindex>", encoding="utf-8")
        (self.xml / "b_8hpp.xml").write_text(self.FILE, encoding="utf-8")
        self.files = cpp_reference.files_by_path(self.xml)

    def test_files_are_found_by_their_path(self) -> None:
        self.assertEqual(list(self.files), ["a/b.hpp"])
        self.assertIn("<name>a/b.hpp</name>", (self.xml / "index.xml").read_text(encoding="utf-8"))

    def test_members_have_their_namespace_and_classes_need_none(self) -> None:
        text = (self.xml / "b_8hpp.xml").read_text(encoding="utf-8")
        self.assertIn("<name>a::f</name>", text)
        self.assertNotIn("innernamespace", text)

    def test_the_page_of_a_header_is_its_file(self) -> None:
        page = cpp_reference.page("a/b.hpp", self.files["a/b.hpp"])
        self.assertTrue(page.startswith(".. _b_8hpp:\n\n<a/b.hpp>\n=========\n"))
        self.assertIn("#include <a/b.hpp>\n\n.. doxygenfile:: a/b.hpp\n", page)

    def test_a_header_of_headers_shows_what_it_includes(self) -> None:
        page = cpp_reference.page("gpurx/gpurx.hpp", ElementTree.Element("compounddef"))
        self.assertIn("   #include <gpurx/views.hpp>\n", page)

    def test_a_base_in_detail_gives_its_functions_to_the_class_that_has_it(self) -> None:
        def write(name: str, file: str, content: str) -> None:
            text = f'<doxygen><compounddef>{content}<location file="{file}"/></compounddef></doxygen>'
            (self.xml / f"{name}.xml").write_text(text, encoding="utf-8")

        def section(kind: str, name: str) -> str:
            member = f'<memberdef><name>{name}</name><location file="a/detail/base.hpp"/></memberdef>'
            return f'<sectiondef kind="{kind}">{member}</sectiondef>'

        bases = '<basecompoundref refid="classbase">base</basecompoundref><basecompoundref>std::x</basecompoundref>'
        write("classderived", "a/b.hpp", bases + section("public-func", "own"))
        write("classbase", "a/detail/base.hpp", section("public-func", "f") + section("protected-func", "g"))
        cpp_reference.inline_internal_bases(self.xml)
        derived = ElementTree.parse(self.xml / "classderived.xml").getroot()
        self.assertEqual([one.text for one in derived.iter("name")], ["own", "f"])
        self.assertEqual(derived.findall(".//memberdef/location")[1].get("file"), "a/b.hpp")
        self.assertEqual([one.text for one in derived.iter("basecompoundref")], ["std::x"])

    def test_names_of_guides_are_links(self) -> None:
        (self.xml / "c.xml").write_text("<para>see docs/gpu.md.</para>", encoding="utf-8")
        cpp_reference.link_guides(self.xml)
        link = '<ref refid="docs/gpu.md" kindref="compound">docs/gpu.md</ref>'
        self.assertEqual((self.xml / "c.xml").read_text(encoding="utf-8"), f"<para>see {link}.</para>")
        (self.xml / "c.xml").write_text("<para>docs/nowhere.md</para>", encoding="utf-8")
        with self.assertRaisesRegex(SystemExit, "docs/nowhere.md, which is not there"):
            cpp_reference.link_guides(self.xml)

    def test_the_index_has_briefs(self) -> None:
        text = cpp_reference.brief(self.files["a/b.hpp"])
        self.assertIn("`a/b.hpp <a-b>`\n     - Does f.\n", cpp_reference.index({"a/b.hpp": ("a-b", text)}))


class Examples(unittest.TestCase):
    def test_code_is_what_stands_between_the_marks(self) -> None:
        text = "/// Say:\n    /// @code{.cpp}\n    /// f([] {\n    ///     g();\n    /// });\n    /// @endcode\n    /// End.\n"
        self.assertEqual(list(examples.between_code_marks(text)), [(1, "cpp", "f([] {\n    g();\n});\n")])


class Markdown(unittest.TestCase):
    known = {"framework/docs/storage.md": "guides/storage", "framework/tools/gpurxd/gpurxd.8": "man/gpurxd.8"}

    def rewritten(self, text: str) -> str:
        return guides.rewritten(text, "framework/docs/setup.md", "guides/setup", self.known).rstrip("\n")

    def test_links_lead_to_pages(self) -> None:
        self.assertEqual(
            self.rewritten("[S3](storage.md#keys) [d](../tools/gpurxd/gpurxd.8) [x](#here)"),
            "[S3](storage.md#keys) [d](../man/gpurxd.8) [x](#here)",
        )

    def test_a_guide_has_the_label_that_headers_link_to(self) -> None:
        self.assertEqual(guides.labelled("<!-- x -->\n# GPU\n", "guides/gpu"), "<!-- x -->\n(docs/gpu.md)=\n# GPU\n")

    def test_what_has_no_page_is_named(self) -> None:
        self.assertEqual(self.rewritten("[the runner](../../tests/run.sh)"), "the runner (`tests/run.sh`)")

    def test_what_is_not_there_ends_it(self) -> None:
        with self.assertRaisesRegex(SystemExit, "nowhere.md, which is not there"):
            self.rewritten("[x](nowhere.md)")

    def test_code_stays(self) -> None:
        self.assertEqual(
            self.rewritten("```cpp\n[x](storage.md)\n```\n    [x](storage.md)"), "```cpp\n[x](storage.md)\n```\n    [x](storage.md)"
        )


class Docstrings(unittest.TestCase):
    def said(self, source: str) -> str:
        return "\n".join(python_reference.said(ast.parse(source).body[0])).strip()

    def test_what_is_indented_is_a_program(self) -> None:
        self.assertEqual(
            self.said('def f():\n    """Does.\n\n        g(1)\n\n    More."""'),
            "Does.\n\n~~~python\ng(1)\n~~~\n\nMore.",
        )

    def test_commands_are_none_of_python(self) -> None:
        self.assertIn("~~~sh\npython -m a\n", self.said('def f():\n    """Does.\n\n        python -m a\n    """'))


class Figures(unittest.TestCase):
    def setUp(self) -> None:
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        root = Path(directory.name)
        self.kept, self.measured, self.plots = root / "kept", root / "measured", root / "plots"
        for each in (self.kept, self.measured, self.plots):
            each.mkdir()

    def add(self, directory: Path, name: str, cpu: str) -> None:
        content = {
            "date": "2026-11-27",
            "commit": "1234567",
            "command": f"./run bench {name} 9",
            "machine": {"cpu": cpu, "cpus": 4, "kernel": "7.3"},
            "tables": [{"title": "Costs", "columns": ["CPU s", "ms"], "rows": {"a|b": [[0.5, 0.25, 1.0], None]}}],
            "bars": [
                {"name": name, "value": value, "unit": "x", "limit": 1, "at_least": False, "holds": value <= 1}
                for value in (2, 0.5)
            ],
        }
        (directory / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
        (self.plots / f"{name}-1.svg").touch()

    def page(self) -> str:
        found = figures.results(self.kept, self.measured)
        return figures.page(found, self.plots, self.kept)

    def test_kept_results_come_before_results_of_this_machine(self) -> None:
        self.add(self.measured, "gather", "this machine's")
        self.add(self.kept, "gather", "another's")
        self.add(self.measured, "tap", "this machine's")
        page = self.page()
        by = "4 cores, Linux 7.3, on 2026-11-27 by `./run bench {} 9` at 1234567"
        kept = "all figures are in `tests/bench/results/gather.json`."
        self.assertIn("![Costs](plots/gather-1.svg)\n", page)
        self.assertIn(f"Measured on another's, {by.format('gather')}; {kept}\n", page)
        self.assertIn(f"Measured on this machine's, {by.format('tap')}, where this site was made.\n", page)

    def test_figures_are_in_tables_and_missed_bars_come_last(self) -> None:
        self.add(self.kept, "gather", "another's")
        self.add(self.kept, "tap", "another's")
        page = self.page()
        self.assertIn("|  | CPU s | ms |\n| --- | ---: | ---: |\n| a\\|b | 0.500 (0.250–1.00) | – |\n", page)
        bars = page[page.index("## Bars") :].splitlines()[-4:]
        held, missed = "| {0}: {0} | 0.500x | ≤ 1x |", "| {0}: {0} | 2x | ≤ 1x: missed |"
        self.assertEqual(bars, [line.format(name) for line in (held, missed) for name in ("gather", "tap")])

    def test_a_result_of_an_older_bench_is_left_out(self) -> None:
        (self.measured / "gather.json").write_text('{"name": "gather", "samples": {}}', encoding="utf-8")
        self.assertIn("Not drawn here: `./run bench gather && ./run docs` does it.", self.page())

    def test_of_every_benchmark_a_result_is_kept(self) -> None:
        self.assertLessEqual(set(figures.benchmarks()), set(figures.results(figures.KEPT, self.measured)))

    def test_what_is_no_benchmark_has_its_place_as_well(self) -> None:
        self.add(self.measured, "overhead-branch", "this machine's")
        self.assertIn("## overhead-branch\n", self.page())


class Floors(unittest.TestCase):
    """The picture of the folders."""

    def test_a_folder_stands_above_all_that_it_includes(self) -> None:
        table = "# FOLDER: its includes\nground:\nfirst: ground\nbeside: ground\ntop: first ground\nown: own\n"
        self.assertEqual(floors.floors_of(table), [["ground", "own"], ["first", "beside"], ["top"]])

    def test_the_picture_has_each_folder(self) -> None:
        tables = {name: (floors.REPO / path).read_text(encoding="utf-8") for name, path in floors.HOUSES.items()}
        texts = [one.text for one in ElementTree.fromstring(floors.picture(tables)).iter() if one.tag.endswith("text")]
        for name, notes in floors.NOTES.items():
            self.assertIn(name, texts)
            self.assertEqual({one for floor in floors.floors_of(tables[name]) for one in floor}, set(notes))
            self.assertLessEqual(set(notes.values()), set(texts))


if __name__ == "__main__":
    unittest.main()
