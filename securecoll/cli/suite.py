"""The option that names a suite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from securecoll.suites import Suite

_Command = TypeVar("_Command", bound=Callable[..., Any])


def suite_option(meaning: str) -> Callable[[_Command], _Command]:
    """``--suite``, passed on as the name that programs give; ``meaning`` is what the command uses it for."""
    return click.option(
        "--suite",
        type=click.Choice([suite.title for suite in Suite]),
        default=Suite.AES_256_GCM.title,
        show_default=True,
        help=meaning,
    )
