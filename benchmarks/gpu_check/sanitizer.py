"""compute-sanitizer over small runs of every kernel; on the emulated device, the emulator's own checkers."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from gpu_check import answers
from gpu_check.findings import Content, Findings, Skipped
from gpu_check.target import Target

TOOLS = ("memcheck", "racecheck", "synccheck")
FOUND_SOMETHING = 86
SECONDS = 100


def run(target: Target, findings: Findings) -> None:
    if target.emulate:
        findings.note("the emulator's checkers: races, uninitialised reads, bounds, alignment, divergence")
        answers.run_small(target, findings)
        return
    if shutil.which("compute-sanitizer") is None:
        raise Skipped("there is no compute-sanitizer")
    with TemporaryDirectory() as folder, ThreadPoolExecutor(len(TOOLS)) as pool:
        results = pool.map(lambda tool: under(tool, target, Path(folder) / f"{tool}.json"), TOOLS)
        for tool in TOOLS:
            with findings.check(f"compute-sanitizer --tool {tool}"):
                status, said, content = next(results)
                summary = re.findall(r"=+ (.* SUMMARY: .*)", said)
                findings.note(f"{tool}: {'; '.join(summary) or 'no summary'}; {len(content.checks)} checks under it")
                wrong = [check.name for check in content.checks if check.result == "failed"]
                if status or wrong or not content.checks or not summary:
                    findings.text(tool, said[-4000:])
                    what = "it found something" if status == FOUND_SOMETHING else f"status {status}"
                    raise RuntimeError(f"{what}; failed: {', '.join(wrong) or 'no check'}")


def under(tool: str, target: Target, file: Path) -> tuple[int, str, Content]:
    """Status, output, and what the checks under the tool found."""
    command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", str(FOUND_SOMETHING)]
    step = [sys.executable, "-m", "gpu_check.step", "gpu_check.answers:run_small", "gpu", target.scale.name, str(file)]
    try:
        done = subprocess.run([*command, *step], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=SECONDS)
        status, said = done.returncode, done.stdout
    except subprocess.TimeoutExpired as error:
        status, said = -1, (error.stdout or b"") + b"\ntook too long"
    return status, said.decode(errors="replace"), Content.read(file)
