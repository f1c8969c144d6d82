#!/bin/sh
# All parts of benchmarks/gpu with $PYTHON, which has jax. $WHEELS: a folder of wheels of what it lacks.
#   OUT=results WHEELS=wheels BUDGET=8m CAPTURE=auto PYTHON=python3 scripts/gpu.sh
set -eu
cd "$(dirname "$0")/.."
site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
[ ! -d "${WHEELS:-}" ] || "$PYTHON" benchmarks/gpu/wheels.py "$WHEELS" "$site"
PYTHONPATH="$PWD:$site${PYTHONPATH:+:$PYTHONPATH}"
export PYTHONPATH
set -- --out "${OUT:-runs/gpu}" --budget "${BUDGET:-8m}"
[ -z "${PARTS:-}" ] || set -- "$@" --parts "$PARTS"
set -- "$@" --capture "${CAPTURE:-auto}" --target "${TARGET:-h100}"
"$PYTHON" -m benchmarks.gpu.run "$@"
