"""Runs the suite inside torch's wheel over securecoll (`make torch-suite`).

    .venv/bin/python -m tests.torch_suite.run --reference gloo
    .venv/bin/python -m tests.torch_suite.run --as gloo --ranks 4 -k monitored_barrier --output

With ``--reference gloo`` each run goes over gloo's groups first, under the same name and with as many ranks, and every
test that runs there has to run over securecoll.

Exit status: 0; 1 when a test failed that is not excepted, when one passed that is, or when one that runs for the
reference did not run.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.torch_suite.exceptions import excepted
from tests.torch_suite.runs import SETTINGS, Outcome, Run, Setting, Status

console = Console(soft_wrap=True)


@click.command()
@click.option("--as", "names", multiple=True, type=click.Choice(["securecoll", "gloo"]), help="Only under this name.")
@click.option("--ranks", multiple=True, type=int, help="Only with so many ranks.")
@click.option("--reference", type=click.Choice(["gloo"]), help="Whose groups say which tests have to run.")
@click.option("-k", "pattern", default="", help="Only tests with this in their names.")
@click.option("--timeout", default=90.0, show_default=True, help="Seconds that one test may take.")
@click.option("--output", is_flag=True, help="Print all that the ranks of a failed test printed.")
def main(
    names: tuple[str, ...], ranks: tuple[int, ...], reference: str | None, pattern: str, timeout: float, output: bool
) -> None:
    """Runs the suite inside torch's wheel over securecoll."""
    settings = [s for s in SETTINGS if (not names or s.name in names) and (not ranks or s.ranks in ranks)]
    if not settings:
        raise click.UsageError(f"the runs are: {', '.join(f'--as {s.name} --ranks {s.ranks}' for s in SETTINGS)}")
    summary = Table(title="The suite inside torch's wheel", title_justify="left")
    summary.add_column("run", no_wrap=True)
    for column in ("passed", "excepted", "failed", "skipped"):
        summary.add_column(column, justify="right")
    excuses: dict[str, str] = {}
    problems: list[str] = []
    for setting in settings:
        reference_outcomes: Mapping[str, Outcome] = {}
        if reference is not None:
            reference_outcomes = run(setting.over(reference), pattern, timeout)
            summary.add_row(*counts(setting.over(reference), reference_outcomes))
        outcomes = run(setting, pattern, timeout)
        summary.add_row(*counts(setting, outcomes))
        for test, problem in judge(setting, outcomes, reference_outcomes):
            problems.append(f"{setting}: {test}: {problem}")
            if output:
                console.rule(f"{setting}: {test}")
                console.print(outcomes[test].output, markup=False, highlight=False)
        for test, outcome in outcomes.items():
            exception = excepted(test, setting.name)
            if exception is not None and outcome.status is Status.FAILED:
                excuses[test] = exception.why
    console.print(summary)
    for test, why in excuses.items():
        console.print(f"excepted: {test}: {why}", markup=False, highlight=False)
    for problem in problems:
        console.print(f"wrong: {problem}", markup=False, highlight=False)
    sys.exit(bool(problems))


def run(setting: Setting, pattern: str, timeout: float) -> dict[str, Outcome]:
    """The outcomes of one run, by the tests' names."""
    outcomes: dict[str, Outcome] = {}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Run(setting) as suite, Progress(*columns, console=console) as progress:
        names = [name for name in suite.names if pattern in name]
        task = progress.add_task(str(setting), total=len(names))
        for name in names:
            outcome = outcomes[name] = suite.test(name, timeout)
            if outcome.status is Status.FAILED:
                known = setting.groups == "securecoll" and excepted(name, setting.name) is not None
                what = "excepted" if known else "failed"
                progress.print(f"{setting}: {name}: {what}, {outcome.seconds:.1f} s: {outcome.reason}", markup=False)
            progress.advance(task)
    return outcomes


def judge(
    setting: Setting, outcomes: Mapping[str, Outcome], reference: Mapping[str, Outcome]
) -> Iterator[tuple[str, str]]:
    """The tests whose outcomes are not as they should be, and what is wrong with each."""
    for test, outcome in outcomes.items():
        exception = excepted(test, setting.name)
        runs_there = test in reference and reference[test].status is not Status.SKIPPED
        if outcome.status is Status.FAILED and exception is None:
            yield test, outcome.reason
        elif outcome.status is Status.PASSED and exception is not None and not exception.only_under_load:
            yield test, "passed, and need not be excepted any more"
        elif outcome.status is Status.SKIPPED and exception is not None:
            yield test, f"is excepted, and does not run: {outcome.why}"
        elif outcome.status is Status.SKIPPED and runs_there:
            yield test, f"runs for the reference, and did not run: {outcome.why}"


def counts(setting: Setting, outcomes: Mapping[str, Outcome]) -> list[str]:
    """A row of the summary."""
    number = Counter(outcome.status for outcome in outcomes.values())
    excused = sum(
        outcome.status is Status.FAILED and setting.groups == "securecoll" and excepted(test, setting.name) is not None
        for test, outcome in outcomes.items()
    )
    failed = number[Status.FAILED] - excused
    return [str(setting), *map(str, (number[Status.PASSED], excused, failed, number[Status.SKIPPED]))]


if __name__ == "__main__":
    main()
