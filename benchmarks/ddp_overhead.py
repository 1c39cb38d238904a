"""What data-parallel training costs over securecoll, over gloo, and over securecoll without its cipher.

    .venv/bin/python benchmarks/ddp_overhead.py --quick

Everything is in the package beside this file: ddp_overhead/study.py says what is measured, and how.
"""

import sys

from ddp_overhead.study import main

if __name__ == "__main__":
    sys.exit(main())
