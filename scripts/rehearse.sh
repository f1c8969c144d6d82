#!/bin/sh
# What would a profile change? Compiles $CMD for $TARGET with and without estimated costs.
set -eu
# shellcheck disable=SC2086  # CMD is a command line
exec "${PGLE:-pgle}" rehearse --target "${TARGET:-h100}" --devices "${DEVICES:-4}" -- $CMD
