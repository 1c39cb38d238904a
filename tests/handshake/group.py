"""A whole group in one process: in lock step, with an attacker between the rounds, or in threads over an exchange."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from securecoll._engine import Secret, hmac_sha256
from securecoll.handshake import Params, Session, establish, group_params
from securecoll.handshake.member import Member
from securecoll.identity import Policy
from tests.memory_exchange import Attack, Hub

POLICY = Policy()
KEY = hashlib.sha256(b"a key for tests").digest()
PAIRWISE = ("link", "p2p", "control", "conn")


def secret(data: bytes) -> Secret:
    """A handle to a copy of ``data``."""
    return Secret.absorb(bytearray(data))


def params(size: int, **changes: object) -> Params:
    made = group_params(
        policy_hash=POLICY.hash,
        ranks=range(size),
        channels=2,
        max_chunk=65536,
        plan_table_hash=hashlib.sha256(b"plans").digest(),
        job_id=b"tests",
    )
    return replace(made, **changes)


class FixedDraw:
    """What a vector prescribes, each once."""

    def __init__(self, e: bytes, nonce: bytes, z: bytes) -> None:
        self._e, self._nonce, self._z = [e], [nonce], [z]

    def nonce(self) -> bytes:
        return self._nonce.pop()

    def share(self) -> X25519PrivateKey:
        return X25519PrivateKey.from_private_bytes(self._e.pop())

    def group_secret(self) -> Secret:
        return secret(self._z.pop())


def members(size: int, keys: Sequence[bytes] | None = None, **changes: object) -> list[Member]:
    keys = keys if keys is not None else [KEY] * size
    return [
        Member(params(size, **changes), POLICY, secret(keys[rank]), rank, b"endpoint %d" % rank)
        for rank in range(size)
    ]


def lock_step(group: Sequence[Member], attack: Attack | None = None) -> list[Session | Exception]:
    """Runs all members round by round. What each ends with: a session, or its error. A failed one falls silent."""
    ends: list[Session | Exception | None] = [None] * len(group)

    def step(calls: Sequence[Callable[[], bytes | Session]]) -> list[bytes]:
        blobs = [b""] * len(group)
        for rank, call in enumerate(calls):
            if ends[rank] is None:
                try:
                    result = call()
                except Exception as e:
                    ends[rank] = e
                else:
                    if isinstance(result, Session):
                        ends[rank] = result
                    else:
                        blobs[rank] = result
        return blobs

    blobs = step([member.hello for member in group])
    for number, name in enumerate(("auth", "wrap", "fin", "finish"), 1):
        deliveries = [
            attack(number, rank, list(blobs)) if attack is not None else list(blobs) for rank in range(len(group))
        ]
        blobs = step(
            [lambda m=member, d=deliveries[rank]: getattr(m, name)(d) for rank, member in enumerate(group)]  # noqa: B023
        )
    assert all(end is not None for end in ends)
    return ends  # type: ignore[return-value]


def in_threads(run: Callable[[int], object], size: int) -> list[object]:
    """``run(rank)`` for all ranks at once; what each returned or raised."""
    ends: list[object] = [None] * size

    def one(rank: int) -> None:
        try:
            ends[rank] = run(rank)
        except Exception as e:
            ends[rank] = e

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ends


def join(
    size: int,
    hub: Hub,
    *,
    keys: Sequence[bytes] | None = None,
    connect: Callable[[int, list[bytes]], None] = lambda rank, endpoints: None,
    seconds: float = 20.0,
) -> list[object]:
    """``establish`` on all ranks, in threads."""
    keys = keys if keys is not None else [KEY] * size
    deadline = time.monotonic() + seconds
    return in_threads(
        lambda rank: establish(
            params(size),
            POLICY,
            secret(keys[rank]),
            hub.exchange(rank),
            b"endpoint %d" % rank,
            lambda endpoints: connect(rank, endpoints),
            deadline,
        ),
        size,
    )


def fingerprints(session: Session) -> dict[str, bytes]:
    """HMAC(root, "fingerprint") of each root, named as in vectors.json: by its direction, not by who holds it."""
    me = session.rank
    out = {f"sender {s}": root for s, root in enumerate(session.sender)}
    if session.child is not None:
        out["child"] = session.child
    for name in PAIRWISE:
        for peer in range(session.size):
            if peer != me:
                out[f"{name} {me} {peer}"] = getattr(session, f"{name}_tx")[peer]
                out[f"{name} {peer} {me}"] = getattr(session, f"{name}_rx")[peer]
    return {name: hmac_sha256(root, b"fingerprint") for name, root in out.items()}


def agree(sessions: Sequence[object]) -> bool:
    """Whether all are sessions with one id, and any two have the same bytes for every root that both hold."""
    seen: dict[str, bytes] = {}
    for session in sessions:
        if not isinstance(session, Session) or session.id != sessions[0].id:  # type: ignore[attr-defined]
            return False
        if any(seen.setdefault(name, value) != value for name, value in fingerprints(session).items()):
            return False
    return len(set(seen.values())) == len(seen)
