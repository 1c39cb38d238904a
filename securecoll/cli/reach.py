"""``securecoll doctor --listen`` and ``--peer``: whether two machines reach each other over TCP, and how fast.

No key is needed, and nothing is proven: whoever listens sends back what it gets, if that is a probe, and what a probe
says is random. So either end learns what anyone could.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import time
from collections.abc import Callable
from statistics import median

from securecoll import _engine, network
from securecoll.cli import networks
from securecoll.cli.findings import Finding, State

PORT = 29417
"""Where a doctor listens unless told otherwise."""
MAGIC = b"securecoll-probe"
PROBE_BYTES = 32
ROUNDS = 20
"""Round trips of a probe."""
CONNECT_SECONDS = 3.0
ANSWER_SECONDS = 2.0
"""How long either end waits for the other's next bytes, and the longest that a connection may take here in all."""
MOST_ADDRESSES = 4
"""Of a peer's name, tried."""
MOST_STRANGERS = 64
"""Connections that are no probes, after which a doctor listens no more."""


def parse(text: str, port: int) -> tuple[str, int]:
    """The host and port of ``HOST``, ``HOST:PORT``, ``IPV6`` or ``[IPV6]:PORT``. Raises :class:`ValueError`."""
    host, given = text, str(port)
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ValueError(f"{text!r}: write [ADDRESS]:PORT")
        given = rest[1:] or given
    elif text.count(":") == 1:
        host, _, given = text.partition(":")
    if not host or not (given.isascii() and given.isdigit() and 0 < int(given) < 1 << 16):
        raise ValueError(f"{text!r}: write HOST or HOST:PORT, with a port from 1 to 65535")
    return host, int(given)


def peer(host: str, port: int) -> list[Finding]:
    """Probes each address of a host. Raises :class:`ConfigError` where SECURECOLL_IFNAME names no interface."""
    interface = networks.chosen()
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        values: dict[str, object] = {"host": host, "port": port}
        advice = "Give an address, or make the name known: in DNS, or in /etc/hosts on every machine."
        return [Finding("peer", State.FAIL, f"{host} cannot be resolved: {error.strerror}", advice, values)]
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))[:MOST_ADDRESSES]
    findings = [_probe(address, port, interface) for address in addresses]
    if any(finding.state is not State.FAIL for finding in findings):
        # Ranks that listen on both families need one of them.
        findings = [_softened(finding) for finding in findings]
    return findings


def _softened(finding: Finding) -> Finding:
    state = State.WARN if finding.state is State.FAIL else finding.state
    return Finding(finding.subject, state, finding.found, finding.advice, finding.values)


def _probe(address: str, port: int, interface: network.Interface | None) -> Finding:
    """Connects as a rank would: from the address of the chosen interface."""
    six = ":" in address
    where = f"[{address}]:{port}" if six else f"{address}:{port}"
    values: dict[str, object] = {"address": address, "port": port}
    sources = [a for a in (interface.addresses if interface else ()) if (":" in a) == six]
    own, kind = sources[0] if sources else None, "IPv6" if six else "IPv4"
    if interface is not None and own is None:
        advice = f"Ranks would not try: give {interface.name} an {kind} address, or choose another interface."
        return Finding("peer", State.FAIL, f"{where} not tried: {interface.name} has no {kind}", advice, values)
    try:
        with socket.socket(socket.AF_INET6 if six else socket.AF_INET, socket.SOCK_STREAM) as line:
            # A machine reaches itself by any interface.
            if own is not None and address not in _own_addresses():
                line.bind((own, 0))
            line.settimeout(CONNECT_SECONDS)
            began = time.perf_counter()
            line.connect((address, port))
            connected = time.perf_counter() - began
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            trips = _round_trips(line)
            local = str(line.getsockname()[0])
    except (OSError, EOFError) as error:
        return _unreachable(where, own, kind, error, values)
    device = next((name for name, known, _ in _engine.interfaces() if known == local), "an unknown interface")
    values.update(
        interface=device, local=local, connect_seconds=connected, round_trip_seconds=median(trips), rounds=len(trips)
    )
    told = (
        f"{where} reached from {device} ({local}): connected in {connected * 1e3:.2f} ms, "
        f"round trip {median(trips) * 1e3:.3f} ms, at best {min(trips) * 1e3:.3f} ms"
    )
    return Finding("peer", State.OK, told, values=values)


def _own_addresses() -> set[str]:
    return {address for _, address, _ in _engine.interfaces()}


def _round_trips(line: socket.socket) -> list[float]:
    """Seconds of each. Raises :class:`OSError`, or :class:`EOFError` where no doctor answers."""
    line.settimeout(ANSWER_SECONDS)
    trips = []
    for _ in range(ROUNDS):
        probe = MAGIC + os.urandom(PROBE_BYTES - len(MAGIC))
        began = time.perf_counter()
        line.sendall(probe)
        if _take(line, time.monotonic() + ANSWER_SECONDS) != probe:
            raise EOFError("what answers there is no doctor that listens")
        trips.append(time.perf_counter() - began)
    return trips


def _take(line: socket.socket, deadline: float) -> bytes:
    """The next probe's bytes, or fewer where the other end closed. Raises :class:`TimeoutError`."""
    taken = b""
    while len(taken) < PROBE_BYTES:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        line.settimeout(left)
        more = line.recv(PROBE_BYTES - len(taken))
        if not more:
            break
        taken += more
    return taken


def _unreachable(where: str, own: str | None, kind: str, error: Exception, values: dict[str, object]) -> Finding:
    source = f" from {own}" if own else ""
    values["error"] = str(error) or type(error).__name__
    code = error.errno if isinstance(error, OSError) else None
    if isinstance(error, TimeoutError):
        why = "no answer"
        advice = "A firewall drops packets, or nobody has that address: allow TCP between the machines, both ways."
    elif code in (errno.ECONNREFUSED, errno.ECONNRESET):
        why = "refused"
        advice = "Nobody listens there: start `securecoll doctor --listen` there. Else a firewall refuses."
    elif code in (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EADDRNOTAVAIL, errno.EINVAL):
        why = (error.args[-1] if error.args else "") or "no way there"
        advice = f"There is no {kind} route from there: see `ip route get`, or choose another by SECURECOLL_IFNAME."
    else:
        why = str(error)
        advice = "Start `securecoll doctor --listen` there, and give this one its port."
    return Finding("peer", State.FAIL, f"{where} not reached{source}: {why}", advice, values)


def listen(port: int, seconds: float, say: Callable[[str], None]) -> list[Finding]:
    """Answers probes on the chosen interface, until a machine has sent a whole one or the time is over.

    ``say`` is given a line for whoever waits. Raises :class:`ConfigError` where SECURECOLL_IFNAME names no interface.
    """
    interface = networks.chosen()
    doors: list[socket.socket] = []
    refused = []
    try:
        for address in interface.addresses if interface else ():
            try:
                doors.append(networks.listener(address, port))
            except OSError as error:
                refused.append(f"{address}: {error.strerror}")
        if not doors:
            why = "; ".join(refused) or "there is no interface with an address"
            advice = f"Choose another port (--port) or interface (SECURECOLL_IFNAME); {port} may be in use."
            return [Finding("listening", State.FAIL, f"on no address ({why})", advice, {"port": port})]
        for door in doors:
            address = str(door.getsockname()[0])
            shown = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
            say(f"listening on {shown} for {seconds:g} s; on the other machine: securecoll doctor --peer {shown}")
        return [_answer(doors, port, time.monotonic() + seconds)]
    finally:
        for door in doors:
            door.close()


def _answer(doors: list[socket.socket], port: int, deadline: float) -> Finding:
    strangers = 0
    values: dict[str, object] = {"port": port}
    while strangers < MOST_STRANGERS:
        ready, _, _ = select.select(doors, [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            break
        try:
            line, source = ready[0].accept()
        except OSError:
            continue
        with line:
            rounds = _echo(line, min(deadline, time.monotonic() + ANSWER_SECONDS))
        if rounds == ROUNDS:
            values.update(peer=str(source[0]), rounds=rounds, strangers=strangers)
            return Finding("listening", State.OK, f"{source[0]} reached this machine on port {port}", values=values)
        strangers += 1
    values["strangers"] = strangers
    told = f"nobody reached port {port}" + (f"; {strangers} connections were no probes" if strangers else "")
    advice = "Run `securecoll doctor --peer` on the other machine, and see what it says; look for a firewall here."
    return Finding("listening", State.FAIL, told, advice, values)


def _echo(line: socket.socket, deadline: float) -> int:
    """Sends back what is a probe. How many were."""
    rounds = 0
    try:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while rounds < ROUNDS:
            probe = _take(line, deadline)
            if len(probe) < PROBE_BYTES or not probe.startswith(MAGIC):
                break
            line.sendall(probe)
            rounds += 1
    except OSError:
        pass
    return rounds
