"""The driver: rounds over an exchange, and that nobody waits for someone who gave up."""

from __future__ import annotations

import gc
import time

import pytest

from securecoll._engine import arena_used_bytes
from securecoll.errors import AuthenticationError, ConfigError, HandshakeError, PeerLostError
from securecoll.handshake import MAX_ENDPOINTS, Session, establish, schedule
from securecoll.identity import Policy
from tests.handshake.group import KEY, POLICY, agree, in_threads, join, members, params, secret
from tests.handshake.test_attacks import flip, put, to
from tests.memory_exchange import Hub

SOON = 1.5
"""Seconds, far below the deadline of ``join``."""


class Timed:
    def __enter__(self):
        self.start = time.monotonic()
        return self

    def __exit__(self, *_):
        self.seconds = time.monotonic() - self.start


@pytest.mark.parametrize("size", range(2, 9))
def test_a_group_joins(size):
    hub = Hub(size)
    connected = {}
    sessions = join(size, hub, connect=connected.__setitem__)
    assert agree(sessions)
    assert [session.rank for session in sessions] == list(range(size))
    endpoints = [b"endpoint %d" % rank for rank in range(size)]
    assert connected == dict.fromkeys(range(size), endpoints)
    assert all(session.endpoints == endpoints for session in sessions)


def test_a_group_of_one_runs_no_round_and_has_no_keys():
    hub = Hub(1)
    (session,) = join(1, hub)
    assert isinstance(session, Session)
    assert hub.published == {}
    assert session.sender == [None] == session.link_tx
    assert session.id == schedule.session_id(schedule.params_hash(params(1)))


@pytest.mark.parametrize(
    ("psk", "words"), [(None, "there is none"), (b"k" * 31, "31 bytes"), (bytes(32), "all zeros")]
)
@pytest.mark.parametrize("size", [1, 2])
def test_a_bad_key_is_refused_also_alone_and_its_peers_end_soon(psk, words, size):
    hub = Hub(size)

    def run(rank):
        key = secret(KEY) if rank == 1 else psk and secret(psk)
        return establish(params(size), POLICY, key, hub.exchange(rank), b"", print, time.monotonic() + 60)

    with Timed() as t:
        ends = in_threads(run, size)
    assert isinstance(ends[0], ConfigError)
    assert words in str(ends[0])
    if size == 2:
        assert isinstance(ends[1], HandshakeError)
        assert "rank 0 gave up" in str(ends[1])
    assert t.seconds < SOON


def test_a_policy_without_factors_is_refused():
    with pytest.raises(ConfigError, match="no factor"):
        establish(
            params(1, policy_hash=Policy(psk=False).hash), Policy(psk=False), None, Hub(1).exchange(0), b"", print, 0
        )


def test_bad_arguments_are_refused():
    def run(**changes):
        given = {"params": params(1), "policy": POLICY, "exchange": Hub(1).exchange(0), "endpoints": b""} | changes
        return establish(psk=secret(KEY), connect=print, deadline=time.monotonic(), **given)

    assert isinstance(run(), Session)
    with pytest.raises(ConfigError, match="another policy"):
        run(params=params(1, policy_hash=bytes(32)))
    with pytest.raises(ConfigError, match="rank 0 of 2; the group has 1"):
        run(exchange=Hub(2).exchange(0))
    with pytest.raises(ConfigError, match="rank 1 of 1"):
        run(exchange=Hub(1).exchange(1))
    with pytest.raises(ConfigError, match="endpoints of 4097 bytes"):
        run(endpoints=bytes(MAX_ENDPOINTS + 1))


def test_endpoints_of_the_largest_size_are_announced():
    hub = Hub(2)
    ends = in_threads(
        lambda rank: establish(
            params(2), POLICY, secret(KEY), hub.exchange(rank), bytes(MAX_ENDPOINTS), len, time.monotonic() + 20
        ),
        2,
    )
    assert agree(ends)


def test_nothing_connects_before_everyone_is_verified():
    connected = []
    ends = join(3, Hub(3), keys=[KEY, b"another key" * 3, KEY], connect=lambda rank, _: connected.append(rank))
    assert {type(end) for end in ends} == {AuthenticationError}
    assert connected == []


def test_nobody_confirms_before_it_connected():
    hub = Hub(3)
    early = []
    ends = join(3, hub, connect=lambda rank, _: early.append(hub.seen(4, rank)))
    assert agree(ends)
    assert early == [None] * 3


@pytest.mark.parametrize(
    ("raised", "kind"), [(PeerLostError, PeerLostError), (OSError, HandshakeError), (ConfigError, ConfigError)]
)
def test_when_a_rank_cannot_connect_all_ends_soon_and_each_error_says_why(raised, kind):
    def connect(rank, endpoints):
        if rank == 1:
            raise raised("no space")

    gc.collect()
    before = arena_used_bytes()
    with Timed() as t:
        ends = join(3, Hub(3), connect=connect, seconds=60)
    keys = 3 * 64  # the callers' own, which the errors' tracebacks still hold
    assert arena_used_bytes() == before + keys
    assert type(ends[1]) is kind
    assert "no space" in str(ends[1])
    for rank in (0, 2):
        assert type(ends[rank]) is HandshakeError
        assert "rank 1 gave up in the fin round" in str(ends[rank])
    assert t.seconds < SOON


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("round", [1, 2, 3, 4])
@pytest.mark.parametrize("receiver", [0, 1])
def test_one_deceived_rank_ends_the_handshake_for_all_soon(round, receiver, size):
    if round == 3 and receiver == 0:
        speaker, change = 1, b"x" * 48  # rank 0 expects nothing
    else:
        speaker = 0 if receiver == 1 else 1
        change = flip(10)
    with Timed() as t:
        ends = join(size, Hub(size, to(receiver, round, put(speaker, change))), seconds=60)
    assert isinstance(ends[receiver], (HandshakeError, AuthenticationError))
    if round < 4:  # after the last round there is nobody left to tell
        assert not any(isinstance(end, Session) for end in ends), ends
    assert t.seconds < SOON


def test_a_rank_that_never_comes_ends_the_handshake_at_the_deadline():
    hub = Hub(3)
    with Timed() as t:
        ends = in_threads(
            lambda rank: (
                rank == 2
                or establish(params(3), POLICY, secret(KEY), hub.exchange(rank), b"", len, time.monotonic() + 0.5)
            ),
            3,
        )
    for rank in (0, 1):
        assert isinstance(ends[rank], HandshakeError)
        assert "[2]" in str(ends[rank])
    assert 0.4 < t.seconds < 0.5 + SOON


def test_a_second_attempt_over_the_same_exchange_draws_everything_anew():
    hub = Hub(2, to(0, 2, put(1, flip(50))))
    exchanges = [hub.exchange(rank) for rank in range(2)]

    def run(rank):
        return establish(params(2), POLICY, secret(KEY), exchanges[rank], b"", len, time.monotonic() + 20)

    assert not agree(in_threads(run, 2))
    hub.attack = None
    assert agree(in_threads(run, 2))
    first, second = hub.seen(1, 0, attempt=1), hub.seen(1, 0, attempt=2)
    assert first[:36] == second[:36]
    assert first[36:68] != second[36:68]
    assert first[68:100] != second[68:100]


def test_ten_members_of_twenty_rounds_never_repeat_a_nonce_or_share():
    hellos = [member.hello() for _ in range(20) for member in members(10)]
    assert len({blob[36:68] for blob in hellos}) == 200
    assert len({blob[68:100] for blob in hellos}) == 200
