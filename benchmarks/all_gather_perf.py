"""Measures and checks all_gather of securecoll: every rank gets all ranks' buffers, in rank order.

    mpirun -n 4 .venv/bin/python benchmarks/all_gather_perf.py -b 8 -e 16M -f 8
    torchrun --nproc-per-node 4 benchmarks/all_gather_perf.py -b 8 -e 16M -f 8

Flags and columns are those of nccl-tests; --help lists them, harness/perf.py says what ours mean.
"""

import sys

from harness.collectives import ALL_GATHER
from harness.perf import main

if __name__ == "__main__":
    sys.exit(main(ALL_GATHER))
