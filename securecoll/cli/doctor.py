"""``securecoll doctor``: what this machine offers, what is chosen, how fast it is, and what to do about the rest."""

from __future__ import annotations

import click
from rich.console import Console

from securecoll.cli import checks, networks, rates, reach
from securecoll.cli.findings import Finding, State, render, to_json
from securecoll.errors import ConfigError
from securecoll.suites import Suite


def examine(ranks: int) -> list[Finding]:
    """All findings, for ``ranks`` ranks on this machine. Takes a few seconds, most of them for torch to load."""
    return [
        checks.cpu(),
        checks.guest(),
        *map(rates.aead, Suite),
        rates.reductions(),
        checks.shared_memory(ranks),
        checks.locked_memory(),
        *networks.examine(),
        checks.torch(),
        checks.mpi(),
        *checks.gpu(),
    ]


@click.command()
@click.option(
    "--ranks", type=click.IntRange(min=1), default=2, show_default=True, help="Ranks to run on this machine."
)
@click.option("--listen", is_flag=True, help="Only wait until another machine's --peer reaches this one.")
@click.option("--peer", metavar="HOST[:PORT]", help="Only look whether this machine reaches one that listens.")
@click.option(
    "--port", type=click.IntRange(1, 65535), default=reach.PORT, show_default=True, help="For --listen and --peer."
)
@click.option(
    "--seconds", type=click.FloatRange(0.1, 3600), default=60.0, show_default=True, help="How long to --listen."
)
@click.option("--json", "as_json", is_flag=True, help="Print findings as JSON.")
def doctor(ranks: int, listen: bool, peer: str | None, port: int, seconds: float, as_json: bool) -> None:
    """Look at this machine, and say what to do.

    With --listen on one machine and --peer on another, look whether the one reaches the other, by the interfaces that
    ranks would take; then the other way round. This takes no key and proves nothing.

    The exit status is 1 when something fails that securecoll cannot do without.
    """
    if listen and peer is not None:
        raise click.UsageError("give --listen on one machine, and --peer on the other")
    try:
        if peer is not None:
            findings = reach.peer(*_place(peer, port))
        elif listen:
            findings = reach.listen(port, seconds, lambda line: click.echo(line, err=True))
        else:
            findings = examine(ranks)
    except ConfigError as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        click.echo(to_json(findings))
    else:
        render(findings, Console())
    if any(finding.state is State.FAIL for finding in findings):
        raise SystemExit(1)


def _place(text: str, port: int) -> tuple[str, int]:
    try:
        return reach.parse(text, port)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--peer") from None
