# Chores; each is one line of what a person would type.
PYTHON ?= python
BUILD := build/custom_ops

# CMAKE_ARGS, also read by pip: -DONNXFQ_CUDA=OFF, or -DONNXFQ_CUDA_ARCHITECTURES=90 for one GPU instead of all.

.PHONY: install lib lint types slow test whole durations warnings sanitize arm runtimes newest qnn release demo site gpu figures clean

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

arm:  ## the kernels for ARM, emulated: the bits of this processor (Debian: g++-aarch64-linux-gnu, qemu-user)
	cmake -S custom_ops -B build/kernels -G Ninja -DONNXFQ_KERNEL_TESTS=ON -DONNXFQ_CUDA=OFF
	cmake -S custom_ops -B build/arm -G Ninja -DONNXFQ_KERNEL_TESTS=ON -DONNXFQ_CUDA=OFF \
		-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++
	cmake --build build/kernels --target kernel_tests
	cmake --build build/arm --target kernel_tests
	build/kernels/kernel_tests > build/kernels/bits
	qemu-aarch64 build/arm/kernel_tests > build/arm/bits
	diff build/kernels/bits build/arm/bits && cat build/arm/bits

lint:
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .

types:
	$(PYTHON) -m mypy

test:  ## a verdict in minutes: files of tests that are cheap, and a sample of each other one
	$(PYTHON) -m pytest

whole:  ## every test
	$(PYTHON) -m pytest --whole

durations:  ## every test, and the processor time of each file for `make test` to choose by
	$(PYTHON) -m pytest --whole --record-durations

slow:  ## the checks that take hours; docs/checks.md has what each found: make slow CHECKS="pythons commands"
	$(PYTHON) tests/slow/run_all.py $(CHECKS)

runtimes:  ## the library in the oldest, a middle and the newest onnxruntime (downloads them)
	$(PYTHON) tests/custom_ops/check_runtimes.py

newest:  ## the newest release of every runtime in a fresh environment, and the tests that ask one
	$(PYTHON) -m venv --clear build/newest
	build/newest/bin/pip install --quiet ".[test]"
	build/newest/bin/pip install --quiet --upgrade onnx onnxruntime-gpu openvino tensorrt-rtx
	build/newest/bin/pip list
	build/newest/bin/python scripts/runtime_forms.py --check 20
	build/newest/bin/pytest -m runtime

qnn:  ## the emulation of Qualcomm's HTP in an environment alone: its table and tests; read the licence of onnxruntime-qnn first
	$(PYTHON) -m venv --clear build/qnn
	ONNXFQ_RUNTIME=cpu build/qnn/bin/pip install --quiet onnxruntime ".[test]"
	build/qnn/bin/pip uninstall --quiet --yes onnxruntime-gpu
	build/qnn/bin/pip install --quiet --force-reinstall --no-deps onnxruntime onnxruntime-qnn
	build/qnn/bin/python scripts/runtime_forms.py --runtimes qnn
	ONNXFQ_RUNTIME=cpu build/qnn/bin/pip install --quiet --force-reinstall --no-deps .
	build/qnn/bin/pytest --whole tests/targets/test_qnn.py tests/targets/test_runtime_forms.py tests/targets/test_structures_low.py -k qnn

figures:  ## the comparison with other tools, row by row: pinned releases, public networks; goes on where it ended
	PYTHONPATH=. $(PYTHON) benchmarks/comparison.py
	$(PYTHON) scripts/results_page.py

release:  ## a rehearsal: archive of sources, wheel from it, and the wheel alone in a fresh environment
	$(PYTHON) tests/slow/check_release.py

gpu:  ## on a machine with a GPU: the CUDA kernels against the CPU's, then their speed
	scripts/gpu_check.sh

site:  ## the pages of docs/ as a site that needs no network
	NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build

demo:
	$(PYTHON) -m onnxfq demo

clean:
	rm -rf build dist onnxfq/*.so onnxfq/digits
