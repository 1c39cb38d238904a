"""Bytes on the command line."""

from __future__ import annotations

from typing import Any

import click

SUFFIXES = {"K": 10, "M": 20, "G": 30}
"""Binary powers."""


class Size(click.ParamType[int]):
    """A number of bytes with an optional binary suffix: ``8``, ``64K``, ``64M``, ``1G``."""

    name = "bytes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number, or an error that says how to write it."""
        if isinstance(value, int):
            return value
        text = str(value).upper()
        shift = SUFFIXES.get(text[-1:], 0)
        digits = text[:-1] if shift else text
        if not (digits.isascii() and digits.isdigit()):
            self.fail(f"{value!r} is not a number of bytes; write 8, 64K, 64M or 1G", param, ctx)
        return int(digits) << shift


def sized(count: int) -> str:
    """``count`` bytes, readably: exact where a binary unit allows it, else to one decimal."""
    for suffix, shift in reversed(SUFFIXES.items()):
        if count >= 1 << shift:
            exact = count % (1 << shift) == 0
            return f"{count >> shift} {suffix}iB" if exact else f"{count / (1 << shift):.1f} {suffix}iB"
    return f"{count} B"
