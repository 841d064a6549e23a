#!/bin/sh
# Run the GPU checks on a machine that has CUDA, torch and Triton but no package registry.
#
#   tools/gpu_session.sh [BUNDLE [STEP ...]]   BUNDLE (default .gpu): wheels in whl/*.whl, archives *.tar.xz, prebuilt
#                                              FlashInfer modules in aot/, a stand-in sgl_kernel in standin/
#                                              STEP: kernels serving timings workers fp32 fp16 sanitizer; none: all
#
# Everything goes into a scratch folder; the machine's own Python is not changed. Results are written to $OUT (default
# build/gpu). Each step has its own time limit; a table of what passed comes last, and the status is 1 if a step failed
# or no GPU test ran. docs/gpu.md says what each step shows.
set -u
bundle=${1:-.gpu}
[ "$#" -gt 0 ] && shift
only=$*
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
# The ragged wrapper would choose a backend that is not prebuilt.
export SGLANG_FLASHINFER_USE_PAGED=1
# What compiles here compiles for this device alone, on all cores. A suffix opens what only this generation has.
arch=$("$python" -c 'import torch; a, b = torch.cuda.get_device_capability(); print(f"{a}.{b}" + "a" * (a >= 9))') || exit 1
export FLASHINFER_CUDA_ARCH_LIST="${FLASHINFER_CUDA_ARCH_LIST:-$arch}" MAX_JOBS="${MAX_JOBS:-$(nproc)}"
nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
export CUDA_HOME="${CUDA_HOME:-$(dirname "$(dirname "$(readlink -f "$nvcc")")")}"

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

# In order of value: what is prebuilt (bf16) before what compiles here, kernels before servers. Together more than one
# call of a borrowed machine lasts: name steps to run only these.
wanted() { [ -z "$only" ] && return 0; case " $only " in *" $1 "*) return 0 ;; *) return 1 ;; esac; }
wanted kernels && run kernels 150 --no-timings tests/gpu --ignore=tests/gpu/test_served_pair.py -k "not fp16"
wanted serving && run serving 240 --no-timings tests/gpu/test_served_pair.py -k head_dim_64
wanted timings && step timings 90 "$python" tools/gpu_timings.py --out "$out"
wanted workers && step workers 240 "$python" tools/gpu_serving.py --out "$out" --rounds 1 --concurrency 1 16
wanted fp32 && run fp32 120 --no-timings tests/gpu/test_served_pair.py -k fp32
wanted fp16 && run fp16 240 --no-timings tests/gpu/test_flashinfer.py -k fp16
if wanted sanitizer; then
    if command -v compute-sanitizer > /dev/null; then
        step sanitizer 120 compute-sanitizer --tool memcheck --error-exitcode 1 \
            "$python" -m pytest -q -p no:cacheprovider tests/gpu/test_replay.py -k "draft_replay and True"
    else
        echo "sanitizer    not run: compute-sanitizer is not installed" >> "$summary"
    fi
fi
cat "$summary"
exit "$failed"
