"""`Encoding`: the parameters of one quantized tensor, and `Encodings`, those of a model."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pydantic
from numpy.typing import ArrayLike, NDArray

from onnxfq.errors import PlanError, SpecError, nearest
from onnxfq.numerics.affine import fake_quantize, quantize
from onnxfq.numerics.block_scales import dynamic_fake_quantize
from onnxfq.numerics.qtypes import QTYPES
from onnxfq.numerics.spec import QuantSpec
from onnxfq.support.records import Record, first_repeated, read_document, write_document


class Encoding(Record):
    """Scale and zero point of one tensor under a `QuantSpec`.

    param_shape: [] per tensor, [C] per axis, x's rank when blocked (each axis divided by its block, rounded
    up). scale and zero_point are flat lists in C order of that shape; a dynamic tensor has none. Every scale
    is finite and positive. global_scale: of scale_type e4m3, the factor that all its scales share.
    """

    tensor: str
    spec: QuantSpec
    param_shape: tuple[int, ...]
    scale: tuple[float, ...]
    zero_point: tuple[int | float, ...]
    global_scale: float | None = None

    @pydantic.model_validator(mode="after")
    def _valid(self) -> Encoding:
        return self._checked()

    def _checked(self) -> Encoding:
        """Return itself. Raises ValueError, for pydantic to report, when a rule is broken."""
        if self.spec.dynamic:
            if self.param_shape or self.scale or self.zero_point:
                raise ValueError(
                    f"tensor {self.tensor!r}: {self.spec} makes its scales while the model runs; leave "
                    "param_shape, scale and zero_point empty"
                )
        else:
            self._check_counts()
            self._check_zero_points()
        self._check_scales()
        return self

    def _check_counts(self) -> None:
        granularity = self.spec.granularity
        rank = 0 if granularity.axis is None else 1
        if granularity.block_size is not None:
            rank = len(self.param_shape)
        if granularity.block_shape is not None:
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

    def _check_zero_points(self) -> None:
        qtype = self.spec.qtype
        zero_point = np.asarray(self.zero_point, np.float64)
        if not ((zero_point >= qtype.qmin) & (zero_point <= qtype.qmax)).all():
            raise ValueError(
                f"tensor {self.tensor!r}: every zero_point must lie in {qtype} [{qtype.qmin}, {qtype.qmax}]"
            )
        if self.spec.symmetric and zero_point.any():
            raise ValueError(f"tensor {self.tensor!r}: every zero_point of a symmetric spec must be 0")
        if self.spec.equalized and np.unique(zero_point).size > 1:
            raise ValueError(f"tensor {self.tensor!r}: equalized channels must share one zero_point")
        fractions = zero_point[zero_point != np.rint(zero_point)]
        if self.spec.zero_point == "integer" and fractions.size:
            raise ValueError(
                f"tensor {self.tensor!r}: every zero_point must be an integer, found {fractions[0]}; round "
                "it, or say zero_point: fractional in its spec"
            )

    def _check_scales(self) -> None:
        shared = self.global_scale
        if (shared is not None) != (self.spec.scale_type == "e4m3"):
            raise ValueError(
                f"tensor {self.tensor!r}: global_scale goes with scale_type e4m3, found {shared} with "
                f"{self.spec.scale_type}; calibrate again"
            )
        with np.errstate(over="ignore"):  # beyond float32 is infinite, refused below
            scale = np.asarray([*self.scale, *([] if shared is None else [shared])], np.float32)
        if not (np.isfinite(scale).all() and (scale > 0).all()):
            raise ValueError(f"tensor {self.tensor!r}: every scale must be finite and positive")
        if self.spec.equalized and np.unique(np.frexp(scale)[0]).size > 1:
            raise ValueError(f"tensor {self.tensor!r}: equalized scales must be powers of two apart")
        wrong = np.flatnonzero(self.scale_array != self._of_their_type())
        if wrong.size:
            rule = "a power of two" if shared is None else f"an e4m3 number times {shared}"
            raise ValueError(
                f"tensor {self.tensor!r}: every scale must be {rule}, found {self.scale[wrong[0]]}; "
                "calibrate again"
            )

    def _of_their_type(self) -> NDArray[np.float32]:
        """Return the scales rounded to what their type allows."""
        if self.spec.scale_type == "e8m0":
            return np.asarray(np.ldexp(np.float32(1), np.frexp(self.scale_array)[1] - 1), np.float32)
        if self.global_scale is not None:
            return np.asarray(self.block_scales.astype(np.float32) * np.float32(self.global_scale))
        return self.scale_array

    @staticmethod
    def of(
        tensor: str,
        spec: QuantSpec,
        scale: NDArray[np.float32],
        zero_point: NDArray[Any],
        global_scale: float | None = None,
    ) -> Encoding:
        """Make an encoding from arrays of one shape. Raises SpecError when a rule is broken."""
        dtype = np.float64 if spec.zero_point == "fractional" else np.int64
        # Of the right types by construction: what is left to check are the rules, which arrays are quick for.
        made = Encoding.model_construct(
            tensor=tensor,
            spec=spec,
            param_shape=tuple(scale.shape),
            scale=tuple(scale.ravel().tolist()),
            zero_point=tuple(zero_point.ravel().astype(dtype).tolist()),
            global_scale=global_scale,
        )
        try:
            return made._checked()
        except ValueError as fault:
            raise SpecError(str(fault)) from None

    @staticmethod
    def of_running_model(tensor: str, spec: QuantSpec, global_scale: float | None = None) -> Encoding:
        """Make the encoding of a dynamic tensor: no scales but the global one of scale_type e4m3."""
        return Encoding(
            tensor=tensor, spec=spec, param_shape=(), scale=(), zero_point=(), global_scale=global_scale
        )

    @property
    def scale_array(self) -> NDArray[np.float32]:
        """Scale as float32 of `param_shape`; empty when dynamic."""
        return self._array(self.scale, np.float32)

    @property
    def zero_point_array(self) -> NDArray[Any]:
        """Zero point of `param_shape`: int32, or float32 where it is fractional; empty when dynamic."""
        return self._array(self.zero_point, np.float32 if self.spec.zero_point == "fractional" else np.int32)

    def _array(self, values: tuple[float, ...], dtype: type) -> NDArray[Any]:
        return np.asarray(values, dtype).reshape((0,) if self.spec.dynamic else self.param_shape)

    @property
    def block_scales(self) -> NDArray[Any]:
        """The scales of scale_type e4m3 without the global one, as float8_e4m3fn of `param_shape`."""
        e4m3 = QTYPES["float8e4m3fn"]
        return quantize(self.scale_array, np.float32(self.global_scale or 1.0), qtype=e4m3)

    def fake_quantize(self, x: ArrayLike) -> NDArray[Any]:
        """Return x rounded to the grid, of its type and shape, as the node of a fake-quant model does it."""
        spec = self.spec
        if spec.dynamic:
            return dynamic_fake_quantize(
                x,
                qtype=spec.qtype,
                symmetric=spec.symmetric,
                scale_type=spec.scale_type,
                global_scale=self.global_scale,
                granularity=spec.granularity,
            )[0]
        return fake_quantize(
            x, self.scale_array, self.zero_point_array, qtype=spec.grid, granularity=spec.granularity
        )

    @property
    def rmin(self) -> float:
        """Smallest real number on the grid of any group; NaN when dynamic."""
        return self._reach(self.spec.grid.qmin, np.min)

    @property
    def rmax(self) -> float:
        """Largest real number on the grid of any group; NaN when dynamic."""
        return self._reach(self.spec.grid.qmax, np.max)

    def _reach(self, limit: float, of: Callable[[NDArray[np.float64]], Any]) -> float:
        steps = limit - self.zero_point_array.astype(np.float64)
        return float("nan") if self.spec.dynamic else float(of(steps * self.scale_array.astype(np.float64)))


class Encodings(Record):
    """The encodings of all quantized tensors of one model (`.encodings.json`).

    without_values: activations of the plan that no run gave a value; what needs them stays in float.
    statistics_sha256: fingerprint of the statistics they come from. data_sha256: sum of the SHA-256 of the
    samples that those were gathered from, modulo 2^256; it does not hang on order or batches. source: the
    kind of file that gave some of them, those whose calibrator is `given`.
    """

    format: Literal["onnxfq.encodings/1"] = "onnxfq.encodings/1"
    model_sha256: str
    encodings: tuple[Encoding, ...]
    without_values: tuple[str, ...] = ()
    statistics_sha256: str = ""
    data_sha256: str = ""
    source: str = ""

    @pydantic.model_validator(mode="after")
    def _encoded_once(self) -> Encodings:
        twice = first_repeated(encoding.tensor for encoding in self.encodings)
        if twice is not None:
            raise ValueError(f"tensor {twice!r} is encoded twice; keep one of the two")
        return self

    def __contains__(self, tensor: object) -> bool:
        """Tell whether there is an encoding of `tensor`."""
        return tensor in self._by_tensor

    def __getitem__(self, tensor: str) -> Encoding:
        """Return the encoding of `tensor`. Raises PlanError with the nearest names when it has none."""
        encoding = self._by_tensor.get(tensor)
        if encoding is not None:
            return encoding
        hint = nearest(tensor, self._by_tensor)
        raise PlanError(f"no encoding for tensor {tensor!r}: calibrate with this plan first{hint}")

    @cached_property
    def _by_tensor(self) -> dict[str, Encoding]:
        return {encoding.tensor: encoding for encoding in self.encodings}

    def save(self, path: str | Path) -> None:
        """Write as JSON, whole or not at all."""
        write_document(path, self)

    @staticmethod
    def load(path: str | Path) -> Encodings:
        """Read what `save` wrote. Raises PlanError in one line for any fault."""
        return read_document(path, Encodings, PlanError)
