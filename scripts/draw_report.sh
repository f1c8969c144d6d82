#!/bin/sh
# Draw the page of the README: docs/report.png, of the traces in testdata. Needs Chromium.
set -eu
cd "$(dirname "$0")/.."
traces=testdata/pax_fsdp4
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
pgle report $traces/proc0.sqlite $traces/proc3.sqlite --hlo $traces/proc0/dump -o "$folder/report.html"
chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --window-size=1100,1250 \
    --virtual-time-budget=5000 --screenshot=docs/report.png "file://$folder/report.html"
