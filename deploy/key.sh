#!/usr/bin/env bash
# Makes the key of a device: deploy/key.sh [--replace] FILE [CLIENT-ID]
#
# FILE stays on the device, as it is if it is there already, unless it is to be replaced. FILE.pub, in which the
# client-id is a comment, is for `fedtide fleet register`.
set -euo pipefail
if [[ ${1:-} == --replace ]]; then replace=1; shift; fi
if (($# < 1 || $# > 2)) || ! [[ ${2:-0} =~ ^[0-9]+$ ]]; then
    echo "usage: deploy/key.sh [--replace] FILE [CLIENT-ID]   (such as /etc/fedtide/device.key 3)" >&2
    exit 2
fi
if [[ -d $1 ]]; then
    echo "deploy/key.sh: $1 is a folder" >&2
    exit 2
fi
id=${2:-$(sed -n 's/.* client-id=\([0-9]*\)$/\1/p' "$1.pub" 2> /dev/null || true)}
if [[ -n ${replace:-} || ! -e $1 ]]; then
    new=$(mktemp -d "$1.XXXXXX")
    trap 'rm -r "$new"' EXIT
    ssh-keygen -q -t ecdsa -b 384 -N "" -C "" -f "$new/key"
    [[ ! -e $1 ]] || chown --reference "$1" "$new/key" # of the user that the device runs as
    mv "$new/key" "$1"
fi
chmod 600 "$1"
# From the key itself, so that the two always fit.
public=$(ssh-keygen -y -P "" -f "$1" | cut -d ' ' -f 1,2) # or the script ends here
printf '%s%s\n' "$public" "${id:+ client-id=$id}" > "$1.pub"
