#!/bin/sh
# What would a profile change? Compiles $CMD for $TARGET with and without estimated costs.
set -eu
eval "set -- $CMD"  # a command line, quoted as the shell wants it
exec "${PGLE:-pgle}" rehearse --target "${TARGET:-h100}" --devices "${DEVICES:-4}" -- "$@"
