# Chores; each is one line of what a person would type.
PYTHON ?= python
BUILD := build/custom_ops

.PHONY: install lib lint types test warnings sanitize runtimes demo clean

install:  ## the package with all that developing needs
	$(PYTHON) -m pip install ".[test,dev]"

lib:  ## the custom-op library into the source tree, for running from the checkout
	cmake -S custom_ops -B $(BUILD) -G Ninja -DCMAKE_BUILD_TYPE=Release
	cmake --build $(BUILD)
	cmake --install $(BUILD) --prefix .

warnings:  ## the same, with compiler warnings as errors
	cmake -S custom_ops -B build/warnings -G Ninja -DCMAKE_BUILD_TYPE=Release -DONNXFQ_WERROR=ON
	cmake --build build/warnings

sanitize:  ## the kernels over odd sizes under the address and undefined-behaviour sanitizers
	cmake -S custom_ops -B build/sanitize -G Ninja -DONNXFQ_SANITIZE=ON
	cmake --build build/sanitize --target kernel_tests
	build/sanitize/kernel_tests

lint:
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .

types:
	$(PYTHON) -m mypy

test:
	$(PYTHON) -m pytest

runtimes:  ## the library in the oldest, a middle and the newest onnxruntime (downloads them)
	$(PYTHON) tests/custom_ops/check_runtimes.py

demo:
	$(PYTHON) -m onnxfq demo

clean:
	rm -rf build dist onnxfq/*.so onnxfq/digits
