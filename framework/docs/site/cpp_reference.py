#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A page for each public header, which breathe fills from Doxygen's XML:  cpp_reference.py XML_DIRECTORY TO_DIRECTORY"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from xml.etree import ElementTree

REPO = Path(__file__).resolve().parents[3]

# Breathe's sections, in the order of a page: no private members, no namespaces.
SECTIONS = (
    "briefdescription detaileddescription enum innerclass typedef func var "
    "public-type public-func public-static-func user-defined protected-func public-attrib public-static-attrib friend"
)


def definition(path: Path) -> tuple[ElementTree.ElementTree, ElementTree.Element]:
    tree = ElementTree.parse(path)
    return tree, tree.getroot().find("compounddef")


def file_of(node: ElementTree.Element) -> str:
    return node.find("location").get("file")


def is_internal(header: str) -> bool:
    return "detail" in header.split("/")


def files_by_path(directory: Path) -> dict[str, ElementTree.Element]:
    """Make breathe find each file by its path and show its classes without their namespace, in the file's order."""
    index = ElementTree.parse(directory / "index.xml")
    found = {}
    for compound in index.getroot().iterfind("compound[@kind='file']"):
        path = directory / f"{compound.get('refid')}.xml"
        tree, file = definition(path)
        for namespace in file.findall("innernamespace"):
            file.remove(namespace)
        for member in file.iter("memberdef"):
            member.find("name").text = member.find("qualifiedname").text
        tree.write(path)
        compound.find("name").text = file_of(file)
        found[file_of(file)] = file
    index.write(directory / "index.xml")
    return dict(sorted(found.items()))


def inline_internal_bases(directory: Path) -> None:
    """Give classes the public functions of their bases in detail/, which have no page."""
    for path in directory.glob("class*.xml"):
        tree, derived = definition(path)
        for base in derived.findall("basecompoundref[@refid]"):
            _, inherited = definition(directory / f"{base.get('refid')}.xml")
            if not is_internal(file_of(inherited)):
                continue
            derived.remove(base)
            for member in inherited.iterfind("sectiondef[@kind='public-func']/memberdef"):
                member.find("location").set("file", file_of(derived))
                derived.find("sectiondef[@kind='public-func']").append(member)
        tree.write(path)


def link_guides(directory: Path) -> None:
    """Make the guides' names links to their pages, whose labels guides.py writes."""

    def link(match: re.Match[str]) -> str:
        if not (REPO / f"framework/{match.group()}").exists():
            raise SystemExit(f"cpp_reference.py: a comment names {match.group()}, which is not there")
        return f'<ref refid="{match.group()}" kindref="compound">{match.group()}</ref>'

    for path in directory.glob("*.xml"):
        text = path.read_text(encoding="utf-8")
        path.write_text(re.sub(r"docs/[a-z-]+\.md", link, text), encoding="utf-8")


def brief(file: ElementTree.Element) -> str:
    return " ".join("".join(file.find("briefdescription").itertext()).split())


def includes(header: str) -> list[str]:
    """The lines of a header that only includes others."""
    text = (REPO / "framework/include" / header).read_text(encoding="utf-8")
    return re.findall(r"^#include .*>", text, re.M)


def is_empty(file: ElementTree.Element) -> bool:
    return file.find("innerclass") is None and file.find("sectiondef") is None


def page(header: str, file: ElementTree.Element) -> str:
    shown = includes(header) if is_empty(file) else [f"#include <{header}>"]
    # The label is the target of breathe's links to the file.
    lines = [f".. _{file.get('id')}:", "", f"<{header}>", "=" * (len(header) + 2), ""]
    lines += [".. code-block:: cpp", "", *(f"   {line}" for line in shown), ""]
    return "\n".join([*lines, f".. doxygenfile:: {header}", f"   :sections: {SECTIONS}", ""])


def index(headers: dict[str, tuple[str, str]]) -> str:
    lines = ["C++ reference", "=============", "", "The public headers. :ref:`All names <genindex>` in one list.", ""]
    for title, is_ingest in (("gpurx", False), ("gpurx::ingest", True)):
        lines += [title, "-" * len(title), "", ".. list-table::", "   :widths: 35 65", ""]
        for header, (name, text) in headers.items():
            if header.startswith("gpurx/ingest/") == is_ingest:
                lines += [f"   * - :doc:`{header} <{name}>`", f"     - {text}"]
        lines.append("")
    names = [f"   {name}" for name, _ in headers.values()]
    return "\n".join([*lines, ".. toctree::", "   :hidden:", "", *names, ""])


def main() -> None:
    xml, to = Path(sys.argv[1]), Path(sys.argv[2])
    to.mkdir(parents=True, exist_ok=True)
    headers = {}
    link_guides(xml)
    inline_internal_bases(xml)
    for header, file in files_by_path(xml).items():
        if is_internal(header) or (is_empty(file) and header != "gpurx/gpurx.hpp"):
            continue  # nothing for users
        name = header.removesuffix(".hpp").replace("/", "-")
        (to / f"{name}.rst").write_text(page(header, file), encoding="utf-8")
        headers[header] = name, brief(file)
    (to / "index.rst").write_text(index(headers), encoding="utf-8")


if __name__ == "__main__":
    main()
