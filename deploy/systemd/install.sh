#!/usr/bin/env bash
# Install the service on this host: make install-systemd [APPLY=1], as root. Without APPLY=1 it only says what it would do.
#
# Expects the environment in /opt/sgl-dspark/venv: make setup DSPARK_VENV=/opt/sgl-dspark/venv in a checkout that stays, or
# pip install 'sgl-dspark[serve]' there, which brings no demo draft, so that DSPARK_ARGS must name a pair. Settings that are there already are kept. DESTDIR=DIR installs below a folder,
# as packagers do, and starts nothing.
set -euo pipefail
cd "$(dirname "$0")"

apply=${APPLY:-0}
root=${DESTDIR:-}
unit=$root/etc/systemd/system/sgl-dspark.service
settings=$root/etc/sgl-dspark

run() {
    if [ "$apply" = 1 ]; then
        echo "+ $*"
        "$@"
    else
        echo "would run: $*"
    fi
}

if [ "$apply" = 1 ] && [ -z "$root" ] && [ "$(id -u)" != 0 ]; then
    echo "install-systemd: error: only root may write to /etc; run it with sudo, or set DESTDIR." >&2
    exit 1
fi
if [ ! -x "$root/opt/sgl-dspark/venv/bin/dspark" ]; then
    echo "install-systemd: note: there is no $root/opt/sgl-dspark/venv/bin/dspark yet; the service will not start without." >&2
fi

run install -D --mode=0644 sgl-dspark.service "$unit"
for file in sgl-dspark.env keys.yaml; do
    if [ -e "$settings/$file" ]; then
        echo "kept: $settings/$file"
    else
        mode=0644
        [ "$file" != keys.yaml ] || mode=0600
        run install -D --mode="$mode" "$file" "$settings/$file"
    fi
done
if [ -z "$root" ]; then
    run systemctl daemon-reload
    run systemctl enable --now sgl-dspark.service
fi
[ "$apply" = 1 ] || echo "Nothing was changed; APPLY=1 does it."
