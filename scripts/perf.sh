#!/bin/sh
# $CMD with the profile of $RUN; fails where XLA's log does not show that the main module used it.
set -eu
# shellcheck disable=SC2086  # CMD is a command line
exec "${PGLE:-pgle}" perf --force --run-dir "$RUN" --capture "${CAPTURE:-auto}" \
    --target "${TARGET:-h100}" --devices "${DEVICES:-4}" -- $CMD
