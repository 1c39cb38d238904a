"""The checks of ``securecoll doctor``. Each looks at one thing and says what it found; none changes anything."""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
import resource
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from securecoll import _engine
from securecoll.cli.findings import Finding, State
from securecoll.cli.units import sized
from securecoll.cuda import Confidential, confidential
from securecoll.shape import Shape

SHARED_MEMORY = Path("/dev/shm")
CPUINFO = Path("/proc/cpuinfo")
KERNEL_FLAGS = ("aes", "pclmulqdq", "vaes", "vpclmulqdq", "avx2", "avx512f", "avx512bw", "avx512vl")
"""CPU flags that the kernels ask CPUID for, as /proc/cpuinfo spells them."""
GUEST_DEVICES = {
    "Intel TDX": ("/dev/tdx_guest", "tdx_guest"),
    "AMD SEV-SNP": ("/dev/sev-guest", "sev_snp"),
}
"""Kinds of confidential VM: the guest device, and the flag in /proc/cpuinfo."""


def cpu_flags() -> frozenset[str]:
    """The flags of the first processor, as the kernel spells them; empty where it tells none."""
    try:
        lines = CPUINFO.read_text().splitlines()
    except OSError:
        return frozenset()
    return next((frozenset(line.split(":", 1)[1].split()) for line in lines if line.startswith("flags")), frozenset())


def cpu() -> Finding:
    """Which of the instruction sets that the kernels know this CPU has."""
    flags = cpu_flags()
    present = [flag for flag in KERNEL_FLAGS if flag in flags]
    values: dict[str, object] = {"machine": platform.machine(), "flags": present, "cores": os.cpu_count()}
    found = f"{platform.machine()}, {os.cpu_count()} cores: {' '.join(present) or 'no flag that the kernels use'}"
    if {"vaes", "vpclmulqdq", "avx2"} <= flags:
        return Finding("cpu", State.OK, found, values=values)
    advice = "Without VAES and VPCLMULQDQ records go through libcrypto and a private copy: correct, and slower."
    if "hypervisor" in flags:
        advice += " In a VM, look whether the host passes them on (QEMU: -cpu host)."
    return Finding("cpu", State.WARN, found, advice, values)


def shared_memory(ranks: int) -> Finding:
    """Whether /dev/shm holds the segments of a group of ``ranks`` ranks. A group of one has none."""
    shape = Shape.of(ranks)
    segment_bytes = _engine.segment_bytes(ranks, shape.slot_bytes, shape.depth, ranks) if ranks > 1 else 0
    needed = ranks * segment_bytes
    try:
        space = os.statvfs(SHARED_MEMORY)
    except OSError as error:
        return Finding(
            "shared memory",
            State.FAIL,
            f"{SHARED_MEMORY}: {error.strerror}",
            f"Mount a tmpfs there of {needed} bytes.",
        )
    size, free = space.f_blocks * space.f_frsize, space.f_bavail * space.f_frsize
    values: dict[str, object] = {
        "path": str(SHARED_MEMORY),
        "size_bytes": size,
        "free_bytes": free,
        "needed_bytes": needed,
        "ranks": ranks,
        "segment_bytes": segment_bytes,
    }
    found = f"{SHARED_MEMORY}: {sized(free)} free of {sized(size)}; {ranks} ranks need {sized(needed)}"
    if free >= needed:
        return Finding("shared memory", State.OK, found, values=values)
    wanted = -(-needed // 2**20)
    advice = (
        f"Make it at least {wanted} MiB: `mount -o remount,size={wanted}M {SHARED_MEMORY}`, "
        f"`docker run --shm-size={wanted}m`, or an emptyDir volume with medium: Memory; or run fewer ranks here."
    )
    return Finding("shared memory", State.FAIL, found, advice, values)


def locked_memory() -> Finding:
    """Whether keys can be locked in memory: the arena makes one, and the limit is told."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    limit = "no limit" if soft == resource.RLIM_INFINITY else f"limit {soft // 1024} KiB"
    values: dict[str, object] = {"limit_bytes": None if soft == resource.RLIM_INFINITY else soft}
    try:
        _engine.Secret.random(32).erase()
    except RuntimeError as error:
        return Finding(
            "locked memory",
            State.FAIL,
            f"{limit}; {error}",
            "Keys are never kept in memory that may be swapped. Raise the limit: `ulimit -l unlimited`, "
            "LimitMEMLOCK=infinity in a systemd unit, or `docker run --ulimit memlock=-1`.",
            values,
        )
    return Finding("locked memory", State.OK, f"{limit}; a key was locked", values=values)


def torch() -> Finding:
    """Whether torch loads, and the binding that was built for it."""
    if importlib.util.find_spec("torch") is None:
        values: dict[str, object] = {"version": None, "binding": False}
        return Finding("torch", State.OK, "not installed; NumPy arrays need none", values=values)
    values = {"version": version("torch"), "binding": False}
    try:
        importlib.import_module("torch")
        binding = importlib.import_module("securecoll.torch")._binding()
    except Exception as error:
        advice = "Without the binding only NumPy arrays and the like work."
        return Finding("torch", State.WARN, f"{version('torch')}: {error}", advice, values)
    values["binding"] = True
    found = f"{version('torch')}; the binding was built for {binding.TORCH_VERSION} and loads"
    if os.environ.get("TORCH_DISTRIBUTED_DEBUG", "").upper() == "DETAIL":
        advice = (
            "TORCH_DISTRIBUTED_DEBUG=DETAIL opens a gloo group, in plaintext, beside every group, so the backend "
            "refuses to start: set it to INFO, or unset it."
        )
        return Finding("torch", State.WARN, found, advice, values)
    return Finding("torch", State.OK, found, values=values)


def mpi() -> Finding:
    """Whether mpi4py finds an MPI library."""
    try:
        values: dict[str, object] = {"mpi4py": version("mpi4py"), "library": None}
    except PackageNotFoundError:
        found = "not installed; only Communicator.from_mpi needs it"
        return Finding("mpi", State.OK, found, values={"mpi4py": None, "library": None})
    # In a process of its own: MPI is initialised, or not, once in a process, and that is not the doctor's to decide.
    probe = "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; print(MPI.Get_library_version())"
    run = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True)
    if run.returncode != 0:
        error = (run.stderr.strip().splitlines() or [f"exit status {run.returncode}"])[-1]
        advice = "Install one: `pip install mpich`, or your cluster's."
        return Finding("mpi", State.WARN, f"mpi4py {values['mpi4py']} finds no MPI library: {error}", advice, values)
    library = " ".join(run.stdout.replace("\x00", "").split("\n")[0].split())
    return Finding("mpi", State.OK, f"mpi4py {values['mpi4py']}, {library}", values={**values, "library": library})


def gpu() -> list[Finding]:
    """The NVIDIA GPUs of this machine, and whether they are in confidential-computing mode."""
    try:
        import pynvml
    except ImportError:
        found = "not looked for: nvidia-ml-py is not installed; collectives on CPU memory need no GPU"
        return [Finding("gpu", State.OK, found, values={"gpus": []})]
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        found = f"none ({error}); collectives on CPU memory need none"
        return [Finding("gpu", State.OK, found, values={"gpus": []})]
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        names = [_text(pynvml.nvmlDeviceGetName(handle)) for handle in handles]
        listed = ", ".join(f"{names.count(name)}x {name}" for name in dict.fromkeys(names)) or "none"
        devices = Finding(
            "gpu",
            State.WARN if names else State.OK,
            f"{listed}, driver {_text(pynvml.nvmlSystemGetDriverVersion())}",
            "Collectives on GPUs have run on an emulated device only: see docs/gpu.md before you rely on them."
            if names
            else "",
            {"gpus": names},
        )
        return [devices, _gpu_confidential()] if names else [devices]
    finally:
        pynvml.nvmlShutdown()


def _gpu_confidential() -> Finding:
    """Whether the GPUs' memory is protected from the host."""
    subject = "gpu protection"
    mode = confidential()
    values = {"mode": None if mode is Confidential.UNKNOWN else mode.value}
    match mode:
        case Confidential.UNKNOWN:
            advice = "Confidential computing takes a Hopper or later GPU, its driver, and a confidential VM."
            return Finding(subject, State.WARN, "confidential-computing mode unknown", advice, values)
        case Confidential.OFF:
            advice = "The host can read GPU memory. To prevent it, turn confidential-computing mode on from the host."
            return Finding(subject, State.WARN, "confidential-computing mode is off", advice, values)
        case Confidential.DEVELOPERS:
            advice = "Developer tools can read GPU memory. Turn that mode off for data that matters."
            return Finding(subject, State.WARN, "confidential-computing mode is on, for developers", advice, values)
        case Confidential.ON:
            return Finding(subject, State.OK, "confidential-computing mode is on", values=values)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def guest() -> Finding:
    """Whether this is a confidential VM, as far as its own kernel says; only attestation proves it."""
    flags = cpu_flags()
    for kind, (device, flag) in GUEST_DEVICES.items():
        if Path(device).exists() or flag in flags:
            found = f"the kernel says that this is an {kind} guest (attestation alone proves it)"
            return Finding("cpu protection", State.OK, found, values={"kind": kind})
    return Finding(
        "cpu protection",
        State.WARN,
        "no TDX or SEV-SNP guest: whoever runs this machine can read its memory, keys included",
        "securecoll protects what leaves the process. To keep the machine's owner out too, run in a confidential VM.",
        {"kind": None},
    )
