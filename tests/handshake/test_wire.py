"""Decoders: one encoding for each value, and one kind of error for all other bytes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from securecoll.errors import AuthenticationError, ConfigError, HandshakeError
from securecoll.handshake import Params, group_params
from securecoll.handshake.wire import Auth, AuthSizes, Fin, Hello, WireError, check_wraps, wrap_for
from securecoll.suites import Suite
from tests.handshake.group import KEY, POLICY, lock_step, members, params

SIZES = AuthSizes(credential=3, evidence_limit=40, endpoints_limit=20, signature=64, mac=32)
HASH = st.binary(min_size=32, max_size=32)
U32 = st.integers(0, 2**32 - 1)

VALID = {
    Params: st.builds(
        Params,
        suite=st.sampled_from(Suite),
        policy_hash=HASH,
        manifest_hash=HASH,
        parent=HASH,
        comm_id=HASH,
        epoch=U32,
        ranks=st.lists(U32, min_size=1, max_size=9, unique=True).map(tuple),
        channels=st.integers(0, 2**16 - 1),
        max_chunk=U32,
        plan_table_hash=HASH,
        job_id=st.binary(max_size=256),
    ),
    Hello: st.builds(Hello, HASH, U32, HASH, HASH, HASH, HASH),
    Auth: st.builds(
        Auth,
        U32,
        st.binary(min_size=3, max_size=3),
        st.binary(max_size=40),
        st.binary(max_size=20),
        st.binary(min_size=64, max_size=64),
        HASH,
    ),
    Fin: st.builds(Fin, U32, HASH),
}
DECODE = {
    Params: Params.decode,
    Hello: Hello.decode,
    Auth: lambda blob: Auth.decode(blob, SIZES),
    Fin: Fin.decode,
}
KINDS = pytest.mark.parametrize("kind", VALID)


@KINDS
@given(data=st.data())
def test_what_is_encoded_decodes_to_itself(kind, data):
    value = data.draw(VALID[kind])
    assert DECODE[kind](value.encode()) == value


def mutated(blob, data):
    """A valid encoding, hurt: cut, padded, spliced, or with other bytes."""
    at = data.draw(st.integers(0, len(blob)))
    length = data.draw(st.integers(0, len(blob) - at))
    return blob[:at] + data.draw(st.binary(max_size=12)) + blob[at + length :]


@KINDS
@settings(max_examples=300)
@given(data=st.data())
def test_any_bytes_are_refused_or_are_the_encoding_of_what_they_decode_to(kind, data):
    blob = data.draw(st.one_of(st.binary(max_size=300), VALID[kind].map(lambda v: mutated(v.encode(), data))))
    try:
        value = DECODE[kind](blob)
    except WireError:
        return
    assert value.encode() == blob


@KINDS
@given(data=st.data())
def test_every_cut_and_every_pad_is_refused(kind, data):
    blob = data.draw(VALID[kind]).encode()
    for size in range(len(blob)):
        with pytest.raises(WireError):
            DECODE[kind](blob[:size])
    with pytest.raises(WireError):
        DECODE[kind](blob + data.draw(st.binary(min_size=1, max_size=40)))


@given(st.binary(max_size=300), st.integers(1, 7))
def test_wraps_split_only_at_their_exact_size(blob, size):
    if len(blob) == 48 * (size - 1):
        check_wraps(blob, size)
        wraps = [wrap_for(blob, rank) for rank in range(1, size)]
        assert b"".join(wraps) == blob and {*map(len, wraps)} <= {48}
    else:
        with pytest.raises(WireError):
            check_wraps(blob, size)


@settings(max_examples=150, deadline=None)
@given(data=st.data(), round=st.integers(1, 4), receiver=st.integers(0, 2))
def test_a_member_answers_garbage_with_an_error_of_the_tree_and_nothing_else(data, round, receiver):
    changed = False

    def attack(r, who, blobs):
        nonlocal changed
        if (r, who) != (round, receiver):
            return blobs
        given = list(blobs)
        rank = data.draw(st.integers(0, 2))
        given[rank] = data.draw(st.one_of(st.binary(max_size=200), st.just(mutated(blobs[rank], data))))
        # Rank 2's wrapped secret is not rank 1's business, and rank 0 opens none.
        changed = given != blobs and not (r == 3 and rank == 0 and len(given[0]) == 96 and who == 1)
        return given

    end = lock_step(members(3), attack)[receiver]
    if changed:
        assert isinstance(end, (HandshakeError, AuthenticationError)), end
        assert KEY.hex() not in str(end)


@pytest.mark.parametrize(
    "change",
    [
        {"ranks": ()},
        {"ranks": (1, 1)},
        {"ranks": (2**32,)},
        {"ranks": (-1,)},
        {"channels": 2**16},
        {"max_chunk": 2**32},
        {"epoch": -1},
        {"job_id": bytes(257)},
        {"plan_table_hash": b""},
        {"parent": bytes(31)},
    ],
)
def test_params_that_do_not_fit_their_fields_cannot_be_made(change):
    with pytest.raises(WireError):
        params(2, **change)


@pytest.mark.parametrize(
    "change", [{"ranks": (0, 0)}, {"ranks": ()}, {"ranks": (-1, 0)}, {"channels": -1}, {"job_id": bytes(300)}]
)
def test_a_group_that_cannot_be_described_is_a_config_error(change):
    given = {
        "policy_hash": POLICY.hash,
        "ranks": (0, 1),
        "channels": 1,
        "max_chunk": 64,
        "plan_table_hash": bytes(32),
        "job_id": b"",
    }
    group_params(**given)
    with pytest.raises(ConfigError, match="cannot be described"):
        group_params(**{**given, **change})


FITS = {"credential": 3, "evidence": 40, "endpoints": 20, "signature": 64, "mac": 32}


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("credential", 2),
        ("credential", 4),
        ("evidence", 41),
        ("endpoints", 21),
        ("signature", 0),
        ("signature", 65),
        ("mac", 0),
        ("mac", 31),
        ("mac", 33),
    ],
)
def test_a_proof_with_a_part_of_another_size_than_the_policy_says_is_refused(name, size):
    parts = {part: bytes(length) for part, length in FITS.items()}
    assert Auth.decode(Auth(0, **parts).encode(), SIZES).mac == bytes(32)
    with pytest.raises(WireError, match=f"a part of {size} bytes"):
        Auth.decode(Auth(0, **parts | {name: bytes(size)}).encode(), SIZES)


@pytest.mark.parametrize(
    ("at", "value", "what"),
    [(0, 0, "version"), (0, 2, "version"), *((1, suite, "suite") for suite in (0, 2, 3, 5, 255))],
)
def test_params_of_another_version_or_an_unknown_suite_are_refused(at, value, what):
    blob = bytearray(params(2).encode())
    assert Params.decode(bytes(blob)) == params(2)
    blob[at] = value
    with pytest.raises(WireError, match=what):
        Params.decode(bytes(blob))


def test_params_of_every_suite_decode_to_themselves():
    for suite in Suite:
        made = params(2, suite=suite)
        assert made.encode()[1] == suite
        assert Params.decode(made.encode()) == made
