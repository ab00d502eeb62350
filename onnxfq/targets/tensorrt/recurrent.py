"""Recurrent operators of several steps: TensorRT builds none with a Cast in front of it.

Measured on TensorRT for RTX 1.7.1 for LSTM, GRU and RNN, with and without operators between that only move:
the builder ends with "Error during shape inference". It builds a single step, an open number of steps, and
any operator that computes between the Cast and the loop; so it does loops all in float32 or in a half type.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from onnxfq.graph.ops import RECURRENT_OPS

CAST_BEFORE_LOOP = "{} {!r} reads it, and TensorRT builds no Cast in front of a loop of several steps"


def count_steps(node: onnx.NodeProto, shape: Sequence[int | None] | None) -> int | None:
    """Return the steps of a recurrent operator whose input has `shape`; None for others and for open ones."""
    if node.op_type not in RECURRENT_OPS or shape is None or len(shape) != 3:
        return None
    batch_first = any(a.name == "layout" and a.i == 1 for a in node.attribute)
    return shape[1 if batch_first else 0]
