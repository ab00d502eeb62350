"""pytorch-quantization's suite: a pytest plugin that gives our objects the original's module names."""

from __future__ import annotations

import importlib
import sys
import types

import torch

from suites import on_the_cpu

COMMIT = "a892d22267d9cd2dedc1a0893e6892ac901f6d3d"
"""Descriptors of transposed convolutions have axis 1 there, as here. Releases up to 10.0 have axis 0."""

FETCH = f"git clone https://github.com/NVIDIA/TensorRT.git && git -C TensorRT checkout {COMMIT}"
"""How to fetch the suite; FOLDER is tools/pytorch-quantization in it."""

TESTS = ("tests",)
LEAST = 220
"""Tests that pass at least; 232 do where torchvision is installed and ONNX Runtime rounds no bias away."""

ORIGINAL = "pytorch_quantization"
HERE = "onnxfq.torch.compat.nvidia"
PATHS = (
    *("", "calib", "nn", "nn.functional", "nn.modules", "optim", "optim.helper", "quant_modules"),
    *("tensor_quant", "utils"),
    *(f"nn.modules.{name}" for name in (
        *("_utils", "clip", "quant_conv", "quant_instancenorm", "quant_linear", "quant_pooling"),
        *("quant_rnn", "tensor_quantizer"),
    )),
)  # fmt: skip


def pytest_configure() -> None:
    """Give the names, before a test is imported."""
    on_the_cpu.install()
    # The operators of torchvision may be built for CUDA; the tests take its networks alone.
    register = torch.library.register_fake
    torch.library.register_fake = lambda op, *rest, **more: (
        (lambda function: function) if str(op).startswith("torchvision::") else register(op, *rest, **more)
    )
    for path in PATHS:
        tail = f".{path}" if path else ""
        sys.modules[ORIGINAL + tail] = importlib.import_module(HERE + tail)
    ours = sys.modules[f"{ORIGINAL}.tensor_quant"]
    # The CUDA extension has no counterpart but its first function.
    extension = types.ModuleType(f"{ORIGINAL}.cuda_ext")
    extension.fake_tensor_quant = ours.fake_tensor_quant
    sys.modules[extension.__name__] = sys.modules[ORIGINAL].cuda_ext = extension
