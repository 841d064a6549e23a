#!/usr/bin/env bash
# Print the folder that holds prometheus and promtool. A machine without them gets Debian's package unpacked into a cache
# folder: nothing is installed, no service is started, no other right is needed than to download.
set -euo pipefail

if found=$(command -v prometheus) && command -v promtool >/dev/null; then
    dirname "$found"
    exit
fi
folder=${XDG_CACHE_HOME:-$HOME/.cache}/sgl-dspark/prometheus
if [ ! -x "$folder/usr/bin/promtool" ]; then
    if ! command -v apt-get >/dev/null || ! command -v dpkg >/dev/null; then
        echo "get_prometheus: error: install Prometheus 2.42 or later so that prometheus and promtool are on the PATH." >&2
        exit 1
    fi
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    # _apt may not write into a folder of ours; downloading as the caller is what is wanted anyway.
    download() { (cd "$work" && apt-get -o APT::Sandbox::User="$(id -un)" download prometheus) >&2; }
    download || { apt-get update >&2 && download; }
    mkdir -p "$folder"
    dpkg -x "$work"/prometheus_*.deb "$folder"
fi
echo "$folder/usr/bin"
