"""AIMET's document: construction of an affine quantizer with the parameters `min` and `max`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from onnxfq.errors import SpecError
from onnxfq.numerics.qtypes import qtype_of_integers
from onnxfq.numerics.spec import QuantSpec
from onnxfq.torch.compat.aimet_analyzers import EncodingAnalyzer, MinMaxEncodingAnalyzer
from onnxfq.torch.compat.wrapper import Wrapper
from onnxfq.torch.observers import Observer
from onnxfq.torch.quantizer import FakeQuantize


class AffineModule(Wrapper):
    """A `FakeQuantize` that learns its range, with AIMET's arguments."""

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
