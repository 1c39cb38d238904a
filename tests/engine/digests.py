"""What every collective and algorithm gives, as one hash a rank: equal hashes mean equal bits."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from securecoll import Communicator
from securecoll.codes import Collective
from securecoll.plan import ALGORITHMS

COUNTS = (1, 1024, 9001)


def every_result(comm: Communicator) -> str:
    """Runs everything on random floats, whose sums depend on the order of addition."""
    rng = np.random.default_rng(1000 + comm.rank)
    n, me, digest = comm.size, comm.rank, hashlib.sha256()

    def take(result: Any) -> None:
        digest.update(result.tobytes())

    for count in COUNTS:
        root = count % n
        one = rng.standard_normal(count).astype(np.float32)
        all_ = rng.standard_normal(count * n).astype(np.float32)
        for name in ALGORITHMS[Collective.ALL_REDUCE]:
            out = one.copy()
            comm.all_reduce(out, algorithm=name)
            take(out)
        for name in ALGORITHMS[Collective.REDUCE_SCATTER]:
            out = np.zeros_like(one)
            comm.reduce_scatter(all_, out, algorithm=name)
            take(out)
        for name in ALGORITHMS[Collective.ALL_GATHER]:
            out = np.zeros_like(all_)
            comm.all_gather(one, out, algorithm=name)
            take(out)
        for name in ALGORITHMS[Collective.BROADCAST]:
            out = one.copy()
            comm.broadcast(out, root, algorithm=name)
            take(out)
        for name in ALGORITHMS[Collective.REDUCE]:
            out = np.zeros_like(one)
            comm.reduce(one, out, root=root, algorithm=name)
            take(out)
        for name in ALGORITHMS[Collective.GATHER]:
            out = np.zeros_like(all_)
            comm.gather(one, out if me == root else None, root, algorithm=name)
            take(out)
        for name in ALGORITHMS[Collective.SCATTER]:
            out = np.zeros_like(one)
            comm.scatter(all_ if me == root else None, out, root, algorithm=name)
            take(out)
        for name in ALGORITHMS[Collective.ALL_TO_ALL]:
            out = np.zeros_like(all_)
            comm.all_to_all(all_, out, algorithm=name)
            take(out)
        comm.barrier()
    return digest.hexdigest()
