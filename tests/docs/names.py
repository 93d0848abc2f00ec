# SPDX-License-Identifier: Apache-2.0
"""Every public name is in the site's index: names.py SITE

What is public of C++ says the compiler, of all headers; of Python the package's source and the extension's stub. None
of what made the pages is asked."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]
ROOTS = (REPO / "framework/include", REPO / "framework/ingest/include")
PACKAGE = REPO / "framework/python/gpurx"

TEMPLATES = {"ClassTemplateDecl", "FunctionTemplateDecl", "TypeAliasTemplateDecl"}
NAMED = {
    "FunctionDecl",
    "CXXMethodDecl",
    "CXXConstructorDecl",
    "FieldDecl",
    "VarDecl",
    "TypedefDecl",
    "TypeAliasDecl",
    "EnumConstantDecl",
    "ConceptDecl",
}
Node = dict[str, Any]


def dumped() -> Iterator[Node]:
    """What the compiler has read of gpurx."""
    includes = "".join(
        f"#include <{path.relative_to(root)}>\n" for root in ROOTS for path in sorted(root.rglob("*.hpp"))
    )
    compiler = next(
        (one for one in ("clang++-16", "clang++") if not subprocess.call(["which", one], stdout=subprocess.DEVNULL))
    )
    text = subprocess.run(
        [
            compiler,
            "-std=c++20",
            "-fsyntax-only",
            *(f"-I{root}" for root in ROOTS),
            "-Xclang",
            "-ast-dump-filter=gpurx",
            "-Xclang",
            "-ast-dump=json",
            "-x",
            "c++",
            "-",
        ],
        input=includes,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    decoder, at = json.JSONDecoder(), 0
    while (at := text.find("{", at)) >= 0:
        node, at = decoder.raw_decode(text, at)
        yield node


# Bases of public classes, whose members are documented with the class that has them.
IN_DETAIL = {
    name
    for root in ROOTS
    for path in root.rglob("detail/*.hpp")
    for name in re.findall(r"^class (\w+)", path.read_text(encoding="utf-8"), re.M)
}
bases: dict[str, Node] = {}


def public(node: Node, scope: str) -> Iterator[str]:
    """The names that a namespace, a class or an enumeration has for users; operators and destructors nobody looks up."""
    for base in node.get("bases", []):
        if found := bases.get(base["type"]["qualType"]):
            yield from public({**found, "inner": accessible(found)}, scope)
    access = "private" if node.get("tagUsed") == "class" else "public"
    for one in node.get("inner", []):
        kind, name = one["kind"], one.get("name", "")
        if kind == "AccessSpecDecl":
            access = one["access"]
        if access == "private" or one.get("isImplicit") or not re.match(r"[a-z_]\w*$", name, re.I):
            continue
        full = f"{scope}::{name}"
        if kind == "NamespaceDecl" and name != "detail":
            yield from public(one, full)
        elif kind in TEMPLATES:
            yield from public({"inner": one["inner"], "tagUsed": "struct"}, scope)
        elif kind == "CXXRecordDecl" and name in IN_DETAIL:
            if one.get("completeDefinition"):
                bases[name] = one
        elif kind == "CXXRecordDecl" and one.get("completeDefinition"):
            yield full
            yield from public(one, full)
        elif kind == "EnumDecl":
            yield full
            yield from public(one, full)
        elif kind in NAMED and not one.get("parentDeclContextId"):
            yield full


def accessible(node: Node) -> list[Node]:
    """What those who derive from a class pass on: neither protected members nor constructors."""
    access, found = "private", []
    for one in node["inner"]:
        access = one["access"] if one["kind"] == "AccessSpecDecl" else access
        if access == "public" and one["kind"] != "CXXConstructorDecl":
            found.append(one)
    return found


def cpp_names() -> set[str]:
    return {
        name
        for node in dumped()
        if node["kind"] == "NamespaceDecl" and node.get("name") == "gpurx"
        for name in public(node, "gpurx")
    }


def defined(body: list[ast.stmt], scope: str) -> Iterator[str]:
    """Names in the order of the source; those with an underscore are nobody's but the package's."""
    for one in body:
        names: list[str] = []
        if isinstance(one, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            names = [one.name]
        elif isinstance(one, ast.AnnAssign):
            names = [ast.unparse(one.target)]
        elif isinstance(one, ast.Assign):
            names = [ast.unparse(target) for target in one.targets]
        for name in names:
            if name.startswith("_"):
                continue
            yield f"{scope}.{name}"
            if isinstance(one, ast.ClassDef):
                yield from defined(one.body, f"{scope}.{name}")


def python_names() -> set[str]:
    source = {
        path.stem: ast.parse(path.read_text(encoding="utf-8")).body
        for path in [*PACKAGE.glob("*.py"), PACKAGE / "_native.pyi"]
    }
    found = {
        name
        for module, body in source.items()
        if not module.startswith("_")
        for name in defined([one for one in body if hasattr(one, "name")], f"gpurx.{module}")
    }
    exported = next(
        ast.literal_eval(one.value)
        for one in source["__init__"]
        if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == "__all__"
    )
    places = {
        alias.name: one.module for one in source["__init__"] if isinstance(one, ast.ImportFrom) for alias in one.names
    }
    for name in exported:
        body = [one for one in source[places[name]] if getattr(one, "name", "") == name]
        found |= set(defined(body, "gpurx"))
    # What the stub has besides is on a page of its own.
    rest = [one for one in source["_native"] if getattr(one, "name", "") not in exported]
    return found | set(defined(rest, "gpurx._native"))


def inventory(site: Path) -> dict[str, list[str]]:
    """Where the site has a name."""
    found: dict[str, list[str]] = {}
    text = zlib.decompress((site / "objects.inv").read_bytes().split(b"\n", 4)[4]).decode()
    for line in text.splitlines():
        if match := re.match(r"(\S+) (?:cpp|py):\w+ -?\d+ (\S+) ", line):
            name, where = match.groups()
            found.setdefault(name, []).append(where.replace("$", name))
    return found


def main() -> int:
    site = Path(sys.argv[1])
    known, index = inventory(site), (site / "genindex.html").read_text(encoding="utf-8")
    pages: dict[str, str] = {}
    failed = 0
    for language, names, least in (("C++", cpp_names(), 400), ("Python", python_names(), 150)):
        complaints = []
        for name in sorted(names):
            places = known.get(name, [])
            if not places:
                complaints.append(f"{name}: not on the site")
            for place in places[:1]:
                page, _, anchor = place.partition("#")
                text = pages.setdefault(page, (site / page).read_text(encoding="utf-8"))
                if f'id="{anchor}"' not in text:
                    complaints.append(f"{name}: not in {page}")
            if places and not any(f'"{place}"' in index for place in places):
                complaints.append(f"{name}: not in the index")
        if len(names) < least:
            complaints.append(f"only {len(names)} names were found: the sources are not read as they should be")
        print("\n".join(complaints) + "\n" * bool(complaints), end="")
        print(
            f"{'not ok' if complaints else 'ok'} - all {len(names)} public names of {language} are in the index",
            flush=True,
        )
        failed += bool(complaints)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
