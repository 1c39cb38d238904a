"""Builds the two extension modules; everything else about the package stands in pyproject.toml.

``securecoll._engine``
    The data plane (``kernels/host``, ``kernels/engine``) and its Python binding. Needs libcrypto's headers, nothing
    of torch, MPI or CUDA.
``securecoll._torch``
    The ``c10d::Backend``. Built when torch is importable here: ``pip install --no-build-isolation .`` (a build in
    isolation does not see the installed torch, and so leaves this module out). A C++ binding fits one torch release
    only, so that release is recorded beside it in ``securecoll/torch/_built_for.py``.

An installed package also carries the CUDA kernels: their sources, which NVRTC compiles where nothing better is there,
and, if nvcc is on the path, cubins for the architectures in SECURECOLL_CUBINS (by default sm_80, sm_90 and sm_100).

Objects are kept under ``build/`` with the dependencies that the compiler found and the command that made them: a
source is compiled again when it, a header that it includes, or its command changed.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

# What the kernels include, but for their own headers.
HEADERS = ("kernels/cuda/launch.hpp", "kernels/engine/codes.hpp", "kernels/reduce_*")

ENGINE = "securecoll._engine"
TORCH = "securecoll._torch"
BUILT_FOR = Path("securecoll/torch/_built_for.py")

KERNELS = Path("securecoll/cuda/kernels")
CUBINS = os.environ.get("SECURECOLL_CUBINS", "sm_80 sm_90 sm_100").split()

JOBS = int(os.environ.get("SECURECOLL_BUILD_JOBS", "2"))  # a torch binding takes 1 GB to compile

# No -march: kernels name the instruction sets they need, function by function, and CPUID picks. No contraction of
# a*b+c: reductions give the same bits on every instruction set.
COMMON = ["-fPIC", "-pthread", "-fvisibility=hidden", "-ffp-contract=off", "-Wall", "-Wextra"]
LINK = ["-shared", "-pthread", "-Wl,-z,relro,-z,now"]


def extensions() -> list[Extension]:
    """The modules to build here."""
    parts = ("kernels/host", "kernels/engine", "kernels/cuda", "bindings/python")
    modules = [Extension(ENGINE, files(*(f"{part}/*.cpp" for part in parts)))]
    if importlib.util.find_spec("torch") is not None:
        modules.append(Extension(TORCH, files("bindings/torch/*.cpp")))
    return [module for module in modules if module.sources]


def files(*patterns: str) -> list[str]:
    """Paths that match, relative to the repository's root, sorted: builds repeat."""
    return sorted(str(path) for pattern in patterns for path in Path().glob(pattern))


class Build(build_ext):
    """Compiles in parallel, and only what changed."""

    def run(self) -> None:
        # What an earlier build of another environment left there would be installed with this one.
        for path in [*Path(self.build_lib, "securecoll").glob("_torch*.so"), Path(self.build_lib, BUILT_FOR)]:
            path.unlink(missing_ok=True)
        super().run()
        if not (self.inplace or self.editable_mode):
            self._pack_kernels()

    def build_extension(self, ext: Extension) -> None:
        if ext.name == ENGINE:
            objects, libraries = self._compile_engine(ext)
        else:
            objects, libraries = self._compile_torch(ext)
        target = Path(self.get_ext_fullpath(ext.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        words = [*compiler(), *LINK, *map(str, objects), *shlex.split(os.environ.get("LDFLAGS", "")), *libraries]
        run([*words, "-o", str(target)])

    def copy_extensions_to_source(self) -> None:
        super().copy_extensions_to_source()
        built_for = Path(self.build_lib, BUILT_FOR)
        if built_for.exists():
            self.copy_file(str(built_for), str(BUILT_FOR))

    def _pack_kernels(self) -> None:
        """Puts what NVRTC needs, and cubins, where securecoll/cuda/modules.py looks for them."""
        root = Path(self.build_lib, KERNELS)
        shutil.rmtree(root, ignore_errors=True)
        for source in map(Path, files("kernels/cuda/*.cu", "kernels/cuda/*.cuh", *HEADERS)):
            target = root / source.relative_to("kernels")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
        nvcc = shutil.which("nvcc")
        for architecture in CUBINS if nvcc else ():
            target = root / "cuda" / f"{architecture}.cubin"
            words = [str(nvcc), f"-arch={architecture}", "-cubin", "-std=c++17", "-fmad=false", "-Ikernels"]
            run([*words, "kernels/cuda/securecoll.cu", "-o", str(target)])

    def _compile_engine(self, ext: Extension) -> tuple[list[Path], list[str]]:
        import nanobind

        nanobind_source = Path(nanobind.source_dir())
        # System includes: their warnings are not ours. nanobind asks for -fno-strict-aliasing.
        binding = ["-fno-strict-aliasing", "-isystem", nanobind.include_dir()]
        binding += ["-isystem", str(nanobind_source.parent / "ext" / "robin_map" / "include")]
        binding += [f"-I{path}" for path in self.include_dirs]
        flags = ["-std=c++17", "-O3", *COMMON, "-Ikernels"]
        commands = []
        for source in map(Path, ext.sources):
            commands.append((source, [*flags, *(binding if source.parts[0] == "bindings" else [])]))
        commands.append((nanobind_source / "nb_combined.cpp", [*flags, *binding, "-Os", "-DNDEBUG", "-w"]))
        return self._compile(commands, f"nanobind{nanobind.__version__}"), ["-lcrypto"]

    def _compile_torch(self, ext: Extension) -> tuple[list[Path], list[str]]:
        os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"  # else an older build of this very module is loaded
        import torch
        from torch.utils.cpp_extension import include_paths, library_paths

        version = torch.__version__.split("+")[0]
        built_for = Path(self.build_lib, BUILT_FOR)
        built_for.parent.mkdir(parents=True, exist_ok=True)
        built_for.write_text(
            '"""Written by setup.py: the torch release that the binding, securecoll._torch, was built for."""\n\n'
            f'TORCH_VERSION = "{version}"\n'
        )
        flags = ["-std=c++20", "-O2", "-g0", *COMMON, "-Ikernels"]
        flags += ["-DTORCH_API_INCLUDE_EXTENSION_H", "-DTORCH_EXTENSION_NAME=_torch"]
        flags += [
            "-DUSE_DISTRIBUTED",
            "-DUSE_C10D",
            f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        ]
        # torch's own pybind11 lies under its include path; another one in front of it would not know torch's types.
        for path in include_paths():
            flags += ["-isystem", path]
        flags += [f"-I{path}" for path in self.include_dirs]
        libraries = [f"-L{path}" for path in library_paths()]
        libraries += ["-lc10", "-ltorch", "-ltorch_cpu", "-ltorch_python"]  # no rpath: `import torch` comes first
        return self._compile([(Path(source), flags) for source in ext.sources], f"torch{version}"), libraries

    def _compile(self, sources: list[tuple[Path, list[str]]], built_with: str) -> list[Path]:
        """Compiles sources, each with its flags, into objects."""
        # Not build_temp: pip builds in a temporary one.
        folder = Path("build", "objects", f"{sys.implementation.cache_tag}-{built_with}")
        folder.mkdir(parents=True, exist_ok=True)
        jobs = []
        for source, flags in sources:
            target = folder / ("-".join(source.parts[-3:]) + ".o")
            words = [*compiler(), *shlex.split(os.environ.get("CPPFLAGS", "")), *flags]
            words += [*shlex.split(os.environ.get("CXXFLAGS", "")), "-MD", "-c", str(source), "-o", str(target)]
            jobs.append((words, target))
        stale = [job for job in jobs if self.force or is_stale(*job)]
        with ThreadPoolExecutor(JOBS) as pool:
            list(pool.map(compile_object, stale))
        return [target for _, target in jobs]


def compiler() -> list[str]:
    """The C++ compiler, as words of a command."""
    return shlex.split(os.environ.get("CXX", "c++"))


def is_stale(command: list[str], target: Path) -> bool:
    """Whether ``target`` has to be made again."""
    made_by, depfile = target.with_suffix(".cmd"), target.with_suffix(".d")
    if not (target.exists() and made_by.exists() and depfile.exists()):
        return True
    if made_by.read_text() != shlex.join(command):
        return True
    # "target.o: a.cpp a.hpp \<newline> b.hpp"
    dependencies = depfile.read_text().replace("\\\n", " ").split(":", 1)[1].split()
    made = target.stat().st_mtime_ns
    return any(not path.exists() or path.stat().st_mtime_ns > made for path in map(Path, dependencies))


def compile_object(job: tuple[list[str], Path]) -> None:
    """Runs one compiler command and records it."""
    command, target = job
    target.with_suffix(".cmd").unlink(missing_ok=True)
    run(command)
    target.with_suffix(".cmd").write_text(shlex.join(command))


def run(command: list[str]) -> None:
    """Runs a command, shown first; its failure ends the build with the compiler's own words."""
    print(shlex.join(command), flush=True)
    status = subprocess.run(command).returncode
    if status != 0:
        raise SystemExit(f"securecoll: the command above failed with status {status}")


setup(ext_modules=extensions(), cmdclass={"build_ext": Build})
