#!/bin/sh
# What the image starts: its arguments are those of dspark. The server replaces this shell, so that it gets SIGTERM itself.
#
# OMP_NUM_THREADS   empty is unset: dspark takes one less than the CPUs that the container may use
# SGL_DSPARK_STATE  folder whose calibration.json, if there is one, is used
# SGL_DSPARK_KEYS   folder whose files api-key and admin-api-key, if there are any, hold the keys
set -eu

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
    for key in api-key admin-api-key; do
        file=${SGL_DSPARK_KEYS:-/run/secrets/sgl-dspark}/$key
        if [ -s "$file" ]; then
            set -- "$@" "--$key=$(cat "$file")"
        fi
    done
fi
exec dspark "$@"
