"""Hosts and the network between them, on the command line."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import click

from securecoll.plan import Topology, tuner
from securecoll.plan.cost import Network, Rates

MOST_RANKS = 1 << 16
"""What the command prices; a plan of one rank has a few steps for each other rank at most."""

_UNITS = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}


@dataclass(frozen=True, slots=True)
class Fabric:
    """Equal hosts, each with a rank for each of its GPUs, and a link that these share."""

    hosts: int
    gpus: int
    network: Network
    rates: Rates = tuner.HOST
    """Of a core; its network is the one above."""

    @property
    def topology(self) -> Topology:
        """Ranks block by block."""
        return Topology.even(self.hosts, self.gpus)


class FabricType(click.ParamType[Fabric]):
    """``hosts=512,gpus=8,net=50GB/s``, and optionally ``hop=10us``."""

    name = "topology"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Fabric:
        """The hosts and their network, or an error that says how to write them."""
        if isinstance(value, Fabric):
            return value
        given = {}
        for part in str(value).split(","):
            name, _, text = part.partition("=")
            given[name] = text
        unknown = sorted(given.keys() - {"hosts", "gpus", "net", "hop"})
        if unknown or not {"hosts", "gpus"} <= given.keys():
            wrong = f"knows nothing of {unknown[0]!r}" if unknown else "needs hosts and gpus"
            self.fail(f"{value!r} {wrong}; write hosts=512,gpus=8,net=50GB/s", param, ctx)
        hosts, gpus = (self._count(name, given[name], param, ctx) for name in ("hosts", "gpus"))
        if hosts * gpus > MOST_RANKS:
            self.fail(f"{hosts * gpus} ranks are more than the {MOST_RANKS} that are priced", param, ctx)
        usual = Network()
        link = self._rate(given["net"], param, ctx) if "net" in given else usual.link
        hop = self._time(given["hop"], param, ctx) if "hop" in given else usual.hop_seconds
        # A core that drives a faster link has a faster way to it than the usual sockets.
        return Fabric(hosts, gpus, Network(link, max(usual.socket, link / gpus), usual.record_seconds, hop))

    def _count(self, name: str, text: str, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if not (text.isascii() and text.isdigit() and int(text)):
            self.fail(f"{name}={text} is not a number of {name}", param, ctx)
        return int(text)

    def _rate(self, text: str, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Bytes per second."""
        found = re.fullmatch(r"([0-9.]+)([KMGT]?)(B|bit)/s", text)
        rate = _number(found[1]) * _UNITS[found[2]] / (8 if found[3] == "bit" else 1) if found else 0.0
        if not rate > 0:
            self.fail(f"net={text} is not a rate; write 50GB/s or 25Gbit/s", param, ctx)
        return rate

    def _time(self, text: str, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds."""
        found = re.fullmatch(r"([0-9.]+)(ns|us|µs|ms|s)", text)
        seconds = _number(found[1]) * _SECONDS[found[2]] if found else 0.0
        if not seconds > 0:
            self.fail(f"hop={text} is not a time; write 10us", param, ctx)
        return seconds


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
