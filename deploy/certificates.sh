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
for host in "$@"; do
    if [[ $host =~ ^[0-9]+(\.[0-9]+){3}$ || $host == *:* ]]; then names+=",IP:$host"; else names+=",DNS:$host"; fi
done

folder=${CERTIFICATES:-certificates}
days=${DAYS:-825}
curve=(-newkey ec -pkeyopt ec_paramgen_curve:P-384 -nodes -sha256)
umask 077
mkdir -p "$folder"
cd "$folder"
names_all() {  # whether the certificate that is there names every host
    for host in "$@"; do
        if [[ $host =~ ^[0-9.]+$ || $host == *:* ]]; then check=-checkip; else check=-checkhost; fi
        openssl x509 -in server.pem -noout $check "$host" | grep -q "does match" || return 1
    done
}
if [[ -e server.pem ]] && openssl x509 -in server.pem -noout -checkend 2592000 > /dev/null && names_all "$@"; then
    echo "$folder: the certificate of the SuperLink stays ($(openssl x509 -in server.pem -noout -enddate))"
    exit
fi
if [[ -e ca.crt && ! -e ca.key ]]; then
    echo "$folder: ca.crt is there without ca.key, with which a certificate is signed: bring it here for a moment." >&2
    echo "Another CA (remove ca.crt) would need a new ca.crt on every device." >&2
    exit 1
fi
if [[ ! -e ca.key ]]; then
    openssl req -x509 "${curve[@]}" -days 3650 -subj "/O=fedtide/CN=fedtide CA" -keyout ca.key -out ca.crt
fi 2> /dev/null
openssl req -new "${curve[@]}" -subj "/O=fedtide/CN=${1:0:64}" -keyout server.key -out server.csr 2> /dev/null
openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -set_serial "0x$(openssl rand -hex 16)" -days "$days" \
    -sha256 -out server.pem 2> /dev/null \
    -extfile <(printf 'subjectAltName=%s\nbasicConstraints=CA:FALSE\nextendedKeyUsage=serverAuth\n' "$names")
rm server.csr
chmod 755 . && chmod 644 ca.crt server.pem
echo "$folder: ca.crt for devices and users, server.pem and server.key for the SuperLink (${names//,/, }; $days days)"
