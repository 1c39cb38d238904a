"""The error tree."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest

from securecoll import errors

KINDS = {
    "config": errors.ConfigError,
    "handshake": errors.HandshakeError,
    "authentication": errors.AuthenticationError,
    "mismatch": errors.MismatchError,
    "peer_lost": errors.PeerLostError,
    "timeout": errors.CollectiveTimeout,
    "closed": errors.CommunicatorClosed,
}


def test_kinds_are_those_of_the_engine():
    header = (Path(__file__).parents[1] / "kernels/engine/codes.hpp").read_text()
    body = re.search(r"enum class ErrorKind : uint8_t \{(.*?)\n\};", header, re.S).group(1)
    codes = {name: int(number) for name, number in re.findall(r"^\s*(\w+) = (\d+),", body, re.M)}
    assert codes == {"none": 0} | {name: number for number, name in enumerate(KINDS, 1)}
    for name, kind in KINDS.items():
        assert type(errors.from_kind(codes[name], "what happened")) is kind


@pytest.mark.parametrize("kind", [0, -1, 8, 255])
def test_an_unknown_kind_is_still_an_error_of_the_tree(kind):
    assert type(errors.from_kind(kind, "what happened")) is errors.SecureCollError


@pytest.mark.parametrize("kind", KINDS.values())
def test_each_error_is_what_launchers_catch_and_keeps_its_text(kind):
    error = kind("rank 1: what happened")
    assert isinstance(error, errors.SecureCollError)
    assert isinstance(error, RuntimeError)
    assert str(error) == "rank 1: what happened"
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert str(copy) == str(error)


def test_errors_are_also_what_python_calls_them():
    assert issubclass(errors.ConfigError, ValueError)
    assert issubclass(errors.CollectiveTimeout, TimeoutError)
