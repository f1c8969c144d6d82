#!/bin/sh
# All stages on $CMD: profile, convert, baseline, verify, perf, compare. Finished stages are skipped.
set -eu
eval "set -- $CMD"  # a command line, quoted as the shell wants it
exec "${PGLE:-pgle}" run --run-dir "$RUN" --capture "${CAPTURE:-auto}" --mode "${MODE:-sync}" \
    --target "${TARGET:-h100}" --devices "${DEVICES:-4}" -- "$@"
