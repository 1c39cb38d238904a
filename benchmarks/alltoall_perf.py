"""Measures and checks alltoall of securecoll: every rank sends each rank its part, and gets one from each.

    mpirun -n 4 .venv/bin/python benchmarks/alltoall_perf.py -b 8 -e 16M -f 8
    torchrun --nproc-per-node 4 benchmarks/alltoall_perf.py -b 8 -e 16M -f 8

Flags and columns are those of nccl-tests; --help lists them, harness/perf.py says what ours mean.
"""

import sys

from harness.collectives import ALL_TO_ALL
from harness.perf import main

if __name__ == "__main__":
    sys.exit(main(ALL_TO_ALL))
