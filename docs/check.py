"""Checks the docs: links lead somewhere, commands exist, and tables say what the code says (`make docs`)."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click

from securecoll._engine import segment_bytes
from securecoll.cli import main
from securecoll.cli.units import sized
from securecoll.config import knobs
from securecoll.handshake.session import root_count
from securecoll.plan import Topology, tuner
from securecoll.plan.peers import overlay, socket_bytes, sockets
from securecoll.shape import Shape

ROOT = Path(__file__).resolve().parent.parent
KEY_BYTES = 64
"""Of locked memory that a key takes."""
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *ROOT.glob("docs/**/*.md")])


def anchors(page: Path) -> set[str]:
    """The fragments that a page's headings make, by GitHub's rule."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> Iterator[str]:
    """Links to files that are not there, or to headings that no page has. Links to other sites are not followed."""
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, fragment = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        if not path.exists():
            yield f"link to {target}: no such file"
        elif fragment and fragment not in anchors(path):
            yield f"link to {target}: no such heading"


def commands(page: Path) -> Iterator[list[str]]:
    """The words of each command that a page shows behind ``$``, without the variables set for it."""
    for block in re.findall(r"^```console\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
        for line in re.findall(r"^\$ (.+)$", block, re.MULTILINE):
            for command in re.split(r";|&&|\|", line.split("  #")[0]):
                words = shlex.split(command)
                while words and re.match(r"[A-Z_]+=", words[0]):
                    words.pop(0)
                if words:
                    yield words


def wrong_command(words: list[str], targets: set[str]) -> str | None:
    """What is wrong with a command of this project; None where nothing is, and for commands of others."""
    for word in words:
        path = word.removeprefix("./")
        if path.startswith(("benchmarks/", "examples/", "tests/", "docs/")) and not (ROOT / path).exists():
            return f"{word} does not exist"
    if words[0] == "make":
        return next((f"no target {word}" for word in words[1:] if "=" not in word and word not in targets), None)
    if Path(words[0]).name == "securecoll" and len(words) > 1:
        command = main.get_command(click.Context(main), words[1])
        if command is None:
            return f"no command {words[1]}"
        options = {name for parameter in command.params for name in (*parameter.opts, "--help")}
        return next((f"no option {word}" for word in words[2:] if word.startswith("-") and word not in options), None)
    return None


def variables() -> str:
    """The table of variables, from the code."""
    rows = [f"| `{knob.name}` | {knob.unit} | {knob.default} | {knob.meaning} |" for knob in knobs()]
    return "\n".join(["| variable | takes | without it | meaning |", "|---|---|---|---|", *rows]) + "\n"


def segments() -> str:
    """The table of what shared memory takes, from the engine."""
    rows = []
    for ranks in (2, 4, 8, 16, 32, 64):
        shape = Shape.of(ranks)
        one = segment_bytes(ranks, shape.slot_bytes, shape.depth, ranks)
        rows.append(
            f"  | {ranks} | {sized(shape.slot_bytes)} | {one / 2**20:.1f} MiB | {ranks * one / 2**20:.1f} MiB |\n"
        )
    return "".join(rows)


@cache
def connections() -> str:
    """The table of what a rank takes in groups across hosts, from the plans and the engine."""
    rows = []
    for hosts, each in ((8, 1), (64, 8), (512, 8), (4096, 1)):
        topology, ranks = Topology.even(hosts, each), hosts * each
        shape = Shape.of(each)
        first = max(len(overlay(topology, rank)) for rank in range(ranks))
        most = max(len(sockets(topology, rank)) for rank in range(ranks))
        taken = (
            socket_bytes(most, shape.slot_bytes, tuner.DEPTH),
            segment_bytes(ranks, shape.slot_bytes, shape.depth, each) if each > 1 else 0,
        )
        keys = root_count(ranks) * KEY_BYTES
        rows.append(
            f"| {ranks} | {hosts} \N{MULTIPLICATION SIGN} {each} | {first} | {most} | {sized(shape.slot_bytes)} | "
            + " | ".join(f"{count / 2**20:.1f} MiB" for count in taken)
            + f" | {sized(keys)} |\n"
        )
    return "".join(rows)


def problems() -> Iterator[str]:
    """Everything that is wrong."""
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        name = page.relative_to(ROOT)
        yield from (f"{name}: {problem}" for problem in broken_links(page))
        for words in commands(page):
            if problem := wrong_command(words, targets):
                yield f"{name}: `{shlex.join(words)}`: {problem}"
    if segments() not in (ROOT / "docs/architecture.md").read_text():
        yield f"docs/architecture.md: the table of segments should be\n{segments()}"
    if connections() not in (ROOT / "docs/architecture.md").read_text():
        yield f"docs/architecture.md: the table of sockets should be\n{connections()}"
    if variables() not in (ROOT / "docs/configuration.md").read_text():
        yield f"docs/configuration.md: the table of variables should be\n{variables()}"


if __name__ == "__main__":
    found = list(problems())
    for line in found:
        print(line, file=sys.stderr)
    print(f"{len(PAGES)} pages, {len(found)} problems")
    sys.exit(bool(found))
