"""The build: nothing twice, nothing stale."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernels.emulator import build as builder

SOURCE = """
#include "cuda/platform.cuh"
#include "amount.cuh"
namespace securecoll::cuda {
struct Args { uint64_t out; };
SC_KERNEL(amount, Args, 32, 1) { *reinterpret_cast<u32*>(args.out) = AMOUNT; }
}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(builder, "BUILT", tmp_path / "built")
    (tmp_path / "amount.cu").write_text(SOURCE)
    (tmp_path / "amount.cuh").write_text("#ifndef AMOUNT\n#define AMOUNT 1\n#endif\n")
    # The rest of the emulator is not what this is about.
    monkeypatch.setattr(builder, "EMULATOR", tmp_path / "none")
    return tmp_path


def test_what_went_in_decides_what_is_built(folder: Path) -> None:
    source = folder / "amount.cu"
    first = builder.build([source])
    made = first.stat().st_mtime_ns
    assert builder.build([source]) == first and first.stat().st_mtime_ns == made

    (folder / "amount.cuh").write_text("#define AMOUNT 2\n")
    second = builder.build([source])
    assert second != first and first.exists()

    third = builder.build([source], macros=["AMOUNT=3"])
    assert third not in (first, second)

    (folder / "amount.cuh").write_text("#ifndef AMOUNT\n#define AMOUNT 1\n#endif\n")
    assert builder.build([source]) == first and first.stat().st_mtime_ns == made


def test_an_object_that_is_gone_is_made_again(folder: Path) -> None:
    first = builder.build([folder / "amount.cu"])
    for path in builder.BUILT.rglob("*.o"):
        path.unlink()
    first.unlink()
    assert builder.build([folder / "amount.cu"]).exists()


def test_a_compiler_that_fails_is_quoted(folder: Path) -> None:
    (folder / "amount.cuh").write_text("#error no amount\n")
    with pytest.raises(RuntimeError, match="#error no amount"):
        builder.build([folder / "amount.cu"])


def test_unknown_modes_are_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match="unknown mode 'fast': expected one of plain, race, asan, tsan"):
        builder.build([folder / "amount.cu"], "fast")
