"""Measures and checks broadcast of securecoll: every rank gets the root's buffer.

    mpirun -n 4 .venv/bin/python benchmarks/broadcast_perf.py -b 8 -e 16M -f 8
    torchrun --nproc-per-node 4 benchmarks/broadcast_perf.py -b 8 -e 16M -f 8

Flags and columns are those of nccl-tests; --help lists them, harness/perf.py says what ours mean.
"""

import sys

from harness.collectives import BROADCAST
from harness.perf import main

if __name__ == "__main__":
    sys.exit(main(BROADCAST))
