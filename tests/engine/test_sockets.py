"""Lanes over TCP: the same results as in shared memory, or an error, whatever is done to the sockets."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import securecoll
from securecoll import Communicator, ConfigError, SecureCollError, _engine, network
from tests.engine import relay as relays
from tests.engine.digests import every_result
from tests.engine.relay import ACCEPTOR, ALL, CONNECTOR, CREDIT, DATA, RECORD, Frame, Relay
from tests.groups import SMALL, group, left_behind, run

F32 = np.float32


def _same_host(rank: int, folder: Path) -> None:
    """Sockets only, with the plans of ranks that share a host."""
    relays.sockets_only(rank, folder)
    relays.same_host()


def _same_host_but_one_apart(rank: int, folder: Path) -> None:
    _one_apart(rank, folder)
    relays.same_host()


def _one_apart(rank: int, folder: Path) -> None:
    """Rank 1 has sockets only, all others share memory with each other."""
    os.environ["SECURECOLL_IFNAME"] = "lo"
    if rank == 1:
        os.environ["SECURECOLL_TRANSPORT"] = "tcp"


def _shared(comm: Communicator) -> int:
    return comm.shared_bytes


@pytest.mark.parametrize("size", [2, 3, 4])
def test_every_collective_gives_the_same_bits_as_in_shared_memory(tmp_path: Path, size: int) -> None:
    """Under the same plans: all sockets, and sockets beside shared memory; small slots, so that lanes wrap around."""
    results = {}
    for name, prepare in (("shm", None), ("tcp", _same_host), ("mixed", _same_host_but_one_apart)):
        folder = tmp_path / name
        folder.mkdir()
        options = {} if prepare is None else {"prepare": prepare}
        results[name] = run(size, folder, every_result, shape=SMALL, **options)
    assert results["tcp"] == results["shm"]
    assert results["mixed"] == results["shm"]
    assert not left_behind()


def test_who_shares_memory_is_agreed_pair_by_pair(tmp_path: Path) -> None:
    """Rank 1 has none; it is given back by nobody but those with whom it is shared."""
    zero, one, two = run(3, tmp_path, _shared, shape=SMALL, prepare=_one_apart)
    assert one == 0
    assert zero == two == 2 * _engine.segment_bytes(3, SMALL.slot_bytes, SMALL.depth, 2)


def _without_shared_memory(rank: int, folder: Path) -> None:
    """Rank 1 cannot write to /dev/shm, rank 2 has another one than rank 0."""
    import ctypes

    os.environ["SECURECOLL_IFNAME"] = "lo"
    os.environ["SECURECOLL_LOG"] = "info"
    relays.same_host()
    if rank == 0:
        return
    import logging

    handler = logging.FileHandler(folder / f"log{rank}")
    logging.getLogger("securecoll").addHandler(handler)
    libc = ctypes.CDLL(None, use_errno=True)
    new_mounts, private, read_only = 0x20000, 0x44000, 1
    flags = read_only if rank == 1 else 0
    if (
        libc.unshare(new_mounts)
        or libc.mount(b"none", b"/", None, private, None)
        or libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", flags, b"size=64m")
    ):
        raise NotImplementedError("mounting needs a privileged user")


def test_ranks_without_shared_memory_and_with_another_one(tmp_path: Path) -> None:
    """A read-only /dev/shm and a different one are no errors: these ranks use sockets, and say why."""
    try:
        digests = run(3, tmp_path, every_result, shape=SMALL, prepare=_without_shared_memory)
    except NotImplementedError as e:
        pytest.skip(str(e))
    (tmp_path / "again").mkdir()
    assert digests == run(3, tmp_path / "again", every_result, shape=SMALL)
    assert "Read-only file system" in (tmp_path / "log1").read_text()
    assert "TCP" in (tmp_path / "log2").read_text()


def _broadcast_late(comm: Communicator, seconds: float, count: int) -> bool:
    x = np.arange(count, dtype=F32) if comm.rank == 0 else np.zeros(count, F32)
    if comm.rank == 1:
        time.sleep(seconds)
    comm.broadcast(x, 0)
    comm.close()
    return bool((x == np.arange(count, dtype=F32)).all())


@pytest.mark.parametrize("count", [50_000, 8_000_000], ids=["fits", "full"])
def test_a_sleeping_peer_gets_everything(tmp_path: Path, count: int) -> None:
    """Whether what is sent fits the socket or fills it for longer than a vanished host is given: the sender, which
    closes at once, loses nothing, and does not take the sleeper for dead."""
    assert run(2, tmp_path, _broadcast_late, 3.0, count, prepare=relays.sockets_only) == [True, True]


def _until_it_ends(comm: Communicator, count: int, seconds: float) -> tuple[str, str, bool, float]:
    x = np.ones(count, F32)
    began = time.monotonic()
    try:
        while time.monotonic() < began + 20:
            x[:] = 1
            began_last = time.monotonic()
            comm.all_reduce(x, timeout=seconds, algorithm="direct")
            if not (x == comm.size).all():
                return "wrong", "", False, 0.0
    except SecureCollError as e:
        return type(e).__name__, str(e), not x.any() or bool((x == 1).all()), time.monotonic() - began_last
    return "returned", "", False, 0.0


def _killed_before(comm: Communicator) -> str:
    comm.barrier()
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.3)
    try:
        comm.barrier(timeout=5)
    except SecureCollError as e:
        return type(e).__name__
    return "returned"


def test_a_peer_killed_between_calls_is_noticed_at_the_next(tmp_path: Path) -> None:
    with group(2, tmp_path, _killed_before, prepare=relays.sockets_only) as ranks:
        outcomes = ranks.finish()
    assert outcomes[0].value == "PeerLostError"
    assert outcomes[0].seconds < 2.3


def _attacked(folder: Path, alter: relays.Alter | None) -> tuple[list[tuple[str, str, bool, float]], Relay]:
    """Two ranks that add until something fails, with `alter` in between."""
    relay = Relay(folder, alter)
    try:
        with group(2, folder, _until_it_ends, 3000, 4.0, shape=SMALL, prepare=relays.through) as ranks:
            outcomes = ranks.finish()
    finally:
        relay.close()
    assert not relay.errors
    for outcome in outcomes:
        assert outcome.error is None, outcome.error
    return [outcome.value for outcome in outcomes], relay


def _at(who: int, lane: int, kind: int, change: Callable[[Frame], bytes | None]) -> relays.Alter:
    """Changes the eleventh frame of this sort."""
    seen = 0

    def alter(sender: int, number: int, frame: Frame) -> bytes | None:
        nonlocal seen
        if (sender, frame.lane, frame.kind) != (who, lane, kind):
            return frame.encode()
        seen += 1
        return change(frame) if seen == 11 else frame.encode()

    return alter


def _set(**fields: int) -> Callable[[Frame], bytes]:
    def change(frame: Frame) -> bytes:
        for name, value in fields.items():
            setattr(frame, name, value)
        return frame.encode()

    return change


def _more(**fields: int) -> Callable[[Frame], bytes]:
    """Of credit: adds to the fields."""

    def change(frame: Frame) -> bytes:
        for name, value in fields.items():
            setattr(frame, name, (getattr(frame, name) + value) % 2**32)
        return frame.encode()

    return change


def _flip(frame: Frame) -> bytes:
    frame.payload[len(frame.payload) // 2] ^= 1
    return frame.encode()


def _flip_tag(frame: Frame) -> bytes:
    frame.payload[-1] ^= 0x80
    return frame.encode()


def _truncate(frame: Frame) -> bytes:
    frame.bytes -= 1
    frame.payload.pop()
    return frame.encode()


def _pad(frame: Frame) -> bytes:
    frame.bytes += 16
    frame.payload += bytes(16)
    return frame.encode()


def _overrun(frame: Frame) -> bytes:
    """As many records at once as there are slots, and one more for each that may be free by then."""
    out = b""
    for _ in range(64):
        out += frame.encode()
        frame.number += 1
    return out


HOSTILE: dict[str, relays.Alter] = {
    "flipped": _at(CONNECTOR, DATA, RECORD, _flip),
    "flipped-tag": _at(ACCEPTOR, ALL, RECORD, _flip_tag),
    "dropped": _at(CONNECTOR, DATA, RECORD, lambda frame: b""),
    "repeated": _at(CONNECTOR, DATA, RECORD, lambda frame: 2 * frame.encode()),
    "renumbered": _at(ACCEPTOR, DATA, RECORD, _more(number=1)),
    "truncated": _at(ACCEPTOR, DATA, RECORD, _truncate),
    "padded": _at(CONNECTOR, ALL, RECORD, _pad),
    "huge": _at(CONNECTOR, DATA, RECORD, _set(bytes=2**32 - 1)),
    "shorter-than-a-tag": _at(CONNECTOR, DATA, RECORD, _set(bytes=15)),
    "other-lane": _at(CONNECTOR, DATA, RECORD, _set(lane=ALL)),
    "no-lane": _at(CONNECTOR, DATA, RECORD, _set(lane=255)),
    "no-kind": _at(CONNECTOR, DATA, RECORD, _set(kind=4)),
    "ping-with-bytes": _at(CONNECTOR, DATA, RECORD, _set(kind=3)),
    "not-zero": _at(CONNECTOR, DATA, RECORD, _set(zero=1)),
    "overrun": _at(CONNECTOR, DATA, RECORD, _overrun),
    "forged-credit": _at(ACCEPTOR, DATA, CREDIT, _more(number=10_000)),
    "stale-credit": _at(ACCEPTOR, DATA, CREDIT, _more(number=-1000)),
    "credit-with-bytes": _at(ACCEPTOR, DATA, CREDIT, _set(bytes=16)),
}


def _attack(folder: Path) -> list[tuple[str, str, bool, float]]:
    folder.mkdir()
    return _attacked(folder, HOSTILE[folder.name])[0]


def test_e6_hostile_frames_end_in_an_error_and_never_in_wrong_data(tmp_path: Path) -> None:
    """Most of the time of an attack is spent waiting for the peer's view of it: so several run at a time."""
    with ThreadPoolExecutor(5) as pool:
        found = dict(zip(HOSTILE, pool.map(_attack, [tmp_path / name for name in HOSTILE]), strict=True))
    for name, outcomes in found.items():
        kinds = {kind for kind, *_ in outcomes}
        assert "AuthenticationError" in kinds, (name, outcomes)
        assert kinds <= {"AuthenticationError", "PeerLostError"}, (name, outcomes)
        assert all(kept_out for _, _, kept_out, _ in outcomes), (name, outcomes)


def test_a_reset_connection_is_a_lost_peer(tmp_path: Path) -> None:
    outcomes, _ = _attacked(tmp_path, _at(CONNECTOR, DATA, RECORD, lambda frame: None))
    assert [kind for kind, *_ in outcomes] == ["PeerLostError"] * 2
    assert all(seconds < 2 for *_, seconds in outcomes)


def test_random_changes_never_give_a_wrong_sum(tmp_path: Path) -> None:
    """Random bytes of random frames, headers and all."""
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for attempt in range(4):
        victim = rng.randrange(20, 200)

        def alter(sender: int, number: int, frame: Frame, victim: int = victim) -> bytes:
            data = bytearray(frame.encode())
            if number >= victim:
                span = len(data) if rng.random() < 0.5 else 12
                data[rng.randrange(span)] ^= rng.randrange(1, 256)
            return bytes(data)

        folder = tmp_path / str(attempt)
        folder.mkdir()
        outcomes, _ = _attacked(folder, alter)
        for kind, text, kept_out, _ in outcomes:
            assert kind in ("AuthenticationError", "PeerLostError", "CollectiveTimeout"), text
            assert kept_out


def test_f7_records_of_an_earlier_attempt(tmp_path: Path) -> None:
    """The same ranks with the same key, data and calls, in an earlier session: nothing of it verifies."""
    old: list[bytes] = []

    def keep(sender: int, number: int, frame: Frame) -> bytes | None:
        if (sender, frame.kind, frame.lane) == (CONNECTOR, RECORD, DATA):
            old.append(bytes(frame.payload))
        return frame.encode() if len(old) < 9 else None

    def replay(sender: int, number: int, frame: Frame) -> bytes:
        if (sender, frame.kind, frame.lane) == (CONNECTOR, RECORD, DATA) and frame.number < 8:
            assert len(old[frame.number]) == frame.bytes
            frame.payload = bytearray(old[frame.number])
        return frame.encode()

    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    _attacked(tmp_path / "first", keep)
    shutil.copy(tmp_path / "first" / "key", tmp_path / "second" / "key")
    outcomes, _ = _attacked(tmp_path / "second", replay)
    assert "AuthenticationError" in [kind for kind, *_ in outcomes], outcomes
    assert all(kind in ("AuthenticationError", "PeerLostError") for kind, *_ in outcomes), outcomes
    assert all(kept_out for _, _, kept_out, _ in outcomes), outcomes


def _detours(folder: Path, size: int, **options: Any) -> list[relays.Detour]:
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    return [relays.Detour(folder, rank, seed + rank, **options) for rank in range(size)]


def _with_messages(comm: Communicator) -> str:
    digest = every_result(comm)
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for count in (3, 50_000):
        theirs = np.zeros(count)
        work = comm.send(np.full(count, float(comm.rank)), after, async_op=True)
        comm.recv(theirs, before)
        work.wait()
        assert (theirs == before).all()
    return digest


def test_detours_that_are_slow_and_change_the_order_of_connections_change_no_result(tmp_path: Path) -> None:
    expected = tmp_path / "straight"
    expected.mkdir()
    detours = _detours(tmp_path, 3)
    digests = run(3, tmp_path, _with_messages, shape=SMALL, timeout=30, prepare=relays.by_detours)
    for detour in detours:
        detour.close()
    assert sum(detour.accepted for detour in detours) >= 3
    assert any(detour.overtook for detour in detours)
    assert digests == run(3, expected, _with_messages, shape=SMALL, prepare=relays.sockets_only)


def test_connections_that_are_reset_before_they_are_proven_are_made_again(tmp_path: Path) -> None:
    """Before the challenge, and within it."""
    detours = _detours(tmp_path, 2, resets=(0, 10))
    first, second = run(2, tmp_path, every_result, shape=SMALL, timeout=20, prepare=relays.by_detours)
    for detour in detours:
        detour.close()
    assert first != second
    assert detours[0].accepted == 3


def test_a_connection_that_is_reset_before_the_proof_arrives_ends_well_or_on_both_ends(tmp_path: Path) -> None:
    """One rank takes the other for proven, and that one does not know it."""
    detours = _detours(tmp_path, 2, resets=(40,))
    with group(2, tmp_path, every_result, shape=SMALL, timeout=3, prepare=relays.by_detours) as ranks:
        outcomes = ranks.finish()
    for detour in detours:
        detour.close()
    errors = [outcome.error for outcome in outcomes]
    assert errors == [None, None] or all(isinstance(e, SecureCollError) for e in errors), errors
    assert all(outcome.seconds < 5 for outcome in outcomes)
    assert not left_behind()


CANARY = bytes(range(0x61, 0x71)) * 4


def _canary(comm: Communicator) -> bool:
    x = np.frombuffer(CANARY * 200, np.uint8).copy()
    out = np.zeros(len(x) * comm.size, np.uint8)
    comm.all_gather(x, out)
    comm.all_to_all(out, np.zeros_like(out))
    return bool((out == np.tile(x, comm.size)).all())


def test_a_recording_relay_sees_no_plaintext(tmp_path: Path) -> None:
    """Nor does the same scan overlook a canary that passes through the same relay in the clear."""
    relay = Relay(tmp_path)
    assert run(2, tmp_path, _canary, prepare=relays.through) == [True, True]
    assert len(relay.seen) > 2 * len(CANARY) * 200
    assert CANARY not in relay.seen
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        (tmp_path / "target").write_text(f"127.0.0.1 {elsewhere.getsockname()[1]}")
        with socket.create_connection(("127.0.0.1", relay.port)) as plain:
            plain.sendall(bytes(10) + CANARY)
            deadline = time.monotonic() + 5
            while CANARY not in relay.seen:
                assert time.monotonic() < deadline, "the scan does not find what is there"
                time.sleep(0.01)
    relay.close()


def _wrong_conn_key(rank: int, folder: Path) -> None:
    relays.sockets_only(rank, folder)
    if rank == 1:

        def change(session: Any) -> None:
            session.conn_tx[0] = _engine.Secret.random(32)

        relays.on_session(change)


def _wrong_answer_key(rank: int, folder: Path) -> None:
    """Rank 1's connection to rank 0 reaches someone who takes any proof, and has none."""
    relays.sockets_only(rank, folder)
    if rank == 1:
        relays.on_connect(
            lambda all_: [relays.listening_at(all_[0], int((folder / "impostor").read_text())), *all_[1:]]
        )


def _outcomes(folder: Path, prepare: object, timeout: float = 4.0) -> list[BaseException | None]:
    with group(2, folder, _shared, shape=SMALL, timeout=timeout, prepare=prepare) as ranks:
        outcomes = ranks.finish()
    assert not left_behind()
    return [outcome.error for outcome in outcomes]


def test_whoever_has_another_connection_key_is_not_let_in(tmp_path: Path) -> None:
    zero, one = _outcomes(tmp_path, _wrong_conn_key)
    assert isinstance(zero, securecoll.HandshakeError) and "rank 1: it has not connected" in str(zero)
    # Closed on it each time, until the other one gave up and was no longer there.
    assert isinstance(one, securecoll.HandshakeError) and "not everyone could be reached: rank 0: " in str(one)


def test_whoever_answers_without_the_key_is_not_believed(tmp_path: Path) -> None:
    import threading

    with socket.create_server(("127.0.0.1", 0)) as impostor:
        (tmp_path / "impostor").write_text(str(impostor.getsockname()[1]))
        kept = []

        def serve() -> None:
            while True:
                try:
                    s, _ = impostor.accept()
                except OSError:
                    return
                kept.append(s)
                with suppress(OSError):  # the other end has left
                    s.sendall(os.urandom(32))
                    s.recv(74, socket.MSG_WAITALL)
                    s.sendall(os.urandom(32))

        threading.Thread(target=serve, daemon=True).start()
        _, one = _outcomes(tmp_path, _wrong_answer_key)
    assert isinstance(one, securecoll.HandshakeError) and "does not prove" in str(one), one
    assert kept


def _among_strangers(rank: int, folder: Path) -> None:
    import logging

    relays.sockets_only(rank, folder)
    logging.getLogger("securecoll").addHandler(logging.FileHandler(folder / f"log{rank}"))
    relays.announce(folder, rank)
    if rank == 1:
        relays.wait_for(folder / "gate")


def test_e7_strangers_do_not_keep_a_member_out(tmp_path: Path) -> None:
    """Two hundred that say nothing, some that speak HTTP, stop half-way or reset: the group forms and works, and they
    are told of in one line."""
    with group(2, tmp_path, every_result, shape=SMALL, prepare=_among_strangers) as ranks:
        port = int(relays.wait_for(tmp_path / "port0"))
        strangers = [socket.create_connection(("127.0.0.1", port)) for _ in range(200)]
        for s in strangers[:20]:
            s.sendall(b"GET / HTTP/1.1\r\nHost: somewhere\r\nUser-Agent: a port scanner\r\nAccept: */*\r\n\r\n")
        for s in strangers[20:40]:
            s.sendall(bytes(73))
        for s in strangers[40:60]:
            relays.reset(s)
        began = time.monotonic()
        (tmp_path / "gate").touch()
        ranks.wait_joined()
        assert time.monotonic() - began < 5
        outcomes = ranks.finish()
        for s in strangers:
            s.close()
    assert [outcome.error for outcome in outcomes] == [None, None]
    lines = (tmp_path / "log0").read_text().splitlines()
    assert len(lines) == 1 and "proved nothing and were closed" in lines[0], lines


def _only_v6(rank: int, folder: Path) -> None:
    relays.sockets_only(rank, folder)
    network.choose = lambda name, meeting: network.Interface("lo", ("::1",))


def _one_family_each(rank: int, folder: Path) -> None:
    relays.sockets_only(rank, folder)
    network.choose = lambda name, meeting: network.Interface("lo", ("127.0.0.1",) if rank else ("::1",))


def test_f12_ipv6_alone(tmp_path: Path) -> None:
    first, second = run(2, tmp_path, every_result, shape=SMALL, prepare=_only_v6)
    assert len({first, second}) == 2


def test_f12_families_that_do_not_meet_are_named_at_once(tmp_path: Path) -> None:
    began = time.monotonic()
    for error in _outcomes(tmp_path, _one_family_each, timeout=30.0):
        assert isinstance(error, securecoll.HandshakeError)
        assert "no family of addresses" in str(error) and "127.0.0.1" in str(error) and "[::1]" in str(error)
    assert time.monotonic() - began < 15


def test_f11_an_unknown_interface_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ConfigError, match=r"'nowhere0'.*there are.*lo"):
        network.choose("nowhere0", None)


def test_f11_the_interface_that_leads_to_the_meeting_place_is_chosen() -> None:
    assert network.choose(None, "127.0.0.1") == network.choose("lo", None)
    # A host's own name may stand for loopback, and nobody else reaches it there.
    elsewhere = network.choose(None, "127.0.1.1")
    assert elsewhere == network.choose(None, None)


def _many_groups(comm: Communicator, folder: str, key: str) -> tuple[list[int], list[int]]:
    descriptors, threads = [], []
    for i in range(50):
        path = Path(folder) / f"g{i}"
        path.mkdir(exist_ok=True)
        exchange = securecoll.DirectoryExchange(path, rank=comm.rank, size=2)
        with Communicator.create(exchange, key, timeout=10, shape=SMALL) as mine:
            x = np.ones(5000, F32)
            mine.all_reduce(x)
            assert (x == 2).all()
        exchange.close()
        descriptors.append(len(os.listdir("/proc/self/fd")))
        threads.append(len(os.listdir("/proc/self/task")))
    return descriptors, threads


def test_groups_leak_nothing(tmp_path: Path) -> None:
    options = {"prepare": relays.sockets_only, "shape": SMALL}
    for descriptors, threads in run(2, tmp_path, _many_groups, str(tmp_path), str(tmp_path / "key"), **options):
        assert len(set(descriptors[1:])) == 1, descriptors
        assert len(set(threads[1:])) == 1, threads


def _sockets_of_a_child(comm: Communicator) -> int:
    comm.barrier()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        count = 0
        for name in os.listdir("/proc/self/fd"):
            try:
                target = os.readlink(f"/proc/self/fd/{name}")
                count += target.startswith("socket:") and bool(_is_tcp(int(name)))
            except OSError:
                continue
        os.write(write, str(count).encode())
        os._exit(0)
    os.waitpid(child, 0)
    comm.barrier()
    return int(os.read(read, 16))


def _is_tcp(descriptor: int) -> bool:
    with socket.socket(fileno=os.dup(descriptor)) as s:
        return s.family in (socket.AF_INET, socket.AF_INET6)


def test_a_forked_child_has_no_sockets(tmp_path: Path) -> None:
    assert run(2, tmp_path, _sockets_of_a_child, prepare=relays.sockets_only) == [0, 0]


def _listening(comm: Communicator, folder: str) -> bool:
    port = int(relays.wait_for(Path(folder) / f"port{comm.rank}"))
    comm.barrier()
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
        return True
    except OSError:
        return False


def _announced(rank: int, folder: Path) -> None:
    relays.sockets_only(rank, folder)
    relays.announce(folder, rank)


def test_nobody_listens_once_all_have_met(tmp_path: Path) -> None:
    assert run(2, tmp_path, _listening, str(tmp_path), prepare=_announced) == [False, False]
