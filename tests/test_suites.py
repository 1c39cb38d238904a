"""Suites: which cryptography seals what passes between ranks, and who may choose it."""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from pyaegis import Aegis256X4, DecryptionError

import securecoll
from securecoll import Communicator, ConfigError, HandshakeError, SecureCollError, _engine, communicator, rates, suites
from securecoll.codes import Collective, DType, ReduceOp
from securecoll.handshake import establish
from securecoll.plan.tuner import AEGIS_HOST, HOST
from securecoll.suites import Suite
from tests.engine.digests import every_result
from tests.engine.relay import sockets_only
from tests.groups import GROUP_SECONDS, SMALL, HostView, group, left_behind, run
from tests.handshake.reference import XL

AEGIS = Suite.AEGIS_256X4.title
GCM = Suite.AES_256_GCM.title
COUNT = 3000
RECORD_BYTES = (4096, 4096, 12000 - 8192)
"""Of the records that COUNT floats take in slots of 4096 bytes."""

needs_aegis = pytest.mark.skipif(not _engine.aead_names(Suite.AEGIS_256X4), reason="this CPU has no AES instructions")


# What passes between ranks


def _sender_root(rank: int) -> bytes:
    return b"the root of sender %d, for tests." % rank


def _known_roots(rank: int, folder: Path) -> None:
    """Before a rank joins: whatever the handshake derives, senders' roots become those that the test knows."""

    def establish_known(*args: Any) -> Any:
        session = establish(*args)
        session.sender = [_engine.Secret.absorb(bytearray(_sender_root(r))) for r in range(session.size)]
        return session

    communicator.handshake.establish = establish_known


def _sums_once(comm: Communicator, gate: str) -> tuple[int, int, str]:
    """Sequence number and descriptor of an all_reduce, whose records then lie in the segments until the gate opens."""
    x = np.full(COUNT, comm.rank + 1.0, np.float32)
    work = comm.all_reduce(x, algorithm="one_shot", async_op=True)
    assert work is not None
    work.wait()
    assert (x == 3.0).all()
    algorithm = communicator._ALGORITHMS.index("one_shot")
    _, descriptors, _ = comm._planner(Collective.ALL_REDUCE, DType.F32, ReduceOp.SUM, 0, COUNT, None, None, algorithm)
    Path(f"{gate}-{comm.rank}").touch()
    _wait_for(Path(gate))
    return work.sequence, descriptors[0], comm.suite


def _wait_for(path: Path) -> None:
    deadline = time.monotonic() + GROUP_SECONDS
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def _opens_gcm(key: bytes, nonce: bytes, aad: bytes, sealed: bytes) -> bytes | None:
    try:
        return AESGCM(key).decrypt(nonce, sealed, aad)
    except InvalidTag:
        return None


def _opens_aegis(key: bytes, nonce: bytes, aad: bytes, sealed: bytes) -> bytes | None:
    try:
        plain: bytes = Aegis256X4(tag_size=16).decrypt(key, nonce + bytes(20), sealed, aad)
    except DecryptionError:
        return None
    return plain


@needs_aegis
@pytest.mark.parametrize(
    ("suite", "opens", "other"), [(GCM, _opens_gcm, _opens_aegis), (AEGIS, _opens_aegis, _opens_gcm)], ids=[GCM, AEGIS]
)
def test_records_are_those_of_the_protocol_in_the_groups_suite(
    tmp_path: Path, suite: str, opens: Callable[..., bytes | None], other: Callable[..., bytes | None]
) -> None:
    """Read from shared memory as the host reads it, and opened with another implementation."""
    gate = tmp_path / "gate"
    with group(2, tmp_path, _sums_once, str(gate), shape=SMALL, suite=suite, prepare=_known_roots) as ranks:
        ranks.wait_joined()
        for rank in range(2):
            _wait_for(Path(f"{gate}-{rank}"))
        sealed = {}
        for rank in range(2):
            view = HostView(ranks.pids[rank], rank, 2, SMALL)
            assert view.memory is not None
            for position, length in enumerate(RECORD_BYTES):
                at = view.slot_at(2, position)
                sealed[rank, position] = bytes(view.memory[at : at + length + 16])
        gate.touch()
        outcomes = ranks.finish()
    for rank, outcome in enumerate(outcomes):
        assert outcome.error is None, outcome.error
        sequence, descriptor, name = outcome.value
        assert name == suite
        secret = XL(_sender_root(rank), "stream", struct.pack(">HB", 0, 1), 32)
        key, iv = XL(secret, "key", b"", 32), XL(secret, "iv", b"", 12)
        text = np.full(COUNT, rank + 1.0, np.float32).tobytes()
        for number, length in enumerate(RECORD_BYTES):
            counter = bytes(4) + (sequence << 24 | number).to_bytes(8, "big")
            nonce = bytes(a ^ b for a, b in zip(iv, counter, strict=True))
            aad = struct.pack(">BBHIQIIQ", 1, 0, 0, number, sequence, length, 0, descriptor)
            record = sealed[rank, number]
            assert opens(key, nonce, aad, record) == text[4096 * number :][:length]
            assert other(key, nonce, aad, record) is None


@needs_aegis
@pytest.mark.parametrize(("size", "over"), [(2, {}), (3, {}), (3, {"prepare": sockets_only})], ids=["2", "3", "3-tcp"])
def test_every_collective_gives_the_same_bits_in_every_suite(tmp_path: Path, size: int, over: dict[str, Any]) -> None:
    results = []
    for suite in (GCM, AEGIS):
        folder = tmp_path / suite
        folder.mkdir()
        # Plans of the same rates: of others the order of sums may be another.
        results.append(run(size, folder, every_result, shape=SMALL, suite=suite, network=HOST, **over))
    assert results[0] == results[1]
    assert not left_behind()


def _sum_and_message(comm: Communicator) -> tuple[float, float]:
    x = np.full(COUNT, comm.rank + 1.0, np.float32)
    comm.all_reduce(x)
    message = np.full(COUNT, 5.0, np.float32) if comm.rank == 0 else np.zeros(COUNT, np.float32)
    if comm.rank == 0:
        comm.send(message, 1)
    else:
        comm.recv(message, 0)
    comm.barrier()
    assert (x == x[0]).all() and (message == 5.0).all()
    return float(x[0]), float(message[0])


@pytest.mark.parametrize("kernels", _engine.aead_names(Suite.AEGIS_256X4))
def test_every_set_of_kernels_of_suite_4_carries_a_group(tmp_path: Path, kernels: str) -> None:
    assert run(2, tmp_path, _sum_and_message, shape=SMALL, suite=AEGIS, kernels=kernels) == [(3.0, 5.0)] * 2


def _epochs(comm: Communicator) -> int:
    for _ in range(6):
        x = np.full(COUNT, comm.rank + 1.0, np.float32)
        comm.all_reduce(x)
        assert (x == 3.0).all()
    return comm.epoch


@needs_aegis
def test_keys_step_in_suite_4_as_in_suite_1(tmp_path: Path) -> None:
    shape = replace(SMALL, budget_blocks=2000)
    epochs = []
    for suite in (GCM, AEGIS):
        (tmp_path / suite).mkdir()
        epochs.append(run(2, tmp_path / suite, _epochs, shape=shape, suite=suite))
    assert epochs[0] == epochs[1]
    assert epochs[0][0] > 1


# Who chooses


def test_the_default_is_aes_256_gcm(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "securecoll"), securecoll.init(_key(tmp_path)) as comm:
        assert comm.suite == "aes-256-gcm"
    assert f"suite aes-256-gcm, AEAD {_engine.aead_name()}" in caplog.text


@needs_aegis
def test_a_program_chooses_by_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "securecoll"), securecoll.init(_key(tmp_path), suite="aegis-256x4") as comm:
        assert comm.suite == "aegis-256x4"
    assert f"suite aegis-256x4, AEAD {_engine.aead_name(4)}" in caplog.text


def _key(folder: Path) -> Path:
    path = folder / "a.key"
    if not path.exists():
        path.touch(mode=0o600)
        path.write_bytes(bytes(range(32)))
    return path


@pytest.mark.parametrize("name", ["", "aegis", "AEGIS-256X4", "aes-128-gcm", "4", "none", "plaintext"])
def test_an_unknown_suite_is_refused_and_those_known_are_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"no suite .*give one of aes-256-gcm, aegis-256x4"):
        Communicator.create(None, _key(tmp_path), suite=name)


def test_the_environment_does_not_choose(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from securecoll import config

    monkeypatch.setattr(config, "_current", None)
    monkeypatch.setenv("SECURECOLL_SUITE", "aegis-256x4")
    with pytest.raises(ConfigError, match="SECURECOLL_SUITE is not a variable"):
        Communicator.create(None, _key(tmp_path))


def test_a_cpu_without_aes_instructions_cannot_run_suite_4(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    have = _engine.aead_names
    monkeypatch.setattr(suites._engine, "aead_names", lambda suite=1: [] if suite == 4 else have(suite))
    with pytest.raises(ConfigError, match=r"this CPU cannot run the suite aegis-256x4: .*AES-NI.*aes-256-gcm"):
        Communicator.create(None, _key(tmp_path), suite=AEGIS)
    Communicator.create(None, _key(tmp_path)).close()


@needs_aegis
@pytest.mark.parametrize(("suite", "kernels"), [(AEGIS, "libcrypto"), (GCM, _engine.aead_names(4)[-1:])])
def test_kernels_of_another_suite_are_refused(tmp_path: Path, suite: str, kernels: Any) -> None:
    name = kernels if isinstance(kernels, str) else kernels[0]
    with pytest.raises(ConfigError, match=f"no kernels named {name} of suite {4 if suite == AEGIS else 1}"):
        Communicator.create(None, _key(tmp_path), suite=suite, kernels=name)


def _choose(rank: int, names: dict[int, str]) -> None:
    """Has this rank ask for another suite than the rest."""
    create = Communicator.create.__func__  # type: ignore[attr-defined]

    def create_so(cls: type[Communicator], *args: Any, **options: Any) -> Communicator:
        made: Communicator = create(cls, *args, **{**options, "suite": names[rank]})
        return made

    Communicator.create = classmethod(create_so)  # type: ignore[method-assign, assignment]


def _rank_1_asks_for_aegis(rank: int, folder: Path) -> None:
    _choose(rank, {0: GCM, 1: AEGIS, 2: GCM})


def _rank_1_misspells(rank: int, folder: Path) -> None:
    _choose(rank, {0: GCM, 1: "aegis", 2: GCM})


def _nothing(comm: Communicator) -> None:
    raise AssertionError("joined")


@needs_aegis
def test_ranks_that_differ_refuse_each_other_and_are_named(tmp_path: Path) -> None:
    with group(3, tmp_path, _nothing, prepare=_rank_1_asks_for_aegis) as ranks:
        zero, one, two = ranks.finish()
    for outcome in (zero, one, two):
        assert isinstance(outcome.error, HandshakeError)
        assert "Give every rank the same suite" in str(outcome.error)
        assert outcome.seconds < GROUP_SECONDS
    assert "rank 1 joined with the suite aegis-256x4, and this rank (0) with aes-256-gcm" in str(zero.error)
    assert "ranks [0, 2] joined with the suite aes-256-gcm, and this rank (1) with aegis-256x4" in str(one.error)
    assert not left_behind()


def test_a_rank_that_misspells_its_suite_ends_the_others_at_once(tmp_path: Path) -> None:
    with group(3, tmp_path, _nothing, prepare=_rank_1_misspells) as ranks:
        zero, one, two = ranks.finish()
    assert isinstance(one.error, ConfigError)
    for outcome in (zero, two):
        assert isinstance(outcome.error, HandshakeError)
        assert "rank 1 gave up" in str(outcome.error)
        assert outcome.seconds < GROUP_SECONDS / 2


def _children(comm: Communicator, folder: str) -> list[str]:
    names = []
    for name, asked in (("same", None), ("other", GCM), ("named", AEGIS)):
        Path(folder, name).mkdir(parents=True, exist_ok=True)
        exchange = securecoll.DirectoryExchange(Path(folder, name), rank=comm.rank, size=comm.size)
        with Communicator.create(exchange, timeout=GROUP_SECONDS, shape=SMALL, parent=comm, suite=asked) as child:
            assert _sum_and_message(child) == (3.0, 5.0)
            names.append(child.suite)
            assert child.rates == (AEGIS_HOST if child.suite == AEGIS else HOST)
    return names


@needs_aegis
def test_a_child_has_its_parents_suite_unless_given_another(tmp_path: Path) -> None:
    found = run(2, tmp_path, _children, str(tmp_path / "children"), shape=SMALL, suite=AEGIS)
    assert found == [[AEGIS, GCM, AEGIS]] * 2


# Device memory


class OnDevice:
    """What a tensor on a GPU shows. Its memory is nobody's: to touch it would be an error of another kind."""

    __cuda_array_interface__: ClassVar = {
        "shape": (COUNT,),
        "typestr": "<f4",
        "data": (64, False),
        "version": 3,
        "strides": None,
        "stream": 1,
    }


def _with_device_memory(comm: Communicator) -> list[str]:
    said = []
    for call in (lambda: comm.all_reduce(OnDevice()), lambda: comm.broadcast(OnDevice(), 0)):
        with pytest.raises(SecureCollError) as caught:
            call()
        assert type(caught.value) is ConfigError
        said.append(str(caught.value))
    with pytest.raises(ConfigError) as refused:
        comm.send(OnDevice(), 1 - comm.rank)
    said.append(str(refused.value))
    _sum_and_message(comm)  # nothing was sent, and no sequence number used: the ranks are still in step
    return said


@needs_aegis
def test_device_memory_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    for rank, said in enumerate(run(2, tmp_path, _with_device_memory, shape=SMALL, suite=AEGIS)):
        for text in said[:2]:
            assert f"rank {rank}" in text
            assert "aegis-256x4 works on CPU memory alone" in text and "suite aes-256-gcm" in text
        assert f"rank {rank}" in said[2]


# Rates


def test_each_suite_has_its_own_rates_and_neither_needs_to_stand_in_the_plans_hash() -> None:
    assert rates.usual(Suite.AES_256_GCM) == HOST
    assert rates.usual(Suite.AEGIS_256X4) == AEGIS_HOST != HOST
    shape = b"s" * 32
    seen = [rates.table_hash(shape, table, suite) for table in (HOST, AEGIS_HOST, None) for suite in Suite]
    assert [found == shape for found in seen] == [True, False, False, True, False, False]
    assert len({*seen}) == 4
    assert rates.parse('{"copy": 5e9}', Suite.AEGIS_256X4) == replace(AEGIS_HOST, copy=5e9)
    assert rates.parse('{"copy": 5e9}') == replace(HOST, copy=5e9)
