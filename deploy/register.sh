#!/usr/bin/env bash
# Admits devices: deploy/register.sh NAME=KEY.pub ...   (such as pi-0=keys/pi-0.pub)
#
# The names are those in `flwr supernode list` and in records. SUPERLINK_NAME is that of the SuperLink in
# Flower's config.toml (lab). A key that is registered already stays so.
set -euo pipefail
if (($# == 0)) || [[ $1 != *=* ]]; then
    echo "usage: deploy/register.sh NAME=KEY.pub ..." >&2
    exit 2
fi
for device in "$@"; do
    told=$(flwr supernode register --name "${device%%=*}" "${device#*=}" "${SUPERLINK_NAME:-lab}" 2>&1) && continue
    if [[ $told == *already*in*use* ]]; then
        echo "${device%%=*} is registered already"
    else
        echo "$told" >&2
        exit 1
    fi
done
