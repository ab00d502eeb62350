"""Names of the ways to round weights, in recipes and plans."""

from __future__ import annotations

from typing import Annotated

import pydantic

from onnxfq.calibration.weights import METHODS
from onnxfq.errors import nearest

NEAREST = "nearest"
"""Every weight takes the nearest number of its grid."""

ROUNDINGS = (NEAREST, *METHODS)


def _check(name: str) -> str:
    if name not in ROUNDINGS:
        hint = nearest(name, ROUNDINGS) or f"; known: {', '.join(ROUNDINGS)}"
        raise ValueError(f"unknown rounding of weights {name!r}{hint}")
    return name


RoundingMethod = Annotated[str, pydantic.AfterValidator(_check)]
