"""Communicators made from communicators: the parent's members, in this very session, and nobody else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import securecoll
from securecoll import AuthenticationError, Communicator, ConfigError, HandshakeError, SecureCollError, _engine
from tests.groups import SMALL, run


def _child(maker: Communicator, folder: str, members: tuple[int, ...], **options: Any) -> Communicator:
    rank = members.index(maker.rank)
    Path(folder).mkdir(parents=True, exist_ok=True)
    exchange = securecoll.DirectoryExchange(Path(folder), rank=rank, size=len(members)) if len(members) > 1 else None
    given = {"members": members, "shape": SMALL, "timeout": 10.0, "parent": maker, **options}
    return Communicator.create(exchange, **given)


def _sum(comm: Communicator) -> float:
    x = np.full(3000, comm.members[comm.rank] + 1.0, np.float32)
    comm.all_reduce(x)
    assert (x == x[0]).all()
    return float(x[0])


def _children(comm: Communicator, folder: str) -> list[float]:
    sums = []
    ids = {comm.session_id}
    for use in range(2):
        for name, members in (("low", (0, 1)), ("ends", (2, 0)), ("all", (0, 1, 2)), ("own", (comm.rank,))):
            if comm.rank not in members:
                continue
            with _child(comm, f"{folder}/{name}-{use}", members) as child:
                sums.append(_sum(child))
                ids.add(child.session_id)
                if members == (0, 1, 2):  # a child's child
                    with _child(child, f"{folder}/grandchild-{use}", (0, 1, 2)) as grandchild:
                        sums.append(_sum(grandchild))
                        ids.add(grandchild.session_id)
    assert len(ids) == len(sums) + 1
    sums.append(_sum(comm))  # the parent goes on
    return sums


def test_children_work_and_have_sessions_of_their_own(tmp_path: Path) -> None:
    zero, one, two = run(3, tmp_path, _children, str(tmp_path / "children"), shape=SMALL)
    assert zero == [3, 4, 6, 6, 1] * 2 + [6]
    assert one == [3, 6, 6, 2] * 2 + [6]
    assert two == [4, 6, 6, 3] * 2 + [6]


def _impostor(comm: Communicator, folder: str) -> str:
    if comm.rank == 1:
        comm._child = _engine.Secret.random(32)  # knows the session's public name and nothing more
    try:
        _child(comm, folder, (0, 1))
    except SecureCollError as e:
        return f"{type(e).__name__}: {e}"
    return "joined"


def test_whoever_is_not_of_the_parent_does_not_join(tmp_path: Path) -> None:
    """The public parts of a session are not enough, nor is the pre-shared key."""
    errors = run(2, tmp_path, _impostor, str(tmp_path / "child"), shape=SMALL)
    assert all(error.startswith("AuthenticationError") for error in errors), errors


def _with_the_key_alone(comm: Communicator, folder: str, key: str) -> str:
    options = {"parent": None, "key": key} if comm.rank == 1 else {}
    with pytest.raises((HandshakeError, AuthenticationError)) as caught:
        _child(comm, folder, (0, 1), **options)
    return str(caught.value)


def test_a_holder_of_the_key_who_is_not_of_the_parent_does_not_join(tmp_path: Path) -> None:
    errors = run(2, tmp_path, _with_the_key_alone, str(tmp_path / "child"), str(tmp_path / "key"), shape=SMALL)
    assert all("rank" in error for error in errors)


def _bad(comm: Communicator, folder: str, key: str) -> list[str]:
    errors = []
    for members, options in (((0, 1, 5), {}), ((0, 1), {"key": key})):
        with pytest.raises(ConfigError) as caught:
            _child(comm, folder, members, **options)
        errors.append(str(caught.value))
    comm.close()
    with pytest.raises(ConfigError) as caught:
        _child(comm, folder, (0, 1))
    assert comm.closed and comm._child is not None and comm._child.empty
    return [*errors, str(caught.value)]


def test_bad_children_are_refused_at_once(tmp_path: Path) -> None:
    for strangers, key, closed in run(2, tmp_path, _bad, str(tmp_path / "child"), str(tmp_path / "key"), shape=SMALL):
        assert "[5] are not members of the parent" in strangers
        assert "takes no key" in key
        assert "the parent is closed" in closed
