"""Whether the GPUs of this machine are in confidential-computing mode, as their driver says."""

from __future__ import annotations

from enum import Enum

FROM_BEFORE = (3, 13)
"""NVML's errors for a GPU or a driver from before there was such a mode: not supported, function not found."""


class Confidential(Enum):
    """What the driver says of confidential computing. Only attestation proves it."""

    ON = "on"
    DEVELOPERS = "devtools"
    """On, with memory that developer tools can read."""
    OFF = "off"
    UNKNOWN = "unknown"
    """The driver does not say, or nvidia-ml-py is not installed."""


def confidential() -> Confidential:
    """The state of this machine's GPUs; the mode is one for all."""
    try:
        import pynvml
    except ImportError:
        return Confidential.UNKNOWN
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return Confidential.UNKNOWN
    try:
        state = pynvml.nvmlSystemGetConfComputeState()
    except pynvml.NVMLError as error:
        return Confidential.OFF if getattr(error, "value", None) in FROM_BEFORE else Confidential.UNKNOWN
    finally:
        pynvml.nvmlShutdown()
    if not state.ccFeature:
        return Confidential.OFF
    return Confidential.DEVELOPERS if state.devToolsMode else Confidential.ON
