#!/bin/sh
# Run the GPU checks on a machine that has CUDA, torch and Triton but no package registry.
#
#   tools/gpu_session.sh [BUNDLE]      BUNDLE (default .gpu): wheels in whl/*.whl, archives *.tar.xz,
#                                      prebuilt FlashInfer modules in aot/, a stand-in sgl_kernel in standin/
#
# Everything goes into a scratch folder; the machine's own Python is not changed. Results are written to $OUT (default
# build/gpu). Each step has its own time limit; a table of what passed comes last, and the status is 1 if a step failed
# or no GPU test ran. docs/gpu.md says what each step shows.
set -u
bundle=${1:-.gpu}
out=${OUT:-build/gpu}
python=${PYTHON:-python3}
root=$(cd "$(dirname "$0")/.." && pwd) || exit 1
cd "$root" || exit 1
mkdir -p "$out"
out=$(cd "$out" && pwd)
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT INT TERM

"$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' || {
    echo "gpu_session: error: torch finds no CUDA device here; run this on a machine that has one." >&2
    exit 1
}
if [ -d "$bundle" ]; then
    for archive in "$bundle"/*.tar.xz; do [ -e "$archive" ] && tar -C "$scratch" -xJf "$archive"; done
    for wheel in "$bundle"/whl/*.whl; do [ -e "$wheel" ] && "$python" -m zipfile -e "$wheel" "$scratch"; done
    [ -d "$bundle/standin/sgl_kernel" ] && cp -r "$bundle/standin/sgl_kernel" "$scratch/"
    [ -d "$bundle/aot" ] && mkdir -p "$scratch/flashinfer/data/aot" && cp -r "$bundle/aot/." "$scratch/flashinfer/data/aot/"
fi
# Entry points must be found, so the package is installed, without anything it depends on.
"$python" -m pip install -q --no-index --no-deps --no-build-isolation --target "$scratch" . || exit 1
export PYTHONPATH="$root:$scratch${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
export SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK=1 SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND=python

summary="$out/summary"
: > "$summary"
failed=0
step() { # name, seconds, command...
    name=$1 limit=$2
    shift 2
    began=$(date +%s)
    timeout "$limit" "$@" > "$out/$name.log" 2>&1
    status=$?
    [ "$status" -eq 0 ] || failed=1
    printf '%-12s status %-4s %5s s\n' "$name" "$status" "$(($(date +%s) - began))" >> "$summary"
    tail -n 12 "$out/$name.log"
}
run() { name=$1 limit=$2; shift 2; step "$name" "$limit" "$python" tools/gpu_tests.py -q -p no:cacheprovider "$@"; }

# In order of value: kernels first, servers last.
run kernels 150 --no-timings tests/gpu --ignore=tests/gpu/test_served_pair.py
step timings 90 "$python" tools/gpu_timings.py --out "$out"
run serving 200 --no-timings tests/gpu/test_served_pair.py
if command -v compute-sanitizer > /dev/null; then
    step sanitizer 120 compute-sanitizer --tool memcheck --error-exitcode 1 \
        "$python" -m pytest -q -p no:cacheprovider tests/gpu/test_replay.py -k "draft_replay and True"
else
    echo "sanitizer    not run: compute-sanitizer is not installed" >> "$summary"
fi
cat "$summary"
exit "$failed"
