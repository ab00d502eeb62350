"""`QdqForm`: operators of a target beyond ONNX's own Q/DQ operators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import onnx
import onnx_graphsurgeon as gs

from onnxfq.documents.encodings import Encoding
from onnxfq.documents.plan import Placement
from onnxfq.graph.edit import Editor

Writer = Callable[[Editor, Placement, gs.Tensor, Encoding], None]
"""Inserts the operators of an encoding between a placed tensor and its placed readers."""


def _no_writer(placement: Placement) -> Writer | None:
    return None


@dataclass(frozen=True)
class QdqForm:
    """Differences of a target from ONNX's own form.

    Attributes:
        writer: the writer of a placed tensor with a form specific to the target; None for all others.
        edit: changes the graph after all pairs are inserted, in place.
        finish: returns the exported model with the target's additions.
    """

    writer: Callable[[Placement], Writer | None] = _no_writer
    edit: Callable[[Editor], object] | None = None
    finish: Callable[[onnx.ModelProto], onnx.ModelProto] | None = None


PLAIN = QdqForm()
"""ONNX's own operators and nothing else."""
