#!/bin/sh
# Compare step times in CI, with a baseline file per hardware. The one script behind the GitHub action, GitLab and Slurm.
#
# In the environment (all but NEW may be left out):
#   NEW           run directory, log or glob of the state under test
#   BASE          what to compare with; default: the baseline file of this hardware
#   COMMAND       instead of BASE and NEW: a command to run in ABBA order, without and with PROFILE; quotes hold words
#                 together, nothing else is expanded
#   PROFILE       cost profile for COMMAND
#   ROUNDS        rounds of four runs of COMMAND (3)
#   BASELINES     folder of baseline files (.pgle/baselines)
#   HARDWARE      name of this hardware (default: what nvidia-smi says, else no-gpu)
#   SAVE_BASELINE true: NEW becomes the baseline of this hardware if the gate says ok, not if it cannot tell
#   FAIL_SLOWER   fail if NEW is shown to be slower by more than this (1%); OPTIONS=--fail-undecided fails too if that
#                 cannot be told
#   LAUNCH_SPREAD how much launches of the program differ, such as 0.3%; without it the gate sees only large changes
#   HISTORY       a pgle history in which that is measured instead
#   OPTIONS       more options of pgle compare, as words of COMMAND
#   REPORT        folder for report.html and compare.json (pgle-report)
#   PGLE          the command to call (pgle)
# With --hardware it only prints hardware=NAME.
# Exit code: as of pgle compare; 0 with a note where there is no baseline yet.
set -eu
PGLE=${PGLE:-pgle}
BASELINES=${BASELINES:-.pgle/baselines}
REPORT=${REPORT:-pgle-report}
FAIL_SLOWER=${FAIL_SLOWER:-1%}

if [ -z "${HARDWARE:-}" ]; then
  HARDWARE=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | sort | uniq -c | head -n 1 |
    tr '[:upper:]' '[:lower:]' | sed 's/[^a-z0-9]\{1,\}/-/g; s/^-//; s/-$//' || true)
  HARDWARE=${HARDWARE:-no-gpu}
fi
case $HARDWARE in
*[!A-Za-z0-9._-]* | .*)
  echo "HARDWARE is '$HARDWARE': use letters, digits, dots, dashes" >&2
  exit 2
  ;;
esac
if [ "${1:-}" = --hardware ]; then
  printf 'hardware=%s\n' "$HARDWARE"
  exit
fi
baseline="$BASELINES/$HARDWARE"
mkdir -p "$REPORT"

set -- --fail-slower "$FAIL_SLOWER" --html "$REPORT/report.html" --json --force
[ -z "${GITHUB_ACTIONS:-}" ] || set -- "$@" --github
[ -z "${LAUNCH_SPREAD:-}" ] || set -- "$@" --launch-spread "$LAUNCH_SPREAD"
[ -z "${HISTORY:-}" ] || set -- "$@" --history "$HISTORY"

# The words of a text, one a line: quotes are honoured, patterns and variables are left as they are.
words() {
  printf '%s\n' "$1" | xargs -n 1 printf '%s\n' || {
    echo "$2 has a quote that does not end" >&2
    exit 2
  }
}
if [ -n "${OPTIONS:-}" ]; then
  options=$(words "$OPTIONS" OPTIONS)
  while IFS= read -r word; do set -- "$@" "$word"; done <<END
$options
END
fi

say() {
  printf '%s\n' "$1"
  [ -z "${GITHUB_STEP_SUMMARY:-}" ] || printf '%s\n' "$1" >>"$GITHUB_STEP_SUMMARY"
}

keep() {
  mkdir -p "$BASELINES"
  rm -rf "$baseline.new"
  if [ -d "$NEW" ]; then
    mkdir "$baseline.new"
    find "$NEW" -maxdepth 2 \( -name 'steps*.jsonl' -o -name output.log \) | while read -r file; do
      name=${file#"$NEW"/}
      mkdir -p "$(dirname "$baseline.new/$name")"
      cp "$file" "$baseline.new/$name"
    done
  else
    mkdir "$baseline.new"
    (
      IFS= # NEW may be a pattern, and hold spaces
      [ ! -e "$NEW" ] || set -f
      # shellcheck disable=SC2086
      cp -- $NEW "$baseline.new/"
    )
  fi
  # What cannot be read back would fail every later run.
  "$PGLE" compare "$baseline.new" "$baseline.new" >/dev/null || {
    rm -rf "$baseline.new"
    echo "$NEW cannot be a baseline: no step times could be read from it (above); is it the right folder?" >&2
    exit 2
  }
  rm -rf "$baseline"
  mv "$baseline.new" "$baseline"
  say "The baseline of $HARDWARE is now $NEW."
}

code=0
if [ -n "${COMMAND:-}" ]; then
  : "${PROFILE:?COMMAND needs PROFILE, the profile of the second side}"
  command=$(words "$COMMAND" COMMAND)
  set -- "$@" --abba "${ROUNDS:-3}" --profile "$PROFILE" --run-dir "$REPORT/runs" --
  while IFS= read -r word; do set -- "$@" "$word"; done <<END
$command
END
  "$PGLE" compare "$@" >"$REPORT/compare.json" || code=$?
else
  : "${NEW:?set NEW to the run to check, or COMMAND to the program to run}"
  if [ -z "${BASE:-}" ]; then
    if [ ! -e "$baseline" ]; then
      if [ "${SAVE_BASELINE:-}" = true ]; then keep; fi
      say "No baseline for $HARDWARE in $BASELINES yet: nothing was compared."
      [ -z "${GITHUB_OUTPUT:-}" ] || printf 'verdict=undecided\nok=true\n' >>"$GITHUB_OUTPUT"
      exit 0
    fi
    BASE=$baseline
  fi
  "$PGLE" compare "$@" "$BASE" "$NEW" >"$REPORT/compare.json" || code=$?
  if [ "$code" -eq 0 ] && [ "${SAVE_BASELINE:-}" = true ]; then
    if grep -q '^  "ok": true' "$REPORT/compare.json"; then keep; else say "The baseline stays: the gate cannot tell."; fi
  fi
fi
cat "$REPORT/compare.json"
exit "$code"
