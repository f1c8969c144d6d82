#!/bin/sh
# Step times of $RUN: baseline against perf.
set -eu
PGLE_NEXT=1 exec "${PGLE:-pgle}" compare "$RUN/baseline" "$RUN/perf"
