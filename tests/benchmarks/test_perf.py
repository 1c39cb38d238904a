"""The command line, columns and exit status of the ``*_perf.py`` programs."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness.collectives import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, BROADCAST, COLLECTIVES, REDUCE, Collective
from harness.floor import AeadRates
from harness.launch import Launch, Launcher
from harness.perf import Row, Timing, cases, format_row, format_timing, header, parse, parse_size, run, sizes

ALONE = Launch(Launcher.ALONE)
FOUR = Launch(Launcher.MPI, 0, 4, 0, 4)
RATES = AeadRates("any", 10.0, 10.0)


class Loopback:
    """A communicator of one rank in NumPy, which can be told to flip a bit of the result of its n-th call.

    Sums and maxima that the harness asks for on its own (int64, float64) are always right.
    """

    rank, size = 0, 1
    suite = "aegis-256x4"

    def __init__(self, flip_at: int = -1) -> None:
        self._calls = 0
        self._flip_at = flip_at

    def _finish(self, send: Any, recv: Any) -> None:
        recv[:] = send
        if recv.dtype == np.float32:
            if self._calls == self._flip_at:
                recv.view(np.uint32)[-1] ^= 1
            self._calls += 1

    def all_reduce(self, send: Any, recv: Any = None, *_: Any, **__: Any) -> None:
        self._finish(send, send if recv is None else recv)

    reduce = all_reduce

    def reduce_scatter(self, send: Any, recv: Any, *_: Any, **__: Any) -> None:
        self._finish(send, recv)

    def all_gather(self, send: Any, recv: Any, **_: Any) -> None:
        self._finish(send, recv.reshape(send.shape))

    def all_to_all(self, send: Any, recv: Any, **_: Any) -> None:
        self._finish(send, recv)

    def broadcast(self, buffer: Any, **_: Any) -> None:
        self._finish(buffer, buffer)

    def barrier(self) -> None:
        pass

    def stats(self) -> argparse.Namespace:
        return argparse.Namespace(bytes_sealed=3 * self._calls, bytes_opened=5 * self._calls)


def outcome(collective: Collective, arguments: list[str], flip_at: int = -1) -> int:
    options = parse(collective, ALONE, arguments)
    communicator: Any = Loopback(flip_at)
    return run(communicator, collective, ALONE, options, RATES)


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("8", 8), ("64K", 65536), ("64k", 65536), ("1.5M", 3 << 19), ("2G", 2 << 30), ("4KiB", 4096), ("4KB", 4096)],
)
def test_sizes_take_suffixes(text: str, nbytes: int) -> None:
    assert parse_size(text) == nbytes


@pytest.mark.parametrize("text", ["", "0", "-8", "8T", "K", "1.3", "0.0001K", "8 8", "0x10"])
def test_what_is_not_a_size_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        parse_size(text)


def test_sizes_grow_by_factor_or_step() -> None:
    assert list(sizes(8, 128, None, 4.0)) == [8, 32, 128]
    assert list(sizes(8, 40, 16, 4.0)) == [8, 24, 40]
    assert list(sizes(1, 5, None, 1.1)) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("collective", "arguments", "message"),
    [
        (ALL_REDUCE, ["-b", "1M", "-e", "1K"], "is over -e"),
        (ALL_REDUCE, ["-f", "1"], "-f must be over 1"),
        (ALL_REDUCE, ["-d", "float7"], "-d float7 is none of"),
        (ALL_REDUCE, ["-o", "mean"], "-o mean is none of"),
        (ALL_REDUCE, ["-o", "band", "-d", "float"], "-o band is not defined for all_reduce on -d float"),
        (ALL_REDUCE, ["-n", "-1"], "count calls"),
        (ALL_REDUCE, ["--json", "/no/such/folder/out.json"], "no such folder"),
        (ALL_REDUCE, ["--timeout", "0"], "--timeout must be over 0"),
        (ALL_REDUCE, ["-b", "many"], "'many' is not a size"),
        (BROADCAST, ["-r", "4"], "-r 4 is no rank: there are 4"),
    ],
)
def test_a_wrong_flag_is_one_line_on_rank_0_and_status_2_everywhere(
    collective: Collective, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in (0, 3):
        with pytest.raises(SystemExit) as exit_:
            parse(collective, Launch(Launcher.MPI, rank, 4, rank, 4), arguments)
        assert exit_.value.code == 2
        written = capsys.readouterr()
        assert written.out == ""
        if rank == 0:
            assert message in written.err and written.err.count("\n") == 1
        else:
            assert written.err == ""


def test_rows_are_whole_parts_of_whole_elements_once_each() -> None:
    options = parse(ALL_GATHER, FOUR, ["-b", "1", "-e", "256", "-f", "2"])
    assert [case.nbytes for case in cases(ALL_GATHER, FOUR, options)] == [16, 32, 64, 128, 256]
    options = parse(ALL_REDUCE, FOUR, ["-b", "10", "-e", "10", "-d", "double"])
    assert [case.nbytes for case in cases(ALL_REDUCE, FOUR, options)] == [8]


def test_all_types_and_operations_are_those_that_make_sense() -> None:
    options = parse(ALL_REDUCE, FOUR, ["-b", "64", "-e", "64", "-o", "all", "-d", "all"])
    problems = {(case.pattern.element.name, case.pattern.operation) for case in cases(ALL_REDUCE, FOUR, options)}
    # 8 integer types have all 9; 8 real floats not the 3 bitwise; 2 complex neither those nor min and max; bool all
    # but avg and premulsum.
    assert len(problems) == 8 * 9 + 8 * 6 + 2 * 4 + 7
    assert ("bfloat16", "band") not in problems and ("bool", "band") in problems


def test_every_root_has_its_turn() -> None:
    options = parse(REDUCE, FOUR, ["-b", "64", "-e", "64", "-r", "-1"])
    assert [case.root for case in cases(REDUCE, FOUR, options)] == [0, 1, 2, 3]
    options = parse(ALL_REDUCE, FOUR, ["-b", "64", "-e", "64", "-r", "-1"])
    assert [case.root for case in cases(ALL_REDUCE, FOUR, options)] == [0]


def test_rows_line_up_with_the_header() -> None:
    timing = Timing(123.456, 1.0, 1.5, 0, 1.0, 2.0)
    lines = header().splitlines()
    for half in (timing, None, Timing(None, None, None, None, 0.0, None), Timing(1e7, 99.0, 99.0, 99999, 9.0, 1e9)):
        assert len(format_timing(half)) == len(format_timing(timing))
        row = format_row(Row(1 << 34, 1 << 32, "f8e4m3fnuz", "premulsum", 64, half, half), "aegis-256x4")
        assert len(row) == len(lines[1])
    row = format_row(Row(64, 16, "float", "sum", None, timing, None), "aes-256-gcm")
    for title, value in (("size", "64"), ("count", "16"), ("type", "float"), ("redop", "sum"), ("root", "-1")):
        assert lines[1].index(title) + len(title) == row.index(f" {value}") + 1 + len(value)


@pytest.mark.parametrize("collective", COLLECTIVES.values(), ids=lambda collective: collective.name)
def test_right_data_is_status_0(collective: Collective, capsys: pytest.CaptureFixture[str]) -> None:
    assert outcome(collective, ["-b", "8", "-e", "64K", "-f", "16", "-n", "2", "-w", "1"]) == 0
    assert "# Out of bounds values : 0 OK" in capsys.readouterr().out


# With -n 3 and -w 2, out of place: calls 0 and 1 warm up, 2 is checked, 3 to 5 are timed, 6 is checked.
@pytest.mark.parametrize("flip_at", [2, 5, 6], ids=["after warming up", "by the last timed call", "at the end"])
@pytest.mark.parametrize(
    "collective", [c for c in COLLECTIVES.values() if c.out_of_place], ids=lambda collective: collective.name
)
def test_one_wrong_bit_is_counted_and_is_status_1(
    collective: Collective, flip_at: int, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "out.json"
    arguments = ["-b", "4K", "-e", "4K", "-n", "3", "-w", "2", "--json", str(file)]
    assert outcome(collective, arguments, flip_at) == 1
    assert "# Out of bounds values : 1 FAILED" in capsys.readouterr().out
    document = json.loads(file.read_text())
    assert document["wrong"] == 1 and document["rows"][0]["out_of_place"]["wrong"] == 1


def test_one_wrong_bit_in_place_is_counted_and_is_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["-b", "4K", "-e", "4K", "-n", "3", "-w", "2"]
    # Broadcast is in place only: 2 warm up, 1 check, 3 timed, 1 check.
    for flip_at in (2, 6):
        assert outcome(BROADCAST, arguments, flip_at) == 1
        assert "# Out of bounds values : 1 FAILED" in capsys.readouterr().out


def test_without_checks_nothing_is_claimed(capsys: pytest.CaptureFixture[str]) -> None:
    assert outcome(ALL_REDUCE, ["-b", "4K", "-e", "4K", "-n", "1", "-c", "0"], flip_at=5) == 0
    out = capsys.readouterr().out
    assert "0 not checked" in out and " OK" not in out and "N/A" in out


def test_json_holds_what_the_table_shows(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    assert outcome(ALL_TO_ALL, ["-b", "1K", "-e", "4K", "-n", "4", "-w", "1", "--json", str(file)]) == 0
    document = json.loads(file.read_text())
    assert document["benchmark"] == "alltoall_perf" and document["ranks"] == 1
    assert document["cipher"] == "aegis-256x4"
    assert document["aead"] == {"kernels": "any", "seal_gbs": 10.0, "open_gbs": 10.0}
    assert [row["size"] for row in document["rows"]] == [1024, 2048, 4096]
    for row in document["rows"]:
        assert row["in_place"] is None
        timing = row["out_of_place"]
        seconds = timing["time_us"] / 1e6
        assert timing["algbw_gbs"] == pytest.approx(row["size"] / seconds / 1e9)
        assert timing["sealed"] == pytest.approx(3 / row["size"])
        assert timing["floor"] == pytest.approx(seconds / (8 / 10e9))
        assert timing["wrong"] == 0
