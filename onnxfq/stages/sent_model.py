"""`SentModel`: a model on its way to the workers of a cluster."""

from __future__ import annotations

from dataclasses import dataclass

import onnx

from onnxfq.graph.model import Model
from onnxfq.runtime.custom_ops import list_custom_ops, use_custom_ops


@dataclass(frozen=True)
class SentModel:
    """A model in bytes, with the custom-op libraries that its sessions need.

    Attributes:
        content: the serialized proto.
        sha256: of the model.
        source: name of the model in messages.
        libraries: paths, which every machine has.
    """

    content: bytes
    sha256: str
    source: str
    libraries: tuple[str, ...]

    @staticmethod
    def of(model: Model) -> SentModel:
        """Return `model` with the libraries in use."""
        content = model.proto.SerializeToString()
        return SentModel(content, model.sha256, model.source, list_custom_ops())

    def open(self) -> Model:
        """Return the model, in a worker that now uses its libraries."""
        for path in self.libraries:
            use_custom_ops(path)
        return Model(onnx.ModelProto.FromString(self.content), self.sha256, self.source)
