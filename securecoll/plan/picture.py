"""Plans as a picture: a space-time diagram of the simulated schedule, in SVG.

Time runs to the right, each rank has a row, each chunk is a bar, and lines lead from the chunk that wrote a record to
those that read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

from securecoll.plan.cost import Interval, Rates, Timeline, simulate
from securecoll.plan.ir import Plan, Record, StepOp
from securecoll.plan.traffic import Traffic, traffic
from securecoll.plan.tuner import DEPTH, HOST

_COLOURS = {
    StepOp.SEAL: ("#2f6db5", "#7fa9dc"),
    StepOp.REDUCE: ("#d97a1f", "#f0b173"),
    StepOp.OPEN: ("#2f9468", "#84c6a5"),
    StepOp.FORWARD: ("#7d58a8", "#b79bd6"),
    StepOp.COPY: ("#7b8087", "#b9bdc2"),
}
"""Of bars in even and in odd waves."""

_WORDS = {
    StepOp.SEAL: "seal",
    StepOp.REDUCE: "open, reduce, seal",
    StepOp.OPEN: "open",
    StepOp.FORWARD: "forward and open",
    StepOp.COPY: "copy",
}
_LINK, _SENDER = "#3f444b", "#b3355c"
_LEFT, _RIGHT, _TOP, _BOTTOM, _WIDTH = 130, 32, 108, 46, 1280
_MOST_LINES = 2000


def svg(plans: Sequence[Plan], rates: Rates = HOST, depth: int = DEPTH) -> str:
    """Draw the plans of all ranks, in rank order, as they run at ``rates`` with lanes of ``depth`` slots.

    Raises:
        PlanError: when the plans do not fit together or deadlock.
    """
    return _Diagram(plans, simulate(plans, rates, depth)).draw()


class _Diagram:
    def __init__(self, plans: Sequence[Plan], timeline: Timeline) -> None:
        self.plans = plans
        self.timeline = timeline
        self.row = 66 if len(plans) <= 16 else 26
        self.bar = self.row * 0.4
        self.height = _TOP + self.row * len(plans) + _BOTTOM
        self.scale = (_WIDTH - _LEFT - _RIGHT) / (timeline.seconds or 1.0)

    def draw(self) -> str:
        """The whole document."""
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {self.height}" width="{_WIDTH}" '
            f'height="{self.height}" font-family="Helvetica, Arial, sans-serif">',
            f'<rect width="{_WIDTH}" height="{self.height}" fill="#ffffff"/>',
            *self._title(),
            *self._legend(),
            *self._axis(),
            *self._rows(),
            *self._lines(),
            *self._bars(),
            "</svg>",
        ]
        return "\n".join(parts) + "\n"

    def _x(self, seconds: float) -> float:
        return _LEFT + seconds * self.scale

    def _y(self, rank: int) -> float:
        """The middle of a rank's row."""
        return _TOP + (rank + 0.5) * self.row

    def _title(self) -> list[str]:
        plan, call = self.plans[0], self.plans[0].call
        moved = f", {_bytes(call.total)}" if call is not None and call.total else ""
        title = f"{plan.collective.name.lower()}{moved}, {plan.algorithm}, {plan.size} ranks"
        sealed, opened, carried = zip(*map(_traffic, self.plans), strict=True)
        across = f", carried to other hosts {_range(carried)}" if any(carried) else ""
        facts = (
            f"sealed per rank {_range(sealed)}, opened {_range(opened)}{across}; "
            f"predicted {_time(self.timeline.seconds)}; chunks of {_bytes(plan.chunk)} in waves of {plan.wave}"
        )
        return [_text(24, 36, title, 21, "#16191d", weight="bold"), _text(24, 58, facts, 13, "#4a5058")]

    def _legend(self) -> list[str]:
        used = {step.op for plan in self.plans for step in plan.steps}
        parts, x, y = [], 24.0, 88
        for op, (even, odd) in _COLOURS.items():
            if op not in used:
                continue
            parts.append(f'<rect x="{x:.1f}" y="{y - 10}" width="11" height="12" fill="{even}"/>')
            parts.append(f'<rect x="{x + 11:.1f}" y="{y - 10}" width="11" height="12" fill="{odd}"/>')
            parts.append(_text(x + 28, y, _WORDS[op], 12, "#16191d"))
            x += 28 + 6.3 * len(_WORDS[op]) + 20
        for colour, words in ((_LINK, "record on a link stream"), (_SENDER, "record on a sender stream")):
            parts.append(f'<line x1="{x:.1f}" y1="{y - 4}" x2="{x + 24:.1f}" y2="{y - 4}" stroke="{colour}"/>')
            parts.append(_text(x + 30, y, words, 12, "#16191d"))
            x += 30 + 6.3 * len(words) + 20
        notes = "light: odd waves; numbers: steps"
        if len(self.timeline.records) > _MOST_LINES:
            notes += f"; lines: the first {_MOST_LINES} of {len(self.timeline.records)} records"
        parts.append(_text(x, y, notes, 12, "#6b7178"))
        return parts

    def _axis(self) -> list[str]:
        bottom = _TOP + self.row * len(self.plans)
        step = _tick(self.timeline.seconds)
        parts, tick = [], 0
        while step and tick * step <= self.timeline.seconds * 1.0001:
            x = self._x(tick * step)
            parts.append(f'<line x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{bottom}" stroke="#e3e6ea"/>')
            parts.append(_text(x, bottom + 20, _time(tick * step), 11, "#6b7178", anchor="middle"))
            tick += 1
        return parts

    def _rows(self) -> list[str]:
        parts = []
        for rank, plan in enumerate(self.plans):
            y = self._y(rank)
            sealed, opened, _ = _traffic(plan)
            parts.append(
                f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_WIDTH - _RIGHT}" y2="{y:.1f}" stroke="#d3d7dc" '
                'stroke-width="1"/>'
            )
            if self.row > 40:
                parts.append(_text(24, y - 3, f"rank {rank}", 13, "#16191d", weight="bold"))
                parts.append(_text(24, y + 12, f"seals {_bytes(sealed)}", 10, "#6b7178"))
                parts.append(_text(24, y + 24, f"opens {_bytes(opened)}", 10, "#6b7178"))
            else:
                parts.append(_text(24, y + 4, f"rank {rank}", 11, "#16191d"))
        return parts

    def _bars(self) -> list[str]:
        return [self._one_bar(interval) for interval in self.timeline.intervals]

    def _one_bar(self, interval: Interval) -> str:
        plan = self.plans[interval.rank]
        step = plan.steps[interval.step]
        colour = _COLOURS[step.op][interval.chunk // plan.wave % 2]
        x, width = self._x(interval.start), max(0.8, (interval.stop - interval.start) * self.scale)
        label = f"rank {interval.rank} step {interval.step} {step.op.name} chunk {interval.chunk}"
        times = f"{_time(interval.start)} to {_time(interval.stop)}"
        text = ""
        if width >= 16 and self.row > 40:
            text = _text(x + width / 2, self._y(interval.rank) + 4, str(interval.step), 10, "#ffffff", anchor="middle")
        return (
            f'<rect x="{x:.2f}" y="{self._y(interval.rank) - self.bar / 2:.1f}" width="{width:.2f}" '
            f'height="{self.bar:.1f}" fill="{colour}" stroke="#ffffff" stroke-width="0.6" rx="1.5">'
            f"<title>{escape(label)}, {escape(times)}</title></rect>{text}"
        )

    def _lines(self) -> list[str]:
        """Records; the first ones only, where there are too many to follow."""
        parts = []
        for write, read in self.timeline.records[:_MOST_LINES]:
            there, here = self.timeline.intervals[write], self.timeline.intervals[read]
            down = 1 if here.rank > there.rank else -1
            x1, y1 = self._x(there.stop), self._y(there.rank) + down * self.bar / 2
            x2, y2 = self._x(here.start), self._y(here.rank) - down * self.bar / 2
            colour = _SENDER if self._on_sender_stream(there) else _LINK
            parts.append(
                f'<path d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}" stroke="{colour}" stroke-width="0.9" '
                'stroke-opacity="0.5" fill="none"/>'
                f'<circle cx="{x2:.1f}" cy="{y2:.1f}" r="1.7" fill="{colour}" fill-opacity="0.8"/>'
            )
        return parts

    def _on_sender_stream(self, interval: Interval) -> bool:
        step = self.plans[interval.rank].steps[interval.step]
        if step.stream is not None:
            return step.stream.reader < 0
        return any(isinstance(source, Record) and source.stream.reader < 0 for source in step.sources)


def _traffic(plan: Plan) -> Traffic:
    return Traffic(0, 0, 0) if plan.call is None else traffic(plan.call, plan.algorithm)


def _text(
    x: float, y: float, words: str, size: int, colour: str, weight: str = "normal", anchor: str = "start"
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{colour}" font-weight="{weight}" '
        f'text-anchor="{anchor}">{escape(words)}</text>'
    )


def _bytes(count: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= unit:
            return f"{count / unit:.4g} {name}"
    return f"{count} B"


def _range(counts: Sequence[int]) -> str:
    low, high = min(counts), max(counts)
    return _bytes(low) if low == high else f"{_bytes(low)} to {_bytes(high)}"


def _time(seconds: float) -> str:
    for unit, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= unit:
            return f"{seconds / unit:.4g} {name}"
    return f"{seconds * 1e9:.4g} ns" if seconds else "0"


def _tick(seconds: float) -> float:
    """A round distance that makes about eight ticks."""
    if not seconds:
        return 0.0
    size = 1e-9
    while size * 80 < seconds:
        size *= 10
    return next((size * f for f in (1, 2, 5, 10) if size * f * 8 >= seconds), size * 10)
