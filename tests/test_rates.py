"""Rates that plans are chosen by: their file, the handshake that compares them, and their measurement."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from securecoll import Communicator, ConfigError, DirectoryExchange, HandshakeError, rates
from securecoll.codes import Collective
from securecoll.plan import tuner
from securecoll.plan.cost import Rates
from securecoll.plan.topology import Topology
from securecoll.plan.tuner import HOST
from tests.groups import group, run
from tests.hosts.lab import Lab, enter, hosts, placed

SLOW = replace(HOST, seal=1e9, network=replace(HOST.network, link=1e6, hop_seconds=0.01))


def test_a_file_gives_the_same_rates_again(tmp_path: Path) -> None:
    odd = replace(SLOW, open=1e9 / 3, cores=7, network=replace(SLOW.network, socket=2e9 / 7))
    (tmp_path / "rates.json").write_text(rates.spell(odd))
    assert rates.load(tmp_path / "rates.json") == odd


def test_what_a_file_leaves_out_is_as_in_the_package() -> None:
    assert rates.parse("{}") == HOST
    found = rates.parse('{"open": 5e9, "network": {"link": 1e8}}')
    assert found == replace(HOST, open=5e9, network=replace(HOST.network, link=1e8))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "Expecting value"),
        ("[]", "JSON object"),
        ('{"network": 3}', "network must be"),
        ('{"network": {"lnik": 1e9}}', "did you mean 'network.link'"),
        ('{"seals": 1e9}', "did you mean 'seal'"),
        ('{"seal": "fast"}', "seal must be a number"),
        ('{"seal": true}', "seal must be a number"),
        ('{"seal": NaN}', "seal must be from"),
        ('{"seal": 0}', "seal must be from"),
        ('{"seal": -1e9}', "seal must be from"),
        ('{"seal": 1e400}', "seal must be from"),
        ('{"cores": 1.5}', "number of cores"),
        ('{"cores": 0}', "cores must be from"),
        ('{"network": {"hop_seconds": 1e9}}', "network.hop_seconds must be from"),
        ("[" * 60000, "file of rates"),
        (" " * 70000, "more than 65536 bytes"),
        ("\udcff", "file of rates"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "rates.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ConfigError, match=says):
        rates.load(tmp_path / "rates.json")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.json.*No such file"):
        rates.load(tmp_path / "none.json")


def test_every_number_goes_into_the_handshake() -> None:
    text = json.loads(rates.spell(HOST))
    seen = {rates.table_hash(bytes(32), HOST), rates.table_hash(bytes(32), None), rates.table_hash(b"\1" * 32, SLOW)}
    expected = 3
    for table in (text, text["network"]):
        for name in [name for name in table if name != "network"]:
            usual, table[name] = table[name], table[name] // 2 if name == "cores" else table[name] * 0.5
            seen.add(rates.table_hash(bytes(32), rates.parse(json.dumps(text))))
            table[name] = usual
            expected += 1
    assert expected == 14 and len(seen) == expected
    assert rates.table_hash(bytes(32), rates.parse("{}")) == bytes(32)


def test_what_no_file_may_hold_is_made_to_fit() -> None:
    wild = replace(
        HOST, seal=float("inf"), open=0.0, cores=0, network=replace(HOST.network, hop_seconds=0.0, link=-1.0)
    )
    assert rates.parse(rates.spell(rates.bounded(wild))) == rates.bounded(wild)
    assert rates.bounded(HOST) == HOST


def test_the_tuner_chooses_by_them() -> None:
    """Where a byte costs more than a hop, what carries fewer bytes wins from a smaller size on."""
    topology = Topology.even(8, 1)
    thin = replace(HOST, network=replace(HOST.network, link=1e6))
    usual, other = (
        [tuner.choose(Collective.ALL_REDUCE, 8, 1 << n, rates=r, topology=topology).algorithm for n in range(6, 26)]
        for r in (HOST, thin)
    )
    assert usual[-1] == other[-1] == "hierarchical"
    assert other.index("hierarchical") < usual.index("hierarchical")


def _reduce(comm: Communicator, folder: str) -> tuple[Rates, str]:
    for count in (1, 1000, 100_000):
        x = np.full(count, comm.rank + 1.0)
        comm.all_reduce(x)
        assert (x == comm.size * (comm.size + 1) / 2).all()
    # A group made of this one chooses alike without measuring again.
    exchange = DirectoryExchange(Path(folder), rank=comm.rank, size=comm.size)
    with Communicator.create(exchange, parent=comm) as child:
        child.barrier()
        assert child.rates == comm.rates
    return comm.rates, repr(comm.rates)


def _network(rank: int, folder: Path) -> None:
    """Rank 0 has rates.json, others what is in other.json."""
    os.environ["SECURECOLL_NETWORK"] = str(folder / ("other.json" if rank else "rates.json"))


def test_ranks_with_equal_files_join(tmp_path: Path) -> None:
    (tmp_path / "rates.json").write_text(rates.spell(SLOW))
    (tmp_path / "other.json").write_text(rates.spell(SLOW).replace("\n", "  \n"))
    (tmp_path / "child").mkdir()
    assert run(2, tmp_path, _reduce, str(tmp_path / "child"), prepare=_network) == [(SLOW, repr(SLOW))] * 2


def test_ranks_with_different_files_do_not_join(tmp_path: Path) -> None:
    (tmp_path / "rates.json").write_text(rates.spell(SLOW))
    (tmp_path / "other.json").write_text(rates.spell(replace(SLOW, cores=3)))
    with group(2, tmp_path, _reduce, "", prepare=_network) as ranks:
        outcomes = ranks.finish()
    for outcome in outcomes:
        assert isinstance(outcome.error, HandshakeError) and "SECURECOLL_NETWORK" in str(outcome.error)
        assert outcome.seconds < 5


def test_a_file_that_one_rank_lacks_fails_all_at_once(tmp_path: Path) -> None:
    (tmp_path / "rates.json").write_text(rates.spell(SLOW))
    with group(2, tmp_path, _reduce, "", prepare=_network) as ranks:
        outcomes = ranks.finish()
    assert isinstance(outcomes[0].error, HandshakeError) and "gave up" in str(outcomes[0].error)
    assert isinstance(outcomes[1].error, ConfigError) and "other.json" in str(outcomes[1].error)
    assert all(outcome.seconds < 5 for outcome in outcomes)


@pytest.mark.parametrize("placement", [(0, 0), (0, 1), (0, 1, 2), (0, 0, 1), (0, 1, 1, 0)], ids=str)
def test_what_is_measured_is_the_same_on_all_ranks(tmp_path: Path, placement: tuple[int, ...]) -> None:
    (tmp_path / "child").mkdir()
    Lab("host", max(placement) + 1).describe(tmp_path, placement)
    size = len(placement)
    found = run(size, tmp_path, _reduce, str(tmp_path / "child"), prepare=placed, network=rates.MEASURE)
    assert len({spelled for _, spelled in found}) == 1
    measured = found[0][0]
    assert 1 <= measured.cores <= len(os.sched_getaffinity(0))
    # Something, and nothing that no core does.
    assert all(1e7 < getattr(measured, name) < 1e12 for name in ("seal", "open", "reduce", "copy"))
    assert all(getattr(measured, name) != getattr(HOST, name) for name in ("seal", "open", "reduce", "copy"))
    across = max(placement) > 0
    assert (measured.network.link != HOST.network.link) == across
    assert (measured.network.hop_seconds != HOST.network.hop_seconds) == across


def _rates(comm: Communicator) -> Rates:
    return comm.rates


def test_a_shaped_link_is_measured(tmp_path: Path) -> None:
    placement, rate = (0, 1, 0, 1), 20e6
    with hosts(2) as made:
        for number in (0, 1):
            made.shape(number, rate)
        made.describe(tmp_path, placement)
        found = run(len(placement), tmp_path, _rates, prepare=enter, network=rates.MEASURE)
    link = found[0].network.link
    # Both ranks of a host together, each way. A busy machine makes it less, a burst more.
    assert rate / 5 < link < 1.5 * rate


def test_ranks_of_which_one_measures_do_not_join(tmp_path: Path) -> None:
    with group(2, tmp_path, _rates, prepare=_one_measures) as ranks:
        outcomes = ranks.finish()
    assert all("SECURECOLL_NETWORK" in str(outcome.error) for outcome in outcomes)


def _one_measures(rank: int, folder: Path) -> None:
    if rank:
        os.environ["SECURECOLL_NETWORK"] = rates.MEASURE
