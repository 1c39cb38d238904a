"""A collective on a stream that is being captured into a graph is refused, and the communicator goes on."""

from __future__ import annotations

import functools
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from gpu_check.findings import Findings
from gpu_check.target import Target
from securecoll import Communicator, ConfigError
from tests.cuda.arrays import Array
from tests.groups import run as run_ranks

COUNT = 1000


def step(target: Target, findings: Findings) -> None:
    body = refused_when_captured if target.emulate else refused_while_captured
    with findings.check("an all_reduce under capture is refused on both ranks"), TemporaryDirectory() as folder:
        device = functools.partial(device_of, target)
        said = run_ranks(2, Path(folder), body, device=device, timeout=30.0)
        for text in said:
            assert "captured" in text, text
        findings.note(f"it says: {said[0]}")


def device_of(target: Target, rank: int) -> Any:
    return target.communicator_device(rank, options="capturing=1")


def refused_when_captured(comm: Communicator) -> str:
    """On a device all of whose streams are being captured, as the emulated one can be told."""
    assert comm.device is not None
    x = Array(comm.device, np.ones(COUNT, np.float32))
    said = refusal(comm, x)
    comm.barrier()
    return said


def refused_while_captured(comm: Communicator) -> str:
    """On a GPU: the calls before the capture and after it are right."""
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    assert comm.device is not None
    x = Array(comm.device, np.ones(COUNT, np.float32), stream.ptr)
    comm.all_reduce(x)
    assert (x.get() == 2).all()
    stream.begin_capture()
    try:
        said = refusal(comm, x)
    finally:
        stream.end_capture()
    comm.all_reduce(x)
    assert (x.get() == 4).all()
    return said


def refusal(comm: Communicator, x: Array) -> str:
    try:
        comm.all_reduce(x)
    except ConfigError as error:
        return str(error)
    return "it was not refused"
