"""Bytes that each rank seals, opens and carries to other hosts: the figures that the documentation states and the
checker holds plans to.

S is the buffer's bytes, N the ranks, H the hosts, s_r the bytes of rank r's slice or part, T the sum of all parts. A
forwarded record counts as opened where it is opened too; passing it on is neither sealing nor opening.

``W`` is what r collects in the columns it stands in: the slices of all ranks whose column has r on its host. With as
many ranks on every host that is the slices of the H ranks at r's place. ``W_b`` and ``W_a`` are those of them whose
owners are on the host before and the host after r's; n the ranks of r's host.

============== ================== ========================== ========================================
collective     algorithm          sealed by rank r           opened by rank r
============== ================== ========================== ========================================
all_reduce     one_shot           S                          (N - 1) S
all_reduce     direct             S                          (N - 1) s_r + S - s_r
all_reduce     ring               S                          S - s_p + S - s_r, p the rank before r
all_reduce     recursive_doubling S; leaders, for each       S; leaders (n - 1) S for their host and
                                  exchange and the result    S for each exchange
all_reduce     hierarchical       S                          (n - 1) W + W - W_b + S - s_r
reduce_scatter one_shot           T - s_r                    (N - 1) s_r
reduce_scatter ring               T - s_r                    T - s_p, p the rank before r
reduce_scatter hierarchical       T - s_r                    (n - 1) W + W - W_b
all_gather     all                s_r                        T - s_r
broadcast      all                S on the root, else 0      0 on the root, else S
reduce         one_shot           0 on the root, else S      (N - 1) S on the root, else 0
reduce         direct             S - s_r on the root,       (N - 1) s_r, and S - s_r more on the root
                                  else S
reduce         ring               0 on the root, else S      S; 0 on the first rank of the chain
reduce         tree               0 on the root, else S      S for each rank of its host and each child,
                                                             in the root's column, else 0
reduce         hierarchical       S - s_r on the root,       (n - 1) W, W more but on the host after the
                                  else S                     root's, and S - s_r more on the root
gather         one_shot           0 on the root, else s_r    T - s_r on the root, else 0
scatter        one_shot           T - s_r on the root,       0 on the root, else s_r
                                  else 0
all_to_all     one_shot           what r sends to others     what others send to r
barrier        all                0                          0
============== ================== ========================== ========================================

With one rank a host (n = 1, W the whole buffer) hierarchical is the ring, on one host (W = W_b = s_r) it is direct.

What r writes to sockets, in plaintext bytes, is nothing on one host. Else, with ``S_h`` or ``T_h`` the slices or parts
of the ranks of r's own host:

============== ================== =======================================================================
collective     algorithm          carried by rank r to other hosts
============== ================== =======================================================================
all_reduce     one_shot           (N - n) S
all_reduce     direct             S - S_h + (H - 1) s_r
all_reduce     ring               2 S - s_r - s_f, f the rank after r, where f is on another host, else 0
all_reduce     recursive_doubling S for each exchange, and with a partner; 0 but on leaders
all_reduce     hierarchical       W - s_r + W - W_a
reduce_scatter one_shot           T - T_h
reduce_scatter ring               T - s_r where the rank after r is on another host, else 0
reduce_scatter hierarchical       W - s_r
all_gather     one_shot           (H - 1) s_r
all_gather     ring               T - s_f, f the rank after r, where f is on another host, else 0
all_gather     hierarchical       W - W_a
broadcast      one_shot           (H - 1) S on the root, else 0
broadcast      ring, hierarchical S where r is followed by a rank of another host, else 0
broadcast      tree               S for each child
reduce         one_shot           S on other hosts than the root's, else 0
reduce         direct             S - S_h, and s_r more on other hosts than the root's
reduce         ring, tree         S where r is followed by a rank of another host, else 0
reduce         hierarchical       W on other hosts than the root's, else 0
gather         one_shot           s_r on other hosts than the root's, else 0
scatter        one_shot           T - T_h on the root, else 0
all_to_all     one_shot           what r sends to other hosts
============== ================== =======================================================================

A host's link carries what its ranks do together: for an all_reduce ``2 S (H - 1) / H`` with the hierarchical
algorithm and equal hosts, ``2 S (N - 1) / N`` with the ring. A group of one seals, opens and carries nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from securecoll.codes import Collective
from securecoll.plan import recursive_doubling, tree
from securecoll.plan.call import PARTED, Call, Span, slices


class Traffic(NamedTuple):
    """Payload bytes, without tags and frames."""

    sealed: int
    opened: int
    carried: int
    """Written to sockets."""


def traffic(call: Call, algorithm: str) -> Traffic:
    """What ``call.rank`` seals, opens and carries to other hosts.

    Raises:
        ValueError: when the tables have no such algorithm.
    """
    if call.size == 1 or call.collective is Collective.BARRIER or not call.total:
        return Traffic(0, 0, 0)
    match algorithm:
        case "one_shot":
            return _one_shot(call)
        case "direct":
            return _direct(call)
        case "ring":
            return _ring(call)
        case "tree":
            return _tree(call)
        case "recursive_doubling":
            return _recursive_doubling(call)
        case "hierarchical":
            return _hierarchical(call)
    raise ValueError(f"no traffic is documented for {call.collective.name.lower()} by {algorithm!r}")


def _spans(call: Call) -> tuple[Span, ...]:
    return call.parts if call.collective in PARTED else slices(call.total, call.size)


def _one_shot(call: Call) -> Traffic:
    own, size, total, topology = call.rank, call.size, call.total, call.topology
    others = size - 1
    group, hosts = topology.group(own), len(topology.groups)
    if call.collective is Collective.ALL_TO_ALL:
        sends, receives = call.sends, call.receives
        sealed = sum(n for _, n in sends) - sends[own][1]
        opened = sum(n for _, n in receives) - receives[own][1]
        return Traffic(sealed, opened, sum(n for _, n in sends) - sum(sends[p][1] for p in group))
    spans = _spans(call)
    mine, here = spans[own][1], sum(spans[p][1] for p in group)
    at_root, afar = own == call.root, topology.crosses(own, call.root)
    match call.collective:
        case Collective.ALL_REDUCE:
            return Traffic(total, others * total, (size - len(group)) * total)
        case Collective.REDUCE_SCATTER:
            return Traffic(total - mine, others * mine, total - here)
        case Collective.ALL_GATHER:
            return Traffic(mine, total - mine, (hosts - 1) * mine)
        case Collective.BROADCAST:
            return Traffic(total, 0, (hosts - 1) * total) if at_root else Traffic(0, total, 0)
        case Collective.REDUCE:
            return Traffic(0, others * total, 0) if at_root else Traffic(total, 0, total * afar)
        case Collective.GATHER:
            return Traffic(0, total - mine, 0) if at_root else Traffic(mine, 0, mine * afar)
        case Collective.SCATTER:
            return Traffic(total - mine, 0, total - here) if at_root else Traffic(0, mine, 0)
    raise _undocumented(call, "one_shot")


def _direct(call: Call) -> Traffic:
    own, size, total, topology = call.rank, call.size, call.total, call.topology
    spans = _spans(call)
    mine, here = spans[own][1], sum(spans[p][1] for p in topology.group(own))
    match call.collective:
        case Collective.ALL_REDUCE:
            carried = total - here + (len(topology.groups) - 1) * mine
            return Traffic(total, (size - 1) * mine + total - mine, carried)
        case Collective.REDUCE if own == call.root:
            return Traffic(total - mine, (size - 1) * mine + total - mine, total - here)
        case Collective.REDUCE:
            return Traffic(total, (size - 1) * mine, total - here + mine * topology.crosses(own, call.root))
    raise _undocumented(call, "direct")


def _ring(call: Call) -> Traffic:
    own, total, topology = call.rank, call.total, call.topology
    order, position = topology.order, topology.positions[own]
    previous, following = order[position - 1], order[(position + 1) % call.size]
    spans = _spans(call)
    mine, before, after = (spans[p][1] for p in (own, previous, following))
    crosses, last = topology.crosses(own, following), own == call.root
    match call.collective:
        case Collective.ALL_REDUCE:
            return Traffic(total, 2 * total - before - mine, (2 * total - mine - after) * crosses)
        case Collective.REDUCE_SCATTER:
            return Traffic(total - mine, total - before, (total - mine) * crosses)
        case Collective.ALL_GATHER:
            return Traffic(mine, total - mine, (total - after) * crosses)
        case Collective.BROADCAST:
            chain = topology.outward(call.root)
            place = chain.index(own)
            crosses = place + 1 < call.size and topology.crosses(own, chain[place + 1])
            return Traffic(total * last, total * (not last), total * crosses)
        case Collective.REDUCE:
            chain = topology.inward(call.root)
            place = chain.index(own)
            crosses = not last and topology.crosses(own, chain[place + 1])
            return Traffic(total * (not last), total * (place > 0), total * crosses)
    raise _undocumented(call, "ring")


def _tree(call: Call) -> Traffic:
    own, total, topology = call.rank, call.total, call.topology
    at_root, in_column = own == call.root, own == topology.relay(call.root, topology.hosts[own])
    parent, kids = tree.family(topology, call.root, own) if in_column else (None, ())
    match call.collective:
        case Collective.BROADCAST:
            return Traffic(total * at_root, total * (not at_root), total * len(kids))
        case Collective.REDUCE:
            opened = total * (len(topology.group(own)) - 1 + len(kids)) if in_column else 0
            return Traffic(total * (not at_root), opened, total * (parent is not None))
    raise _undocumented(call, "tree")


def _recursive_doubling(call: Call) -> Traffic:
    own, total, topology = call.rank, call.total, call.topology
    group, host = topology.group(own), topology.hosts[own]
    if call.collective is not Collective.ALL_REDUCE:
        raise _undocumented(call, "recursive_doubling")
    if own != group[0]:
        return Traffic(total, total, 0)
    near = len(group) - 1
    if recursive_doubling.partner_of(topology, host) is not None:
        return Traffic(total, (near + 1) * total, total)
    rounds = recursive_doubling.rounds_of(topology)
    charged = recursive_doubling.charge_of(topology, host) is not None
    sealed = rounds + (charged or near > 0)
    return Traffic(sealed * total, (near + charged + rounds) * total, (rounds + charged) * total)


def _hierarchical(call: Call) -> Traffic:
    own, root, total, topology = call.rank, call.root, call.total, call.topology
    near, hosts = len(topology.group(own)) - 1, len(topology.groups)
    if call.collective is Collective.BROADCAST:
        in_column = own == topology.relay(root, topology.hosts[own])
        last = topology.beside(own, 1) == topology.hosts[root]
        return Traffic(total * (own == root), total * (own != root), total * (in_column and not last))
    spans: Sequence[Span] = _spans(call)
    if call.collective is Collective.REDUCE:
        owners = topology.group(root)
        shares = dict(zip(owners, slices(total, len(owners)), strict=True))
        spans = [shares.get(p, (0, 0)) for p in range(call.size)]

    def collected(host: int) -> int:
        return sum(spans[owner][1] for owner in topology.owned(own, host))

    mine = spans[own][1]
    column = sum(collected(host) for host in range(hosts))
    before, after = collected(topology.beside(own, -1)), collected(topology.beside(own, 1))
    added = (near + 1) * column - before
    match call.collective:
        case Collective.ALL_REDUCE:
            return Traffic(total, added + total - mine, 2 * column - mine - after)
        case Collective.REDUCE_SCATTER:
            return Traffic(total - mine, added, column - mine)
        case Collective.ALL_GATHER:
            return Traffic(mine, total - mine, column - after)
        case Collective.REDUCE if own == root:
            return Traffic(total - mine, added + total - mine, 0)
        case Collective.REDUCE:
            return Traffic(total, added, column - mine)
    raise _undocumented(call, "hierarchical")


def _undocumented(call: Call, algorithm: str) -> ValueError:
    return ValueError(f"no traffic is documented for {call.collective.name.lower()} by {algorithm!r}")
