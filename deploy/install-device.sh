#!/usr/bin/env bash
# Makes this board a device, as root: install-device.sh CLIENT-ID SUPERLINK CA.crt [REQUIREMENTS]
#
# CLIENT-ID is 0, 1, 2, ...; SUPERLINK is HOST:PORT; REQUIREMENTS is requirements-device-torch.txt unless given.
# Called again, it updates code, packages and scripts, and keeps the key and what is set in
# /etc/fedtide/device.env. The last line is the file to register.
set -euo pipefail
if (($# < 3)) || ! [[ $1 =~ ^[0-9]+$ && $2 == *:* && -r $3 ]]; then
    echo "usage: install-device.sh CLIENT-ID SUPERLINK CA.crt [REQUIREMENTS]   (SUPERLINK is HOST:PORT)" >&2
    exit 2
fi
deploy=$(cd "$(dirname "$0")" && pwd)
if ! dpkg -s python3-venv openssh-client > /dev/null 2>&1; then
    apt-get update -qq
    apt-get install -y -qq python3-venv openssh-client
fi
id fedtide > /dev/null 2>&1 || useradd --system --home-dir /var/lib/fedtide fedtide
[[ -z ${SUDO_USER:-} ]] || usermod --append --groups fedtide "$SUDO_USER" # who collects the traces

mkdir -p /opt/fedtide /etc/fedtide
for part in clients deploy fedtide strategies traces; do
    rm -rf "/opt/fedtide/$part" # modules of an earlier version would stay
    cp -r "$deploy/../$part" /opt/fedtide/
done
[[ -x /opt/fedtide/.venv/bin/pip ]] || python3 -m venv /opt/fedtide/.venv
TMPDIR=/var/tmp /opt/fedtide/.venv/bin/pip install --quiet -r "/opt/fedtide/deploy/${4:-requirements-device-torch.txt}"

install -m 644 "$3" /etc/fedtide/ca.crt
"$deploy/key.sh" /etc/fedtide/device.key "$1"
chown fedtide /etc/fedtide/device.key
[[ -e /etc/fedtide/device.env ]] || install -m 644 "$deploy/device.env" /etc/fedtide/
sed -i -e "s/^CLIENT_ID=.*/CLIENT_ID=$1/" -e "s/^SUPERLINK=.*/SUPERLINK=$2/" /etc/fedtide/device.env
install -m 644 "$deploy/fedtide-device.service" /etc/systemd/system/
if [[ -d /run/systemd/system ]]; then
    systemctl daemon-reload
    systemctl enable --quiet systemd-time-wait-sync fedtide-device
    systemctl restart --no-block fedtide-device
fi
echo /etc/fedtide/device.key.pub
