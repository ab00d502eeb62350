"""Weights that the source stores as integers: encodings on the same grid, and which integers change."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from onnxfq.documents.encodings import Encoding, Encodings
from onnxfq.documents.plan import Placement, Plan
from onnxfq.graph.constants import weight_array
from onnxfq.graph.external.tensor import tensor_array
from onnxfq.graph.model import Model
from onnxfq.graph.stored_grid import StoredScale
from onnxfq.numerics.float_types import round_scale
from onnxfq.numerics.layout import Layout, expand_params
from onnxfq.support.groups import group_pairs
from onnxfq.support.plurals import name_first

_LISTED = 4


def encode_on_grid(
    placement: Placement, values: NDArray[np.float32], stored: StoredScale, other: Encoding
) -> Encoding:
    """Return the encoding of a weight with the scales of its source, or `other`.

    The scales of the source are taken if the granularity of the placement has them and its type the numbers.
    An integer type may lack the next number, as int4 the 8 of a negated -8: one number of a block that is a
    step smaller costs less than rounding all numbers again.

    Args:
        placement: of the weight.
        values: of the weight.
        stored: the scales in the source.
        other: another encoding.
    """
    spec = placement.spec
    found = stored.fit(spec.granularity) if stored.shape == values.shape else None
    if found is None or spec.scale_type != "float32" or spec.zero_point != "integer":
        return other
    scale = round_scale(found.astype(np.float64), placement.float_type)
    if not np.isfinite(scale).all() or (spec.power_of_two and (np.frexp(scale)[0] != 0.5).any()):
        return other
    zero_point = np.zeros(scale.shape, np.int32)
    if not spec.symmetric:
        steps = np.rint(values / expand_params(scale, values.shape, spec.granularity))
        least = Layout(spec.granularity, values.shape).reduce(np.minimum, steps, 0.0)
        zero_point = np.clip(spec.qtype.qmin - least, spec.qtype.qmin, spec.qtype.qmax).astype(np.int32)
    made = placement.encode(scale, zero_point)
    changed = find_changed(made, values, values, stored)
    if changed.any():
        off = np.abs(made.fake_quantize(values) - values)[changed] / np.abs(stored.elementwise[changed])
        if spec.qtype.is_float or (np.abs(off - 1) > 0.25).any():
            return other
    return made


def find_changed(
    encoding: Encoding, values: NDArray[np.float32], source: NDArray[np.float32], stored: StoredScale
) -> NDArray[np.bool_]:
    """Tell which elements of `values` are other numbers with `encoding` than in the source.

    A scale that is rounded to a half type changes no number: the tolerance is a quarter of a step, and 1/64
    for the numbers of a float type.

    Args:
        encoding: with which the weight is written.
        values: of the weight.
        source: of the weight in the source.
        stored: the scales in the source.
    """
    off = np.abs(encoding.fake_quantize(values) - source)
    return np.asarray(off > np.minimum(np.abs(stored.elementwise) / 4, np.abs(source) / 64))


@dataclass(frozen=True)
class StoredNumbers:
    """Weights that the source stores as integers, by what is left of their numbers.

    Attributes:
        kept: number of weights with the same numbers.
        clipped: (clipped numbers, all numbers) of the other weights on the grid of the source, by name.
        rounded: reasons of the weights on another grid, by name.
    """

    kept: int = 0
    clipped: dict[str, tuple[int, int]] = field(default_factory=dict)
    rounded: dict[str, str] = field(default_factory=dict)

    @property
    def line(self) -> str:
        """The result in one line; empty without such weights."""
        parts = [f"{self.kept} kept"] if self.kept else []
        for name, (count, size) in self.clipped.items():
            parts.append(f"{name!r} kept but for {count} of its {size} numbers, which are clipped")
        for why, names in group_pairs((why, name) for name, why in self.rounded.items()).items():
            listed = name_first([*map(repr, names)], _LISTED)
            parts.append(f"{len(names)} rounded again ({listed}): {why}")
        return f"weights with numbers on a grid: {'; '.join(parts)}" if parts else ""


def compare_stored(model: Model, plan: Plan, encodings: Encodings) -> StoredNumbers:
    """Compare the weights that the source of `model` stores as integers with their quantized form.

    Args:
        model: the float model, with equalized or rounded weights if there are any.
        plan: the tensors to quantize.
        encodings: of the plan.
    """
    kept, clipped, rounded = 0, {}, {}
    for placement in plan.weights:
        name, stored = placement.tensor, model.stored.get(placement.tensor)
        if stored is None or name not in encodings:
            continue
        source = np.asarray(tensor_array(stored.tensor), np.float32)
        values = np.asarray(weight_array(model, name), np.float32)
        encoding = encodings[name]
        if encoding.spec.dynamic or stored.scale.shape != values.shape:
            continue
        changed = find_changed(encoding, values, source, stored.scale)
        fitting = stored.scale.fit(encoding.spec.granularity)
        if not changed.any():
            kept += 1
        elif fitting is not None and not np.array_equal(values, source):
            rounded[name] = "equalizing, smoothing or rounding by moments changed their values"
        elif fitting is not None and np.allclose(fitting, encoding.scale, rtol=2**-7, atol=0.0):
            clipped[name] = int(changed.sum()), changed.size
        else:
            rounded[name] = f"{encoding.spec} does not have the grid of the source"
    return StoredNumbers(kept, clipped, rounded)
