"""Scales of cached keys: positions turn two channels into each other, as far as the context goes.

Values up to a and b, turned by at most t, reach a cos t + b sin t, and a pair that turns far has the larger
scale twice. One that the whole context turns little keeps two: a joined scale lost most of the smaller
channel in 4 bits. Source of the turns: Su et al., RoFormer, 2021.
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
from onnxfq.graph.ops import STANDARD_DOMAINS

_ALL = np.array(np.pi, np.float32)
"""The turn of a pair whose angles are unknown."""


def join_rotary_pairs(model: Model, plan: Plan, encodings: Iterable[Encoding]) -> list[Encoding]:
    """Return `encodings` with scales for all positions in caches that have a scale for each channel.

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
    partners, most = _find_partners(tensor, scales.size, index) if scales.ndim else (None, _ALL)
    if common is not None:
        # Positions turn the key with its mean, away from the constant.
        reach = np.abs(common) / encoding.spec.qtype.qmax
        reach = np.maximum(reach, reach[partners]) if partners is not None else reach.max()
        scales = scales + np.float32(2) * reach.astype(np.float32)
    if partners is not None:
        other = scales[partners]
        turn = np.minimum(most, np.arctan2(other, scales))
        scales = np.minimum(scales * np.cos(turn) + other * np.sin(turn), np.maximum(scales, other))
    return encoding.model_copy(update={"scale": scales})


def _find_partners(
    tensor: str, channels: int, index: GraphIndex
) -> tuple[NDArray[np.intp] | None, NDArray[np.float32]]:
    """Return the partner of each channel, None for a tensor that is not rotated, and how far it turns."""
    maker = index.makers.get(tensor)
    if maker is not None and maker.op_type == "Concat":
        maker = index.makers.get(maker.input[1])
    if maker is None:
        return None, _ALL
    if maker.op_type == "RotaryEmbedding":
        attrs = attributes_of(maker)
        # A cache of heads apart has the channels of one head.
        heads = attrs["num_heads"] if maker.output[0] == tensor else 1
        interleaved = bool(attrs.get("interleaved"))
        partners = _partners(channels, heads, attrs.get("rotary_embedding_dim", 0), interleaved)
        at = 1 if maker.domain in STANDARD_DOMAINS else 2  # positions come last there
        cos, sin = (index.array(name) for name in (*maker.input, "", "")[at : at + 2])
        if cos is None or sin is None or cos.ndim != 2 or len(cos) < 2:
            return partners, _ALL
        turns = np.zeros(channels // heads, np.float32)
        # In 16 bits the cosine of most angles is 1, and their sine is exact.
        of_pairs = np.arctan2(sin[1], cos[1], dtype=np.float32) * len(cos)
        turns[: 2 * len(of_pairs)] = np.repeat(of_pairs, 2) if interleaved else np.tile(of_pairs, 2)
        return partners, np.tile(turns, heads)
    return (_partners(channels, 1, 0, interleaved=False) if _turns_halves(maker, index) else None), _ALL


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
