"""The benchmark of joining reports what the handshake costs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "handshake_scale.py"


def test_costs_of_each_group_are_reported(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    words = [sys.executable, str(SCRIPT), "--ranks", "2,8", "--json", str(out)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    two, eight = json.loads(out.read_text())
    assert (two["ranks"], eight["ranks"]) == (2, 8)
    # hello 164, auth 200 with endpoints of 144, fin 36; rank 0 publishes 48 for each other member beside.
    assert two["published_bytes"] == eight["published_bytes"] == 400
    assert eight["published_bytes_rank_0"] == 400 + 48 * 7
    assert eight["read_bytes"] == 8 * 400 + 48 * 7
    assert 0 < eight["cpu_ms"] <= eight["slowest_cpu_ms"]
    assert eight["by_round_ms"].keys() == {"hello", "auth", "wrap", "fin", "finish"}


def test_a_group_of_one_does_not_join() -> None:
    words = [sys.executable, str(SCRIPT), "--ranks", "1"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2 and "at least 2 ranks" in done.stderr
