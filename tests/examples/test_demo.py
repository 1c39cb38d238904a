"""The demo, as ``make demo`` runs it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_the_demo_shows_what_it_promises() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    result = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "demo.py")], capture_output=True, text=True, timeout=300
    )
    out = result.stdout
    assert result.returncode == 0, out + result.stderr
    accuracy = re.search(r"held-out images: ([\d.]+)%", out)
    assert accuracy is not None and float(accuracy[1]) > 95
    hashes = re.findall(r"parameters on rank \d: ([0-9a-f]{64})", out)
    assert len(hashes) == 2 and len(set(hashes)) == 1
    assert ": 0 matches for" in out and "✗" not in out
    assert "64 MiB" in out and "gloo" in out
