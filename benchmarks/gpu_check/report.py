"""The report of a run, in Markdown and JSON, rewritten whole after each step."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path

from gpu_check.findings import Content, Table


@dataclass
class Entry:
    """A step and what became of it. ``result``: passed, failed, skipped, or running."""

    name: str
    title: str
    result: str
    seconds: float = 0.0
    reason: str = ""
    content: Content = field(default_factory=Content)


@dataclass
class Report:
    """``stem`` is the path of both files, without their suffixes."""

    stem: Path
    title: str
    started: str
    entries: list[Entry] = field(default_factory=list)
    complete: bool = False

    def write(self) -> None:
        document = {"title": self.title, "started": self.started, "complete": self.complete}
        document |= {"steps": [asdict(entry) for entry in self.entries]}  # type: ignore[dict-item]
        self._replace(".json", json.dumps(document, indent=1) + "\n")
        self._replace(".md", self.markdown())

    def _replace(self, suffix: str, text: str) -> None:
        draft = self.stem.with_name(self.stem.name + suffix + ".draft")
        draft.write_text(text)
        draft.replace(self.stem.with_name(self.stem.name + suffix))

    def markdown(self) -> str:
        lines = [f"# {self.title}", "", f"Started {self.started}."]
        lines += [] if self.complete else ["", "**This run was cut off.**"]
        summary = Table("Steps", ["step", "result", "seconds", "why"])
        for entry in self.entries:
            summary.rows.append([entry.title, entry.result, f"{entry.seconds:.1f}", entry.reason])
        lines += ["", *as_markdown(summary)]
        for entry in self.entries:
            lines += ["", f"## {entry.title}", ""]
            lines += [f"{entry.result}{f': {entry.reason}' if entry.reason else ''}"]
            content = entry.content
            lines += ["", *(f"- {note}" for note in content.notes)] if content.notes else []
            for table in content.tables:
                lines += ["", *as_markdown(table)]
            if content.checks:
                checks = Table("Checks", ["check", "result", "seconds", "why"])
                for check in content.checks:
                    checks.rows.append([check.name, check.result, f"{check.seconds:.2f}", check.detail])
                lines += ["", *as_markdown(checks)]
            for title, text in content.texts.items():
                lines += ["", f"### {title}", "", "```", text.strip().replace("```", "'''"), "```"]
        return "\n".join(lines) + "\n"


def as_markdown(table: Table) -> list[str]:
    """A heading and the table."""
    lines = [f"### {table.title}", "", f"| {' | '.join(table.columns)} |", f"|{'---|' * len(table.columns)}"]
    return lines + [f"| {' | '.join(map(cell, row))} |" for row in table.rows]


def cell(value: object) -> str:
    """One line, and no end of the cell."""
    return re.sub(r"\s*\n\s*", " / ", str(value)).replace("|", "\\|")
