"""``securecoll doctor --listen`` and ``--peer``: two machines find out whether they reach each other."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from securecoll import network
from securecoll.cli import main, networks, reach
from securecoll.cli.findings import Finding, State
from tests.hosts.lab import hosts


@pytest.fixture(autouse=True)
def loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECURECOLL_IFNAME", "lo")


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@contextmanager
def listening(seconds: float = 10.0) -> Iterator[tuple[int, list[Finding]]]:
    """A doctor that listens, in a thread: its port, and its findings once the block was left."""
    port, up = free_port(), threading.Event()
    findings: list[Finding] = []
    thread = threading.Thread(
        target=lambda: findings.extend(reach.listen(port, seconds, lambda line: up.set())), daemon=True
    )
    thread.start()
    assert up.wait(5)
    yield port, findings
    thread.join(15)
    assert not thread.is_alive()


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_two_doctors_reach_each_other(address: str) -> None:
    with listening() as (port, heard):
        (found,) = reach.peer(address, port)
    assert found.state is State.OK, found
    assert "reached from lo" in found.found and "round trip" in found.found
    assert found.values["rounds"] == reach.ROUNDS
    assert 0 < found.values["round_trip_seconds"] < 1  # type: ignore[operator]
    assert heard[0].state is State.OK and heard[0].values["peer"] == address


def test_strangers_do_not_keep_a_probe_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "ANSWER_SECONDS", 0.3)
    with listening() as (port, heard):
        with socket.create_connection(("127.0.0.1", port)) as web, socket.create_connection(("127.0.0.1", port)):
            web.sendall(b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n")
            web.settimeout(5)
            with contextlib.suppress(ConnectionResetError):  # where not all was read
                assert web.recv(100) == b""
            time.sleep(0.4)  # the other one says nothing
        (found,) = reach.peer("127.0.0.1", port)
    assert found.state is State.OK, found
    assert heard[0].values["strangers"] == 2


def test_a_doctor_listens_only_so_long_and_to_only_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    began = time.monotonic()
    with listening(seconds=0.3) as (_, heard):
        pass
    assert 0.2 < time.monotonic() - began < 3
    assert heard[0].state is State.FAIL and "nobody reached" in heard[0].found and heard[0].advice
    monkeypatch.setattr(reach, "MOST_STRANGERS", 3)
    with listening(seconds=30) as (port, heard):
        for _ in range(3):
            socket.create_connection(("127.0.0.1", port)).close()
    assert heard[0].state is State.FAIL and "3 connections were no probes" in heard[0].found


def test_a_port_nobody_listens_on_is_refused_and_says_what_to_start() -> None:
    (found,) = reach.peer("127.0.0.1", free_port())
    assert found.state is State.FAIL and "refused" in found.found and "doctor --listen" in found.advice


def test_something_else_that_listens_is_no_doctor() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            line, _ = server.accept()
            with line:
                line.recv(100)
                line.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n....")

        threading.Thread(target=serve, daemon=True).start()
        (found,) = reach.peer("127.0.0.1", server.getsockname()[1])
    assert found.state is State.FAIL and "no doctor" in found.found


def test_something_that_never_answers_costs_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "ANSWER_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        began = time.monotonic()
        (found,) = reach.peer("127.0.0.1", server.getsockname()[1])
        assert time.monotonic() - began < 2
    assert found.state is State.FAIL and "no answer" in found.found


def test_a_name_that_does_not_resolve_says_so() -> None:
    (found,) = reach.peer("no-such-host.invalid", 1)
    assert found.state is State.FAIL and "resolved" in found.found and "/etc/hosts" in found.advice


def test_a_family_that_the_interface_lacks_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(networks, "chosen", lambda: network.Interface("x0", ("127.0.0.1",)))
    (found,) = reach.peer("::1", 9)
    assert found.state is State.FAIL and "not tried: x0 has no IPv6" in found.found and found.advice


def test_one_family_that_works_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    with listening() as (port, _):
        places: Any = [(0, 0, 0, "", ("127.0.0.1", port)), (0, 0, 0, "", ("127.0.0.9", port))]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *arguments, **options: places)
        states = [finding.state for finding in reach.peer("both", port)]
    assert states == [State.OK, State.WARN]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("node1", ("node1", 29417)),
        ("node1:80", ("node1", 80)),
        ("fd77::1", ("fd77::1", 29417)),
        ("[fd77::1]", ("fd77::1", 29417)),
        ("[fd77::1]:80", ("fd77::1", 80)),
    ],
)
def test_a_place_is_a_host_and_perhaps_a_port(text: str, place: tuple[str, int]) -> None:
    assert reach.parse(text, reach.PORT) == place


@pytest.mark.parametrize("text", ["", ":80", "node1:", "node1:0", "node1:65536", "node1:x", "[fd77::1", "[fd77::1]80"])
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        reach.parse(text, reach.PORT)
    result = CliRunner().invoke(main, ["doctor", "--peer", text])
    assert result.exit_code == 2, result.output


def test_the_command_takes_one_of_the_two_and_knows_its_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    both = CliRunner().invoke(main, ["doctor", "--listen", "--peer", "127.0.0.1"])
    assert both.exit_code == 2 and "on the other" in both.output
    nobody = CliRunner().invoke(main, ["doctor", "--listen", "--seconds", "0.1", "--port", str(free_port())])
    assert nobody.exit_code == 1 and "securecoll doctor --peer" in nobody.output
    monkeypatch.setenv("SECURECOLL_IFNAME", "nowhere0")
    for option in (["--listen"], ["--peer", "127.0.0.1"]):
        result = CliRunner().invoke(main, ["doctor", *option])
        assert result.exit_code == 1 and "nowhere0" in result.output


def test_two_hosts_reach_each_other_until_the_cable_is_pulled(tmp_path: Path) -> None:
    doctor = [sys.executable, "-c", "from securecoll.cli import main; main()", "doctor", "--json"]
    environment = dict(os.environ)

    def on(host: str, *options: str, interface: str = "eth0") -> subprocess.Popen[str]:
        environment["SECURECOLL_IFNAME"] = interface
        words = ["ip", "netns", "exec", host, *doctor, *options]
        return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)

    with hosts(2) as made:
        listener = on(made.host(1), "--listen")
        assert listener.stderr is not None
        assert "[fd77::2]" in listener.stderr.readline() + listener.stderr.readline()
        wrong = on(made.host(0), "--peer", "10.77.0.2", interface="lo").communicate(timeout=30)[0]
        there = on(made.host(0), "--peer", "10.77.0.2").communicate(timeout=30)[0]
        heard = listener.communicate(timeout=30)[0]
        made.cut(1)
        cut = on(made.host(0), "--peer", "fd77::2")
        gone = cut.communicate(timeout=30)[0]
    (astray,) = json.loads(wrong)
    assert astray["state"] == "fail" and "from 127.0.0.1" in astray["found"], astray
    assert "SECURECOLL_IFNAME" in astray["advice"]
    (found,) = json.loads(there)
    assert found["state"] == "OK", found
    assert (found["values"]["interface"], found["values"]["local"]) == ("eth0", "10.77.0.1")
    assert json.loads(heard)[0]["values"]["peer"] == "10.77.0.1"
    (lost,) = json.loads(gone)
    assert lost["state"] == "fail" and cut.returncode == 1
    assert "fd77::2]:29417 not reached from fd77::1" in lost["found"] and lost["advice"]
