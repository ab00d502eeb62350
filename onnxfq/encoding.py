"""`Encoding`: the parameters of one quantized tensor, and `Encodings`, those of a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pydantic
from numpy.typing import ArrayLike, NDArray

from onnxfq.documents import Record, first_repeated, read_document, write_document
from onnxfq.errors import PlanError, SpecError, nearest
from onnxfq.granularity import BlockShape, PerAxis, PerTensor
from onnxfq.numerics import fake_quantize
from onnxfq.spec import QuantSpec


class Encoding(Record):
    """Scale and zero point of one tensor under a `QuantSpec`.

    param_shape: [] per tensor, [C] per axis, x's rank when blocked (each axis divided by its block, rounded
    up). scale and zero_point are flat lists in C order of that shape. Every scale is finite and positive.
    """

    tensor: str
    spec: QuantSpec
    param_shape: tuple[int, ...]
    scale: tuple[float, ...]
    zero_point: tuple[int, ...]

    @pydantic.model_validator(mode="after")
    def _valid(self) -> Encoding:
        granularity = self.spec.granularity
        ranks = {PerTensor: 0, PerAxis: 1}
        rank = ranks.get(type(granularity), len(self.param_shape))
        if isinstance(granularity, BlockShape):
            rank = len(granularity.block_shape)
        if len(self.param_shape) != rank or min(self.param_shape, default=0) < 0:
            raise ValueError(
                f"tensor {self.tensor!r}: param_shape {list(self.param_shape)} does not fit "
                f"{granularity}; its rank must be {rank}, its dimensions at least 0"
            )
        count = int(np.prod(self.param_shape, dtype=np.int64))
        if len(self.scale) != count or len(self.zero_point) != count:
            raise ValueError(
                f"tensor {self.tensor!r}: param_shape {list(self.param_shape)} wants {count} values, "
                f"got {len(self.scale)} scales and {len(self.zero_point)} zero points"
            )
        with np.errstate(over="ignore"):  # beyond float32 is infinite, refused below
            scale = np.asarray(self.scale, np.float32)
        if not (np.isfinite(scale).all() and (scale > 0).all()):
            raise ValueError(f"tensor {self.tensor!r}: every scale must be finite and positive")
        qtype = self.spec.qtype
        if any(not qtype.qmin <= z <= qtype.qmax for z in self.zero_point):
            raise ValueError(
                f"tensor {self.tensor!r}: every zero_point must lie in {qtype} [{qtype.qmin}, {qtype.qmax}]"
            )
        if self.spec.symmetric and any(self.zero_point):
            raise ValueError(f"tensor {self.tensor!r}: every zero_point of a symmetric spec must be 0")
        return self

    @staticmethod
    def of(
        tensor: str, spec: QuantSpec, scale: NDArray[np.float32], zero_point: NDArray[np.int32]
    ) -> Encoding:
        """Make an encoding from arrays of one shape. Raises SpecError when a rule is broken."""
        try:
            return Encoding(
                tensor=tensor,
                spec=spec,
                param_shape=tuple(scale.shape),
                scale=tuple(float(s) for s in scale.ravel()),
                zero_point=tuple(int(z) for z in zero_point.ravel()),
            )
        except pydantic.ValidationError as fault:
            raise SpecError(fault.errors()[0]["msg"].removeprefix("Value error, ")) from None

    @property
    def scale_array(self) -> NDArray[np.float32]:
        """Scale as float32 of `param_shape`."""
        return np.asarray(self.scale, np.float32).reshape(self.param_shape)

    @property
    def zero_point_array(self) -> NDArray[np.int32]:
        """Zero point as int32 of `param_shape`."""
        return np.asarray(self.zero_point, np.int32).reshape(self.param_shape)

    def fake_quantize(self, x: ArrayLike) -> NDArray[Any]:
        """Return x rounded to the grid, of its type and shape, as `numerics.fake_quantize` does."""
        spec = self.spec
        return fake_quantize(x, self.scale_array, self.zero_point_array, qtype=spec.qtype, **spec.blocks)

    @property
    def rmin(self) -> float:
        """Smallest real number on the grid of any group."""
        steps = self.spec.qtype.qmin - self.zero_point_array.astype(np.float64)
        return float((steps * self.scale_array.astype(np.float64)).min())

    @property
    def rmax(self) -> float:
        """Largest real number on the grid of any group."""
        steps = self.spec.qtype.qmax - self.zero_point_array.astype(np.float64)
        return float((steps * self.scale_array.astype(np.float64)).max())


class Encodings(Record):
    """The encodings of all quantized tensors of one model (`.encodings.json`)."""

    format: Literal["onnxfq.encodings/1"] = "onnxfq.encodings/1"
    model_sha256: str
    encodings: tuple[Encoding, ...]

    @pydantic.model_validator(mode="after")
    def _encoded_once(self) -> Encodings:
        twice = first_repeated(encoding.tensor for encoding in self.encodings)
        if twice is not None:
            raise ValueError(f"tensor {twice!r} is encoded twice; keep one of the two")
        return self

    def __getitem__(self, tensor: str) -> Encoding:
        """Return the encoding of `tensor`. Raises PlanError with the nearest names when it has none."""
        for encoding in self.encodings:
            if encoding.tensor == tensor:
                return encoding
        hint = nearest(tensor, (encoding.tensor for encoding in self.encodings))
        raise PlanError(f"no encoding for tensor {tensor!r}: calibrate with this plan first{hint}")

    def save(self, path: str | Path) -> None:
        """Write as JSON, whole or not at all."""
        write_document(path, self)

    @staticmethod
    def load(path: str | Path) -> Encodings:
        """Read what `save` wrote. Raises PlanError in one line for any fault."""
        return read_document(path, Encodings, PlanError)
