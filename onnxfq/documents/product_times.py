"""`ProductTimes`: measured times of products and convolutions in float and in few bits, and between them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import numpy as np
import pydantic
from numpy.typing import NDArray

from onnxfq.errors import RecipeError
from onnxfq.support.records import Document, Record, Size, read_document

FLOAT_FORM = "float"
"""Form of a product that is not quantized."""

SHIPPED = Path(__file__).parents[1] / "targets" / "tensorrt" / "times"
"""Folder of the shipped tables, each with the compute capability of its GPU as its name."""

NEAREST_ROWS = 3
"""Measured products that a time between them is taken from."""


ProductKind = Literal["product", "pointwise", "convolution", "depthwise"]


class ProductSize(Record):
    """A product of matrices, or a convolution as one: rows by summed elements, by columns, in each group."""

    kind: ProductKind
    groups: Size
    rows: Size
    columns: Size
    summed: Size

    @property
    def logarithms(self) -> list[float]:
        """Base-2 logarithms of rows and of what makes bytes: groups, columns, summed elements."""
        return [float(np.log2(size)) for size in (self.rows, self.groups, self.columns, self.summed)]

    @property
    def multiplies(self) -> float:
        """Number of multiply-adds."""
        return float(self.groups) * self.rows * self.columns * self.summed


class TimedProduct(ProductSize):
    """A measured product.

    Attributes:
        seconds: of a run by form: FLOAT_FORM, or the number format of the activation.
        crossing: numbers of a tensor around it, and its seconds between float and few bits.
    """

    seconds: dict[str, float]
    crossing: tuple[Size, Annotated[float, pydantic.Field(gt=0, allow_inf_nan=False)]]

    @pydantic.field_validator("seconds")
    @classmethod
    def _is_positive(cls, given: dict[str, float]) -> dict[str, float]:
        if FLOAT_FORM not in given or not all(0 < one < float("inf") for one in given.values()):
            raise ValueError(f"seconds need {FLOAT_FORM!r}, and positive finite numbers")
        return given


class FoundTimes(NamedTuple):
    """Seconds of a product in float and in few bits, and whether these were measured for its very size."""

    full: float
    low: float
    is_measured: bool


class ProductTimes(Document):
    """Times of one machine (`.json`), by which a plan leaves in float what few bits do not make faster.

    Attributes:
        device: what was measured, with its compute capability or processor.
        how: what ran the products.
        date: of the measurement.
        versions: releases of what took part.
        float_type: of FLOAT_FORM.
        errors: by form the median and 90% of the relative error of times in few bits by times in float, of
            products that were left out of the table.
        rows: the measured products.
    """

    format: Literal["onnxfq.times/1"] = "onnxfq.times/1"
    device: str
    how: str
    date: str
    versions: dict[str, str]
    float_type: str
    errors: dict[str, tuple[float, float]]
    rows: Annotated[tuple[TimedProduct, ...], pydantic.Field(min_length=1)]

    @property
    def name(self) -> str:
        """Device and date, for the metadata of files."""
        return f"{self.device}, {self.date}"

    def find(self, product: ProductSize, form: str) -> FoundTimes | None:
        """Return the times of `product`; None if the table has too few of its kind in this form.

        A size between others takes the seconds for each multiply-add of the nearest ones, by the distance of
        the logarithms, as their weighted geometric mean.
        """
        rows = [row for row in self.rows if row.kind == product.kind and form in row.seconds]
        if len(rows) < NEAREST_ROWS:
            return None
        away = np.abs(np.array([row.logarithms for row in rows]) - product.logarithms).sum(axis=1)
        times = np.array([[row.seconds[one] for one in (FLOAT_FORM, form)] for row in rows])
        costs = times / np.array([[row.multiplies] for row in rows])
        full, low = (float(one) for one in _find_between(away, costs) * product.multiplies)
        return FoundTimes(full, low, not away.all())

    def cross(self, numbers: int, *, convolves: bool) -> float:
        """Return the seconds that a tensor of so many numbers takes between float and few bits.

        Around a convolution its layout may change too: the rows of other products do not tell its time.
        """
        rows = [row.crossing for row in self.rows if (row.kind != "product") == convolves]
        sizes, seconds = np.array(rows or [row.crossing for row in self.rows]).T
        away = np.abs(np.log2(sizes) - np.log2(max(numbers, 1)))
        return float(_find_between(away, (seconds / sizes)[:, None])[0]) * numbers

    def with_errors(self) -> ProductTimes:
        """Return the table with its errors, each row judged by the others of its kind.

        Raises RecipeError if no row has enough others.
        """
        found: dict[str, list[float]] = {}
        for place, row in enumerate(self.rows):
            others = self.model_copy(update={"rows": self.rows[:place] + self.rows[place + 1 :]})
            for form in row.seconds.keys() - {FLOAT_FORM}:
                if (told := others.find(row, form)) is not None and not told.is_measured:
                    ratio = row.seconds[form] / row.seconds[FLOAT_FORM]
                    found.setdefault(form, []).append(abs(told.low / told.full / ratio - 1))
        if not found:
            raise RecipeError(f"times of {self.device}: no product has {NEAREST_ROWS} others; measure more")
        return self.model_copy(update={"errors": _summarize(found)})


def load_times(name: str) -> ProductTimes:
    """Return a table by its file, or a shipped one by name. Raises RecipeError with the shipped names."""
    if name.endswith(".json"):
        return read_document(name, ProductTimes, RecipeError)
    shipped = {path.stem: path for path in SHIPPED.glob("*.json")}
    if name not in shipped:
        known = f"the shipped ones are {', '.join(sorted(shipped))}" if shipped else "none is shipped"
        raise RecipeError(
            f"no table of times is called {name!r}: {known}; give a .json file of scripts/gpu_times.py"
        )
    return read_document(shipped[name], ProductTimes, RecipeError)


def _find_between(away: NDArray[np.float64], costs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean of the logarithms of the nearest rows of `costs`, weighted by 1 / `away`, as a cost."""
    nearest = np.argsort(away, kind="stable")[:NEAREST_ROWS]
    if not away[nearest[0]]:
        return np.asarray(costs[nearest[0]])
    return np.asarray(np.exp(np.average(np.log(costs[nearest]), axis=0, weights=1 / away[nearest])))


def _summarize(found: Mapping[str, list[float]]) -> dict[str, tuple[float, float]]:
    return {form: (float(np.median(one)), float(np.quantile(one, 0.9))) for form, one in found.items()}
