"""``securecoll doctor``: what this machine offers, what is chosen, how fast it is, and what to do about the rest."""

from __future__ import annotations

import click
from rich.console import Console

from securecoll.cli import checks, rates
from securecoll.cli.findings import Finding, State, render, to_json


def examine(ranks: int) -> list[Finding]:
    """All findings, for ``ranks`` ranks on this machine. Takes a few seconds, most of them for torch to load."""
    return [
        checks.cpu(),
        checks.guest(),
        rates.aead(),
        rates.reductions(),
        checks.shared_memory(ranks),
        checks.locked_memory(),
        checks.torch(),
        checks.mpi(),
        *checks.gpu(),
    ]


@click.command()
@click.option(
    "--ranks", type=click.IntRange(min=1), default=2, show_default=True, help="Ranks to run on this machine."
)
@click.option("--json", "as_json", is_flag=True, help="Print findings as JSON.")
def doctor(ranks: int, as_json: bool) -> None:
    """Look at this machine, and say what to do.

    The exit status is 1 when something fails that securecoll cannot do without.
    """
    findings = examine(ranks)
    if as_json:
        click.echo(to_json(findings))
    else:
        render(findings, Console())
    if any(finding.state is State.FAIL for finding in findings):
        raise SystemExit(1)
