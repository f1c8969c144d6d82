#!/bin/sh
# $CMD without a profile, scheduler on: what to compare with.
set -eu
# shellcheck disable=SC2086  # CMD is a command line
exec "${PGLE:-pgle}" perf --baseline --force --run-dir "$RUN" --capture "${CAPTURE:-auto}" \
    --target "${TARGET:-h100}" --devices "${DEVICES:-4}" -- $CMD
