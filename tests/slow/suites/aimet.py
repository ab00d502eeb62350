"""AIMET's suite of quantizers: a pytest plugin that gives our objects the original's module names.

Names that onnxfq lacks stay missing, so that their tests fail. Private helpers of AIMET stand here where a
public call of onnxfq does their work.
"""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Iterator
from typing import Any

from suites import on_the_cpu

FETCH = "git clone --depth 1 https://github.com/quic/aimet.git"
"""How to fetch the suite; FOLDER is TrainingExtensions/torch/test/python in it."""

TESTS = (
    "v2/quantization/affine",
    "v2/quantization/float",
    "v2/quantization/test_encoding_analyzer.py",
    "v2/quantization/test_tensor.py",
    "v2/encodings",
)
LEAST = 465
"""Tests that pass at least; 475 pass with AIMET itself without a GPU."""


def pytest_configure() -> None:
    """Give the names, before a test is imported."""
    on_the_cpu.install()
    install()


def install() -> None:
    """Put the modules into `sys.modules`."""
    import torch

    import onnxfq.torch.compat.aimet as aimet
    from onnxfq.torch.compat.aimet import encodings, functions, quantizer, statistics
    from onnxfq.torch.qat_gradients import round_straight_through

    def validate(tensor: Any, scale: Any, qmin: Any = None, qmax: Any = None, block_size: Any = None) -> None:
        functions.check_shapes(tensor.shape, scale.shape, block_size)

    @contextlib.contextmanager
    def compiled(flag: bool) -> Iterator[None]:
        yield  # onnxfq has one implementation

    def largest(exponent_bits: int, mantissa_bits: int) -> float:
        return encodings.FloatFormat(exponent_bits, mantissa_bits).max

    def cast(x: Any, maxval: Any, exponent_bits: int, mantissa_bits: int) -> Any:
        form = encodings.FloatFormat(exponent_bits, mantissa_bits)
        scale = torch.as_tensor(maxval / form.max, dtype=torch.float32)
        return encodings.FloatEncoding(mantissa_bits, exponent_bits, False, False, scale).quantize_dequantize(
            x
        )

    core = "aimet_torch.v2.quantization"
    builtins = {
        "quantize": functions.quantize,
        "dequantize": functions.dequantize,
        "quantize_dequantize": functions.quantize_dequantize,
        "_validate_arguments": validate,
        "_use_compiled_impl": compiled,
    }
    analyzers = {**vars(aimet.encoding_analyzer), "_HistogramObserver": statistics.BinsObserver}
    modules: dict[str, dict[str, Any]] = {
        "aimet_torch": {},
        "aimet_torch.v2": {},
        "aimet_torch.v2.utils": {"ste_round": round_straight_through},
        "aimet_torch.fp_quantization": {"fake_cast_to_ieee_float": cast},
        core: vars(aimet),
        f"{core}.affine": vars(aimet.affine),
        f"{core}.affine.quantizer": vars(aimet.affine),
        f"{core}.affine.backends": builtins,
        f"{core}.affine.backends.torch_builtins": builtins,
        f"{core}.base": {"QuantizerBase": quantizer.QuantizerBase, "EncodingBase": encodings.EncodingBase},
        f"{core}.base.quantizer": {"QuantizerBase": quantizer.QuantizerBase},
        f"{core}.encoding_analyzer": analyzers,
        f"{core}.float": vars(aimet.float),
        f"{core}.float.quantizer": {**vars(aimet.float), "_ieee_float_max_representable_value": largest},
        f"{core}.tensor": vars(aimet.tensor),
        # The tests of quantizers import one name of a file that needs DeepSpeed.
        "v2.test_deepspeed": {"CustomMPU": object},
    }
    for name, content in modules.items():
        module = types.ModuleType(name)
        hidden = ("__name__", "__spec__", "__path__", "__file__", "__package__", "__loader__")
        vars(module).update({key: value for key, value in content.items() if key not in hidden})
        sys.modules[name] = module
        parent, _, last = name.rpartition(".")
        if parent in modules:
            setattr(sys.modules[parent], last, module)
