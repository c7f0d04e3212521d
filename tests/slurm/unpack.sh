#!/usr/bin/env bash
# Unpack Slurm and munge from Debian's packages into a folder, with those of their libraries that this machine
# lacks. This installs nothing, starts nothing, and needs no root.
#
# With the name of another release of Debian its packages are unpacked instead, and all libraries that they need:
# another C library too. The programs then load only these.
set -euo pipefail
folder=$1
release=${2:-}
packages=(munge slurm-client slurm-wlm-basic-plugins slurmctld slurmd)
if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
    echo "Slurm was not set up: this machine has no packages of Debian." >&2
    exit 1
fi
rm -rf "$folder/archives" "$folder/root" "$folder/apt" "$folder/.ready"
mkdir -p "$folder/archives/partial" "$folder/root"
here=$(realpath "$folder")
options=(-qq -o Debug::NoLocking=true -o APT::Sandbox::User="$(id -un)" -o Dir::Cache::archives="$here/archives")

# Let apt-get know only the packages of the release, from the mirror of this machine, and none as installed.
use_release() {
    local mirror
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Origin: Debian' 'Created-By: Packages' | head -n 1)
    if [ -z "$mirror" ] || [ ! -f /usr/share/keyrings/debian-archive-keyring.gpg ]; then
        echo "Slurm of Debian's $release was not set up: this machine has no mirror of Debian." >&2
        exit 0
    fi
    mkdir -p "$here/apt/lists/partial"
    touch "$here/apt/status"
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $release main" >"$here/apt/sources.list"
    options+=(-o Dir::State::lists="$here/apt/lists" -o Dir::State::status="$here/apt/status" -o Dir::Cache="$here/apt"
        -o Dir::Etc::sourcelist="$here/apt/sources.list" -o Dir::Etc::sourceparts=/dev/null
        -o Acquire::Languages=none)
    packages+=(slurm-wlm-jwt-plugin slurmrestd patchelf)
    apt-get "${options[@]}" update
}

# Let the programs find their own loader and libraries. A variable would do so too, but is passed on to batch jobs.
use_own_libraries() {
    local loader libraries program
    loader=$(find "$here/root/usr/lib" -name 'ld-linux-*.so.*' -not -path '*/lib64/*' | head -n 1)
    libraries=$(dirname "$loader")
    for program in "$here"/root/usr/sbin/{munged,slurm*} "$here"/root/usr/bin/s{batch,cancel,control,info,queue}; do
        "$loader" --library-path "$libraries" "$here/root/usr/bin/patchelf" --set-interpreter "$loader" \
            --force-rpath --set-rpath "$libraries/slurm-wlm:$libraries" "$program"
    done
    # The daemons know by these names what they are.
    for program in slurmctld slurmd slurmstepd; do
        ln -s "$program-wlm" "$here/root/usr/sbin/$program"
    done
}

if [ -n "$release" ]; then
    use_release
fi
apt-get "${options[@]}" --yes --no-install-recommends --reinstall --download-only install "${packages[@]}" || {
    echo "Slurm was not set up: its packages could not be downloaded. 'apt-get update' may be needed first." >&2
    exit 1
}
for archive in "$folder"/archives/*.deb; do
    dpkg-deb --extract "$archive" "$folder/root"
done
if [ -n "$release" ]; then
    use_own_libraries
fi
rm -rf "$folder/archives" "$folder/apt"
touch "$folder/.ready"
