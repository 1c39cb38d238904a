"""The messages of the handshake: big-endian structs of exact length.

Variable parts have a u32 length that is checked against a limit before it is used. There are no unknown fields and no
trailing bytes, so every value has one encoding, and every decoder refuses all others with :class:`WireError`.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct, pack

from securecoll.suites import Suite

HASH = 32
SHARE = 32
NONCE = 32
MAC = 32
WRAP = 48
"""A wrapped 32-byte secret: ciphertext and tag."""
HELLO = 164
FIN = 36
MAX_RANKS = 1 << 16
MAX_JOB_ID = 256
_VERSION = 1
_HELLO = Struct(f">{HASH}sI{NONCE}s{SHARE}s32s{HASH}s")


class WireError(ValueError):
    """Bytes that are not the one encoding of any value."""


def u8(value: int) -> bytes:
    """One byte."""
    return value.to_bytes(1, "big")


def u16(value: int) -> bytes:
    """Two bytes, big-endian."""
    return value.to_bytes(2, "big")


def u32(value: int) -> bytes:
    """Four bytes, big-endian."""
    return value.to_bytes(4, "big")


def u64(value: int) -> bytes:
    """Eight bytes, big-endian."""
    return value.to_bytes(8, "big")


def part(data: bytes) -> bytes:
    """A variable part: u32 length, then the bytes."""
    return u32(len(data)) + data


class Reader:
    """Takes a blob apart from front to back."""

    def __init__(self, blob: bytes) -> None:
        self._blob = blob
        self._at = 0

    def take(self, size: int) -> bytes:
        """The next ``size`` bytes."""
        if len(self._blob) - self._at < size:
            raise WireError(f"{len(self._blob)} bytes are too few")
        self._at += size
        return self._blob[self._at - size : self._at]

    def number(self, size: int) -> int:
        """A big-endian number of ``size`` bytes."""
        return int.from_bytes(self.take(size), "big")

    def part(self, least: int, most: int) -> bytes:
        """A variable part of ``least`` to ``most`` bytes."""
        begin = self._at + 4
        if begin > len(self._blob):
            raise WireError(f"{len(self._blob)} bytes are too few")
        size = int.from_bytes(self._blob[self._at : begin], "big")
        if not least <= size <= most:
            raise WireError(f"a part of {size} bytes where {least} to {most} are allowed")
        if size > len(self._blob) - begin:
            raise WireError(f"{len(self._blob)} bytes are too few")
        self._at = begin + size
        return self._blob[begin : self._at]

    def end(self) -> None:
        """Raises unless everything was taken."""
        if self._at != len(self._blob):
            raise WireError(f"{len(self._blob) - self._at} trailing bytes")


@dataclass(frozen=True, slots=True)
class Params:
    """What a group agrees on before it exchanges keys. Never sent: each member hashes its own."""

    suite: Suite
    policy_hash: bytes
    """32 bytes: SHA-256 of the policy's encoding."""
    manifest_hash: bytes
    """32 bytes: SHA-256 of the manifest, or of nothing."""
    parent: bytes
    """32 bytes: the session id of the communicator this one is made from, or zeros."""
    comm_id: bytes
    """32 bytes: :func:`securecoll.handshake.schedule.comm_id`."""
    epoch: int
    ranks: tuple[int, ...]
    """The members' ranks in the job; a member's index here is its rank in the group."""
    channels: int
    max_chunk: int
    """The most bytes of plaintext in one record."""
    plan_table_hash: bytes
    """32 bytes: of the plan generators and their versions."""
    job_id: bytes

    def __post_init__(self) -> None:
        for name in ("policy_hash", "manifest_hash", "parent", "comm_id", "plan_table_hash"):
            if len(getattr(self, name)) != HASH:
                raise WireError(f"{name} must have {HASH} bytes")
        for name, value, bits in (
            ("epoch", self.epoch, 32),
            ("channels", self.channels, 16),
            ("max_chunk", self.max_chunk, 32),
            *(("a rank", rank, 32) for rank in self.ranks),
        ):
            if not 0 <= value < 1 << bits:
                raise WireError(f"{name} = {value} does not fit {bits} bits")
        if not 1 <= len(self.ranks) <= MAX_RANKS:
            raise WireError(f"{len(self.ranks)} members where 1 to {MAX_RANKS} are allowed")
        if len(set(self.ranks)) != len(self.ranks):
            raise WireError("a rank is named twice")
        if len(self.job_id) > MAX_JOB_ID:
            raise WireError(f"the job id has {len(self.job_id)} bytes; at most {MAX_JOB_ID} are allowed")

    @property
    def size(self) -> int:
        """N, the number of members."""
        return len(self.ranks)

    def encode(self) -> bytes:
        """The bytes whose hash is PH."""
        return b"".join(
            (
                u8(_VERSION),
                u8(self.suite),
                self.policy_hash,
                self.manifest_hash,
                self.parent,
                self.comm_id,
                u32(self.epoch),
                u32(self.size),
                pack(f">{self.size}I", *self.ranks),
                u16(self.channels),
                u32(self.max_chunk),
                self.plan_table_hash,
                part(self.job_id),
            )
        )

    @classmethod
    def decode(cls, blob: bytes) -> Params:
        """The parameters that ``blob`` encodes. Raises :class:`WireError`."""
        reader = Reader(blob)
        if reader.number(1) != _VERSION:
            raise WireError("another version")
        try:
            suite = Suite(reader.number(1))
        except ValueError:
            raise WireError("an unknown suite") from None
        policy_hash, manifest_hash, parent, comm_id = (reader.take(HASH) for _ in range(4))
        epoch = reader.number(4)
        size = reader.number(4)
        if not 1 <= size <= MAX_RANKS:
            raise WireError(f"{size} members where 1 to {MAX_RANKS} are allowed")
        ranks = reader.take(4 * size)
        params = cls(
            suite=suite,
            policy_hash=policy_hash,
            manifest_hash=manifest_hash,
            parent=parent,
            comm_id=comm_id,
            epoch=epoch,
            ranks=tuple(int.from_bytes(ranks[i : i + 4], "big") for i in range(0, 4 * size, 4)),
            channels=reader.number(2),
            max_chunk=reader.number(4),
            plan_table_hash=reader.take(HASH),
            job_id=reader.part(0, MAX_JOB_ID),
        )
        reader.end()
        return params


@dataclass(frozen=True, slots=True)
class Hello:
    """Round 1: fresh values of a member."""

    params_hash: bytes
    rank: int
    nonce: bytes
    share: bytes
    """E, the public X25519 share."""
    idkey: bytes
    """The member's Ed25519 key; zeros where the policy has no signatures."""
    credential_hash: bytes

    def encode(self) -> bytes:
        """164 bytes."""
        return self.params_hash + u32(self.rank) + self.nonce + self.share + self.idkey + self.credential_hash

    @classmethod
    def decode(cls, blob: bytes) -> Hello:
        """Raises :class:`WireError`."""
        if len(blob) != HELLO:
            raise WireError(f"{len(blob)} bytes, not {HELLO}")
        return cls(*_HELLO.unpack(blob))


@dataclass(frozen=True, slots=True)
class AuthSizes:
    """What the policy says about the parts of round 2. In bytes; all but endpoints and evidence are exact."""

    credential: int
    evidence_limit: int
    endpoints_limit: int
    signature: int
    mac: int

    @property
    def limit(self) -> int:
        """The most bytes of a whole message."""
        return 24 + self.credential + self.evidence_limit + self.endpoints_limit + self.signature + self.mac


@dataclass(frozen=True, slots=True)
class Auth:
    """Round 2: a member's proof, over everyone's round 1, and where it can be reached."""

    rank: int
    credential: bytes
    evidence: bytes
    endpoints: bytes
    signature: bytes
    mac: bytes

    def encode(self) -> bytes:
        """u32 rank, then five parts."""
        parts = (self.credential, self.evidence, self.endpoints, self.signature, self.mac)
        return u32(self.rank) + b"".join(map(part, parts))

    @classmethod
    def decode(cls, blob: bytes, sizes: AuthSizes) -> Auth:
        """Raises :class:`WireError` where a part does not have the size that the policy asks for."""
        reader = Reader(blob)
        auth = cls(
            rank=reader.number(4),
            credential=reader.part(sizes.credential, sizes.credential),
            evidence=reader.part(0, sizes.evidence_limit),
            endpoints=reader.part(0, sizes.endpoints_limit),
            signature=reader.part(sizes.signature, sizes.signature),
            mac=reader.part(sizes.mac, sizes.mac),
        )
        reader.end()
        return auth


def check_wraps(blob: bytes, size: int) -> None:
    """Round 3: wraps for ranks 1 to ``size - 1``, 48 bytes each. Raises :class:`WireError` where it is not as long."""
    if len(blob) != WRAP * (size - 1):
        raise WireError(f"{len(blob)} bytes, not {WRAP * (size - 1)}")


def wrap_for(blob: bytes, rank: int) -> bytes:
    """The wrap for ``rank``, from 1, of a blob that :func:`check_wraps` let pass."""
    return blob[WRAP * (rank - 1) : WRAP * rank]


@dataclass(frozen=True, slots=True)
class Fin:
    """Round 4: a member has verified everyone and holds the group's secret."""

    rank: int
    mac: bytes

    def encode(self) -> bytes:
        """36 bytes."""
        return u32(self.rank) + self.mac

    @classmethod
    def decode(cls, blob: bytes) -> Fin:
        """Raises :class:`WireError`."""
        if len(blob) != FIN:
            raise WireError(f"{len(blob)} bytes, not {FIN}")
        return cls(rank=int.from_bytes(blob[:4], "big"), mac=blob[4:])
