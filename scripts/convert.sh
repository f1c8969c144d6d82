#!/bin/sh
# The traces of $RUN → $RUN/profile.pbtxt with its sidecar.
set -eu
exec "${PGLE:-pgle}" convert --force "$RUN"
