"""Several hosts in one: network namespaces on a bridge, each rank with its host's memory and network alone."""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from securecoll import network

_NEW_MOUNTS, _NEW_NETWORK, _PRIVATE = 0x20000, 0x40000000, 0x44000
_numbers = itertools.count()

_BURST_BYTES = 256 << 10
_QUEUE_SECONDS = 0.05
PACKETS = ("gso_max_segs", "1")
"""Of a link's options: hosts hand over packets as they would be on a wire, not many in one."""


class Unable(Exception):
    """This machine or user cannot make network namespaces."""


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unable(f"{' '.join(words)}: {done.stderr.strip()}")


@dataclass(frozen=True)
class Lab:
    """Hosts ``0`` to ``count - 1``, with addresses 10.77.0.1 and fd77::1, and so on, on an interface ``eth0``."""

    name: str
    count: int
    families: Sequence[int] = (4, 6)

    def host(self, number: int) -> str:
        """Its network namespace."""
        return f"{self.name}-{number}"

    @property
    def hub(self) -> str:
        """The namespace of the bridge, with a port for each host."""
        return f"{self.name}-hub"

    def cut(self, number: int) -> None:
        """Pulls a host's cable: nobody is told."""
        _ip("-n", self.hub, "link", "set", f"port{number}", "down")

    def lose(self, number: int, out: int = 0, into: int = 0) -> None:
        """From now on so many percent of the packets that leave a host are dropped at random, and of those that go to
        it. 100 cuts its cable in one direction, 0 mends it. Raises :class:`Unable` without nftables."""
        if shutil.which("nft") is None:
            raise Unable("nftables is not installed")
        port = f"port{number}"
        table = f"table netdev {port}"
        rules = [f"{table} {{}}", f"delete {table}", f"{table} {{}}"]  # so it is there to be deleted, and is empty
        for hook, share in (("ingress", out), ("egress", into)):
            chain = f"netdev {port} {hook}"
            rules.append(f'add chain {chain} {{ type filter hook {hook} device "{port}" priority 0; }}')
            if share:
                some = f"numgen random mod 100 < {share}" if share < 100 else ""
                rules.append(f"add rule {chain} {some} drop")
        words = ["ip", "netns", "exec", self.hub, "nft", "-f", "-"]
        done = subprocess.run(words, input="\n".join(rules), capture_output=True, text=True, check=False)
        if done.returncode:
            raise Unable(f"nft: {done.stderr.strip()}")

    def plug(self, number: int, *options: str) -> None:
        """Starts a host and connects it. ``options`` of its link are for ``ip``."""
        host, port, mac = self.host(number), f"port{number}", f"02:00:00:00:00:{number + 1:02x}"
        _ip("netns", "add", host)
        _ip("-n", host, "link", "set", "lo", "up")
        _ip("-n", self.hub, "link", "add", port, "type", "veth", "peer", "name", "eth0", "address", mac, "netns", host)
        _ip("-n", self.hub, "link", "set", port, "master", "bridge", "up")
        _ip("-n", host, "link", "set", "eth0", *options, "up")
        if 4 in self.families:
            _ip("-n", host, "address", "add", f"10.77.0.{number + 1}/24", "dev", "eth0")
        if 6 in self.families:
            _ip("-n", host, "address", "add", f"fd77::{number + 1}/64", "dev", "eth0", "nodad")

    def crash(self, number: int) -> None:
        """Takes a host away as a loss of power does: nobody is told. The test kills its processes, unheard.
        :meth:`plug` starts it again, without memory of its connections."""
        _ip("-n", self.hub, "link", "delete", f"port{number}")
        _ip("netns", "delete", self.host(number))

    def shape(self, number: int, bytes_per_second: float) -> None:
        """Gives a host's cable a rate, each way, that counts Ethernet frames. Replaces an earlier one."""
        # A burst has room for a segment that is not cut into frames yet, and for what a timer is late. The queue is
        # longer than what one TCP connection has under way, so that the rate is all that it meets.
        limit = max(_BURST_BYTES, int(bytes_per_second * _QUEUE_SECONDS))
        words = f"root tbf rate {int(8 * bytes_per_second)}bit burst {_BURST_BYTES} limit {limit}".split()
        _run("tc", "-n", self.host(number), "qdisc", "replace", "dev", "eth0", *words)
        _run("tc", "-n", self.hub, "qdisc", "replace", "dev", f"port{number}", *words)

    def describe(self, folder: Path, placement: Sequence[int]) -> None:
        """For :func:`enter`: which rank runs on which host."""
        (folder / "hosts").write_text("\n".join(self.host(number) for number in placement))


@contextmanager
def lab(count: int, families: Sequence[int] = (4, 6), *options: str) -> Iterator[Lab]:
    """Makes hosts on one network, and removes them. Raises :class:`Unable`. ``options``: see :meth:`Lab.plug`."""
    if shutil.which("ip") is None:
        raise Unable("iproute2 is not installed")
    made = Lab(f"sc{os.getpid()}x{next(_numbers)}", count, families)
    try:
        _ip("netns", "add", made.hub)
        _ip("-n", made.hub, "link", "add", "bridge", "type", "bridge")
        _ip("-n", made.hub, "link", "set", "bridge", "up")
        for number in range(count):
            made.plug(number, *options)
        yield made
    finally:
        for namespace in (made.hub, *(made.host(number) for number in range(count))):
            subprocess.run(["ip", "netns", "delete", namespace], capture_output=True, check=False)


@contextmanager
def hosts(count: int, families: Sequence[int] = (4, 6), *options: str) -> Iterator[Lab]:
    """A :func:`lab` for a test, which is skipped where there can be none."""
    import pytest

    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    try:
        with lab(count, families, *options) as made:
            yield made
    except Unable as e:
        pytest.skip(str(e))


def placed(rank: int, folder: Path) -> None:
    """For ``prepare``: this process stays where it is and says that it is on its rank's host. So ranks make
    the plans that they make there, and those of different hosts use sockets."""
    name = (folder / "hosts").read_text().splitlines()[rank]
    os.environ["SECURECOLL_IFNAME"] = "lo"
    network.host = lambda shared: hashlib.sha256(name.encode()).digest()[: network.HOST_BYTES]


def enter(rank: int, folder: Path) -> None:
    """For ``prepare`` of a group: moves this process to its rank's host."""
    namespace = (folder / "hosts").read_text().splitlines()[rank]
    libc = ctypes.CDLL(None, use_errno=True)
    memory = folder / namespace
    with Path("/run/netns", namespace).open("rb") as file:
        moved = libc.setns(file.fileno(), _NEW_NETWORK)
    if moved or libc.unshare(_NEW_MOUNTS) or libc.mount(b"none", b"/", None, _PRIVATE, None):
        raise OSError(ctypes.get_errno(), "cannot enter a namespace")
    # The ranks of a host share what is mounted at /dev/shm there. A folder stands for it, one for each host.
    memory.mkdir(exist_ok=True)
    if libc.mount(os.fsencode(memory), b"/dev/shm", None, 0x1000, None):
        raise OSError(ctypes.get_errno(), "cannot bind /dev/shm")
