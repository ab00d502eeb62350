"""`correct_biases`: biases that make up for the mean error of rounded weights.

Source: Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias Correction" (2019), section
4.2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray

from onnxfq.calibration.statistics.input_kinds import ObservedInput
from onnxfq.calibration.statistics.input_means import ENDS, MEANS
from onnxfq.calibration.statistics.kind import InputKey as Key
from onnxfq.calibration.weights import MatrixView
from onnxfq.choices import MOMENTS_MEMORY
from onnxfq.data import Feed
from onnxfq.documents.encodings import Encodings
from onnxfq.documents.plan import Plan
from onnxfq.execution.float_runs import FloatRuns
from onnxfq.graph.constants import weight_array
from onnxfq.graph.external.scratch_file import weights_stored_in
from onnxfq.graph.model import Model
from onnxfq.graph.signature import with_outputs
from onnxfq.numerics.metrics import ratio_db
from onnxfq.passes.replace_constants import BiasFinder, BiasPlace, shift_biases
from onnxfq.remedies.weighted_layers import find_layers
from onnxfq.stages.calibrate import select_calibrated_part
from onnxfq.stages.inputs import QuantizeSession
from onnxfq.stages.insert import insert_fake_quantize
from onnxfq.stages.options import RunOptions
from onnxfq.stages.score import score_models
from onnxfq.targets.target import target_by_name

LEAST_GAIN_DB = 0.1
"""Gain of the outputs below which no bias changes."""

CONFIRMING = 32
"""Most samples that confirm the gain, at most half of those that are kept; the means come from others."""


@dataclass(frozen=True)
class BiasCorrection:
    """Result of `correct_biases`.

    Attributes:
        model: the float model with the corrected biases; the given one if nothing was gained.
        layers: nodes whose biases were corrected, or would have been.
        left: reasons of the nodes and weights whose biases stay, by name.
        before_db: SQNR of the outputs, or of the logits, without correction, in dB.
        after_db: the same with it.
        why: the reason why nothing was tried, empty otherwise.
    """

    model: Model
    layers: tuple[str, ...] = ()
    left: dict[str, str] = field(default_factory=dict)
    before_db: float = np.nan
    after_db: float = np.nan
    why: str = ""

    @property
    def is_kept(self) -> bool:
        """Whether the outputs gain enough."""
        return not self.why and self.after_db >= self.before_db + LEAST_GAIN_DB

    def mark(self, proto: onnx.ModelProto) -> None:
        """Note the correction in the metadata of `proto`, which is changed in place."""
        if self.is_kept:
            proto.metadata_props.add(key="onnxfq.bias_correction", value="auto")

    def lines(self, shown: int = 6) -> list[str]:
        """Return a summary: the gain, and the layers that were left."""
        if self.why:
            return [f"biases     not corrected: {self.why}"]
        done = "corrected" if self.is_kept else "not corrected, because the outputs gain too little"
        lines = [
            f"biases     {done}: {len(self.layers)} layers, {self.before_db:.1f} -> {self.after_db:.1f} dB "
            "on samples that gave no means"
        ]
        lines += [f"biases     {name!r} stays: {why}" for name, why in list(self.left.items())[:shown]]
        return lines + ([f"           and {len(self.left) - shown} more"] if len(self.left) > shown else [])


class _Target(NamedTuple):
    """A node whose outputs can be shifted."""

    node: str
    weight: str
    view: MatrixView
    key: Key
    place: BiasPlace


def correct_biases(
    inputs: QuantizeSession, rounded: Model, plan: Plan, encodings: Encodings, options: RunOptions
) -> BiasCorrection:
    """Add (W - Wq) E[x] to the biases of `rounded` if that raises the SQNR of the outputs by LEAST_GAIN_DB.

    W is the float weight, Wq its fake-quantized value, and E[x] the mean input of the float model over all
    positions and samples, padding included. Some samples confirm that means of all others raise the SQNR; the
    result then has the means of all. They are sums of integers: order, batches and threads change no bit.

    Args:
        inputs: the float model and its data.
        rounded: the same model with the weights to quantize.
        plan: of the model.
        encodings: of the plan.
        options: threads and device.

    Raises StatisticsError for an input of a layer that holds NaN or infinities.
    """
    if inputs.feeds is None:
        return BiasCorrection(rounded, why="no data was given")
    if not inputs.judged.logits:
        return BiasCorrection(rounded, why="no output comes from floats that are quantized")
    with weights_stored_in(inputs.scratch):
        plan = select_calibrated_part(plan, encodings.without_values, encodings.unshared)
        targets, left = find_targets(inputs.model, rounded, plan)
        if not targets:
            return BiasCorrection(rounded, left=left, why="no layer has a bias that can change")
        confirming = inputs.kept[: min(CONFIRMING, len(inputs.kept) // 2)]
        if not confirming:
            return BiasCorrection(
                rounded, left=left, why="the data has one sample, and none is left to confirm"
            )
        rest = inputs.feeds.again_without(len(confirming))
        means = InputMeans(inputs.model, [one.key for one in targets], rest, confirming, options.threads)
        part, whole = (
            _shift(inputs.model, rounded, encodings, targets, mean) for mean in (means.of_rest, means.of_all)
        )
        sides = {
            name: insert_fake_quantize(model, plan, encodings)
            for name, model in (("before", rounded), ("after", part))
        }
        before, after = _measure(inputs, sides, confirming, options)
    nodes = tuple(one.node for one in targets)
    made = BiasCorrection(whole, nodes, left, before, after)
    return made if made.is_kept else BiasCorrection(rounded, nodes, left, before, after)


def find_targets(model: Model, rounded: Model, plan: Plan) -> tuple[list[_Target], dict[str, str]]:
    """Return the nodes whose bias can be corrected, and the reasons of all others.

    Args:
        model: the float model.
        rounded: the same with rounded weights.
        plan: of the model.
    """
    layers, left = find_layers(model, plan)
    finder = BiasFinder(rounded, plan, bool(target_by_name(plan.target).policy.bias_qtype))
    targets = []
    for layer in layers:
        weight = layer.placement.tensor
        groups, outputs, _ = layer.view.fold(weight_array(model, weight)).shape
        for one in layer.inputs:
            found = finder.find(one.node, one.slot, weight, groups * outputs)
            if isinstance(found, str):
                left[one.node] = found
            else:
                targets.append(_Target(one.node, weight, layer.view, (one.tensor, one.view), found))
    return targets, left


class InputMeans:
    """Mean inputs of layers, as exact sums of integers, with and without some samples."""

    def __init__(
        self,
        model: Model,
        keys: Sequence[Key],
        rest: Iterable[Feed],
        confirming: Sequence[Feed],
        threads: int,
    ) -> None:
        """Read the data twice: for the largest magnitude of each channel, and for the sums.

        Args:
            model: the float model.
            keys: the inputs.
            rest: the data without the samples that confirm, which can be read several times.
            confirming: these samples.
            threads: cores to use, 0 for all.
        """
        keys, parts = list(dict.fromkeys(keys)), (rest, confirming)
        with closing(FloatRuns(model, {tensor for tensor, _ in keys}, threads, MOMENTS_MEMORY)) as runs:
            inputs = [ObservedInput(*key) for key in keys]
            ends = [runs.observe(ENDS, inputs, part) for part in parts]
            inputs = [ObservedInput(*key, ends[0][key].merge(ends[1][key]).ends) for key in keys]
            self._rest, self._confirming = (runs.observe(MEANS, inputs, part) for part in parts)

    def of_rest(self, key: Key) -> NDArray[np.float64]:
        """Return the mean of an input without the samples that confirm, [groups, inputs]."""
        return self._rest[key].mean

    def of_all(self, key: Key) -> NDArray[np.float64]:
        """Return the mean of an input over all samples, [groups, inputs]."""
        return self._rest[key].merge(self._confirming[key]).mean


def _shift(
    model: Model,
    rounded: Model,
    encodings: Encodings,
    targets: Sequence[_Target],
    mean: Callable[[Key], NDArray[np.float64]],
) -> Model:
    """Return `rounded` with (W - Wq) E[x] added to its biases."""
    shifts = {}
    for one in targets:
        quantized = encodings[one.weight].fake_quantize(weight_array(rounded, one.weight))
        lost = weight_array(model, one.weight).astype(np.float64) - quantized.astype(np.float64)
        # Not a product of matrices: BLAS sums in an order that may depend on the machine's threads.
        shifts[one.place] = np.einsum("gok,gk->go", one.view.fold(lost), mean(one.key)).reshape(-1)
    return shift_biases(rounded, shifts)


def _measure(
    inputs: QuantizeSession,
    sides: dict[str, onnx.ModelProto],
    feeds: Sequence[Feed],
    options: RunOptions,
) -> list[float]:
    """Return the SQNR of each model in dB, by the mean noise-to-signal ratio of its logits."""
    reference, logits = inputs.model.proto, inputs.judged.logits
    candidates = {name: with_outputs(proto, logits) for name, proto in sides.items()}
    scores = score_models(
        with_outputs(reference, logits),
        candidates,
        feeds,
        threads=options.threads,
        device=options.device,
        exact=False,
    )
    return [
        ratio_db(1.0, float(np.mean([10 ** (-o.sqnr_db / 10) for o in one.outputs if o.output in logits])))
        for one in scores.candidates
    ]
