#!/bin/sh
# Runs an installation, and says every second what it does; its output goes to $LOG.
#   LOG=.venv/install.log scripts/install.sh "jax and its CUDA plugin" COMMAND...
set -eu
what=$1
shift
"$@" >"$LOG" 2>&1 &
pid=$!
trap 'kill $pid 2>/dev/null; exit 130' INT TERM
seconds=0
[ -t 2 ] || printf 'installing %s ' "$what" >&2
while kill -0 $pid 2>/dev/null; do
    if [ -t 2 ]; then
        package=$(sed -n 's/^ *\(Collecting\|Downloading\|Obtaining\|Using cached\|Installing\) \([^ ]*\).*/\1 \2/p' "$LOG" | tail -n 1)
        printf '\r\033[Kinstalling %s: %d s  %.50s' "$what" $seconds "$package" >&2
    else
        printf . >&2
    fi
    sleep 1
    seconds=$((seconds + 1))
done
code=0
wait $pid || code=$?
[ -t 2 ] && printf '\r\033[Kinstalled %s in %d s\n' "$what" $seconds >&2 || printf ' %d s\n' $seconds >&2
[ $code -eq 0 ] || { cat "$LOG" >&2; exit $code; }
