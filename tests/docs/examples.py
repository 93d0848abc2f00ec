# SPDX-License-Identifier: Apache-2.0
"""Every example of the guides is one that a compiler or a test has seen: examples.py

C++ is compiled as it is printed, each example by itself: with the headers that it names and no other, those of comments with
their header. One that is a part of a program says so, in a line "// In a coroutine, given rx, peer" or "// In a function, given …":
it gets what that names, from GIVEN, and nothing else. Python is, with that of docstrings; the names and keywords of gpurx
that it uses are looked up in the package's source. Commands of samples/README.md are run by tests/samples/readme_test.py;
those of other pages are read by a shell, and their options looked up in the manual pages, which tests/tools/documented.py
compares with the programs. CMake is built in tests/package. YAML is Prometheus', which reads it in tests/metrics; plain text is no example. A fenced block that says no language, or another
one, is a failure."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "framework/docs/site"))
import python_reference  # noqa: E402

PACKAGE = REPO / "framework/python/gpurx"
NO_EXAMPLES = {"cmake", "yaml", "text"}
# Others' programs, whose options are theirs. A line that begins with a space goes on with the one above.
OF_THE_SYSTEM = {"systemctl", "journalctl", "ethtool", "ip", "ynl", "cat"}
RUN_ELSEWHERE = {"samples/README.md"}


@dataclass
class Block:
    path: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"


def blocks() -> Iterator[Block]:
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=REPO, check=True, stdout=subprocess.PIPE, text=True).stdout
    for path in listed.split():
        language, begin, lines = "", 0, []
        for number, line in enumerate((REPO / path).read_text(encoding="utf-8").splitlines(), 1):
            fence = re.match(r"^```(?!`)(.*)$", line)
            if fence and begin:
                if not language.startswith("{"):  # what the site itself is told
                    yield Block(path, begin, language, "\n".join(lines) + "\n")
                begin = 0
            elif fence:
                language, begin, lines = fence.group(1).strip(), number, []
            elif begin:
                lines.append(line)


def between_code_marks(text: str) -> Iterator[tuple[int, str, str]]:
    """What comments of Doxygen show between @code and @endcode: after which line, in which language, and the text."""
    for found in re.finditer(r"@code(.*)\n((?:.*\n)*?)(?= */// @endcode$)", text, re.M):
        lines = re.sub(r"^ */// ?", "", found.group(2), flags=re.M)
        yield text.count("\n", 0, found.start()), found.group(1).strip("{.}"), lines


def in_headers() -> Iterator[Block]:
    """The examples of public headers, each with an include of its header in the place of @code."""
    for root in ("framework/include", "framework/ingest/include"):
        for path in sorted((REPO / root).rglob("*.hpp")):
            own = f"#include <{path.relative_to(REPO / root)}>\n"
            for line, language, lines in between_code_marks(path.read_text(encoding="utf-8")):
                yield Block(str(path.relative_to(REPO)), line, language, own + lines)


def in_docstrings() -> Iterator[Block]:
    for path in [*sorted(PACKAGE.glob("*.py")), PACKAGE / "_native.pyi"]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                for found in python_reference.PROGRAM.findall(python_reference.docstring(node)):
                    program = textwrap.dedent(found)
                    yield Block(
                        str(path.relative_to(REPO)),
                        getattr(node, "lineno", 1),
                        python_reference.language_of(program),
                        program,
                    )


def indented() -> Iterator[Block]:
    """Commands of ours that are not fenced."""
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=REPO, check=True, stdout=subprocess.PIPE, text=True).stdout
    for path in listed.split():
        for number, line in enumerate((REPO / path).read_text(encoding="utf-8").splitlines(), 1):
            if re.match(r"    (gpurx-\w+|gpurxd|\./run) ", line):
                yield Block(path, number, "sh", line.strip() + "\n")


# ---- C++ ----

PART = re.compile(r"^// In a (coroutine|function)(?:, given ([\w, ]+))?$", re.M)
INCLUDE = re.compile(r"^#include .*\n", re.M)


@dataclass
class Given:
    header: str  # that of its type
    parameter: str = ""  # of the function that the example is in
    declaration: str = ""  # or before it


GIVEN = {
    "acceptor": Given("gpurx/acceptor.hpp", "gpurx::acceptor& acceptor"),
    "body": Given("gpurx/views.hpp", "gpurx::memory_span body"),
    "compute": Given("gpurx/views.hpp", "gpurx::cuda_stream_ref compute"),
    "consume": Given(
        "gpurx/rx_buffer.hpp",
        declaration="void consume(gpurx::rx_buffer loan); void consume(gpurx::memory_span tensor, gpurx::cuda_stream_ref stream);",
    ),
    "executor": Given("boost/asio/any_io_executor.hpp", "boost::asio::any_io_executor executor"),
    "header": Given(
        "cstdint", "frame_header header", "struct frame_header { std::uint64_t kind; std::uint64_t bytes; };"
    ),
    "ingest": Given("gpurx/receiver.hpp", declaration="boost::asio::awaitable<void> ingest(gpurx::receiver flow);"),
    "log": Given("string", declaration="void log(std::string const& text);"),
    "next_executor": Given(
        "boost/asio/any_io_executor.hpp", declaration="boost::asio::any_io_executor next_executor();"
    ),
    "nic": Given("gpurx/session.hpp", "gpurx::rx_session& nic"),
    "peer": Given("boost/asio/ip/tcp.hpp", "boost::asio::ip::tcp::endpoint peer"),
    "pool": Given("boost/asio/thread_pool.hpp", "boost::asio::thread_pool& pool"),
    "rx": Given("gpurx/receiver.hpp", "gpurx::receiver& rx"),
    "scatter": Given(
        "gpurx/rx_buffer.hpp",
        declaration="void scatter(std::span<gpurx::fragment const> fragments, gpurx::cuda_stream_ref stream);",
    ),
    "session": Given("gpurx/session.hpp", "gpurx::rx_session& session"),
    "stream": Given("gpurx/views.hpp", "gpurx::cuda_stream_ref stream"),
    "tensor": Given("gpurx/views.hpp", "gpurx::memory_span tensor"),
}


def translation_unit(block: Block) -> str:
    """The example with what its mark names, or as it is."""
    mark = PART.search(block.text)
    if mark is None:
        return f'#line {block.line + 1} "{block.path}"\n{block.text}'
    kind, names = mark.groups()
    given = [GIVEN[name] for name in names.split(", ")] if names else []
    includes = INCLUDE.findall(block.text)
    # Lines stay where they are.
    body = INCLUDE.sub("\n", block.text)
    types = {f"#include <{one.header}>\n" for one in given}
    if kind == "coroutine":
        types.add("#include <boost/asio/awaitable.hpp>\n")
    result, end = ("boost::asio::awaitable<void>", "co_return;") if kind == "coroutine" else ("void", "")
    parameters = ", ".join(one.parameter for one in given if one.parameter)
    return (
        "".join([*includes, *sorted(types), *(f"{one.declaration}\n" for one in given if one.declaration)])
        + f"{result} example({parameters});\n{result} example({parameters})\n{{\n{{\n"
        + f'#line {block.line + 1} "{block.path}"\n{body}}}\n{end}\n}}\n'
    )


def compiler_says(block: Block) -> str:
    mark = PART.search(block.text)
    unknown = [name for name in (mark.group(2) or "").split(", ") if name and name not in GIVEN] if mark else []
    if unknown:
        return f"{block}: GIVEN has no {', '.join(unknown)}"
    with tempfile.NamedTemporaryFile("w", suffix=".cpp", encoding="utf-8") as file:
        file.write(translation_unit(block))
        file.flush()
        done = subprocess.run(
            [
                "g++",
                "-std=c++20",
                "-fsyntax-only",
                "-Wall",
                "-Wextra",
                "-Wno-unused",
                "-Werror",
                f"-I{REPO}/framework/include",
                f"-I{REPO}/framework/ingest/include",
                file.name,
            ],
            stderr=subprocess.PIPE,
            text=True,
        )
    return done.stderr if done.returncode else ""


def compiled(found: list[Block]) -> list[str]:
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        return [said for said in pool.map(compiler_says, found) if said]


# ---- Python ----


class Package:
    """What the package's source says that there is."""

    def __init__(self) -> None:
        self._modules = {
            path.stem: ast.parse(path.read_text(encoding="utf-8"))
            for path in [*PACKAGE.glob("*.py"), PACKAGE / "_native.pyi"]
        }

    def find(self, names: list[str]) -> ast.AST | None:
        """What gpurx.A.B is."""
        if len(names) > 1 and names[0] in self._modules:
            return self._in(names[0], names[1])
        module = next(
            (
                one.module
                for one in self._modules["__init__"].body
                if isinstance(one, ast.ImportFrom) and names[0] in [alias.name for alias in one.names]
            ),
            None,
        )
        if module in self._modules:
            return self._in(module, names[0])
        return self._modules.get(names[0])

    def _in(self, module: str, name: str) -> ast.AST | None:
        return next((one for one in self._modules[module].body if getattr(one, "name", "") == name), None)

    def keywords(self, node: ast.AST) -> set[str]:
        """What a function, or a class when it is made, can be given by name."""
        if isinstance(node, ast.ClassDef):
            for one in node.body:
                if getattr(one, "name", "") in ("__init__", "__new__"):
                    return self.keywords(one)
            bases = [self._somewhere(ast.unparse(base)) for base in node.bases]
            return set().union(*(self.keywords(base) for base in bases if base))
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return set()
        known = {one.arg for one in [*node.args.args, *node.args.kwonlyargs]}
        if node.args.kwarg:
            options = self._in("_options", "Options")
            known |= {one.target.id for one in options.body if isinstance(one, ast.AnnAssign)}
            if ast.unparse(node.args.kwarg.annotation) == "Any":  # those of safe_open()
                known |= self.keywords(self._in("_open", "safe_open"))
        return known

    def _somewhere(self, name: str) -> ast.AST | None:
        return next((found for module in self._modules if (found := self._in(module, name))), None)


def path_of(node: ast.AST) -> list[str]:
    """["torch", "load_file"] of gpurx.torch.load_file."""
    if isinstance(node, ast.Attribute):
        before = path_of(node.value)
        return [*before, node.attr] if before else []
    return ["gpurx"] if isinstance(node, ast.Name) and node.id == "gpurx" else []


def wrong_in_python(block: Block, package: Package) -> list[str]:
    try:
        # Awaiting is what a program does; the examples leave out where.
        tree = compile(block.text, str(block), "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        compile(tree, str(block), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    except SyntaxError as error:
        return [f"{block}: {error}"]
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (names := path_of(node)[1:]) and not package.find(names):
            found.append(f"{block}: there is no gpurx.{'.'.join(names)}")
        if isinstance(node, ast.Call) and (names := path_of(node.func)[1:]) and (called := package.find(names)):
            known = package.keywords(called)
            found += [
                f"{block}: gpurx.{'.'.join(names)} knows no {one.arg}"
                for one in node.keywords
                if one.arg and one.arg not in known
            ]
    return found


# ---- commands ----


def manuals() -> dict[str, str]:
    return {
        path.stem: path.read_text(encoding="utf-8").replace("\\-", "-")
        for where in ("framework/tools", "samples")
        for path in (REPO / where).rglob("*.[1-8]")
    }


def wrong_for_a_shell(block: Block) -> list[str]:
    done = subprocess.run(["bash", "-n"], input=block.text, stderr=subprocess.PIPE, text=True)
    return [f"{block}: {done.stderr.strip()}"] if done.returncode else []


def wrong_in_commands(block: Block, pages: dict[str, str]) -> list[str]:
    found: list[str] = []
    commands = re.findall(r"^    (\w[\w -]*(?: \| \w+)*)\) ", (REPO / "run").read_text(encoding="utf-8"), re.M)
    known = {word for one in commands for word in one.split(" | ")}
    for line in block.text.splitlines():
        words = re.sub(r"\s#.*", "", line).replace("'", " ").split()
        if not words:
            continue
        if words[0] in pages:
            found += [
                f"{block}: the manual page of {words[0]} has no {word}"
                for word in words[1:]
                if word.startswith("--") and not re.search(rf"{re.escape(word)}(?![\w-])", pages[words[0]])
            ]
        elif words[0] == "./run":
            found += [f"{block}: ./run knows no {words[1]}"] if words[1] not in known else []
        elif words[0] not in OF_THE_SYSTEM and not line.startswith(" "):
            found.append(f"{block}: {words[0]}: no test knows this command")
    return found


def main() -> int:
    every = list(blocks())
    package, pages = Package(), manuals()
    failed = 0

    def tell(what: str, count: int, complaints: list[str], least: int) -> None:
        nonlocal failed
        if count < least:
            complaints = [*complaints, f"only {count}: the pages are not read as they should be"]
        print("\n".join(complaints) + "\n" * bool(complaints), end="")
        print(f"{'not ok' if complaints else 'ok'} - {what}: {count} examples", flush=True)
        failed += bool(complaints)

    commented = list(in_headers())
    cpp = [one for one in [*every, *commented] if one.language == "cpp"]
    tell("C++ compiles", len(cpp), compiled(cpp), 12)
    documented = list(in_docstrings())
    python = [one for one in [*every, *documented] if one.language == "python"]
    tell(
        "Python compiles, and gpurx has what it uses",
        len(python),
        [line for one in python for line in wrong_in_python(one, package)],
        20,
    )
    fenced = [one for one in every if one.language == "sh" and one.path not in RUN_ELSEWHERE]
    commands = [*fenced, *indented()]
    tell(
        "commands have the options that they are given",
        len(commands),
        [line for one in fenced for line in wrong_for_a_shell(one)]
        + [line for one in commands for line in wrong_in_commands(one, pages)],
        20,
    )
    others = [one for one in [*every, *commented] if one.language not in {"cpp", "python", "sh"} | NO_EXAMPLES]
    tell(
        "every fenced block says what it is",
        len(every),
        [
            f"{one}: fenced as '{one.language}': cpp, python or sh if it is an example, text if it is none"
            for one in others
        ],
        30,
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
