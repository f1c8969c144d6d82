#!/bin/sh
# All stages on $CMD: profile, convert, baseline, verify, perf, compare. Finished stages are skipped.
set -eu
# shellcheck disable=SC2086  # CMD is a command line
exec "${PGLE:-pgle}" run --run-dir "$RUN" --capture "${CAPTURE:-auto}" --mode "${MODE:-sync}" \
    --target "${TARGET:-h100}" --devices "${DEVICES:-4}" -- $CMD
