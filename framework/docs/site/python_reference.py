#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A page for each module of the Python package, from its source and the extension's stub:

    python_reference.py TO_DIRECTORY

Nothing is imported: the package need not be built, nor what its plug-ins are for be there.
"""

from __future__ import annotations

import ast
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "python/gpurx"
STUB = "_native.pyi"
# What is indented in a docstring is a program, or a command.
PROGRAM = re.compile(r"(?:(?<=\n\n)|\A)((?:    .*\n?|\n(?=    ))+)")
# What is no word of English is a name; what is said to be code already stays.
NAME = re.compile(r"(`[^`]*`|https?://\S+)|(?<![\w.])((?:\w+\.)*(?:\w+\(\)|[A-Za-z]\w*_\w+))(?![\w(.])")
Function = (ast.FunctionDef, ast.AsyncFunctionDef)


def parsed(name: str) -> ast.Module:
    return ast.parse((PACKAGE / name).read_text(encoding="utf-8"))


def is_public(name: str) -> bool:
    return not name.startswith("_")


def decorators(node: ast.AST) -> set[str]:
    return {ast.unparse(one).rpartition(".")[2] for one in getattr(node, "decorator_list", [])}


def exported() -> dict[str, ast.stmt]:
    """What `import gpurx` gives, by name, from the files where it is made."""
    init, found = parsed("__init__.py"), {}
    names = next(
        ast.literal_eval(one.value)
        for one in init.body
        if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == "__all__"
    )
    for one in init.body:
        if isinstance(one, ast.ImportFrom) and one.level == 1:
            stub = one.module == "_native"
            made = {
                each.name: each for each in parsed(STUB if stub else f"{one.module}.py").body if hasattr(each, "name")
            }
            found.update({alias.name: made[alias.name] for alias in one.names if alias.name in names})
    if missing := set(names) - set(found):
        raise SystemExit(f"python_reference.py: nobody makes {', '.join(sorted(missing))} of gpurx")
    return dict(sorted(found.items(), key=lambda item: item[0].lower()))


def signature(node: ast.AST, is_method: bool) -> str:
    arguments = node.args
    if is_method and "staticmethod" not in decorators(node):
        first = arguments.posonlyargs or arguments.args
        first.pop(0)
    returns = f" -> {ast.unparse(node.returns)}" if node.returns and node.name != "__init__" else ""
    return f"({ast.unparse(arguments)}){returns}"


def directive(depth: int, kind: str, head: str, options: list[str], body: list[str]) -> list[str]:
    fence = "`" * (7 - depth)
    return [f"{fence}{{py:{kind}}} {head}", *options, "", *body, fence, ""]


def docstring(node: ast.AST) -> str:
    """As it is meant: its first line stands behind the quotes, and says nothing of how far the others are indented."""
    text = ast.get_docstring(node, clean=False) or ""
    return textwrap.dedent(" " * (node.body[0].col_offset if text else 0) + text).strip("\n")


def language_of(program: str) -> str:
    if re.match(r"\w+:\n", program):
        return "yaml"
    return "sh" if re.match(r"(python3?|pip) ", program) else "python"


def fenced(program: str) -> str:
    return f"~~~{language_of(program)}\n{program}\n~~~\n"


def said(node: ast.AST) -> list[str]:
    """What it says of itself, as Markdown."""
    parts = PROGRAM.split(docstring(node))
    # Every other one is a program.
    parts[::2] = [NAME.sub(lambda found: found.group(1) or f"`{found.group(2)}`", part) for part in parts[::2]]
    parts[1::2] = [fenced(textwrap.dedent(part).rstrip()) for part in parts[1::2]]
    text = "".join(parts)
    return [*text.splitlines(), ""] if text else []


def rendered(name: str, node: ast.stmt, depth: int, in_class: bool = False) -> list[str]:
    known = decorators(node)
    if isinstance(node, ast.ClassDef):
        made = [one for one in node.body if isinstance(one, Function) and one.name == "__init__"]
        makes = made[-1] if made else None  # overloads are for type checkers
        bases = [ast.unparse(one).lstrip("_") for one in node.bases if not is_native(one)]
        is_error = any(one.endswith("Error") for one in bases)
        body = [*([f"Bases: `{'`, `'.join(bases)}`.", ""] if bases else []), *said(node)]
        body += [line for one in members(node) for line in rendered(name_of(one), one, depth + 1, True)]
        head = name + (signature(makes, True) if makes and not is_error else "")
        return directive(depth, "exception" if is_error else "class", head, [], body)
    if isinstance(node, Function):
        if "property" in known:
            options = [f':type: "{ast.unparse(node.returns)}"'] if node.returns else []
            return directive(depth, "property", name, options, said(node))
        flags = ["async"] * isinstance(node, ast.AsyncFunctionDef) + sorted(known & {"classmethod", "staticmethod"})
        options = [f":{one}:" for one in flags]
        return directive(
            depth, "method" if in_class else "function", name + signature(node, in_class), options, said(node)
        )
    options = [f':type: "{ast.unparse(node.annotation)}"'] if isinstance(node, ast.AnnAssign) else []
    return directive(depth, "attribute" if in_class else "data", name, options, [])


def name_of(node: ast.stmt) -> str:
    if hasattr(node, "name"):
        return node.name
    return ast.unparse(node.target if isinstance(node, ast.AnnAssign) else node.targets[0])


def is_native(base: ast.expr) -> bool:
    """Whether it is a class of the extension, whose members the stub has."""
    return ast.unparse(base).startswith("_native.")


def members(node: ast.ClassDef | ast.Module) -> Iterator[ast.stmt]:
    for base in getattr(node, "bases", []):
        if is_native(base):
            name = ast.unparse(base).rpartition(".")[2]
            yield from members(next(one for one in parsed(STUB).body if getattr(one, "name", "") == name))
    for one in node.body:
        if isinstance(one, (ast.ClassDef, *Function, ast.Assign, ast.AnnAssign)) and is_public(name_of(one)):
            yield one


def page(title: str, module: str, intro: list[str], entries: dict[str, ast.stmt]) -> str:
    lines = [f"# Module {title}", "", f"```{{py:module}} {module}", "```", "", *intro]
    for name, node in entries.items():
        lines += rendered(name, node, 1)
    return "\n".join(lines)


def main() -> None:
    to = Path(sys.argv[1])
    to.mkdir(parents=True, exist_ok=True)
    pages = {"gpurx": page("gpurx", "gpurx", said(parsed("__init__.py")), exported())}
    for path in sorted(PACKAGE.glob("[a-z]*.py")):
        tree = parsed(path.name)
        entries = {name_of(one): one for one in members(tree) if hasattr(one, "name")}
        pages[f"gpurx.{path.stem}"] = page(f"gpurx.{path.stem}", f"gpurx.{path.stem}", said(tree), entries)
    rest = {name_of(one): one for one in members(parsed(STUB)) if name_of(one) not in exported()}
    intro = [
        "The extension, which the modules above are made on. It is no interface: names of it come and go without notice.",
        "",
    ]
    pages["gpurx._native"] = page("gpurx._native", "gpurx._native", intro, rest)
    for name, text in pages.items():
        (to / f"{name}.md").write_text(text, encoding="utf-8")
    listed = "\n".join(pages)
    (to / "index.md").write_text(
        "# Python reference\n\nOf each module what it says itself. [How it is used](../../guides/python.md) is a guide.\n\n"
        f"```{{toctree}}\n:maxdepth: 1\n\n{listed}\n```\n",
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
