#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`./run bench gather`: what the kernels of a gather cost, counted without a GPU.

By the interpreter of their PTX, and by what the assembler says of the machine code. An instruction is one of PTX of a
warp: some become several of machine code, and some none.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from report import Bar, Report, print_table

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "framework" / "src" / "cuda" / "gather.cu"
ARCHITECTURES = (80, 90, 100)
FIGURES = ("instructions", "load-sectors", "store-sectors", "conflicts", "in-series")
# Instructions per KiB of pieces of 64 KiB.
MOST_INSTRUCTIONS = {("plain", "65536-odd"): 50, ("crc", "65536-aligned"): 100, ("crc", "65536-odd"): 120}
MOST_IN_SERIES = 4  # of a piece of 4 KiB at an odd address
MOST_SECTORS = 17  # of a request by all lanes, which need 16 where nothing is misaligned
LEAST_BLOCKS = 4  # on one processor
THREADS = 256
REGISTERS = 65536  # of one processor
MOST_THREADS = 2048


def counted(program: Path) -> dict[tuple[str, str], dict[str, float]]:
    done = subprocess.run([str(program)], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"gather: {program} failed (exit code {done.returncode})")
    figures: dict[tuple[str, str], dict[str, float]] = {}
    for kernel, kind, figure, value in map(str.split, done.stdout.splitlines()):
        figures.setdefault((kernel, kind), {})[figure] = float(value)
    return figures


def compiler(build: Path) -> str:
    found = re.search(r"^-- CUDA: (.+)$", subprocess.run(
        ["cmake", "-S", str(ROOT), "-B", str(build)], stdout=subprocess.PIPE, text=True, check=True).stdout, re.M)
    return f"{found.group(1)}/bin/nvcc" if found else sys.exit("gather: the build has no CUDA toolkit")


def blocks(registers: int) -> int:
    """That a processor holds: a warp gets registers by 256."""
    of_warp = -(-registers * 32 // 256) * 256
    return min(REGISTERS // (of_warp * THREADS // 32), MOST_THREADS // THREADS)


def machine_code(cubin: Path, disassembler: str | None) -> dict[str, str]:
    """By kernel: how many of its accesses to memory are LDG.128 and STG.128, of 16 bytes and known to be global."""
    if disassembler is None:
        return {}
    text = subprocess.run([disassembler, str(cubin)], stdout=subprocess.PIPE, text=True, check=True).stdout
    shares = {}
    for part in re.split(r"^\s*\.section\s+\.text\.", text, flags=re.M)[1:]:
        every = re.findall(r"\b(?:LDG?|STG?)\.\S+", part)
        wide = [one for one in every if ".128" in one and one[2] == "G"]
        shares[re.match(r"\w+", part).group()] = f"{len(wide)} of {len(every)}"
    return shares


def assembled(nvcc: str, disassembler: str | None) -> list[tuple[int, str, int, int, str]]:
    """Architecture, kernel, registers, bytes of spills, share of wide accesses."""
    rows = []
    for architecture in ARCHITECTURES:
        with tempfile.TemporaryDirectory() as directory:
            cubin = Path(directory) / "gather.cubin"
            done = subprocess.run(
                [nvcc, "-std=c++20", "--expt-relaxed-constexpr", "-O3", "-cubin", f"-arch=sm_{architecture}",
                 "-Xptxas", "-v", f"-I{SOURCE.parents[1]}", "-o", str(cubin), str(SOURCE)],
                stderr=subprocess.PIPE, text=True, check=False)
            if done.returncode != 0:
                sys.exit(f"gather: {nvcc} failed:\n{done.stderr}")
            shares = machine_code(cubin, disassembler)
        for part in re.split(r"Compiling entry function '", done.stderr)[1:]:
            kernel = re.match(r"\w+", part).group()
            spills = sum(map(int, re.findall(r"(\d+) bytes spill", part)))
            registers = int(re.search(r"Used (\d+) registers", part).group(1))
            rows.append((architecture, kernel, registers, spills, shares.get(kernel, "-")))
    return rows


def main() -> int:
    build = Path(sys.argv[1])
    program = build / "tests" / "bench" / "gather_bench"
    if not program.exists():
        print("gather: left out: this gpurx was built without CUDA")
        return 0
    figures = counted(program)
    print_table(["kernel, piece", *FIGURES],
                [[" ".join(key), *(f"{of[figure]:.1f}" for figure in FIGURES)] for key, of in figures.items()])
    print("instructions (of PTX) and conflicts: per KiB; sectors: of 32 bytes, per request of a warp; all of one warp\n")
    nvcc = compiler(build)
    disassembler = shutil.which("nvdisasm", path=f"{Path(nvcc).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if disassembler is None:
        print("machine code is not looked into: there is no nvdisasm beside nvcc, nor on the PATH")
    code = assembled(nvcc, disassembler)
    print_table(["machine code", "registers", "spilled bytes", "blocks", "LDG/STG.128"],
                [[f"sm_{architecture} {kernel}", str(registers), str(spills), str(blocks(registers)), wide]
                 for architecture, kernel, registers, spills, wide in code])
    report = Report("gather", {"instructions": "PTX", "architectures": list(ARCHITECTURES)})
    report.samples = {" ".join(key): of for key, of in figures.items()}
    for key, limit in MOST_INSTRUCTIONS.items():
        report.bar(Bar(f"{' '.join(key)}: instructions per KiB", figures[key]["instructions"], "", limit))
    report.bar(Bar("plain 4096-odd: loads in series", figures["plain", "4096-odd"]["in-series"], "",
                   MOST_IN_SERIES))
    report.bar(Bar("sectors per request", max(max(of["load-sectors"], of["store-sectors"]) for of in figures.values()), "",
                   MOST_SECTORS))
    report.bar(Bar("bytes spilled", sum(row[3] for row in code), "", 0))
    report.bar(Bar("blocks on a processor", min(blocks(row[2]) for row in code), "", LEAST_BLOCKS, at_least=True))
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
