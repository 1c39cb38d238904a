"""The handshake, byte for byte, against a second implementation and against what was frozen."""

from __future__ import annotations

import dataclasses
import json

import pytest

from securecoll import _engine
from securecoll.handshake import Params, group_params, schedule
from securecoll.handshake.member import Member
from securecoll.identity import Policy
from securecoll.suites import Suite
from tests.handshake import reference
from tests.handshake.group import FixedDraw, fingerprints, secret

FROZEN = json.loads(reference.VECTORS.read_text())


of_each = pytest.mark.parametrize(
    ("name", "size", "suite"), [(name, *of) for name, of in reference.NAMES.items()], ids=reference.NAMES
)


def test_the_vectors_are_those_named():
    assert FROZEN.keys() == reference.NAMES.keys()


@of_each
def test_the_second_implementation_computes_what_was_frozen(name, size, suite):
    assert reference.to_json(reference.vector(size, suite)) == FROZEN[name]


@of_each
def test_every_message_and_every_root_is_as_frozen(name, size, suite):
    if not _engine.aead_names(suite):
        pytest.skip("this CPU has no kernels of that suite")
    given = reference.inputs(size, suite)
    expected = FROZEN[name]["outputs"]
    p = given["p"]
    assert p["policy"] == Policy().encode()
    params = group_params(
        policy_hash=Policy().hash,
        ranks=p["ranks"],
        channels=p["channels"],
        max_chunk=p["max_chunk"],
        plan_table_hash=p["plan_table_hash"],
        job_id=p["job_id"],
        use=p["use"],
        suite=Suite(suite),
    )
    assert params.encode().hex() == expected["params"]
    assert schedule.params_hash(params).hex() == expected["PH"]
    group = [
        Member(
            params,
            Policy(),
            secret(given["psk"]),
            rank,
            given["endpoints"][rank],
            FixedDraw(given["e"][rank], given["nonces"][rank], given["z"]),
        )
        for rank in range(size)
    ]
    hellos = [member.hello() for member in group]
    assert [blob.hex() for blob in hellos] == expected["hello"]
    assert schedule.transcript_hash("hello", schedule.params_hash(params), *hellos).hex() == expected["T1"]
    auths = [member.auth(hellos) for member in group]
    assert [blob.hex() for blob in auths] == expected["auth"]
    wraps = [member.wrap(auths) for member in group]
    assert [blob.hex() for blob in wraps] == [expected["wrap"]] + [""] * (size - 1)
    fins = [member.fin(wraps) for member in group]
    assert [blob.hex() for blob in fins] == expected["fin"]
    sessions = [member.finish(fins) for member in group]
    found = {}
    for session in sessions:
        assert session.id.hex() == expected["session"]
        assert session.id == schedule.session_id(bytes.fromhex(expected["T2"]))
        assert session.endpoints == given["endpoints"]
        for name, value in fingerprints(session).items():
            assert found.setdefault(name, value.hex()) == value.hex()
    assert found == expected["roots"]


@pytest.mark.parametrize("name", reference.NAMES)
def test_the_params_of_a_vector_decode_to_themselves(name):
    blob = bytes.fromhex(FROZEN[name]["outputs"]["params"])
    assert Params.decode(blob).encode() == blob


def test_each_field_of_the_params_changes_their_hash():
    base = Params.decode(bytes.fromhex(FROZEN["3"]["outputs"]["params"]))
    changed = {
        "suite": Suite.AEGIS_256X4,
        "policy_hash": bytes(32),
        "manifest_hash": bytes(32),
        "parent": b"\1" * 32,
        "comm_id": bytes(32),
        "epoch": 1,
        "ranks": (3, 10),
        "channels": 3,
        "max_chunk": 65537,
        "plan_table_hash": bytes(32),
        "job_id": b"vectorz",
    }
    assert changed.keys() == {f.name for f in dataclasses.fields(Params)}
    hashes = {schedule.params_hash(dataclasses.replace(base, **{name: value})) for name, value in changed.items()}
    assert len(hashes | {schedule.params_hash(base)}) == len(changed) + 1


def test_a_communicator_id_depends_on_job_parent_members_their_order_and_use():
    ids = {
        schedule.comm_id(b"job", bytes(32), (0, 1), 0),
        schedule.comm_id(b"job2", bytes(32), (0, 1), 0),
        schedule.comm_id(b"job", b"\1" * 32, (0, 1), 0),
        schedule.comm_id(b"job", bytes(32), (1, 0), 0),
        schedule.comm_id(b"job", bytes(32), (0, 1, 2), 0),
        schedule.comm_id(b"job", bytes(32), (0, 1), 1),
    }
    assert len(ids) == 6
