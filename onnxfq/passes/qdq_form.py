"""`QdqForm`: what a target writes that ONNX's own Q/DQ operators cannot say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import onnx
import onnx_graphsurgeon as gs

from onnxfq.documents.encodings import Encoding
from onnxfq.documents.plan import Placement
from onnxfq.graph.edit import Editor

Writer = Callable[[Editor, Placement, gs.Tensor, Encoding], None]
"""Puts the operators of an encoding between a placed tensor and its placed readers."""


def _no_writer(placement: Placement) -> Writer | None:
    return None


@dataclass(frozen=True)
class QdqForm:
    """How a target differs from ONNX's own form.

    writer: the writer of a placed tensor that has a form of the target's own; None for all others. edit:
    changes the graph with all pairs in it, in place. finish: returns the exported model with what it adds.
    """

    writer: Callable[[Placement], Writer | None] = _no_writer
    edit: Callable[[Editor], object] | None = None
    finish: Callable[[onnx.ModelProto], onnx.ModelProto] | None = None


PLAIN = QdqForm()
"""ONNX's own operators and nothing else."""
