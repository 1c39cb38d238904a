"""``securecoll plan``: what one rank does for a collective, what was proven of it, and a picture."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from securecoll.codes import Collective
from securecoll.plan.ir import INPUT, Block, Plan, Record, Step, Stream, records

NAMES = {collective.name.lower(): collective for collective in Collective}
SUFFIXES = {"K": 10, "M": 20, "G": 30}


class Size(click.ParamType[int]):
    """A number of bytes with an optional binary suffix: ``8``, ``64K``, ``64M``, ``1G``."""

    name = "bytes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        text = str(value).upper().removesuffix("B").removesuffix("I")
        shift = SUFFIXES.get(text[-1:], 0)
        digits = text[:-1] if shift else text
        if not (digits.isascii() and digits.isdigit()):
            self.fail(f"{value!r} is not a number of bytes; write 8, 64K, 64M or 1G", param, ctx)
        return int(digits) << shift


def sized(count: int) -> str:
    """Bytes, exactly where a binary unit allows it and else to one decimal."""
    for suffix, shift in reversed(SUFFIXES.items()):
        if count >= 1 << shift:
            whole, rest = divmod(count, 1 << shift)
            return f"{count / (1 << shift):.1f} {suffix}iB" if rest else f"{whole} {suffix}iB"
    return f"{count} B"


def spelled(source: Block | Record, plan: Plan, length: int) -> str:
    """A block, or a run of records, in words."""
    if isinstance(source, Block):
        name = "input" if source.buffer == INPUT else "output"
        return f"{name}[{source.offset}:{source.offset + source.length}]"
    peer = source.lane % plan.size
    lane = f"rank {peer}'s lane" if source.lane < plan.size else f"rank {peer}'s lane to all"
    return f"{lane}, {stream_name(source.stream)} {numbers(source.record, plan, length)}"


def stream_name(stream: Stream) -> str:
    """A link or sender stream."""
    return f"sender {stream.writer}" if stream.reader < 0 else f"link {stream.writer}→{stream.reader}"


def numbers(first: int, plan: Plan, length: int) -> str:
    """The record numbers of a step."""
    last = first + records(length, plan.chunk) - 1
    return f"#{first}" if first == last else f"#{first}-{last}"


def written(step: Step, plan: Plan) -> str:
    """Where a step's result goes."""
    parts = [] if step.block is None or step.op.name == "SEAL" else [spelled(step.block, plan, step.length)]
    if step.lanes:
        lanes = ["all" if lane == plan.size else f"rank {lane}" for lane in step.lanes]
        sealed = "" if step.stream is None else f", {stream_name(step.stream)} {numbers(step.record, plan, step.length)}"
        parts.append(f"to {', '.join(lanes)}{sealed}")
    return "\n".join(parts)


def taken(step: Step, plan: Plan) -> str:
    """What a step works on, in order."""
    sources = step.sources or ((step.block,) if step.block is not None else ())
    return "\n".join(spelled(source, plan, step.length) for source in sources)


def table_of(plan: Plan) -> Table:
    """One row per step of a rank."""
    table = Table(title=f"rank {plan.rank} of {plan.size}", title_justify="left", show_lines=False, box=None)
    table.add_column("step", justify="right")
    for name in ("does", "bytes", "from", "to", "after"):
        table.add_column(name, overflow="fold")
    for index, step in enumerate(plan.steps):
        cells = (
            step.op.name + (" scaled" if step.scale else "") + (" finished" if step.finish else ""),
            sized(step.length),
            taken(step, plan),
            written(step, plan),
            ", ".join(map(str, step.after)),
        )
        table.add_row(str(index), *map(escape, cells))
    return table
