"""The picture of a set of plans."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest

from securecoll.codes import Collective
from securecoll.plan.cost import simulate
from securecoll.plan.picture import svg
from securecoll.plan.tuner import DEPTH, HOST
from tests.plan.cases import EVERY, NAMES, filling, group

NAMESPACE = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize(("collective", "algorithm"), EVERY, ids=NAMES)
def test_every_chunk_has_a_bar_and_every_record_a_line(collective: Collective, algorithm: str) -> None:
    for size in (1, 2, 5):
        plans = group(collective, algorithm, size, filling(collective, size, 640), chunk=128)
        run = simulate(plans, HOST, DEPTH)
        drawing = ET.fromstring(svg(plans))
        assert len(drawing.findall(f".//{NAMESPACE}title")) == len(run.intervals)
        assert len(drawing.findall(f".//{NAMESPACE}path")) == len(run.records)


def test_the_title_says_what_it_costs() -> None:
    drawing = ET.fromstring(svg(group(Collective.ALL_REDUCE, "ring", 8, 1 << 20, chunk=1 << 16)))
    words = [element.text or "" for element in drawing.iter(f"{NAMESPACE}text")]
    assert "all_reduce, 1 MiB, ring, 8 ranks" in words
    assert any(text.startswith("sealed per rank 1 MiB, opened 1.75 MiB; predicted ") for text in words)
    assert [text for text in words if text.startswith("rank ")] == [f"rank {rank}" for rank in range(8)]


def test_bars_stay_on_the_page_and_do_not_overlap() -> None:
    plans = group(Collective.ALL_REDUCE, "direct", 4, 1 << 16, chunk=4096)
    drawing = ET.fromstring(svg(plans))
    width = float(drawing.attrib["width"])
    rows: dict[str, list[tuple[float, float]]] = {}
    for bar in drawing.iter(f"{NAMESPACE}rect"):
        if bar.find(f"{NAMESPACE}title") is not None:
            start = float(bar.attrib["x"])
            rows.setdefault(bar.attrib["y"], []).append((start, start + float(bar.attrib["width"])))
    assert len(rows) == 4
    for spans in rows.values():
        spans.sort()
        assert spans[-1][1] <= width
        assert all(stop <= start + 0.02 for (_, stop), (start, _) in pairwise(spans))


def test_large_groups_are_drawn_in_thinner_rows() -> None:
    drawing = ET.fromstring(svg(group(Collective.BROADCAST, "ring", 40, 4096, chunk=1024)))
    assert float(drawing.attrib["height"]) < 40 * 40
