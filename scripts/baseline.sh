#!/bin/sh
# $CMD without a profile, scheduler on: what to compare with.
set -eu
eval "set -- $CMD"  # a command line, quoted as the shell wants it
exec "${PGLE:-pgle}" perf --baseline --force --run-dir "$RUN" --capture "${CAPTURE:-auto}" \
    --target "${TARGET:-h100}" --devices "${DEVICES:-4}" -- "$@"
