#!/bin/sh
# Flags that, with the profile of $RUN, make $CMD faster; then all stages again under them. Done stages are skipped.
set -eu
# shellcheck disable=SC2086  # CMD is a command line
exec "${PGLE:-pgle}" run --tune --run-dir "$RUN" --capture "${CAPTURE:-auto}" --mode "${MODE:-sync}" \
    --target "${TARGET:-h100}" --devices "${DEVICES:-4}" -- $CMD
