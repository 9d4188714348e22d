#!/usr/bin/env bash
# Makes this machine the server, as root: deploy/install-superlink.sh HOST...
#
# HOST: the names and addresses by which devices and users reach it. Called again, it updates code and packages;
# the certificate stays unless it lacks a name or soon expires, and so do the registered devices and the runs.
set -euo pipefail
if (($# == 0)) || [[ $1 == -* ]]; then
    echo "usage: deploy/install-superlink.sh HOST...   (names and addresses of this machine)" >&2
    exit 2
fi
root=$(cd "$(dirname "$0")/.." && pwd)
if ! dpkg -s python3-venv openssl rsync > /dev/null 2>&1; then
    apt-get update -qq
    apt-get install -y -qq python3-venv openssl rsync
fi
id fedtide > /dev/null 2>&1 || useradd --system --home-dir /var/lib/fedtide fedtide
[[ -z ${SUDO_USER:-} ]] || usermod --append --groups fedtide "$SUDO_USER" # who reads the runs

mkdir -p /opt/fedtide /etc/fedtide
rsync --archive --delete --exclude '.*' --exclude runs "$root/" /opt/fedtide/
[[ -x /opt/fedtide/.venv/bin/pip ]] || python3 -m venv /opt/fedtide/.venv
TMPDIR=/var/tmp /opt/fedtide/.venv/bin/pip install --quiet -r "/opt/fedtide/${REQUIREMENTS:-requirements.txt}"

CERTIFICATES=/etc/fedtide/certificates "$root/deploy/certificates.sh" "$@"
chown fedtide /etc/fedtide/certificates/server.key
if [[ ! -e /etc/fedtide/superlink.env ]]; then
    own=$(printf '%s\n' "$@" | grep -E '^[0-9.]+$|:' || true) # of its addresses: this machine is an administrator's
    sed "s/^ADMINS=.*/ADMINS=\"127.0.0.0\/8 ::1${own:+ }${own//$'\n'/ }\"/" "$root/deploy/superlink.env" > /etc/fedtide/superlink.env
fi
install -m 644 "$root/deploy/fedtide-superlink.service" "$root/deploy/fedtide-run@.service" /etc/systemd/system/
install -d -m 750 -o fedtide -g fedtide /var/lib/fedtide /var/lib/fedtide/flower
cat > /var/lib/fedtide/flower/config.toml << END # of runs that go on by themselves
[superlink]
default = "lab"

[superlink.lab]
address = "127.0.0.1:8000"
root-certificates = "/etc/fedtide/certificates/ca.crt"
END
if [[ -d /run/systemd/system ]]; then
    systemctl daemon-reload
    systemctl enable --quiet fedtide-superlink
    systemctl restart fedtide-superlink
fi
