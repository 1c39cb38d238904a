"""The checks of ``securecoll doctor`` that concern the network: where ranks would listen, and what limits sockets."""

from __future__ import annotations

import ipaddress
import os
import resource
import socket
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from securecoll import _engine, network
from securecoll.cli.findings import Finding, State
from securecoll.cli.units import sized
from securecoll.errors import ConfigError
from securecoll.plan import Topology
from securecoll.plan.peers import sockets

SYSTEM = Path("/proc/sys")
DEVICES = Path("/sys/class/net")
SIZES = (8, 512, 4096)
"""Ranks, for which is said how many sockets each has."""
BACKLOG = 512
"""Connections that may wait at a rank's door, as the engine asks of the kernel."""
OTHER_DESCRIPTORS = 128
"""What a rank holds beside: files of the program, and at most 64 connections that have proven nothing yet."""
NEAR_SECONDS = 0.2e-3
"""A round trip within a machine room."""
LEAST_BUFFER = 1 << 20


@dataclass(frozen=True, slots=True)
class Device:
    """A network interface that is up with an address."""

    name: str
    addresses: tuple[str, ...]
    mtu_bytes: int | None
    speed_bits_per_second: int | None

    @property
    def described(self) -> str:
        """All of it, in brief."""
        speed = self.speed_bits_per_second
        parts = [" ".join(self.addresses), f"MTU {self.mtu_bytes or 'unknown'}"]
        parts += [] if speed is None else [f"{speed / 1e9:g} Gbit/s"]
        return f"{self.name} ({', '.join(parts)})"


def devices() -> list[Device]:
    """Those of this host."""
    known: dict[str, list[str]] = {}
    for name, address, _ in _engine.interfaces():
        known.setdefault(name, []).append(address)
    return [Device(name, tuple(addresses), mtu(name), speed(name)) for name, addresses in known.items()]


def chosen() -> network.Interface | None:
    """The interface that a rank started here would listen on. Raises :class:`ConfigError`."""
    return network.choose(os.environ.get("SECURECOLL_IFNAME"), os.environ.get("MASTER_ADDR"))


def examine() -> list[Finding]:
    """All findings."""
    return [interface(), listening(), backlog(), descriptors(), buffers()]


def interface() -> Finding:
    """The interfaces that are up, and which one ranks would use."""
    there = devices()
    values: dict[str, object] = {"interfaces": [asdict(device) for device in there], "chosen": None, "why": None}
    told = "; ".join(device.described for device in there) or "none is up with an address"
    try:
        found = chosen()
    except ConfigError as error:
        advice = "Set SECURECOLL_IFNAME to one of them, or unset it."
        return Finding("interface", State.FAIL, str(error), advice, values)
    if found is None:
        advice = "Ranks of other hosts cannot be reached: bring an interface up."
        return Finding("interface", State.WARN, told, advice, values)
    values.update(chosen=found.name, why=found.why)
    told = f"{found.name}, as {found.why}. There are: {told}"
    if all(ipaddress.ip_address(address).is_loopback for address in found.addresses):
        advice = "Only ranks of this host can be reached: bring an interface up, or name one by SECURECOLL_IFNAME."
        return Finding("interface", State.WARN, told, advice, values)
    return Finding("interface", State.OK, told, values=values)


def mtu(name: str) -> int | None:
    """Bytes of the largest packet; None where the kernel does not tell."""
    return _number(DEVICES / name / "mtu")


def speed(name: str) -> int | None:
    """Bits a second; None where the kernel does not tell, as for most virtual devices."""
    megabits = _number(DEVICES / name / "speed")
    return megabits * 1_000_000 if megabits is not None and megabits > 0 else None


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def listening() -> Finding:
    """Whether a rank could listen on each address of the chosen interface."""
    try:
        found = chosen()
    except ConfigError:
        found = None
    heard: list[str] = []
    failed: dict[str, str] = {}
    for address in found.addresses if found else ():
        try:
            with listener(address, 0):
                heard.append(address)
        except OSError as error:
            failed[address] = error.strerror or str(error)
    ports = _words(SYSTEM / "net/ipv4/ip_local_port_range")
    values: dict[str, object] = {"addresses": heard, "refused": failed, "ports": ports}
    span = f", ports {ports[0]} to {ports[1]}" if len(ports) == 2 else ""
    told = [f"{_family(address)} {address}{span}" for address in heard]
    told += [f"not on {address}: {why}" for address, why in failed.items()]
    if failed:
        advice = (
            "Ranks listen where they can; both ends of a pair need IPv4, or both IPv6. See why the kernel refuses."
        )
        state = State.WARN if heard else State.FAIL
        return Finding("listening", state, "; ".join(told), advice, values)
    if not heard:
        advice = "Without an address ranks of other hosts cannot be reached."
        return Finding("listening", State.WARN, "on no address", advice, values)
    return Finding("listening", State.OK, "; ".join(told) + " (firewalls have to let them through)", values=values)


def listener(address: str, port: int) -> socket.socket:
    """A socket that listens there, and on nothing else. Raises :class:`OSError`."""
    six = ":" in address
    door = socket.socket(socket.AF_INET6 if six else socket.AF_INET, socket.SOCK_STREAM)
    try:
        if six:
            door.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if port:
            door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        door.bind((address, port))
        door.listen(16)
    except BaseException:
        door.close()
        raise
    return door


def _family(address: str) -> str:
    return "IPv6" if ":" in address else "IPv4"


def _words(path: Path) -> list[int]:
    try:
        return [int(word) for word in path.read_text().split()]
    except (OSError, ValueError):
        return []


def backlog() -> Finding:
    """How many connections may wait to be accepted."""
    most = _number(SYSTEM / "net/core/somaxconn")
    values: dict[str, object] = {"somaxconn": most, "asked_for": BACKLOG}
    if most is None:
        return Finding("backlog", State.OK, "the kernel does not tell how many connections may wait", values=values)
    found = f"{min(most, BACKLOG)} connections may wait at a rank's door (somaxconn {most})"
    if most >= BACKLOG:
        return Finding("backlog", State.OK, found, values=values)
    advice = (
        "Ranks try again, so joining large groups takes longer, and strangers are in the way sooner: "
        f"`sysctl -w net.core.somaxconn={8 * BACKLOG}`."
    )
    return Finding("backlog", State.WARN, found, advice, values)


def socket_count(ranks: int) -> int:
    """The most sockets that a rank of ``ranks`` has once it ran default plans, each rank on a host of its own."""
    topology = Topology.even(ranks, 1)
    # All ranks but the outermost have as many.
    return max(len(sockets(topology, rank)) for rank in {*range(0, ranks, max(1, ranks // 64)), 1, ranks - 1})


def descriptors() -> Finding:
    """Whether a process may have as many descriptors as a rank has sockets."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limits = [None if limit == resource.RLIM_INFINITY else limit for limit in (soft, hard)]
    needed = {ranks: OTHER_DESCRIPTORS + socket_count(ranks) for ranks in SIZES}
    everyone = {ranks: OTHER_DESCRIPTORS + ranks - 1 for ranks in SIZES}
    values: dict[str, object] = {
        "soft_limit": limits[0],
        "hard_limit": limits[1],
        "needed": {str(ranks): count for ranks, count in needed.items()},
        "needed_for_all_to_all": {str(ranks): count for ranks, count in everyone.items()},
    }
    found = (
        f"{'no limit' if limits[0] is None else f'limit {limits[0]}'}; in groups of {_listed(SIZES)} a rank needs up "
        f"to {_listed(needed.values())}, or {_listed(everyone.values())} where it meets everyone, as in all_to_all"
    )
    if limits[0] is None or limits[0] >= needed[SIZES[-1]]:
        return Finding("descriptors", State.OK, found, values=values)
    advice = (
        f"Raise it: `ulimit -n {everyone[SIZES[-1]]}`, LimitNOFILE={everyone[SIZES[-1]]} in a systemd unit, or "
        f"`docker run --ulimit nofile={everyone[SIZES[-1]]}`"
        + ("." if limits[1] is None or limits[1] >= needed[SIZES[-1]] else f"; the hard limit of {limits[1]}, too.")
    )
    return Finding("descriptors", State.WARN, found, advice, values)


def _listed(counts: Iterable[int]) -> str:
    return ", ".join(map(str, counts))


def buffers() -> Finding:
    """How far a socket's buffers may grow, and so how much may be under way."""
    sends, receives = (_words(SYSTEM / f"net/ipv4/tcp_{way}mem") for way in ("w", "r"))
    if len(sends) != 3 or len(receives) != 3:
        return Finding("socket buffers", State.OK, "the kernel does not tell how far they grow")
    try:
        found = chosen()
    except ConfigError:
        found = None
    bits = speed(found.name) if found else None
    least = max(LEAST_BUFFER, int((bits or 0) / 8 * NEAR_SECONDS))
    smaller = min(sends[2], receives[2])
    values: dict[str, object] = {
        "send_bytes": sends[2],
        "receive_bytes": receives[2],
        "wanted_bytes": least,
    }
    told = f"grow to {sized(sends[2])} to send and {sized(receives[2])} to receive"
    told += f": {smaller * 8 / 1e-3 / 1e9:.3g} Gbit/s on one connection where a round trip takes 1 ms"
    if smaller >= least:
        return Finding("socket buffers", State.OK, told, values=values)
    advice = (
        f"Let them grow: `sysctl -w net.ipv4.tcp_wmem='4096 65536 {4 * least}' "
        f"net.ipv4.tcp_rmem='4096 131072 {4 * least}'`."
    )
    return Finding("socket buffers", State.WARN, told, advice, values)
