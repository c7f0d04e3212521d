#!/usr/bin/env bash
# Unpack PgBouncer from Debian's packages into a folder, with its libraries that systems often lack.
# This installs nothing, starts nothing, and needs no root.
set -euo pipefail
folder=$1
if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
    echo "PgBouncer was not set up: this machine has no packages of Debian." >&2
    exit 1
fi
rm -rf "$folder"
mkdir -p "$folder/root"
libraries=$(apt-cache depends pgbouncer | sed -nE 's/^ *Depends: (lib(event|c-ares)[^ ]*)$/\1/p')
(
    cd "$folder"
    # shellcheck disable=SC2086
    apt-get -qq -o Debug::NoLocking=true -o APT::Sandbox::User="$(id -un)" download pgbouncer $libraries
) || {
    echo "PgBouncer was not set up: its packages could not be downloaded. 'apt-get update' may be needed first." >&2
    exit 1
}
for archive in "$folder"/*.deb; do
    dpkg-deb --extract "$archive" "$folder/root"
done
rm "$folder"/*.deb
touch "$folder/.ready"
