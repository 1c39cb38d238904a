"""Benchmarks are scripts beside their ``harness`` package: found here as they find it themselves."""

import sys
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
