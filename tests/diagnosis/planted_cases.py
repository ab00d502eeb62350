"""The 60 files with planted faults and the 20 sound ones, made and committed before the first rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from builders import Arrays, with_constants
from diagnosed_networks import network
from numpy.typing import NDArray
from planted_faults import (
    Fault,
    Planted,
    double,
    for_target,
    foreign,
    foreign_weight,
    half_overflow,
    input_range,
    inside_fusion,
    left_in_float,
    lost_bias,
    missing_pair,
    narrow,
    one_sided,
    saturated_bias,
    stale_weights,
    unsigned,
    wide,
    wrong_axis,
)
from quantized_files import make, sound


@dataclass(frozen=True)
class Case:
    """One file to diagnose: a network, its maker, and the faults.

    Attributes:
        change: of the samples that calibrate, with the kinds of causes that name it.
        spread: layer and factor of a channel of the float model.
        samples: that calibrate.
    """

    net: str
    maker: str
    faults: tuple[Fault, ...] = ()
    change: Callable[[Arrays], Arrays] | None = None
    spread: tuple[str, float] | None = None
    samples: int | None = None
    weak: bool = False

    def plant(self) -> Planted:
        """Return the file with its faults."""
        base = network(self.net)
        if self.spread is not None:
            base = replace(base, proto=_with_large_channel(base.proto, *self.spread), shown=None)
        options = {} if self.change is None else {"change": self.change}
        options |= {} if self.samples is None else {"samples": self.samples}
        if options or self.spread is not None:
            proto = make(self.net, self.maker, net=base, **options)
        else:
            proto = sound(self.net, self.maker)
        planted = Planted(proto, base.float_model)
        if self.change is not None:
            planted.answer({"preprocessing"}, "x")
        if self.samples is not None:
            planted.answer({"few_samples"})
        if self.spread is not None:
            layer = self.spread[0]
            names = [f"{layer}_w", f"{layer}_w_quantized", f"{layer}_w/q", layer, f"{layer}_quant"]
            outputs = [name for node in proto.graph.node if node.name in names[3:] for name in node.output]
            planted.answer({"channel_spread", "lost_values"}, *names, *outputs, f"{layer}_relu")
        for fault in self.faults:
            fault(planted)
        return planted

    def plant_nothing(self) -> onnx.ModelProto:
        """Return the file that a repair is measured against: the same tool on the same network."""
        if self.spread is None:
            return sound(self.net, self.maker)
        base = replace(network(self.net), proto=_with_large_channel(network(self.net).proto, *self.spread))
        return make(self.net, "qdq", net=base)


def _with_large_channel(proto: onnx.ModelProto, layer: str, factor: float) -> onnx.ModelProto:
    """Return the network with one output channel of a layer `factor` times as large."""
    outputs_last = next(n for n in proto.graph.node if n.name == layer).op_type == "MatMul"

    def change(name: str, array: NDArray[Any]) -> NDArray[Any]:
        values = array.copy()
        if name == f"{layer}_w":
            values[(slice(None), 2) if outputs_last else 2] *= factor
        return values

    return with_constants(proto, change)


def times_255(feed: Arrays) -> Arrays:
    """Return the sample in bytes."""
    return {"x": feed["x"] * np.float32(255)}


def raw_pixels(feed: Arrays) -> Arrays:
    """Return the picture before mean and deviation were applied."""
    mean, deviation = (
        np.array(v, np.float32).reshape(1, 3, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    )
    return {"x": feed["x"] * deviation + mean}


def swapped_channels(feed: Arrays) -> Arrays:
    """Return the picture with its channels in the other order."""
    return {"x": np.ascontiguousarray(feed["x"][:, ::-1])}


def centered(feed: Arrays) -> Arrays:
    """Return the picture in -1..1."""
    return {"x": feed["x"] * np.float32(2) - np.float32(1)}


CASES: dict[str, Case] = {
    # Convolutions.
    "conv-qdq-wide": Case("conv", "qdq", (wide(2, 30),)),
    "conv-qdq-narrow-weak": Case("conv", "qdq", (narrow(1, 3),), weak=True),
    "conv-qdq-foreign": Case("conv", "qdq", (foreign(2, 0),)),
    "conv-qdq-weight-weak": Case("conv", "qdq", (foreign_weight(1, 2),), weak=True),
    "conv-qdq-axis": Case("conv", "qdq", (wrong_axis(1),)),
    "conv-qdq-bytes": Case("conv", "qdq", change=times_255),
    "conv-qop-wide": Case("conv", "qoperator", (wide(1, 20),)),
    "conv-qop-bias": Case("conv", "qoperator", (lost_bias(2),)),
    "conv-own-inside": Case("conv", "own", (inside_fusion("Relu"),)),
    "conv-own-double": Case("conv", "own", (double(1),)),
    "conv-own-missing": Case("conv", "own", (missing_pair,)),
    "conv-nncf-left": Case("conv", "nncf", (left_in_float(2),)),
    "conv-nncf-unequal-weak": Case("conv", "nncf", (wide(4, 4),), weak=True),
    "conv-modelopt-input": Case("conv", "modelopt", (input_range(255),)),
    "conv-aimet-narrow-weak": Case("conv", "aimet", (narrow(2, 2.5),), weak=True),
    "conv-tensor-spread": Case("conv", "qdq-tensor", spread=("one", 40)),
    "conv-qdq-two": Case("conv", "qdq", (wide(3, 16), lost_bias(1)), weak=True),
    # Depthwise convolutions.
    "depthwise-qdq-raw": Case("depthwise", "qdq", change=raw_pixels),
    "depthwise-qdq-wide-weak": Case("depthwise", "qdq", (wide(3, 4),), weak=True),
    "depthwise-qdq-bias": Case("depthwise", "qdq", (saturated_bias(1),)),
    "depthwise-qdq-target": Case("depthwise", "qdq", (for_target("tensorrt", "asymmetric_for_target"),)),
    "depthwise-tensor-spread": Case("depthwise", "qdq-tensor", spread=("a_dw", 30)),
    "depthwise-qop-narrow-weak": Case("depthwise", "qoperator", (narrow(2, 2.5),), weak=True),
    "depthwise-qop-foreign": Case("depthwise", "qoperator", (foreign(2, 4),)),
    "depthwise-modelopt-wide": Case("depthwise", "modelopt", (wide(1, 50),)),
    "depthwise-aimet-unsigned": Case("depthwise", "aimet", (unsigned(3),)),
    "depthwise-own-two": Case("depthwise", "own", (narrow(1, 6), wide(4, 25)), weak=True),
    "depthwise-qdq-few": Case("depthwise", "qdq", samples=1),
    # Transformers.
    "transformer-qdq-wide": Case("transformer", "qdq", (wide(12, 40),)),
    "transformer-qdq-narrow-weak": Case("transformer", "qdq", (narrow(0, 3),), weak=True),
    "transformer-qdq-onesided": Case("transformer", "qdq", (one_sided(4),)),
    "transformer-qdq-stale": Case("transformer", "qdq", (stale_weights("norm2"),)),
    "transformer-qdq-double": Case("transformer", "qdq", (double(0, 1.9),)),
    "transformer-qop-wide-weak": Case("transformer", "qoperator", (wide(0, 4),), weak=True),
    "transformer-modelopt-narrow-weak": Case("transformer", "modelopt", (narrow(1, 2.5),), weak=True),
    "transformer-modelopt-stale": Case("transformer", "modelopt", (stale_weights("norm1"),)),
    "transformer-own-half": Case("transformer", "own", (half_overflow,)),
    "transformer-tensor-spread": Case("transformer", "qdq-tensor", spread=("up", 40)),
    "transformer-own-two": Case("transformer", "own", (wide(1, 30), narrow(3, 6)), weak=True),
    # A detector with two outputs.
    "detector-qdq-swapped": Case("detector", "qdq", change=swapped_channels),
    "detector-qdq-centered": Case("detector", "qdq", change=centered),
    "detector-qdq-wide": Case("detector", "qdq", (wide(2, 60),)),
    "detector-qdq-weight": Case("detector", "qdq", (foreign_weight(3, 0.3),)),
    "detector-nncf-unequal-weak": Case("detector", "nncf", (wide(0, 4),), weak=True),
    "detector-nncf-axis": Case("detector", "nncf", (wrong_axis(2),)),
    "detector-qop-bias": Case("detector", "qoperator", (lost_bias(0),)),
    "detector-qop-narrow-weak": Case("detector", "qoperator", (narrow(3, 3),), weak=True),
    "detector-own-inside": Case("detector", "own", (inside_fusion("Relu"),)),
    "detector-qdq-two": Case("detector", "qdq", (lost_bias(2), narrow(0, 4)), weak=True),
    # A recurrent network.
    "recurrent-nncf-wide": Case("recurrent", "nncf", (wide(0, 25),)),
    "recurrent-nncf-narrow-weak": Case("recurrent", "nncf", (narrow(1, 3),), weak=True),
    "recurrent-qdq-input": Case("recurrent", "qdq", (input_range(0.1),)),
    "recurrent-qdq-weight-weak": Case("recurrent", "qdq", (foreign_weight(0, 2),), weak=True),
    "recurrent-qdq-two": Case("recurrent", "qdq", (wide(1, 4), narrow(2, 4)), weak=True),
    # Sound waves.
    "audio-qdq-wide-weak": Case("audio", "qdq", (wide(1, 3),), weak=True),
    "audio-qdq-few": Case("audio", "qdq", samples=1),
    "audio-aimet-unsigned": Case("audio", "aimet", (unsigned(0),)),
    "audio-own-left": Case("audio", "own", (left_in_float(1),)),
    "audio-qop-foreign": Case("audio", "qoperator", (foreign(1, 3),)),
    "audio-aimet-two": Case("audio", "aimet", (narrow(1, 5), foreign_weight(3, 2)), weak=True),
}
"""60 files with planted faults, 20 of which have two faults or a weak one."""

SOUND: dict[str, Case] = {
    f"{net}-{maker}": Case(net, maker)
    for net, maker in (
        ("conv", "qdq"),
        ("conv", "qdq-signed"),
        ("conv", "qoperator"),
        ("conv", "own"),
        ("conv", "modelopt"),
        ("conv", "nncf"),
        ("conv", "aimet"),
        ("depthwise", "qdq-percentile"),
        ("depthwise", "own-cpu"),
        ("depthwise", "modelopt"),
        ("transformer", "qdq"),
        ("transformer", "qoperator"),
        ("transformer", "modelopt"),
        ("detector", "qdq-entropy"),
        ("detector", "own"),
        ("detector", "nncf"),
        ("recurrent", "qdq-tensor"),
        ("recurrent", "nncf"),
        ("audio", "qdq-signed"),
        ("audio", "aimet"),
    )
}
"""20 files without a fault."""
