#!/usr/bin/env bash
# Makes the key of a device: deploy/key.sh FILE. The SuperLink gets FILE.pub (deploy/register.sh); FILE stays.
set -euo pipefail
if (($# != 1)); then
    echo "usage: deploy/key.sh FILE   (such as /etc/fedtide/device.key)" >&2
    exit 2
fi
[[ -e $1 ]] || ssh-keygen -q -t ecdsa -b 384 -N "" -C "" -f "$1"
chmod 600 "$1"
