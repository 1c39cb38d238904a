"""The tests of torch's suite that need not pass over securecoll, and why. docs/torch.md shows the same table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Excepted:
    """One test that may fail."""

    test: str
    names: tuple[str, ...]
    """Under which names of the backend it fails."""
    why: str
    only_under_load: bool = False
    """It fails when the machine is busy, and passes else."""


_WORDS = "compares with the words of gloo's error; securecoll's names the ranks that did not come, too"

EXCEPTED = (
    Excepted(
        "test_ddp_logging_data_cpu",
        ("securecoll", "gloo"),
        "compares the name that DistributedDataParallel logs with the one that the group was made with; for every "
        "backend from outside, torch logs `custom`",
    ),
    Excepted("test_monitored_barrier_gloo", ("gloo",), _WORDS),
    Excepted("test_monitored_barrier_gloo_rank_0_timeout", ("gloo",), _WORDS),
    Excepted("test_monitored_barrier_gloo_subgroup", ("gloo",), _WORDS),
)


def excepted(test: str, name: str) -> Excepted | None:
    """The exception for a test when the suite sees this name of the backend."""
    return next((e for e in EXCEPTED if e.test == test and name in e.names), None)


def table() -> str:
    """The rows for docs/torch.md."""
    rows = ["| test | as | why it does not pass |\n|---|---|---|\n"]
    for e in EXCEPTED:
        load = " (only on a busy machine)" if e.only_under_load else ""
        rows.append(f"| `{e.test}` | {', '.join(e.names)} | {e.why}{load} |\n")
    return "".join(rows)
