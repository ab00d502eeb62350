"""The two quantized forms of a model side by side: simulation and Q/DQ."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
from builders import Staged, constants
from numpy.typing import NDArray

from onnxfq.passes.equalize import factors_of_weights
from onnxfq.passes.insert_fake_quantize import with_fake_quantize
from onnxfq.runtime.session import Session
from onnxfq.stages.insert import with_target_qdq


def with_outputs(proto: onnx.ModelProto, names: list[str]) -> onnx.ModelProto:
    """Make inner tensors outputs."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    have = {value.name for value in copy.graph.output}
    copy.graph.output.extend(onnx.helper.make_empty_tensor_value_info(n) for n in names if n not in have)
    return copy


def twins(
    staged: Staged, switchable: bool = False
) -> tuple[list[str], list[NDArray[np.float32]], list[NDArray[np.float32]]]:
    """Return names and values of all quantized tensors and the outputs, in the simulation and in Q/DQ.

    Biases are left out of both with switches, for nodes have no grid of 32 bits.
    """
    if switchable:
        kept = tuple(one for one in staged.plan.placements if one.role != "bias")
        staged = replace(staged, plan=staged.plan.model_copy(update={"placements": kept}))
    simulation = with_fake_quantize(
        staged.model, staged.plan, staged.encodings, "one" if switchable else "none"
    ).proto
    qdq = with_target_qdq(staged.model, staged.plan, staged.encodings).proto
    # A session gives tensors of the main graph only.
    outside = {node.name for node in staged.model.proto.graph.node}
    names = [p.tensor for p in staged.plan.placements if any(use.node in outside for use in p.uses)]
    outputs = [value.name for value in simulation.graph.output]
    simulated, deployed = [f"{name}/fq" for name in names], [f"{name}/dq" for name in names]
    given = {name for node in qdq.graph.node for name in node.output}
    # Where channels are equalized, a Mul by powers of two has gone before, and the weight takes them back.
    equalized = {name: f"{name}/equalized/dq" for name in names if f"{name}/equalized" in given}
    deployed = [equalized.get(name, dq) for name, dq in zip(names, deployed, strict=True)]
    values = [
        Session(with_outputs(proto, wanted), 1, exact=True).run(staged.feed, [*wanted, *outputs])
        for proto, wanted in ((simulation, simulated), (qdq, deployed))
    ]
    factors = {
        name: array.reshape(-1, 1, 1, 1)
        for name, array in factors_of_weights(staged.plan, staged.encodings).items()
    }
    factors |= {name: constants(qdq)[f"{name}/channel_factors"] for name in equalized}
    for at, name in enumerate(names):
        if name in factors:
            assert (np.frexp(factors[name])[0] == 0.5).all()
            values[1][at] = values[1][at] / factors[name]
    return [*names, *outputs], values[0], values[1]
