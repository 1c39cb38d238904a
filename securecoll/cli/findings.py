"""What a check of ``securecoll doctor`` found, and how it is shown."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from enum import Enum

from rich.console import Console
from rich.markup import escape


class State(str, Enum):
    """How a finding counts: only ``FAIL`` makes the command fail."""

    OK = "OK"
    WARN = "warn"
    FAIL = "fail"


_COLOUR = {State.OK: "green", State.WARN: "yellow", State.FAIL: "bold red"}


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    subject: str
    state: State
    found: str
    advice: str = ""
    """What to do; empty only where nothing has to be done."""
    values: dict[str, object] = field(default_factory=dict)
    """What ``found`` says, for programs: names end in their unit."""


def render(findings: Iterable[Finding], console: Console) -> None:
    """Print findings, one or two lines each, under their subjects."""
    for finding in findings:
        colour = _COLOUR[finding.state]
        state = f"[{colour}]{finding.state.value:<4}[/{colour}]"
        console.print(f"{state}  [bold]{finding.subject:<14}[/bold] {escape(finding.found)}", soft_wrap=True)
        if finding.advice:
            console.print(f"{'':<20} → {escape(finding.advice)}", soft_wrap=True)


def to_json(findings: Iterable[Finding]) -> str:
    """The findings as a JSON array of objects with the fields of :class:`Finding`."""
    return json.dumps([asdict(finding) for finding in findings], indent=2)
