"""The causes that are looked for, by what a report calls them."""

from __future__ import annotations

from onnxfq.diagnosis.causes.biases import find_biases
from onnxfq.diagnosis.causes.calibration import find_few_samples, find_other_preprocessing
from onnxfq.diagnosis.causes.channels import find_activation_channels
from onnxfq.diagnosis.causes.coarse_weights import find_coarse
from onnxfq.diagnosis.causes.halves import find_overflow
from onnxfq.diagnosis.causes.ranges import find_ranges
from onnxfq.diagnosis.causes.structure import (
    find_double,
    find_inside_fusion,
    find_left_in_float,
    find_missing,
    find_shifted,
)
from onnxfq.diagnosis.causes.target_rules import find_rules
from onnxfq.diagnosis.causes.weights import find_weights
from onnxfq.diagnosis.reading.cause import Detector

LAYER_DETECTORS: dict[str, Detector] = {
    "biases": find_biases,
    "axes, scales and channels of weights": find_weights,
    "weights of few bits": find_coarse,
    "double quantization": find_double,
    "pairs inside fusions": find_inside_fusion,
    "pairs of sums": find_missing,
    "layers in float": find_left_in_float,
    "scales of pairs": find_shifted,
    "overflow of float16": find_overflow,
    "rules of the target": find_rules,
}
"""Causes other than ranges. Their repairs come first: ranges behind a wrong weight look wrong."""

RANGE_DETECTORS: dict[str, Detector] = {
    "preprocessing of the calibration": find_other_preprocessing,
    "number of calibration samples": find_few_samples,
    "ranges of activations": find_ranges,
    "channels of activations": find_activation_channels,
}
