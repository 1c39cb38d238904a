"""securecoll between hosts, beside gloo: the targets of the project across hosts, from one run.

    sudo .venv/bin/python benchmarks/hosts.py --json out.json

Hosts are network namespaces on a bridge (tests/hosts/lab.py), each with a network and a /dev/shm of its own, so ranks
of different hosts have nothing but TCP. It takes root and iproute2. Some rows run over cables as fast as this machine
copies, others over cables shaped to ``--rate``, which counts Ethernet frames as a real one does. Two rates say what
such a cable could carry: its *payload rate*, which is the rate less Ethernet's, IPv4's and TCP's headers; and what one
plain TCP connection makes of it, measured in the same run.

As in peers.py contenders are processes that stay up, rounds alternate between them, and an iteration lasts from when
the last rank has entered the collective until the last rank has left it. gloo sends plaintext.

All hosts share the cores of this machine. Where a row's cipher alone would take a good part of its time (column
``cipher``), the row is bound by cores that real hosts would not share, rather than by the network.

Exit status: 0; 1 when a result was wrong; 2 when the run could not start or a contender failed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import handshake_scale
import peers
from harness.floor import Sampler, floor_seconds
from harness.launch import make_key
from harness.perf import parse_size
from peers import ContenderError, Group, Kind, Row, Verdict, verdict_table
from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))

from tests.hosts.lab import Lab, Unable, lab  # noqa: E402 (found only now)

MTU = 1500
FRAME_BYTES = MTU + 14
SEGMENT_BYTES = MTU - 20 - 32
"""What a full frame carries over IPv4, with TCP's timestamps."""
SMALL = 8
LARGE_ENOUGH = 1 << 16
"""Of a size, for fractions of a rate to mean something."""
HANDSHAKE_RANKS = 512
HANDSHAKE_MS = 150.0
PLOTTED = [1 << power for power in range(10, 27, 2)]
QUICK_PLOTTED = [1 << 10, 1 << 16]


@dataclass(frozen=True)
class Placed(Kind):
    """A contender whose ranks run on hosts of a lab."""

    contender: str = "securecoll"
    hosts: tuple[str, ...] = ()
    """The namespace of each rank."""
    memory: Path = Path()
    """A folder in memory; each host's folder in it stands for /dev/shm there."""
    algorithm: str | None = None

    def commands(self, ranks: int, control: Path, meet: Path) -> list[list[str]]:
        """What to start: every rank, on its host."""
        found = []
        for rank, host in enumerate(self.hosts):
            memory = self.memory / host
            memory.mkdir(exist_ok=True)
            # `ip netns exec` gives the process mounts of its own, too.
            command = ["ip", "netns", "exec", host, "sh", "-c", 'mount --bind "$0" /dev/shm && exec "$@"', str(memory)]
            command += [sys.executable, str(HERE / "contender.py"), self.contender, "--control", str(control)]
            command += ["--meet", str(meet), "--rank", str(rank), "--size", str(ranks)]
            if self.algorithm is not None:
                command += ["--algorithm", self.algorithm]
            found.append(command)
        return found


@dataclass
class Case:
    """A row: an all_reduce over one kind of cable."""

    hosts: int
    row: Row
    shaped: bool
    cipher: float | None = None
    """The part of the time that the cipher alone would take on these cores, for the first of ours."""

    @property
    def carried(self) -> float:
        """Payload bytes that each cable carries each way where no byte enters a host twice."""
        return 2 * self.row.bytes * (self.hosts - 1) / self.hosts

    def rate(self, name: str) -> float:
        """Bytes a second over a cable."""
        return self.carried / self.row.median_us[name] * 1e6


def payload_rate(rate: float) -> float:
    """Payload bytes a second of a link that carries ``rate`` bytes of Ethernet frames a second."""
    return rate * SEGMENT_BYTES / FRAME_BYTES


def plain_rate(hosts: Lab, nbytes: int) -> float:
    """Bytes a second of one TCP connection from host 0 to host 1."""
    program, address = str(HERE / "harness" / "stream.py"), "10.77.0.2"
    inside = ["ip", "netns", "exec"]
    with subprocess.Popen(
        [*inside, hosts.host(1), sys.executable, program, "receive", address], stdout=subprocess.PIPE, text=True
    ) as receiver:
        send = [*inside, hosts.host(0), sys.executable, program, "send", address, str(nbytes)]
        sent = subprocess.run(send, capture_output=True, text=True, check=False)
        told = receiver.communicate()[0]
    if sent.returncode or receiver.returncode:
        raise ContenderError(f"a plain TCP connection between two hosts failed: {sent.stderr.strip()[-200:]}")
    return float(told)


class Bench:
    """One run: the hosts, and the groups on them."""

    def __init__(self, options: argparse.Namespace, hosts: Lab, folder: Path, memory: Path, stack: ExitStack) -> None:
        self._options, self._hosts, self._folder, self._memory, self._stack = options, hosts, folder, memory, stack
        self._sampler = Sampler()
        self._key = folder / "key"
        make_key(self._key)
        self._shaped = False
        self.cases: list[Case] = []
        self.versions: dict[str, str] = {}

    def group(self, name: str, contender: str, each: int, algorithm: str | None = None) -> Group:
        """Starts a contender with ``each`` ranks on each of two hosts."""
        placement = tuple(self._hosts.host(number) for number in (0, 1) for _ in range(each))
        kind = Placed(name, Path(sys.prefix), False, contender, placement, self._memory, algorithm)
        folder = self._folder / f"{name}-{each}"
        folder.mkdir()
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONWARNINGS": "ignore",
            "GLOO_SOCKET_IFNAME": "eth0",
            "SECURECOLL_KEY_FILE": str(self._key),
        }
        group = Group(kind, len(placement), folder, environment, self._options.timeout)
        self._stack.callback(group.close)
        self.versions[contender] = group.version
        return group

    def shape(self) -> None:
        """From now on cables have the rate asked for."""
        for number in (0, 1):
            self._hosts.shape(number, self._options.rate)
        self._shaped = True

    def measure(self, groups: Sequence[Group], nbytes: int) -> None:
        """One row."""
        ranks = len(groups[0].kind.hosts)
        options = argparse.Namespace(**{**vars(self._options), "ranks": ranks, "transport": "tcp"})
        row = peers.measure(groups, "all_reduce", nbytes, options, [self._sampler])
        self.cases.append(Case(2, row, self._shaped))

    def finish(self) -> dict[str, Any]:
        """What the cipher alone would take, now that its rates are known. They are returned."""
        rates = self._sampler.rates()
        for case in self.cases:
            row = case.row
            # Whatever the plan, a rank of an all_reduce seals the buffer, and opens the others' parts of it twice.
            sealed = [float(row.bytes)] * row.ranks
            opened = [2.0 * row.bytes * (row.ranks - 1) / row.ranks] * row.ranks
            row.floor_us = floor_seconds(rates, sealed, opened) * 1e6
            ours = next((name for name in row.median_us if name != "gloo"), None)
            case.cipher = None if ours is None else row.floor_us / row.median_us[ours]
        return {"kernels": rates.kernels, **self._sampler.medians()}


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measures everything and returns the document for ``--json``."""
    # No refresh thread: the line is drawn between turns, not under them.
    columns = (TextColumn("{task.description}"), TimeElapsedColumn())
    progress = Progress(*columns, console=Console(stderr=True), auto_refresh=False, transient=True)
    facts = peers.machine()
    with (
        lab(2, (4,)) as hosts,
        tempfile.TemporaryDirectory(prefix="hosts-") as folder,
        tempfile.TemporaryDirectory(prefix="hosts-", dir="/dev/shm") as memory,
        ExitStack() as stack,
        progress,
    ):
        task = progress.add_task("starting", total=None)
        bench = Bench(options, hosts, Path(folder), Path(memory), stack)
        # Both ways of calling securecoll, since gloo is called through torch; and both ciphers.
        pair = [
            bench.group(name, name, 1) for name in ("securecoll", "securecoll_torch", "securecoll_aegis_torch", "gloo")
        ]
        four = [bench.group(name, "securecoll", 2, name) for name in ("hierarchical", "ring")]
        plain = [plain_rate(hosts, options.stream)]
        for nbytes in (SMALL, options.size):
            progress.update(task, description=f"two ranks, {peers.sized(nbytes)}", refresh=True)
            bench.measure(pair, nbytes)
        bench.shape()
        plain.append(plain_rate(hosts, options.stream))
        progress.update(task, description=f"two ranks, shaped, {peers.sized(options.size)}", refresh=True)
        bench.measure(pair, options.size)
        for nbytes in sorted({*(size for size in options.plotted if size < options.size), options.size}):
            progress.update(task, description=f"four ranks, shaped, {peers.sized(nbytes)}", refresh=True)
            bench.measure(four, nbytes)
        aead = bench.finish()
    joining = None
    if not options.quick:
        joining = asdict(handshake_scale.measure(HANDSHAKE_RANKS))
    link = {"rate": options.rate, "payload_rate": payload_rate(options.rate), "plain_rate": plain[1]}
    return {
        "cases": bench.cases,
        "link": {**link, "plain_rate_unshaped": plain[0]},
        "joining": joining,
        "verdicts": verdicts(bench.cases, options.size, link, joining),
        "aead": aead,
        "machine": facts,
        "versions": bench.versions,
        "rounds": options.rounds,
    }


def verdicts(
    cases: Sequence[Case], size: int, link: dict[str, float], joining: dict[str, Any] | None
) -> list[Verdict]:
    """The project's targets across hosts."""
    found = {(case.shaped, case.row.ranks, case.row.bytes): case for case in cases}
    result = []

    def at_least(what: str, least: float, value: float | None, unit: str = "x") -> None:
        text = None if value is None else f"{value:.2f}{unit}"
        result.append(Verdict(what, f"at least {least:g}{unit}", text, value is not None and value >= least))

    def ratio(key: tuple[bool, int, int], slow: str, fast: str) -> float | None:
        case = found.get(key)
        return None if case is None else case.row.ratio([slow], fast)

    large, gbits = peers.sized(size), f"{8 * link['rate'] / 1e9:g} Gbit/s"
    torch, aegis, gloo = "securecoll_torch", "securecoll_aegis_torch", "gloo"
    what = f"all_reduce {large}, gloo's time over ours, both through torch"
    at_least(what, 1.0, ratio((False, 2, size), gloo, torch))
    at_least(f"{what}, in suite aegis-256x4", 1.0, ratio((False, 2, size), gloo, aegis))
    at_least("all_reduce 8 B, gloo's time over ours, both through torch", 2.0, ratio((False, 2, SMALL), gloo, torch))
    case = found.get((True, 2, size))
    fraction = None if case is None else case.rate("securecoll") / link["payload_rate"]
    at_least(f"all_reduce {large} at {gbits}, of the link's payload rate", 0.9, fraction, "")
    at_least(
        f"2 x 2 ranks, {large} at {gbits}, ring's time over hierarchical's",
        1.3,
        ratio((True, 4, size), "ring", "hierarchical"),
    )
    spent = None if joining is None else joining["cpu_ms"]
    text = None if spent is None else f"{spent:.0f} ms"
    what = f"handshake of {HANDSHAKE_RANKS} ranks, CPU of a rank"
    result.append(Verdict(what, f"at most {HANDSHAKE_MS:g} ms", text, spent is not None and spent <= HANDSHAKE_MS))
    return result


def times_table(cases: Sequence[Case], link: dict[str, float]) -> Table:
    """Medians of every case; for shaped cables, which part of the payload rate each contender reaches."""
    table = Table(title="all_reduce between two hosts, float32, medians; gloo in plaintext", title_justify="left")
    names = list(dict.fromkeys(name for case in cases for name in case.row.median_us))
    table.add_column("cables")
    for title in ("ranks", "size", *names, "cipher"):
        table.add_column(title, justify="right")
    for case in cases:
        shown = []
        for name in names:
            microseconds = case.row.median_us.get(name)
            text = peers.timed(microseconds)
            if case.shaped and microseconds is not None and case.row.bytes >= LARGE_ENOUGH:
                text += f" ({case.rate(name) / link['payload_rate']:.2f})"
            shown.append(text)
        cipher = "-" if case.cipher is None or case.row.bytes < LARGE_ENOUGH else f"{case.cipher:.2f}"
        cables = f"{8 * link['rate'] / 1e9:g} Gbit/s" if case.shaped else "unshaped"
        table.add_row(cables, f"2 x {case.row.ranks // 2}", peers.sized(case.row.bytes), *shown, cipher)
    return table


def draw(cases: Sequence[Case], link: dict[str, float], path: Path) -> None:
    """Writes the plot: time over size on shaped cables, beside the time of the link alone."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    shown = [case for case in cases if case.shaped and case.row.ranks == 4]
    sizes = [case.row.bytes for case in shown]
    figure, axes = pyplot.subplots(figsize=(6.4, 4.2), layout="constrained")
    for name, marker in (("hierarchical", "o"), ("ring", "s")):
        axes.plot(sizes, [case.row.median_us[name] / 1e3 for case in shown], marker=marker, label=name)
    least = [case.carried / link["payload_rate"] * 1e3 for case in shown]
    axes.plot(sizes, least, linestyle=":", color="black", label="payload rate, each byte once")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("bytes")
    axes.set_ylabel("milliseconds")
    axes.set_title(f"all_reduce, two hosts of two ranks, {8 * link['rate'] / 1e9:g} Gbit/s")
    axes.grid(alpha=0.3)
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    pyplot.close(figure)


def show(document: dict[str, Any], console: Console) -> None:
    """Prints what was measured."""
    facts, link, aead = document["machine"], document["link"], document["aead"]
    console.print(times_table(document["cases"], link))
    payload, plain, unshaped = link["payload_rate"], link["plain_rate"], link["plain_rate_unshaped"]
    console.print(
        "In brackets: the bytes that a cable carries each way where none enters a host twice, over the time, as a "
        f"part of the payload rate, {payload / 1e6:.1f} MB/s. One plain TCP connection reaches {plain / payload:.3f} "
        f"of it; unshaped, {unshaped / 1e6:.0f} MB/s.",
        highlight=False,
    )
    console.print(
        f"cipher: the part of the first time that AEAD alone takes on {facts['cores']} cores, at "
        f"{aead['kernel_seal_gbs']:.2f} and {aead['kernel_open_gbs']:.2f} GB/s a core. Where it is large, cores bind.",
        highlight=False,
    )
    console.print(f"{facts['cpu']}, {facts['cores']} cores, Linux {facts['kernel']}", highlight=False)
    for text in document["versions"].values():
        console.print(text, highlight=False)
    console.print(verdict_table(document["verdicts"]))


def _rate(text: str) -> float:
    value = float(text)
    if not 0.01 <= value <= 100:
        raise argparse.ArgumentTypeError(f"{text} is not from 0.01 to 100 Gbit/s")
    return value * 1e9 / 8


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--quick", action="store_true", help="two turns, a few small sizes, no handshake")
    add("--size", type=parse_size, help="of the large all_reduce (default 64M, with --quick 4M)")
    add("--rate", type=_rate, default="2", metavar="GBIT", help="of shaped cables, Gbit/s (default 2)")
    add("--rounds", type=int, help="turns that each contender gets on each row (default 5, with --quick 2)")
    add("--seconds", type=float, help="about how long a turn is (default 0.2, with --quick 0.05)")
    add("--timeout", type=float, default=90.0, help="seconds after which a silent contender has failed (default 90)")
    add("--json", type=Path, metavar="FILE", help="write the results here")
    add("--plot", type=Path, metavar="FILE", help="draw hierarchical and ring over size: .svg or .png")
    options = parser.parse_args(argv)
    options.plotted = QUICK_PLOTTED if options.quick else PLOTTED
    options.stream = (16 if options.quick else 128) << 20
    for name, usual, quick in (("size", 64 << 20, 4 << 20), ("rounds", 5, 2), ("seconds", 0.2, 0.05)):
        if getattr(options, name) is None:
            setattr(options, name, quick if options.quick else usual)
    if options.rounds < 1 or options.seconds <= 0 or options.size <= SMALL:
        parser.error("--rounds is at least 1, --seconds over 0, --size over 8")
    if options.json is not None and not options.json.parent.is_dir():
        parser.error(f"--json {options.json}: no such folder")
    if options.plot is not None and options.plot.suffix not in (".svg", ".png"):
        parser.error(f"--plot {options.plot}: a name that ends in .svg or .png")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """The program; returns its exit status."""
    options = parse(argv)
    if os.geteuid() != 0:
        print("hosts.py: network namespaces need root", file=sys.stderr)
        return 2
    try:
        document = run(options)
    except (ContenderError, Unable) as error:
        print(f"hosts.py: {error}", file=sys.stderr)
        return 2
    show(document, Console(width=max(120, Console().width)))
    if options.json is not None:
        plain = {**document, "cases": [asdict(case) for case in document["cases"]]}
        plain["verdicts"] = [asdict(verdict) for verdict in document["verdicts"]]
        options.json.write_text(json.dumps(plain, indent=1) + "\n")
    if options.plot is not None:
        draw(document["cases"], document["link"], options.plot)
    wrong = {name for case in document["cases"] for name, count in case.row.wrong.items() if count}
    if wrong:
        print(f"hosts.py: wrong results by {', '.join(sorted(wrong))}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    # Whoever ends it early finds no namespaces left.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(2))
    sys.exit(main())
