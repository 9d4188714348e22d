#!/usr/bin/env bash
# Fetches the logs that devices have recorded: deploy/collect.sh FOLDER HOST...   (such as logs pi@192.168.1.20)
#
# The folder is then a trace, `--trace recorded:file=FOLDER`, and a log for `--rehearse FOLDER`. A host that cannot
# be reached is named, and its earlier log stays. TRACE_DIR is the folder on the devices.
set -euo pipefail
if (($# < 2)); then
    echo "usage: deploy/collect.sh FOLDER HOST..." >&2
    exit 2
fi
folder=$1 failed=0
shift
mkdir -p "$folder"
for host in "$@"; do
    rsync --archive --compress --timeout=30 "$host:${TRACE_DIR:-/var/lib/fedtide/traces}/" "$folder/" || {
        echo "deploy/collect.sh: nothing from $host" >&2
        failed=1
    }
done
exit $failed
