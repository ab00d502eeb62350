#!/usr/bin/env bash
# On a machine with a GPU and nvcc, without a network: builds, compares the CUDA kernels with the CPU's to the bit, looks
# for bad accesses and races, runs the Python tests, then measures. A short table comes last.
#
#     scripts/gpu_check.sh [FOLDER]     results: FOLDER/cuda_NAME.md and logs, default benchmarks/results
#
# PYTHON: the interpreter for the tests, python3 unless given.
set -euo pipefail
cd "$(dirname "$0")/.."
results=${1:-benchmarks/results}
python=${PYTHON:-python3}
build=build/gpu_check
mkdir -p "$results"

if ! command -v nvcc >/dev/null; then
  echo "gpu_check: there is no nvcc on the PATH; install the CUDA toolkit" >&2
  exit 1
fi
if ! command -v nvidia-smi >/dev/null || ! nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader; then
  echo "gpu_check: there is no GPU that nvidia-smi knows" >&2
  exit 1
fi
architecture=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -1 | tr -d .)

echo "== build"
generator=()
if command -v ninja >/dev/null; then generator=(-G Ninja); fi
cmake -S custom_ops -B "$build" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DONNXFQ_CUDA=ON \
  -DONNXFQ_CUDA_CHECK=ON "-DONNXFQ_CUDA_ARCHITECTURES=$architecture-real" >"$results/gpu_build.log" 2>&1 &&
  cmake --build "$build" --parallel >>"$results/gpu_build.log" 2>&1 || { tail -40 "$results/gpu_build.log"; exit 1; }
cmake --install "$build" --prefix . >/dev/null

failed=()

name=$("$build/cuda_check" name) || { echo "gpu_check: $name" >&2; exit 1; }

echo "== bits: CUDA against CPU"
"$build/cuda_check" bits || failed+=(bits)

if command -v compute-sanitizer >/dev/null; then
  for tool in memcheck racecheck initcheck; do
    echo "== compute-sanitizer $tool"
    if timeout "${SANITIZER_SECONDS:-60}" compute-sanitizer --tool "$tool" --error-exitcode 9 "$build/cuda_check" small \
      >"$results/gpu_$tool.log" 2>&1; then
      tail -1 "$results/gpu_$tool.log"
    else
      failed+=("$tool, see $results/gpu_$tool.log")
      tail -5 "$results/gpu_$tool.log"
    fi
  done
else
  echo "== no compute-sanitizer here: left out"
fi

if PYTHONPATH=. "$python" -c "import onnxfq, pytest" 2>/dev/null; then
  echo "== Python tests of the GPU"
  PYTHONPATH=. "$python" -m pytest -q -p no:cacheprovider tests/custom_ops/test_cuda.py || failed+=("Python tests")
  PYTHONPATH=. "$python" -m onnxfq doctor || failed+=(doctor)
else
  echo "== onnxfq cannot be imported here (a package it needs is missing): Python tests left out"
fi

echo "== speed"
"$build/cuda_check" speed "$results/cuda_$name.md" || failed+=(speed)

echo
if [ ${#failed[@]} -gt 0 ]; then
  printf 'failed: %s\n' "${failed[@]}"
  exit 1
fi
echo "all of it is well; the table is $results/cuda_$name.md"
