"""The ``securecoll`` command: ``keygen``, ``doctor``, ``plan`` and ``calibrate``."""

from __future__ import annotations

import click

from securecoll import __version__
from securecoll.cli import calibrate, doctor, keygen, plan


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="securecoll")
def main() -> None:
    """Collective communication, sealed end to end, for machines and networks you do not trust."""


main.add_command(keygen.keygen)
main.add_command(doctor.doctor)
main.add_command(plan.plan)
main.add_command(calibrate.calibrate)
