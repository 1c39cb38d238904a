"""A member's state, and what remains of it."""

from __future__ import annotations

import copy
import gc
import itertools
import pickle
import traceback

import pytest

from securecoll._engine import arena_used_bytes
from securecoll.errors import AuthenticationError, HandshakeError
from securecoll.handshake import Session, schedule
from tests.handshake.group import KEY, agree, fingerprints, lock_step, members
from tests.handshake.test_attacks import SPEAKS, flip, put, to


@pytest.mark.parametrize("size", range(2, 9))
def test_all_members_derive_the_same_roots_and_no_two_roots_are_equal(size):
    sessions = lock_step(members(size))
    assert agree(sessions)
    names = {name for session in sessions for name in fingerprints(session)}
    assert len(names) == size + 1 + 4 * size * (size - 1)


def test_each_member_holds_only_the_roots_of_its_own_pairs():
    for rank, session in enumerate(lock_step(members(4))):
        assert all(
            str(rank) in name.split()[1:] for name in fingerprints(session) if not name.startswith(("sender", "child"))
        )
        for name in ("link", "p2p", "control", "conn"):
            assert getattr(session, f"{name}_tx")[rank] is None
            assert getattr(session, f"{name}_rx")[rank] is None


def test_two_handshakes_with_the_same_key_share_no_root():
    first, second = (fingerprints(lock_step(members(3))[0]) for _ in range(2))
    assert not set(first.values()) & set(second.values())


def test_secrets_of_a_pair_are_wiped_as_soon_as_its_roots_are_there(monkeypatch):
    held = []
    derive = schedule.pair_secret

    def watched(*args):
        held.append(arena_used_bytes())
        return derive(*args)

    monkeypatch.setattr(schedule, "pair_secret", watched)
    assert agree(lock_step(members(6)))
    for rank in range(6):
        seen = held[5 * rank : 5 * rank + 5]
        grown = [(now - before) // 64 for before, now in itertools.pairwise(seen)]
        # Eight roots of the pair, and the next sender's, two where this rank is passed. What rank 0 shared with each
        # was there before, and goes.
        assert grown == ([8] * 4 if rank == 0 else [10 if peer == rank else 9 for peer in range(1, 5)]), rank


def test_roots_and_nothing_else_stay_after_a_handshake():
    gc.collect()
    before = arena_used_bytes()
    group = members(3)
    sessions = lock_step(group)
    roots = 3 * 64 * (1 + 3 + 2 * 4 * 2)
    assert arena_used_bytes() - before == roots  # the members still live, and hold nothing
    for session in sessions:
        session.erase()
        session.erase()
        assert all(root.empty for root in session.sender)
        assert all(root is None or root.empty for root in session.link_tx)
    assert arena_used_bytes() == before
    assert all("is done" in repr(member) for member in group)


@pytest.mark.parametrize(("round", "speaker", "receiver"), SPEAKS)
@pytest.mark.parametrize("change", [b"", flip(3), flip(-1)], ids=["silent", "flipped", "last"])
def test_a_member_that_fails_wipes_everything(round, speaker, receiver, change):
    gc.collect()
    before = arena_used_bytes()
    group = members(3)
    ends = lock_step(group, to(receiver, round, put(speaker, change)))
    if isinstance(ends[receiver], Session):  # rank 2's part of the wraps: none of the receiver's business
        assert (round, change) == (3, change)
        return
    for end in ends:
        if isinstance(end, Session):
            end.erase()
    # While the errors live, and with them every local variable on their way.
    assert isinstance(ends[receiver], Exception)
    assert arena_used_bytes() == before
    assert "has failed" in repr(group[receiver])


def test_steps_cannot_be_skipped_or_repeated():
    one, two = members(2)
    with pytest.raises(HandshakeError, match="new handshake"):
        one.auth([b"", b""])
    hellos = [one.hello(), two.hello()]
    with pytest.raises(HandshakeError, match="new handshake"):
        two.hello()
    one.auth(hellos)
    for method in (one.auth, one.fin, one.finish):
        with pytest.raises(HandshakeError, match="new handshake"):
            method(hellos)


def test_a_failed_member_stays_failed():
    one, two = members(2)
    hellos = [one.hello(), two.hello()]
    with pytest.raises(HandshakeError):
        one.auth(hellos[::-1])
    with pytest.raises(HandshakeError, match="has failed"):
        one.auth(hellos)


def test_no_key_shows_in_reprs_errors_or_the_locals_of_a_traceback():
    group = members(3, keys=[KEY, KEY, bytes(KEY[:-1]) + b"!"])
    sessions = lock_step(members(3))
    texts = [repr(member) for member in group] + [repr(session) for session in sessions]
    ends = lock_step(group)
    for end in ends:
        assert isinstance(end, AuthenticationError)
        stack = traceback.TracebackException.from_exception(end, capture_locals=True).stack
        texts += [str(end), repr(end), *(str(f.locals) for f in stack if "/securecoll/" in f.filename)]
    assert any("Secret of" in text for text in texts)
    for text in texts:
        for shown in (KEY.hex(), repr(KEY)[2:-1], repr(KEY[:8])[2:-1]):
            assert shown not in text


@pytest.mark.parametrize("clone", [pickle.dumps, copy.copy, copy.deepcopy])
def test_sessions_and_members_hold_nothing_that_can_be_pickled_or_copied(clone):
    session = lock_step(members(2))[0]
    member = members(2)[0]
    for thing in (session.link_tx[1], session.sender[0], member._es):
        with pytest.raises(TypeError, match="cannot be"):
            clone(thing)
    if clone is not copy.copy:
        for whole in (session, member):
            with pytest.raises(TypeError, match="cannot be"):
                clone(whole)
