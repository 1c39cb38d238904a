"""Measures and checks reduce_scatter of securecoll: every rank gets its part of the reduction of all ranks' buffers.

    mpirun -n 4 .venv/bin/python benchmarks/reduce_scatter_perf.py -b 8 -e 16M -f 8
    torchrun --nproc-per-node 4 benchmarks/reduce_scatter_perf.py -b 8 -e 16M -f 8

Flags and columns are those of nccl-tests; --help lists them, harness/perf.py says what ours mean.
"""

import sys

from harness.collectives import REDUCE_SCATTER
from harness.perf import main

if __name__ == "__main__":
    sys.exit(main(REDUCE_SCATTER))
