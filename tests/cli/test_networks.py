"""``securecoll doctor`` says where ranks would listen, and what limits their sockets."""

from __future__ import annotations

import resource
import socket
from pathlib import Path
from typing import Any

import pytest

from securecoll import _engine, network
from securecoll.cli import networks
from securecoll.cli.findings import State
from securecoll.plan import Topology
from securecoll.plan.peers import sockets


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """What the kernel says of a machine, in files."""
    monkeypatch.setattr(networks, "SYSTEM", tmp_path / "sys")
    monkeypatch.setattr(networks, "DEVICES", tmp_path / "net")
    for name, text in {
        "sys/net/core/somaxconn": "4096\n",
        "sys/net/ipv4/tcp_wmem": "4096\t16384\t4194304\n",
        "sys/net/ipv4/tcp_rmem": "4096\t131072\t6291456\n",
        "sys/net/ipv4/ip_local_port_range": "32768\t60999\n",
        "net/fast0/mtu": "9000\n",
        "net/fast0/speed": "100000\n",
        "net/lo/mtu": "65536\n",
        "net/slow0/speed": "-1\n",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def machine(monkeypatch: pytest.MonkeyPatch, *known: tuple[str, str, bool]) -> None:
    monkeypatch.setattr(_engine, "interfaces", lambda: list(known))
    monkeypatch.delenv("SECURECOLL_IFNAME", raising=False)
    monkeypatch.delenv("MASTER_ADDR", raising=False)


LOOPBACK = ("lo", "127.0.0.1", True)


def test_the_interface_is_told_with_what_chose_it(monkeypatch: pytest.MonkeyPatch, system: Path) -> None:
    machine(monkeypatch, LOOPBACK, ("fast0", "10.1.2.3", False), ("fast0", "fd00::3", False))
    monkeypatch.setenv("SECURECOLL_IFNAME", "fast0")
    found = networks.interface()
    assert found.state is State.OK
    assert found.found.startswith("fast0, as SECURECOLL_IFNAME names it")
    assert "fast0 (10.1.2.3 fd00::3, MTU 9000, 100 Gbit/s)" in found.found
    assert "lo (127.0.0.1, MTU 65536)" in found.found
    assert (found.values["chosen"], found.values["why"]) == ("fast0", "SECURECOLL_IFNAME names it")
    lo, fast = found.values["interfaces"]  # type: ignore[misc]
    assert (fast["mtu_bytes"], fast["speed_bits_per_second"]) == (9000, 100_000_000_000)
    assert lo["speed_bits_per_second"] is None


def test_every_way_to_choose_says_so(monkeypatch: pytest.MonkeyPatch, system: Path) -> None:
    machine(monkeypatch, LOOPBACK, ("fast0", "10.1.2.3", False), ("slow0", "10.9.9.9", False))
    routes = {"10.9.9.1": "10.9.9.9", "192.0.2.1": "10.1.2.3"}
    monkeypatch.setattr(network, "_source", routes.get)
    monkeypatch.setenv("MASTER_ADDR", "10.9.9.1")
    assert networks.interface().found.startswith("slow0, as it leads to 10.9.9.1, where the ranks meet")
    monkeypatch.delenv("MASTER_ADDR")
    assert networks.interface().found.startswith("fast0, as the default route leaves by it")
    routes.clear()
    assert networks.interface().found.startswith("fast0, as it is the first that is up")


def test_an_interface_that_is_not_there_fails_and_names_those_that_are(
    monkeypatch: pytest.MonkeyPatch, system: Path
) -> None:
    machine(monkeypatch, LOOPBACK, ("fast0", "10.1.2.3", False))
    monkeypatch.setenv("SECURECOLL_IFNAME", "fats0")
    found = networks.interface()
    assert found.state is State.FAIL and "fats0" in found.found and "fast0" in found.found and found.advice
    assert networks.listening().state is not State.OK


def test_loopback_alone_is_a_warning(monkeypatch: pytest.MonkeyPatch, system: Path) -> None:
    machine(monkeypatch, LOOPBACK)
    found = networks.interface()
    assert found.state is State.WARN and "no other is up" in found.found and "this host" in found.advice
    machine(monkeypatch)
    assert networks.interface().state is State.WARN
    assert networks.listening().state is State.WARN


def test_a_listener_is_bound_on_each_family(monkeypatch: pytest.MonkeyPatch, system: Path) -> None:
    machine(monkeypatch, LOOPBACK, ("lo", "::1", True))
    found = networks.listening()
    assert found.state is State.OK
    assert found.values["addresses"] == ["127.0.0.1", "::1"]
    assert "IPv4 127.0.0.1, ports 32768 to 60999; IPv6 ::1" in found.found
    # Another machine's addresses: TEST-NET-3, and one for documentation.
    machine(monkeypatch, ("x0", "127.0.0.1", False), ("x0", "2001:db8::7", False))
    some = networks.listening()
    assert some.state is State.WARN and "not on 2001:db8::7" in some.found and some.advice
    machine(monkeypatch, ("x0", "203.0.113.7", False))
    none = networks.listening()
    assert none.state is State.FAIL and none.values["addresses"] == []


def test_a_listener_is_on_its_address_and_nowhere_else() -> None:
    with networks.listener("127.0.0.1", 0) as door:
        assert door.getsockname()[0] == "127.0.0.1"
        port = door.getsockname()[1]
        with socket.socket() as other:
            other.bind(("127.0.0.2", port))


@pytest.mark.parametrize(("most", "state"), [(4096, State.OK), (512, State.OK), (128, State.WARN)])
def test_a_short_queue_of_connections_is_a_warning(system: Path, most: int, state: State) -> None:
    (system / "sys/net/core/somaxconn").write_text(f"{most}\n")
    found = networks.backlog()
    assert found.state is state
    assert f"{min(most, 512)} connections may wait" in found.found
    assert ("somaxconn=4096" in found.advice) is (state is State.WARN)


def test_the_queue_is_the_one_that_the_engine_asks_for() -> None:
    source = (Path(__file__).parents[2] / "kernels/engine/meeting.cpp").read_text()
    assert f"constexpr int kQueue = {networks.BACKLOG};" in source


def limits(monkeypatch: pytest.MonkeyPatch, soft: int, hard: int) -> Any:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (soft, hard))
    return networks.descriptors()


def test_descriptors_are_held_against_what_plans_need(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = networks.OTHER_DESCRIPTORS + networks.socket_count(4096)
    enough = limits(monkeypatch, needed, needed)
    assert enough.state is State.OK and not enough.advice
    assert enough.values["needed"]["4096"] == needed
    assert enough.values["needed_for_all_to_all"]["512"] == networks.OTHER_DESCRIPTORS + 511
    short = limits(monkeypatch, needed - 1, 1 << 20)
    assert short.state is State.WARN
    assert "ulimit -n 4223" in short.advice and "hard limit" not in short.advice
    assert f"hard limit of {needed - 1}" in limits(monkeypatch, needed - 1, needed - 1).advice
    assert limits(monkeypatch, resource.RLIM_INFINITY, resource.RLIM_INFINITY).state is State.OK


@pytest.mark.parametrize("ranks", [2, 8, 512])
def test_the_most_sockets_of_a_rank_are_found_without_asking_every_rank(ranks: int) -> None:
    topology = Topology.even(ranks, 1)
    assert networks.socket_count(ranks) == max(len(sockets(topology, rank)) for rank in range(ranks))


def test_buffers_that_cannot_grow_are_a_warning(monkeypatch: pytest.MonkeyPatch, system: Path) -> None:
    machine(monkeypatch, ("fast0", "10.1.2.3", False))
    monkeypatch.setenv("SECURECOLL_IFNAME", "fast0")
    found = networks.buffers()  # 100 Gbit/s over 0.2 ms are 2.5 MB
    assert found.state is State.OK and found.values["wanted_bytes"] == 2_500_000
    assert "4 MiB to send and 6 MiB to receive: 33.6 Gbit/s" in found.found
    (system / "sys/net/ipv4/tcp_rmem").write_text("4096\t131072\t2000000\n")
    short = networks.buffers()
    assert short.state is State.WARN and "tcp_rmem='4096 131072 10000000'" in short.advice
    (system / "net/fast0/speed").write_text("10000\n")
    assert networks.buffers().state is State.OK
    (system / "sys/net/ipv4/tcp_rmem").write_text("4096\t131072\t900000\n")
    assert networks.buffers().state is State.WARN


def test_a_kernel_that_tells_nothing_is_no_fault(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, system: Path
) -> None:
    monkeypatch.setattr(networks, "SYSTEM", tmp_path / "nothing")
    monkeypatch.setattr(networks, "DEVICES", tmp_path / "nothing")
    for finding in networks.examine():
        assert finding.state is State.OK or finding.advice, finding
    assert networks.backlog().state is State.OK and networks.buffers().state is State.OK
    assert networks.mtu("lo") is None
