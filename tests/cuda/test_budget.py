"""What the kernels cost by their machine code is read right, and is within what was recorded."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

TOOL = Path(__file__).resolve().parents[2] / "kernels" / "cuda" / "budget.py"


@pytest.fixture
def budget() -> ModuleType:
    spec = importlib.util.spec_from_file_location("securecoll_budget", TOOL)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


def needs(budget: ModuleType, compiler: str) -> None:
    if shutil.which("cuobjdump") is None and budget.python_package_file("*/bin/cuobjdump") is None:
        pytest.skip("needs cuobjdump")
    if compiler == "nvcc" and shutil.which("nvcc") is None:
        pytest.skip("needs nvcc")
    if compiler == "nvrtc" and budget.python_package_file("*/lib/libnvrtc.so.*") is None:
        pytest.skip("needs NVRTC")


def kept(compiler: str, *archs: str) -> str:
    command = [sys.executable, str(TOOL), "--compiler", compiler]
    done = subprocess.run([*command, *(f"--arch={arch}" for arch in archs)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all budgets are kept" in done.stdout
    return done.stdout


def test_the_kernels_keep_their_budgets_on_hopper(budget: ModuleType) -> None:
    compiler = "nvcc" if shutil.which("nvcc") else "nvrtc"
    needs(budget, compiler)
    table = kept(compiler, "sm_90")
    for kernel in ("sc_expand_key", "sc_seal", "sc_verify", "sc_commit", "sc_commit_seal", "sc_reduce", "sc_gate"):
        assert f"| {kernel} |" in table


@pytest.mark.slow
@pytest.mark.parametrize("compiler", ["nvcc", "nvrtc"])
def test_the_kernels_keep_their_budgets_on_all_architectures(budget: ModuleType, compiler: str) -> None:
    needs(budget, compiler)
    kept(compiler, *budget.ARCHITECTURES)


# A loop over text with a loop of rounds and a loop of column sets in it, and a way around for the ends of a text.
LISTING = """
		Function : sc_seal
        /*0000*/                   MOV R1, c[0x0][0x28] ;        /* 0x0 */
        /*0010*/                   LDG.E.128 R4, desc[UR4][R2.64] ;
        /*0020*/                   LDS.128 R8, [R3] ;
        /*0030*/                   LOP3.LUT R2, R8, R5, R2, 0x96, !PT ;
        /*0040*/                   IMAD.MOV.U32 R7, RZ, RZ, R6 ;
        /*0050*/              @!P0 BRA 0x20 ;
        /*0060*/                   BMMA.168256.AND.POPC R4, R4.ROW, R8.COL, R4 ;
        /*0070*/               @P3 BRA 0x60 ;
        /*0080*/                   BRA.DIV UR4, 0x100 ;
        /*0090*/                   SHFL.IDX PT, R3, R3, R4, 0x1f ;
        /*00a0*/               @P2 BRA 0xd0 ;
        /*00b0*/                   CALL.REL.NOINC 0x140 ;
        /*00c0*/                   LDS R8, [R3] ;
        /*00d0*/                   BRA P1, 0x10 ;
        /*00e0*/                   EXIT ;
        /*00f0*/                   NOP ;
        /*0100*/                   SHFL.IDX PT, R3, R3, R4, 0x1f ;
        /*0110*/                   BRA 0xa0 ;
        /*0120*/                   NOP ;
        /*0130*/                   NOP ;
        /*0140*/                   STG.E.128 desc[UR4][R2.64], R4 ;
        /*0150*/                   RET.REL.NODEC R2 0x0 ;
"""
USAGE = """
 Function sc_seal:
  REG:142 STACK:0 SHARED:1024 LOCAL:0 CONSTANT[0]:536 TEXTURE:0 SURFACE:0 SAMPLER:0
"""


def test_a_main_loop_is_counted_by_how_often_its_loops_run(budget: ModuleType) -> None:
    cost = budget.main_loop(budget.functions(LISTING)["sc_seal"])
    blocks, rounds, groups = budget.BLOCKS, budget.ROUNDS, budget.COLUMN_GROUPS
    assert cost.memory * blocks == 4  # not that of the function, which is called for ends alone
    assert cost.shared * blocks == rounds * 4 + 1
    assert cost.alu * blocks == rounds
    assert cost.multiplier * blocks == rounds
    assert cost.tensor * blocks == groups
    assert cost.all * blocks == 1 + rounds * 4 + groups * 2 + 3 + 1
    assert cost.clocks == (rounds * 4 + 1 + 4) / blocks


@pytest.mark.parametrize(
    ("listing", "usage", "clocks", "complaint"),
    [
        (LISTING, USAGE, 7.0, None),
        (LISTING, USAGE, 6.0, "clocks"),
        (LISTING, USAGE.replace("REG:142", "REG:169"), 7.0, "169 registers"),
        (LISTING, USAGE.replace("STACK:0", "STACK:8"), 7.0, "8 bytes of stack"),
        (LISTING.replace("MOV R1, c[0x0][0x28]", "STL [R1], R2"), USAGE, 7.0, "1 accesses of local memory"),
    ],
)
def test_what_exceeds_its_budget_is_said(
    budget: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    listing: str,
    usage: str,
    clocks: float,
    complaint: str | None,
) -> None:
    texts = {"--dump-sass": listing, "--dump-resource-usage": usage}
    monkeypatch.setattr(budget, "cuobjdump", lambda option, cubin: texts[option])
    monkeypatch.setattr(budget, "LOOPS", {"sm_90": {"sc_seal": budget.LoopBudget(clocks, 10)}})
    monkeypatch.setattr(budget, "OPENINGS", {})
    excess = budget.examine("sm_90", Path("unused"))
    assert len(excess) == (complaint is not None)
    assert complaint is None or complaint in excess[0]


def test_the_exit_status_says_whether_a_budget_is_exceeded(
    budget: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(budget, "compile_with_nvrtc", lambda arch, target: None)
    monkeypatch.setattr(sys, "argv", ["budget.py", "--compiler", "nvrtc", "--arch", "sm_90"])
    for excess, status in (([], 0), (["sm_90 sc_seal: too slow"], 1)):
        monkeypatch.setattr(budget, "examine", lambda arch, cubin, found=excess: found)
        with pytest.raises(SystemExit) as exit:
            budget.main()
        assert exit.value.code == status
        assert ("over budget: sm_90 sc_seal: too slow" in capsys.readouterr().out) == bool(status)
