"""GPU compilers take the same sources: nvcc where it is installed, NVRTC from its wheel."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.emulator.conftest import BUGS, PROBE
from tests.emulator.emulator import ROOT

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("source", [PROBE, BUGS], ids=["probe", "bugs"])
def test_nvcc_compiles_without_a_word(source: Path, architecture: str, tmp_path: Path) -> None:
    if shutil.which("nvcc") is None:
        pytest.skip("needs nvcc")
    cubin = tmp_path / "out.cubin"
    command = ["nvcc", f"-arch={architecture}", "-std=c++17", f"-I{ROOT / 'kernels'}", "-cubin", "-o", str(cubin)]
    done = subprocess.run([*command, str(source)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert b"probe_matrix" in cubin.read_bytes() or source is BUGS


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("source", [PROBE, BUGS], ids=["probe", "bugs"])
def test_nvrtc_compiles_without_a_word(source: Path, architecture: str) -> None:
    if importlib.util.find_spec("cuda") is None or importlib.util.find_spec("cuda.bindings") is None:
        pytest.skip("needs cuda-bindings and nvidia-cuda-nvrtc")
    from cuda.bindings import nvrtc

    error, program = nvrtc.nvrtcCreateProgram(source.read_bytes(), source.name.encode(), 0, [], [])
    assert error == nvrtc.nvrtcResult.NVRTC_SUCCESS
    options = [f"-arch={architecture}".encode(), b"-std=c++17", f"-I{ROOT / 'kernels'}".encode()]
    (error,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    _, size = nvrtc.nvrtcGetProgramLogSize(program)
    # The binding writes into this object, so it must be nobody else's: of length one, Python has only one of each.
    log = b" " * (size + 1)
    nvrtc.nvrtcGetProgramLog(program, log)
    assert (error, log.strip(b" \0\n")) == (nvrtc.nvrtcResult.NVRTC_SUCCESS, b"")
    _, size = nvrtc.nvrtcGetCUBINSize(program)
    assert size > 1000
    nvrtc.nvrtcDestroyProgram(program)
