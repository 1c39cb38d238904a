"""One step, in a process of its own: a trap ends its context and no other, and a hang ends with it.

python -m gpu_check.step MODULE:FUNCTION {gpu|emulated} SCALE FILE
"""

from __future__ import annotations

import importlib
import sys
import traceback
from pathlib import Path

from gpu_check.findings import Findings, Skipped
from gpu_check.target import Scale, Target

FAILED = 1


def main() -> int:
    where, on, scale, file = sys.argv[1:]
    findings = Findings(Path(file))
    module, function = where.split(":")
    try:
        target = Target.of(on == "emulated", Scale[scale])
        getattr(importlib.import_module(module), function)(target, findings)
    except Skipped as why:
        findings.skip(str(why))
    except Exception:
        traceback.print_exc()
        return FAILED
    return FAILED if any(check.result == "failed" for check in findings.content.checks) else 0


if __name__ == "__main__":
    sys.exit(main())
