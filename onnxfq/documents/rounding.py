"""Names of the ways to round weights, in recipes and plans."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Annotated

import pydantic

from onnxfq.calibration.weights import METHODS
from onnxfq.errors import nearest

NEAREST = "nearest"
"""Every weight takes the nearest number of its grid."""

AUTO = "auto"
"""NEAREST, unless `quantize` finds that quantized weights make half of the noise; for recipes only."""

ROUNDINGS = (NEAREST, *METHODS)
RECIPE_ROUNDINGS = (AUTO, *ROUNDINGS)


def _check(name: str, known: Collection[str]) -> str:
    if name not in known:
        hint = nearest(name, known) or f"; known: {', '.join(known)}"
        raise ValueError(f"unknown rounding of weights {name!r}{hint}")
    return name


RoundingMethod = Annotated[str, pydantic.AfterValidator(partial(_check, known=ROUNDINGS))]
RecipeRounding = Annotated[str, pydantic.AfterValidator(partial(_check, known=RECIPE_ROUNDINGS))]
