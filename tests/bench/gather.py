#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`./run bench gather`: what the kernels of a gather cost, counted without a GPU.

By the interpreter of their PTX, and by what the assembler says of the machine code. An instruction is one of PTX of a
warp: some become several of machine code, and some none.
"""

import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from report import Bar, Report, Table

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "framework" / "src" / "cuda" / "gather.cu"
ARCHITECTURES = (80, 90, 100)
OCCUPANCY = ROOT / "tests" / "support" / "fake_cuda_occupancy.hpp"
FAKE_GPU = 90  # that the constants there are of
# As the program names them: what they are, of one warp, and whether they are drawn.
FIGURES = {
    "instructions": ("PTX instructions per KiB", True),
    "load-sectors": ("Loads: sectors of 32 bytes per request", True),
    "store-sectors": ("Stores: sectors of 32 bytes per request", True),
    "sectors-per-kib": ("Sectors per KiB, loads and stores", False),
    "conflicts": ("Conflicts in shared memory per KiB", False),
    "in-series": ("Loads one after the other", False),
}
# Instructions per KiB of pieces of 64 KiB. For a CRC, sm_100 has no matrices of bits: its limits keep it where it is
# (framework/docs/gpu.md says why that will do).
MOST_INSTRUCTIONS = {
    **{(f"plain-{gpu}", "65536-odd"): 50 for gpu in ARCHITECTURES},
    **{(f"crc-{gpu}", "65536-aligned"): 100 for gpu in (80, 90)},
    **{(f"crc-{gpu}", "65536-odd"): 120 for gpu in (80, 90)},
    ("crc-100", "65536-aligned"): 260,
    ("crc-100", "65536-odd"): 275,
}
# Of a piece of 4 KiB at an odd address. With more of its ends under way at once, sm_100 keeps them in memory. A CRC has
# registers for two rounds at once, not four, and a piece's sum has to be weighed.
MOST_IN_SERIES = {"plain-80": 4, "plain-90": 4, "plain-100": 5, "crc-80": 12, "crc-90": 12, "crc-100": 12}
MOST_SECTORS = 17  # of a request by all lanes, which need 16 where nothing is misaligned
LEAST_BLOCKS = 4  # on one processor
# Accesses to memory, and those of them that are of 16 bytes and known to be global.
WIDE = ("LDG.128", "loads", "STG.128", "stores")
THREADS = 256
REGISTERS = 65536  # of one processor
MOST_THREADS = 2048
SHARED_BYTES = {80: 164 << 10, 90: 228 << 10, 100: 228 << 10}


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


@dataclass
class Assembled:
    architecture: int
    kernel: str
    registers: int
    shared: int  # bytes of a block
    spills: int  # bytes
    wide: list[int | None]  # as WIDE

    def blocks(self) -> int:
        """That a processor holds: a warp gets registers by 256, a block shared memory by 128 bytes and 1 KiB more."""
        of_warp = -(-self.registers * 32 // 256) * 256
        of_block = -(-self.shared // 128) * 128 + 1024
        return min(REGISTERS // (of_warp * THREADS // 32), MOST_THREADS // THREADS,
                   SHARED_BYTES[self.architecture] // of_block)


def machine_code(cubin: Path, disassembler: str) -> dict[str, list[int | None]]:
    """By kernel, as WIDE."""
    if not disassembler:
        return {}
    text = subprocess.run([disassembler, str(cubin)], stdout=subprocess.PIPE, text=True, check=True).stdout
    shares: dict[str, list[int | None]] = {}
    for part in re.split(r"^\s*\.section\s+\.text\.", text, flags=re.M)[1:]:
        counts = shares[re.match(r"\w+", part).group()] = []
        for name in ("LD", "ST"):
            every = re.findall(rf"\b{name}G?\.\S+", part)
            counts += [sum(".128" in one and one[2] == "G" for one in every), len(every)]
    return shares


def assembled(nvcc: str, disassembler: str) -> list[Assembled]:
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
            shared = re.search(r"(\d+) bytes smem", part)
            rows.append(Assembled(architecture, kernel, registers, int(shared.group(1)) if shared else 0, spills,
                                  shares.get(kernel, [None] * len(WIDE))))
    return rows


def check_fake(nvcc: str, code: list[Assembled]) -> None:
    """What the fake driver takes for true of the kernels is what the assembler says of the compiler that it names."""
    version = re.search(r"release (\S+),", subprocess.run([nvcc, "--version"], stdout=subprocess.PIPE, text=True,
                                                          check=True).stdout).group(1)
    if f"CUDA {version} compiler" not in OCCUPANCY.read_text():
        print(f"{OCCUPANCY.name} is not compared: it is of another compiler than CUDA {version}")
        return
    pairs = re.findall(r'kernel == "(\w+)"\)\s+return \{(\d+), (\d+)\};', OCCUPANCY.read_text())
    believed = {kernel: (int(registers), int(shared)) for kernel, registers, shared in pairs}
    true = {row.kernel: (row.registers, row.shared) for row in code if row.architecture == FAKE_GPU}
    if believed != true:
        sys.exit(f"gather: {OCCUPANCY.name} has {believed} (registers, shared bytes), the assembler {true}")


def main() -> int:
    build = Path(sys.argv[1])
    program = build / "tests" / "bench" / "gather_bench"
    if not program.exists():
        print("gather: left out: this gpurx was built without CUDA")
        return 0
    figures = counted(program)
    report = Report("gather", {"instructions": "PTX", "architectures": list(ARCHITECTURES)})
    pieces = dict.fromkeys((kernel.split("-")[0], piece) for kernel, piece in figures)
    for figure, (what, drawn) in FIGURES.items():
        rows = {f"{kernel}, {piece}": [figures[f"{kernel}-{gpu}", piece][figure] for gpu in ARCHITECTURES]
                for kernel, piece in pieces}
        report.table(Table(what, [f"sm_{gpu}" for gpu in ARCHITECTURES], rows, drawn=drawn * len(ARCHITECTURES), together=True))
    nvcc = compiler(build)
    disassembler = subprocess.run([Path(__file__).with_name("nvdisasm.sh"), Path(nvcc).parent],
                                  stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    if not disassembler:
        print("the machine code is not checked: nvdisasm is missing")
    code = assembled(nvcc, disassembler)
    check_fake(nvcc, code)
    report.table(Table("Machine code", ["registers", "shared bytes", "spilled bytes", "blocks", *WIDE],
                       {f"sm_{row.architecture} {row.kernel}": [row.registers, row.shared, row.spills, row.blocks(), *row.wide]
                        for row in code}))
    for key, limit in MOST_INSTRUCTIONS.items():
        report.bar(Bar(f"{' '.join(key)}: instructions per KiB", figures[key]["instructions"], "", limit))
    for kernel, limit in MOST_IN_SERIES.items():
        report.bar(Bar(f"{kernel} 4096-odd: loads in series", figures[kernel, "4096-odd"]["in-series"], "", limit))
    report.bar(Bar("sectors per request", max(max(of["load-sectors"], of["store-sectors"]) for of in figures.values()), "",
                   MOST_SECTORS))
    report.bar(Bar("bytes spilled", sum(row.spills for row in code), "", 0))
    report.bar(Bar("blocks on a processor", min(row.blocks() for row in code), "", LEAST_BLOCKS, at_least=True))
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
