"""Rates of a job's cores and network, measured by its ranks in well under a second when they have joined.

What one rank alone can know (how fast it seals, opens, adds, copies and uses a socket) it measures alone; the network,
by messages around the ring of hosts, which all hosts send at the same time. Then all ranks agree on the worst of each
number, since the slowest host sets a collective's pace. They agree by messages as well: no plan is made before the
rates are known, so no rank has one in its cache that another would make otherwise.
"""

from __future__ import annotations

import socket
import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from statistics import median
from typing import TYPE_CHECKING, TypeVar

from securecoll import _engine, suites
from securecoll.codes import DType, ReduceOp
from securecoll.plan.cost import Rates
from securecoll.plan.topology import Topology
from securecoll.plan.tuner import HOST
from securecoll.rates import bounded
from securecoll.shape import cores

if TYPE_CHECKING:
    from securecoll.communicator import Communicator

_T = TypeVar("_T")

_PIECE = 64 << 10
_LOCAL_SECONDS = 0.01
"""For each of a rank's own rates."""
_HOPS = 12
_FIRST_HOPS = 3
_FIRST_BYTES = 256 << 10
_MOST_BYTES = 32 << 20
_LINK_SECONDS = 0.05
_TURNS = 3
"""Of long messages, and of the cipher; the fastest counts, since what else a machine does is not theirs."""


@dataclass(frozen=True, slots=True)
class _Costs:
    """Rates turned over, so that the most of each is the worst."""

    seal: float
    open: float
    reduce: float
    copy: float
    core: float
    """1 over the cores."""
    socket: float
    hop: float = 0.0
    """Seconds."""
    link: float = 0.0

    def rates(self) -> Rates:
        """What is not measured stays as in the package's table."""
        network = replace(HOST.network, socket=1 / self.socket)
        if self.link > 0:
            network = replace(network, hop_seconds=self.hop, link=1 / self.link)
        return bounded(
            replace(
                HOST,
                seal=1 / self.seal,
                open=1 / self.open,
                reduce=1 / self.reduce,
                copy=1 / self.copy,
                cores=round(1 / self.core),
                network=network,
            )
        )


def measure(comm: Communicator, topology: Topology) -> Rates:
    """The same rates on every rank of a group that has just joined. Collective.

    Raises what messages raise.
    """
    return _Calibration(comm, topology).run()


class _Calibration:
    """One rank's part."""

    def __init__(self, comm: Communicator, topology: Topology) -> None:
        self._comm = comm
        self._topology = topology
        hosts, own = topology.groups, topology.hosts[comm.rank]
        place = topology.places[comm.rank]
        self._streams = min(map(len, hosts))
        """Ranks of each host that send to the next one."""
        takes_part = len(hosts) > 1 and place < self._streams
        self._following = hosts[(own + 1) % len(hosts)][place] if takes_part else None
        self._previous = hosts[own - 1][place] if takes_part else None

    def run(self) -> Rates:
        found = self._agree(_local(self._comm.suite))
        if len(self._topology.groups) > 1:
            hop = median(self._shifts(8, _FIRST_HOPS + _HOPS)[_FIRST_HOPS:])
            first = self._agree(replace(found, hop=hop, link=min(self._shifts(_FIRST_BYTES, 2)) / _FIRST_BYTES))
            # The same on all ranks, as they agree on what the first bytes took.
            nbytes = min(max(_FIRST_BYTES, int(_LINK_SECONDS / first.link)), _MOST_BYTES) // _PIECE * _PIECE
            # The first turn also fills what the network lends to bursts.
            link = min(self._shifts(nbytes, 1 + _TURNS)[1:]) / nbytes / self._streams
            found = self._agree(replace(first, link=link))
        return found.rates()

    def _shifts(self, nbytes: int, turns: int) -> list[float]:
        """Seconds, of each turn, in which this rank sends a message to the next host and receives one from the host
        before."""
        if self._following is None:
            return [0.0] * turns
        mine, theirs = bytearray(nbytes), bytearray(nbytes)
        found = []
        for _ in range(turns):
            began = time.perf_counter()
            sent = self._comm.send(mine, self._following, async_op=True)
            self._comm.recv(theirs, self._previous)
            sent.wait()
            found.append(time.perf_counter() - began)
        return found

    def _agree(self, mine: _Costs) -> _Costs:
        """The most of each number over all ranks: of each host, between hosts in log2 rounds, and to all of each host.
        The peers are those that a barrier has."""
        comm, topology = self._comm, self._topology
        names = [f.name for f in fields(_Costs)]
        worst = array("d", [getattr(mine, name) for name in names])
        theirs = array("d", worst)

        def hear(peer: int) -> None:
            comm.recv(theirs, peer)
            worst[:] = array("d", map(max, worst, theirs))

        own, group = topology.hosts[comm.rank], topology.group(comm.rank)
        if comm.rank != group[0]:
            comm.send(worst, group[0])
            comm.recv(worst, group[0])
            return _Costs(*worst)
        for peer in group[1:]:
            hear(peer)
        hosts, distance = topology.groups, 1
        while distance < len(hosts):
            told = comm.send(array("d", worst), hosts[(own + distance) % len(hosts)][0], async_op=True)
            hear(hosts[own - distance][0])
            told.wait()
            distance *= 2
        for peer in group[1:]:
            comm.send(worst, peer)
        return _Costs(*worst)


def _local(suite: str) -> _Costs:
    """What one rank can know alone."""
    kernels = _engine.aead_name(suites.named(suite))
    turns = [_engine.aead_rate(kernels, _PIECE, 2 * _LOCAL_SECONDS / _TURNS) for _ in range(_TURNS)]
    seal, opened = map(max, zip(*turns, strict=True))
    a, b, out = (bytearray(_PIECE) for _ in range(3))
    isa, count = _engine.reduce_isa(), _PIECE // DType.F32.itemsize
    add = _seconds(lambda: _engine.reduce(isa, DType.F32, ReduceOp.SUM, out, a, b, count))

    def copy() -> None:
        out[:] = a

    return _Costs(
        seal=1e-9 / seal,
        open=1e-9 / opened,
        reduce=add / _PIECE,
        copy=_seconds(copy) / _PIECE,
        core=1 / cores(),
        socket=_socket() / _PIECE,
    )


def _seconds(work: Callable[[], object]) -> float:
    """The fastest of several turns of a call."""

    def turn() -> float:
        began = time.perf_counter()
        for _ in range(4):
            work()
        return (time.perf_counter() - began) / 4

    return min(_turns(turn))


def _turns(turn: Callable[[], _T]) -> Iterator[_T]:
    """Of what a few turns measure, and as many more as there is time for."""
    deadline = time.perf_counter() + _LOCAL_SECONDS
    taken = 0
    while taken < _TURNS or time.perf_counter() < deadline:
        yield turn()
        taken += 1


def _socket() -> float:
    """Seconds in which a core moves a piece into a TCP socket, or out of it, whichever takes longer."""
    piece, room = bytes(_PIECE), bytearray(_PIECE)
    try:
        with socket.socket() as listener, socket.socket() as sender:
            for end, option in ((listener, socket.SO_RCVBUF), (sender, socket.SO_SNDBUF)):
                end.setsockopt(socket.SOL_SOCKET, option, 4 * _PIECE)  # one thread fills it and drains it
            listener.bind(("127.0.0.1", 0))
            listener.listen(1)
            sender.settimeout(1.0)
            sender.connect(listener.getsockname())
            receiver, _ = listener.accept()

            def turn() -> tuple[float, float]:
                began = time.perf_counter()
                sender.sendall(piece)
                between = time.perf_counter()
                taken = 0
                while taken < _PIECE:
                    taken += receiver.recv_into(memoryview(room)[taken:])
                return between - began, time.perf_counter() - between

            with receiver:
                receiver.settimeout(1.0)
                into, out_of = (min(seconds) for seconds in zip(*_turns(turn), strict=True))
    except OSError:  # no loopback here
        return _PIECE / HOST.network.socket
    return max(float(into), float(out_of))
