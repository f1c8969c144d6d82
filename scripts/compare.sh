#!/bin/sh
# Step times of $RUN: baseline against perf.
set -eu
exec "${PGLE:-pgle}" compare "$RUN/baseline" "$RUN/perf"
