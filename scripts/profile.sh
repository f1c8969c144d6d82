#!/bin/sh
# Profile run of $CMD into $RUN. Variables as in the Makefile.
set -eu
# shellcheck disable=SC2086  # CMD is a command line
exec "${PGLE:-pgle}" profile --force --run-dir "$RUN" --capture "${CAPTURE:-auto}" --mode "${MODE:-sync}" \
    --target "${TARGET:-h100}" --devices "${DEVICES:-4}" -- $CMD
