"""The kernels as users get them: loaded by CuPy, from a cubin and by NVRTC."""

from __future__ import annotations

import time
from unittest import mock

from gpu_check.findings import Findings, Skipped
from gpu_check.target import Target


def run(target: Target, findings: Findings) -> None:
    from securecoll import cuda

    findings.note(f"confidential mode, as the driver says: {cuda.confidential().value}")
    with findings.check("the device opens"):
        device = target.communicator_device(0)
        engine = device.engine
        origin = device.module.origin if device.module else "the emulator"
        findings.note(f"{engine.name}, {engine.multiprocessors} SMs, kernels from {origin}")
    with findings.check("memory goes there and back"):
        at = engine.allocate(1 << 20)
        data = bytes(range(256)) * 4096
        engine.write(at, data)
        assert engine.read(at, len(data)) == data
        engine.release(at)
    with findings.check("NVRTC compiles the kernels, with the flags of the cubin"):
        target.needs_gpu("the emulator's compiler is the host's")
        from securecoll.cuda import modules

        begun = time.monotonic()
        with mock.patch.object(modules.Path, "exists", return_value=False):
            module = modules.load(0)
        if not module.origin.startswith("NVRTC"):
            raise Skipped(f"CuPy loaded {module.origin}")
        assert set(module.functions) == set(modules.KERNELS)
        findings.note(f"NVRTC took {time.monotonic() - begun:.1f} s")
