"""DistributedDataParallel over securecoll, gloo, and securecoll without its cipher: the same training, in one run.

Contenders are sets of rank processes that stay up, one thread of torch in each. Turns alternate between them, in an
order that rotates, and while one set trains the others are blocked: whatever else this machine does hits all alike.

A turn is some iterations (forward, backward, update) with DDP and as many under ``no_sync``, in the same processes.
*Forward* and *backward* are those of the latter: arithmetic alone. What an iteration takes longer with DDP is its
*exposed communication*: copies into buckets and out of them, and whatever of the exchange arithmetic does not hide.
A time is the mean over ranks, then the median over a turn's iterations, then over turns; exposed communication is the
median over turns of the difference within each. The same difference in CPU time of a rank, all its threads together,
tells what communication costs where no core is idle; it depends far less on what else this machine does.

Before it is timed, the first batch's averaged gradients must be the same on all ranks, bit for bit, and of the same
norm with all contenders.

Exit status: 0; 1 when gradients were wrong; 2 when the run could not start or a contender failed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from cipherless.build import BuildError
from cipherless.build import build as build_cipherless
from harness.launch import make_key
from peers import ContenderError, Group, Kind, machine
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from ddp_overhead.cell import Cell, Turn
from ddp_overhead.models import workloads
from ddp_overhead.report import draw, show

BENCHMARKS = Path(__file__).resolve().parents[1]
CONTENDERS = ("securecoll", "gloo", "cipherless")
BUCKETS = "1,5,25,100,200"


@dataclass(frozen=True, slots=True)
class Trainer(Kind):
    """A contender: ranks that train over one backend."""

    device: str = "cpu"
    quick: bool = False

    def commands(self, ranks: int, control: Path, meet: Path) -> list[list[str]]:
        """Every rank."""
        backend = "gloo" if self.name == "gloo" else "securecoll"
        base = [sys.executable, str(BENCHMARKS / "ddp_overhead" / "rank.py"), backend, "--control", str(control)]
        base += ["--meet", str(meet), "--device", self.device, "--size", str(ranks)]
        base += ["--quick"] if self.quick else []
        return [[*base, "--rank", str(rank)] for rank in range(ranks)]


def start(options: argparse.Namespace, ranks: int, folder: Path, stack: ExitStack) -> list[Group]:
    """Starts the ranks of every contender; the stack ends them."""
    folder.mkdir()
    key = folder / "key"
    make_key(key)
    groups = []
    for name in options.contenders:
        path = [str(BENCHMARKS)]
        if name == "cipherless":
            path.insert(0, str(build_cipherless()))
        own = folder / name
        own.mkdir()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "SECURECOLL_KEY_FILE": str(key)}
        trainer = Trainer(name, Path(sys.prefix), device=options.device, quick=options.quick)
        group = Group(trainer, ranks, own, environment, options.timeout)
        stack.callback(group.close)
        if group.version.endswith("AEAD cipherless") != (name == "cipherless"):
            raise ContenderError(f"{name} is another build than it must be: {group.version}")
        groups.append(group)
    return groups


def begin(groups: Sequence[Group], cell: Cell) -> None:
    """Sets the cell's model up with every contender, and compares the gradients that they compute."""
    norms = {}
    for group in groups:
        answers = group.ask({"do": "begin", "model": cell.model, "bucket_mb": cell.bucket_mb})
        cell.bytes, cell.tensors = answers[0]["bytes"], answers[0]["tensors"]
        norms[group.kind.name] = answers[0]["norm"]
        if len({answer["digest"] for answer in answers}) > 1:
            cell.wrong.append(f"{group.kind.name}: ranks have different gradients")
    middle = median(norms.values())
    cell.wrong += [f"{name}: norm {norm} of {middle}" for name, norm in norms.items() if off(norm, middle)]


def off(norm: float, expected: float) -> bool:
    """Whether a norm differs by more than the order of additions explains; also where it is no number."""
    return not abs(norm - expected) <= 1e-4 * expected


def measure(groups: Sequence[Group], cell: Cell, options: argparse.Namespace) -> None:
    """Fills in a cell: every contender set up, then turns that alternate between them."""
    begin(groups, cell)
    iters: dict[str, int] = {}
    turns: dict[str, list[Turn]] = {group.kind.name: [] for group in groups}
    for group in groups:
        first = Turn.of(group.ask({"do": "time", "iters": 2}))
        iters[group.kind.name] = int(min(max(options.seconds * 1000 / first.together.iteration, 3), 100))
    for number in range(options.rounds):
        turn = number % len(groups)
        for group in [*groups[turn:], *groups[:turn]]:
            name = group.kind.name
            turns[name].append(Turn.of(group.ask({"do": "time", "iters": iters[name]})))
    for group in groups:
        group.ask({"do": "end"})
    for name, taken in turns.items():
        cell.settle(name, taken)


def run(options: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Measures everything and returns the document for ``--json``."""
    facts = machine()
    cells: list[Cell] = []
    versions: dict[str, str] = {}
    # No refresh thread: the bar is drawn between turns, not under them.
    progress = Progress(
        TextColumn("{task.description:40}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        auto_refresh=False,
        transient=True,
    )
    with tempfile.TemporaryDirectory(prefix="ddp-") as folder, progress:
        total = len(options.ranks) * len(options.models) * len(options.buckets)
        task = progress.add_task("starting", total=total)
        for ranks in options.ranks:
            with ExitStack() as stack:
                announce(progress, task, f"{ranks} ranks: starting")
                groups = start(options, ranks, Path(folder, str(ranks)), stack)
                versions = {group.kind.name: group.version for group in groups}
                for model in options.models:
                    for bucket_mb in options.buckets:
                        announce(progress, task, f"{ranks} ranks, {model}, buckets of {bucket_mb} MB")
                        cells.append(Cell(model, ranks, bucket_mb))
                        measure(groups, cells[-1], options)
                        progress.advance(task)
    return {
        "cells": cells,
        "versions": versions,
        "machine": {**facts, "load_after": os.getloadavg()[0]},
        "device": options.device,
        "quick": options.quick,
        "rounds": options.rounds,
        "seconds": options.seconds,
    }


def announce(progress: Progress, task: TaskID, what: str) -> None:
    """Shows what comes next: in the bar, or as a line where there is no terminal to draw one on."""
    progress.update(task, description=what, refresh=True)
    if not progress.console.is_terminal:
        progress.console.print(what, highlight=False)


def integers(text: str) -> list[int]:
    """Positive numbers between commas."""
    numbers = [int(number) for number in text.split(",")]
    if min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"{text}: numbers start at 1")
    return numbers


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options."""
    names = list(workloads(quick=False))
    parser = argparse.ArgumentParser(prog="ddp_overhead.py", description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--quick", action="store_true", help="small models, two sizes of buckets, two ranks: about two minutes")
    add("--ranks", type=integers, help="rank processes of each contender (default 2,4)")
    add("--buckets", type=integers, help=f"bucket_cap_mb of DDP (default {BUCKETS})")
    add("--models", default=",".join(names), help="which to train (default: all)")
    add("--contenders", default=",".join(CONTENDERS), help="whom to run (default: all)")
    add("--device", choices=["cpu", "cuda"], default="cpu", help="where models live (default cpu)")
    add("--rounds", type=int, help="turns that each contender gets on each model (default 7)")
    add("--seconds", type=float, help="about how long half a turn is (default 0.5)")
    add("--timeout", type=float, default=180.0, help="seconds after which a silent contender has failed (default 180)")
    add("--plot", type=Path, default=BENCHMARKS.parent / "build" / "ddp_overhead.svg", help="the plot: .svg or .png")
    add("--json", type=Path, metavar="FILE", help="write the results here")
    options = parser.parse_args(argv)
    options.ranks = options.ranks or ([2] if options.quick else [2, 4])
    options.buckets = options.buckets or ([1, 25] if options.quick else integers(BUCKETS))
    options.rounds = options.rounds or (3 if options.quick else 7)
    options.seconds = options.seconds or (0.15 if options.quick else 0.5)
    for name, known in (("models", names), ("contenders", CONTENDERS)):
        chosen = getattr(options, name).split(",")
        unknown = [one for one in chosen if one not in known]
        if unknown:
            parser.error(f"--{name}: {unknown[0]!r} is none of {', '.join(known)}")
        setattr(options, name, chosen)
    if min(options.ranks) < 2 or options.rounds < 1 or options.seconds <= 0:
        parser.error("--ranks is at least 2, --rounds at least 1, --seconds over 0")
    if options.json is not None and not options.json.parent.is_dir():
        parser.error(f"--json {options.json}: no such folder")
    if options.plot.suffix not in (".svg", ".png"):
        parser.error(f"--plot {options.plot}: a name that ends in .svg or .png")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """The program; returns its exit status."""
    options = parse(argv)
    console = Console(width=None if sys.stdout.isatty() else 144)
    try:
        if options.device == "cuda":
            check_gpu()
            if "cipherless" in options.contenders:
                # Its device kernels are the real ones.
                console.print("[yellow]without cipherless:[/] on a GPU that build seals", highlight=False)
                options.contenders.remove("cipherless")
        document = run(options, console)
    except (ContenderError, BuildError) as error:
        print(f"ddp_overhead.py: {error}", file=sys.stderr)
        return 2
    show(document, console)
    options.plot.parent.mkdir(parents=True, exist_ok=True)
    draw(document, options.plot)
    console.print(f"plot: {options.plot}", highlight=False, soft_wrap=True)
    if options.json is not None:
        plain = {**document, "cells": [asdict(cell) for cell in document["cells"]]}
        options.json.write_text(json.dumps(plain, indent=1) + "\n")
    wrong = [f"{cell.model}, {line}" for cell in document["cells"] for line in cell.wrong]
    for line in wrong:
        print(f"ddp_overhead.py: wrong gradients: {line}", file=sys.stderr)
    return 1 if wrong else 0


def check_gpu() -> None:
    """Raises :class:`ContenderError` where torch sees no GPU or CuPy is missing."""
    import torch

    if not torch.cuda.is_available():
        raise ContenderError(f"--device cuda: torch {torch.__version__} sees no GPU here")
    if importlib.util.find_spec("cupy") is None:
        raise ContenderError("--device cuda: securecoll needs CuPy for it (pip install 'securecoll[cuda12]')")
