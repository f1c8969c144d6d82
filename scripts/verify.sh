#!/bin/sh
# Does the profile of $RUN cover the module that will use it, as the baseline compiled it?
set -eu
exec "${PGLE:-pgle}" verify "$RUN/profile.pbtxt" --hlo "$RUN/baseline/hlo"
