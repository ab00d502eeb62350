"""`Moments`: what statistics know about the inputs of layers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, reduce
from pathlib import Path

import numpy as np

from onnxfq.calibration.statistics.input_kinds import Ends
from onnxfq.calibration.statistics.input_means import ENDS
from onnxfq.calibration.statistics.kind import InputKey
from onnxfq.calibration.statistics.moments import MomentSums
from onnxfq.calibration.statistics.second_moments import MOMENTS, OBSERVE_MOMENTS, InputSums
from onnxfq.calibration.statistics.statistics import Statistics
from onnxfq.calibration.weights.moments import InputMoments
from onnxfq.data import DataDigest
from onnxfq.errors import StatisticsError, nearest


@dataclass(frozen=True)
class Moments:
    """Second moments of the inputs of layers over a data set, or the ranges of these inputs alone.

    The sums are integers on grids that the ranges decide, so that parts of the data with the same ranges
    merge to the sums of the whole, in any order.

    Attributes:
        statistics: that hold them, with `merge` and `save`.
    """

    statistics: Statistics

    @staticmethod
    def load(path: str | Path) -> Moments:
        """Read a file; the sums stay in it. Raises StatisticsError in one line for any fault."""
        moments = Moments(Statistics.load(path))
        if not moments.ranges:
            raise StatisticsError(f"{path} holds no moments; make it with {OBSERVE_MOMENTS}")
        return moments

    @cached_property
    def sums(self) -> Mapping[InputKey, InputSums]:
        """The moments by input; empty if there are ranges alone."""
        return self.statistics.of_kind(MOMENTS)

    @cached_property
    def ranges(self) -> Mapping[InputKey, Ends]:
        """Magnitudes of the largest and of the least value of each channel, by input."""
        return {key: value.ends for key, value in (self.statistics.of_kind(ENDS) | dict(self.sums)).items()}

    @property
    def whole(self) -> DataDigest:
        """The data whose ranges these are."""
        return self.statistics.whole or self.statistics.data

    @property
    def origin(self) -> str:
        """The data in words, behind the name of a method."""
        data = self.statistics.data
        return f" by moments of {data.samples} samples with digest {data.hex[:12]}"

    def of(self, key: InputKey) -> MomentSums:
        """Return the sums of an input. Raises StatisticsError if they were not gathered."""
        if key in self.sums:
            return self.sums[key].read()
        if not self.sums:
            raise StatisticsError(
                "the file has ranges and no moments; give it to `onnxfq observe --moments --ranges-from` to "
                "gather them"
            )
        tensor = key[0]
        hint = nearest(tensor, {name for name, _ in self.sums} - {tensor})
        raise StatisticsError(
            f"there are no moments for tensor {tensor!r} as {key[1].op_type} reads it: gather them for this "
            f"recipe with {OBSERVE_MOMENTS}{hint}"
        )

    def of_layer(self, keys: Iterable[InputKey]) -> InputMoments:
        """Return the moments over all inputs of a layer."""
        found = {key: self.of(key) for key in keys}
        return join_sums(found.values(), f"{next(iter(found))[0]!r} in {self.statistics.source}")

    def check_model(self, sha256: str) -> None:
        """Raise StatisticsError unless the moments are of the model with this hash."""
        found = self.statistics.model_sha256
        if found != sha256:
            raise StatisticsError(
                f"the moments were gathered from a model with SHA-256 {found[:12]}, this one has "
                f"{sha256[:12]}; gather them from this model with {OBSERVE_MOMENTS}, and let the recipe "
                "change no channels (smooth: none, equalize: none or depthwise)"
            )

    def check_whole(self) -> None:
        """Raise StatisticsError for moments of an interrupted run, or of a part of the data."""
        self.statistics.check_complete()
        data, whole = self.statistics.data, self.whole
        if data.samples != whole.samples:
            raise StatisticsError(
                f"the moments are of {data.samples} of {whole.samples} samples; merge them with the other "
                "parts: `onnxfq observe --merge`"
            )
        if data != whole:
            raise StatisticsError(
                f"{self.statistics.source}: the moments are of {data.samples} samples with digest "
                f"{data.hex[:12]}, and their ranges of others, with {whole.hex[:12]}; gather both from the "
                "same data"
            )

    def check_inputs(self, keys: Iterable[InputKey]) -> None:
        """Raise StatisticsError for an input without ranges."""
        for tensor, view in keys:
            if (tensor, view) not in self.ranges:
                raise StatisticsError(
                    f"the file has no ranges for tensor {tensor!r} as {view.op_type} reads it; gather them "
                    "for this recipe with `onnxfq observe --moments --ranges`"
                )


def join_sums(sums: Iterable[MomentSums], name: str) -> InputMoments:
    """Return the moments of a layer over the sums of all its inputs; `name` of a tensor is for messages.

    Raises StatisticsError for inputs of different sizes.
    """
    found = list(sums)
    sizes = {one.left.shape for one in found}
    if len(sizes) > 1:
        raise StatisticsError(f"the moments of tensor {name} and others of its layer differ in size: {sizes}")
    return InputMoments(
        reduce(np.add, (one.matrix() for one in found)), sum(one.rows for one in found), name=name
    )
