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
id flexfl > /dev/null 2>&1 || useradd --system --home-dir /var/lib/flexfl flexfl

mkdir -p /opt/flexfl /etc/flexfl
rsync --archive --delete --exclude '.*' --exclude runs "$root/" /opt/flexfl/
[[ -x /opt/flexfl/.venv/bin/pip ]] || python3 -m venv /opt/flexfl/.venv
/opt/flexfl/.venv/bin/pip install --quiet -r "/opt/flexfl/${REQUIREMENTS:-requirements.txt}"

CERTIFICATES=/etc/flexfl/certificates "$root/deploy/certificates.sh" "$@"
chown flexfl /etc/flexfl/certificates/server.key
[[ -e /etc/flexfl/superlink.env ]] || install -m 644 "$root/deploy/superlink.env" /etc/flexfl/
install -m 644 "$root/deploy/flexfl-superlink.service" /etc/systemd/system/
if [[ -d /run/systemd/system ]]; then
    systemctl daemon-reload
    systemctl enable --quiet flexfl-superlink
    systemctl restart flexfl-superlink
fi
