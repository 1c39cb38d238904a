"""The build without a cipher: it is what it says, it cannot meet the real package, and nothing of it is shipped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cipherless.build import ENGINE, LABELS, ROOT, TREE, BuildError, build, check, take_over

import securecoll
from securecoll import _engine

MARKS = (b"BENCH/1", b"bench1 ", b"cipherless", b"not sealed BENCH")
"""What tells the build apart: labels, its name for itself, its tag."""

JOIN = """
import sys
import securecoll

folder, rank = sys.argv[1], int(sys.argv[2])
exchange = securecoll.DirectoryExchange(folder + "/exchange", rank=rank, size=2)
try:
    securecoll.Communicator.create(exchange, folder + "/key", timeout=20)
except securecoll.SecureCollError as error:
    print(type(error).__name__, error)
else:
    print("joined")
"""

LOOK = """
import json
import sys
from pathlib import Path

import securecoll
from tests.attack.test_confidential import CANARY, shows, works
from tests.groups import SMALL, HostView, group

if __name__ == "__main__":
    with group(2, Path(sys.argv[1]), works, 1.5, shape=SMALL) as ranks:
        ranks.wait_joined()
        views = [HostView(pid, rank, 2, SMALL) for rank, pid in enumerate(ranks.pids)]
        seen = False
        while not ranks._pipes[0].poll():
            seen = seen or any(shows(view.memory[:], CANARY) for view in views)
        errors = [repr(outcome.error) for outcome in ranks.finish() if outcome.error is not None]
    print(json.dumps({"seen": seen, "errors": errors, "from": securecoll.__file__}))
"""


@pytest.fixture(scope="module")
def cipherless() -> Path:
    return build()


def environment(*first: Path) -> dict[str, str]:
    """In which ``first`` is looked up before anything else."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [*first, ROOT]))}


def python(script: str, *arguments: str, folder: Path, first: tuple[Path, ...]) -> subprocess.Popen[str]:
    """A process that runs a script, outside the repository: what it imports is told by ``first`` alone."""
    file = folder / "script.py"
    file.write_text(script)
    command = [sys.executable, str(file), *arguments]
    return subprocess.Popen(command, env=environment(*first), cwd=folder, stdout=subprocess.PIPE, text=True)


def join(folder: Path, *firsts: tuple[Path, ...]) -> list[str]:
    """What each of two ranks with one key says of the handshake; each imports securecoll from its own place."""
    (folder / "exchange").mkdir()
    (folder / "key").write_bytes(os.urandom(32))
    (folder / "key").chmod(0o600)
    ranks = [python(JOIN, str(folder), str(rank), folder=folder, first=first) for rank, first in enumerate(firsts)]
    return [rank.communicate(timeout=60)[0].strip() for rank in ranks]


def test_a_real_rank_and_a_cipherless_one_refuse_each_other(cipherless: Path, tmp_path: Path) -> None:
    for number, firsts in enumerate([((), (cipherless,)), ((cipherless,), ())]):
        folder = tmp_path / str(number)
        folder.mkdir()
        words = join(folder, *firsts)
        assert all(word.startswith("HandshakeError") for word in words), words


@pytest.mark.parametrize("real", [True, False])
def test_ranks_of_one_build_join(cipherless: Path, tmp_path: Path, real: bool) -> None:
    first = () if real else (cipherless,)
    assert join(tmp_path, first, first) == ["joined", "joined"]


def look(folder: Path, *first: Path) -> dict[str, object]:
    """What a host finds in shared memory while two ranks move a known line: see tests/attack/test_confidential.py."""
    process = python(LOOK, str(folder), folder=folder, first=first)
    found: dict[str, object] = json.loads(process.communicate(timeout=100)[0])
    assert found["errors"] == []
    return found


def test_the_search_for_plaintext_finds_it_without_the_cipher(cipherless: Path, tmp_path: Path) -> None:
    found = look(tmp_path, cipherless)
    assert str(found["from"]).startswith(str(cipherless))
    assert found["seen"]


def test_the_same_search_finds_none_of_the_real_package(tmp_path: Path) -> None:
    found = look(tmp_path)
    assert not str(found["from"]).startswith(str(TREE))
    assert not found["seen"]


def test_every_label_is_another_one(cipherless: Path) -> None:
    files = [path.read_bytes() for path in (cipherless / "securecoll").rglob("*.py")]
    assert sum(b"SCOLL-BENCH/1" in content for content in files) >= 4
    assert not any(label in content for label, _ in LABELS for content in files)


def test_an_engine_with_a_real_label_is_refused(cipherless: Path, tmp_path: Path) -> None:
    engine = cipherless / ENGINE
    check(engine)
    with pytest.raises(BuildError, match="still has the label 'scoll1 '"):
        check(Path(_engine.__file__))
    without = tmp_path / "engine.so"
    without.write_bytes(engine.read_bytes().replace(b"bench1 ", b"       "))
    with pytest.raises(BuildError, match="has no label 'bench1 '"):
        check(without)


def test_a_second_build_compiles_nothing(cipherless: Path) -> None:
    def made() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in cipherless.glob("build/objects/*/*")}

    before = made()
    assert before
    build()
    assert made() == before


def test_what_a_changed_file_went_into_is_not_taken_over(cipherless: Path) -> None:
    kdf = f"build/objects/{sys.implementation.cache_tag}-nanobind*/kernels-engine-kdf.cpp.o"
    kept, real = next(cipherless.glob(kdf)), next(ROOT.glob(kdf))
    mine = kept.read_bytes()
    os.utime(kept, ns=(0, 0))  # older than the real one
    take_over({Path("kernels/engine/kdf.cpp")})
    assert kept.read_bytes() == mine != real.read_bytes()
    take_over({Path("kernels/engine/kdf.hpp")})  # a header counts just so
    assert kept.read_bytes() == mine
    build()


def test_the_package_that_is_imported_holds_none_of_it(cipherless: Path) -> None:
    package = Path(securecoll.__file__).parent
    libraries = list(package.glob("*.so"))
    assert any(path.name.startswith("_engine") for path in libraries)
    for path in [*libraries, *package.rglob("*.py")]:
        content = path.read_bytes()
        assert not [mark for mark in MARKS if mark in content], path
    engine = (cipherless / ENGINE).read_bytes()
    assert [mark for mark in MARKS[1:] if mark not in engine] == [], "the marks that were looked for"


def test_neither_wheel_nor_source_archive_holds_any_of_it(cipherless: Path, tmp_path: Path) -> None:
    """Built from here, with the cipher-less tree lying there."""
    command = [sys.executable, "setup.py", "--quiet", "egg_info", "--egg-base", str(tmp_path)]
    command += ["build_py", "--build-lib", str(tmp_path / "wheel")]
    subprocess.run(command, cwd=ROOT, check=True)
    (listed,) = tmp_path.glob("*.egg-info/SOURCES.txt")
    archive = listed.read_text().splitlines()
    assert "kernels/host/aead.cpp" in archive
    assert [name for name in archive if name.startswith(("benchmarks", "build")) or "cipherless" in name] == []
    wheel = [path for path in (tmp_path / "wheel").rglob("*") if path.is_file()]
    assert any(path.name == "communicator.py" for path in wheel)
    for path in wheel:
        assert not [mark for mark in MARKS if mark in path.read_bytes()], path
