"""Runs the handshake over an exchange."""

from __future__ import annotations

import time
from collections.abc import Callable

from securecoll._engine import Secret
from securecoll.errors import ConfigError, HandshakeError, SecureCollError
from securecoll.handshake import schedule
from securecoll.handshake.member import MAX_ENDPOINTS, Member, Round
from securecoll.handshake.session import Session, empty_roots
from securecoll.handshake.wire import WRAP, Params
from securecoll.identity import Policy
from securecoll.rendezvous import Exchange

GOODBYE_SECONDS = 2.0
"""How long a member that failed stays to tell the others."""

_GOODBYE_LIMIT = 1 << 20

Connect = Callable[[list[bytes]], None]


def establish(
    params: Params,
    policy: Policy,
    psk: Secret | None,
    exchange: Exchange,
    endpoints: bytes,
    connect: Connect,
    deadline: float,
) -> Session:
    """Joins the group as rank ``exchange.rank`` and returns its keys, once every member proved that it has them too.

    ``endpoints`` is announced to all; ``connect`` gets everyone's, in rank order, after every proof was verified and
    before this rank confirms; what it raises ends the handshake everywhere. ``deadline`` is on
    :func:`time.monotonic`'s clock. ``psk`` stays the caller's. Whatever fails, this rank's peers are told and its
    secrets wiped.

    In a group of one, the policy is validated and nothing else happens.

    Raises :class:`ConfigError` for bad arguments, :class:`AuthenticationError` where a proof is wrong,
    :class:`HandshakeError` for everything else.
    """
    member: Member | None = None
    try:
        _check(params, policy, psk, exchange, endpoints)
        if params.size == 1:
            return _alone(params, endpoints)
        member = Member(params, policy, psk, exchange.rank, endpoints)
    except BaseException:
        give_up(exchange, deadline)
        raise
    return run(member, exchange, connect, deadline)


def run(member: Member, exchange: Exchange, connect: Connect, deadline: float) -> Session:
    """Moves ``member`` through its four rounds. See :func:`establish`."""
    unpublished: Round | None = Round.HELLO

    def publish(round_: Round, blob: bytes) -> list[bytes]:
        nonlocal unpublished
        # Whatever happens in there, this round's blob may be out: it is not replaced, the next one says goodbye.
        unpublished = Round(round_.value + 1) if round_ is not Round.FIN else None
        return exchange.exchange(round_.value, blob, member.limit(round_), deadline)

    try:
        hellos = publish(Round.HELLO, member.hello())
        auths = publish(Round.AUTH, member.auth(hellos))
        wraps = publish(Round.WRAP, member.wrap(auths))
        fin = member.fin(wraps)
        connect(member.endpoints)
        fins = publish(Round.FIN, fin)
        return member.finish(fins)
    except BaseException as e:
        member.erase()
        if unpublished is not None and not member.everyone_knows:
            _give_up(exchange, unpublished, deadline)
        if isinstance(e, Exception) and not isinstance(e, SecureCollError):
            raise HandshakeError(f"joining as rank {exchange.rank} of {exchange.size} failed: {e}") from e
        raise


def _check(params: Params, policy: Policy, psk: Secret | None, exchange: Exchange, endpoints: bytes) -> None:
    policy.validate(psk)
    if params.policy_hash != policy.hash:
        raise ConfigError("the parameters name another policy than the one given")
    if params.size != exchange.size or not 0 <= exchange.rank < exchange.size:
        raise ConfigError(
            f"the exchange is rank {exchange.rank} of {exchange.size}; the group has {params.size} members, numbered "
            f"from 0 to {params.size - 1}"
        )
    if len(endpoints) > MAX_ENDPOINTS:
        raise ConfigError(f"endpoints of {len(endpoints)} bytes; at most {MAX_ENDPOINTS} can be announced")


def _alone(params: Params, endpoints: bytes) -> Session:
    """A group of one has no second transcript, so its id comes from the parameters."""
    return Session(
        rank=0,
        size=1,
        id=schedule.session_id(schedule.params_hash(params)),
        epoch=params.epoch,
        endpoints=[endpoints],
        child=Secret.random(32),
        **empty_roots(1),
    )


def give_up(exchange: Exchange, deadline: float) -> None:
    """For a rank that cannot even begin: tells the others, so that they end now and not at their deadline."""
    if exchange.size > 1:
        _give_up(exchange, Round.HELLO, deadline)


def _give_up(exchange: Exchange, first: Round, deadline: float) -> None:
    """Publishes empty blobs until the others must have seen one, so that they end now and not at their deadline."""
    deadline = min(deadline, time.monotonic() + GOODBYE_SECONDS)
    for number in range(first.value, Round.FIN.value + 1):
        try:
            blobs = exchange.exchange(number, b"", max(_GOODBYE_LIMIT, WRAP * exchange.size), deadline)
        except Exception:  # the error that made us give up is the one to report
            return
        # Of ranks other than 0 nothing is expected in the wrap round, so silence says nothing there.
        if number != Round.WRAP.value or exchange.rank == 0 or not blobs[0]:
            return
