#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What is in Debian packages, looked at without installing them: contents.py DIRECTORY [FORBIDDEN...]

FORBIDDEN are strings that no file may have in it, such as paths of the machine that made them. Prints TAP."""

from __future__ import annotations

import gzip
import io
import re
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from pathlib import Path

PACKAGES = ["devmemsim-dkms", "gpurx-tools", "gpurxd", "libgpurx-dev", r"libgpurx-ingest\d+\.\d+", r"libgpurx\d+\.\d+", "python3-gpurx"]

failed = False


def check(name: str, wrong: list[str]) -> None:
    global failed
    failed = failed or bool(wrong)
    print(f"{'not ok' if wrong else 'ok'} - {name}" + "".join(f"\n# {line}" for line in wrong[:8]), flush=True)


class Package:
    def __init__(self, path: Path) -> None:
        self.name = path.name.split("_")[0]
        tar = subprocess.run(["dpkg-deb", "--fsys-tarfile", path], check=True, stdout=subprocess.PIPE).stdout
        with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
            self.members = archive.getmembers()
            self.data = {member.name: archive.extractfile(member).read() for member in self.members if member.isfile()}
        self.control = subprocess.run(["dpkg-deb", "-f", path], check=True, stdout=subprocess.PIPE, text=True).stdout

    def field(self, name: str) -> str:
        found = re.search(rf"^{name}: (.*)$", self.control, re.MULTILINE)
        return found[1] if found else ""

    def elf(self) -> dict[str, bytes]:
        return {name: data for name, data in self.data.items() if data.startswith(b"\x7fELF")}


def readelf(data: bytes, *options: str) -> str:
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        return subprocess.run(["readelf", "-W", *options, file.name], check=True, stdout=subprocess.PIPE, text=True).stdout


def odd_members(package: Package) -> list[str]:
    """Owners, modes and places as Debian has them."""
    found = []
    for member in package.members:
        program = "bin/" in member.name or member.name.endswith(".py") and package.data.get(member.name, b"").startswith(b"#!")
        mode = 0o755 if member.isdir() or program else 0o644
        if member.uid or member.gid:
            found.append(f"{member.name}: of {member.uid}:{member.gid}")
        if not member.issym() and member.mode & 0o7777 != mode:
            found.append(f"{member.name}: mode {member.mode:o}, not {mode:o}")
        if member.name.strip("./") and not re.match(r"\./usr(/|$)", member.name):
            found.append(f"{member.name}: outside /usr")
        if re.search(r"/usr/local|__pycache__|/tests(/|$)", member.name):
            found.append(f"{member.name}: does not belong there")
    return found


def odd_programs(package: Package) -> list[str]:
    found = []
    for name, data in package.elf().items():
        dynamic = readelf(data, "--dynamic")
        if re.search(r"\((RPATH|RUNPATH)\)", dynamic):
            found.append(f"{name}: has a path of its own for libraries")
        if "BIND_NOW" not in dynamic and "NOW" not in dynamic:
            found.append(f"{name}: is linked lazily")
        if re.search(r"\.(symtab|debug_info)\b", readelf(data, "--sections")):
            found.append(f"{name}: is not stripped")
    return found


def odd_documents(package: Package) -> list[str]:
    own = f"./usr/share/doc/{package.name}"
    found = [f"{own}/{name} is missing" for name in ("copyright", "changelog.gz") if f"{own}/{name}" not in package.data]
    programs = [name.rpartition("/")[2] for name in package.data if "bin/" in name]
    for program in programs:
        pages = [name for name in package.data if re.match(rf"\./usr/share/man/man\d/{re.escape(program)}\.\d\.gz$", name)]
        if not pages or b".TH" not in gzip.decompress(package.data[pages[0]]):
            found.append(f"{program} has no manual page")
        if f"./usr/share/bash-completion/completions/{program}" not in package.data:
            found.append(f"{program} has no completion")
    return found


def odd_data(package: Package) -> list[str]:
    """What other programs do with ours is in the tools' package, as it is in the sources."""
    tools = Path(__file__).resolve().parents[2] / "framework/tools"
    found = []
    for file in [*tools.glob("bpftrace/*.bt"), *tools.glob("dashboards/*.json")]:
        name = f"./usr/share/gpurx/{file.relative_to(tools)}"
        if package.data.get(name) != file.read_bytes():
            found.append(f"{name} is {'not as in the sources' if name in package.data else 'missing'}")
    return found


def odd_control(package: Package, version: str) -> list[str]:
    found = [f"no {name}" for name in ("Maintainer", "Section", "Description", "Installed-Size") if not package.field(name)]
    if package.field("Version") != version:
        found.append(f"version {package.field('Version')}, others have {version}")
    if package.elf() and "libc6" not in package.field("Depends"):
        found.append(f"has programs, and no dependency on libc6: {package.field('Depends')}")
    return found


def main() -> None:
    packages = [Package(path) for path in sorted(Path(sys.argv[1]).glob("*.deb"))]
    forbidden = [text.encode() for text in sys.argv[2:]]
    names = [package.name for package in packages]
    check("packages: all of them, and no other",
          [f"missing: {one}" for one in PACKAGES if not any(re.fullmatch(one, name) for name in names)] +
          [f"strange: {name}" for name in names if not any(re.fullmatch(one, name) for one in PACKAGES)])
    for package in packages:
        check(f"{package.name}: owners, modes and places", odd_members(package))
        check(f"{package.name}: programs", odd_programs(package))
        check(f"{package.name}: documents", odd_documents(package))
        check(f"{package.name}: control", odd_control(package, packages[0].field("Version")))
        check(f"{package.name}: no path of the machine that made it",
              [f"{name}: has {text.decode()}" for name, data in package.data.items() for text in forbidden
               if text in (gzip.decompress(data) if name.endswith(".gz") else data)])
    for package in packages:
        if package.name == "gpurx-tools":
            check(f"{package.name}: dashboards and scripts", odd_data(package))
    owners = Counter(name for package in packages for name in package.data)
    check("packages: no file in two of them", [name for name, count in owners.items() if count > 1])
    sys.exit(failed)


main()
