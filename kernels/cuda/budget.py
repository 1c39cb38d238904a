"""What the kernels cost, read from their machine code, and whether that is within what was recorded.

    python kernels/cuda/budget.py [--arch sm_90] [--compiler nvcc | nvrtc] [--keep DIRECTORY]

builds ``securecoll.cu`` (by nvcc if there is one, else by NVRTC), disassembles it with cuobjdump, and prints two
tables: registers, stack and local memory of every kernel, and what the main loop of those that go over text issues for
each 512 bytes, that is for a block of every lane of a warp. The exit status is 1 if anything exceeds its budget.

Clocks are those of one SM for 512 bytes, by the busiest of five: wavefronts of shared and global memory, one a clock
(a vector of 16 bytes a lane takes four, also where all lanes read the same; a shuffle takes one); instructions of the
ALU and of the multipliers, two a clock each; 1-bit tensor-core products, one in two clocks (by the data sheet of the
A100; there is none for later ones); and instructions of any kind, four a clock. Nothing is measured here: what
latencies, instruction fetch and DRAM add, only a GPU can tell.

Works from a checkout: needs nvcc, or the PyPI package nvidia-cuda-nvrtc, and nvidia-cuda-cuobjdump with
nvidia-cuda-nvdisasm.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

KERNELS = Path(__file__).resolve().parents[1]
SOURCE = KERNELS / "cuda" / "securecoll.cu"
ARCHITECTURES = ("sm_80", "sm_90", "sm_100")

# -fmad=false: a*b+c rounds twice, as on every host.
FLAGS = ["-std=c++17", "-fmad=false"]

CLOCK = 1.98e9  # Hz: an H100 or H200 at its highest. The rates in the table are those of one SM at this clock
BYTES = 512

# How often the loops within a main loop run: the rounds of AES but for the first and the last, and the groups of
# column sets of the tensor-core GHASH.
ROUNDS, COLUMN_GROUPS = 12, 4
BLOCKS = 8  # of 512 bytes, in one turn of a main loop

REGISTERS = 168  # at 256 threads


@dataclass(frozen=True)
class LoopBudget:
    """The most that a main loop may cost for 512 bytes."""

    clocks: float
    alu: float


LOOPS: dict[str, dict[str, LoopBudget]] = {
    "sm_80": {
        "sc_seal": LoopBudget(240, 440),
        "sc_verify": LoopBudget(32, 48),
        "sc_commit": LoopBudget(231, 410),
        "sc_commit_seal": LoopBudget(464, 840),
    },
    "sm_90": {
        "sc_seal": LoopBudget(240, 440),
        "sc_verify": LoopBudget(32, 48),
        "sc_commit": LoopBudget(231, 410),
        "sc_commit_seal": LoopBudget(464, 840),
    },
    "sm_100": {
        "sc_seal": LoopBudget(360, 720),
        "sc_verify": LoopBudget(165, 330),
        "sc_commit": LoopBudget(231, 410),
        "sc_commit_seal": LoopBudget(560, 1120),
    },
}
# Clocks of opening, which is verifying and then committing.
OPENINGS = {"sm_80": 263.0, "sm_90": 263.0, "sm_100": 396.0}


# ---- tools


def python_package_file(pattern: str) -> Path | None:
    """A file of NVIDIA's Python packages, which lie under ``nvidia/``."""
    found = sorted(Path(sysconfig.get_paths()["purelib"], "nvidia").glob(pattern))
    return found[-1] if found else None


def compile_with_nvcc(arch: str, target: Path) -> None:
    command = ["nvcc", f"-arch={arch}", *FLAGS, "-cubin", f"-I{KERNELS}", str(SOURCE), "-o", str(target)]
    subprocess.run(command, check=True)


def compile_with_nvrtc(arch: str, target: Path) -> None:
    library = python_package_file("*/lib/libnvrtc.so.*")
    if library is None:
        raise SystemExit("budget.py needs nvcc, or NVRTC: pip install nvidia-cuda-nvrtc")
    nvrtc = ctypes.CDLL(str(library))
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    options = [f"-arch={arch}", *FLAGS, f"-I{KERNELS}", f"-I{SOURCE.parent}"]
    words = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), SOURCE.read_bytes(), SOURCE.name.encode(), 0, None, None)
    failed = nvrtc.nvrtcCompileProgram(program, len(options), words)
    if failed:
        nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetProgramLog(program, log)
        raise SystemExit(f"NVRTC does not compile {SOURCE.name} for {arch}:\n{log.value.decode()}")
    nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
    cubin = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetCUBIN(program, cubin)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    target.write_bytes(cubin.raw)


def cuobjdump(option: str, cubin: Path) -> str:
    tool = shutil.which("cuobjdump") or python_package_file("*/bin/cuobjdump")
    if tool is None:
        raise SystemExit("budget.py needs cuobjdump: pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm")
    # It starts nvdisasm, which the Python packages put beside it.
    environment = os.environ | {"PATH": f"{Path(tool).parent}{os.pathsep}{os.environ.get('PATH', '')}"}
    return subprocess.run([tool, option, cubin], check=True, capture_output=True, text=True, env=environment).stdout


# ---- machine code


@dataclass(frozen=True)
class Instruction:
    address: int
    text: str  # without its predicate
    conditional: bool  # has a predicate, or, as a branch, an operand besides its target

    @property
    def name(self) -> str:
        return self.text.split()[0].split(".")[0]

    @property
    def target(self) -> int:
        """Where a branch or call leads."""
        return int(re.findall(r"0x([0-9a-f]+)", self.text)[-1], 16)

    def is_a(self, *parts: str) -> bool:
        return set(parts) <= set(self.text.split()[0].split("."))


def functions(sass: str) -> dict[str, list[Instruction]]:
    """The instructions of each kernel, functions that it calls behind it."""
    found: dict[str, list[Instruction]] = {}
    current: list[Instruction] = []
    for line in sass.splitlines():
        if match := re.match(r"\s+Function : (\S+)", line):
            current = found.setdefault(match[1], [])
        elif match := re.match(r"\s+/\*([0-9a-f]{4,6})\*/\s+(@!?U?P\w+\s+)?(.*?)\s*;", line):
            branches_on = re.match(r"BRA\S* (!?U?P|UR)", match[3]) is not None
            current.append(Instruction(int(match[1], 16), match[3], match[2] is not None or branches_on))
    return found


@dataclass
class Block:
    """Instructions that run one after the other, and the blocks that may follow, by address."""

    code: list[Instruction]
    successors: list[int] = field(default_factory=list)


def flow(code: list[Instruction]) -> dict[int, Block]:
    """The blocks of a kernel by address, without what divergent shuffles do instead, which is never run here."""
    # A call with a predicate is a branch, too: where nothing comes back, the compiler leaves a loop by one.
    jumps = {i for i in code if (i.name == "BRA" and not i.is_a("DIV")) or (i.name == "CALL" and i.conditional)}
    leaves = jumps | {i for i in code if i.name in ("EXIT", "RET", "BRX")}
    starts = {code[0].address} | {i.target for i in jumps} | {i.address + 16 for i in leaves}
    blocks: dict[int, Block] = {}
    block = Block([])
    ended = True
    for instruction in code:
        if ended or instruction.address in starts:
            if not ended:
                block.successors.append(instruction.address)
            block = blocks[instruction.address] = Block([])
        block.code.append(instruction)
        if instruction in jumps:
            block.successors.append(instruction.target)
        ended = instruction in leaves and not instruction.conditional
    return blocks


def loops(blocks: dict[int, Block], within: Iterable[int]) -> list[set[int]]:
    """Strongly connected components with a cycle (R. Tarjan, 1972), of the given blocks."""
    allowed = set(within)
    order: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    found: list[set[int]] = []

    def successors(at: int) -> Iterator[int]:
        return iter([s for s in blocks[at].successors if s in allowed])

    for root in sorted(allowed):
        if root in order:
            continue
        order[root] = low[root] = len(order)
        stack.append(root)
        path = [(root, successors(root))]
        while path:
            at, rest = path[-1]
            following = next(rest, None)
            if following is None:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[at])
                if low[at] == order[at]:
                    component = set(stack[stack.index(at) :])
                    del stack[stack.index(at) :]
                    if len(component) > 1 or at in blocks[at].successors:
                        found.append(component)
            elif following not in order:
                order[following] = low[following] = len(order)
                stack.append(following)
                path.append((following, successors(following)))
            elif following in stack:
                low[at] = min(low[at], order[following])
    return found


def callee(code: list[Instruction], address: int) -> list[Instruction]:
    """A function that a kernel calls, if it runs straight to its end."""
    start = next(i for i, instruction in enumerate(code) if instruction.address == address)
    end = next(i for i in range(start, len(code)) if code[i].name == "RET")
    return code[start : end + 1]


# ---- costs

_ALU = {"LOP3", "PRMT", "SHF", "IADD3", "IADD", "LEA", "VIADD", "ISETP", "SEL", "PLOP3", "MOV", "CS2R", "SGXT", "BMSK"}
_ALU |= {"IABS", "IMNMX", "VIMNMX", "P2R", "R2P"}
_MULTIPLIER = {"IMAD", "FFMA", "FMUL", "FADD", "HFMA2"}


@dataclass
class Cost:
    """What a warp issues for 512 bytes."""

    alu: float = 0
    multiplier: float = 0
    shared: float = 0  # wavefronts, with shuffles
    memory: float = 0  # wavefronts of global memory
    tensor: float = 0
    all: float = 0

    def add(self, code: Iterable[Instruction], times: float) -> None:
        for instruction in code:
            name = instruction.name
            width = 4 if instruction.is_a("128") else 2 if instruction.is_a("64") else 1
            self.all += times * (name != "NOP")
            self.alu += times * (name in _ALU)
            self.multiplier += times * (name in _MULTIPLIER)
            self.shared += times * width * (name in ("LDS", "STS", "SHFL"))
            self.memory += times * width * (name in ("LDG", "STG", "LD", "ST"))
            self.tensor += times * (name == "BMMA")

    @property
    def clocks(self) -> float:
        return max(self.shared + self.memory, self.alu / 2, self.multiplier / 2, self.tensor * 2, self.all / 4)

    @property
    def rate(self) -> float:
        """GB/s of one SM."""
        return rate(self.clocks)


def rate(clocks: float) -> float:
    return BYTES * CLOCK / clocks / 1e9


def is_multiplication(code: list[Instruction]) -> bool:
    """Whether a function is gf_multiply()."""
    return sum(instruction.is_a("IMAD", "WIDE") for instruction in code) > 100


def main_loop(code: list[Instruction]) -> Cost:
    """What the loop over a kernel's text costs when all of it is whole, aligned blocks and nothing is reduced."""
    blocks = flow(code)
    largest = max(loops(blocks, blocks), key=lambda loop: sum(len(blocks[at].code) for at in loop))
    entries = {s for at, block in blocks.items() if at not in largest for s in block.successors} & largest
    inner = loops(blocks, largest - entries)
    cost = Cost()
    for at in largest:
        times = 1
        for loop in inner:
            if at in loop:
                hashes = any(i.name == "BMMA" for b in loop for i in blocks[b].code)
                times = COLUMN_GROUPS if hashes else ROUNDS
        called = [callee(code, i.target) for i in blocks[at].code if i.name == "CALL" and not i.conditional]
        if not all(is_multiplication(function) for function in called):
            continue  # the ends of a text, which are few
        for part in (blocks[at].code, *called):
            cost.add(part, times / BLOCKS)
    return cost


# ---- tables


@dataclass(frozen=True)
class Resources:
    registers: int
    stack: int
    local: int  # instructions that load from or store to local memory


def resources(usage: str, code: dict[str, list[Instruction]]) -> dict[str, Resources]:
    found = {}
    for name, registers, stack in re.findall(r"Function (\w+):\s+REG:(\d+) STACK:(\d+)", usage):
        local = sum(i.name in ("LDL", "STL") for i in code[name])
        found[name] = Resources(int(registers), int(stack), local)
    return found


def examine(arch: str, cubin: Path) -> list[str]:
    """Prints the tables of one architecture and returns what exceeds its budget."""
    code = functions(cuobjdump("--dump-sass", cubin))
    used = resources(cuobjdump("--dump-resource-usage", cubin), code)
    excess = []

    print(f"\n{arch}\n")
    print("| kernel | registers | stack | local | instructions |")
    print("|---|---|---|---|---|")
    for name, r in sorted(used.items()):
        print(f"| {name} | {r.registers} | {r.stack} | {r.local} | {len(code[name])} |")
        if r.registers > REGISTERS:
            excess.append(f"{arch} {name}: {r.registers} registers, not {REGISTERS}")
        if r.stack or r.local:
            excess.append(f"{arch} {name}: {r.stack} bytes of stack, {r.local} accesses of local memory, not 0")

    print("\n| per 512 bytes | ALU | multiplier | shared | global | tensor | all | clocks | at most | GB/s |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    costs = {name: main_loop(code[name]) for name in LOOPS[arch]}
    for name, budget in LOOPS[arch].items():
        c = costs[name]
        print(
            f"| {name} | {c.alu:.1f} | {c.multiplier:.1f} | {c.shared:.1f} | {c.memory:.1f} | {c.tensor:.1f} "
            f"| {c.all:.1f} | {c.clocks:.1f} | {budget.clocks:.0f} | {c.rate:.2f} |"
        )
        if c.clocks > budget.clocks or c.alu > budget.alu:
            excess.append(f"{arch} {name}: {c.clocks:.1f} clocks and {c.alu:.1f} ALU instructions, not {budget}")
    if arch in OPENINGS:
        opening, most = costs["sc_verify"].clocks + costs["sc_commit"].clocks, OPENINGS[arch]
        print(f"| opening: verify and commit | | | | | | | {opening:.1f} | {most:.0f} | {rate(opening):.2f} |")
        if opening > most:
            excess.append(f"{arch}: opening takes {opening:.1f} clocks, not {most:.0f}")
    return excess


def main() -> None:
    parser = argparse.ArgumentParser(description="Builds the kernels and compares their machine code with budgets.")
    parser.add_argument(
        "--arch", action="append", choices=ARCHITECTURES, help="may be repeated; all, if none is given"
    )
    parser.add_argument("--compiler", choices=("nvcc", "nvrtc"))
    parser.add_argument("--keep", type=Path, metavar="DIRECTORY", help="leave the cubins there")
    asked = parser.parse_args()
    compiler = asked.compiler or ("nvcc" if shutil.which("nvcc") else "nvrtc")
    build = compile_with_nvcc if compiler == "nvcc" else compile_with_nvrtc
    excess = []
    with tempfile.TemporaryDirectory() as scratch:
        directory = asked.keep or Path(scratch)
        directory.mkdir(parents=True, exist_ok=True)
        for arch in asked.arch or ARCHITECTURES:
            cubin = directory / f"{arch}.cubin"
            build(arch, cubin)
            excess += examine(arch, cubin)
    print()
    for line in excess:
        print(f"over budget: {line}")
    print("all budgets are kept" if not excess else f"{len(excess)} budgets are exceeded")
    sys.exit(1 if excess else 0)


if __name__ == "__main__":
    main()
