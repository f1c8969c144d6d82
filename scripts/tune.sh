#!/bin/sh
# Flags that, with the profile of $RUN, make $CMD faster; if there are some, all stages under them.
set -eu
[ -f "$RUN/tuned/report.json" ] || "${PGLE:-pgle}" tune "$RUN" -o "$RUN/tuned"
[ -f "$RUN/tuned/flags.txt" ] || exit 0
eval "set -- $CMD"  # a command line, quoted as the shell wants it
exec "${PGLE:-pgle}" run --run-dir "$RUN-tuned" --capture "${CAPTURE:-auto}" --mode "${MODE:-sync}" \
    --target "${TARGET:-h100}" --devices "${DEVICES:-4}" --flags-file "$RUN/tuned/flags.txt" -- "$@"
