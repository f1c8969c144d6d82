#!/bin/sh
# A virtual environment with this checkout in it.
#   scripts/make_venv.sh python3.12 .venv '.[rehearse-cuda13]'
set -eu
"$1" -m venv "$2"
exec "$2/bin/python" -m pip install --disable-pip-version-check --editable "$3"
