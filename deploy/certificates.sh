#!/usr/bin/env bash
# Certificates of a SuperLink: deploy/certificates.sh HOST...
#
# HOST: every name and address by which devices and users reach the SuperLink. In the folder certificates/ (or
# $CERTIFICATES) there are then ca.crt, which devices and users get, and server.pem and server.key for the
# SuperLink. A CA that is there is kept: a new server certificate needs nothing new on the devices. A server
# certificate that has all these names and is valid for a month more stays, too: that needs no ca.key.
set -euo pipefail
if (($# == 0)) || [[ $1 == -* ]]; then
    echo "usage: deploy/certificates.sh HOST...   (names and addresses of the SuperLink)" >&2
    exit 2
fi

names="DNS:localhost,IP:127.0.0.1"  # the SuperLink's own processes connect there
octet='(25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])'
for host in "$@"; do
    if [[ $host =~ ^$octet(\.$octet){3}$ || $host =~ ^[0-9a-fA-F]*:[0-9a-fA-F:]*:[0-9a-fA-F]*$ ]]; then
        names+=",IP:$host"
    elif [[ $host =~ ^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?$ && ! $host =~ ^[0-9.]+$ ]]; then
        names+=",DNS:$host"
    else
        echo "deploy/certificates.sh: '$host' is neither a name nor an address; give it without port and protocol" >&2
        exit 2
    fi
done

folder=${CERTIFICATES:-certificates}
days=${DAYS:-825}
curve=(-newkey ec -pkeyopt ec_paramgen_curve:P-384 -nodes -sha256)
umask 077
mkdir -p "$folder"
cd "$folder"
fits() {  # whether the certificate that is there has its key and names every host
    [[ $(openssl x509 -in server.pem -noout -pubkey) == "$(openssl pkey -in server.key -pubout)" ]] || return 1
    openssl verify -CAfile ca.crt server.pem > /dev/null || return 1
    for host in "$@"; do
        if [[ ,$names, == *",IP:$host,"* ]]; then check=-checkip; else check=-checkhost; fi
        openssl x509 -in server.pem -noout $check "$host" | grep -q "does match" || return 1
    done
}
if [[ -e server.pem ]] && openssl x509 -in server.pem -noout -checkend 2592000 > /dev/null && fits "$@" 2> /dev/null; then
    echo "$folder: the certificate of the SuperLink stays ($(openssl x509 -in server.pem -noout -enddate))"
    exit
fi
if [[ -e ca.crt && ! -e ca.key ]]; then
    echo "$folder: ca.crt is there without ca.key, with which a certificate is signed: bring it here for a moment." >&2
    echo "Another CA (remove ca.crt) would need a new ca.crt on every device." >&2
    exit 1
fi
# What is made gets its name when all of it is there: a kill or an error in between changes nothing.
new=$(mktemp -d .new.XXXXXX)
trap 'rm -rf "$new"' EXIT
quiet() { "$@" 2> "$new/log" || { cat "$new/log" >&2; exit 1; }; }
ca=.
if [[ ! -e ca.key || ! -e ca.crt ]]; then
    ca=$new
    quiet openssl req -x509 "${curve[@]}" -days 3650 -subj "/O=fedtide/CN=fedtide CA" -keyout "$new/ca.key" -out "$new/ca.crt"
fi
printf 'subjectAltName=%s\nbasicConstraints=CA:FALSE\nextendedKeyUsage=serverAuth\n' "$names" > "$new/names"
quiet openssl req -new "${curve[@]}" -subj "/O=fedtide/CN=${1:0:64}" -keyout "$new/server.key" -out "$new/server.csr"
quiet openssl x509 -req -in "$new/server.csr" -CA "$ca/ca.crt" -CAkey "$ca/ca.key" -set_serial "0x$(openssl rand -hex 16)" \
    -days "$days" -sha256 -out "$new/server.pem" -extfile "$new/names"
chmod 755 . && chmod 644 "$new"/*.crt "$new/server.pem" 2> /dev/null || true
for file in ca.key ca.crt server.key server.pem; do
    [[ ! -e $new/$file ]] || mv "$new/$file" "$file"
done
echo "$folder: ca.crt for devices and users, server.pem and server.key for the SuperLink (${names//,/, }; $days days)"
