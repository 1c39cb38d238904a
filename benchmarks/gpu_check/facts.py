"""What machine this is."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from gpu_check.driver import Driver
from gpu_check.findings import Findings, Skipped
from gpu_check.target import Target

GPU = (
    "name",
    "driver_version",
    "compute_cap",
    "memory.total",
    "clocks.sm",
    "clocks.max.sm",
    "clocks.mem",
    "power.limit",
    "pcie.link.gen.current",
    "pcie.link.gen.max",
    "pcie.link.width.current",
)
COMMANDS = {
    "confidential mode": ["nvidia-smi", "conf-compute", "-f"],
    "nvcc": ["nvcc", "--version"],
    "compute-sanitizer": ["compute-sanitizer", "--version"],
    "C++ compiler": ["c++", "--version"],
}
PACKAGES = ("torch", "cupy-cuda13x", "cupy-cuda12x", "numpy", "cryptography", "nanobind", "setuptools", "mpi4py")
PACKAGES += ("nvidia-ml-py", "pytest")


def run(target: Target, findings: Findings) -> None:
    table = findings.table("Machine", "what", "value")
    findings.row(table, "system", f"{platform.platform()}, {os.cpu_count()} cores")
    for what, value in gpu().items():
        findings.row(table, what, value)
    for what, command in COMMANDS.items():
        findings.row(table, what, last_line(command))
    findings.row(table, "Python", f"{sys.version.split()[0]} at {sys.executable}")
    for package in PACKAGES:
        try:
            findings.row(table, package, metadata.version(package))
        except metadata.PackageNotFoundError:
            findings.row(table, package, "not installed")
    findings.row(table, "libcrypto's headers", str(openssl_headers() or "not found"))
    findings.row(table, "memory for segments", last_line(["df", "-h", "/dev/shm"]))
    if not target.emulate:
        with findings.check("a GPU is there"):
            driver = Driver()
            findings.row(table, "CUDA of the driver", driver.version)
            findings.row(table, "SMs", driver.attribute("multiprocessors"))
            findings.row(table, "highest clock (MHz)", driver.attribute("clock_khz") // 1000)
            findings.row(table, "shared memory of a CTA, at most (bytes)", driver.attribute("shared_optin"))
            if driver.capability < 80:
                raise Skipped(f"compute capability {driver.capability / 10} is older than 8.0")


def gpu() -> dict[str, str]:
    """What nvidia-smi says of the first GPU."""
    if shutil.which("nvidia-smi") is None:
        return {"GPU": "no nvidia-smi"}
    asked = ["nvidia-smi", "-i", "0", f"--query-gpu={','.join(GPU)}", "--format=csv,noheader"]
    values = last_line(asked).split(", ")
    return dict(zip(GPU, values, strict=True)) if len(values) == len(GPU) else {"GPU": ", ".join(values)}


def last_line(command: list[str]) -> str:
    """Of what a command prints, or that there is none of it."""
    if shutil.which(command[0]) is None:
        return "not found"
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except subprocess.TimeoutExpired:
        return "does not answer"
    lines = [line.strip() for line in (done.stdout or done.stderr).splitlines() if line.strip()]
    # A compiler's version stands in its first line.
    return (lines[0] if command[0] == "c++" else lines[-1]) if lines else f"status {done.returncode}"


def openssl_headers() -> Path | None:
    """The folder that a compiler finds libcrypto's headers in, or has to be given."""
    from gpu_check.target import OFFLINE

    places = [Path("/usr/include"), Path("/usr/local/include"), Path(sys.prefix) / "include", OFFLINE / "include"]
    return next((place for place in places if (place / "openssl" / "evp.h").exists()), None)
