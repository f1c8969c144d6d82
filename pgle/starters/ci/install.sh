#!/bin/sh
# Installs pgle @VERSION@, which made this file, next to the jax that is there. It moves nothing.
#
# PGLE_SOURCE   until @VERSION@ is published: a checkout of it, or its wheel; from then on pgle==@VERSION@
# PGLE_SHA256   hash of the wheel: sha256sum WHEEL, or SHA256SUMS of its release; only a checkout needs none
set -eu
: "${PGLE_SOURCE:?set it to a checkout of pgle @VERSION@, or to its wheel}"
source=$PGLE_SOURCE
case $source in
*==*)
    folder=$(mktemp -d)
    echo "$source --hash=sha256:${PGLE_SHA256:?set it to the hash of the wheel}" >"$folder/wanted"
    python3 -m pip download --quiet --no-deps --require-hashes --only-binary :all: --dest "$folder" -r "$folder/wanted"
    source=$(ls "$folder"/*.whl)
    ;;
*.whl) echo "${PGLE_SHA256:?set it to the hash of the wheel}  $source" | sha256sum --check --quiet - ;;
esac
python3 -m pip install --quiet "$source"
found=$(python3 -c 'import pgle; print(pgle.__version__)')
if [ "$found" != @VERSION@ ]; then
    echo "pgle $found is installed, and pgle @VERSION@ made these files; make them again: pgle init" >&2
    exit 2
fi
