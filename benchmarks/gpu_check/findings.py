"""What a step finds out, on disk from the first line on: a step that is cut off leaves what it had."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


class Skipped(Exception):
    """What cannot be done here, and why."""


@dataclass
class Table:
    """Cells are text or numbers."""

    title: str
    columns: list[str]
    rows: list[list[Any]] = field(default_factory=list)


@dataclass
class Check:
    """``result``: passed, failed or skipped; ``detail`` says why it did not pass."""

    name: str
    result: str
    seconds: float
    detail: str = ""


@dataclass
class Content:
    """All that a step found. ``skipped``: why nothing was done."""

    notes: list[str] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)
    skipped: str = ""

    @classmethod
    def read(cls, file: Path) -> Content:
        """What is in the file; nothing if there is none."""
        if not file.exists():
            return cls()
        document = json.loads(file.read_text())
        document["checks"] = [Check(**check) for check in document["checks"]]
        document["tables"] = [Table(**table) for table in document["tables"]]
        return cls(**document)


class Findings:
    """A step's own :class:`Content`, written to ``file`` after every addition."""

    def __init__(self, file: Path) -> None:
        self.content = Content()
        self._file = file

    def note(self, text: str) -> None:
        """A sentence for the report."""
        self.content.notes.append(text)
        self._save()

    def text(self, title: str, text: str) -> None:
        """Something to show as it is."""
        self.content.texts[title] = text
        self._save()

    def skip(self, why: str) -> None:
        """All of the step is left out."""
        self.content.skipped = why
        self._save()

    def table(self, title: str, *columns: str) -> Table:
        """A new table; :meth:`row` adds to it."""
        table = Table(title, list(columns))
        self.content.tables.append(table)
        return table

    def row(self, table: Table, *cells: Any) -> None:
        """A new row."""
        assert len(cells) == len(table.columns)
        table.rows.append(list(cells))
        self._save()

    @contextmanager
    def check(self, name: str) -> Iterator[None]:
        """What the block raises fails the check, or with :class:`Skipped` skips it; then the step goes on."""
        print(f"{name} ...", flush=True)
        begun = time.monotonic()
        result, detail = "passed", ""
        try:
            yield
        except Skipped as why:
            result, detail = "skipped", str(why)
        except Exception as error:
            traceback.print_exc()
            result, detail = "failed", f"{type(error).__name__}: {error}"
        self.content.checks.append(Check(name, result, round(time.monotonic() - begun, 3), detail))
        self._save()

    def _save(self) -> None:
        draft = self._file.with_suffix(".draft")
        draft.write_text(json.dumps(asdict(self.content), indent=1))
        draft.replace(self._file)
