"""Choices of options and their defaults, importable without any library: wrong usage is refused at once."""

from __future__ import annotations

from typing import Literal

CheckpointName = Literal["modelopt", "compressed-tensors"]
"""Forms of checkpoints that are written."""

CacheGranularity = Literal["tensor", "channel"]
WeightForm = Literal["matmulnbits", "qdq", "qdq-transpose"]
Rotate = Literal["none", "auto", "always"]
BiasCorrectionChoice = Literal["none", "auto"]
DeviceChoice = Literal["any", "cpu", "cuda"]
Equalize = Literal["none", "depthwise", "cross_layer", "auto"]
FloatName = Literal["fp32", "fp16", "bf16"]
Kernels = Literal["float", "integer"]
Nonfinite = Literal["stop", "skip"]
PaddingChoice = Literal["cut", "fill", "pooled", "keep"]

Uncalibrated = Literal["error", "float"]
"""Treatment of activations that a file of encodings lacks, without data."""

RESAMPLES = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
"""Filters of resizing, at the places of Pillow's numbers."""

WEIGHTS = "weights"
"""Fallback that quantizes weights only."""

FLOAT = "float"
"""Fallback that quantizes nothing."""

DEFAULT_RECIPE = "tensorrt-int8"
DEFAULT_TARGET = "tensorrt"

DEFAULT_BATCH = 1
"""Samples per run if the batch axis is open: each sample runs alone and does not depend on others."""

DEFAULT_MEMORY = 256 << 20
"""Bytes that observing may take beyond the model's own."""

MOMENTS_MEMORY = 1 << 30
"""Bytes that runs side by side may take half of when inputs of layers are gathered."""

MOST_THREADS = 1024
"""More are probably a typing error, and each would take memory before the first one runs."""

RANKING_FEEDS = 2
"""Feeds that rank groups of layers."""

DRAWN_SAMPLES = 64
"""Samples that are drawn in place of data."""

CHANNEL_FEEDS = 8
"""Feeds that tell the size of channels: behind a Relu, fewer leave most channels near 0."""

COMPARED_FEEDS = 4
"""Feeds on which two runtimes are compared."""

LOW_SQNR_DB = 20
"""SQNR below which an output needs attention: the noise exceeds a tenth of the signal."""

REPAIR_DB = float(LOW_SQNR_DB)
"""SQNR of the outputs in dB below which also remedies are tried that cost something at run time."""

THOROUGH: Literal["thorough"] = "thorough"
"""Repair as with REPAIR_AUTO, without a budget of time."""

RepairWord = Literal["auto", "thorough"]
REPAIR_AUTO: RepairWord = "auto"
"""REPAIR_DB where activations are quantized, none for weights alone: their few bits are chosen for the size,
their noise is spread over all layers, and keeping a few in float restored no network."""

TOLERANCE_DB = 20.0
"""SQNR below which two tensors differ: an error of 10% of their size.

Two correct kernels that round at different places differ in a few values by one step, and each later layer
adds more: 40 dB a few layers down, 26 dB at the end of a residual network of 20 layers in float16.
"""

OTHER_NAMES = {
    "quantize_static": "onnxfq.quantize",
    "quantize_dynamic": "onnxfq.quantize(..., recipe='onnxruntime-uint8-dynamic')",
    "quant_pre_process": "onnxfq.quantize, which needs no preparation",
    "quantize_with_accuracy_control": "onnxfq.quantize(..., accuracy=onnxfq.AccuracyTarget(max_drop=...))",
    "QuantizationSimModel": "onnxfq.torch.quantize_module",
    "TensorQuantizer": "onnxfq.torch.FakeQuantize",
    "auto_quantize": "onnxfq.sensitivity",
}
"""Functions and classes of other quantizers, and what stands for them here."""
