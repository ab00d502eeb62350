"""Sound quantized files of the six networks, as five tools make them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import onnx
from builders import Arrays
from diagnosed_networks import Network, network
from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType
from ort_quantizer import by_ort

from onnxfq import quantize

FILES = Path(__file__).parent / "files"
CALIBRATED = 32
"""Samples that calibrate; those of a diagnosis have another seed."""

Change = Callable[[Arrays], Arrays]


def _ort(proto: onnx.ModelProto, feeds: Sequence[Arrays], **options: object) -> onnx.ModelProto:
    with tempfile.TemporaryDirectory() as folder:
        return by_ort(proto, feeds, Path(folder), **options)


def _own(proto: onnx.ModelProto, feeds: Sequence[Arrays], recipe: str) -> onnx.ModelProto:
    return quantize(proto, list(feeds), recipe=recipe).qdq


_UNSIGNED = {"activation_type": QuantType.QUInt8}
_MAKERS: dict[str, Callable[[onnx.ModelProto, Sequence[Arrays]], onnx.ModelProto]] = {
    "qdq": lambda proto, feeds: _ort(proto, feeds, per_channel=True, **_UNSIGNED),
    "qdq-tensor": lambda proto, feeds: _ort(proto, feeds, per_channel=False, **_UNSIGNED),
    "qdq-signed": lambda proto, feeds: _ort(
        proto, feeds, per_channel=True, extra_options={"ActivationSymmetric": True}
    ),
    "qdq-percentile": lambda proto, feeds: _ort(
        proto, feeds, per_channel=True, calibrate_method=CalibrationMethod.Percentile, **_UNSIGNED
    ),
    "qdq-entropy": lambda proto, feeds: _ort(
        proto, feeds, per_channel=True, calibrate_method=CalibrationMethod.Entropy, **_UNSIGNED
    ),
    "qoperator": lambda proto, feeds: _ort(proto, feeds, quant_format=QuantFormat.QOperator, **_UNSIGNED),
    "own": lambda proto, feeds: _own(proto, feeds, "tensorrt-int8"),
    "own-cpu": lambda proto, feeds: _own(proto, feeds, "onnxruntime-int8"),
}
MAKERS = (*_MAKERS, "modelopt", "nncf", "aimet")


def unchanged(feed: Arrays) -> Arrays:
    """Return the sample as it is."""
    return feed


def make(
    name: str,
    maker: str,
    *,
    net: Network | None = None,
    change: Change = unchanged,
    samples: int = CALIBRATED,
) -> onnx.ModelProto:
    """Return the network `name` as `maker` quantizes it.

    Args:
        name: of the network.
        maker: of `MAKERS`; the files of the last three were made once, by `make_foreign_files.py`.
        net: in place of the network of this name.
        change: of the samples that calibrate.
        samples: their number; of fewer than all the most quiet ones.
    """
    if maker in _MAKERS:
        net = net or network(name)
        feeds = sorted(net.feeds(CALIBRATED, seed=1), key=lambda feed: float(np.abs(feed["x"]).sum()))
        return _MAKERS[maker](net.proto, [change(feed) for feed in feeds[:samples]])
    return onnx.load(FILES / f"{maker}_{name}.onnx")


@cache
def _sound(name: str, maker: str) -> bytes:
    return make(name, maker).SerializeToString()


def sound(name: str, maker: str) -> onnx.ModelProto:
    """Return the sound file of a network by a tool, made once."""
    return onnx.ModelProto.FromString(_sound(name, maker))
