"""`InputMoments`: what rounding needs to know about the inputs of a layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from onnxfq.calibration.weights.gptq import Factor, factorize
from onnxfq.calibration.weights.grid import Floats, Matrices, split_outputs
from onnxfq.errors import StatisticsError

Made = TypeVar("Made")

BLOCK = 512
"""Columns of a matrix of moments in one product."""


class Residual(NamedTuple):
    """Errors of the outputs W x with weights V and inputs z: |W x - V z|^2, and its slope at V.

    Attributes:
        error: |W x - V z|^2 of each output, [groups, outputs].
        slope: sum of (W x - V z) z^T, [groups, outputs, inputs]; None for zeros.
        seen: moments of z.
    """

    error: NDArray[np.float64]
    slope: Matrices | None
    seen: Matrices

    def after(self, change: Matrices) -> Residual:
        """Return the same with V + `change` in place of V."""
        moved = change @ self.seen
        slope = np.zeros_like(moved) if self.slope is None else self.slope
        error = self.error + np.einsum("goi,goi->go", moved - 2 * slope, change)
        return Residual(error, slope - moved, self.seen)

    def errors(self, lost: Floats, power: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
        """Return |W x - Q z|^2 of each output, [groups, outputs].

        Args:
            lost: V - Q.
            power: |(V - Q) z|^2 of each output, where it is known.
        """
        found = self.error + (_square(lost, self.seen) if power is None else power)
        if self.slope is not None:
            found += 2 * np.einsum("goi,goi->go", self.slope, lost)
        return np.asarray(np.maximum(found, 0.0))


@dataclass(frozen=True)
class InputMoments:
    """Second moments of the inputs x of the float model and z of the quantized model, where it is run.

    Attributes:
        plain: H = sum of x x^T, [groups, inputs, inputs].
        quantized: G = sum of z z^T; None for the same inputs in both models.
        cross: C = sum of x z^T; None likewise.
        rows: number of inputs in each sum.
        name: of the input, in messages.
        half: functions that return G and C of half of the samples; None where they are not known apart.
    """

    plain: Matrices
    rows: int
    quantized: Matrices | None = None
    cross: Matrices | None = None
    name: str = ""
    half: tuple[Callable[[], Matrices], Callable[[], Matrices]] | None = None

    @property
    def seen(self) -> Matrices:
        """Moments of the inputs that the rounded weights multiply."""
        return self.plain if self.quantized is None else self.quantized

    @property
    def of_float(self) -> InputMoments:
        """The moments of the float model alone."""
        return InputMoments(self.plain, self.rows, name=self.name)

    @cached_property
    def factor(self) -> Factor:
        """Factors of `seen`, for all layers that share these moments. Raises StatisticsError as `check`."""
        return self.check(lambda: factorize(self.seen, self.rows))

    def check(self, compute: Callable[[], Made]) -> Made:
        """Return what `compute` makes of the moments.

        Raises StatisticsError for sums that are not finite, or not positive definite, as moments are.
        """
        why = "not finite"
        try:
            if np.isfinite(self.plain).all() and np.isfinite(self.seen).all():
                return compute()
        except np.linalg.LinAlgError:
            why = "not positive definite"
        raise StatisticsError(
            f"the moments of tensor {self.name} are {why}; look for huge values in the data, and gather them "
            "again with `onnxfq observe --moments`"
        )

    def check_size(self, groups: int, inputs: int) -> None:
        """Raise StatisticsError unless the moments are of so many groups and inputs."""
        if self.plain.shape != (groups, inputs, inputs):
            raise StatisticsError(
                f"the moments of tensor {self.name} are of {self.plain.shape[0]} groups of "
                f"{self.plain.shape[1]} inputs, and the weight has {groups} of {inputs}; repair a layer "
                "whose shapes do not fit, or gather the moments again"
            )

    def residual(self, weights: Floats) -> Residual:
        """Return what the quantized model leaves of the outputs with `weights`, [groups, outputs, inputs]."""
        if self.quantized is None or self.cross is None:
            return Residual(np.zeros(weights.shape[:2]), None, self.plain)
        # The moments of x - z are small. The terms of |W x|^2 + |W z|^2 - 2 W x z^T W^T cancel.
        between = self.cross - self.quantized
        difference = self.plain - self.cross - between.swapaxes(1, 2)
        return Residual(_square(weights, difference), weights @ between, self.quantized)

    def signal(self, weights: Floats) -> float:
        """Return the sum of |W x|^2 over all outputs."""
        return float(_square(weights, self.plain).sum())


def _square(weights: Floats, moments: Matrices) -> NDArray[np.float64]:
    """Return w H w^T of each output from the upper half of the symmetric H: half the multiplications."""
    found = np.zeros(weights.shape[:2])
    for outputs in split_outputs(weights.shape):
        wide = weights[:, outputs].astype(np.float64)
        for start in range(0, weights.shape[2], BLOCK):
            part = slice(start, start + BLOCK)
            product = wide[..., :start] @ moments[:, :start, part]
            product *= 2
            product += wide[..., part] @ moments[:, part, part]
            found[:, outputs] += np.einsum("goi,goi->go", product, wide[..., part])
    return found
