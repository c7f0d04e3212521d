#!/usr/bin/env bash
# Unpack Slurm and munge from Debian's packages into a folder, with those of their libraries that this machine
# lacks. This installs nothing, starts nothing, and needs no root.
set -euo pipefail
folder=$1
if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
    echo "Slurm was not set up: this machine has no packages of Debian." >&2
    exit 1
fi
rm -rf "$folder"
mkdir -p "$folder/archives/partial" "$folder/root"
apt-get -qq --yes --no-install-recommends --reinstall --download-only -o Debug::NoLocking=true \
    -o APT::Sandbox::User="$(id -un)" -o Dir::Cache::archives="$(realpath "$folder")/archives" \
    install munge slurm-client slurm-wlm-basic-plugins slurmctld slurmd || {
    echo "Slurm was not set up: its packages could not be downloaded. 'apt-get update' may be needed first." >&2
    exit 1
}
for archive in "$folder"/archives/*.deb; do
    dpkg-deb --extract "$archive" "$folder/root"
done
rm -r "$folder/archives"
touch "$folder/.ready"
