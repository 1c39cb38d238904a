"""Who started us, and with which key."""

from __future__ import annotations

import multiprocessing
import stat
from pathlib import Path

import pytest
from harness.launch import Launch, Launcher, LaunchError, choose_key, detect, make_key

LOCAL = Launch(Launcher.MPI, 0, 2, 0, 2)
SPREAD = Launch(Launcher.MPI, 0, 2, 0, 1)


@pytest.mark.parametrize(
    ("environ", "launch"),
    [
        ({}, Launch(Launcher.ALONE)),
        (
            {"PMI_RANK": "1", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"},
            Launch(Launcher.MPI, 1, 4, 1, 2),
        ),
        (
            {
                "OMPI_COMM_WORLD_RANK": "3",
                "OMPI_COMM_WORLD_SIZE": "4",
                "OMPI_COMM_WORLD_LOCAL_RANK": "3",
                "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
            },
            Launch(Launcher.MPI, 3, 4, 3, 4),
        ),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, Launch(Launcher.MPI, 1, 2, 0, 1)),
        (
            {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"},
            Launch(Launcher.TORCH, 1, 2, 1, 2),
        ),
        ({"RANK": "1", "WORLD_SIZE": "2"}, Launch(Launcher.TORCH, 1, 2, 0, 1)),
        ({"RANK": "1"}, Launch(Launcher.ALONE)),
    ],
)
def test_launchers_are_told_apart(environ: dict[str, str], launch: Launch) -> None:
    assert detect(environ) == launch


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"RANK": "2", "WORLD_SIZE": "2"}, "ranks count from 0"),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, "ranks count from 0"),
        ({"RANK": "one", "WORLD_SIZE": "2"}, "RANK is 'one', not a number"),
        ({"PMI_RANK": "0", "PMI_SIZE": "0"}, "ranks count from 0"),
        ({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "3"}, "ranks count from 0"),
    ],
)
def test_an_environment_that_contradicts_itself_is_refused(environ: dict[str, str], message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        detect(environ)


def test_a_given_key_comes_before_a_configured_one_and_that_before_our_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    configured = {"SECURECOLL_KEY_FILE": "/somewhere/key"}
    own = tmp_path / ".cache" / "securecoll" / "bench.key"
    assert choose_key(LOCAL, Path("given.key"), configured)[0] == Path("given.key")
    assert choose_key(LOCAL, None, configured)[0] is None
    assert not own.exists()
    path, line = choose_key(LOCAL, None, {})
    assert path == own and str(own) in line
    assert own.stat().st_size == 32 and stat.S_IMODE(own.stat().st_mode) == 0o600
    assert stat.S_IMODE(own.parent.stat().st_mode) == 0o700
    content = own.read_bytes()
    choose_key(LOCAL, None, {})
    assert own.read_bytes() == content


def test_ranks_on_several_hosts_need_a_key_that_somebody_brought(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(LaunchError, match="securecoll keygen"):
        choose_key(SPREAD, None, {})
    assert list(tmp_path.iterdir()) == []


def make_and_read(path: Path, gate: multiprocessing.synchronize.Barrier, results: multiprocessing.SimpleQueue) -> None:
    gate.wait()
    made = make_key(path)
    results.put((made, path.read_bytes()))


def test_ranks_that_race_for_a_key_all_read_the_one_that_won(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    for attempt in range(10):
        path, gate, results = tmp_path / f"{attempt}.key", context.Barrier(4), context.SimpleQueue()
        ranks = [context.Process(target=make_and_read, args=(path, gate, results)) for _ in range(4)]
        for rank in ranks:
            rank.start()
        outcomes = [results.get() for _ in ranks]
        for rank in ranks:
            rank.join()
        assert [made for made, _ in outcomes].count(True) == 1
        keys = {key for _, key in outcomes}
        assert len(keys) == 1 and len(keys.pop()) == 32
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        f"{attempt}.key" for attempt in range(10)
    )  # and no drafts
