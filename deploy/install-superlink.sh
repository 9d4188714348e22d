#!/usr/bin/env bash
# Makes this machine the server, as root: deploy/install-superlink.sh HOST...
#
# HOST: the names and addresses by which devices and users reach it. Called again, it updates code and packages,
# and makes a new server certificate; the CA, the registered devices and the runs stay.
set -euo pipefail
if (($# == 0)) || [[ $1 == -* ]]; then
    echo "usage: deploy/install-superlink.sh HOST...   (names and addresses of this machine)" >&2
    exit 2
fi
root=$(cd "$(dirname "$0")/.." && pwd)
for package in python3-venv openssl rsync; do
    dpkg -s $package > /dev/null 2>&1 || apt-get install -y $package
done
id fedtide > /dev/null 2>&1 || useradd --system --home-dir /var/lib/fedtide fedtide

mkdir -p /opt/fedtide /etc/fedtide
rsync --archive --delete --exclude '.*' --exclude runs "$root/" /opt/fedtide/
[[ -x /opt/fedtide/.venv/bin/pip ]] || python3 -m venv /opt/fedtide/.venv
/opt/fedtide/.venv/bin/pip install --quiet -r "/opt/fedtide/${REQUIREMENTS:-requirements.txt}"

CERTIFICATES=/etc/fedtide/certificates "$root/deploy/certificates.sh" "$@"
chown fedtide /etc/fedtide/certificates/server.key
[[ -e /etc/fedtide/superlink.env ]] || install -m 644 "$root/deploy/superlink.env" /etc/fedtide/
install -m 644 "$root/deploy/fedtide-superlink.service" /etc/systemd/system/
if [[ -d /run/systemd/system ]]; then
    systemctl daemon-reload
    systemctl enable --quiet fedtide-superlink
    systemctl restart fedtide-superlink
fi
