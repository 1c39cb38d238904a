"""``securecoll keygen`` makes one good key file, and touches nothing that exists."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner

from securecoll.cli import main
from securecoll.cli.keygen import write_key


def keygen(path: Path) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["keygen", str(path)])
    return result.exit_code, result.output


def test_a_key_is_32_bytes_that_only_the_owner_reads_whatever_the_umask(tmp_path: Path) -> None:
    for umask in (0o000, 0o022, 0o777):
        path = tmp_path / f"key-{umask:o}"
        before = os.umask(umask)
        try:
            code, output = keygen(path)
        finally:
            os.umask(before)
        assert code == 0, output
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert path.stat().st_size == 32


def test_two_keys_differ_and_are_not_zero(tmp_path: Path) -> None:
    write_key(tmp_path / "a")
    write_key(tmp_path / "b")
    a, b = (tmp_path / "a").read_bytes(), (tmp_path / "b").read_bytes()
    assert a != b
    assert any(a) and any(b)


def test_the_key_is_never_printed(tmp_path: Path) -> None:
    code, output = keygen(tmp_path / "key")
    assert code == 0
    key = (tmp_path / "key").read_bytes()
    assert key not in output.encode("latin-1", "replace")
    assert key.hex() not in output.lower()
    assert str(tmp_path / "key") in output


def test_an_existing_file_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(b"precious")
    code, output = keygen(path)
    assert code == 1
    assert "never overwritten" in output
    assert path.read_bytes() == b"precious"


@pytest.mark.parametrize("dangling", [False, True])
def test_a_symlink_is_refused_and_its_target_untouched(tmp_path: Path, dangling: bool) -> None:
    target = tmp_path / "target"
    if not dangling:
        target.write_bytes(b"precious")
    path = tmp_path / "key"
    path.symlink_to(target)
    code, _ = keygen(path)
    assert code == 1
    assert target.exists() is not dangling
    if not dangling:
        assert target.read_bytes() == b"precious"


def test_a_missing_folder_is_one_readable_line(tmp_path: Path) -> None:
    code, output = keygen(tmp_path / "missing" / "key")
    assert code == 1
    assert "No such file or directory" in output
    assert "Traceback" not in output


def test_a_failed_write_leaves_no_partial_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "write", lambda fd, data: len(data) - 1)
    code, output = keygen(tmp_path / "key")
    assert code == 1
    assert "in part only" in output
    assert not (tmp_path / "key").exists()
