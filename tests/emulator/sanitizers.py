"""Python programs that load what was built for AddressSanitizer or ThreadSanitizer.

A sanitizer's run-time library has to be there before anything else, so such a program runs in a process of its own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.emulator.emulator import ROOT

_OPTIONS = {
    # Python itself leaks at exit, and no leak is looked for.
    "asan": {"ASAN_OPTIONS": "detect_leaks=0:exitcode=66"},
    "tsan": {"TSAN_OPTIONS": "exitcode=66:halt_on_error=0"},
}
REPORTED = 66  # the exit code of a process that a sanitizer had something to say about


def run_under(mode: str, program: str, *arguments: str, seconds: float = 240) -> subprocess.CompletedProcess[str]:
    """Runs Python source under the sanitizer of a build mode, ``"asan"`` or ``"tsan"``, from the repository's root."""
    asked = subprocess.run(["c++", f"-print-file-name=lib{mode}.so"], capture_output=True, text=True, check=True)
    library = Path(asked.stdout.strip())
    if not library.is_absolute():
        pytest.skip(f"needs the run-time library of {mode}")
    environment = {**os.environ, **_OPTIONS[mode], "LD_PRELOAD": str(library)}
    command = [sys.executable, "-c", program, *arguments]

    def run(command: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=seconds, check=False
        )

    done = run(command)
    # Older ThreadSanitizers cannot start where the kernel scatters mappings widely.
    if "unexpected memory mapping" in done.stderr and shutil.which("setarch"):
        done = run(["setarch", "-R", *command])
    if "unexpected memory mapping" in done.stderr:
        pytest.skip(f"{mode} cannot run on this kernel")
    return done
