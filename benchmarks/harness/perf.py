"""The program behind every ``*_perf.py``: nccl-tests' command line and columns, for sealed collectives.

A row is one size. Its time is that of one call, averaged over a timed loop, on the slowest rank. algbw is the size
over the time; busbw multiplies it by the collective's factor, so that it can be held against what the hardware carries
(see nccl-tests' PERFORMANCE.md). #wrong counts elements, on all ranks, that differ from what they must be: all are
compared, once after the warm-up and again after the timed loop. Three columns are ours: ``cipher``; ``sealed``, the
plaintext bytes that the busiest rank seals over the size; and ``floor``, the time over that of the cipher alone
(harness/floor.py).
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from harness.collectives import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, BROADCAST, REDUCE_SCATTER, Case, Collective
from harness.devices import DEVICES, Buffer, Cpu, Device, make
from harness.floor import AEGIS, GCM, AeadRates, cores, floor_seconds
from harness.launch import Launch, LaunchError, choose_key, detect, join
from harness.pattern import ALIASES, ELEMENTS, FACTOR, OPERATIONS, Element, Pattern, reducible

if TYPE_CHECKING:
    from securecoll import Communicator

WRONG_DATA = 1
FAILED = 2
"""Exit statuses; 0 is success."""

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def parse_size(text: str) -> int:
    """Bytes from ``64``, ``64K``, ``1.5M`` or ``2G`` (powers of 1024; a trailing B or iB is allowed)."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMG]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size: give bytes, or a number with K, M or G")
    size = float(match[1]) * _UNITS[match[2].upper()]
    if size != int(size) or size < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of bytes, at least 1")
    return int(size)


def sizes(smallest: int, largest: int, step: int | None, factor: float) -> Iterator[int]:
    """Bytes from ``smallest`` to ``largest``, by adding ``step`` where it is given, else by multiplying."""
    size = smallest
    while size <= largest:
        yield size
        size = size + step if step else max(size + 1, int(size * factor))


@dataclass(frozen=True, slots=True)
class Timing:
    """One half of a row. ``time_us`` is None where there was no timed loop (``-n 0``)."""

    time_us: float | None
    algbw_gbs: float | None
    busbw_gbs: float | None
    wrong: int | None
    """Elements, over all ranks; None when nothing was checked."""
    sealed: float
    """Plaintext bytes that the busiest rank sealed in one call, over the row's size."""
    floor: float | None
    """Time over that of the cipher alone."""


@dataclass(frozen=True, slots=True)
class Row:
    """One size."""

    size: int
    count: int
    type: str
    redop: str | None
    root: int | None
    out_of_place: Timing | None
    in_place: Timing | None


def call(
    communicator: Communicator, case: Case, in_place: bool, send: Any, recv: Any, algorithm: str | None
) -> Callable[[], object]:
    """The collective of ``case`` on buffers from ``Case.place``, as a function without arguments."""
    collective, operation = case.collective, case.pattern.operation
    if collective is ALL_GATHER:
        return lambda: communicator.all_gather(send, recv, algorithm=algorithm)
    if collective is ALL_TO_ALL:
        return lambda: communicator.all_to_all(send, recv, algorithm=algorithm)
    if collective is BROADCAST:
        return lambda: communicator.broadcast(send, root=case.root, algorithm=algorithm)
    from securecoll import ReduceOp

    assert operation is not None
    names = {"prod": "PRODUCT", "premulsum": "PREMUL_SUM"}
    redop = ReduceOp[names.get(operation, operation.upper())]
    factor = FACTOR if operation == "premulsum" else 1.0
    if collective is REDUCE_SCATTER:
        return lambda: communicator.reduce_scatter(send, recv, redop, factor=factor, algorithm=algorithm)
    target = None if in_place else recv
    if collective is ALL_REDUCE:
        return lambda: communicator.all_reduce(send, target, redop, factor=factor, algorithm=algorithm)
    return lambda: communicator.reduce(send, target, redop, root=case.root, factor=factor, algorithm=algorithm)


class Bench:
    """Measures cases on one communicator. Every method is collective over its ranks."""

    def __init__(
        self, communicator: Communicator, rates: AeadRates, options: argparse.Namespace, device: Device
    ) -> None:
        self._communicator = communicator
        self._device = device
        self._rates = rates
        self._options = options

    def row(self, case: Case) -> Row:
        """Measures one case, out of place and in place, as far as the collective has both."""
        element, collective = case.pattern.element, case.collective
        send, recv = (self._device.buffer(element, count) for count in (case.send_count, case.recv_count))
        halves = [
            self._timing(case, in_place, send, recv) if allowed else None
            for in_place, allowed in ((False, collective.out_of_place), (True, collective.in_place))
        ]
        return Row(
            size=case.nbytes,
            count=case.count,
            type=element.name,
            redop=case.pattern.operation,
            root=case.root if collective.rooted else None,
            out_of_place=halves[0],
            in_place=halves[1],
        )

    def _timing(self, case: Case, in_place: bool, send: Buffer, recv: Buffer) -> Timing:
        communicator, options = self._communicator, self._options
        arrays = case.place(in_place, send.array, recv.array)
        run = call(communicator, case, in_place, *arrays, options.algorithm)
        source, result = case.place(in_place, send.storage, recv.storage)

        def prepare() -> None:
            case.prepare(source, result)
            for buffer in (send, recv):
                buffer.to_device()

        def count_wrong() -> int:
            for buffer in (send, recv):
                buffer.from_device()
            return case.count_wrong(result)

        def check() -> int:
            prepare()
            run()
            return count_wrong()

        prepare()
        for _ in range(options.warmup_iters):
            run()
        wrong = check() if options.check else 0
        self._device.synchronize()
        communicator.barrier()
        before = communicator.stats()
        start = time.perf_counter()
        for _ in range(options.iters):
            run()
        self._device.synchronize()
        seconds = time.perf_counter() - start
        after = communicator.stats()
        if options.check:
            if not in_place and options.iters:  # what the last timed call left
                wrong += count_wrong()
            wrong += check()
        calls = max(options.iters, 1)
        mine = [seconds, after.bytes_sealed - before.bytes_sealed, after.bytes_opened - before.bytes_opened]
        times, sealed, opened = self._gathered([value / calls for value in mine])
        seconds, floor = max(times), floor_seconds(self._rates, sealed, opened)
        timed = options.iters > 0
        return Timing(
            time_us=seconds * 1e6 if timed else None,
            algbw_gbs=case.nbytes / seconds / 1e9 if timed else None,
            busbw_gbs=case.nbytes / seconds / 1e9 * case.collective.bus_factor(case.ranks) if timed else None,
            wrong=self._sum(wrong) if options.check else None,
            sealed=max(sealed) / case.nbytes,
            floor=seconds / floor if timed and floor > 0 else None,
        )

    def _gathered(self, values: list[float]) -> list[list[float]]:
        """For each value, that of every rank."""
        table = np.zeros((self._communicator.size, len(values)), np.float64)
        self._communicator.all_gather(np.array(values, np.float64), table)
        return [[float(value) for value in column] for column in table.T]

    def _sum(self, value: int) -> int:
        from securecoll import ReduceOp

        array = np.array([value], np.int64)
        self._communicator.all_reduce(array, op=ReduceOp.SUM)
        return int(array[0])


_COLUMNS = ("size", "count", "type", "redop", "root", "cipher")
_UNIT_ROW = ("(B)", "(elements)", "", "", "", "")
_WIDTHS = (12, 12, 10, 9, 5, 11)
_HALF = ("time", "algbw", "busbw", "#wrong", "sealed", "floor")
_HALF_UNITS = ("(us)", "(GB/s)", "(GB/s)", "", "(x)", "(x)")
_HALF_WIDTHS = (10, 7, 7, 6, 6, 6)


def _cells(values: Sequence[object], widths: Sequence[int]) -> str:
    return " ".join(f"{value:>{width}}" for value, width in zip(values, widths, strict=True))


def header() -> str:
    """The lines above the rows."""
    half = sum(_HALF_WIDTHS) + len(_HALF_WIDTHS) - 1
    lead = sum(_WIDTHS) + len(_WIDTHS) - 1
    lines = [
        f"{'':>{lead}}  {'out-of-place':^{half}}  {'in-place':^{half}}",
        "  ".join([_cells(_COLUMNS, _WIDTHS), _cells(_HALF, _HALF_WIDTHS), _cells(_HALF, _HALF_WIDTHS)]),
        "  ".join([_cells(_UNIT_ROW, _WIDTHS), _cells(_HALF_UNITS, _HALF_WIDTHS), _cells(_HALF_UNITS, _HALF_WIDTHS)]),
    ]
    return "\n".join(f"#{line[1:]}".rstrip() for line in lines)


def _number(value: float | None, digits: int) -> str:
    """Four significant digits or so, as nccl-tests prints times."""
    if value is None:
        return "N/A"
    if digits and value >= 1000:
        digits = 1 if value < 100_000 else 0
    return f"{value:.{digits}f}"


def format_timing(timing: Timing | None) -> str:
    """One half of a row; N/A where the collective has no such form."""
    if timing is None:
        return _cells(["N/A"] * len(_HALF), _HALF_WIDTHS)
    values = [
        _number(timing.time_us, 2),
        _number(timing.algbw_gbs, 2),
        _number(timing.busbw_gbs, 2),
        "N/A" if timing.wrong is None else str(timing.wrong),
        _number(timing.sealed, 2),
        ">999" if timing.floor is not None and timing.floor >= 1000 else _number(timing.floor, 2),
    ]
    return _cells(values, _HALF_WIDTHS)


def format_row(row: Row, cipher: str) -> str:
    """One line of the table."""
    lead = (row.size, row.count, row.type, row.redop or "none", -1 if row.root is None else row.root, cipher)
    return "  ".join([_cells(lead, _WIDTHS), format_timing(row.out_of_place), format_timing(row.in_place)])


class _Parser(argparse.ArgumentParser):
    """Speaks on rank 0 only: eight ranks with the same wrong flag are one mistake."""

    silent = False

    def _print_message(self, message: str, file: Any = None) -> None:
        if not self.silent:
            super()._print_message(message, file)

    def error(self, message: str) -> NoReturn:
        self._print_message(f"{self.prog}: {message} (--help lists the options)\n", sys.stderr)
        raise SystemExit(FAILED)


def _parser(collective: Collective, silent: bool) -> _Parser:
    parser = _Parser(
        prog=f"{collective.name}_perf.py",
        description=f"Measures and checks {collective.name} of securecoll. Start it with mpirun or torchrun.",
    )
    parser.silent = silent
    add = parser.add_argument
    add("-b", "--minbytes", type=parse_size, default="8", metavar="SIZE", help="smallest size (default 8)")
    add("-e", "--maxbytes", type=parse_size, default="64M", metavar="SIZE", help="largest size (default 64M)")
    add("-i", "--stepbytes", type=parse_size, metavar="SIZE", help="add this from size to size")
    add("-f", "--stepfactor", type=float, default=2.0, metavar="X", help="or multiply by this (default 2)")
    add("-n", "--iters", type=int, default=20, metavar="N", help="timed calls (default 20)")
    add("-w", "--warmup_iters", type=int, default=5, metavar="N", help="calls before the first check (default 5)")
    add("-c", "--check", type=int, choices=(0, 1), default=1, help="compare every element (default 1)")
    add("-o", "--op", default="sum", metavar="OP", help=f"{', '.join(OPERATIONS)} or all (default sum)")
    add("-d", "--datatype", default="float", metavar="TYPE", help=f"{', '.join(ELEMENTS)} or all (default float)")
    add("-r", "--root", type=int, default=0, metavar="RANK", help="root, -1 for every rank in turn (default 0)")
    add(
        "--algorithm",
        metavar="NAME",
        help="pin a plan: one_shot, direct or ring (default: the tuner's choice)",
    )
    add("--suite", choices=(GCM, AEGIS), default=GCM, help=f"what seals records (default {GCM})")
    add("--device", choices=DEVICES, default="cpu", help="where arrays lie (default cpu); emulated: to try the script")
    add("--staged", action="store_true", help="on a device: copy records, even where kernels could reach the slots")
    add("--key", type=Path, metavar="FILE", help="key file, 0600 (default: the configured key, else one of this host)")
    add("--timeout", type=float, default=60.0, metavar="S", help="seconds a collective may take (default 60)")
    add("--json", type=Path, metavar="FILE", help="also write the results here, from rank 0")
    return parser


def parse(collective: Collective, launch: Launch, argv: Sequence[str] | None) -> argparse.Namespace:
    """The options; ends the process with status 2 and one line when they are wrong."""
    parser = _parser(collective, silent=launch.rank != 0)
    options = parser.parse_args(argv)
    options.datatype = ALIASES.get(options.datatype, options.datatype)
    if options.op != "all" and options.op not in OPERATIONS:
        parser.error(f"-o {options.op} is none of {', '.join(OPERATIONS)}, all")
    if options.datatype != "all" and options.datatype not in ELEMENTS:
        parser.error(f"-d {options.datatype} is none of {', '.join(ELEMENTS)}, all")
    if options.minbytes > options.maxbytes:
        parser.error(f"-b {options.minbytes} is over -e {options.maxbytes}")
    if options.stepfactor <= 1:
        parser.error("-f must be over 1")
    if options.iters < 0 or options.warmup_iters < 0:
        parser.error("-n and -w count calls: 0 or more")
    if not -1 <= options.root < launch.size:
        parser.error(f"-r {options.root} is no rank: there are {launch.size}")
    if options.timeout <= 0:
        parser.error("--timeout must be over 0")
    if options.json is not None and not options.json.parent.is_dir():
        parser.error(f"--json {options.json}: no such folder")
    if not _problems(collective, options):
        parser.error(f"-o {options.op} is not defined for {collective.name} on -d {options.datatype}")
    return options


def _problems(collective: Collective, options: argparse.Namespace) -> list[tuple[Element, str | None]]:
    """The element types and reductions that were asked for and make sense."""
    elements = list(ELEMENTS.values()) if options.datatype == "all" else [ELEMENTS[options.datatype]]
    if not collective.reduces:
        return [(element, None) for element in elements]
    operations = OPERATIONS if options.op == "all" else (options.op,)
    return [(element, operation) for element in elements for operation in operations if reducible(element, operation)]


def cases(collective: Collective, launch: Launch, options: argparse.Namespace) -> Iterator[Case]:
    """What was asked for, in the order of the rows. A size becomes whole parts of whole elements, at least one."""
    roots = range(launch.size) if collective.rooted and options.root < 0 else [max(options.root, 0)]
    for element, operation in _problems(collective, options):
        pattern = Pattern(element, operation, launch.size)
        for root in roots:
            seen = set()
            for size in sizes(options.minbytes, options.maxbytes, options.stepbytes, options.stepfactor):
                count = max(1, size // (element.itemsize * collective.parts(launch.size)))
                if count not in seen:
                    seen.add(count)
                    yield Case(collective, pattern, launch.rank, count, root)


def run(
    communicator: Communicator,
    collective: Collective,
    launch: Launch,
    options: argparse.Namespace,
    rates: AeadRates,
    notes: Sequence[str] = (),
    device: Device | None = None,
) -> int:
    """Measures everything, prints the table on rank 0, and returns the exit status."""
    shown = launch.rank == 0

    def say(line: str) -> None:
        if shown:
            print(line, flush=True)

    def progress(text: str) -> None:
        if shown and sys.stderr.isatty():
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)

    ranks = f"{launch.size} ranks under {launch.launcher.value}" if launch.size > 1 else "1 rank"
    say(f"# {collective.name}, {ranks}, {cores()} cores on this host")
    say(f"# {options.iters} timed calls after {options.warmup_iters} to warm up, check {options.check}")
    cipher = f"{communicator.suite} by {rates.kernels}"
    say(f"# {cipher}: seals {rates.seal_gbs:.2f}, opens {rates.open_gbs:.2f} GB/s a core, 64 KiB")
    for note in notes:
        say(f"# {note}")
    say(f"#\n{header()}")
    bench = Bench(communicator, rates, options, device or Cpu())
    rows = []
    for case in cases(collective, launch, options):
        progress(f"measuring {case.nbytes} bytes")
        row = bench.row(case)
        progress("")
        rows.append(row)
        say(format_row(row, communicator.suite))
    timings = [timing for row in rows for timing in (row.out_of_place, row.in_place) if timing is not None]
    wrong = sum(timing.wrong or 0 for timing in timings)
    bandwidths = [timing.busbw_gbs for timing in timings if timing.busbw_gbs is not None]
    average = sum(bandwidths) / len(bandwidths) if bandwidths else None
    verdict = ("OK" if wrong == 0 else "FAILED") if options.check else "not checked"
    say(f"# Out of bounds values : {wrong} {verdict}")
    say(f"# Avg bus bandwidth    : {_number(average, 4)}")
    if shown and options.json is not None:
        document = {
            "benchmark": f"{collective.name}_perf",
            "ranks": launch.size,
            "launcher": launch.launcher.value,
            "cores": cores(),
            "device": options.device,
            "cipher": communicator.suite,
            "aead": asdict(rates),
            "iters": options.iters,
            "warmup_iters": options.warmup_iters,
            "rows": [asdict(row) for row in rows],
            "wrong": wrong,
            "avg_busbw_gbs": average,
        }
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    return WRONG_DATA if wrong else 0


def main(collective: Collective, argv: Sequence[str] | None = None) -> int:
    """The program; returns its exit status: 0, 1 for wrong data, 2 when the run could not start or failed."""
    rank = 0
    try:
        launch = detect()
        rank = launch.rank
        options = parse(collective, launch, argv)
        key, note = choose_key(launch, options.key)
        device = make(options.device, launch, options.staged)
        from securecoll import SecureCollError
    except LaunchError as error:
        print(f"{collective.name}_perf.py: rank {rank}: {error}", file=sys.stderr)
        return FAILED
    try:
        with join(launch, key, options.timeout, device.communicator, options.suite) as communicator:
            rates = shared_rates(communicator, launch)
            notes = [note, *filter(None, [device.note])]
            return run(communicator, collective, launch, options, rates, notes, device)
    except LaunchError as error:
        print(f"{collective.name}_perf.py: rank {rank}: {error}", file=sys.stderr)
        return FAILED
    except SecureCollError as error:  # says which rank by itself
        print(f"{collective.name}_perf.py: {error}", file=sys.stderr)
        return FAILED


def shared_rates(communicator: Communicator, launch: Launch) -> AeadRates:
    """Rates of the cipher on one core, measured by rank 0 while the others wait. Collective."""
    rates = AeadRates.measure(communicator.suite) if launch.rank == 0 else AeadRates.unmeasured()
    array = np.array([rates.seal_gbs, rates.open_gbs], np.float64)
    communicator.broadcast(array, root=0)
    return AeadRates(rates.kernels, float(array[0]), float(array[1]))
