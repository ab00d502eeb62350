#!/usr/bin/env bash
# On a machine with a GPU and nvcc, without a network: builds, measures, compares the CUDA kernels with the CPU's to the
# bit, looks for bad accesses and races, runs every kernel test of the CPU on the GPU, and whole networks in onnxruntime.
# A step that fails or takes too long costs no other its result, and what is known is written after each.
#
#     scripts/gpu_check.sh [FOLDER]     results: gpu.md (every step and how it ended), cuda_NAME.md, networks_NAME.md,
#                                       gpu_check.log; default benchmarks/results
#     scripts/gpu_check.sh --dry-run    all that goes without a GPU, into build/gpu_check/results: for changing this script
#     scripts/gpu_check.sh --list       gpu.md as it is before all this has run on a GPU
#
# PYTHON: the interpreter, python3 unless given. SECONDS_IN_ALL: what is not begun by then is left out, default 360.
# NVCC_ARCH: as ONNXFQ_CUDA_ARCHITECTURES; default: this GPU's.
set -euo pipefail
cd "$(dirname "$0")/.."
build=build/gpu_check
dry=

# The steps in their order, and what each shows. The dearest to know come first.
steps=(build speed formats statistics floats large memcheck "kernel tests" doctor networks racecheck initcheck)
declare -A shows=(
  [build]="the library and the check compile for this GPU"
  [speed]="FakeQuantize at least 0.9 of a copy's speed, per tensor, per axis, in blocks of 32 and more; range and histogram 0.7 of it on normal values, 0.5 on a constant; time of small launches"
  [formats]="every format, layout, rounding and element type: the CPU's bits"
  [statistics]="statistics of tensors and of groups: the CPU's numbers"
  [floats]="every float32 and every 16-bit float: the CPU's bits"
  [large]="tensors of more than 2^32 elements: the CPU's bits"
  [memcheck]="no access outside of memory (compute-sanitizer)"
  ["kernel tests"]="every kernel test of the CPU passes on the GPU"
  [doctor]="onnxfq doctor tests every kernel on every device"
  [networks]="ResNet-50 and ViT-B/16, batch 32, in onnxruntime-gpu: observing at most 1.2, fake-quantizing at most 1.15 times plain inference; statistics the CPU's to the byte; no Memcpy node"
  [racecheck]="no races in shared memory (compute-sanitizer)"
  [initcheck]="no read of memory that nobody wrote (compute-sanitizer)"
)
declare -A ended=()

# Prints gpu.md: page TITLE LINE
page() {
  printf '# %s\n\n%s\n\n| step | shows | result |\n| --- | --- | --- |\n' "$1" "$2"
  local one
  for one in "${steps[@]}"; do printf '| %s | %s | %s |\n' "$one" "${shows[$one]}" "${ended[$one]:-not run}"; done
}

if [ "${1:-}" = --list ]; then
  page "Not run on a GPU" "None of this has run on a GPU, for lack of one. \`scripts/gpu_check.sh\`, on a machine that has one, runs it and \
rewrites this page."
  exit 0
fi
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
missed=()
SECONDS=0
log=$build.log

# Notes how a step ended, and writes the page: note STEP HOW
note() {
  ended[$1]=$2
  local title="Checked on a GPU"
  if [ -n "$dry" ]; then title="Tried without a GPU"; fi
  page "$title" "By \`scripts/gpu_check.sh\`, $(date -u +%Y-%m-%d): ${gpu:-no GPU}." >"$results/gpu.md"
}

# Runs a command, with its output added to the log, and shows the end of it: step NAME MOST-SECONDS LINES COMMAND...
step() {
  local name=$1 most=$2 lines=$3 began=$SECONDS code=0 last
  shift 3
  if [ $((in_all - SECONDS)) -lt 5 ]; then
    echo "== $name: no time left for it"
    note "$name" "left out, no time"
    return
  fi
  echo "== $name"
  if [ "$most" -gt $((in_all - SECONDS)) ]; then most=$((in_all - SECONDS)); fi
  timeout "$most" "$@" >"$log" 2>&1 || code=$?
  { echo "== $name: exit code $code after $((SECONDS - began)) s" && cat "$log"; } >>"$results/gpu_check.log"
  tail -n "$lines" "$log"
  last=$(tail -n 1 "$log" | sed "s#$PWD/\(\./\)*##" | tr '|' '/' | cut -c 1-100)
  case $code in
    0)
      local how=ok
      if [[ $last =~ ^([0-9]+)\ of\ ([0-9]+)\ marks ]] && [ "${BASH_REMATCH[1]}" != "${BASH_REMATCH[2]}" ]; then
        how=missed
        missed+=("$name: $last")
      fi
      note "$name" "$how, $((SECONDS - began)) s: $last" ;;
    77) note "$name" "left out, no GPU" ;;
    124) note "$name" "stopped after $most s" && failed+=("$name: not done in $most s") ;;
    *) note "$name" "failed: $last" && failed+=("$name, see $results/gpu_check.log") ;;
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
workers=4
if [ -z "$dry" ]; then
  if ! command -v nvidia-smi >/dev/null || ! gpu=$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | head -n 1); then
    echo "gpu_check: there is no GPU that nvidia-smi knows" >&2
    exit 1
  fi
  echo "$gpu"
  architecture=${NVCC_ARCH:-$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d .)-real}
  device=cuda
  # Several processes share a large GPU: statistics of 2^24 elements and the like want 2 GB.
  memory=$(nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits | head -n 1)
  if [ "$memory" -gt 32000 ]; then workers=8; fi
fi
: >"$results/gpu_check.log"

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
step speed 90 60 "$build/cuda_check" speed "$results/cuda_$name.md"
step formats 90 2 "$build/cuda_check" formats
step statistics 60 2 "$build/cuda_check" statistics
step floats 90 2 "$build/cuda_check" floats
step large 60 2 "$build/cuda_check" large

sanitize() {
  if command -v compute-sanitizer >/dev/null; then
    step "$1" "${SANITIZER_SECONDS:-60}" 1 compute-sanitizer --tool "$1" --error-exitcode 9 "$build/cuda_check" small
  else
    note "$1" "left out, no compute-sanitizer"
  fi
}
sanitize memcheck

export PYTHONPATH=.${PYTHONPATH:+:$PYTHONPATH}
# CUDA's libraries and cuDNN as pip installs them, on the path of this interpreter: onnxruntime itself looks
# only beside its folder.
libraries=$("$python" -c "import glob, sys; print(':'.join(f for p in sys.path for f in glob.glob(p + '/nvidia/*/lib')))") \
  || libraries=
with_python=yes
if ! "$python" -c "import onnxfq, pytest, hypothesis" 2>"$log"; then
  with_python=
  lacks="left out: $(tail -n 1 "$log" | tr '|' '/')"
  for one in "kernel tests" networks doctor; do note "$one" "$lacks"; done
fi
# For Python's programs only: nvcc's and the system's find other libraries.
in_python=(env "LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" "$python")

if [ -n "$with_python" ]; then
  parallel=()
  if "$python" -c "import xdist" 2>/dev/null; then parallel=(-n "$workers"); fi
  step "kernel tests" 120 3 "${in_python[@]}" -m pytest -q -p no:cacheprovider "${parallel[@]}" -p no:benchmark --device "$device" tests/custom_ops
fi
if [ -n "$with_python" ]; then
  step doctor 60 20 "${in_python[@]}" -m onnxfq doctor
  if [ -n "$dry" ] || "${in_python[@]}" -c "from onnxfq.runtime.providers import cuda_problem as p; print(p()); exit(bool(p()))"; then
    networks=()
    if [ -n "$dry" ]; then networks=(--batch 1 --rounds 1); fi
    step networks 120 40 "${in_python[@]}" benchmarks/gpu_networks.py --device "$device" "${networks[@]}" \
      --out "$results/networks_$name.md"
  else
    note networks "left out, onnxruntime cannot use the GPU"
  fi
fi
sanitize racecheck
sanitize initcheck

echo
for one in "${steps[@]}"; do printf '%-14s %s\n' "$one" "${ended[$one]:-not run}"; done
if [ ${#failed[@]} -gt 0 ]; then
  printf 'failed: %s\n' "${failed[@]}" | tee -a "$results/gpu_check.log"
  exit 1
fi
if [ ${#missed[@]} -gt 0 ]; then
  printf 'missed: %s\n' "${missed[@]}" | tee -a "$results/gpu_check.log"
fi
echo "nothing failed of what was run, in $SECONDS s; the results are in $results"
