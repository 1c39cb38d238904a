"""Knobs: what they take, and that the environment can only tighten."""

from __future__ import annotations

import dataclasses
import logging
import os
import subprocess
import sys

import pytest

from securecoll import config
from securecoll._engine import Secret, hmac_sha256
from securecoll.config import Config
from securecoll.errors import ConfigError
from securecoll.identity import KeyDescriptor, KeyFile

HEX = "ab" * 32


def read(**variables):
    return Config.from_environment({f"SECURECOLL_{name}": value for name, value in variables.items()})


def is_hex_key(key):
    return hmac_sha256(key, b"mark") == hmac_sha256(Secret.absorb(bytearray.fromhex(HEX)), b"mark")


@pytest.fixture
def environment(monkeypatch):
    """The process's own environment and configuration, put back afterwards."""
    for name in [name for name in os.environ if name.startswith("SECURECOLL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(config, "_current", None)
    return monkeypatch


def test_an_empty_environment_gives_the_defaults():
    settings = read()
    assert (settings.key_fd, settings.key_file, settings.key, settings.timeout, settings.threads) == (None,) * 5
    assert settings.job == ""
    assert settings.log == logging.WARNING
    assert Config.from_environment({"PATH": "/bin", "SECURECOLLX": "1", "securecoll_log": "x"}) == settings


def test_each_knob_is_read():
    settings = read(KEY_FD="7", KEY_FILE="/k", JOB="train 1", TIMEOUT="2.5", THREADS="3", LOG="Debug")
    assert (settings.key_fd, settings.key_file, settings.job) == (7, "/k", "train 1")
    assert (settings.timeout, settings.threads, settings.log) == (2.5, 3, logging.DEBUG)
    assert is_hex_key(read(KEY=HEX).key)


def test_the_network_knobs():
    assert (read().ifname, read().transport) == (None, "auto")
    assert (read(IFNAME="eth1").ifname, read(TRANSPORT="tcp").transport) == ("eth1", "tcp")
    for name, value in (
        ("IFNAME", ""),
        ("IFNAME", "e" * 65),
        ("IFNAME", "a\nb"),
        ("TRANSPORT", "shm"),
        ("TRANSPORT", ""),
    ):
        with pytest.raises(ConfigError, match=f"SECURECOLL_{name}"):
            read(**{name: value})


def test_every_knob_is_documented():
    rows = config.knobs()
    assert [row.name for row in rows] == ["SECURECOLL_" + f.name.upper() for f in dataclasses.fields(Config)]
    for row in rows:
        assert row.meaning.endswith(".")
        assert row.unit
        assert row.default


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("KEY_FD", "-1"),
        ("KEY_FD", "stdin"),
        ("KEY_FD", "3.0"),
        ("KEY_FD", ""),
        ("KEY_FD", "9" * 40),
        ("KEY_FILE", ""),
        ("TIMEOUT", "0"),
        ("TIMEOUT", "-1"),
        ("TIMEOUT", "nan"),
        ("TIMEOUT", "inf"),
        ("TIMEOUT", "5 minutes"),
        ("TIMEOUT", ""),
        ("THREADS", "0"),
        ("THREADS", "1025"),
        ("THREADS", "\u0663"),
        ("LOG", "loud"),
        ("LOG", ""),
        ("JOB", "x" * 257),
        ("JOB", "a\nb"),
        ("JOB", "\udcff"),
        ("KEY", ""),
        ("KEY", HEX[:-2]),
        ("KEY", HEX[:-1] + "z"),
        ("KEY", "00" * 32),
    ],
)
def test_a_bad_value_is_an_error_that_names_its_variable(name, value):
    with pytest.raises(ConfigError, match=f"SECURECOLL_{name}\\b") as caught:
        read(**{name: value})
    assert HEX[:16] not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("TIMEOUTS", "TIMEOUT"), ("KEYFILE", "KEY_FILE"), ("LOGLEVEL", "LOG"), ("ZZZ", ""), ("", ""), ("PLAINTEXT", "")],
)
def test_an_unknown_variable_is_an_error_with_the_nearest_known_name(name, nearest):
    with pytest.raises(ConfigError, match=f"SECURECOLL_{name} is not .* did you mean SECURECOLL_{nearest}") as caught:
        read(**{name: HEX})
    assert HEX not in str(caught.value)  # it may be a key under a misspelt name


@pytest.mark.parametrize("also", [{}, {"WRONG": "1"}, {"LOG": "loud"}])
def test_key_variables_are_removed_also_when_the_rest_is_refused(also):
    environ = {"SECURECOLL_KEY": HEX, "SECURECOLL_KEY_FD": "5", "HOME": "/"}
    environ |= {f"SECURECOLL_{name}": value for name, value in also.items()}
    try:
        Config.from_environment(environ)
    except ConfigError:
        assert also
    else:
        assert not also
    assert not environ.keys() & {"SECURECOLL_KEY", "SECURECOLL_KEY_FD"}
    assert environ["HOME"] == "/"


def test_the_process_reads_its_environment_once_and_keeps_the_key(environment):
    environment.setenv("SECURECOLL_KEY", HEX)
    environment.setenv("SECURECOLL_JOB", "one")
    assert config.current().job == "one"
    assert "SECURECOLL_KEY" not in os.environ
    assert os.environ["SECURECOLL_JOB"] == "one"
    environment.setenv("SECURECOLL_JOB", "two")
    assert config.current().job == "one"
    assert is_hex_key(config.current_key_source().psk())
    assert is_hex_key(config.current_key_source().psk())


def test_a_descriptor_serves_every_use_of_the_process(environment):
    reader, writer = os.pipe()
    os.write(writer, bytes.fromhex(HEX))
    os.close(writer)
    environment.setenv("SECURECOLL_KEY_FD", str(reader))
    assert is_hex_key(config.current_key_source().psk())
    assert is_hex_key(config.current_key_source().psk())


def test_without_a_key_the_error_says_how_to_make_one(environment):
    config.current()
    with pytest.raises(ConfigError, match=r"securecoll keygen.*SECURECOLL_KEY_FILE"):
        config.current_key_source()


def test_the_descriptor_wins_over_the_file_and_the_file_over_the_variable():
    assert isinstance(read(KEY_FD="5", KEY_FILE="/k", KEY=HEX).key_source(), KeyDescriptor)
    assert isinstance(read(KEY_FILE="/k", KEY=HEX).key_source(), KeyFile)
    assert is_hex_key(read(KEY=HEX).key_source().psk())


def test_the_environment_shortens_a_deadline_and_never_lengthens_it():
    assert read(TIMEOUT="5").shorten(300.0) == 5.0
    assert read(TIMEOUT="500").shorten(300.0) == 300.0
    assert read().shorten(300.0) == 300.0


def test_no_key_shows_in_a_repr():
    settings = read(KEY=HEX)
    assert "key=" not in repr(settings)
    assert HEX not in repr(settings) + str(settings) + repr(settings.key_source())


JOINS = """
import sys, tempfile
import numpy as np
import securecoll
with tempfile.NamedTemporaryFile() as file:
    file.write(bytes(range(32)))
    file.flush()
    with securecoll.Communicator.create(None, file.name) as comm:
        comm.all_reduce(np.ones(3))
"""


@pytest.mark.parametrize(("level", "shown"), [("info", 1), ("debug", 1), ("warning", 0), ("error", 0), (None, 0)])
def test_the_log_level_shows_one_line_for_each_communicator(level: str | None, shown: int) -> None:
    environ = {k: v for k, v in os.environ.items() if not k.startswith("SECURECOLL_")}
    if level is not None:
        environ["SECURECOLL_LOG"] = level
    done = subprocess.run([sys.executable, "-c", JOINS], env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("securecoll: rank 0 of 1 joined") == shown, done.stderr
    assert bytes(range(32)).hex() not in done.stderr
