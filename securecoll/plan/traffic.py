"""Bytes that each rank seals and opens: the figures that the documentation states and the checker holds plans to.

S is the buffer's bytes, N the ranks, s_r the bytes of rank r's slice or part, T the sum of all parts. A forwarded
record counts as opened where it is opened too; passing it on is neither sealing nor opening.

============== ========= ========================== ========================================
collective     algorithm sealed by rank r           opened by rank r
============== ========= ========================== ========================================
all_reduce     one_shot  S                          (N - 1) S
all_reduce     direct    S                          (N - 1) s_r + S - s_r
all_reduce     ring      S                          S - s_p + S - s_r, p the rank before r
reduce_scatter one_shot  T - s_r                    (N - 1) s_r
reduce_scatter ring      T - s_r                    T - s_p, p the rank before r
all_gather     both      s_r                        T - s_r
broadcast      both      S on the root, else 0      0 on the root, else S
reduce         one_shot  0 on the root, else S      (N - 1) S on the root, else 0
reduce         direct    S - s_r on the root,       (N - 1) s_r, and S - s_r more on the root
                         else S
reduce         ring      0 on the root, else S      S; 0 on the rank after the root
gather         one_shot  0 on the root, else s_r    T - s_r on the root, else 0
scatter        one_shot  T - s_r on the root,       0 on the root, else s_r
                         else 0
all_to_all     one_shot  what r sends to others     what others send to r
barrier        one_shot  0                          0
============== ========= ========================== ========================================

A group of one seals and opens nothing.
"""

from __future__ import annotations

from securecoll.codes import Collective
from securecoll.plan.call import PARTED, Call, slices


def traffic(call: Call, algorithm: str) -> tuple[int, int]:
    """Bytes that ``call.rank`` seals and opens.

    Raises:
        ValueError: when the table has no such algorithm.
    """
    size, own, root, kind = call.size, call.rank, call.root, call.collective
    at_root = own == root
    if size == 1 or kind is Collective.BARRIER:
        return 0, 0
    if kind is Collective.ALL_TO_ALL:
        sends, receives = call.sends, call.receives
        return sum(n for _, n in sends) - sends[own][1], sum(n for _, n in receives) - receives[own][1]
    total = call.total
    spans = call.parts if kind in PARTED else slices(total, size)
    mine, before = spans[own][1], spans[own - 1][1]
    match kind, algorithm:
        case Collective.ALL_REDUCE, "one_shot":
            return total, (size - 1) * total
        case Collective.ALL_REDUCE, "direct":
            return total, (size - 1) * mine + total - mine
        case Collective.ALL_REDUCE, "ring":
            return total, 2 * total - before - mine
        case Collective.REDUCE_SCATTER, "one_shot":
            return total - mine, (size - 1) * mine
        case Collective.REDUCE_SCATTER, "ring":
            return total - mine, total - before
        case Collective.ALL_GATHER, "one_shot" | "ring":
            return mine, total - mine
        case Collective.BROADCAST, "one_shot" | "ring":
            return (total, 0) if at_root else (0, total)
        case Collective.REDUCE, "one_shot":
            return (0, (size - 1) * total) if at_root else (total, 0)
        case Collective.REDUCE, "direct":
            rest = total - mine
            return (rest, (size - 1) * mine + rest) if at_root else (total, (size - 1) * mine)
        case Collective.REDUCE, "ring":
            return 0 if at_root else total, 0 if own == (root + 1) % size else total
        case Collective.GATHER, "one_shot":
            return (0, total - mine) if at_root else (mine, 0)
        case Collective.SCATTER, "one_shot":
            return (total - mine, 0) if at_root else (0, mine)
    raise ValueError(f"no traffic is documented for {kind.name.lower()} by {algorithm!r}")
