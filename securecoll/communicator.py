"""The communicator: handshake, engine and plans behind NCCL-like calls."""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, replace
from struct import pack
from types import TracebackType
from typing import Any, Literal, overload

from securecoll import _engine, calibrate, config, cuda, handshake, plan, rates, suites
from securecoll import network as networks
from securecoll.codes import Collective, DType, ReduceOp
from securecoll.errors import ConfigError, HandshakeError
from securecoll.identity import KeyFile, KeySource, Policy
from securecoll.plan import tuner
from securecoll.plan.cost import Rates
from securecoll.plan.topology import Topology
from securecoll.rendezvous import Exchange, MPIExchange
from securecoll.shape import Shape, cores
from securecoll.suites import Suite

log = logging.getLogger("securecoll")

Work = _engine.Operation
"""A collective or message in flight: ``wait(timeout=None)`` raises its error or :class:`CollectiveTimeout`, ``done()``
asks; ``source`` is the rank whose message a finished receive got."""

DEFAULT_TIMEOUT = 300.0
"""Seconds that joining and each collective may take."""

EXIT_SECONDS = 2.0
"""How long a process that ends waits for what is in flight."""

_LOOK_SECONDS = 0.5
_STRANGERS_SECONDS = 5.0
"""How often strangers at this rank's door are worth a line in the log."""

_open: weakref.WeakSet[Communicator] = weakref.WeakSet()

_ALGORITHMS = ("", "one_shot", "direct", "ring", "tree", "recursive_doubling", "hierarchical")
"""By the number that the engine's plan cache knows them by; 0 leaves the choice to the tuner."""

_uses: dict[tuple[bytes, bytes, tuple[int, ...]], int] = {}
_uses_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class Stats:
    """What a communicator did so far, on this rank."""

    bytes_sealed: int
    bytes_opened: int
    records_sealed: int
    records_opened: int
    records_past_caches: int
    """Of those sealed: to be stored past the caches, as faster or as a trial. (libcrypto stores in one way only.)"""
    seconds_waiting: float
    """Time that calls waited for peers, summed over threads."""
    collectives: int


class Communicator:
    """One rank's end of a group whose every byte between ranks is sealed.

    Arrays are NumPy arrays, or anything with the buffer protocol or DLPack on the CPU, or CuPy arrays, or anything
    with ``__cuda_array_interface__`` or DLPack on a GPU; they must be C-contiguous, and are used in place, never
    copied. Ranks may differ in where their arrays lie. Every call is collective: each rank of the group makes the same
    calls in the same order, with equal dtypes and counts. A call blocks until this rank's part is final; with
    ``async_op=True`` it returns a :class:`Work` instead, and the arrays must stay untouched until that is done.

    Arrays on a GPU are worked on in the order of their stream: a call comes after what the stream was given before it,
    and returns when all of its own work was given to the GPU; the stream then goes on behind it, and only if every
    record verified.

    ``timeout`` (seconds) defaults to the communicator's. ``algorithm`` pins a plan (``"one_shot"``, ``"direct"``,
    ``"ring"``), equally on all ranks; by default the tuner chooses.

    Raises, on every call: :class:`ConfigError` for a call that cannot be right, before anything is sent;
    :class:`AuthenticationError`, :class:`MismatchError`, :class:`PeerLostError`, :class:`CollectiveTimeout` when it
    failed. The first failure is final: keys are erased, outputs in flight zeroed, and every later call raises.
    """

    def __init__(
        self,
        engine: _engine.Communicator,
        session: handshake.Session,
        members: tuple[int, ...],
        device: cuda.Device | None,
        child: _engine.Secret | None,
        planner: _Planner,
        suite: Suite,
    ) -> None:
        """For :meth:`create`."""
        self._engine = engine
        self._device = device
        self._session_id = session.id
        self._child = child
        self._rank, self._size = session.rank, session.size
        self._members = members
        self._planner = planner
        self._suite = suite
        self._forgotten = False
        self._strangers = engine.strangers()[0]
        _open.add(self)

    @classmethod
    def create(
        cls,
        exchange: Exchange | None,
        key: KeySource | str | os.PathLike[str] | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        job: str = "",
        members: Sequence[int] | None = None,
        *,
        shape: Shape | None = None,
        kernels: str | None = None,
        device: cuda.Device | None = None,
        parent: Communicator | None = None,
        network: Rates | str | os.PathLike[str] | None = None,
        suite: str | None = None,
    ) -> Communicator:
        """Joins a group; every member calls this.

        Args:
            exchange: How members reach each other to join; it need not be trusted. None: a group of one.
            key: Where the pre-shared key comes from: a source, or the path of a key file. None: the environment's.
            timeout: Seconds that joining may take, and each collective by default.
            job: A name that all members share. Empty: the environment's.
            members: The members' ranks in the job, in group order. None: 0, 1, and so on.
            shape: Sizes of lanes; None: the default for as many ranks as the fullest host has.
            kernels: AEAD kernels by name; None: the fastest this CPU has.
            device: Where arrays in device memory lie; None: the GPU that the first such array names.
            parent: A communicator that all members belong to. They prove to each other that they do, in place of a
                key: so the new group is theirs in this very session, and no other holder of the key can join it.
            network: What plans are chosen by, the same on all ranks: rates, the path of a file of them, or
                ``"measure"``: the ranks measure them when they have joined, for less than a second. None: the
                parent's, or where there is none the environment's, or the package's own.
            suite: The cryptography, the same on all ranks: ``"aes-256-gcm"``, or ``"aegis-256x4"``, which is faster
                on CPUs, is no algorithm of NIST's, and is not for device memory. None: the parent's, or where there
                is none ``"aes-256-gcm"``.

        Raises:
            ConfigError: for bad arguments or keys, where shared memory is too small, or where this CPU cannot run the
                suite.
            HandshakeError: when members do not come, or differ in what they ask for.
            AuthenticationError: when a member cannot prove that it holds the key.
        """
        settings = config.current()
        if timeout <= 0:
            raise ConfigError(f"timeout must be positive seconds, not {timeout}")
        timeout = settings.shorten(timeout)
        rank, size = (0, 1) if exchange is None else (exchange.rank, exchange.size)
        group = tuple(range(size)) if members is None else tuple(members)
        if len(group) != size:
            raise ConfigError(f"rank {rank}: {len(group)} members are named for a group of {size}")
        most = shape or Shape.of(1)
        deadline = time.monotonic() + timeout
        try:
            chosen = _suite(suite, parent)
            if device is not None:
                cuda.check_suite(chosen)
            by = _rates(network, settings, parent, chosen)
        except BaseException:
            if exchange is not None:
                handshake.give_up(exchange, deadline)
            raise
        job_id = (job or settings.job).encode()
        policy = Policy()
        if parent is not None:
            parent._check_child(group, key)
        parent_id = bytes(32) if parent is None else parent.session_id
        with _uses_lock:
            use = _uses.get((job_id, parent_id, group), 0)
        params = handshake.group_params(
            policy_hash=policy.hash,
            ranks=group,
            channels=1,
            max_chunk=most.slot_bytes,
            plan_table_hash=rates.table_hash(most.hash, by, chosen),
            job_id=job_id,
            use=use,
            parent=parent_id,
            suite=chosen,
        )
        mesh: _engine.Mesh | None = None
        session: handshake.Session | None = None
        try:
            psk = _key_source(key).psk() if parent is None else parent._child_key(params)
            mesh = None if exchange is None or size == 1 else _mesh(exchange, most)
        except BaseException:
            if exchange is not None:
                handshake.give_up(exchange, deadline)
            raise
        try:
            session = handshake.establish(
                params,
                policy,
                psk,
                exchange if exchange is not None else _Alone(),
                b"" if mesh is None else mesh.endpoint() + networks.host(settings.transport != "tcp"),
                lambda endpoints: None if mesh is None else _connect(mesh, endpoints, shape),
                deadline,
            )
            topology = _topology(session.endpoints)
            shape = shape or _shape(topology)
            transports = "nobody else" if mesh is None else _meet(mesh, session, topology, deadline)
            planner = _Planner(rank, size, shape, topology, by or rates.usual(chosen))
            engine = _engine.Communicator(
                rank,
                size,
                shape.slot_bytes,
                timeout,
                shape.budget_blocks,
                size > cores(),
                mesh,
                session.link_tx,
                session.link_rx,
                session.p2p_tx,
                session.p2p_rx,
                session.control_tx,
                session.control_rx,
                session.sender,
                planner,
                cuda.source(device, chosen),
                chosen,
                kernels,
            )
        except BaseException:
            if session is not None:
                session.erase()
            if mesh is not None:
                mesh.close()
            raise
        # What no stream took over (roots of lanes that nothing uses yet) is not kept, but for what children need.
        child, session.child = session.child, None
        session.erase()
        with _uses_lock:
            _uses[job_id, parent_id, group] = use + 1
        if settings.threads is not None:
            _engine.set_threads(settings.threads)
        comm = cls(engine, session, group, device, child, planner, chosen)
        if by is None:
            planner.rates = comm._measured(topology)
        if log.isEnabledFor(logging.INFO):
            log.info(
                "rank %d of %d joined: members %s on %d host%s, %s, %d-byte slots, lanes of %d, suite %s, "
                "AEAD %s, all_reduce by %s",
                rank,
                size,
                ",".join(map(str, group[:16])) + (",..." if size > 16 else ""),
                len(topology.groups),
                "" if topology.is_single else "s",
                transports,
                shape.slot_bytes,
                shape.depth,
                chosen.title,
                kernels or _engine.aead_name(chosen),
                _choices(size, shape, topology, planner.rates),
            )
        return comm

    @classmethod
    def from_mpi(
        cls,
        comm: Any,
        key: KeySource | str | os.PathLike[str] | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        job: str = "",
        *,
        network: Rates | str | os.PathLike[str] | None = None,
        suite: str | None = None,
    ) -> Communicator:
        """Joins the group of an mpi4py communicator, which serves to exchange the handshake and nothing else.

        Arguments and errors as :meth:`create`.
        """
        exchange = MPIExchange(comm)
        try:
            alone = exchange.size == 1
            return cls.create(None if alone else exchange, key, timeout, job, network=network, suite=suite)
        finally:
            exchange.close()

    @property
    def rank(self) -> int:
        """This rank in the group."""
        return self._rank

    @property
    def size(self) -> int:
        """Ranks in the group."""
        return self._size

    @property
    def members(self) -> tuple[int, ...]:
        """The members' ranks in the job, in group order."""
        return self._members

    @property
    def device(self) -> cuda.Device | None:
        """Where arrays in device memory lie, as given to :meth:`create`."""
        return self._device

    @property
    def rates(self) -> Rates:
        """What plans are chosen by: equal on all ranks."""
        return self._planner.rates

    @property
    def suite(self) -> str:
        """The cryptography between ranks, as :meth:`create` calls it."""
        return self._suite.title

    @property
    def session_id(self) -> bytes:
        """32 public bytes that name this session, equal on all ranks and never used twice."""
        return self._session_id

    def all_reduce(
        self,
        send: Any,
        recv: Any = None,
        op: ReduceOp = ReduceOp.SUM,
        *,
        factor: float = 1.0,
        timeout: float | None = None,
        async_op: bool = False,
        algorithm: str | None = None,
    ) -> Work | None:
        """Combines ``send`` of all ranks into ``recv`` on every rank; in place without ``recv``.

        ``factor`` is what PREMUL_SUM multiplies this rank's contribution by. 16- and 8-bit floats are combined in
        float32 and rounded once. All ranks get the same bits.
        """
        recv = send if recv is None else recv
        return self._run(Collective.ALL_REDUCE, send, recv, op, 0, factor, None, None, timeout, async_op, algorithm)

    def reduce_scatter(
        self,
        send: Any,
        recv: Any,
        op: ReduceOp = ReduceOp.SUM,
        *,
        counts: Sequence[int] | None = None,
        factor: float = 1.0,
        timeout: float | None = None,
        async_op: bool = False,
        algorithm: str | None = None,
    ) -> Work | None:
        """Combines ``send`` of all ranks and leaves part ``rank`` of the result in ``recv``.

        ``send`` holds all parts in rank order, of ``counts`` elements each, equal ones by default. In place when
        ``recv`` is this rank's part of ``send``.
        """
        return self._run(
            Collective.REDUCE_SCATTER, send, recv, op, 0, factor, counts, None, timeout, async_op, algorithm
        )

    def all_gather(
        self,
        send: Any,
        recv: Any,
        *,
        counts: Sequence[int] | None = None,
        timeout: float | None = None,
        async_op: bool = False,
        algorithm: str | None = None,
    ) -> Work | None:
        """Collects ``send`` of all ranks, in rank order, into ``recv`` on every rank.

        Parts are equal, or of ``counts`` elements. In place when ``send`` is this rank's part of ``recv``.
        """
        none = ReduceOp.NONE
        return self._run(Collective.ALL_GATHER, send, recv, none, 0, 1.0, counts, None, timeout, async_op, algorithm)

    def broadcast(
        self,
        buffer: Any,
        root: int = 0,
        *,
        timeout: float | None = None,
        async_op: bool = False,
        algorithm: str | None = None,
    ) -> Work | None:
        """Copies the root's ``buffer`` into everyone's."""
        send = buffer if root == self._rank else None
        none = ReduceOp.NONE
        return self._run(Collective.BROADCAST, send, buffer, none, root, 1.0, None, None, timeout, async_op, algorithm)

    def reduce(
        self,
        send: Any,
        recv: Any = None,
        op: ReduceOp = ReduceOp.SUM,
        root: int = 0,
        *,
        factor: float = 1.0,
        timeout: float | None = None,
        async_op: bool = False,
        algorithm: str | None = None,
    ) -> Work | None:
        """Combines ``send`` of all ranks into the root's ``recv``, or ``send`` there; other ranks' arrays keep their
        values."""
        recv = None if root != self._rank else send if recv is None else recv
        return self._run(Collective.REDUCE, send, recv, op, root, factor, None, None, timeout, async_op, algorithm)

    def gather(
        self,
        send: Any,
        recv: Any = None,
        root: int = 0,
        *,
        counts: Sequence[int] | None = None,
        timeout: float | None = None,
        async_op: bool = False,
        algorithm: str | None = None,
    ) -> Work | None:
        """Collects ``send`` of all ranks, in rank order, into the root's ``recv``, which other ranks need not give."""
        recv = self._only_on_root("gather", "recv", recv, root)
        none = ReduceOp.NONE
        return self._run(Collective.GATHER, send, recv, none, root, 1.0, counts, None, timeout, async_op, algorithm)

    def scatter(
        self,
        send: Any,
        recv: Any,
        root: int = 0,
        *,
        counts: Sequence[int] | None = None,
        timeout: float | None = None,
        async_op: bool = False,
        algorithm: str | None = None,
    ) -> Work | None:
        """Gives each rank its part of the root's ``send``, which other ranks need not give, in ``recv``."""
        send = self._only_on_root("scatter", "send", send, root)
        none = ReduceOp.NONE
        return self._run(Collective.SCATTER, send, recv, none, root, 1.0, counts, None, timeout, async_op, algorithm)

    def all_to_all(
        self,
        send: Any,
        recv: Any,
        send_counts: Sequence[int] | None = None,
        recv_counts: Sequence[int] | None = None,
        *,
        timeout: float | None = None,
        async_op: bool = False,
        algorithm: str | None = None,
    ) -> Work | None:
        """Sends part ``p`` of ``send`` to rank ``p``, and receives rank ``p``'s as part ``p`` of ``recv``.

        Parts are equal, or of ``send_counts`` and ``recv_counts`` elements; what two ranks say of the parts between
        them must agree. Never in place.
        """
        none = ReduceOp.NONE
        return self._run(
            Collective.ALL_TO_ALL, send, recv, none, 0, 1.0, send_counts, recv_counts, timeout, async_op, algorithm
        )

    def barrier(self, *, timeout: float | None = None, async_op: bool = False) -> Work | None:
        """Returns when every rank has called it."""
        none = ReduceOp.NONE
        return self._run(Collective.BARRIER, None, None, none, 0, 1.0, None, None, timeout, async_op, None)

    @overload
    def send(self, array: Any, dest: int, tag: int = 0, *, timeout: float | None = None) -> None: ...

    @overload
    def send(
        self, array: Any, dest: int, tag: int = 0, *, timeout: float | None = None, async_op: Literal[True]
    ) -> Work: ...

    def send(
        self, array: Any, dest: int, tag: int = 0, *, timeout: float | None = None, async_op: bool = False
    ) -> Work | None:
        """Sends ``array``, on the CPU, to rank ``dest``. Not collective: that rank calls :meth:`recv`.

        Messages between two ranks with the same ``tag`` (not negative) arrive in the order they were sent. Up to
        64 KiB are sent at once and may be received later; a larger array is sent when it is asked for. It may be used
        again when the call returns, or the work is done. Messages and collectives do not wait for each other, and
        :meth:`close` sends what is queued.
        """
        work = self._exchange(True, array, dest, tag, timeout, async_op)
        return work if isinstance(work, Work) else None

    @overload
    def recv(self, array: Any, source: int | None = None, tag: int = 0, *, timeout: float | None = None) -> int: ...

    @overload
    def recv(
        self,
        array: Any,
        source: int | None = None,
        tag: int = 0,
        *,
        timeout: float | None = None,
        async_op: Literal[True],
    ) -> Work: ...

    def recv(
        self,
        array: Any,
        source: int | None = None,
        tag: int = 0,
        *,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Work | int:
        """Receives into ``array``, on the CPU, and returns the rank that sent it.

        It takes the oldest message with ``tag`` from rank ``source``, or from any rank where that is None. Dtype and
        size must be the sender's, else both ranks raise :class:`MismatchError`.
        """
        got = self._exchange(False, array, source, tag, timeout, async_op)
        assert got is not None
        return got

    def _exchange(
        self, sends: bool, array: Any, peer: int | None, tag: int, timeout: float | None, async_op: bool
    ) -> Work | int | None:
        what = "send" if sends else "recv"
        if timeout is not None and timeout <= 0:
            raise ConfigError(f"rank {self._rank}: timeout must be positive seconds, not {timeout}")
        if peer is not None and not 0 <= peer < self._size:
            raise ConfigError(f"rank {self._rank}: {what}: rank {peer} is not one of {self._size} ranks")
        if not 0 <= tag < 1 << 64:
            raise ConfigError(f"rank {self._rank}: {what}: a tag is a number from 0 to 2**64 - 1, not {tag}")
        seconds = 0.0 if timeout is None else config.current().shorten(timeout)
        return self._engine.exchange(sends, array, peer, tag, seconds, not async_op)

    def stats(self) -> Stats:
        """What was sealed, opened and waited for so far."""
        return Stats(*self._engine.counters())

    @property
    def epoch(self) -> int:
        """Epoch of the keys that the next call uses."""
        return self._engine.epoch

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory that this rank has mapped, its own and its peers'."""
        return self._engine.mapped_bytes

    @property
    def connected_ranks(self) -> tuple[int, ...]:
        """The ranks that this one shares memory or has a socket with, in order. Sockets are made when they are needed:
        at first there are those of its neighbours, by which news of failures travels."""
        return tuple(self._engine.reached)

    @property
    def capsule(self) -> object:
        """The engine's end of this communicator, for another extension module (kernels/engine/table.h)."""
        return self._engine.capsule

    def set_timeout(self, timeout: float) -> None:
        """Seconds that each later collective may take unless it says otherwise."""
        if timeout <= 0:
            raise ConfigError(f"rank {self._rank}: timeout must be positive seconds, not {timeout}")
        self._engine.set_timeout(config.current().shorten(timeout))

    def error(self) -> Exception | None:
        """The first error, which every later call raises, or None while the communicator is usable."""
        error: Exception | None = self._engine.error()
        return error

    def abort(self, reason: str = "") -> None:
        """Fails what is in flight here and on the peers, and erases the keys. Returns at once."""
        self._engine.abort(reason or "abort() was called")
        self._forget()

    def close(self) -> None:
        """Waits for what is in flight, erases the keys and gives back shared memory. May be called again."""
        self._engine.close()
        self._forget()
        # Those of the time of joining were told then.
        count, last = self._engine.strangers()
        if count > self._strangers:
            _tell_of_strangers(self._rank, count, last)
            self._strangers = count

    @property
    def closed(self) -> bool:
        """Whether it was closed or aborted here: then nothing can be made from it any more."""
        return self._forgotten

    def _forget(self) -> None:
        self._forgotten = True
        if self._child is not None:
            self._child.erase()

    def _measured(self, topology: Topology) -> Rates:
        try:
            return calibrate.measure(self, topology)
        except BaseException:
            self.abort(f"rank {self._rank} could not measure the network")
            self.close()
            raise

    def _check_child(self, members: tuple[int, ...], key: object) -> None:
        """Raises :class:`ConfigError` where no child of these members can be made."""
        if key is not None:
            raise ConfigError(f"rank {self._rank}: a group with a parent takes no key: its members have the parent's")
        strangers = sorted(set(members) - set(self._members))
        if strangers:
            raise ConfigError(f"rank {self._rank}: {strangers} are not members of the parent, {list(self._members)}")
        if self._forgotten:
            raise ConfigError(f"rank {self._rank}: the parent is closed; make the group from one that is not")

    def _child_key(self, params: handshake.Params) -> _engine.Secret:
        assert self._child is not None
        return handshake.child_key(self._child, params.comm_id)

    def __enter__(self) -> Communicator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Peers must not wait for a rank that left its block by an exception.
        if error is not None:
            self.abort(f"rank {self._rank} left with {type(error).__name__}")
        self.close()

    def __repr__(self) -> str:
        return f"<Communicator rank {self._rank} of {self._size}>"

    def __reduce__(self) -> Any:
        raise TypeError("a communicator holds keys and cannot be pickled")

    def _only_on_root(self, what: str, name: str, array: Any, root: int) -> Any:
        if root != self._rank:
            return None
        if array is None:
            raise ConfigError(f"rank {self._rank}: {what}: the root must give `{name}`")
        return array

    def _run(
        self,
        collective: Collective,
        send: Any,
        recv: Any,
        op: ReduceOp,
        root: int,
        factor: float,
        send_counts: Sequence[int] | None,
        recv_counts: Sequence[int] | None,
        timeout: float | None,
        async_op: bool,
        algorithm: str | None,
    ) -> Work | None:
        if timeout is not None and timeout <= 0:
            raise ConfigError(f"rank {self._rank}: timeout must be positive seconds, not {timeout}")
        if not 0 <= root < self._size:
            raise ConfigError(f"rank {self._rank}: root {root} is not one of {self._size} ranks")
        number = 0
        if algorithm is not None:
            offered = plan.ALGORITHMS[collective]
            if algorithm not in offered:
                name = collective.name.lower()
                raise ConfigError(
                    f"rank {self._rank}: {name} has the algorithms {', '.join(offered)}, not {algorithm!r}"
                )
            number = _ALGORITHMS.index(algorithm)
        return self._engine.run(
            collective,
            send,
            recv,
            op,
            root,
            factor,
            None if send_counts is None else list(send_counts),
            None if recv_counts is None else list(recv_counts),
            0.0 if timeout is None else config.current().shorten(timeout),
            number,
            not async_op,
        )


def init(
    key: KeySource | str | os.PathLike[str] | None = None,
    exchange: Exchange | None = None,
    *,
    rank: int | None = None,
    size: int | None = None,
    timeout: float = DEFAULT_TIMEOUT,
    job: str = "",
    network: Rates | str | os.PathLike[str] | None = None,
    suite: str | None = None,
) -> Communicator:
    """Joins a group and returns this rank's :class:`Communicator`. Arguments and errors as its ``create``.

    ``rank`` and ``size`` default to the exchange's; given, they must agree with it.
    """
    have = (0, 1) if exchange is None else (exchange.rank, exchange.size)
    if (rank is not None and rank != have[0]) or (size is not None and size != have[1]):
        raise ConfigError(
            f"rank {rank} of {size} was asked for, and the exchange is rank {have[0]} of {have[1]}: "
            "pass an exchange of that rank and size"
        )
    return Communicator.create(exchange, key, timeout, job, network=network, suite=suite)


@atexit.register
def _at_exit() -> None:
    """What a script forgot to close. A call on device memory returns before its last records have left, so they get a
    grace; whatever is still in flight then, the peers are told of."""
    for comm in list(_open):
        if not comm.closed and not comm._engine.drain(EXIT_SECONDS):
            comm.abort(f"rank {comm.rank} exited with operations in flight")
        comm.close()


class _Planner:
    """Plans a call for the engine, which caches what it returns. So ``rates`` stay as they are from the first plan on,
    which the ranks make together."""

    def __init__(self, rank: int, size: int, shape: Shape, topology: Topology, rates: Rates) -> None:
        self._rank, self._size, self._shape, self._topology = rank, size, shape, topology
        self.rates = rates

    def __call__(
        self,
        collective: int,
        dtype: int,
        redop: int,
        root: int,
        count: int,
        send: tuple[int, ...] | None,
        recv: tuple[int, ...] | None,
        algorithm: int,
    ) -> tuple[plan.ir.EncodedPlan, list[int], list[int]]:
        """The plan, and by peer the descriptors of what is sealed for it and opened from it."""
        kind = Collective(collective)
        itemsize = DType(dtype).itemsize or 1
        pairwise = kind is Collective.ALL_TO_ALL
        sizes = None if send is None else tuple(c * itemsize for c in send)
        nbytes = 0 if sizes else count * itemsize
        given = None if recv is None else tuple(c * itemsize for c in recv)
        name, chunk, wave = tuner.choose(
            kind,
            self._size,
            nbytes,
            counts=None if pairwise else sizes,
            max_chunk=self._shape.slot_bytes,
            wave=self._shape.wave * tuner.stretch(self._topology),
            algorithm=_ALGORITHMS[algorithm] or None,
            rates=self.rates,
            topology=self._topology,
        )
        made = plan.plan(
            kind,
            self._rank,
            self._size,
            nbytes=nbytes,
            itemsize=itemsize,
            root=root,
            counts=None if pairwise else sizes,
            send=sizes if pairwise else None,
            recv=given if pairwise else None,
            chunk=chunk,
            wave=wave,
            algorithm=name,
            topology=self._topology,
        )

        def descriptor(elements: int) -> int:
            """TH("op", ...) of docs/protocol.md, its first 8 bytes as a number."""
            fields = pack(">BBBIQI", collective, dtype, redop, root, elements, self._size)
            fields += made.identity + pack(">I", chunk)
            return int.from_bytes(
                hashlib.sha256(b"SCOLL/1 op\0" + pack(">I", len(fields)) + fields).digest()[:8], "big"
            )

        if pairwise and send is not None and recv is not None:
            return plan.encode(made), [descriptor(c) for c in send], [descriptor(c) for c in recv]
        one = descriptor(count if send is None else sum(send))
        return plan.encode(made), [one] * self._size, [one] * self._size


def _suite(given: str | None, parent: Communicator | None) -> Suite:
    """What the program asked for, else the parent's, else the default: never anything from the environment."""
    if given is None:
        return Suite.AES_256_GCM if parent is None else parent._suite
    suite = suites.named(given)
    suites.check_runs_here(suite)
    return suite


def _rates(
    given: Rates | str | os.PathLike[str] | None,
    settings: config.Config,
    parent: Communicator | None,
    suite: Suite,
) -> Rates | None:
    """What the program asked for, else the parent's, else the environment's, else the package's. None: to be
    measured."""
    if given is None and parent is not None:
        if parent._suite is suite:
            return parent.rates
        usual = rates.usual(suite)
        return replace(parent.rates, seal=usual.seal, open=usual.open)
    given = settings.network if given is None else given
    if given is None:
        return rates.usual(suite)
    if isinstance(given, Rates):
        return rates.bounded(given)
    return None if given == rates.MEASURE else rates.load(given, suite)


def _choices(size: int, shape: Shape, topology: Topology, rates: Rates) -> str:
    """What the tuner picks for an all_reduce, and from which size on."""
    told: list[tuple[str, int]] = []
    for nbytes in (1 << power for power in range(3, 31)):
        name = tuner.choose(
            Collective.ALL_REDUCE,
            size,
            nbytes,
            max_chunk=shape.slot_bytes,
            wave=shape.wave * tuner.stretch(topology),
            rates=rates,
            topology=topology,
        ).algorithm
        if not told or told[-1][0] != name:
            told.append((name, nbytes))
    return ", then ".join(name if not i else f"{name} from {nbytes} bytes" for i, (name, nbytes) in enumerate(told))


class _Alone:
    """The exchange of a group of one."""

    rank = 0
    size = 1

    def exchange(self, round: int, blob: bytes, max_len: int, deadline: float) -> list[bytes]:
        """Nobody else is there."""
        return [blob]


def _topology(endpoints: Sequence[bytes]) -> Topology:
    """Which ranks share a host, by their own words."""
    return Topology.of(endpoint[-networks.HOST_BYTES :] for endpoint in endpoints)


def _shape(topology: Topology) -> Shape:
    return Shape.of(max(map(len, topology.groups)))


def _connect(mesh: _engine.Mesh, endpoints: Sequence[bytes], shape: Shape | None) -> None:
    """Looks who shares memory with this rank, once everyone's words are authentic and before it confirms."""
    slot_bytes = (shape or _shape(_topology(endpoints))).slot_bytes
    mesh.connect([endpoint[: -networks.HOST_BYTES] for endpoint in endpoints], slot_bytes)


def _mesh(exchange: Exchange, shape: Shape) -> _engine.Mesh:
    """This rank's end of what will connect it with its peers: its segment, and where it listens."""
    settings = config.current()
    interface = networks.choose(settings.ifname, getattr(exchange, "host", None))
    return _engine.Mesh(
        exchange.rank,
        exchange.size,
        shape.slot_bytes,
        shape.depth,
        settings.transport != "tcp",
        () if interface is None else interface.addresses,
    )


def _tell_of_strangers(rank: int, count: int, last: str) -> None:
    log.warning("rank %d: %d connections proved nothing and were closed; %s", rank, count, last)


def _meet(mesh: _engine.Mesh, session: handshake.Session, topology: Topology, deadline: float) -> str:
    """Settles with every peer how records travel, and connects where there is no shared memory. Says which it is."""
    mesh.agree(session.conn_tx, session.conn_rx, topology.hosts)
    told, next_word = 0, time.monotonic() + _STRANGERS_SECONDS
    met = False
    while not met:
        met = mesh.meet(min(_LOOK_SECONDS, max(0.0, deadline - time.monotonic())))
        if not met and time.monotonic() >= deadline:
            raise HandshakeError(f"rank {session.rank}: not everyone could be reached: {mesh.missing()}")
        strangers, last = mesh.strangers()
        if strangers > told and (met or time.monotonic() >= next_word):
            _tell_of_strangers(session.rank, strangers, last)
            told, next_word = strangers, time.monotonic() + _STRANGERS_SECONDS
    peers = [peer for peer in range(session.size) if peer != session.rank]
    distant = [peer for peer in peers if not mesh.is_shared(peer)]
    if not distant:
        return "shared memory"
    if len(distant) == len(peers):
        why = mesh.why_not_shared(distant[0])
        return f"TCP ({why})" if why else "TCP"
    ranks = ",".join(map(str, distant[:16])) + (",..." if len(distant) > 16 else "")
    return f"shared memory, and TCP with {ranks} ({mesh.why_not_shared(distant[0])})"


def _key_source(key: KeySource | str | os.PathLike[str] | None) -> KeySource:
    if key is None:
        return config.current_key_source()
    return KeyFile(key) if isinstance(key, (str, os.PathLike)) else key
