#!/bin/sh
# Tries the whole workflow with other releases of jax, each in a virtual environment of its own (.venv-jax-VERSION):
#   scripts/try_jax.sh 0.4.38 0.8.3
# On the simulated GPU; ends with 1 where XLA did not use the profile, or where pgle does not work with that release.
set -eu
cd "$(dirname "$0")/.."
unset CMD  # a calling make exports its own, of another environment
python=${PYTHON:-python3}
for version in "$@"; do
    venv=.venv-jax-$version
    # 0.7.2 brought the CUDA 13 plugin.
    plugin=cuda13-local
    [ "$(printf '%s\n' "$version" 0.7.2 | sort -V | head -1)" = 0.7.2 ] || plugin=cuda12-local
    [ -e "$venv/.installed" ] || "$python" -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --editable . "jax[$plugin]==$version" flatbuffers
    touch "$venv/.installed"
    # Python and jax count as inputs of a run: a run directory of its own for each release.
    make verify perf VENV="$venv" RUN="runs/jax-$version" CAPTURE=simulated
    echo "jax $version: good"
done
