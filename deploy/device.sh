#!/usr/bin/env bash
# Starts a device, in the foreground. Its settings are environment variables, see device.env.
set -euo pipefail
: "${SUPERLINK:?HOST:PORT of the SuperLink}" "${CLIENT_ID:?0, 1, 2, ...}" "${STATE_DIR:?folder of the state}"
cd "$STATE_DIR"
config="client-id=$CLIENT_ID state-dir=\"$STATE_DIR\""
[[ -z ${TRACE_DIR:-} ]] || config+=" record-trace=\"$TRACE_DIR\""
[[ -z ${NODE_CONFIG:-} ]] || config+=" $NODE_CONFIG"

# The device's command: here, and nowhere else.
exec "${BIN:-/opt/flexfl/.venv/bin}/flower-supernode" --superlink "$SUPERLINK" --port "${PORT:-9094}" \
    --root-certificates "${ROOT_CERTIFICATES:-/etc/flexfl/ca.crt}" \
    --auth-supernode-private-key "${KEY:-/etc/flexfl/device.key}" --node-config "$config"
