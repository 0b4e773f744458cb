#!/bin/bash
# What a GPU says of this checkout: exactness first, then times. Ends within 240 s.
set -u
cd "$(dirname "$0")/.."
export PYTHONPATH=client:benchmarks:tests TORCHINDUCTOR_CACHE_DIR=$PWD/.gpu-cache/inductor TRITON_CACHE_DIR=$PWD/.gpu-cache/triton
OUT=${OUT:-/tmp/gpu-trial}
mkdir -p "$OUT" "$TORCHINDUCTOR_CACHE_DIR" "$TRITON_CACHE_DIR"
PY=${PY:-python}
part() { # seconds, name, command...
    local limit=$1 name=$2
    shift 2
    local began=$SECONDS
    timeout -k 2 "$limit" "$@" >"$OUT/$name.log" 2>&1
    echo "== $name: rc $?, $((SECONDS - began)) s" | tee -a "$OUT/summary"
    tail -n "${LINES_OF:-6}" "$OUT/$name.log" | cut -c1-900 | tee -a "$OUT/summary"
}
: >"$OUT/summary"
LINES_OF=14 part 45 proofs $PY benchmarks/gpu_trial.py proofs
LINES_OF=58 part 100 train1 env PROFILE=1 $PY benchmarks/large.py plain sparseloco
LINES_OF=60 part 55 codec $PY benchmarks/gpu_trial.py codec
LINES_OF=12 part 85 train2 $PY benchmarks/large.py outer_muon distro
part 30 kernels $PY -m pytest -q -n 0 -x -p no:cacheprovider tests/kernels/test_kernels_gpu.py -k "not interpreter and not compile"
echo; echo "==== all parts"; cat "$OUT/summary" | cut -c1-420
