"""Noise along the graph: the error of tensors of the running fake-quant model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import replace

import onnx

from onnxfq.choices import MOMENTS_MEMORY
from onnxfq.data import Feed
from onnxfq.execution.float_runs import FloatRuns
from onnxfq.execution.given_choices import feeds_with_choices
from onnxfq.graph.model import Model
from onnxfq.graph.patterns.logits import judge_outputs
from onnxfq.graph.signature import computed_tensors
from onnxfq.numerics.metrics import ErrorSums
from onnxfq.passes.give_choices import with_given_choices

_PART = 256
"""Tensors of a run; their values are in memory at once."""


def measure_noise(
    model: Model, simulation: onnx.ModelProto, feeds: Sequence[Feed], tensors: Iterable[str], threads: int = 0
) -> dict[str, float]:
    """Return the SQNR in dB of `tensors` in the running fake-quant model, pooled over `feeds`.

    A tensor has the errors of all layers before it, and not yet the one of its own quantizer. Tensors of
    bodies, and tensors whose size depends on the values, have no entry.

    Args:
        model: the float model.
        simulation: the same with FakeQuantize nodes.
        feeds: the data, few of it.
        tensors: names of computed tensors.
        threads: cores to use, 0 for all.
    """
    both = computed_tensors(model.proto) & computed_tensors(simulation)
    names = [name for name in dict.fromkeys(tensors) if name in both]
    choices = judge_outputs(model.proto).choices
    given = list(feeds_with_choices(model.proto, choices, feeds, threads))
    chosen = replace(model, proto=with_given_choices(simulation, choices))
    sums: dict[str, ErrorSums] = {}
    odd: set[str] = set()
    for start in range(0, len(names) if feeds else 0, _PART):
        part = set(names[start : start + _PART])
        with (
            closing(FloatRuns(model, part, threads, MOMENTS_MEMORY)) as floats,
            closing(FloatRuns(chosen, part, threads, MOMENTS_MEMORY)) as quantized,
        ):
            for (want, _), (have, _) in zip(floats.over(feeds), quantized.over(given), strict=True):
                for name in part:
                    if want[name].shape == have[name].shape:
                        found = ErrorSums.from_arrays(want[name], have[name])
                        sums[name] = sums.get(name, ErrorSums()) + found
                    else:
                        odd.add(name)
    return {name: sums[name].sqnr_db for name in names if name in sums and name not in odd}
