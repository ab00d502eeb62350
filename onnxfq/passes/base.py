"""Contract of a pass: requires, call, ensures; the result says whether the model changed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import onnx_graphsurgeon as gs

from onnxfq.graph.model import Model
from onnxfq.graph.normalize.opset import raise_opset


@dataclass(frozen=True)
class PassResult:
    """Result of a pass: a new model, and whether it differs from the input."""

    model: Model
    modified: bool


class Pass(ABC):
    """One transformation; `run` never changes its input model."""

    def requires(self, model: Model) -> None:
        """Raise an OnnxfqError when the pass cannot handle `model`."""
        return None

    @property
    def min_opset(self) -> int:
        """Lowest ai.onnx opset that supports the inserted operators."""
        return 1

    @abstractmethod
    def call(self, graph: gs.Graph, opset: int) -> bool:
        """Edit `graph` in place, at ai.onnx `opset`; return whether anything changed."""

    def run(self, model: Model) -> PassResult:
        """Apply the pass to a copy: check, raise the opset if needed, edit, export."""
        self.requires(model)
        proto, note = raise_opset(model.proto, self.min_opset, model.source)
        raised = replace(model, proto=proto, notes=(*model.notes, *([note] if note else [])))
        graph = raised.graph()
        if not self.call(graph, raised.opset):
            return PassResult(model, modified=False)
        return PassResult(raised.with_graph(graph), modified=True)
