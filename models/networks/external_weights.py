"""Random weights in a data file, written in slabs so that memory holds one slab of any model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import TensorProto

SLAB = 1 << 22
"""Numbers that memory holds at a time."""


class ExternalWeights:
    """Data file of a model, with one random matrix after the other."""

    def __init__(self, path: Path) -> None:
        """Start an empty file at `path`."""
        self._stream = path.open("wb")
        self._name = path.name
        self._rng = np.random.default_rng(0)

    def add(self, name: str, rows: int, columns: int, spread: float) -> TensorProto:
        """Write a normal matrix of this spread, and return its tensor."""
        start, step = self._stream.tell(), max(SLAB // columns, 1)
        for first in range(0, rows, step):
            shape = (min(step, rows - first), columns)
            slab = self._rng.standard_normal(shape, dtype=np.float32) * np.float32(spread)
            self._stream.write(slab.tobytes())
        tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[rows, columns])
        tensor.data_location = TensorProto.EXTERNAL
        places = {"location": self._name, "offset": start, "length": self._stream.tell() - start}
        for key, value in places.items():
            tensor.external_data.add(key=key, value=str(value))
        return tensor

    def close(self) -> None:
        """End the file."""
        self._stream.close()
