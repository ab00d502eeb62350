"""AIMET's document: the affine quantizer, its settings, and analyzers, which turn data into a range.

A user's own analyzer is a subclass of `onnxfq.torch.Observer`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from onnxfq.errors import SpecError
from onnxfq.numerics.qtypes import qtype_of_integers
from onnxfq.numerics.spec import QuantSpec
from onnxfq.torch import encodings
from onnxfq.torch.compat.aimet_tensor import AffineEncoding
from onnxfq.torch.compat.wrapper import Wrapper
from onnxfq.torch.observers import Observer
from onnxfq.torch.quantizer import FakeQuantize


class EncodingAnalyzer:
    """Name of an observer and of its calibrator.

    Attributes:
        name: observer of `FakeQuantize`.
        calibrator: name in `CALIBRATORS`.
    """

    name, calibrator = "minmax", "minmax"

    def __init__(self, shape: Sequence[int] = (), block_size: Sequence[int] | None = None) -> None:
        """Take AIMET's arguments; the quantizer's own shape counts."""


class MinMaxEncodingAnalyzer(EncodingAnalyzer):
    """Smallest and largest value."""


class SqnrEncodingAnalyzer(EncodingAnalyzer):
    """Range of least error, AIMET's `tf_enhanced`; one scale per tensor, or the last tensor of a weight."""

    name, calibrator = "histogram", "sqnr"

    def __init__(self, shape: Sequence[int] = (), *arguments: object, **keywords: object) -> None:
        """Use the histogram of the last tensor where several scales are needed."""
        super().__init__(shape)
        self.name = "histogram" if all(n == 1 for n in shape) else "latest"


class PercentileEncodingAnalyzer(SqnrEncodingAnalyzer):
    """Range without 100 - percentile % of the values at each end."""

    def __init__(self, shape: Sequence[int] = (), num_bins: int = 2048, percentile: float = 100) -> None:
        """Cut at each end; the number of bins has no effect, because histograms here are exact to 1/128."""
        super().__init__(shape)
        self.calibrator = f"percentile_each_end:{percentile}"


def _end_property(name: str, other: str) -> property:
    return property(
        lambda self: self._end(name),
        lambda self, value: self._set_end(name, value),
        doc=f"Parameter from which scale and offset follow, as `{other}`.",
    )


class AffineQuantizer(Wrapper):
    """A `FakeQuantize` that learns its range, with AIMET's arguments; a new width keeps min and max."""

    min, max = _end_property("min", "max"), _end_property("max", "min")

    def __init__(
        self,
        shape: Sequence[int],
        bitwidth: int | None = None,
        symmetric: bool = False,
        encoding_analyzer: EncodingAnalyzer | Observer | None = None,
        block_size: Sequence[int] | None = None,
        *,
        qmin: int | None = None,
        qmax: int | None = None,
        zero_point_shift: float = 0.0,
    ) -> None:
        """Make a quantizer. Raises SpecError for contradicting arguments.

        Args:
            shape: shape of min and max, aligned with the input at the last axis; each size divides it.
            bitwidth: width of the integers, signed if symmetric; or give qmin and qmax.
            symmetric: whether the offset is fixed.
            encoding_analyzer: range from data, by default the smallest and largest value.
            block_size: follows from the shape; one that does not fit the first input is an error.
            qmin: least integer.
            qmax: largest integer.
            zero_point_shift: 0.5 puts 0 between two steps.
        """
        super().__init__()
        if (bitwidth is None) == (qmin is None or qmax is None):
            raise SpecError("give either bitwidth, or qmin and qmax")
        if bitwidth is not None:
            qmin = -(1 << (bitwidth - 1)) if symmetric else 0
            qmax = qmin + (1 << bitwidth) - 1
        assert qmin is not None and qmax is not None
        self.shape, self.block_size = tuple(shape), block_size
        self.encoding_analyzer = encoding_analyzer or MinMaxEncodingAnalyzer(shape)
        self.zero_point_shift = zero_point_shift
        self._ends: set[str] = set()
        self._build(qmin, qmax, symmetric)
        self._sealed = True

    def _build(self, qmin: int, qmax: int, symmetric: bool) -> None:
        """Make the quantizer for these integers; it keeps the parameters of the one before."""
        # Unsigned symmetric integers lie around their middle.
        self._centre = (qmin + qmax + 1) // 2 if symmetric else 0
        qtype = qtype_of_integers(qmin - self._centre, qmax - self._centre)
        given = self.encoding_analyzer
        named = isinstance(given, EncodingAnalyzer)
        observer, calibrator = (given.name, given.calibrator) if named else (given, "minmax")
        spec, shift = QuantSpec(qtype=qtype, symmetric=symmetric), self.zero_point_shift
        made = FakeQuantize(spec, observer, calibrator=calibrator, zero_point_shift=shift, shape=self.shape)
        made.learned = "range"
        before = self._modules.get("quantizer")
        for name, value in (("rmin", -1.0), ("rmax", 1.0)):
            start = torch.full(self.shape, value)
            parameter = nn.Parameter(start) if before is None else getattr(before, name)
            parameter.data = parameter.data.reshape(self.shape)
            setattr(made, name, parameter)
        if before is not None and before.is_initialized:
            made.scale, made.zero_point = torch.ones(self.shape), torch.zeros(self.shape, dtype=torch.int32)
            made.overwrite = before.overwrite
        self.quantizer = made

    def is_initialized(self) -> bool:
        """Tell whether the range is known."""
        return self.quantizer.is_initialized

    def get_scale(self) -> Tensor | None:
        """Return the scale in the quantizer's shape; None without a range."""
        return self.quantizer._params()[0].reshape(self.shape) if self.is_initialized() else None

    def get_offset(self) -> Tensor | None:
        """Return minus the zero point."""
        if not self.is_initialized():
            return None
        zeros = self.quantizer._params()[1] + self.zero_point_shift
        return -(zeros + self._centre).reshape(self.shape)

    def get_min(self) -> Tensor | None:
        """Return the least number of the grid."""
        return self._value_of(self.quantizer.quant_min)

    def get_max(self) -> Tensor | None:
        """Return the largest number of the grid."""
        return self._value_of(self.quantizer.quant_max)

    def _value_of(self, integer: int) -> Tensor | None:
        if not self.is_initialized():
            return None
        scale, zeros = self.quantizer._params()
        return ((integer - zeros) * scale).reshape(self.shape)

    def get_encodings(self) -> AffineEncoding | None:
        """Return the encoding; None without a range."""
        scale, offset = self.get_scale(), self.get_offset()
        if scale is None or offset is None:
            return None
        return AffineEncoding(scale, offset, self.bitwidth, self.symmetric, self.quantizer, self._centre)

    def set_range(self, min: Tensor | float | None, max: Tensor | float | None) -> None:
        """Set the parameters; None keeps one."""
        for name, value in (("min", min), ("max", max)):
            if value is not None:
                self._set_end(name, torch.as_tensor(value))

    def _end(self, name: str) -> Tensor:
        end: Tensor = getattr(self.quantizer, "r" + name)
        return end if end.shape == self.shape else end.reshape(self.shape)

    def _set_end(self, name: str, value: Tensor) -> None:
        inner, own = self.quantizer, getattr(self.quantizer, "r" + name)
        target = own.shape
        data = value.detach().to(own).expand(self.shape).reshape(target).clone()
        if isinstance(value, nn.Parameter):
            value.data = data
            setattr(inner, "r" + name, value)
        else:
            own.data = data
        self._ends.add(name)
        if len(self._ends) == 2 and not inner.is_initialized:
            inner.scale = torch.ones(target)
            inner.zero_point = torch.zeros(target, dtype=torch.int32)

    @property
    def qmin(self) -> int:
        """Least integer."""
        return self.quantizer.quant_min + self._centre

    @property
    def qmax(self) -> int:
        """Largest integer."""
        return self.quantizer.quant_max + self._centre

    @property
    def bitwidth(self) -> int:
        """Width of the integers."""
        return (self.qmax - self.qmin).bit_length()

    @bitwidth.setter
    def bitwidth(self, bits: int) -> None:
        low = -(1 << (bits - 1)) if self.signed else 0
        self._build(low, low + (1 << bits) - 1, self.symmetric)

    @property
    def symmetric(self) -> bool:
        """Whether the offset is fixed."""
        return self.quantizer.spec.symmetric

    @symmetric.setter
    def symmetric(self, value: bool) -> None:
        self._build(self.qmin, self.qmax, value)

    @property
    def signed(self) -> bool:
        """Whether the integers may be negative."""
        return self.qmin < 0

    @signed.setter
    def signed(self, value: bool) -> None:
        shift = (1 << (self.bitwidth - 1)) * (int(self.signed) - int(value))
        self._build(self.qmin + shift, self.qmax + shift, self.symmetric)

    def allow_overwrite(self, mode: bool) -> None:
        """Say whether `compute_encodings` may replace the range."""
        self.quantizer.allow_overwrite(mode)

    @contextlib.contextmanager
    def compute_encodings(self) -> Iterator[None]:
        """Observe inside the block, and pass on what is quantized by each batch's own range."""
        with encodings.compute_encodings(self.quantizer, quantized=True):
            yield
