#!/usr/bin/env bash
# A federation on this machine, to try a deployment: deploy/local.sh NUMBER [RUN-CONFIG]
#
# A SuperLink with TLS and NUMBER devices with registered keys, on loopback; one `flwr run` with the run config;
# then all of it is stopped. Everything lies in one new folder in runs/ (or $FOLDER): logs, keys, the run.
#     deploy/local.sh 5 "strategy='mifa' num-rounds=10"
set -euo pipefail
if ! [[ ${1:-} =~ ^[1-9][0-9]*$ ]] || (($# > 2)); then
    echo "usage: deploy/local.sh NUMBER [RUN-CONFIG]   (NUMBER of devices)" >&2
    exit 2
fi
number=$1 config=${2:-num-rounds=3}
root=$(cd "$(dirname "$0")/.." && pwd)
deploy=$root/deploy
export BIN=${BIN:-$(dirname "$(command -v flower-superlink || echo "$root/.venv/bin/flower-superlink")")}
if [[ ! -x $BIN/flower-superlink ]]; then
    echo "deploy/local.sh: no flower-superlink in $BIN; pip install -r requirements.txt, or set BIN" >&2
    exit 2
fi
folder=${FOLDER:-$root/runs/local-$(date +%Y%m%d-%H%M%S)}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
export PATH=$BIN:$PATH FLWR_HOME=$folder/flower FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
mkdir -p "$FLWR_HOME" "$folder"/{log,keys,state,traces}

processes() {  # all that has been started here: it has this FLWR_HOME
    env -u FLWR_HOME python3 -c '
import pathlib, sys
mark = f"FLWR_HOME={sys.argv[1]}".encode()
for entry in pathlib.Path("/proc").glob("[0-9]*/environ"):
    try:
        if mark in entry.read_bytes().split(b"\0"):
            print(entry.parent.name)
    except OSError:  # it has ended, or belongs to another user
        pass' "$FLWR_HOME"
}
stop() {
    trap - EXIT INT TERM
    for signal in TERM KILL; do
        for _ in {1..25}; do
            mapfile -t pids < <(processes)
            ((${#pids[@]})) || return 0
            kill -s "$signal" "${pids[@]}" 2> /dev/null || true
            sleep 0.4
        done
    done
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

start() {  # NAME COMMAND...
    local name=$1
    shift
    setsid "$@" > "$folder/log/$name.log" 2>&1 < /dev/null &
}

read -r -a ports < <(python3 -c '
import socket, sys
sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(int(sys.argv[1]) + 1)]
print(*(s.getsockname()[1] for s in sockets))' "$number")
export SUPERLINK=127.0.0.1:${ports[0]} ROOT_CERTIFICATES=$folder/certificates/ca.crt
CERTIFICATES=$folder/certificates "$deploy/certificates.sh" 127.0.0.1
printf '[superlink]\ndefault = "lab"\n\n[superlink.lab]\naddress = "%s"\nroot-certificates = "%s"\n' \
    "$SUPERLINK" "$ROOT_CERTIFICATES" > "$FLWR_HOME/config.toml"
start superlink env CERTIFICATES="$folder/certificates" HOST=127.0.0.1 PORT="${ports[0]}" \
    DATABASE="$folder/superlink.db" "$deploy/superlink.sh"
superlink=$!
until flwr ls lab > "$folder/log/ls.log" 2>&1; do
    kill -0 "$superlink" 2> /dev/null || { tail -n 5 "$folder/log/superlink.log" >&2; exit 1; }
    sleep 0.5
done
keys=()
for ((k = 0; k < number; k++)); do
    "$deploy/key.sh" "$folder/keys/device-$k" "$k"
    keys+=("device-$k=$folder/keys/device-$k.pub")
done
PYTHONPATH=$root "$BIN/python" -m fedtide fleet register "${keys[@]}"
for ((k = 0; k < number; k++)); do
    mkdir -p "$folder/state/$k"
    start "device-$k" env CLIENT_ID="$k" KEY="$folder/keys/device-$k" STATE_DIR="$folder/state/$k" \
        TRACE_DIR="$folder/traces" PORT="${ports[k + 1]}" "$deploy/device.sh"
done
flwr run "$root" lab --stream --run-config "num-clients=$number run-dir=\"$folder/runs\" $config"
flwr ls lab
PYTHONPATH=$root "$BIN/python" -m fedtide fleet status --run "$folder/runs"
echo "$folder has all of it: runs/ (report.html), log/, traces/"
