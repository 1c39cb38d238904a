"""Builds securecoll without its cipher under build/cipherless, which then is the folder for PYTHONPATH.

    .venv/bin/python benchmarks/cipherless/build.py
    PYTHONPATH=build/cipherless .venv/bin/python ...

It is the same source tree, built by the same setup.py, with two differences. The AEAD of CPU memory is the one beside
this file, which copies (device memory would still be sealed). And every label of the protocol is another: "SCOLL/1"
becomes "SCOLL-BENCH/1" and "scoll1 " becomes "bench1 ". So all keys and transcripts differ, and a rank of this build
and one of the real package refuse each other in the handshake, whatever key they share. There is no switch in the
package itself, and nothing of this is in its wheel.

Only what changed is copied and compiled: an object of the real build is taken over when nothing that went into it is
different here. torch's binding reaches the engine through a table of functions and knows no cipher and no label, so
the real one serves: build the package first.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TREE = ROOT / "build" / "cipherless"
COPIED = (
    "LICENSE",
    "README.md",
    "pyproject.toml",
    "setup.py",
    "kernels/*.[hi]*",
    "kernels/cuda/*.[ch]pp",
    "kernels/engine/*",
    "kernels/host/*",
    "bindings/python/*",
    "securecoll/**/*.py",
)
CIPHER = "kernels/host/aead*.cpp"
REPLACEMENT = Path(__file__).with_name("aead.cpp")
LABELS = ((b"SCOLL/1", b"SCOLL-BENCH/1"), (b"scoll1 ", b"bench1 "))
"""What begins the labels of hashes in Python, and of keys in the engine."""
ENGINE = "securecoll/_engine" + EXTENSION_SUFFIXES[0]
BINDING = ("securecoll/_torch*.so", "securecoll/torch/_built_for.py")


class BuildError(RuntimeError):
    """The build cannot be made. The message says why."""


def contents() -> dict[Path, bytes]:
    """Every file of the tree, by its path there."""
    cipher = set(ROOT.glob(CIPHER))
    if not cipher:
        raise BuildError(f"no {CIPHER}: what is it that would be replaced?")
    found = {}
    for path in sorted({path for pattern in COPIED for path in ROOT.glob(pattern) if path.is_file()} - cipher):
        content = path.read_bytes()
        if path.suffix in (".py", ".cpp"):  # in headers they stand in comments only
            for label, other in LABELS:
                content = content.replace(label, other)
        found[path.relative_to(ROOT)] = content
    found[Path(CIPHER.replace("*", ""))] = REPLACEMENT.read_bytes()
    for path in sorted(path for pattern in BINDING for path in ROOT.glob(pattern)):
        found[path.relative_to(ROOT)] = path.read_bytes()
    return found


def write(files: dict[Path, bytes]) -> set[Path]:
    """Makes the tree hold these files; returns those that are not as in the real tree. What is alike keeps its time of
    change, what differs has one of its own: from these the build knows what to compile."""
    differing = set()
    for path, content in files.items():
        original, target = ROOT / path, TREE / path
        same = original.read_bytes() == content
        if not same:
            differing.add(path)
        if not target.exists() or target.read_bytes() != content:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)  # never into a library that a process has mapped
            target.write_bytes(content)
        if same:
            shutil.copystat(original, target)
    for folder in ("kernels", "bindings", "securecoll"):
        for path in (TREE / folder).rglob("*"):
            built = path.match("_engine*.so") or path.parent.name == "__pycache__"
            if path.is_file() and not built and path.relative_to(TREE) not in files:
                path.unlink()
    return differing


def take_over(differing: set[Path]) -> None:
    """Copies the objects of the real build that nothing of ``differing`` went into, where they are newer."""
    for depfile in sorted((ROOT / "build" / "objects").glob("*-nanobind*/*.d")):
        words = depfile.read_text().replace("\\\n", " ").split()
        if any(Path(word) in differing for word in words):
            continue
        for path in (depfile, depfile.with_suffix(".cmd"), depfile.with_suffix(".o")):
            target = TREE / path.relative_to(ROOT)
            if path.exists() and not (target.exists() and target.stat().st_mtime_ns >= path.stat().st_mtime_ns):
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, target)


@contextmanager
def locked() -> Iterator[None]:
    """While open, nobody else builds."""
    TREE.mkdir(parents=True, exist_ok=True)
    with (TREE / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def build() -> Path:
    """Builds what is not up to date and returns the folder for PYTHONPATH. Raises :class:`BuildError`."""
    with locked():
        take_over(write(contents()))
        command = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
        done = subprocess.run(command, cwd=TREE, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode != 0:
            raise BuildError(f"setup.py failed in {TREE}:\n{done.stdout[-2000:]}")
        check(TREE / ENGINE)
    return TREE


def check(engine: Path) -> None:
    """Raises :class:`BuildError` where an engine has a label of the real one, or none at all."""
    content = engine.read_bytes()
    for label, _ in LABELS:
        if label in content:
            raise BuildError(f"{engine} still has the label {label.decode()!r}")
    if LABELS[1][1] not in content:
        raise BuildError(f"{engine} has no label {LABELS[1][1].decode()!r}: where did it go?")


if __name__ == "__main__":
    try:
        print(os.path.relpath(build()))
    except BuildError as error:
        sys.exit(f"build.py: {error}")
