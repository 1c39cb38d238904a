"""Builds CUDA sources and the emulator into a shared object that runs them on a CPU.

    python kernels/emulator/build.py kernels/cuda/securecoll.cu [--mode race] [-D NAME=VALUE ...]

prints the path of the result, ``build/emulator/NAME-HASH.so``. Modes:

``plain``
    Optimised. Red zones around device memory are looked at after each kernel.
``race``
    Every access of a kernel is checked: races on shared memory, reads of shared memory that was never written,
    accesses outside of live device memory or misaligned.
``asan``, ``tsan``
    For AddressSanitizer and ThreadSanitizer, whose run-time libraries the process must have loaded before
    (``LD_PRELOAD``). The latter finds what nothing orders between blocks.

Objects are kept under ``build/emulator`` by the hash of the command and of all files of ours that went into them, so
nothing is compiled twice, and what a running process has loaded is never written over.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILT = ROOT / "build" / "emulator"
EMULATOR = ROOT / "kernels" / "emulator"
JOBS = int(os.environ.get("SECURECOLL_BUILD_JOBS", "2"))
MODES = ("plain", "race", "asan", "tsan")

# No contraction of a*b+c, as nvcc is told too: host and device must agree to the bit.
COMMON = ["-std=c++17", "-fPIC", "-pthread", "-fvisibility=hidden", "-ffp-contract=off", "-g1", "-Wall", "-Wextra"]
COMMON += [f"-I{ROOT / 'kernels'}"]
if platform.machine() == "x86_64":
    COMMON.append("-march=x86-64-v2")  # popcount

# Hooks see the accesses that the source makes: none merged, none vectorised.
_INSTRUMENTED = ["-O2", "-fsanitize=thread", "-fno-tree-vectorize", "-fno-store-merging", "-Wno-tsan"]
_KERNEL_FLAGS = {
    "plain": ["-O3"],
    "race": [*_INSTRUMENTED, "--param=tsan-instrument-func-entry-exit=0"],
    "asan": ["-O1", "-fsanitize=address", "-fno-omit-frame-pointer"],
    "tsan": [*_INSTRUMENTED, "-DSC_EMULATOR_TSAN"],
}
_EMULATOR_FLAGS = {
    "plain": ["-O3"],
    "race": ["-O3", "-DSC_EMULATOR_RACE"],
    "asan": ["-O1", "-fsanitize=address"],
    "tsan": ["-O2", "-DSC_EMULATOR_TSAN"],  # uninstrumented: to ThreadSanitizer a fiber is a thread of its own
}
_LINK_FLAGS = {"plain": [], "race": [], "asan": ["-fsanitize=address"], "tsan": ["-fsanitize=thread"]}


def build(
    sources: Sequence[Path], mode: str = "plain", macros: Sequence[str] = (), emulator_macros: Sequence[str] = ()
) -> Path:
    """Builds ``sources`` and returns the path of the shared object.

    ``macros`` are defined for ``sources``, ``emulator_macros`` for the emulator: ``"NAME"`` or ``"NAME=VALUE"``.
    """
    if mode not in MODES:
        raise ValueError(f"unknown mode {mode!r}: expected one of {', '.join(MODES)}")
    kernel_flags = [*COMMON, *_KERNEL_FLAGS[mode], *(f"-D{macro}" for macro in macros), "-x", "c++"]
    emulator_flags = [*COMMON, *_EMULATOR_FLAGS[mode], *(f"-D{macro}" for macro in emulator_macros)]
    jobs = [(source, kernel_flags) for source in sources]
    for source in sorted(EMULATOR.glob("*.cpp")):
        if mode == "race" or source.name != "access_hooks.cpp":
            jobs.append((source, emulator_flags))
    with _lock():
        with ThreadPoolExecutor(JOBS) as pool:
            objects = list(pool.map(lambda job: _compile(*job), jobs))
        link = [*_compiler(), "-shared", "-pthread", "-Wl,-Bsymbolic", *_LINK_FLAGS[mode]]
        key = _digest(shlex.join(link), *(path.name for path in objects))
        target = BUILT / f"{sources[0].stem}-{mode}-{key}.so"
        if not target.exists():
            _run([*link, *map(str, objects), "-ldl"], target)
    return target


def _compile(source: Path, flags: list[str]) -> Path:
    command = [*_compiler(), *flags, "-c", str(source)]
    record = BUILT / "objects" / f"{source.stem}-{_digest(shlex.join(command))}.json"
    if record.exists():
        made: dict[str, str] = json.loads(record.read_text())
        target = Path(made.pop("object"))
        if target.exists() and all(_digest_of(Path(path)) == digest for path, digest in made.items()):
            return target
    record.parent.mkdir(parents=True, exist_ok=True)
    depfile = record.with_suffix(".d")
    unnamed = record.with_suffix(".o")
    _run([*command, "-MMD", "-MF", str(depfile)], unnamed)
    # "target.o: a.cu b.cuh \<newline> c.cuh"
    names = depfile.read_text().replace("\\\n", " ").split(":", 1)[1].split()
    digests = {name: _digest_of(Path(name)) for name in names}
    target = unnamed.with_name(f"{source.stem}-{_digest(shlex.join(command), *digests.values())}.o")
    unnamed.replace(target)
    record.write_text(json.dumps({"object": str(target), **digests}))
    return target


def _compiler() -> list[str]:
    return shlex.split(os.environ.get("CXX", "c++"))


def _run(command: list[str], target: Path) -> None:
    """Runs a compiler; its failure is an error with its own words. ``target`` appears whole or not at all."""
    with tempfile.NamedTemporaryFile(dir=target.parent, suffix=target.suffix, delete=False) as unfinished:
        path = Path(unfinished.name)
    try:
        done = subprocess.run([*command, "-o", str(path)], capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"{shlex.join(command)} failed:\n{done.stderr}")
        sys.stderr.write(done.stderr)
        path.chmod(0o755)
        path.replace(target)
    finally:
        path.unlink(missing_ok=True)


def _digest(*words: str) -> str:
    return hashlib.sha256("\0".join(words).encode()).hexdigest()[:16]


def _digest_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.exists() else "missing"


@contextmanager
def _lock() -> Iterator[None]:
    """One build at a time: test processes may ask for the same one."""
    BUILT.mkdir(parents=True, exist_ok=True)
    with (BUILT / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main() -> None:
    parser = argparse.ArgumentParser(description="Builds CUDA sources to run on a CPU.")
    parser.add_argument("sources", nargs="+", type=Path)
    parser.add_argument("--mode", choices=MODES, default="plain")
    parser.add_argument("-D", dest="macros", action="append", default=[], metavar="NAME[=VALUE]")
    asked = parser.parse_args()
    print(build([source.resolve() for source in asked.sources], asked.mode, asked.macros))


if __name__ == "__main__":
    main()
