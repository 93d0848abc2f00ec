#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A page for each public header, from Doxygen's XML of them:  cpp_reference.py XML_DIRECTORY TO_DIRECTORY

Everything stands in the order of the header, which is written to be read in that order. Headers in detail/ have no page:
the public members of a base class there stand in the class that has it.
"""

from __future__ import annotations

import re
import sys
import types
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field, replace
from pathlib import Path

from sphinx.domains.cpp import DefinitionParser
from sphinx.util.cfamily import DefinitionError

import comment_text

REPO = Path(__file__).resolve().parents[3]
ROOTS = ("framework/include/", "framework/ingest/include/")
DIRECTIVES = {
    "function": "function",
    "variable": "member",
    "typedef": "type",
    "enum": "enum-class",
    "class": "class",
    "struct": "struct",
    "concept": "concept",
    "friend": "function",
}


@dataclass
class Entry:
    """Something that a header declares."""

    kind: str
    name: str  # qualified
    signature: str
    comment: str
    file: str
    line: int
    requires: str = ""
    members: list[Entry] = field(default_factory=list)
    access: str = "public"
    bases: list[str] = field(default_factory=list)  # "public gpurx::other"


def in_detail(entry: Entry) -> bool:
    return "detail" in Path(entry.file).parts


def text_of(node: ET.Element | None) -> str:
    return " ".join("".join(node.itertext()).split()) if node is not None else ""


def comment_of(node: ET.Element) -> str:
    said = (
        [each.text or "" for each in node.iter("verbatim") if each is not None]
        if node.find("detaileddescription") is None
        else [
            each.text or ""
            for part in ("briefdescription", "detaileddescription")
            for each in node.find(part).iter("verbatim")
        ]
    )
    return "\n\n".join(one.strip("\n").rstrip() for one in said)


def template_of(node: ET.Element) -> str:
    listed = node.find("templateparamlist")
    if listed is None:
        return ""
    parameters = []
    for parameter in listed:
        parts = [text_of(parameter.find("type")), text_of(parameter.find("declname"))]
        default = text_of(parameter.find("defval"))
        parameters.append(" ".join(filter(None, parts)) + (f" = {default}" if default else ""))
    return f"template<{', '.join(parameters)}> "


def signature_of(node: ET.Element, kind: str) -> str:
    name, of_type = text_of(node.find("name")), text_of(node.find("type"))
    if kind == "typedef":
        return f"{template_of(node)}{name} = {of_type}"
    if kind == "variable":
        initial = text_of(node.find("initializer"))
        return f"{'static ' * (node.get('static') == 'yes')}{of_type} {name} {initial}".strip()
    if kind == "enum":
        return f"{name} : {of_type}" if of_type else name
    arguments = re.sub(r"\s*=\s*(default|delete)$", r" = \1", text_of(node.find("argsstring")))
    words = ["static"] * (node.get("static") == "yes") + ["explicit"] * (node.get("explicit") == "yes")
    if kind == "friend" and not of_type.startswith("friend"):
        words.append("friend")
    words += [word for word in of_type.split(" ") if word and word not in words]
    return f"{template_of(node)}{' '.join(words)} {name}{arguments}".replace("  ", " ").strip()


def parses(kind: str, signature: str) -> bool:
    settings = types.SimpleNamespace(cpp_id_attributes=[], cpp_paren_attributes=[])
    names = {"enum-class": "enum", "struct": "class"}
    object_type = names.get(DIRECTIVES[kind], DIRECTIVES[kind])
    try:
        parser = DefinitionParser(signature, location=None, config=settings)
        parser.parse_declaration(object_type, DIRECTIVES[kind])
        parser.assert_end()
    except DefinitionError:
        return False
    return True


def understood(kind: str, signature: str) -> str:
    """What Sphinx can read of it: without the defaults of template parameters, where those are too much."""
    tries = [signature, re.sub(r" = detail::\w+(<[^<>]*>)?(?=[,>])", "", signature)]
    for one in tries:
        if parses(kind, one):
            return one
    raise SystemExit(f"cpp_reference.py: Sphinx cannot read {kind} {signature}")


def place_of(node: ET.Element) -> tuple[str, int]:
    location = node.find("location")
    return location.get("declfile", location.get("file")), int(location.get("declline", location.get("line")))


def enumerators(node: ET.Element, entry: Entry) -> list[Entry]:
    return [
        Entry(
            "enumerator",
            f"{entry.name}::{text_of(each.find('name'))}",
            f"{text_of(each.find('name'))} {text_of(each.find('initializer'))}".strip(),
            comment_of(each),
            entry.file,
            entry.line,
        )
        for each in node.findall("enumvalue")
    ]


def member(node: ET.Element, scope: str) -> Entry | None:
    kind, of_type = node.get("kind"), text_of(node.find("type"))
    if node.get("prot") == "private" or (kind == "friend" and of_type in ("class", "struct", "friend class")):
        return None
    if kind == "friend" and "(" not in text_of(node.find("argsstring")):
        return None
    file, line = place_of(node)
    if kind not in DIRECTIVES:
        raise SystemExit(f"cpp_reference.py: {file}:{line}: what is a {kind}?")
    name = text_of(node.find("name"))
    entry = Entry(
        kind,
        f"{scope}::{name}",
        understood(kind, signature_of(node, kind)),
        comment_of(node),
        file,
        line,
        text_of(node.find("requiresclause")),
        access=node.get("prot"),
    )
    if kind == "enum":
        entry.members = enumerators(node, entry)
    return entry


def compound(node: ET.Element) -> Entry:
    kind, name = node.get("kind"), text_of(node.find("compoundname"))
    signature = template_of(node) + name.split("::")[-1]
    file, line = place_of(node)
    entry = Entry(kind, name, signature, comment_of(node), file, line, text_of(node.find("requiresclause")))
    entry.members = [one for each in node.iter("memberdef") if (one := member(each, name))]
    entry.bases = [
        f"{base.get('prot')} {text_of(base)}"
        for base in node.findall("basecompoundref")
        if "detail::" not in text_of(base)
    ]
    return entry


def take_in_bases(entry: Entry, classes: dict[str, Entry]) -> None:
    """Writes the bases of a class into its signature, and the members of those in detail/ behind its own."""
    shown = []
    for base in entry.bases:
        found = classes.get(base.split()[-1])
        if found is None or not in_detail(found):
            shown.append(base)
            continue
        entry.members += [
            replace(one, name=f"{entry.name}::{one.name.rpartition('::')[2]}")
            for one in found.members
            if one.access == "public"
        ]
    entry.signature = understood(entry.kind, entry.signature + (f" : {', '.join(shown)}" if shown else ""))


def read(xml: Path) -> list[Entry]:
    """What is declared in namespaces, with what is in it."""
    free: list[Entry] = []
    classes: dict[str, Entry] = {}
    for path in sorted(xml.glob("*.xml")):
        for node in ET.parse(path).getroot().findall("compounddef"):
            name = text_of(node.find("compoundname"))
            if not re.match(r"gpurx(::|$)", name) or "detail" in name.split("::") or "<" in name:
                continue
            if node.get("kind") == "namespace":
                free += [one for each in node.iter("memberdef") if (one := member(each, name))]
            elif node.get("kind") in ("class", "struct"):
                classes[name] = compound(node)
            elif node.get("kind") == "concept":
                file, line = place_of(node)
                free.append(
                    Entry("concept", name, f"{template_of(node)}{name.split('::')[-1]}", comment_of(node), file, line)
                )
    for entry in classes.values():
        take_in_bases(entry, classes)
    for name, entry in classes.items():
        if in_detail(entry):
            continue
        outer = classes.get(name.rpartition("::")[0])
        (outer.members if outer else free).append(entry)
    return sorted(free, key=lambda one: (one.file, one.line))


class Names:
    """What a name in a comment means, where it stands."""

    def __init__(self, entries: list[Entry], headers: dict[str, str]) -> None:
        self._names: set[str] = set()
        self._ends: dict[str, set[str]] = {}  # by the last part
        self._headers = headers
        self._add(entries)

    def _add(self, entries: list[Entry]) -> None:
        for entry in entries:
            self._names.add(entry.name)
            self._ends.setdefault(entry.name.rpartition("::")[2], set()).add(entry.name)
            self._add(entry.members)

    def resolver(self, scope: str) -> comment_text.Resolve:
        def resolve(word: str) -> str | None:
            if word.endswith(".md") and (page := REPO / "framework/docs" / word.rpartition("docs/")[2]).exists():
                return f":doc:`/guides/{page.stem}`"
            if word.endswith(".hpp"):
                page = next(
                    (page for header, page in self._headers.items() if header.endswith("/" + word) or header == word),
                    None,
                )
                return f":doc:`{word} </reference/cpp/{page}>`" if page else None
            bare = word.removesuffix("()").replace(".", "::")
            if not comment_text.is_code(word):
                return None
            parts = scope.split("::")
            while parts:
                name = "::".join([*parts, bare])
                if name in self._names:
                    return f":cpp:any:`{word} <{name}>`"
                parts.pop()
            # Of a class elsewhere, if there is one alone that has it.
            names = {bare} & self._names or self._ends.get(bare, set())
            return f":cpp:any:`{word} <{min(names)}>`" if len(names) == 1 else None

        return resolve


def rendered(entry: Entry, names: Names, indent: str = "") -> list[str]:
    directive = "enumerator" if entry.kind == "enumerator" else DIRECTIVES[entry.kind]
    lines = [f"{indent}.. cpp:{directive}:: {entry.signature}", ""]
    scope = entry.name if entry.members else entry.name.rpartition("::")[0]
    inside = comment_text.rst(entry.comment, names.resolver(scope))
    if entry.requires:
        inside += ["", f"Requires ``{entry.requires}``.", ""]
    lines += [f"{indent}   {line}".rstrip() for line in inside]
    for one in sorted(entry.members, key=lambda each: (each.file != entry.file, each.line)):
        lines += rendered(one, names, indent + "   ")
    return lines


def introduction(path: Path) -> tuple[str, str]:
    """The comment at the top of a header: its first sentence, and all of it."""
    lines = path.read_text(encoding="utf-8").splitlines()
    top = []
    for line in lines[1:]:
        if not line.startswith("//"):
            break
        top.append(line[2:].removeprefix(" "))
    text = "\n".join(top).strip("\n")
    first = re.split(r"(?<=[.])\s", " ".join(text.split("\n\n")[0].split()))[0]
    first = first.partition(": ")[2] or first
    return first[0].upper() + first[1:], text


def reading_order(path: Path) -> tuple[int, str]:
    """First the header that has all others, then these as it has them."""
    everything = (REPO / ROOTS[0] / "gpurx/gpurx.hpp").read_text(encoding="utf-8")
    order = ["gpurx.hpp", *re.findall(r"#include <gpurx/(.+)>", everything)]
    return (order.index(path.name) if path.name in order and "ingest" not in path.parts else len(order), path.name)


def page(header: str, entries: list[Entry], names: Names, text: str, source: str) -> str:
    title = f"<{header}>"
    lines = [title, "=" * len(title), ""]
    namespaces = {entry.name.rpartition("::")[0] for entry in entries} or {"gpurx"}
    lines += [".. code-block:: cpp", "", f"   #include <{header}>", ""]
    lines += comment_text.rst(text, names.resolver(min(namespaces)))
    if not entries:
        lines += [
            ".. code-block:: cpp",
            "",
            *(f"   {line}" for line in source.splitlines() if line.startswith("#include")),
            "",
        ]
    current = ""
    for entry in entries:
        namespace = entry.name.rpartition("::")[0]
        if namespace != current:
            lines += [f".. cpp:namespace:: {namespace}", ""]
            current = namespace
        lines += rendered(entry, names)
    return "\n".join(lines) + "\n"


def main() -> None:
    xml, to = Path(sys.argv[1]), Path(sys.argv[2])
    to.mkdir(parents=True, exist_ok=True)
    headers: dict[str, Path] = {}
    for root in ROOTS:
        for path in sorted((REPO / root).rglob("*.hpp"), key=reading_order):
            if "detail" not in path.parts:
                headers[str(path.relative_to(REPO / root))] = path
    pages = {header: header.removesuffix(".hpp").replace("/", "-") for header in headers}
    entries = read(xml)
    names = Names(entries, pages)
    shown: dict[str, list[str]] = {root: [] for root in ROOTS}
    for header, path in headers.items():
        own = [one for one in entries if Path(one.file).is_relative_to(path.relative_to(REPO))]
        if not own and header != "gpurx/gpurx.hpp":
            continue  # nothing for users
        first, text = introduction(path)
        (to / f"{pages[header]}.rst").write_text(
            page(header, own, names, text, path.read_text(encoding="utf-8")), encoding="utf-8"
        )
        root = next(root for root in ROOTS if path.is_relative_to(REPO / root))
        shown[root].append(
            f"   * - :doc:`{header} <{pages[header]}>`\n     - {comment_text.inline(first, names.resolver('gpurx'))}"
        )
    write_index(to, shown, sorted(pages[header] for header in headers if (to / f"{pages[header]}.rst").exists()))


def write_index(to: Path, shown: dict[str, list[str]], pages: list[str]) -> None:
    lines = [
        "C++ reference",
        "=============",
        "",
        "The public headers, each in the order in which it is written. :ref:`All names <genindex>` in one list.",
        "",
    ]
    for title, root in (("gpurx", ROOTS[0]), ("gpurx::ingest", ROOTS[1])):
        lines += [title, "-" * len(title), "", ".. list-table::", "   :widths: 35 65", "", *shown[root], ""]
    lines += [".. toctree::", "   :hidden:", "", *(f"   {one}" for one in pages), ""]
    (to / "index.rst").write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
