#!/bin/sh
# What the image starts: its arguments are those of dspark. The server replaces this shell, so that it gets SIGTERM itself.
#
# OMP_NUM_THREADS   empty is unset: dspark takes one less than the CPUs that the container may use
# SGL_DSPARK_STATE  folder whose calibration.json, if there is one, is used
# SGL_DSPARK_KEYS   folder with a file api-key or admin-api-key or both; without one of them nothing is served. Unset,
#                   the files of /run/secrets/sgl-dspark are used, if there are any
set -eu

refuse() {
    echo "entrypoint: error: $1" >&2
    exit 1
}

if [ "${1:-}" = serve ]; then
    if [ -z "${OMP_NUM_THREADS:-}" ]; then
        unset OMP_NUM_THREADS
    fi
    if [ -n "${SGL_DSPARK_STATE:-}" ]; then
        mkdir -p "$SGL_DSPARK_STATE"
        case " $* " in
            *" --calibration"* | *" --plain "*) ;;
            *)
                if [ -f "$SGL_DSPARK_STATE/calibration.json" ]; then
                    set -- "$@" --calibration "$SGL_DSPARK_STATE/calibration.json"
                fi
                ;;
        esac
    fi
    # Whatever is wrong with keys that somebody meant to set must end this: the server would be open to everybody. Files
    # are named and not read here, so that no key is on a command line; dspark refuses those that are empty or unreadable.
    keys=${SGL_DSPARK_KEYS:-/run/secrets/sgl-dspark}
    guarded=
    if [ -d "$keys" ]; then
        if [ ! -r "$keys" ] || [ ! -x "$keys" ]; then
            refuse "user $(id -u) cannot look into the folder of keys $keys; let it read and enter the folder."
        fi
        for file in "$keys"/api-key "$keys"/admin-api-key; do
            if [ -e "$file" ] || [ -L "$file" ]; then
                set -- "$@" "--${file##*/}-file=$file"
                guarded=yes
            fi
        done
        # A shared secret may hold other things, beside the key that guards everything.
        for file in "$keys"/*; do
            if [ ! -e "$keys/api-key" ] && [ -e "$file" ] && [ "$file" != "$keys/admin-api-key" ]; then
                refuse "$file is no key; call the file api-key or admin-api-key."
            fi
        done
    elif [ -e "$keys" ] || [ -L "$keys" ]; then
        refuse "$keys is no folder; keys are files api-key and admin-api-key in it."
    fi
    if [ -n "${SGL_DSPARK_KEYS:-}" ] && [ -z "$guarded" ]; then
        refuse "SGL_DSPARK_KEYS names $keys, which holds neither api-key nor admin-api-key; unset it to serve without keys."
    fi
fi
exec dspark "$@"
