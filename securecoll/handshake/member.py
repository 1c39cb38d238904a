"""One member's state machine. It does no I/O: each method takes all members' blobs of a round and returns the next.

Whatever fails, the member wipes its secrets and refuses every further call: the next attempt is a new member with a
new nonce and a new share. Nothing is drawn, wrapped or signed twice.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from enum import Enum
from typing import Protocol, TypeVar

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from securecoll._engine import Secret, hmac_sha256, hmac_verify, unwrap, wrap
from securecoll.errors import AuthenticationError, HandshakeError
from securecoll.handshake import schedule
from securecoll.handshake.session import PAIR_ROOTS, Session, empty_roots
from securecoll.handshake.wire import (
    FIN,
    HELLO,
    WRAP,
    Auth,
    AuthSizes,
    Fin,
    Hello,
    Params,
    WireError,
    check_wraps,
    wrap_for,
)
from securecoll.identity import Policy
from securecoll.suites import Suite

MAX_ENDPOINTS = 4096
"""The most bytes that a member may announce about where it can be reached."""

_NO_IDKEY = bytes(32)
_P = 2**255 - 19
# The points of order 1, 2, 4 and 8 on the curve and its twist, as canonical u-coordinates (RFC 7748 section 6.1; the
# two large ones are the points of order 8). X25519 with any of them gives zero whatever the key.
_SMALL_ORDER = frozenset(
    {
        0,
        1,
        _P - 1,
        325606250916557431795983626356110631294008115727848805560023387167927233504,
        39382357235489614581723060781553021112529911719440698176882885853963445705823,
    }
)

_Message = TypeVar("_Message", Hello, Auth, Fin)


class Round(Enum):
    """The four rounds, by the number that the carrier sees."""

    HELLO = 1
    AUTH = 2
    WRAP = 3
    FIN = 4


class Draw(Protocol):
    """Where a member's fresh values come from."""

    def nonce(self) -> bytes:
        """32 bytes."""
        ...

    def share(self) -> X25519PrivateKey:
        """e."""
        ...

    def group_secret(self) -> Secret:
        """Z: 32 bytes, asked of rank 0 only."""
        ...


class SystemDraw:
    """The kernel's generator, and libcrypto's, which is seeded from it."""

    def nonce(self) -> bytes:
        """32 bytes."""
        return os.urandom(32)

    def share(self) -> X25519PrivateKey:
        """e. It lives in libcrypto's memory, which clears it when the object goes."""
        return X25519PrivateKey.generate()

    def group_secret(self) -> Secret:
        """Z."""
        return Secret.random(32)


class _Stage(Enum):
    NEW = "new"
    HELLO = "has sent its hello"
    AUTH = "has sent its proof"
    WRAP = "waits for the group's secret"
    FIN = "has confirmed"
    DONE = "is done"
    FAILED = "has failed"


class Member:
    """Rank ``rank`` of the group that ``params`` describes.

    ``psk`` stays its owner's and is not erased. Call :meth:`hello`, :meth:`auth`, :meth:`wrap`, :meth:`fin` and
    :meth:`finish` in this order, each with what all members published in the round before, in rank order.
    """

    def __init__(
        self, params: Params, policy: Policy, psk: Secret | None, rank: int, endpoints: bytes, draw: Draw | None = None
    ) -> None:
        self._params = params
        self._policy = policy
        self._rank = rank
        self._size = params.size
        self._endpoints = endpoints
        self._draw = draw if draw is not None else SystemDraw()
        self._ph = schedule.params_hash(params)
        self._t1 = b""
        self._t2 = b""
        self._sent = b""
        self._all_endpoints: list[bytes] = []
        self._shares: list[bytes] = []
        self._credential_hashes: list[bytes] = []
        self._e: X25519PrivateKey | None = None
        # Every secret made on the way, so that a failure wipes those too that an error's traceback would keep alive.
        self._live: list[Secret] = []
        self._es: Secret | None = self._keep(schedule.early_secret(psk))
        self._ms: Secret | None = None
        self._shared: dict[int, Secret] = {}
        self._stage = _Stage.NEW
        self._everyone_knows = False

    def __repr__(self) -> str:
        return f"<Member {self._rank} of {self._size}: {self._stage.value}>"

    @property
    def endpoints(self) -> list[bytes]:
        """What each rank announced; only after :meth:`auth`'s answers were verified."""
        return list(self._all_endpoints)

    @property
    def everyone_knows(self) -> bool:
        """Whether this member failed because a peer gave up, which all others saw as well."""
        return self._everyone_knows

    def limit(self, round_: Round) -> int:
        """The most bytes of a blob in ``round_``."""
        return {
            Round.HELLO: HELLO,
            Round.AUTH: self._auth_sizes().limit,
            Round.WRAP: WRAP * (self._size - 1),
            Round.FIN: FIN,
        }[round_]

    def hello(self) -> bytes:
        """Round 1: draws a nonce and a share."""
        with self._step(_Stage.NEW, _Stage.HELLO):
            self._e = self._draw.share()
            hello = Hello(
                params_hash=self._ph,
                rank=self._rank,
                nonce=self._draw.nonce(),
                share=self._e.public_key().public_bytes_raw(),
                idkey=_NO_IDKEY,
                credential_hash=schedule.sha256(b""),
            )
            self._sent = hello.encode()
            return self._sent

    def auth(self, hellos: Sequence[bytes]) -> bytes:
        """Verifies round 1 and returns this member's proof."""
        with self._step(_Stage.HELLO, _Stage.AUTH):
            self._receive(Round.HELLO, hellos)
            self._check_hellos(self._decode(Round.HELLO, hellos, Hello.decode))
            self._t1 = schedule.hello_transcript(self._ph, hellos)
            credential = evidence = signature = b""
            mac = b""
            if self._policy.psk:
                core = schedule.auth_core(self._rank, self._t1, credential, evidence, self._endpoints)
                mac = hmac_sha256(self._auth_key(), schedule.auth_mac_message(core, signature))
            auth = Auth(self._rank, credential, evidence, self._endpoints, signature, mac)
            self._sent = auth.encode()
            return self._sent

    def wrap(self, auths: Sequence[bytes]) -> bytes:
        """Verifies everyone's proof. Rank 0 draws the group's secret and returns it wrapped for each; others
        nothing."""
        with self._step(_Stage.AUTH, _Stage.WRAP):
            self._receive(Round.AUTH, auths)
            sizes = self._auth_sizes()
            decoded = self._decode(Round.AUTH, auths, lambda blob: Auth.decode(blob, sizes))
            self._check_auths(decoded)
            self._all_endpoints = [auth.endpoints for auth in decoded]
            self._t2 = schedule.auth_transcript(self._t1, auths)
            self._sent = b""
            if self._rank == 0:
                z = self._keep(self._draw.group_secret())
                self._sent = b"".join(
                    wrap(self._wrap_key(peer, peer), schedule.wrap_aad(self._t2, peer), z, self._params.suite)
                    for peer in range(1, self._size)
                )
                self._set_master(z)
            return self._sent

    def fin(self, wraps: Sequence[bytes]) -> bytes:
        """Takes the group's secret from rank 0's blob and returns the confirmation."""
        with self._step(_Stage.WRAP, _Stage.FIN):
            self._receive(Round.WRAP, wraps)
            extra = [rank for rank in range(1, self._size) if wraps[rank]]
            if extra:
                raise HandshakeError(f"{_name(extra)} sent a wrapped secret; only rank 0 does. {_ALTERED}")
            try:
                check_wraps(wraps[0], self._size)
            except WireError as e:
                raise HandshakeError(
                    f"rank 0 sent a malformed {Round.WRAP.name.lower()} message ({e}). {_ALTERED}"
                ) from None
            if self._rank != 0:
                key = self._wrap_key(0, self._rank)
                blob = wrap_for(wraps[0], self._rank)
                z = unwrap(key, schedule.wrap_aad(self._t2, self._rank), blob, self._params.suite)
                if z is None:
                    raise AuthenticationError(
                        "authentication of the group secret from rank 0 failed: it was altered, or rank 0 saw other "
                        "messages than this rank. Someone between the ranks changes messages; join again elsewhere"
                    )
                self._set_master(self._keep(z))
            self._sent = Fin(
                self._rank, hmac_sha256(self._confirm_key(), schedule.fin_message(self._rank, self._t2))
            ).encode()
            return self._sent

    def finish(self, fins: Sequence[bytes]) -> Session:
        """Verifies everyone's confirmation, derives all roots and erases everything else."""
        with self._step(_Stage.FIN, _Stage.DONE):
            self._receive(Round.FIN, fins)
            decoded = self._decode(Round.FIN, fins, Fin.decode)
            self._check_ranks(Round.FIN, [fin.rank for fin in decoded])
            key = self._confirm_key()
            wrong = [
                r for r, fin in enumerate(decoded) if not hmac_verify(key, schedule.fin_message(r, self._t2), fin.mac)
            ]
            if wrong:
                raise AuthenticationError(
                    f"authentication of the confirmation from {_name(wrong)} failed: it was altered, or these ranks "
                    "saw other messages than this rank. Someone between the ranks changes messages; join again "
                    "elsewhere"
                )
            session = self._derive()
            self.erase()
            return session

    def erase(self) -> None:
        """Wipes every secret of this handshake. Idempotent. The pre-shared key and a finished session are not its
        own."""
        for secret in self._live:
            secret.erase()
        self._live.clear()
        self._es = self._ms = self._e = None
        self._shared.clear()
        if self._stage is not _Stage.DONE:
            self._stage = _Stage.FAILED

    @contextmanager
    def _step(self, expected: _Stage, following: _Stage) -> Iterator[None]:
        if self._stage is not expected:
            raise HandshakeError(f"this member {self._stage.value}: start a new handshake")
        try:
            yield
            self._stage = following
        except BaseException:
            self.erase()
            raise

    def _receive(self, round_: Round, blobs: Sequence[bytes]) -> None:
        """What is checked in every round before a byte is looked at."""
        name = round_.name.lower()
        if len(blobs) != self._size:
            raise HandshakeError(f"the exchange returned {len(blobs)} {name} messages for {self._size} ranks")
        # In the wrap round, nothing is all that ranks other than 0 have to say.
        speakers = (0,) if round_ is Round.WRAP else range(self._size)
        gone = [r for r in speakers if not blobs[r]]
        if gone:
            self._everyone_knows = True
            raise HandshakeError(
                f"{_name(gone)} gave up in the {name} round, or did not appear: see the error there, and join again"
            )
        limit = self.limit(round_)
        large = [r for r, blob in enumerate(blobs) if len(blob) > limit]
        if large:
            raise HandshakeError(f"{_name(large)} sent a {name} message of more than {limit} bytes. {_ALTERED}")
        if blobs[self._rank] != self._sent:
            raise HandshakeError(
                f"the exchange returned another {name} message for this rank ({self._rank}) than it sent. Someone "
                "changes messages, or two processes have this rank"
            )

    def _decode(self, round_: Round, blobs: Sequence[bytes], decode: Callable[[bytes], _Message]) -> list[_Message]:
        messages = []
        for rank, blob in enumerate(blobs):
            try:
                messages.append(decode(blob))
            except WireError as e:
                raise HandshakeError(
                    f"rank {rank} sent a malformed {round_.name.lower()} message ({e}). {_ALTERED}"
                ) from None
        return messages

    def _check_ranks(self, round_: Round, ranks: Sequence[int]) -> None:
        wrong = [r for r, claimed in enumerate(ranks) if claimed != r]
        if wrong:
            raise HandshakeError(
                f"the {round_.name.lower()} message of {_name(wrong)} names another rank. Messages were swapped on "
                "the way, or ranks are misnumbered"
            )

    def _check_hellos(self, hellos: Sequence[Hello]) -> None:
        self._check_ranks(Round.HELLO, [hello.rank for hello in hellos])
        other = [r for r, hello in enumerate(hellos) if hello.params_hash != self._ph]
        if other:
            p = self._params
            for suite in Suite:
                hash_with = schedule.params_hash(replace(p, suite=suite))
                theirs = [r for r in other if hellos[r].params_hash == hash_with]
                if theirs:
                    raise HandshakeError(
                        f"{_name(theirs)} joined with the suite {suite.title}, and this rank ({self._rank}) with "
                        f"{p.suite.title}. Give every rank the same suite: nothing is negotiated"
                    )
            raise HandshakeError(
                f"{_name(other)} joined with other parameters than this rank ({self._rank}). Compare here and there: "
                f"securecoll's version, suite {p.suite.title}, policy, job {p.job_id.decode(errors='replace')!r}, "
                f"ranks {_shown(p.ranks)}, epoch {p.epoch}, {p.channels} channels, chunks of {p.max_chunk} bytes, and "
                "the rates of SECURECOLL_NETWORK"
            )
        _check_distinct("the nonce", [hello.nonce for hello in hellos])
        _check_distinct("the identity key", [hello.idkey for hello in hellos], ignored=_NO_IDKEY)
        for rank, hello in enumerate(hellos):
            u = int.from_bytes(hello.share, "little")
            if u >= _P:
                raise HandshakeError(f"rank {rank} sent a key share that is not canonical. {_ALTERED}")
            if u in _SMALL_ORDER:
                raise HandshakeError(f"rank {rank} sent a key share of small order. {_ALTERED}")
        _check_distinct("the key share", [hello.share for hello in hellos])
        if not self._policy.signature_bytes:
            named = [r for r, hello in enumerate(hellos) if hello.idkey != _NO_IDKEY]
            if named:
                raise HandshakeError(f"{_name(named)} named an identity key; the policy has none. {_ALTERED}")
        self._shares = [hello.share for hello in hellos]
        self._credential_hashes = [hello.credential_hash for hello in hellos]

    def _check_auths(self, auths: Sequence[Auth]) -> None:
        """Everyone verifies everyone: the MAC, then (with a policy that has them) the signature, then the evidence."""
        self._check_ranks(Round.AUTH, [auth.rank for auth in auths])
        if self._policy.psk:
            key = self._auth_key()
            wrong = []
            for rank, auth in enumerate(auths):
                core = schedule.auth_core(rank, self._t1, auth.credential, auth.evidence, auth.endpoints)
                if not hmac_verify(key, schedule.auth_mac_message(core, auth.signature), auth.mac):
                    wrong.append(rank)
            if wrong:
                raise AuthenticationError(
                    f"authentication of {_name(wrong)} failed: their key is not that of this rank ({self._rank}), or "
                    "their messages were altered. Give every rank the same key"
                )
        other = [r for r, auth in enumerate(auths) if schedule.sha256(auth.credential) != self._credential_hashes[r]]
        if other:
            raise HandshakeError(f"{_name(other)} showed another credential than announced. {_ALTERED}")

    def _auth_sizes(self) -> AuthSizes:
        return AuthSizes(
            credential=self._policy.credential_bytes,
            evidence_limit=self._policy.evidence_limit,
            endpoints_limit=MAX_ENDPOINTS,
            signature=self._policy.signature_bytes,
            mac=self._policy.mac_bytes,
        )

    def _confirm_key(self) -> Secret:
        return self._keep(schedule.confirm_key(self._master(), self._t2))

    def _auth_key(self) -> Secret:
        return self._keep(schedule.auth_key(self._early(), self._t1))

    def _wrap_key(self, peer: int, rank: int) -> Secret:
        return self._keep(schedule.wrap_key(self._early(), self._t2, self._shared_with(peer), rank))

    def _keep(self, secret: Secret) -> Secret:
        self._live.append(secret)
        return secret

    def _set_master(self, z: Secret) -> None:
        self._ms = self._keep(schedule.master_secret(self._early(), self._t2, z))
        z.erase()

    def _early(self) -> Secret:
        if self._es is None:
            raise HandshakeError(f"this member {self._stage.value}: start a new handshake")
        return self._es

    def _master(self) -> Secret:
        if self._ms is None:
            raise HandshakeError(f"this member {self._stage.value}: start a new handshake")
        return self._ms

    def _shared_with(self, peer: int) -> Secret:
        """The X25519 output with ``peer``, computed once."""
        if peer not in self._shared:
            if self._e is None:
                raise HandshakeError(f"this member {self._stage.value}: start a new handshake")
            try:
                shared = self._e.exchange(X25519PublicKey.from_public_bytes(self._shares[peer]))
            except ValueError:  # libcrypto refuses an output of zeros
                shared = bytes(32)
            if not any(shared):
                raise HandshakeError(f"the key exchange with rank {peer} gave zeros. {_ALTERED}")
            self._shared[peer] = self._keep(Secret.absorb(shared))
        return self._shared[peer]

    def _derive(self) -> Session:
        """All roots of epoch 0."""
        me, ms = self._rank, self._master()
        session = Session(
            rank=me,
            size=self._size,
            id=schedule.session_id(self._t2),
            epoch=self._params.epoch,
            endpoints=self.endpoints,
            child=None,
            **empty_roots(self._size),
        )
        try:
            session.child = schedule.child_root(ms, self._t2)
            group = self._keep(schedule.group_secret(ms, self._t2))
            lists = [(label, getattr(session, tx), getattr(session, rx)) for label, tx, rx in PAIR_ROOTS]
            for rank in range(self._size):
                session.sender[rank] = schedule.sender_root(group, rank)
                if rank == me:
                    continue
                shared = self._shared_with(rank)
                pair = self._keep(schedule.pair_secret(ms, shared, me, rank))
                # Not held until the end: in a large group that would be as much again as is kept.
                shared.erase()
                outward, inward = schedule.direction(me, rank), schedule.direction(rank, me)
                for label, tx, rx in lists:
                    tx[rank] = schedule.pair_root(pair, label, outward)
                    rx[rank] = schedule.pair_root(pair, label, inward)
                pair.erase()
        except BaseException:
            session.erase()
            raise
        return session


_ALTERED = "Either its version of securecoll differs or someone changed it on the way"


def _check_distinct(what: str, values: Sequence[bytes], ignored: bytes | None = None) -> None:
    first: dict[bytes, int] = {}
    for rank, value in enumerate(values):
        if value != ignored and first.setdefault(value, rank) != rank:
            raise HandshakeError(
                f"ranks {first[value]} and {rank} sent the same value for {what}: a message was copied, or a machine "
                "was cloned"
            )


def _name(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {_shown(ranks)}"


def _shown(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8]))
    return f"[{shown}]" if len(ranks) <= 8 else f"[{shown}, ... {len(ranks)} in all]"
