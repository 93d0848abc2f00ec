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


def files_by_path(directory: Path) -> dict[str, ElementTree.Element]:
    """Make breathe find each file by its path and show its classes without their namespace, in the file's order."""
    index = directory / "index.xml"
    listed = ElementTree.parse(index)
    found = {}
    for compound in listed.getroot().iterfind("compound[@kind='file']"):
        path = directory / f"{compound.get('refid')}.xml"
        tree = ElementTree.parse(path)
        definition = tree.getroot().find("compounddef")
        for namespace in definition.findall("innernamespace"):
            definition.remove(namespace)
        for member in definition.iter("memberdef"):
            member.find("name").text = member.find("qualifiedname").text
        tree.write(path)
        compound.find("name").text = definition.find("location").get("file")
        found[compound.find("name").text] = definition
    listed.write(index)
    return dict(sorted(found.items()))


def brief(definition: ElementTree.Element) -> str:
    return " ".join("".join(definition.find("briefdescription").itertext()).split())


def includes(header: str) -> list[str]:
    """The lines of a header that only includes others."""
    text = (REPO / "framework/include" / header).read_text(encoding="utf-8")
    return re.findall(r"^#include .*>", text, re.M)


def is_empty(definition: ElementTree.Element) -> bool:
    return definition.find("innerclass") is None and definition.find("sectiondef") is None


def page(header: str, definition: ElementTree.Element) -> str:
    shown = includes(header) if is_empty(definition) else [f"#include <{header}>"]
    lines = [f"<{header}>", "=" * (len(header) + 2), "", ".. code-block:: cpp", "", *(f"   {line}" for line in shown)]
    return "\n".join([*lines, "", f".. doxygenfile:: {header}", f"   :sections: {SECTIONS}", ""])


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
    for header, definition in files_by_path(xml).items():
        if is_empty(definition) and header != "gpurx/gpurx.hpp":
            continue  # nothing for users
        name = header.removesuffix(".hpp").replace("/", "-")
        (to / f"{name}.rst").write_text(page(header, definition), encoding="utf-8")
        headers[header] = name, brief(definition)
    (to / "index.rst").write_text(index(headers), encoding="utf-8")


if __name__ == "__main__":
    main()
