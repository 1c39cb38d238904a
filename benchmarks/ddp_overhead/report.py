"""The study's table, its targets, and its plot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from peers import Verdict, verdict_table
from rich.console import Console
from rich.table import Table

from ddp_overhead.cell import PARTS, Cell

DEFAULT_BUCKET_MB = 25
"""Of DistributedDataParallel."""
COLOURS = {"securecoll": "#1f6fb4", "gloo": "#e07b39", "cipherless": "#8fb8d9"}


def times_table(cells: Sequence[Cell], names: Sequence[str]) -> Table:
    """Iterations, and their ratios."""
    table = _table("Iteration with DistributedDataParallel, ms; only securecoll is sealed", "gradients\nMB", *names)
    for title in ("securecoll\n/ gloo", "securecoll\n/ cipherless"):
        table.add_column(title, justify="right")
    for cell, start in _starts(cells):
        times = (f"{cell.iteration_ms[name]:.1f}" for name in names)
        ratios = (_ratio(cell.ratio("securecoll", other)) for other in ("gloo", "cipherless"))
        table.add_row(*start, f"{cell.bytes / 1e6:.1f}", *times, *ratios)
    return table


def parts_table(cells: Sequence[Cell], names: Sequence[str]) -> Table:
    """Where the time of an iteration goes: arithmetic, and what communication adds."""
    exposed, cpu = ([f"{what}\n{name}" for name in names] for what in ("exposed", "CPU"))
    title = "Parts, ms: arithmetic alone; exposed communication; CPU time of a rank for communication"
    table = _table(title, *PARTS, *exposed, *cpu)
    for cell, start in _starts(cells):
        alone = (median(cell.alone_ms[name][part] for name in names) for part in PARTS)
        added = (cell.exposed_ms[name] for name in names), (cell.cpu_ms[name] for name in names)
        table.add_row(*start, *(f"{value:.1f}" for values in (alone, *added) for value in values))
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title)
    table.add_column("model", no_wrap=True)
    for column in ("ranks", "bucket\nMB", *columns):
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _starts(cells: Sequence[Cell]) -> Iterator[tuple[Cell, tuple[str, str, str]]]:
    """Each cell, and what its row starts with."""
    for cell in cells:
        yield cell, (cell.model, str(cell.ranks), str(cell.bucket_mb))


def _ratio(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}x"


def verdicts(cells: Sequence[Cell]) -> list[Verdict]:
    """The project's targets, each held against the worst cell; the median tells noise from a trend."""
    two = [cell for cell in cells if cell.ranks == 2]
    usual = [cell for cell in cells if cell.bucket_mb == DEFAULT_BUCKET_MB]
    return [
        _at_most("iteration over gloo's, worst of 2 ranks", 1.0, "gloo", two),
        _at_most(f"iteration over cipherless's, worst of {DEFAULT_BUCKET_MB} MB buckets", 1.25, "cipherless", usual),
    ]


def _at_most(what: str, most: float, other: str, cells: Iterable[Cell]) -> Verdict:
    """Whether no cell's time is more than ``most`` times the other contender's."""
    found = [(ratio, cell) for cell in cells if (ratio := cell.ratio("securecoll", other)) is not None]
    if not found:
        return Verdict(what, f"at most {most:g}x", None, False)
    ratio, cell = max(found, key=lambda pair: pair[0])
    where = f"{cell.model}, {cell.ranks} ranks, {cell.bucket_mb} MB"
    middle = median(ratio for ratio, _ in found)
    return Verdict(what, f"at most {most:g}x", f"{ratio:.2f}x ({where}); median {middle:.2f}x", ratio <= most)


def show(document: dict[str, Any], console: Console) -> None:
    """Prints what was measured."""
    facts, cells = document["machine"], document["cells"]
    for table in (times_table, parts_table):
        console.print(table(cells, list(document["versions"])))
    load = f"load {facts['load_before']:.1f} before and {facts['load_after']:.1f} after"
    console.print(f"{facts['cpu']}, {facts['cores']} cores, Linux {facts['kernel']}; {load}", highlight=False)
    for name, text in document["versions"].items():
        console.print(f"{name}: {text}", highlight=False)
    console.print(verdict_table(verdicts(cells)))


def draw(document: dict[str, Any], path: Path) -> None:
    """Writes the plot: a panel for each model and number of ranks; in it, for each size of buckets, a bar for each
    contender, of arithmetic in grey and exposed communication in the contender's colour."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    cells, names = document["cells"], list(document["versions"])
    models = list(dict.fromkeys(cell.model for cell in cells))
    ranks = list(dict.fromkeys(cell.ranks for cell in cells))
    figure, panels = pyplot.subplots(
        len(ranks), len(models), squeeze=False, figsize=(3.2 * len(models), 3.2 * len(ranks)), layout="constrained"
    )
    for row, size in enumerate(ranks):
        for column, model in enumerate(models):
            chosen = [cell for cell in cells if (cell.model, cell.ranks) == (model, size)]
            panel = panels[row][column]
            _bars(panel, chosen, names)
            panel.set_title(f"{model}, {size} ranks, {chosen[0].bytes / 1e6:.0f} MB", fontsize=9)
            if row == len(ranks) - 1:
                panel.set_xlabel("bucket_cap_mb", fontsize=8)
        panels[row][0].set_ylabel("ms an iteration", fontsize=8)
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize=8, frameon=False)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def _bars(panel: Any, cells: Sequence[Cell], names: Sequence[str]) -> None:
    """One panel."""
    width = 0.8 / len(names)
    for number, name in enumerate(names):
        places = [place + (number - (len(names) - 1) / 2) * width for place in range(len(cells))]
        bottom = [0.0] * len(cells)
        for part, grey in (("forward", "0.35"), ("backward", "0.55"), ("update", "0.75")):
            heights = [cell.alone_ms[name][part] for cell in cells]
            label = part if number == 0 else None
            panel.bar(places, heights, width * 0.92, bottom, color=grey, label=label)
            bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
        # Noise can make less than nothing of what is fully hidden.
        exposed = [max(0.0, cell.exposed_ms[name]) for cell in cells]
        panel.bar(places, exposed, width * 0.92, bottom, color=COLOURS[name], label=f"exposed, {name}")
    panel.set_xticks(range(len(cells)), [str(cell.bucket_mb) for cell in cells])
    panel.tick_params(labelsize=8)
    panel.spines[["top", "right"]].set_visible(False)
