"""``securecoll doctor`` finds what is there, and says what to do about what is not."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from securecoll import _engine
from securecoll.cli import checks, doctor, main, rates
from securecoll.cli.findings import Finding, State
from securecoll.shape import Shape
from securecoll.suites import Suite


def test_the_report_names_the_chosen_kernels_and_measures_them() -> None:
    result = CliRunner().invoke(main, ["doctor", "--json"])
    findings = {finding["subject"]: finding for finding in json.loads(result.stdout)}
    for suite in Suite:
        assert findings[suite.title]["values"]["sets"] == _engine.aead_names(suite)
        if _engine.aead_names(suite):
            assert findings[suite.title]["values"]["set"] == _engine.aead_name(suite)
    assert findings["reductions"]["values"]["isa"] == _engine.reduce_isa()
    for suite, beside in ((Suite.AES_256_GCM, "cryptography"), (Suite.AEGIS_256X4, "aes_256_gcm")):
        for name in ("seal", "open", f"{beside}_seal", f"{beside}_open") if _engine.aead_names(suite) else ():
            rate = findings[suite.title]["values"][f"{name}_gigabytes_per_second"]
            assert 0.01 < rate < 200, name
    needed = findings["shared memory"]["values"]
    assert needed["needed_bytes"] == 2 * needed["segment_bytes"] > 0
    assert {"cpu", "torch", "mpi", "gpu", "locked memory", "cpu protection"} <= findings.keys()
    failed = [finding for finding in findings.values() if finding["state"] == "fail"]
    assert result.exit_code == (1 if failed else 0), failed


def test_whatever_needs_attention_says_what_to_do() -> None:
    for finding in doctor.examine(ranks=2):
        assert finding.advice or finding.state is State.OK, finding


def test_a_failed_finding_is_exit_status_1(monkeypatch: pytest.MonkeyPatch) -> None:
    for state, code in ((State.OK, 0), (State.WARN, 0), (State.FAIL, 1)):
        monkeypatch.setattr(doctor, "examine", lambda ranks, state=state: [Finding("x", state, "[found]", "do this")])
        result = CliRunner().invoke(main, ["doctor"])
        assert result.exit_code == code
        assert "[found]" in result.output and "do this" in result.output and state.value in result.output


def test_kernels_with_wrong_answers_are_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(suite: int) -> list[str]:
        raise RuntimeError("vaes256 gave a wrong answer")

    monkeypatch.setattr(rates, "_engine", types.SimpleNamespace(aead_names=refuse))
    found = rates.aead(Suite.AES_256_GCM)
    assert found.state is State.FAIL
    assert "wrong answer" in found.found and found.advice


def test_kernels_slower_than_cryptography_are_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = {"seal": 5.0, "cryptography_seal": 5.0, "open": 5.0, "cryptography_open": 5.0}
    monkeypatch.setattr(rates, "measure", lambda suite: measured)
    assert rates.aead(Suite.AES_256_GCM).state is State.OK
    measured["cryptography_open"] = 5.0 / rates.SLOW + 0.1
    assert rates.aead(Suite.AES_256_GCM).state is State.WARN


def test_a_cpu_that_runs_no_kernels_of_suite_4_is_told_and_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "_engine", types.SimpleNamespace(aead_names=lambda suite: []))
    found = rates.aead(Suite.AEGIS_256X4)
    assert found.state is State.OK
    assert "no AES instructions" in found.found


def statvfs(free: int) -> Any:
    return lambda path: types.SimpleNamespace(f_frsize=4096, f_blocks=free // 4096, f_bavail=free // 4096)


@pytest.mark.parametrize("ranks", [2, 64])
def test_shared_memory_that_is_a_page_short_fails_with_sizes(monkeypatch: pytest.MonkeyPatch, ranks: int) -> None:
    shape = Shape.of(ranks)
    needed = ranks * _engine.segment_bytes(ranks, shape.slot_bytes, shape.depth, ranks)
    monkeypatch.setattr(os, "statvfs", statvfs(free=needed))
    assert checks.shared_memory(ranks).state is State.OK
    monkeypatch.setattr(os, "statvfs", statvfs(free=needed - 4096))
    short = checks.shared_memory(ranks)
    assert short.state is State.FAIL
    assert short.values["needed_bytes"] == needed
    assert short.values["free_bytes"] == needed - 4096
    assert "--shm-size" in short.advice


def test_a_group_of_one_needs_no_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", statvfs(free=0))
    assert checks.shared_memory(ranks=1).state is State.OK


def test_missing_shared_memory_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(checks, "SHARED_MEMORY", tmp_path / "missing")
    assert checks.shared_memory(ranks=2).state is State.FAIL


def test_memory_that_cannot_be_locked_fails_and_tells_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(size: int) -> None:
        raise RuntimeError("cannot lock 64 bytes")

    engine: Any = types.SimpleNamespace(Secret=types.SimpleNamespace(random=refuse))
    monkeypatch.setattr(checks, "_engine", engine)
    monkeypatch.setattr(resource, "getrlimit", lambda which: (8 * 1024, 8 * 1024))
    found = checks.locked_memory()
    assert found.state is State.FAIL
    assert "8 KiB" in found.found and "cannot lock" in found.found
    assert "ulimit -l" in found.advice


@pytest.mark.parametrize("flags", ["aes avx2", "aes avx2 vaes vpclmulqdq hypervisor", "hypervisor"])
def test_a_cpu_without_vector_aes_is_a_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, flags: str) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nflags\t\t: fpu {flags}\n\nprocessor\t: 1\n")
    monkeypatch.setattr(checks, "CPUINFO", tmp_path / "cpuinfo")
    found = checks.cpu()
    assert found.values["flags"] == [flag for flag in checks.KERNEL_FLAGS if flag in flags.split()]
    assert found.state is (State.OK if "vaes" in flags.split() else State.WARN)
    assert ("-cpu host" in found.advice) is (flags == "hypervisor")


def test_a_confidential_vm_is_recognised_by_its_flag(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(checks, "GUEST_DEVICES", {"Intel TDX": (str(tmp_path / "none"), "tdx_guest")})
    for flags, state in (("fpu tdx_guest", State.OK), ("fpu", State.WARN)):
        (tmp_path / "cpuinfo").write_text(f"flags\t\t: {flags}\n")
        monkeypatch.setattr(checks, "CPUINFO", tmp_path / "cpuinfo")
        assert checks.guest().state is state


def test_a_binding_that_does_not_fit_torch_says_how_to_build_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    built_for = types.SimpleNamespace(TORCH_VERSION="1.0.0")
    monkeypatch.setitem(sys.modules, "securecoll.torch._built_for", built_for)
    found = checks.torch()
    assert found.state is State.WARN
    assert "built for torch 1.0.0" in found.found and "--no-build-isolation" in found.found
    assert found.values["binding"] is False


def test_a_debug_level_that_opens_a_plaintext_group_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("securecoll._torch")
    assert checks.torch().state is State.OK
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "detail")
    found = checks.torch()
    assert found.state is State.WARN
    assert "plaintext" in found.advice


class FakeGpus(types.ModuleType):
    """What of pynvml the doctor calls, for GPUs that are not there."""

    class NVMLError(Exception):
        pass

    def __init__(self, names: list[str], feature: int = 0, tools: int = 0, fails: bool = False) -> None:
        super().__init__("pynvml")
        self.names, self.feature, self.tools, self.fails, self.closed = names, feature, tools, fails, False

    def nvmlInit(self) -> None:
        if self.fails:
            raise self.NVMLError("Driver Not Loaded")

    def nvmlShutdown(self) -> None:
        self.closed = True

    def nvmlDeviceGetCount(self) -> int:
        return len(self.names)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetName(self, handle: int) -> str:
        return self.names[handle]

    def nvmlSystemGetDriverVersion(self) -> bytes:
        return b"580.1"

    def nvmlSystemGetConfComputeState(self) -> Any:
        if self.feature < 0:
            raise self.NVMLError("Not Supported")
        return types.SimpleNamespace(ccFeature=self.feature, devToolsMode=self.tools)


@pytest.mark.parametrize(
    ("feature", "tools", "state", "mode"),
    [(1, 0, State.OK, "on"), (1, 1, State.WARN, "devtools"), (0, 0, State.WARN, "off"), (-1, 0, State.WARN, None)],
)
def test_gpus_are_listed_with_their_protection(
    monkeypatch: pytest.MonkeyPatch, feature: int, tools: int, state: State, mode: str | None
) -> None:
    gpus = FakeGpus(["NVIDIA H200", "NVIDIA H200"], feature, tools)
    monkeypatch.setitem(sys.modules, "pynvml", gpus)
    listed, protection = checks.gpu()
    assert "2x NVIDIA H200" in listed.found and "580.1" in listed.found
    assert protection.state is state
    assert protection.values["mode"] == mode
    assert gpus.closed


def test_no_gpu_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeGpus([], fails=True))
    (found,) = checks.gpu()
    assert found.state is State.OK and "Driver Not Loaded" in found.found
    monkeypatch.setitem(sys.modules, "pynvml", None)
    (found,) = checks.gpu()
    assert found.state is State.OK and "not installed" in found.found


def test_mpi4py_is_asked_for_its_library_without_initialising_mpi_here() -> None:
    pytest.importorskip("mpi4py")
    before = "mpi4py.MPI" in sys.modules
    found = checks.mpi()
    assert found.state is State.OK, found
    assert found.values["library"] and str(found.values["library"]) in found.found
    assert ("mpi4py.MPI" in sys.modules) is before


def test_mpi4py_without_a_library_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mpi4py")
    failed = subprocess.CompletedProcess([], 1, "", "Traceback\nRuntimeError: cannot load MPI library\n")
    monkeypatch.setattr(subprocess, "run", lambda *arguments, **options: failed)
    found = checks.mpi()
    assert found.state is State.WARN
    assert "cannot load MPI library" in found.found and found.advice
