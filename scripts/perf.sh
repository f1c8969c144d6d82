#!/bin/sh
# $CMD with the profile of $RUN; fails where XLA's log does not show that the main module used it.
set -eu
eval "set -- $CMD"  # a command line, quoted as the shell wants it
exec "${PGLE:-pgle}" perf --force --run-dir "$RUN" --capture "${CAPTURE:-auto}" \
    --target "${TARGET:-h100}" --devices "${DEVICES:-4}" -- "$@"
