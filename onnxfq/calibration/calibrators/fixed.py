"""Fixed ranges: given by the user, or known from the operator that produces the tensor."""

from __future__ import annotations

from onnxfq.calibration.calibrators.method_parameters import Parameter, require_numbers, spell
from onnxfq.calibration.statistics import TensorStatistics
from onnxfq.errors import nearest
from onnxfq.graph.bounds import KNOWN_RANGES
from onnxfq.numerics.spec import QuantSpec

_LARGEST = 3.4028234663852886e38  # of float32


def fix_range(statistics: TensorStatistics, spec: QuantSpec, low: float, high: float) -> tuple[float, float]:
    """Return (low, high) without regard to `statistics`."""
    return low, high


def known(statistics: TensorStatistics, spec: QuantSpec, op_type: str) -> tuple[float, float]:
    """Return the range of the outputs of `op_type` without regard to `statistics`."""
    return KNOWN_RANGES[op_type]


def check_range(parameters: tuple[Parameter, ...]) -> str:
    """Return the rule that the parameters of `range` break; empty if valid."""
    low, high = require_numbers(parameters, 2)
    fits = -_LARGEST <= low < high <= _LARGEST
    return "" if fits else "give two finite numbers, the smaller first, as in range:-1,1"


def check_known(parameters: tuple[Parameter, ...]) -> str:
    """Return the rule that the parameter of `known` breaks; empty if valid."""
    if len(parameters) == 1 and parameters[0] in KNOWN_RANGES:
        return ""
    op_type = ",".join(map(spell, parameters))
    return f"no range is known for outputs of {op_type!r}{nearest(op_type, KNOWN_RANGES)}"
