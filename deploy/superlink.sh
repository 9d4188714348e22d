#!/usr/bin/env bash
# Starts the SuperLink, in the foreground. Its settings are environment variables, see superlink.env.
set -euo pipefail
certificates=${CERTIFICATES:-/etc/fedtide/certificates}
bin=${BIN:-/opt/fedtide/.venv/bin}
export PATH=$bin:$PATH # the SuperLink starts others of Flower's programs
exec "$bin/python" "$(dirname "$0")/superlink.py" \
    --host "${HOST:-0.0.0.0}" --port "${PORT:-8000}" \
    --ssl-ca-certfile "$certificates/ca.crt" --ssl-certfile "$certificates/server.pem" \
    --ssl-keyfile "$certificates/server.key" --enable-supernode-auth \
    --database "${DATABASE:-/var/lib/fedtide/superlink.db}"
