"""Runs the steps and writes the report: see benchmarks/gpu_check.sh."""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from gpu_check.facts import gpu
from gpu_check.findings import Content
from gpu_check.prepare import prepare
from gpu_check.report import Entry, Report
from gpu_check.target import BUILT, OFFLINE, ROOT, Scale

MINUTES = 8.0
EMULATED_MINUTES = 30.0
"""Mostly for building the emulator, once; on cores that others use, too."""
LEAST_SECONDS = 5.0
"""A step is not begun with less time left."""


@dataclass(frozen=True, slots=True)
class Step:
    """``function`` is called as ``function(target, findings)``; it may take ``seconds``."""

    name: str
    title: str
    function: str
    seconds: float


STEPS = (
    Step("facts", "Facts", "gpu_check.facts:run", 45),
    Step("build", "Build", "gpu_check.build:run", 200),
    Step("loading", "Loading of the kernels", "gpu_check.loading:run", 90),
    Step("probes", "Intrinsics", "gpu_check.probes:run", 45),
    Step("answers", "Known answers", "gpu_check.answers:run", 90),
    Step("sanitizer", "compute-sanitizer", "gpu_check.sanitizer:run", 110),
    Step("rates", "Rates of the kernels", "gpu_check.rates:run", 60),
    Step("agreement", "Collectives", "gpu_check.agreement:run_step", 90),
    Step("capture", "Graph capture", "gpu_check.capture:step", 45),
    Step("tampering", "A tampered record", "gpu_check.tampering:step", 60),
    Step("collectives", "all_reduce on one GPU", "gpu_check.collectives:run", 100),
)


def main(argv: Sequence[str] | None = None, steps: Sequence[Step] = STEPS) -> int:
    """The exit status: 0, or 1 when a step failed."""
    options = parse(argv, steps)
    if options.prepare:
        prepare(options.prepare)
        return 0
    os.environ["PYTHONPATH"] = os.pathsep.join(python_path())
    options.out.mkdir(parents=True, exist_ok=True)
    now = datetime.now(timezone.utc)
    name = "emulated" if options.emulate else gpu().get("name", "no-gpu")
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    report = Report(options.out / f"{now:%Y-%m-%d}-{slug}", f"gpu_check on {name}", f"{now:%Y-%m-%d %H:%M} UTC")
    deadline = time.monotonic() + 60 * options.minutes
    chosen = [step for step in steps if not options.steps or step.name in options.steps]
    for step in chosen:
        entry = Entry(step.name, step.title, "running")
        report.entries.append(entry)
        report.write()
        print(f"{step.title} ...", flush=True)
        perform(step, entry, options, deadline)
        report.write()
        print(f"  {entry.result} after {entry.seconds:.1f} s{f': {entry.reason}' if entry.reason else ''}", flush=True)
    report.complete = True
    report.write()
    print(f"{report.stem}.md and .json")
    return 1 if any(entry.result == "failed" for entry in report.entries) else 0


def perform(step: Step, entry: Entry, options: argparse.Namespace, deadline: float) -> None:
    """Runs the step in a process of its own, and fills in what became of it."""
    begun = time.monotonic()
    limit = min(step.seconds * (4 if options.emulate else 1), deadline - begun)
    if limit < LEAST_SECONDS:
        entry.result, entry.reason = "skipped", "no time was left"
        return
    BUILT.mkdir(parents=True, exist_ok=True)
    # Not in a report's folder: what is told there is in the report.
    file, log = BUILT / f"{step.name}-{os.getpid()}.json", BUILT / f"{step.name}-{os.getpid()}.log"
    on = "emulated" if options.emulate else "gpu"
    scale = (Scale.SMALLEST if options.smallest else Scale.SMALL) if options.emulate else Scale.FULL
    command = [sys.executable, "-m", "gpu_check.step", step.function, on, scale.name, str(file)]
    with log.open("w") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
        try:
            status = process.wait(limit)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            end(process)
    entry.seconds = time.monotonic() - begun
    entry.content = Content.read(file)
    judge(entry, status, limit, log.read_text(errors="replace"))
    for path in (file, log):
        path.unlink(missing_ok=True)


def end(process: subprocess.Popen[bytes]) -> None:
    """Ends the step, and every process that it left behind."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def judge(entry: Entry, status: int | None, limit: float, said: str) -> None:
    failed = [check for check in entry.content.checks if check.result == "failed"]
    if status is None:
        entry.result, entry.reason = "failed", f"not done after {limit:.0f} s"
    elif status == 0:
        entry.result, entry.reason = ("skipped", entry.content.skipped) if entry.content.skipped else ("passed", "")
    elif failed:
        entry.result, entry.reason = "failed", "; ".join(check.name for check in failed)
    else:
        lines = [line for line in said.splitlines() if line.strip()]
        entry.result, entry.reason = "failed", lines[-1] if lines else f"status {status}"
    if entry.result == "failed":
        entry.content.texts["Output"] = said[-8000:]


def python_path() -> list[str]:
    """Where steps and the processes that they start find modules."""
    given = os.environ.get("PYTHONPATH", "")
    ours = [ROOT / "benchmarks", ROOT, BUILT / "site", OFFLINE / "vectors"]
    return [*map(str, ours), *filter(None, given.split(os.pathsep))]


def parse(argv: Sequence[str] | None, steps: Sequence[Step]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gpu_check.sh", description="What only a GPU can show, as one run.")
    add = parser.add_argument
    add("--out", type=Path, default=ROOT / "docs" / "gpu-runs", help="folder of the report (default docs/gpu-runs)")
    add("--emulate", action="store_true", help="on the emulated device: the same steps, smaller")
    add("--smallest", action="store_true", help="with --emulate: as little as shows that every step runs")
    add("--minutes", type=float, help="in all; steps that do not fit are left out (default 8; emulated, 30)")
    add("--steps", nargs="+", choices=[step.name for step in steps], help="only these (default all)")
    add(
        "--prepare",
        nargs="?",
        const="3.12",
        metavar="PYTHON",
        help="gather in build/offline what a machine without"
        " a network and with this version of Python may lack (default 3.12); then do nothing else",
    )
    options = parser.parse_args(argv)
    options.out = options.out.resolve()
    options.minutes = options.minutes or (EMULATED_MINUTES if options.emulate else MINUTES)
    return options


if __name__ == "__main__":
    sys.exit(main())
