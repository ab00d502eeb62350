# Chores; each is one line of what a person would type.
PYTHON ?= python
BUILD := build/custom_ops

# CMAKE_ARGS, also read by pip: -DONNXFQ_CUDA=OFF, or -DONNXFQ_CUDA_ARCHITECTURES=90 for one GPU instead of all.

QUICK := tests/test_layers.py tests/test_english.py tests/test_public_api.py tests/test_granularity.py tests/test_spec.py \
  tests/test_statistics.py tests/test_recipe.py tests/test_plan.py tests/test_encoding.py tests/test_pipeline.py \
  tests/graph/test_normalize.py tests/graph/test_round_trip.py tests/passes/test_insert_qdq.py tests/policies \
  tests/feeds/test_batches.py tests/test_planning.py tests/test_qparams.py tests/test_node_vectors.py \
  tests/targets/test_toy_target.py tests/calibrators/test_own_calibrator.py

.PHONY: install lib lint types quick test slow warnings sanitize runtimes demo site gpu clean

install:  ## the package with all that developing needs
	$(PYTHON) -m pip install ".[test,dev]"

lib:  ## the custom-op library into the source tree, for running from the checkout
	cmake -S custom_ops -B $(BUILD) -G Ninja -DCMAKE_BUILD_TYPE=Release $(CMAKE_ARGS)
	cmake --build $(BUILD)
	cmake --install $(BUILD) --prefix .

warnings:  ## the same, with compiler warnings as errors
	cmake -S custom_ops -B build/warnings -G Ninja -DCMAKE_BUILD_TYPE=Release -DONNXFQ_WERROR=ON -DONNXFQ_CUDA_CHECK=ON $(CMAKE_ARGS)
	cmake --build build/warnings

sanitize:  ## the kernels over odd sizes under the address and undefined-behaviour sanitizers
	cmake -S custom_ops -B build/sanitize -G Ninja -DONNXFQ_SANITIZE=ON -DONNXFQ_CUDA=OFF
	cmake --build build/sanitize --target kernel_tests
	build/sanitize/kernel_tests

lint:
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .

types:
	$(PYTHON) -m mypy

test:
	$(PYTHON) -m pytest

slow:  ## the checks that take minutes to hours: fuzzing, kills, models over 2 GB, all opsets
	$(PYTHON) tests/slow/fuzz_commands.py --cases 2000
	ONNXFQ_ODD_PATHS=1 $(PYTHON) -m pytest -q tests/cli/test_paths.py
	$(PYTHON) -m pytest -q tests/test_damaged_files.py --damaged-files 2000
	$(PYTHON) -m pytest -q tests/test_random_graphs.py --random-graphs 5000
	$(PYTHON) -m pytest -q tests/test_opsets.py --all-opsets
	$(PYTHON) tests/slow/kill_commands.py
	$(PYTHON) tests/slow/check_large_model.py
	$(PYTHON) tests/slow/check_large_decoder.py

quick: lint types  ## a verdict in two minutes: lint, types, and one file of tests for each room
	$(PYTHON) -m pytest -q $(QUICK)

runtimes:  ## the library in the oldest, a middle and the newest onnxruntime (downloads them)
	$(PYTHON) tests/custom_ops/check_runtimes.py

gpu:  ## on a machine with a GPU: the CUDA kernels against the CPU's, then their speed
	scripts/gpu_check.sh

site:  ## the pages of docs/ as a site that needs no network
	$(PYTHON) -m mkdocs build

demo:
	$(PYTHON) -m onnxfq demo

clean:
	rm -rf build dist onnxfq/*.so onnxfq/digits
