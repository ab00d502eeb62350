"""Pairs of an export beyond the quantizers of the module: inside of calls, of numbers there, and of biases.

All follow from what is known: what an operator moves has the scale from before, a bias has the scale of its
products, and a constant operand has the format of the other one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from onnxfq.documents.encodings import Encoding
from onnxfq.documents.plan import Placement
from onnxfq.graph.names import Use
from onnxfq.graph.ops import DATA_MOVEMENT, MOVES, SIZES
from onnxfq.numerics.granularity import PER_TENSOR
from onnxfq.placement.operators import place_biases, place_operands, uses_of
from onnxfq.placement.target_policy import TargetPolicy
from onnxfq.quantized.extract_fake_quantize import Lifted
from onnxfq.stages.calibrate import encode_weights
from onnxfq.stages.derived_scales import encode_biases, fit_weights_to_biases
from onnxfq.targets.target import target_by_name

_MOVED = DATA_MOVEMENT - {"Identity"}  # lifting puts some in front of outputs, for the time being


def with_target_form(lifted: Lifted, target: str) -> Lifted:
    """Return an export of a module for `target`, with the pairs that have no quantizer."""
    policy, bare = target_by_name(target).policy, lifted.model
    known = {one.tensor: one for one in lifted.encodings.encodings}
    moved = list(_place_moved(lifted, policy, known))
    placements = [*lifted.plan.placements, *moved]
    placements += place_operands(placements, bare.graph(), policy)
    made = [one for one in placements if one.tensor not in known]
    placements += place_biases(placements, bare.graph(), None, policy)
    plan = lifted.plan.model_copy(update={"target": target, "placements": tuple(placements)})
    constants = encode_weights(bare, plan.model_copy(update={"placements": tuple(made)}))
    encodings = fit_weights_to_biases(bare, plan, (*known.values(), *constants))
    encodings += encode_biases(bare, plan, encodings)
    encoded = lifted.encodings.model_copy(update={"encodings": tuple(encodings)})
    return replace(lifted, plan=plan, encodings=encoded)


def _place_moved(lifted: Lifted, policy: TargetPolicy, known: dict[str, Encoding]) -> Iterator[Placement]:
    """Yield each tensor that an operator moves inside of a call, where no quantizer can stand; encode it."""
    placed = {use: one for one in lifted.plan.activations for use in one.uses}
    results = {one.tensor: one for one in lifted.plan.activations}
    graph = lifted.model.graph()

    def place(given: Placement, tensor: str, uses: tuple[Use, ...], role: str = "activation") -> Placement:
        results[tensor] = one = given.model_copy(update={"tensor": tensor, "uses": uses, "role": role})
        known[tensor] = known[given.tensor].model_copy(update={"tensor": tensor})
        placed.update(dict.fromkeys(uses, one))
        return one

    for node in (*reversed(graph.nodes), *graph.nodes):
        given, slots, read = placed.get(Use(node.name, 0)), policy.operators.get(node.op), node.inputs[:1]
        if slots is None or not slots.outputs or node.op not in _MOVED:
            continue
        if given is not None:
            for made in node.outputs if given.spec.granularity == PER_TENSOR else ():
                if made.name not in known and (uses := tuple(uses_of(made, graph.outputs))):
                    yield place(given, made.name, uses)
            continue
        given = next((results[one.name] for one in node.outputs if one.name in results), None)
        if given is None or read[0].name in known:
            continue
        if read[0].name in lifted.model.constants:  # a table of words, of which the result has some rows
            yield place(given, read[0].name, (Use(node.name, 0),), "weight")
        elif node.op in MOVES and read[0].inputs:
            # Others than sizes read it as the module has it, in float.
            if not [one for one in read[0].outputs if one is not node and one.op not in SIZES]:
                yield place(given, read[0].name, tuple(uses_of(read[0], graph.outputs)))
