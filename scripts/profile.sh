#!/bin/sh
# Profile run of $CMD into $RUN. Variables as in the Makefile.
set -eu
eval "set -- $CMD"  # a command line, quoted as the shell wants it
exec "${PGLE:-pgle}" profile --force --run-dir "$RUN" --capture "${CAPTURE:-auto}" --mode "${MODE:-sync}" \
    --target "${TARGET:-h100}" --devices "${DEVICES:-4}" -- "$@"
