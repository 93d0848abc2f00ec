# SPDX-License-Identifier: Apache-2.0
"""The package's types: consistent, as the stubs say, and enough for a program that uses it. Its modules: in layers."""

from __future__ import annotations

import ast
import inspect
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import gpurx

PROGRAM = """
import numpy as np
import gpurx

for batch in gpurx.TensorStream("127.0.0.1:9000", memory="host", batch_size=64):
    x = np.from_dlpack(batch.x)
    y: gpurx.Tensor = batch["y"]
    rows: int = batch.rows
weights: dict[str, gpurx.Tensor] = gpurx.load_safetensors("http://127.0.0.1/model.safetensors", device="cuda:0")


async def consume(stream: gpurx.TensorStream) -> None:
    async for batch in stream:
        print(batch.x.shape[0])
"""


# The type of a tensor follows from the framework.
BY_FRAMEWORK = """
from typing import Any

import jax
import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import assert_type

import gpurx
import gpurx.jax
import gpurx.numpy
import gpurx.torch

with gpurx.safe_open("model", device=0) as default:
    assert_type(default.get_tensor("a"), torch.Tensor)
with gpurx.safe_open("model", "pt", torch.device("cuda"), flows=8, memory_limit=1 << 30, progress=False) as of_torch:
    assert_type(of_torch.get_tensor("a"), torch.Tensor)
    assert_type(of_torch.get_slice("a")[:3], torch.Tensor)
    assert_type(of_torch.get_tensors(), dict[str, torch.Tensor])
    for name, one in of_torch:
        print(name)
        assert_type(one, torch.Tensor)
with gpurx.safe_open("model", framework="np", device=np.int64(0)) as of_numpy:
    assert_type(of_numpy.get_tensor("a"), NDArray[Any])
assert_type(gpurx.safe_open("model", "flax").get_tensor("a"), jax.Array)
assert_type(gpurx.safe_open("model", "gpurx", None).get_tensor("a"), gpurx.Tensor)


def chosen(framework: str) -> Any:
    return gpurx.safe_open("model", framework).get_tensor("a")


async def load() -> None:
    async with gpurx.async_safe_open("model", "np") as file:
        assert_type(await file.get_tensor("a"), NDArray[Any])
        assert_type(await file.get_slice("a")[0], NDArray[Any])
        assert_type(await file.get_tensors(), dict[str, NDArray[Any]])
        async for name, one in file:
            print(name)
            assert_type(one, NDArray[Any])
    opened = await gpurx.async_safe_open("model")
    assert_type(await opened.get_tensor("a"), torch.Tensor)


assert_type(gpurx.torch.load_file("model"), dict[str, torch.Tensor])
assert_type(gpurx.numpy.load_file("model"), dict[str, NDArray[Any]])
assert_type(gpurx.jax.load_file("model"), dict[str, jax.Array])
gpurx.safe_open("model", device=1.5)  # type: ignore[call-overload]
gpurx.safe_open("model", floes=4)  # type: ignore[call-overload]
"""

# Both are large, and installed here or there.
STUBS = {
    "torch/__init__.pyi": "class Tensor: ...\nclass device:\n    def __init__(self, name: str) -> None: ...\n",
    "torch/utils/__init__.pyi": "",
    "torch/utils/data.pyi": "class IterableDataset: ...\ndef get_worker_info() -> object: ...\n",
    "jax/__init__.pyi": "class Array: ...\n",
    "jax/numpy.pyi": "",
}


def mypy(*arguments: str, directory: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "mypy", *arguments], capture_output=True, text=True, cwd=directory)
    assert done.returncode == 0, done.stdout + done.stderr


# Large, and installed here or there: what is said about them would not be the same everywhere.
OTHERS = """
[mypy]
strict = True
ignore_missing_imports = True
[mypy-gpurx.*]
ignore_missing_imports = False
[mypy-torch.*,jax.*,cupy.*]
follow_imports = skip
follow_imports_for_stubs = True
"""


def test_the_package_itself(tmp_path: Path) -> None:
    (tmp_path / "mypy.ini").write_text(OTHERS)
    config = f"--config-file={tmp_path / 'mypy.ini'}"
    mypy(config, "-p", "gpurx", directory=Path(gpurx.__file__).parents[1])


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    for name, text in {"program.py": BY_FRAMEWORK, "other.py": PROGRAM, **STUBS}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_programs_that_use_it(programs: Path) -> None:
    mypy("--strict", "program.py", "other.py", directory=programs)


def test_pyright_sees_the_same(programs: Path) -> None:
    pyright = shutil.which("basedpyright") or shutil.which("pyright")
    if pyright is None:
        pytest.skip("no pyright is on the PATH: pip install basedpyright brings one (310 MB)")
    config = {"typeCheckingMode": "strict", "reportUnnecessaryTypeIgnoreComment": "error"}
    (programs / "pyrightconfig.json").write_text(json.dumps(config))
    command = [pyright, "--pythonpath", sys.executable, "program.py", "other.py"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=programs)
    assert done.returncode == 0, done.stdout + done.stderr


def names_in(body: list[ast.stmt]) -> set[str]:
    """What a stub declares, its private parts aside."""
    names = set()
    for node in body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            names.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
        elif isinstance(node, ast.Assign):  # enumerators
            names.update(target.id for target in node.targets if isinstance(target, ast.Name))
    return {name for name in names if not name.startswith("_")}


def public(what: object) -> set[str]:
    return {name for name in vars(what) if not name.startswith("_")}


def test_the_stub_has_all_that_is_there_and_nothing_else() -> None:
    stub = ast.parse((Path(gpurx.__file__).parent / "_native.pyi").read_text()).body
    assert names_in(stub) == public(gpurx._native)
    for node in stub:
        if isinstance(node, ast.ClassDef):
            assert names_in(node.body) == public(getattr(gpurx._native, node.name)), node.name


def imported_by(path: Path, modules: set[str]) -> set[str]:
    """The package's modules that one imports, wherever in it. What is of none comes from the package itself."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            names = [node.module] if node.module else [alias.name for alias in node.names]
            found.update(name if name in modules else "__init__" for name in names)
    return found


def test_no_module_imports_one_that_imports_it() -> None:
    # A build directory keeps links to modules that have gone.
    files = {path.stem: path for path in Path(gpurx.__file__).parent.glob("*.py") if path.exists()}
    left = {name: imported_by(path, {*files, "_native"}) for name, path in files.items()}
    while leaves := [name for name, imports in left.items() if not imports & left.keys()]:
        for name in leaves:
            del left[name]
    assert not left, "a circle, and the modules above it"


def documented(node: ast.Module | ast.ClassDef, of: object) -> Iterator[tuple[str, str | None, str]]:
    """Names of the stub that have a docstring, that of the extension, and that of the stub."""
    for each in node.body:
        if isinstance(each, (ast.ClassDef, ast.FunctionDef)):
            found = inspect.getattr_static(of, each.name)
            if stub := ast.get_docstring(each):
                yield each.name, found.__doc__, stub
            if isinstance(each, ast.ClassDef):
                yield from documented(each, found)


def test_help_has_the_text_of_the_stub() -> None:
    stub = ast.parse((Path(gpurx.__file__).parent / "_native.pyi").read_text(encoding="utf-8"))
    found = list(documented(stub, gpurx._native))
    assert len(found) > 20
    # nanobind puts a signature in front.
    assert [name for name, text, stub in found if not " ".join((text or "").split()).endswith(" ".join(stub.split()))] == []
