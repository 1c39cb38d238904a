"""What the handshake derives: transcript hashes of public bytes, and keys as handles into the engine's memory."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from securecoll._engine import Secret, expand_label, hkdf_extract
from securecoll.errors import ConfigError
from securecoll.handshake.wire import Params, WireError, part, u32, u64
from securecoll.suites import Suite

_NOTHING = bytes(32)


def sha256(data: bytes) -> bytes:
    """H of the protocol."""
    return hashlib.sha256(data).digest()


def transcript_hash(label: str, *parts: bytes) -> bytes:
    """TH(label, x1..xn): no two lists of parts, and no two labels, hash the same bytes."""
    return sha256(b"SCOLL/1 " + label.encode() + b"\0" + b"".join(map(part, parts)))


def comm_id(job_id: bytes, parent: bytes, ranks: Sequence[int], use: int) -> bytes:
    """Names a communicator: the ``use``-th one of these members, in this order, under this parent in this job."""
    return transcript_hash("comm", job_id, parent, b"".join(map(u32, ranks)), u64(use))


def group_params(
    *,
    policy_hash: bytes,
    ranks: Sequence[int],
    channels: int,
    max_chunk: int,
    plan_table_hash: bytes,
    job_id: bytes,
    use: int = 0,
    parent: bytes = _NOTHING,
    epoch: int = 0,
    manifest: bytes = b"",
    suite: Suite = Suite.AES_256_GCM,
) -> Params:
    """The parameters of a group, with ``comm_id`` derived from the others. Raises :class:`ConfigError` where a value
    does not fit its field."""
    try:
        return Params(
            suite=suite,
            policy_hash=policy_hash,
            manifest_hash=sha256(manifest),
            parent=parent,
            comm_id=comm_id(job_id, parent, ranks, use),
            epoch=epoch,
            ranks=tuple(ranks),
            channels=channels,
            max_chunk=max_chunk,
            plan_table_hash=plan_table_hash,
            job_id=job_id,
        )
    except (WireError, OverflowError) as e:
        raise ConfigError(f"this group cannot be described: {e}") from None


def params_hash(params: Params) -> bytes:
    """PH."""
    return transcript_hash("params", params.encode())


def session_id(t2: bytes) -> bytes:
    """What a child's parameters call ``parent``."""
    return transcript_hash("session", t2)


def hello_transcript(ph: bytes, hellos: Sequence[bytes]) -> bytes:
    """T1, over all messages of round 1 in rank order."""
    return transcript_hash("hello", ph, *hellos)


def auth_transcript(t1: bytes, auths: Sequence[bytes]) -> bytes:
    """T2, over all messages of round 2 in rank order."""
    return transcript_hash("auth", t1, *map(sha256, auths))


def auth_core(rank: int, t1: bytes, credential: bytes, evidence: bytes, endpoints: bytes) -> bytes:
    """What a proof of round 2 proves."""
    return u32(rank) + t1 + b"".join(map(sha256, (evidence, credential, endpoints)))


def auth_mac_message(core: bytes, signature: bytes) -> bytes:
    """What the MAC of round 2 is over."""
    return b"mac" + core + sha256(signature)


def fin_message(rank: int, t2: bytes) -> bytes:
    """What the MAC of round 4 is over."""
    return b"fin" + u32(rank) + t2


def early_secret(psk: Secret | None) -> Secret:
    """ES, from the pre-shared key or, without one, 32 zero bytes."""
    return hkdf_extract(None, psk if psk is not None else Secret.absorb(bytearray(32)))


def auth_key(es: Secret, t1: bytes) -> Secret:
    """KA: MACs the proofs of round 2."""
    return expand_label(es, "auth", t1, 32)


def wrap_key(es: Secret, t2: bytes, shared: Secret, rank: int) -> Secret:
    """KW_r: wraps the group's secret for ``rank``, from its X25519 output with rank 0."""
    salt = expand_label(es, "derived", t2, 32)
    return expand_label(hkdf_extract(salt, shared), "wrap", u32(rank) + t2, 32)


def wrap_aad(t2: bytes, rank: int) -> bytes:
    """Associated data of Wrap_r."""
    return t2 + u32(rank)


def master_secret(es: Secret, t2: bytes, z: Secret) -> Secret:
    """MS, from the group's secret Z."""
    return hkdf_extract(expand_label(es, "derived2", t2, 32), z)


def confirm_key(ms: Secret, t2: bytes) -> Secret:
    """MACs round 4."""
    return expand_label(ms, "confirm", t2, 32)


def pair_secret(ms: Secret, shared: Secret, i: int, j: int) -> Secret:
    """P_ij: what two members share beyond the group, from their X25519 output."""
    return hkdf_extract(expand_label(ms, "pair", u32(min(i, j)) + u32(max(i, j)), 32), shared)


def direction(source: int, destination: int) -> bytes:
    """What tells the two directions between two members apart."""
    return u32(source) + u32(destination)


def pair_root(pair: Secret, label: str, towards: bytes) -> Secret:
    """The root of one :func:`direction` between two members. Labels: ``link``, ``p2p``, ``ctl``, ``conn``."""
    return expand_label(pair, label, towards, 32)


def child_root(ms: Secret, t2: bytes) -> Secret:
    """What members keep to prove themselves to each other in communicators made from this one."""
    return expand_label(ms, "child", t2, 32)


def child_key(root: Secret, comm_id: bytes) -> Secret:
    """The pre-shared key of one child: its ``comm_id`` names parent, members and use."""
    return expand_label(root, "member", comm_id, 32)


def group_secret(ms: Secret, t2: bytes) -> Secret:
    """The parent of all sender roots."""
    return expand_label(ms, "group", t2, 32)


def sender_root(group: Secret, source: int) -> Secret:
    """The root of ``source``'s ciphertext that every member may open."""
    return expand_label(group, "sender", u32(source), 32)
