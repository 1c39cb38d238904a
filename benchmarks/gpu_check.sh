#!/usr/bin/env bash
# What only a GPU can show, in under eight minutes: builds the package here, checks and measures it on the first GPU, and
# writes a report, step by step.
#
#   bash benchmarks/gpu_check.sh --out DIR         on a machine with a GPU; nothing is fetched
#   bash benchmarks/gpu_check.sh --emulate         the same steps on the emulated device, smaller: tries the script
#   bash benchmarks/gpu_check.sh --prepare 3.12    elsewhere, before: gathers in build/offline what such a machine may lack
#
# PYTHON names the interpreter; else that of the checkout's environment is taken if there is one, else python3.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-python3}
[[ -z ${PYTHON:-} && -x .venv/bin/python ]] && python=.venv/bin/python
PYTHONPATH=benchmarks:.${PYTHONPATH:+:$PYTHONPATH} exec "$python" -m gpu_check "$@"
