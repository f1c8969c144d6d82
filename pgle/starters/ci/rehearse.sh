#!/bin/sh
# What a change does to the steps that tests rehearse (pytest --pgle), against another commit. No GPU.
#
#   BASE=origin/main sh rehearse.sh
#
# Run it in the folder of the project: the root of the repository, or a folder in it.
# BASE: the commit to compare with. TESTS: files or folders of tests, with blanks between them; tests where
# empty. PYTHON: of your program, with pgle and jax's plugin for GPUs. REPORT: the Markdown file to write.
# A step that changed is in the report and no failure; an assertion of a test that fails is one.
# Both sides use the environment of PYTHON: its jaxlib and all other packages but the one under test.
set -eu
: "${BASE:?name the commit to compare with: BASE=origin/main}"
tests=${TESTS:-tests}
python=${PYTHON:-python3}
report=${REPORT:-pgle-rehearsal.md}
case $report in /*) ;; *) report=$PWD/$report ;; esac
commit=$(git rev-parse --quiet --verify "$BASE^{commit}") || {
    echo "BASE=$BASE is not here: git fetch origin ${BASE#origin/}, or fetch-depth: 0 for actions/checkout" >&2
    exit 2
}
folder=$(git rev-parse --show-prefix)  # empty at the root
place=$(mktemp -d)
project=$place/base/$folder
trap 'git worktree remove --force "$place/base" 2>/dev/null || :; rm -rf "$place"' EXIT

git worktree add --quiet --detach "$place/base" "$commit"
# Tests of the base may be fewer, or fail: what has no baseline is new in the report.
# `=`: pytest takes a path of its own for one of the tests, and without an ini file names them from another folder.
# PYTHONPATH: `pip install -e .` and a src layout would import the code of the change.
# shellcheck disable=SC2086
(cd "$project" && PYTHONPATH="${project%/}/src:${project%/}${PYTHONPATH:+:$PYTHONPATH}" \
    "$python" -m pytest -q --pgle --pgle-update --pgle-baselines="$place/baselines" $tests) >&2 ||
    echo "pgle: not all tests of $BASE passed; a step without a baseline is new" >&2

status=0
# shellcheck disable=SC2086
"$python" -m pytest -q --pgle --pgle-baselines="$place/baselines" --pgle-markdown="$report" $tests >&2 || status=$?
if [ -s "$report" ]; then
    cat "$report"
    [ -z "${GITHUB_STEP_SUMMARY:-}" ] || cat "$report" >>"$GITHUB_STEP_SUMMARY"
fi
exit "$status"
