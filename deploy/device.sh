#!/usr/bin/env bash
# Starts a device, in the foreground. Its settings are environment variables, see device.env.
set -euo pipefail
: "${SUPERLINK:?HOST:PORT of the SuperLink}" "${CLIENT_ID:?0, 1, 2, ...}" "${STATE_DIR:?folder of the state}"
PYTHONPATH=$(cd "$(dirname "$0")/.." && pwd)
export PYTHONPATH
cd "$STATE_DIR"
read -r -a options <<< "${OPTIONS:-}"

# The device's command: here, and nowhere else. A restart is no departure.
exec "${BIN:-/opt/fedtide/.venv/bin}/python" -m clients.device --superlink "$SUPERLINK" --port "${PORT:-9094}" \
    --client-id "$CLIENT_ID" --state-dir "$STATE_DIR" ${TRACE_DIR:+--record-trace "$TRACE_DIR"} \
    --root-certificates "${ROOT_CERTIFICATES:-/etc/fedtide/ca.crt}" --key "${KEY:-/etc/fedtide/device.key}" \
    --on-stop pause "${options[@]}"
