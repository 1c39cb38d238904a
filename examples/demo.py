"""The demo: makes a key, and lets two ranks train on real data with every byte between them sealed.

    .venv/bin/python examples/demo.py

It runs digits_ddp.py under torchrun; arguments are passed on to it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from securecoll.cli import main as securecoll

HERE = Path(__file__).resolve().parent
RANKS = 2


def main() -> int:
    """Runs the demo and returns its exit status."""
    # A folder of our own (0700), on no path that anybody else could have prepared; the key is gone with it.
    with tempfile.TemporaryDirectory(prefix="securecoll-demo-") as folder:
        key = Path(folder) / "demo.key"
        print(f"$ securecoll keygen {key}", flush=True)
        securecoll(["keygen", str(key)], standalone_mode=False)
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
        command += [str(HERE / "digits_ddp.py"), *sys.argv[1:]]
        environment = {
            **os.environ,
            "SECURECOLL_KEY_FILE": str(key),
            "OMP_NUM_THREADS": "1",  # as torchrun sets it, with a warning
            "PYTHONWARNINGS": "ignore::FutureWarning",
        }
        print(f"$ SECURECOLL_KEY_FILE={key} torchrun --nproc-per-node {RANKS} examples/digits_ddp.py", flush=True)
        return subprocess.run(command, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
