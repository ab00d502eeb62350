"""`Encoding`: quantization parameters of one tensor; `Encodings`: of all tensors of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pydantic
from numpy.typing import ArrayLike, NDArray

from onnxfq.calibration.calibrators import MINMAX, Calibrator
from onnxfq.documents.array_file import (
    INLINE_LIMIT,
    KEEP_ARRAYS,
    ScaleField,
    ZeroPointField,
    array_path,
    cast,
    restore_arrays,
    write_with_arrays,
)
from onnxfq.errors import PlanError, SpecError, nearest
from onnxfq.graph.saturation import Ends
from onnxfq.numerics.affine import fake_quantize, quantize
from onnxfq.numerics.block_scales import dynamic_fake_quantize
from onnxfq.numerics.qtypes import QTYPES
from onnxfq.numerics.spec import QuantSpec
from onnxfq.support.records import Record, first_repeated, parse, read_content, write_document


class Encoding(Record):
    """Scale and zero point of one tensor under a `QuantSpec`.

    Attributes:
        param_shape: [] per tensor, [C] per axis, x's rank when blocked (each axis divided by its block,
            rounded up).
        scale: float32 of that shape; every scale is finite and positive. Like zero_point read-only, a flat
            list in C order in files, and empty for a dynamic tensor.
        zero_point: int32 of that shape, float32 if the spec has fractional ones.
        global_scale: for scale_type e4m3, the factor that all its scales share.
        calibrator: how the range was found.
    """

    tensor: str
    spec: QuantSpec
    param_shape: tuple[int, ...]
    scale: ScaleField
    zero_point: ZeroPointField
    global_scale: float | None = None
    calibrator: Calibrator = MINMAX

    @pydantic.model_validator(mode="after")
    def _valid(self) -> Encoding:
        if self.spec.dynamic:
            if self.param_shape or self.scale.size or self.zero_point.size:
                raise ValueError(
                    f"tensor {self.tensor!r}: {self.spec} has dynamic scales; leave param_shape, scale and "
                    "zero_point empty"
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
        count = prod(self.param_shape)
        if self.scale.size != count or self.zero_point.size != count:
            raise ValueError(
                f"tensor {self.tensor!r}: param_shape {list(self.param_shape)} wants {count} values, "
                f"got {self.scale.size} scales and {self.zero_point.size} zero points"
            )

    def _check_zero_points(self) -> None:
        qtype, zero_point = self.spec.qtype, self.zero_point
        least, most = (zero_point.min(), zero_point.max()) if zero_point.size else (0, 0)
        if not qtype.qmin <= least <= most <= qtype.qmax:
            raise ValueError(
                f"tensor {self.tensor!r}: every zero_point must lie in {qtype} [{qtype.qmin}, {qtype.qmax}]"
            )
        if self.spec.symmetric and (least, most) != (0, 0):
            raise ValueError(f"tensor {self.tensor!r}: every zero_point of a symmetric spec must be 0")
        if self.spec.equalized and least != most:
            raise ValueError(f"tensor {self.tensor!r}: equalized channels must share one zero_point")
        if self.spec.zero_point == "integer" and zero_point.dtype != np.int32:
            found = zero_point[zero_point != np.rint(zero_point)][0]
            raise ValueError(
                f"tensor {self.tensor!r}: every zero_point must be an integer, found {found}; round "
                "it, or set zero_point: fractional in its spec"
            )

    def _check_scales(self) -> None:
        scale, shared = self.scale, self.global_scale
        if (shared is not None) != (self.spec.scale_type == "e4m3"):
            raise ValueError(
                f"tensor {self.tensor!r}: global_scale belongs to scale_type e4m3, found {shared} with "
                f"{self.spec.scale_type}; calibrate again"
            )
        if shared is not None:
            scale = np.append(scale, cast(np.asarray(shared), np.float32))
        # Every comparison with NaN is false.
        if scale.size and not 0 < scale.min() <= scale.max() < np.inf:
            raise ValueError(f"tensor {self.tensor!r}: every scale must be finite and positive")
        if self.spec.equalized and np.unique(np.frexp(scale)[0]).size > 1:
            raise ValueError(f"tensor {self.tensor!r}: equalized scales must differ by powers of two")
        if self.spec.scale_type == "float32":
            return
        wrong = np.flatnonzero(self.scale != self._round_to_scale_type())
        if wrong.size:
            rule = "a power of two" if shared is None else f"an e4m3 number times {shared}"
            raise ValueError(
                f"tensor {self.tensor!r}: every scale must be {rule}, found {self.scale.item(wrong[0])}; "
                "calibrate again"
            )

    def _round_to_scale_type(self) -> NDArray[np.float32]:
        """Return the scales of scale_type e8m0 or e4m3 rounded to numbers of their type."""
        if self.global_scale is None:
            return np.asarray(np.ldexp(np.float32(1), np.frexp(self.scale)[1] - 1), np.float32)
        return np.asarray(self.block_scales.astype(np.float32) * np.float32(self.global_scale))

    @staticmethod
    def of(
        tensor: str,
        spec: QuantSpec,
        scale: NDArray[np.float32],
        zero_point: NDArray[Any],
        global_scale: float | None = None,
    ) -> Encoding:
        """Return an encoding from arrays of one shape. Raises SpecError if a rule is broken."""
        arrays = {"param_shape": scale.shape, "scale": scale, "zero_point": zero_point}
        return _make({"tensor": tensor, "spec": spec, **arrays, "global_scale": global_scale})

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Encoding:
        """Return a copy with the values of `update`. Raises SpecError as `of`."""
        if update is None or update.keys() <= {"tensor", "calibrator"}:
            return super().model_copy(update=update, deep=deep)
        return _make(self.__dict__ | dict(update))

    def __eq__(self, other: object) -> bool:
        """Tell whether all fields are equal, scales and zero points to the bit."""
        return isinstance(other, Encoding) and self._key() == other._key()

    def __hash__(self) -> int:
        """Return a hash of the fields that `__eq__` compares."""
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        values = self.__dict__.values()
        return tuple(v.tobytes() if isinstance(v, np.ndarray) else v for v in values)

    @staticmethod
    def of_running_model(tensor: str, spec: QuantSpec, global_scale: float | None = None) -> Encoding:
        """Return the encoding of a dynamic tensor: no scales except the global one of scale_type e4m3."""
        none = np.zeros(0, np.float32)
        return Encoding(
            tensor=tensor, spec=spec, param_shape=(), scale=none, zero_point=none, global_scale=global_scale
        )

    @property
    def block_scales(self) -> NDArray[Any]:
        """The scales of scale_type e4m3 without the global factor, as float8_e4m3fn of `param_shape`."""
        e4m3 = QTYPES["float8e4m3fn"]
        return quantize(self.scale, np.float32(self.global_scale or 1.0), qtype=e4m3)

    def fake_quantize(self, x: ArrayLike) -> NDArray[Any]:
        """Return x rounded to the grid, in its type and shape, as the node of a fake-quant model does."""
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
        return fake_quantize(x, self.scale, self.zero_point, qtype=spec.grid, granularity=spec.granularity)

    @property
    def rmin(self) -> float:
        """Smallest real number on the grid of any group; NaN when dynamic."""
        return self._reach(self.spec.grid.qmin, np.min)

    @property
    def rmax(self) -> float:
        """Largest real number on the grid of any group; NaN when dynamic."""
        return self._reach(self.spec.grid.qmax, np.max)

    def _reach(self, limit: float, of: Callable[[NDArray[np.float64]], Any]) -> float:
        steps = limit - self.zero_point.astype(np.float64)
        return float("nan") if self.spec.dynamic else float(of(steps * self.scale.astype(np.float64)))


def _make(fields: dict[str, Any]) -> Encoding:
    try:
        return Encoding(**fields)
    except pydantic.ValidationError as fault:
        message: str = fault.errors(include_url=False)[0]["msg"]
        raise SpecError(message.removeprefix("Value error, ")) from None


class Encodings(Record):
    """The encodings of all quantized tensors of one model (`.encodings.json`).

    Attributes:
        without_values: activations of the plan without a value in any run; nodes that need them stay in
            float.
        unshared: bridges of the plan whose tensors keep separate scales; they stay in float.
        apart: results of the plan that join ranges far apart; they stay in float.
        statistics_sha256: fingerprint of the statistics of the encodings.
        data_sha256: sum of the SHA-256 of the calibration samples modulo 2^256; it does not depend on order
            or batches.
        source: kind of the file that gave the encodings with calibrator `external`.
        unreached: ends of the Clip and Relu in place of earlier quantizers that no observed value passes, by
            output; inserting removes them.
        rounding: methods by which weights were rounded to these scales; empty if all were rounded to nearest.
    """

    format: Literal["onnxfq.encodings/1"] = "onnxfq.encodings/1"
    model_sha256: str
    encodings: tuple[Encoding, ...]
    without_values: tuple[str, ...] = ()
    unshared: tuple[str, ...] = ()
    apart: tuple[str, ...] = ()
    statistics_sha256: str = ""
    data_sha256: str = ""
    source: str = ""
    unreached: dict[str, Ends] = {}
    rounding: str = ""

    @pydantic.model_serializer(mode="wrap")
    def _leave_out_apart(self, write: pydantic.SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Write the rare field only where it says something: files of most models are as they were."""
        content: dict[str, Any] = write(self)
        return content if self.apart else {name: one for name, one in content.items() if name != "apart"}

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
        """Return the encoding of `tensor`. Raises PlanError with the nearest names if there is none."""
        encoding = self._by_tensor.get(tensor)
        if encoding is not None:
            return encoding
        hint = nearest(tensor, self._by_tensor)
        raise PlanError(f"no encoding for tensor {tensor!r}: calibrate with this plan first{hint}")

    @cached_property
    def _by_tensor(self) -> dict[str, Encoding]:
        return {encoding.tensor: encoding for encoding in self.encodings}

    def save(self, path: str | Path) -> tuple[Path, ...]:
        """Write as JSON, and over INLINE_LIMIT scales as an .npz next to it; whole or not at all.

        Returns the written paths.
        """
        if sum(encoding.scale.size for encoding in self.encodings) <= INLINE_LIMIT:
            write_document(path, self)
            return (Path(path),)
        write_with_arrays(path, self.model_dump(context=KEEP_ARRAYS))
        return Path(path), array_path(path)

    @staticmethod
    def load(path: str | Path) -> Encodings:
        """Return the encodings that `save` wrote. Raises PlanError in one line for any fault."""
        content = restore_arrays(read_content(path, PlanError), Path(path))
        return parse(content, Encodings, PlanError, str(path))
