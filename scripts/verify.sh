#!/bin/sh
# Does the profile of $RUN cover its main module?
set -eu
exec "${PGLE:-pgle}" verify "$RUN/profile.pbtxt" --hlo "$RUN/profile/hlo"
