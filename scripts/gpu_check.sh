#!/usr/bin/env bash
# On a machine with a GPU and nvcc, without a network: builds, compares the CUDA kernels with the CPU's to the bit, runs
# every kernel test of the CPU on the GPU, whole networks in onnxruntime, measures, and looks for bad accesses and races.
# A short table comes last.
#
#     scripts/gpu_check.sh [FOLDER]     results: cuda_NAME.md, networks_NAME.md, gpu_check.log and gpu_summary.txt;
#                                       default benchmarks/results
#     scripts/gpu_check.sh --dry-run    all that goes without a GPU, into build/gpu_check/results: for changing this script
#
# PYTHON: the interpreter, python3 unless given. SECONDS_IN_ALL: what is not begun by then is left out, default 360.
# NVCC_ARCH: as ONNXFQ_CUDA_ARCHITECTURES; default: this GPU's.
set -euo pipefail
cd "$(dirname "$0")/.."
build=build/gpu_check
dry=
if [ "${1:-}" = --dry-run ]; then
  dry=yes
  shift
  set -- "$build/results"
fi
results=${1:-benchmarks/results}
python=${PYTHON:-python3}
in_all=${SECONDS_IN_ALL:-360}
mkdir -p "$results" "$build"
results=$(cd "$results" && pwd)
failed=()
rows=()
SECONDS=0

log=$build.log
: >"$results/gpu_check.log"

# Runs a command, with its output added to the log, and shows the end of it: step NAME MOST-SECONDS LINES COMMAND...
step() {
  local name=$1 most=$2 lines=$3 began=$SECONDS code=0
  shift 3
  if [ $((in_all - SECONDS)) -lt 5 ]; then
    echo "== $name: no time left for it"
    rows+=("$name|left out, no time")
    return
  fi
  echo "== $name"
  if [ $most -gt $((in_all - SECONDS)) ]; then most=$((in_all - SECONDS)); fi
  timeout "$most" "$@" >"$log" 2>&1 || code=$?
  { echo "== $name: exit code $code after $((SECONDS - began)) s" && cat "$log"; } >>"$results/gpu_check.log"
  tail -n "$lines" "$log"
  case $code in
    0) rows+=("$name|ok, $((SECONDS - began)) s: $(tail -n 1 "$log" | cut -c 1-100)") ;;
    77) rows+=("$name|left out, no GPU") ;;
    124) rows+=("$name|stopped after $most s") && failed+=("$name: not done in $most s") ;;
    *) rows+=("$name|failed") && failed+=("$name, see $results/gpu_check.log") ;;
  esac
  if [ $code -eq 77 ] && [ -z "$dry" ]; then failed+=("$name: no GPU"); fi
}

if ! command -v nvcc >/dev/null; then
  echo "gpu_check: there is no nvcc on the PATH; install the CUDA toolkit" >&2
  exit 1
fi
architecture=${NVCC_ARCH:-90-real}
device=cpu
name=none
if [ -z "$dry" ]; then
  if ! command -v nvidia-smi >/dev/null || ! nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader; then
    echo "gpu_check: there is no GPU that nvidia-smi knows" >&2
    exit 1
  fi
  architecture=${NVCC_ARCH:-$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -1 | tr -d .)-real}
  device=cuda
fi

compile() {
  local generator=()
  if command -v ninja >/dev/null; then generator=(-G Ninja); fi
  cmake -S custom_ops -B "$build" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DONNXFQ_CUDA=ON -DONNXFQ_CUDA_CHECK=ON \
    "-DONNXFQ_CUDA_ARCHITECTURES=$architecture" && cmake --build "$build" --parallel && cmake --install "$build" --prefix .
}
export build architecture
export -f compile
step build 240 1 bash -euc compile
if [ ${#failed[@]} -gt 0 ]; then
  tail -n 40 "$log"
  exit 1
fi

if [ -z "$dry" ]; then
  name=$("$build/cuda_check" name) || { echo "gpu_check: $name" >&2; exit 1; }
fi
step bits 150 4 "$build/cuda_check" bits
step speed 90 60 "$build/cuda_check" speed "$results/cuda_$name.md"

export PYTHONPATH=.${PYTHONPATH:+:$PYTHONPATH}
# CUDA's libraries and cuDNN as pip installs them, wherever this interpreter looks for packages: onnxruntime itself looks
# only beside its own folder.
libraries=$("$python" -c "import glob, sys; print(':'.join(f for p in sys.path for f in glob.glob(p + '/nvidia/*/lib')))")
export LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
if "$python" -c "import onnxfq, pytest, hypothesis" 2>"$log"; then
  parallel=()
  if "$python" -c "import xdist" 2>/dev/null; then parallel=(-n 4); fi
  # Statistics of 2^24 elements and the like in processes that share one GPU: 4 of them have room on any.
  step "kernel tests" 120 3 "$python" -m pytest -q -p no:cacheprovider "${parallel[@]}" --device "$device" tests/custom_ops
  if [ -n "$dry" ] || "$python" -c "from onnxfq.runtime.devices import cuda_problem as p; print(p()); exit(bool(p()))"; then
    networks=()
    if [ -n "$dry" ]; then networks=(--batch 1 --rounds 1); fi
    step networks 120 40 "$python" benchmarks/gpu_networks.py --device "$device" "${networks[@]}" \
      --out "$results/networks_$name.md"
  else
    rows+=("networks|left out, onnxruntime cannot use the GPU")
  fi
  step doctor 60 20 "$python" -m onnxfq doctor
else
  rows+=("Python tests|left out, $(tail -n 1 "$log")")
fi

if command -v compute-sanitizer >/dev/null; then
  for tool in memcheck racecheck initcheck; do
    step "$tool" "${SANITIZER_SECONDS:-60}" 1 compute-sanitizer --tool "$tool" --error-exitcode 9 "$build/cuda_check" small
  done
else
  rows+=("sanitizers|left out, no compute-sanitizer")
fi

echo
printf '%s\n' "${rows[@]}" | awk -F'|' '{ printf "%-14s %s\n", $1, $2 }' | tee "$results/gpu_summary.txt"
if [ ${#failed[@]} -gt 0 ]; then
  printf 'failed: %s\n' "${failed[@]}" | tee -a "$results/gpu_summary.txt"
  exit 1
fi
echo "all that was run is well, in $SECONDS s; the results are in $results"
