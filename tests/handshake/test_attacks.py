"""What an attacker does who owns the exchange, and where each attack ends.

Every test names the error that it wants: were its check removed, the handshake would end well, or elsewhere with
other words.
"""

from __future__ import annotations

import hashlib

import pytest

from securecoll import _engine
from securecoll.errors import AuthenticationError, HandshakeError
from securecoll.handshake import Session, member, schedule
from securecoll.handshake.member import Member
from securecoll.identity import Policy
from securecoll.suites import Suite
from tests.handshake.group import KEY, FixedDraw, agree, join, lock_step, members, params, secret
from tests.memory_exchange import Hub

needs_aegis = pytest.mark.skipif(not _engine.aead_names(Suite.AEGIS_256X4), reason="this CPU has no AES instructions")
HELLO, AUTH, WRAP, FIN = 1, 2, 3, 4
P = 2**255 - 19
SMALL_ORDER = (
    0,
    1,
    P - 1,
    int.from_bytes(bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"), "little"),
    int.from_bytes(bytes.fromhex("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"), "little"),
)


def to(receiver, round, change):
    """An attack on what one rank receives in one round."""

    def attack(r, who, blobs):
        return change(blobs) if (r, who) == (round, receiver) else blobs

    return attack


def put(rank, blob):
    """Replaces one blob."""
    return lambda blobs: [*blobs[:rank], blob(blobs[rank]) if callable(blob) else blob, *blobs[rank + 1 :]]


def swap(a, b):
    def change(blobs):
        blobs[a], blobs[b] = blobs[b], blobs[a]
        return blobs

    return change


def flip(at, bit=0):
    return lambda blob: blob[:at] + bytes([blob[at] ^ 1 << bit]) + blob[at + 1 :]


def ends_with(end, kind, *words):
    assert type(end) is kind, end
    for word in words:
        assert word in str(end), f"{word!r} not in {str(end)!r}"
    if kind is AuthenticationError:
        assert "authentication" in str(end)


def nobody_joined(ends):
    assert not any(isinstance(end, Session) for end in ends), ends


def test_without_an_attacker_the_group_joins():
    assert agree(lock_step(members(3)))


# Hello


def test_a_split_view_fails_every_proof_across_the_split():
    other = members(3)[2].hello()
    ends = lock_step(members(3), to(1, HELLO, put(2, other)))
    ends_with(ends[1], AuthenticationError, "ranks [0, 2]")
    ends_with(ends[0], AuthenticationError, "rank 1 failed")
    ends_with(ends[2], AuthenticationError, "rank 1 failed")


def test_swapped_shares_fail_the_proofs():
    def swap_shares(blobs):
        one, two = blobs[1], blobs[2]
        return [blobs[0], one[:68] + two[68:100] + one[100:], two[:68] + one[68:100] + two[100:]]

    ends = lock_step(members(3), to(0, HELLO, swap_shares))
    ends_with(ends[0], AuthenticationError, "ranks [1, 2]")
    nobody_joined(ends)


@pytest.mark.parametrize("round", [HELLO, AUTH, FIN])
def test_swapped_messages_name_the_wrong_rank(round):
    ends = lock_step(members(3), to(0, round, swap(1, 2)))
    ends_with(ends[0], HandshakeError, "ranks [1, 2]", "names another rank")


@pytest.mark.parametrize("round", [HELLO, AUTH, FIN])
def test_a_members_own_message_reflected_to_it_names_the_wrong_rank(round):
    ends = lock_step(members(2), to(0, round, lambda blobs: [blobs[0], blobs[0]]))
    ends_with(ends[0], HandshakeError, "rank 1", "names another rank")


@pytest.mark.parametrize("round", [AUTH, FIN])
def test_a_reflected_message_with_its_rank_rewritten_is_no_proof(round):
    at = {AUTH: 0, FIN: 0}[round]

    def reflect(blobs):
        return [blobs[0], blobs[0][:at] + (1).to_bytes(4, "big") + blobs[0][at + 4 :]]

    ends = lock_step(members(2), to(0, round, reflect))
    ends_with(ends[0], AuthenticationError, "rank 1")


def test_a_rank_with_other_parameters_is_named():
    group = members(3)
    group[2] = members(3, channels=3)[2]
    ends = lock_step(group)
    ends_with(ends[0], HandshakeError, "rank 2 joined with other parameters than this rank (0)", "2 channels")
    ends_with(ends[1], HandshakeError, "rank 2 joined with other parameters")
    ends_with(ends[2], HandshakeError, "ranks [0, 1] joined with other parameters")


def test_ranks_of_another_suite_are_named():
    group = members(3)
    group[2] = members(3, suite=Suite.AEGIS_256X4)[2]
    ends = lock_step(group)
    for end in ends[:2]:
        ends_with(end, HandshakeError, "rank 2 joined with the suite aegis-256x4", "with aes-256-gcm", "same suite")
    ends_with(ends[2], HandshakeError, "ranks [0, 1] joined with the suite aes-256-gcm", "(2) with aegis-256x4")
    nobody_joined(ends)


def test_ranks_that_differ_in_more_than_the_suite_are_named_with_everything():
    group = members(2)
    group[1] = members(2, suite=Suite.AEGIS_256X4, channels=3)[1]
    ends = lock_step(group)
    ends_with(ends[0], HandshakeError, "rank 1 joined with other parameters", "suite aes-256-gcm")
    ends_with(ends[1], HandshakeError, "rank 0 joined with other parameters", "suite aegis-256x4")


@needs_aegis
def test_a_group_secret_wrapped_in_another_suite_does_not_open(monkeypatch):
    """Also where nothing else of the parameters' hash stands in the way."""
    ph = schedule.params_hash(params(2))
    monkeypatch.setattr(schedule, "params_hash", lambda params: ph)
    group = [members(2)[0], members(2, suite=Suite.AEGIS_256X4)[1]]
    ends = lock_step(group)
    ends_with(ends[1], AuthenticationError, "group secret from rank 0")
    nobody_joined(ends)


@needs_aegis
def test_a_group_of_another_suite_joins():
    assert agree(lock_step(members(3, suite=Suite.AEGIS_256X4)))


@needs_aegis
@pytest.mark.parametrize("at", range(0, 48, 5))
def test_an_altered_group_secret_of_suite_4_does_not_open(at):
    ends = lock_step(members(2, suite=Suite.AEGIS_256X4), to(1, WRAP, put(0, flip(at, at % 8))))
    ends_with(ends[1], AuthenticationError, "group secret from rank 0")


def test_a_repeated_nonce_is_refused():
    group = members(3)
    for rank in (1, 2):
        draw = FixedDraw(hashlib.sha256(b"%d" % rank).digest(), b"n" * 32, b"z" * 32)
        group[rank] = Member(params(3), Policy(), secret(KEY), rank, b"", draw)
    ends_with(lock_step(group)[0], HandshakeError, "ranks 1 and 2", "the nonce")


def test_a_repeated_share_is_refused():
    group = members(3)
    for rank in (0, 2):
        draw = FixedDraw(b"e" * 32, hashlib.sha256(b"%d" % rank).digest(), b"z" * 32)
        group[rank] = Member(params(3), Policy(), secret(KEY), rank, b"", draw)
    ends_with(lock_step(group)[1], HandshakeError, "ranks 0 and 2", "the key share")


def test_a_repeated_identity_key_is_refused():
    def claim(blobs):
        return [blobs[0], *(blob[:100] + b"i" * 32 + blob[132:] for blob in blobs[1:])]

    ends_with(lock_step(members(3), to(0, HELLO, claim))[0], HandshakeError, "ranks 1 and 2", "the identity key")


def test_an_identity_key_that_no_signature_proves_is_refused():
    ends = lock_step(members(2), to(0, HELLO, put(1, lambda b: b[:100] + b"i" * 32 + b[132:])))
    ends_with(ends[0], HandshakeError, "rank 1 named an identity key")


@pytest.mark.parametrize("u", SMALL_ORDER)
def test_a_share_of_small_order_is_refused(u):
    ends = lock_step(members(2), to(0, HELLO, put(1, lambda b: b[:68] + u.to_bytes(32, "little") + b[100:])))
    ends_with(ends[0], HandshakeError, "rank 1", "small order")


@pytest.mark.parametrize("u", [P, P + 1, P + 9, 2**255 - 1, 2**255, 2**255 + 9, 2**255 + P - 1, 2**256 - 1])
def test_a_share_that_is_not_canonical_is_refused(u):
    ends = lock_step(members(2), to(0, HELLO, put(1, lambda b: b[:68] + u.to_bytes(32, "little") + b[100:])))
    ends_with(ends[0], HandshakeError, "rank 1", "not canonical")


@pytest.mark.parametrize("u", SMALL_ORDER)
def test_an_exchange_that_gives_zeros_is_refused_even_if_its_share_was_not(u, monkeypatch):
    class Insider(FixedDraw):
        def share(self):
            return self

        def public_key(self):
            return self

        def public_bytes_raw(self):
            return u.to_bytes(32, "little")

    monkeypatch.setattr(member, "_SMALL_ORDER", frozenset())
    group = members(2)
    group[1] = Member(params(2), Policy(), secret(KEY), 1, b"", Insider(b"", b"n" * 32, b""))
    ends_with(lock_step(group)[0], HandshakeError, "rank 1 gave zeros")


# Auth


def test_a_rank_without_the_key_is_named():
    ends = lock_step(members(3, keys=[KEY, b"another key" * 3, KEY]))
    ends_with(ends[0], AuthenticationError, "authentication of rank 1 failed")
    ends_with(ends[1], AuthenticationError, "authentication of ranks [0, 2] failed")
    ends_with(ends[2], AuthenticationError, "authentication of rank 1 failed")


@pytest.mark.parametrize("bit", [0, 77, 255])
def test_e4_keys_that_differ_in_one_bit_do_not_join(bit):
    key = bytearray(KEY)
    key[bit // 8] ^= 1 << bit % 8
    ends = lock_step(members(2, keys=[KEY, bytes(key)]))
    ends_with(ends[0], AuthenticationError, "rank 1 failed", "same key")
    ends_with(ends[1], AuthenticationError, "rank 0 failed", "same key")


def recorded(size):
    """Every round of a handshake that succeeded."""
    rounds = {}

    def watch(round, receiver, blobs):
        rounds[round] = blobs
        return blobs

    assert agree(lock_step(members(size), watch))
    return rounds


@pytest.mark.parametrize(("since", "named"), [(HELLO, "ranks [1, 2] failed"), (AUTH, "rank 1 failed")])
def test_an_old_proof_does_not_replay(since, named):
    old = recorded(3)

    def replay(round, receiver, blobs):
        return put(1, old[round][1])(blobs) if receiver == 0 and round >= since else blobs

    ends = lock_step(members(3), replay)
    ends_with(ends[0], AuthenticationError, named)


def test_an_old_group_secret_does_not_replay():
    old = recorded(2)
    ends = lock_step(members(2), to(1, WRAP, put(0, old[WRAP][0])))
    ends_with(ends[1], AuthenticationError, "group secret")


def test_an_old_confirmation_does_not_replay():
    old = recorded(2)
    ends = lock_step(members(2), to(0, FIN, put(1, old[FIN][1])))
    ends_with(ends[0], AuthenticationError, "confirmation from rank 1")


def test_a_credential_that_was_not_announced_is_refused():
    class Announces(Member):
        def hello(self):
            self._sent = super().hello()[:132] + b"c" * 32
            return self._sent

    group = members(2)
    group[1] = Announces(params(2), Policy(), secret(KEY), 1, b"")
    ends_with(lock_step(group)[0], HandshakeError, "rank 1 showed another credential")


# T2: views that differ only in proofs, each of which is valid


class TwoFaced:
    """A holder of the key that proves itself with two sets of endpoints."""

    def __init__(self, size, rank):
        self.honest = Member(params(size), Policy(), secret(KEY), rank, b"here")
        self.rank = rank
        self.other = b""

    def hello(self):
        return self.honest.hello()

    def auth(self, hellos):
        blob = self.honest.auth(hellos)
        twin = Member(params(3), Policy(), secret(KEY), self.rank, b"there")
        twin._stage, twin._sent = member._Stage.HELLO, hellos[self.rank]
        self.other = twin.auth(hellos)
        return blob

    def __getattr__(self, name):
        return getattr(self.honest, name)


@pytest.mark.parametrize("deceived", [0, 1])
def test_proofs_that_differ_between_views_fail_at_the_group_secret(deceived):
    group = [*members(3)[:2], TwoFaced(3, 2)]
    ends = lock_step(group, to(deceived, AUTH, lambda blobs: [*blobs[:2], group[2].other]))
    ends_with(ends[1], AuthenticationError, "group secret from rank 0", "other messages")
    nobody_joined(ends)


# Wrap


def test_a_group_secret_for_another_rank_does_not_open():
    ends = lock_step(members(3), to(1, WRAP, put(0, lambda b: b[48:] + b[:48])))
    ends_with(ends[1], AuthenticationError, "group secret")


@pytest.mark.parametrize("at", range(48))
def test_an_altered_group_secret_does_not_open(at):
    ends_with(
        lock_step(members(2), to(1, WRAP, put(0, flip(at, at % 8))))[1],
        AuthenticationError,
        "group secret from rank 0",
    )


def test_only_rank_0_wraps():
    ends = lock_step(members(3), to(0, WRAP, put(2, b"w" * 96)))
    ends_with(ends[0], HandshakeError, "rank 2 sent a wrapped secret")


# Fin


@pytest.mark.parametrize("at", range(4, 36))
def test_an_altered_confirmation_is_refused(at):
    ends = lock_step(members(3), to(0, FIN, put(2, flip(at, at % 8))))
    ends_with(ends[0], AuthenticationError, "confirmation from rank 2")
    assert isinstance(ends[1], Session)


# Every round


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("round", [HELLO, AUTH, WRAP, FIN])
def test_no_flipped_byte_of_any_message_goes_unnoticed(round, size):
    speaker, receiver = (0, 1) if round == WRAP else (1, 0)
    length = len(recorded(size)[round][speaker])
    for at in range(length):
        ends = lock_step(members(size), to(receiver, round, put(speaker, flip(at, at % 8))))
        if round == WRAP and at >= 48:
            assert isinstance(ends[1], Session)  # rank 2's part: only rank 2 can tell, and gets it unchanged here
        else:
            assert isinstance(ends[receiver], (AuthenticationError, HandshakeError)), (at, ends[receiver])


SPEAKS = [(HELLO, 1, 0), (AUTH, 1, 0), (WRAP, 0, 1), (FIN, 1, 0)]


@pytest.mark.parametrize(("round", "speaker", "receiver"), SPEAKS)
def test_a_truncated_message_is_malformed(round, speaker, receiver):
    length = len(recorded(3)[round][speaker])
    for size in {1, 3, 4, 5, length // 2, length - 1}:
        end = lock_step(members(3), to(receiver, round, put(speaker, lambda b, n=size: b[:n])))[receiver]
        ends_with(end, HandshakeError, f"rank {speaker}", "malformed")


@pytest.mark.parametrize(("round", "speaker", "receiver"), SPEAKS)
@pytest.mark.parametrize("extra", [1, 48, 100_000])
def test_a_padded_message_is_refused(round, speaker, receiver, extra):
    end = lock_step(members(3), to(receiver, round, put(speaker, lambda b: b + bytes(extra))))[receiver]
    words = "trailing" if round == AUTH and extra < 4096 else "more than"
    ends_with(end, HandshakeError, f"rank {speaker}", words)


@pytest.mark.parametrize("length", [0, 4097, 2**31, 2**32 - 1])
@pytest.mark.parametrize("part", range(5))
def test_a_hostile_length_inside_a_proof_is_refused(part, length):
    def lie(blob):
        at = 4
        for _ in range(part):
            at += 4 + int.from_bytes(blob[at : at + 4], "big")
        return blob[:at] + length.to_bytes(4, "big") + blob[at + 4 :]

    end = lock_step(members(2), to(0, AUTH, put(1, lie)))[0]
    if length == 0 and part in (0, 1, 3):
        assert isinstance(end, Session)  # these are empty as it is
    else:
        ends_with(end, HandshakeError, "rank 1", "malformed")


@pytest.mark.parametrize("round", [HELLO, AUTH, WRAP, FIN])
def test_a_member_whose_own_message_comes_back_altered_stops(round):
    other = recorded(2)[round][0]
    ends_with(lock_step(members(2), to(0, round, put(0, other)))[0], HandshakeError, "another", "this rank (0)")


@pytest.mark.parametrize(("round", "speaker", "receiver"), SPEAKS)
def test_an_empty_message_means_that_its_rank_gave_up(round, speaker, receiver):
    end = lock_step(members(3), to(receiver, round, put(speaker, b"")))[receiver]
    ends_with(end, HandshakeError, f"rank {speaker} gave up")


@pytest.mark.parametrize("round", [HELLO, AUTH, WRAP, FIN])
@pytest.mark.parametrize("change", [lambda b: b[:-1], lambda b: [*b, b[-1]], lambda b: []])
def test_too_few_or_too_many_messages_are_refused(round, change):
    ends_with(lock_step(members(3), to(1, round, change))[1], HandshakeError, "for 3 ranks")


def test_the_same_attacks_end_everywhere_before_the_deadline_over_an_exchange():
    ends = join(3, Hub(3, to(1, HELLO, put(2, members(3)[2].hello()))), seconds=60)
    nobody_joined(ends)
    assert {type(end) for end in ends} == {AuthenticationError}
