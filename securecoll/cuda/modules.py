"""The kernels as a GPU loads them: a cubin built for its architecture, or the sources, compiled here by NVRTC."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from securecoll.errors import ConfigError

log = logging.getLogger("securecoll")

KERNELS = (
    "sc_expand_key",
    "sc_seal",
    "sc_verify",
    "sc_commit",
    "sc_commit_seal",
    "sc_reduce",
    "sc_gate",
)
"""What the engine launches."""

OLDEST = 80
"""The oldest compute capability, times ten, that kernels are built for."""

SHARED_BYTES = 131072
"""Shared memory that a block of the kernels takes (kSharedBytes of kernels/cuda/launch.hpp), for the tables of AES."""

FLAGS = ("-std=c++17", "-fmad=false")
"""What every build of the kernels is given: sums have the same bits on GPU and CPU, so no a*b+c becomes one step."""


@dataclass(frozen=True, slots=True)
class Module:
    """Kernels loaded on one GPU."""

    functions: dict[str, int]
    """Handles (``CUfunction``) by name."""
    origin: str
    """Where they came from, for logs."""
    keep: Any
    """CuPy's module: the handles live as long as it does."""


def sources() -> Path:
    """The folder of the kernels' sources, ``cuda/securecoll.cu`` among them: in the installed package, or in the
    repository that it is installed from."""
    installed = Path(__file__).with_name("kernels")
    return installed if installed.is_dir() else Path(__file__).parents[2] / "kernels"


def load(ordinal: int) -> Module:
    """Loads the kernels on the GPU.

    Raises:
        ConfigError: when CuPy, a driver, the GPU, or kernels that it can run are missing.
    """
    try:
        import cupy
    except ImportError as error:
        raise ConfigError(
            "arrays on a GPU need CuPy, which is not installed: pip install 'securecoll[cuda13]' (or [cuda12])"
        ) from error
    try:
        found = cupy.cuda.Device(ordinal)
        capability = int(found.compute_capability)
        if capability < OLDEST:
            raise ConfigError(
                f"no kernels for compute capability {capability / 10:.1f}; {OLDEST / 10:.1f} (Ampere) is the oldest"
            )
        shared = int(found.attributes["MaxSharedMemoryPerBlockOptin"])
        if shared < SHARED_BYTES:
            raise ConfigError(
                f"CUDA device {ordinal}, of compute capability {capability / 10:.1f}, has {shared // 1024} KiB of "
                f"shared memory for a block; the kernels need {SHARED_BYTES // 1024}, as A100, H100 and B200 have"
            )
        with found:
            return _load(cupy, capability)
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise ConfigError(f"CUDA device {ordinal} cannot be used: {error}") from error


def _load(cupy: Any, capability: int) -> Module:
    folder = sources() / "cuda"
    # A cubin runs on its own and on later minor versions of its major one.
    cubins = [folder / f"sm_{c}.cubin" for c in range(capability, capability // 10 * 10 - 1, -1)]
    cubin = next((path for path in cubins if path.exists()), None)
    if cubin is not None:
        image, origin = cubin.read_bytes(), cubin.name
    else:
        log.info("no cubin for compute capability %.1f: NVRTC compiles the kernels", capability / 10)
        image, origin = _compiled(cupy, folder), "NVRTC"
    module = cupy.cuda.function.Module()
    module.load(image)
    functions = {name: int(module.get_function(name).ptr) for name in KERNELS}
    return Module(functions, f"{origin} for compute capability {capability / 10:.1f}", module)


def _compiled(cupy: Any, folder: Path) -> bytes:
    # Not RawModule(code=...), which tells NVRTC to flush denormals: sums would differ from the CPU's.
    options = (*FLAGS, f"-I{folder}", f"-I{folder.parent}")
    try:
        image, _ = cupy.cuda.compiler.compile_using_nvrtc((folder / "securecoll.cu").read_text(), options)
    except cupy.cuda.compiler.CompileException as error:
        raise ConfigError(f"NVRTC does not compile the kernels: {error}") from error
    return bytes(image)
