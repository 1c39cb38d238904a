"""securecoll beside gloo, MPICH and Open MPI: the same collectives on the same sizes, in one run.

    .venv/bin/python benchmarks/peers.py --ranks 2 --json out.json

Every contender is a set of rank processes that stay up. Rounds alternate between them, in an order that rotates, and
while one set runs the others are blocked: so whatever else this machine does hits all alike. Reported are medians over
a round's iterations, then over rounds. All run with default settings; those that are not installed are left out, with
a line that says so. The others send plaintext.

Our ranks share memory, as ranks of one host do. ``--transport tcp`` keeps them from it, for the comparison with gloo,
whose transport is TCP within a host, too.

An iteration follows a barrier and lasts from when the last rank has entered the collective until the last rank has
left it: nobody can finish earlier, and how unevenly a library's barrier lets ranks go is not the collective's. The
time on the slowest rank, which counts that too, is ``slowest_us`` in the JSON.

Ours come in both suites: securecoll and securecoll_torch seal with AES-256-GCM, securecoll_aegis and
securecoll_aegis_torch with AEGIS-256X4.

The AEAD floor of a suite is what its cipher alone would cost (harness/floor.py), at rates measured between the same
rounds.
Exit status: 0; 1 when a result was wrong; 2 when the run could not start or a contender failed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

from harness.collectives import COLLECTIVES
from harness.control import Channel, Message
from harness.floor import AEGIS, Sampler, cores, floor_seconds
from harness.launch import make_key
from harness.perf import parse_size
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

HERE = Path(__file__).resolve().parent
SIZES = "8,1K,64K,1M,16M,64M"
LARGE = 64 << 20
MIB = 1 << 20
RATES = ("kernel_", "", "cryptography_")
"""Prefixes of what Sampler measures."""
CONTENDERS = (
    "securecoll",
    "securecoll_torch",
    "securecoll_aegis",
    "securecoll_aegis_torch",
    "gloo",
    "mpich",
    "openmpi",
)
OF_AEGIS = ("securecoll_aegis", "securecoll_aegis_torch")
IN_TORCH = ("securecoll_torch", "securecoll_aegis_torch", "gloo")


class ContenderError(RuntimeError):
    """A contender did not start, or died. The message ends with its last words."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A contender: its name, and the environment whose Python and mpirun it uses."""

    name: str
    prefix: Path
    mpi: bool = False

    def missing(self) -> str | None:
        """Why it cannot run here, or None."""
        if self.mpi:
            if not (self.prefix / "bin" / "mpirun").exists():
                return f"no mpirun in {self.prefix} (make bench installs it)"
            if self.name == "mpich" and importlib.util.find_spec("mpi4py") is None:
                return "mpi4py is not installed"
            return None
        needs = [("securecoll", self.name.startswith("securecoll")), ("torch", self.name in IN_TORCH)]
        absent = [module for module, needed in needs if needed and importlib.util.find_spec(module) is None]
        if absent:
            return f"{absent[0]} is not installed"
        if self.name in OF_AEGIS:
            from securecoll import _engine
            from securecoll.suites import Suite

            return None if _engine.aead_names(Suite.AEGIS_256X4) else "this CPU has no AES instructions"
        return None

    def commands(self, ranks: int, control: Path, meet: Path) -> list[list[str]]:
        """What to start: one launcher, or every rank."""
        base = [str(HERE / "contender.py"), self.name, "--control", str(control), "--meet", str(meet)]
        if not self.mpi:
            return [[sys.executable, *base, "--rank", str(rank), "--size", str(ranks)] for rank in range(ranks)]
        command = [str(self.prefix / "bin" / "mpirun"), "-n", str(ranks)]
        if self.name == "openmpi":  # what it takes to start at all; neither changes how messages travel
            if os.geteuid() == 0:
                command.append("--allow-run-as-root")
            if ranks > cores():
                command += ["--map-by", ":OVERSUBSCRIBE"]
        return [[*command, str(self.prefix / "bin" / "python"), *base]]


class Group:
    """The running ranks of one contender."""

    def __init__(self, kind: Kind, ranks: int, folder: Path, environment: dict[str, str], timeout: float) -> None:
        self.kind = kind
        self._log = folder / "log"
        self._timeout = timeout
        meet = folder / "meet"
        meet.mkdir()
        control = folder / "control"
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener, self._log.open("wb") as log:
            listener.bind(str(control))
            listener.listen(ranks)
            listener.settimeout(0.2)
            self._processes = [
                subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
                )
                for command in kind.commands(ranks, control, meet)
            ]
            try:
                self._channels, self.version = self._accept(listener, ranks)
            except BaseException:
                self.kill()
                raise

    def _accept(self, listener: socket.socket, ranks: int) -> tuple[list[Channel], str]:
        """The ranks' channels, in rank order, once all have joined their group."""
        connected: list[Channel] = []
        deadline = time.monotonic() + self._timeout
        while len(connected) < ranks:
            try:
                connected.append(Channel(listener.accept()[0], self._timeout))
            except TimeoutError:
                if time.monotonic() > deadline:
                    raise self._failure("did not start in time") from None
                if any(process.poll() not in (None, 0) for process in self._processes):
                    raise self._failure("did not start") from None
        hellos = [self._receive(channel) for channel in connected]
        ordered = [channel for _, channel in sorted(zip((h["rank"] for h in hellos), connected, strict=True))]
        return ordered, str(hellos[0]["version"])

    def ask(self, command: Message) -> list[Message]:
        """Sends a command to all ranks and returns their answers, in rank order."""
        for channel in self._channels:
            try:
                channel.send(command)
            except OSError:
                raise self._failure("died") from None
        return [self._receive(channel) for channel in self._channels]

    def _receive(self, channel: Channel) -> Message:
        try:
            return channel.receive()
        except TimeoutError:
            raise self._failure(f"did not answer for {self._timeout:.0f} s") from None
        except (EOFError, OSError):
            raise self._failure("died") from None

    def _failure(self, what: str) -> ContenderError:
        words = self._log.read_text(errors="replace").strip().splitlines()[-12:]
        return ContenderError("\n".join([f"{self.kind.name} {what}", *(f"  | {line}" for line in words)]))

    def close(self) -> None:
        """Lets the ranks leave, and makes sure that they do."""
        try:
            self.ask({"do": "quit"})
            for channel in self._channels:
                channel.close()
            for process in self._processes:
                process.wait(10)
        except (ContenderError, subprocess.TimeoutExpired):
            pass
        self.kill()

    def kill(self) -> None:
        """Ends what this group started."""
        for name in (signal.SIGTERM, signal.SIGKILL):  # mpirun passes the first one on
            for process in self._processes:
                if process.poll() is None:
                    os.killpg(process.pid, name)
            for process in self._processes:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(5)


@dataclass(slots=True)
class Row:
    """One collective on one size, in microseconds; ``rounds_us`` holds the median of each round."""

    op: str
    bytes: int
    ranks: int
    transport: str = "shm"
    floor_us: float | None = None
    median_us: dict[str, float] = field(default_factory=dict)
    rounds_us: dict[str, list[float]] = field(default_factory=dict)
    slowest_us: dict[str, float] = field(default_factory=dict)
    sealed: list[int] = field(default_factory=list)
    """Plaintext bytes that each rank sealed."""
    opened: list[int] = field(default_factory=list)
    aegis_floor_us: float | None = None
    aegis_sealed: list[int] = field(default_factory=list)
    """As ``sealed``, by AEGIS-256X4: at other rates the tuner may choose other plans."""
    aegis_opened: list[int] = field(default_factory=list)
    wrong: dict[str, int] = field(default_factory=dict)

    def ratio(self, slow: Sequence[str], fast: str) -> float | None:
        """How many times faster ``fast`` is than the fastest of ``slow``."""
        times = [self.median_us[name] for name in slow if name in self.median_us]
        return min(times) / self.median_us[fast] if times and fast in self.median_us else None

    @property
    def fraction(self) -> float | None:
        """Of the floor that securecoll reaches: 1 is the cipher alone."""
        return self._fraction(self.floor_us, "securecoll")

    @property
    def aegis_fraction(self) -> float | None:
        """The same in the suite of AEGIS-256X4."""
        return self._fraction(self.aegis_floor_us, "securecoll_aegis")

    def _fraction(self, floor_us: float | None, name: str) -> float | None:
        return None if floor_us is None or name not in self.median_us else floor_us / self.median_us[name]


def plan(options: argparse.Namespace) -> Iterator[tuple[str, int]]:
    """What to measure: the first collective on every size, the others on the largest."""
    for number, op in enumerate(options.ops):
        for size in options.sizes if number == 0 else options.sizes[-1:]:
            yield op, size


def measure(
    groups: Sequence[Group], op: str, size: int, options: argparse.Namespace, samplers: Sequence[Sampler]
) -> Row:
    """One row: every group checked once, then rounds that alternate between them."""
    row = Row(op, size, options.ranks, options.transport)
    iters: dict[str, int] = {}
    slowest: dict[str, list[float]] = {}
    for group in groups:
        name = group.kind.name
        answers = group.ask({"do": "begin", "op": op, "bytes": size})
        row.bytes = answers[0]["bytes"]
        row.wrong[name] = sum(answer["wrong"] for answer in answers)
        if name == "securecoll":
            row.sealed = [answer["sealed"] for answer in answers]
            row.opened = [answer["opened"] for answer in answers]
        if name == "securecoll_aegis":
            row.aegis_sealed = [answer["sealed"] for answer in answers]
            row.aegis_opened = [answer["opened"] for answer in answers]
        first = median(span for span, _ in durations(group.ask({"do": "time", "iters": 3})))
        iters[name] = int(min(max(options.seconds / first, 5), 500))
        row.rounds_us[name] = []
        slowest[name] = []
    for number in range(options.rounds):
        turn = number % len(groups)
        for group in [*groups[turn:], *groups[:turn]]:
            name = group.kind.name
            times = durations(group.ask({"do": "time", "iters": iters[name]}))
            row.rounds_us[name].append(median(span for span, _ in times) * 1e6)
            slowest[name].append(median(longest for _, longest in times) * 1e6)
        for sampler in samplers:
            sampler.sample()
    for group in groups:
        group.ask({"do": "end"})
    row.median_us = {name: median(rounds) for name, rounds in row.rounds_us.items()}
    row.slowest_us = {name: median(rounds) for name, rounds in slowest.items()}
    return row


def durations(answers: Sequence[Message]) -> list[tuple[float, float]]:
    """Of each iteration, seconds from the last rank's start to the last rank's end, and those on the slowest rank."""
    begun = zip(*(answer["begun"] for answer in answers), strict=True)
    ended = zip(*(answer["ended"] for answer in answers), strict=True)
    return [
        (max(ends) - max(starts), max(end - start for start, end in zip(starts, ends, strict=True)))
        for starts, ends in zip(begun, ended, strict=True)
    ]


def machine() -> dict[str, Any]:
    """What these numbers were measured on."""
    words = Path("/proc/cpuinfo").read_text().split("\n\n")[0]
    cpu = next((line.split(":", 1)[1].strip() for line in words.splitlines() if line.startswith("model name")), "")
    caches = {}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        level, kind = (index / "level").read_text().strip(), (index / "type").read_text().strip()
        caches[f"L{level} {kind.lower()}"] = (index / "size").read_text().strip()
    packages = {}
    for name in ("securecoll", "torch", "numpy", "cryptography", "mpi4py"):
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "cpu": cpu,
        "cores": cores(),
        "caches": caches,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "packages": packages,
        "load_before": os.getloadavg()[0],
    }


@dataclass(frozen=True, slots=True)
class Verdict:
    """A target of the project and what this run reached; ``reached`` None: not measured here."""

    what: str
    target: str
    reached: str | None
    met: bool


GLOO_LARGE = "all_reduce 64 MiB, gloo's time over ours, both through torch"


def verdicts(rows: Sequence[Row], aead: dict[str, float], memory: dict[str, Any], ranks: int) -> list[Verdict]:
    """The project's targets for this number of ranks."""
    found = {(row.op, row.bytes): row for row in rows}
    large, small = found.get(("all_reduce", LARGE)), found.get(("all_reduce", 8))
    result = []

    def at_least(what: str, least: float, value: float | None, unit: str = "x") -> None:
        text = None if value is None else f"{value:.2f}{unit}"
        result.append(Verdict(what, f"at least {least:g}{unit}", text, value is not None and value >= least))

    def at_most(what: str, most: float, value: float | None, unit: str) -> None:
        text = None if value is None else f"{value:.1f}{unit}"
        result.append(Verdict(what, f"at most {most:g}{unit}", text, value is not None and value <= most))

    for verb in ("seal", "open"):
        ours, theirs = aead.get(f"{verb}_gbs"), aead.get(f"cryptography_{verb}_gbs")
        at_least(f"AEAD {verb} at 64 KiB over cryptography's", 0.95, ours / theirs if ours and theirs else None)
    gloo_large = large.ratio(["gloo"], "securecoll_torch") if large else None
    aegis_large = large.ratio(["gloo"], "securecoll_aegis_torch") if large else None
    gloo_small = small.ratio(["gloo"], "securecoll_torch") if small else None
    held = memory.get("securecoll_torch", memory.get("securecoll"))
    total = None if held is None else held["total_bytes"] / MIB
    if ranks == 2:
        at_least(GLOO_LARGE, 2.5, gloo_large)
        at_least(f"{GLOO_LARGE}, in suite aegis-256x4", 2.5, aegis_large)
        mpi = large.ratio(["mpich", "openmpi"], "securecoll") if large else None
        at_least("all_reduce 64 MiB, the faster MPI's time over ours", 1.5, mpi)
        at_least("all_reduce 64 MiB, fraction of the AEAD floor", 0.85, large.fraction if large else None, "")
        time_us = small.median_us.get("securecoll_torch") if small else None
        at_most("all_reduce 8 B through torch", 20, time_us, " µs")
        at_least("all_reduce 8 B, gloo's time over ours, both through torch", 8, gloo_small)
        at_most("memory a rank holds beyond tensors", 48, total, " MiB")
    if ranks == 4:
        at_least(GLOO_LARGE, 2, gloo_large)
        at_least(f"{GLOO_LARGE}, in suite aegis-256x4", 2, aegis_large)
        at_least("all_reduce 8 B, gloo's time over ours, both through torch", 5, gloo_small)
    return result


def verdicts_over_tcp(rows: Sequence[Row], aead: object, memory: object, ranks: int) -> list[Verdict]:
    """The project's targets over TCP, which are for two ranks. MPI stays in shared memory, so only gloo is a peer."""
    found = {(row.op, row.bytes): row for row in rows}
    result = []
    for size, least in ((LARGE, 1.0), (8, 2.0)) if ranks == 2 else ():
        row = found.get(("all_reduce", size))
        ratio = row.ratio(["gloo"], "securecoll_torch") if row else None
        what = f"all_reduce {sized(size)} over TCP, gloo's time over ours, both through torch"
        text = None if ratio is None else f"{ratio:.2f}x"
        result.append(Verdict(what, f"at least {least:g}x", text, ratio is not None and ratio >= least))
    return result


def sized(nbytes: int) -> str:
    """A number of bytes, readably."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", MIB), ("KiB", 1 << 10)):
        if nbytes >= scale:
            return f"{nbytes / scale:g} {unit}" if nbytes % scale == 0 else f"{nbytes / scale:.1f} {unit}"
    return f"{nbytes} B"


def timed(microseconds: float | None) -> str:
    """A time, readably; a dash for none."""
    if microseconds is None:
        return "-"
    return f"{microseconds:.1f} µs" if microseconds < 1000 else f"{microseconds / 1000:.2f} ms"


def _times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}x"


def _reached(fraction: float | None) -> str:
    return "-" if fraction is None else f"{fraction:.2f}"


def times_table(rows: Sequence[Row], names: Sequence[str], ranks: int, transport: str) -> Table:
    """Medians, ratios and the floor."""
    over = {"shm": "shared memory", "tcp": "TCP within one host"}[transport]
    table = Table(title=f"Medians, {ranks} ranks, float32, {over}; gloo and MPI in plaintext")
    table.add_column("collective")
    titles = ["size", *names, "gloo / ours", "MPI / ours", "AEAD floor", "reached"]
    with_aegis = "securecoll_aegis" in names
    for title in [*titles, *(("AEGIS floor", "reached") if with_aegis else ())]:
        table.add_column(title, justify="right")
    for row in rows:
        table.add_row(
            row.op,
            sized(row.bytes),
            *(timed(row.median_us.get(name)) for name in names),
            _times(row.ratio(["gloo"], "securecoll_torch")),
            _times(row.ratio(["mpich", "openmpi"], "securecoll")),
            timed(row.floor_us),
            _reached(row.fraction),
            *((timed(row.aegis_floor_us), _reached(row.aegis_fraction)) if with_aegis else ()),
        )
    return table


def verdict_table(found: Sequence[Verdict]) -> Table:
    """Targets beside what was reached."""
    table = Table(title="Targets")
    table.add_column("what")
    for title in ("target", "reached", ""):
        table.add_column(title, justify="right")
    for verdict in found:
        word = "not measured" if verdict.reached is None else "[green]met[/]" if verdict.met else "[red]missed[/]"
        table.add_row(verdict.what, verdict.target, verdict.reached or "-", word)
    return table


def _names(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in COLLECTIVES]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(COLLECTIVES)}")
    return names


def _sizes(text: str) -> list[int]:
    return sorted(parse_size(size) for size in text.split(","))


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--ranks", type=int, default=2, help="rank processes of each contender (default 2)")
    add("--sizes", type=_sizes, default=SIZES, help=f"of the first collective; others run the largest ({SIZES})")
    add("--ops", type=_names, default=",".join(COLLECTIVES), help="collectives (default: all six)")
    add("--contenders", default=",".join(CONTENDERS), help="whom to run (default: all)")
    add(
        "--transport",
        choices=("shm", "tcp"),
        default="shm",
        help="between our ranks: shared memory, or TCP, which is all that gloo has (default shm)",
    )
    add("--rounds", type=int, default=5, help="turns that each contender gets on each row (default 5)")
    add("--seconds", type=float, default=0.2, help="about how long a turn is (default 0.2)")
    add("--timeout", type=float, default=90.0, help="seconds after which a silent contender has failed (default 90)")
    add("--openmpi", type=Path, default=HERE.parent / ".venv-openmpi", help="environment with openmpi and mpi4py")
    add("--json", type=Path, metavar="FILE", help="write the results here")
    options = parser.parse_args(argv)
    kinds = {
        "securecoll": Kind("securecoll", Path(sys.prefix)),
        "securecoll_torch": Kind("securecoll_torch", Path(sys.prefix)),
        "securecoll_aegis": Kind("securecoll_aegis", Path(sys.prefix)),
        "securecoll_aegis_torch": Kind("securecoll_aegis_torch", Path(sys.prefix)),
        "gloo": Kind("gloo", Path(sys.prefix)),
        "mpich": Kind("mpich", Path(sys.prefix), mpi=True),
        "openmpi": Kind("openmpi", options.openmpi, mpi=True),
    }
    chosen = options.contenders.split(",")
    unknown = [name for name in chosen if name not in kinds]
    if unknown:
        parser.error(f"--contenders: {unknown[0]!r} is none of {', '.join(kinds)}")
    if options.ranks < 2 or options.rounds < 1 or options.seconds <= 0:
        parser.error("--ranks is at least 2, --rounds at least 1, --seconds over 0")
    if options.json is not None and not options.json.parent.is_dir():
        parser.error(f"--json {options.json}: no such folder")
    options.kinds = [kinds[name] for name in chosen]
    return options


def start(kinds: Sequence[Kind], options: argparse.Namespace, folder: Path, stack: ExitStack) -> list[Group]:
    """Starts the contenders one after the other; ``stack`` ends them."""
    key = folder / "key"
    make_key(key)
    groups = []
    for kind in kinds:
        own = folder / kind.name
        own.mkdir()
        # One compute thread a rank, as torchrun sets it.
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
        if kind.name.startswith("securecoll"):
            environment["SECURECOLL_KEY_FILE"] = str(key)
            if options.transport == "tcp":
                environment["SECURECOLL_TRANSPORT"] = "tcp"
        group = Group(kind, options.ranks, own, environment, options.timeout)
        stack.callback(group.close)
        groups.append(group)
    return groups


def run(options: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Measures everything and returns the document for ``--json``."""
    kinds = []
    for kind in options.kinds:
        reason = kind.missing()
        if reason is None:
            kinds.append(kind)
        else:
            console.print(f"[yellow]without {kind.name}:[/] {reason}", highlight=False)
    if not kinds:
        raise ContenderError("no contender is installed")
    facts = machine()
    ours = [kind.name for kind in kinds if kind.name.startswith("securecoll")]
    sampler = Sampler() if ours else None
    aegis_sampler = Sampler(suite=AEGIS) if any(name in OF_AEGIS for name in ours) else None
    samplers = [each for each in (sampler, aegis_sampler) if each is not None]
    rows, memory = [], {}
    steps = list(plan(options))
    # No refresh thread: the bar is drawn between turns, not under them.
    progress = Progress(
        TextColumn("{task.description:28}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        auto_refresh=False,
        transient=True,
    )
    with tempfile.TemporaryDirectory(prefix="peers-") as folder, ExitStack() as stack, progress:
        task = progress.add_task("starting", total=len(steps))
        groups = start(kinds, options, Path(folder), stack)
        for op, size in steps:
            progress.update(task, description=f"{op} {sized(size)}", refresh=True)
            rows.append(measure(groups, op, size, options, samplers))
            progress.advance(task)
        for group in groups:
            answers = group.ask({"do": "memory"})
            held = max(answers, key=lambda answer: answer["private_bytes"] + answer["shared_bytes"])
            memory[group.kind.name] = {**held, "total_bytes": held["private_bytes"] + held["shared_bytes"]}
    aead: dict[str, Any] = {}
    if sampler is not None:
        rates = sampler.rates()
        aead = {"kernels": rates.kernels, **sampler.medians()}
        for row in rows:
            if any(row.sealed):
                row.floor_us = floor_seconds(rates, row.sealed, row.opened) * 1e6
    aegis: dict[str, Any] = {}
    if aegis_sampler is not None:
        rates = aegis_sampler.rates()
        aegis = {"kernels": rates.kernels, **aegis_sampler.medians()}
        for row in rows:
            if any(row.aegis_sealed):
                row.aegis_floor_us = floor_seconds(rates, row.aegis_sealed, row.aegis_opened) * 1e6
    verdict = verdicts_over_tcp if options.transport == "tcp" else verdicts
    found = verdict(rows, aead, memory, options.ranks)
    return {
        "rows": rows,
        "aead": aead,
        "aegis": aegis,
        "memory": memory,
        "verdicts": found,
        "versions": {group.kind.name: group.version for group in groups},
        "machine": facts,
        "rounds": options.rounds,
        "ranks": options.ranks,
        "transport": options.transport,
    }


def show(document: dict[str, Any], console: Console) -> None:
    """Prints what was measured."""
    facts, aead = document["machine"], document["aead"]
    names = list(document["versions"])
    table = times_table(document["rows"], names, document["ranks"], document["transport"])
    # A table that is wider than the terminal can be scrolled; columns without their numbers say nothing.
    wide = console.options.update(width=400)
    console.width = max(console.width, table.__rich_measure__(console, wide).maximum)
    console.print(table)
    console.print(f"{facts['cpu']}, {facts['cores']} cores, Linux {facts['kernel']}", highlight=False)
    for name, text in document["versions"].items():
        held = document["memory"][name]
        console.print(
            f"{name}: {text}; a rank holds {held['total_bytes'] / MIB:.1f} MiB beyond tensors, of which "
            f"{held['shared_bytes'] / MIB:.1f} shared",
            highlight=False,
        )
    if aead:
        pairs = (f"{aead[f'{whose}seal_gbs']:.2f} and {aead[f'{whose}open_gbs']:.2f}" for whose in RATES)
        line = "AEAD on 64 KiB in cache, one core, GB/s: {} seals and opens {}; called from Python {}; cryptography {}"
        console.print(line.format(aead["kernels"], *pairs), highlight=False)
    if aegis := document["aegis"]:
        pairs = (f"{aegis[f'{whose}seal_gbs']:.2f} and {aegis[f'{whose}open_gbs']:.2f}" for whose in ("kernel_", ""))
        line = "AEGIS-256X4 likewise: {} seals and opens {}; called from Python {}"
        console.print(line.format(aegis["kernels"], *pairs), highlight=False)
    console.print(verdict_table(document["verdicts"]))


def main(argv: Sequence[str] | None = None) -> int:
    """The program; returns its exit status."""
    options = parse(argv)
    console = Console()
    try:
        document = run(options, console)
    except ContenderError as error:
        print(f"peers.py: {error}", file=sys.stderr)
        return 2
    show(document, console)
    if options.json is not None:
        plain = {**document, "rows": [asdict(row) for row in document["rows"]]}
        plain["verdicts"] = [asdict(verdict) for verdict in document["verdicts"]]
        options.json.write_text(json.dumps(plain, indent=1) + "\n")
    wrong = {name for row in document["rows"] for name, count in row.wrong.items() if count}
    if wrong:
        print(f"peers.py: wrong results by {', '.join(sorted(wrong))}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
