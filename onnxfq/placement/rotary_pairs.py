"""Scales of cached keys: two channels that positions turn into each other share one.

A later position turns the larger of both into the other. Source: Su et al., RoFormer, 2021.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx
from numpy.typing import NDArray

from onnxfq.documents.encodings import Encoding
from onnxfq.documents.plan import Plan
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.model import Model
from onnxfq.graph.node_fields import attributes_of


def join_rotary_pairs(model: Model, plan: Plan, encodings: Iterable[Encoding]) -> list[Encoding]:
    """Return `encodings` with one scale for a rotary pair in caches that have a scale for each channel.

    Args:
        model: as the target prepares it, with keys behind their rotary embedding.
        plan: with the caches.
        encodings: of its activations.
    """
    stored = {placement.tensor for placement in plan.activations if placement.stored}
    index = model.index if stored else None
    return [
        encoding if index is None or encoding.tensor not in stored else _join(encoding, index)
        for encoding in encodings
    ]


def _join(encoding: Encoding, index: GraphIndex) -> Encoding:
    scales, maker = encoding.scale, index.makers.get(encoding.tensor)
    tensor, common = encoding.tensor, None
    if maker is not None and maker.op_type == "Sub" and maker.input[1] in index.constants:
        tensor, common = maker.input[0], index.array(maker.input[1])
    partners = _find_partners(tensor, scales.size, index) if scales.ndim else None
    if common is not None:
        # Positions turn the key with its mean, away from the constant.
        reach = np.abs(common) / encoding.spec.qtype.qmax
        reach = np.maximum(reach, reach[partners]) if partners is not None else reach.max()
        scales = scales + np.float32(2) * reach.astype(np.float32)
    if partners is not None:
        scales = np.maximum(scales, scales[partners])
    return encoding.model_copy(update={"scale": scales})


def _find_partners(tensor: str, channels: int, index: GraphIndex) -> NDArray[np.intp] | None:
    """Return the partner of each channel; None for a tensor that is not rotated."""
    maker = index.makers.get(tensor)
    if maker is not None and maker.op_type == "Concat":
        maker = index.makers.get(maker.input[1])
    if maker is None:
        return None
    if maker.op_type == "RotaryEmbedding":
        attrs = attributes_of(maker)
        # A cache of heads apart has the channels of one head.
        heads = attrs["num_heads"] if maker.output[0] == tensor else 1
        return _partners(
            channels, heads, attrs.get("rotary_embedding_dim", 0), bool(attrs.get("interleaved"))
        )
    return _partners(channels, 1, 0, interleaved=False) if _turns_halves(maker, index) else None


def _partners(channels: int, heads: int, turned: int, interleaved: bool) -> NDArray[np.intp]:
    size = channels // heads
    turned = turned or size
    order = np.arange(size)
    pairs = order[:turned].reshape((-1, 2) if interleaved else (2, -1))
    order[:turned] = np.flip(pairs, 1 if interleaved else 0).ravel()
    return np.add.outer(size * np.arange(heads), order).ravel()


def _turns_halves(maker: onnx.NodeProto, index: GraphIndex) -> bool:
    """Tell whether `maker` is x cos + (-x2, x1) sin, as exporters write a rotation of halves."""
    products = [index.makers.get(name) for name in maker.input] if maker.op_type == "Add" else []
    swaps = [index.makers.get(name) for node in products if node is not None for name in node.input]
    parts = [index.makers.get(name) for node in swaps if node is not None for name in node.input]
    return any(part is not None and part.op_type == "Neg" for part in parts)
