"""Machine code of the kernels, and of the tests' own, for the GPU at hand."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.append(str(Path(__file__).resolve().parents[1]))

from gpu_check.target import BUILT, ROOT

KERNELS = ROOT / "kernels"
SECURECOLL = KERNELS / "cuda" / "securecoll.cu"
FLAGS = ["-std=c++17", "-fmad=false", f"-I{KERNELS}"]


def sources(kind: str) -> list[Path]:
    """What is launched in checks of the GHASH that is ``tensor`` or ``portable``, or of the ``names`` that kernels
    use. Where several have a kernel, the first one's is launched."""
    from tests.cuda.conftest import SOURCES
    from tests.emulator.conftest import PROBE

    if kind == "names":
        return [PROBE]
    return [SECURECOLL, *SOURCES["plain", kind]] if kind == "tensor" else list(SOURCES["plain", kind])


def cubin(source: Path) -> Path:
    """Where its machine code lies."""
    return BUILT / f"{source.stem}.cubin"


def make(source: Path, capability: int) -> str:
    """Compiles it, by nvcc or, without that, by CuPy's NVRTC; says which. Raises RuntimeError with the compiler's
    words."""
    cubin(source).unlink(missing_ok=True)
    if shutil.which("nvcc"):
        command = ["nvcc", "-cubin", f"-arch=sm_{capability}", "--expt-relaxed-constexpr", *FLAGS]
        command += [str(source), "-o", str(cubin(source))]
    else:
        # In a process of its own: NVRTC compiles one source at a time in each.
        command = [sys.executable, __file__, str(source), str(cubin(source)), *FLAGS]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return "nvcc" if command[0] == "nvcc" else "NVRTC"


def _by_nvrtc(source: Path, target: Path, flags: list[str]) -> None:
    from cupy.cuda import compiler

    folders = (f"-I{source.parent}", f"-I{SECURECOLL.parent}")
    image, _ = compiler.compile_using_nvrtc(source.read_text(), (*flags, *folders))
    target.write_bytes(image)


if __name__ == "__main__":
    _by_nvrtc(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
