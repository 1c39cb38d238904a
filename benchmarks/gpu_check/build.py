"""Builds the package and the kernels on the machine at hand, with what it has."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from importlib import util
from pathlib import Path

from gpu_check import cubins
from gpu_check.driver import Driver
from gpu_check.facts import openssl_headers
from gpu_check.findings import Findings, Skipped
from gpu_check.target import BUILT, OFFLINE, ROOT, Target

SITE = BUILT / "site"
"""Packages that the machine has none of, from OFFLINE."""
CUBINS = ROOT / "kernels" / "cuda"
"""Where the package looks for machine code when it runs from a checkout."""


def run(target: Target, findings: Findings) -> None:
    BUILT.mkdir(parents=True, exist_ok=True)
    with findings.check("packages that were brought along"):
        bring_packages(findings)
    kernels: Callable[[], dict[str, str | Exception]] = make_emulated if target.emulate else make_cubins
    with ThreadPoolExecutor(1) as pool:
        made = pool.submit(kernels)
        with findings.check("the package's extension modules"):
            make_extensions(target, findings)
        with findings.check("the engine can be imported"):
            engine = "import securecoll._engine as e; print(e.aead_name(), e.reduce_isa())"
            findings.note(f"host kernels: {spoken([sys.executable, '-c', engine]).strip()}")
        check_kernels(made, findings)
    with findings.check("the kernels' cost in machine code"):
        budget = [sys.executable, str(ROOT / "kernels" / "cuda" / "budget.py"), "--arch", "sm_90"]
        target.needs_gpu("CI has this as a test")
        findings.text("kernels/cuda/budget.py", spoken(budget))


def bring_packages(findings: Findings) -> None:
    wheels = sorted(OFFLINE.glob("*.whl"))
    missing = [name for name in ("cryptography", "numpy", "nanobind", "pytest") if util.find_spec(name) is None]
    if not wheels:
        if missing:
            raise RuntimeError(f"no {', '.join(missing)} here, and no wheel in {OFFLINE}: gpu_check.sh --prepare")
        raise Skipped("none were brought, and none are missing")
    if "cryptography" not in missing and "pytest" not in missing:
        raise Skipped("none are missing")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--upgrade"]
    spoken([*install, "--target", str(SITE), *map(str, wheels)])
    findings.note(f"installed for this run: {', '.join(wheel.name.split('-')[0] for wheel in wheels)}")


def make_extensions(target: Target, findings: Findings) -> None:
    headers = openssl_headers()
    if headers is None:
        raise RuntimeError("no header openssl/evp.h: install libssl-dev, or run gpu_check.sh --prepare elsewhere")
    flags, links = os.environ.get("CPPFLAGS", ""), os.environ.get("LDFLAGS", "")
    if headers != Path("/usr/include"):
        flags += f" -I{headers}"
        links += f" -L{linkable_libcrypto()}"
        findings.note(f"libcrypto's headers are those of {headers}")
    environment = {"CPPFLAGS": flags, "LDFLAGS": links}
    environment["SECURECOLL_BUILD_JOBS"] = "2" if target.emulate else str(max(2, (os.cpu_count() or 2) - 4))
    spoken([sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"], environment)


def linkable_libcrypto() -> Path:
    """A folder in which the linker finds the library by the name that only development packages bring."""
    found = re.search(r"libcrypto\.so\.3 .*=> (\S+)", spoken(["ldconfig", "-p"]))
    if found is None:
        raise RuntimeError("no libcrypto.so.3 on this machine")
    link = BUILT / "link" / "libcrypto.so"
    link.parent.mkdir(exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(found[1])
    return link.parent


def make_emulated() -> dict[str, str | Exception]:
    """Everything that later steps load, so that none of their time goes into building."""
    from tests.cuda.conftest import SOURCES
    from tests.emulator.conftest import PROBE
    from tests.emulator.emulator import build

    for (mode, _), sources in SOURCES.items():
        build(sources, mode)
    build(PROBE)
    return {"the emulator's builds": "up to date"}


def make_cubins() -> dict[str, str | Exception]:
    """What each source was compiled by, or why it was not."""
    capability = Driver().capability
    sources = dict.fromkeys(source for kind in ("tensor", "portable", "names") for source in cubins.sources(kind))

    def make(source: Path) -> str | Exception:
        try:
            return f"by {cubins.make(source, capability)}"
        except (RuntimeError, OSError) as error:
            return error

    with ThreadPoolExecutor(len(sources)) as pool:
        results = dict(zip((source.name for source in sources), pool.map(make, sources), strict=True))
    if cubins.cubin(cubins.SECURECOLL).exists():
        (CUBINS / f"sm_{capability}.cubin").write_bytes(cubins.cubin(cubins.SECURECOLL).read_bytes())
    return results


def check_kernels(made: Future[dict[str, str | Exception]], findings: Findings) -> None:
    results: dict[str, str | Exception] = {}
    with findings.check("kernels"):
        results = made.result()
    for name, result in results.items():
        with findings.check(name):
            if isinstance(result, Exception):
                raise result
            findings.note(f"{name}: {result}")


def spoken(command: list[str], environment: dict[str, str] | None = None) -> str:
    """What a command prints. Raises RuntimeError with its last words when it fails."""
    done = subprocess.run(command, cwd=ROOT, env=os.environ | (environment or {}), capture_output=True, text=True)
    if done.returncode:
        lines = (done.stdout + done.stderr).splitlines()
        told = "\n".join(line[:500] for line in lines[-25:])
        raise RuntimeError(
            f"{Path(command[0]).name} {' '.join(command[1:4])} ... ended with {done.returncode}:\n{told}"
        )
    return done.stdout
