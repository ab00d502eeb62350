"""`KEYS`: cached keys lose what all have in common, which a Softmax does not see.

    softmax_i(q (k_i - c)) = softmax_i(q k_i - q c) = softmax_i(q k_i)

Behind a rotary embedding, a mean m of keys is R(p) m at position p. Their common part is the mean of R(p) m
over texts of all lengths up to the context, so the weight of position p of n is log(n / (p + 1)).
The error of a float is a share of its size. Integers would need ranges for all turns of the mean, and lose.
Source of R: Su et al., RoFormer, 2021.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from numpy.typing import NDArray

from onnxfq.data import Feed
from onnxfq.documents.plan import Plan
from onnxfq.graph.external.scratch_file import weights_stored_in
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.model import Model
from onnxfq.graph.names import Use
from onnxfq.graph.node_fields import attributes_of, input_name
from onnxfq.judging.candidate import Candidate, build_candidate
from onnxfq.judging.judge import Judge, Proposal, Refusal, Remedy, explain_gain
from onnxfq.passes.center import CenteredTensor, center_inputs
from onnxfq.placement.caches import ATTENTION, PASTS
from onnxfq.remedies.center import measure_means
from onnxfq.remedies.same_function import SAMPLES, explain_fixed_model, select_apart, with_model

_KEY, _SINK = 1, 11
"""Inputs of GroupQueryAttention: new keys, and scores that no key makes."""

_UNEVEN = ("softcap", "smooth_softmax")
"""Its attributes under which a number that all scores of a query have in common changes the weights."""


def explain_unneeded(candidate: Candidate, judge: Judge) -> str:
    """Return why no key loses its mean; empty if some are cached behind a rotary embedding."""
    if not any(placement.stored for placement in candidate.plan.placements):
        return "no cache is quantized"
    if not _find_keys(candidate.session.model, candidate.plan):
        return "no key of a cache in float8 stands between a rotary embedding and a plain Softmax"
    return explain_fixed_model(candidate, judge)


def estimate(candidate: Candidate, judge: Judge) -> float:
    """Return the runs over some samples, and of another candidate."""
    work = judge.work
    runs = 2 * work.observe(min(SAMPLES, work.samples)) + work.observe() + work.calibrate
    return runs + judge.compare_choosing(1)


def center_keys(candidate: Candidate, judge: Judge) -> Proposal | Refusal:
    """Return the candidate whose cached keys lack their common part, if it gains."""
    session, feeds = candidate.session, select_apart(candidate, judge)
    with weights_stored_in(session.scratch):
        model, keys = session.model, _find_keys(session.model, candidate.plan)
        filled = _name_filled(model.index, keys, feeds)
        if filled:
            return Refusal(f"input {filled!r} of the data has keys with their mean; begin with empty caches")
        rotary = {use.node: model.index.makers[key] for key, use in keys.items()}
        means = measure_means(
            model, [node.input[0] for node in rotary.values()], feeds, judge.options.threads
        )
        shares = {
            use.node: CenteredTensor(key, _turn(means[given], rotary[use.node], model.index), ())
            for key, use in keys.items()
            if (given := rotary[use.node].input[0]) in means
        }
        if not shares:
            return Refusal("no mean makes enough of the energy of its keys")
        judge.budget.spend(estimate(candidate, judge))
        centered = with_model(session, center_inputs(model, shares, _KEY), feeds)
        recipe, equalization = candidate.recipe, candidate.equalization
        made = build_candidate(centered, recipe, judge.sources, judge.options, equalization)
    why = explain_gain(*judge.choose([candidate, made]))
    told = [f"{len(shares)} caches of keys without what all positions have in common"]
    return Refusal(why, told) if why else Proposal(made, told)


def _find_keys(model: Model, plan: Plan) -> dict[str, Use]:
    """Return the attention of each cached key that a RotaryEmbedding with constant tables makes."""
    index, found = model.index, dict[str, Use]()
    nodes = {node.name: node for node in index.nodes if node.op_type == ATTENTION}
    for placement in (one for one in plan.placements if one.stored and one.spec.qtype.is_float):
        (use, *more) = placement.uses
        node, maker = nodes.get(use.node), index.makers.get(placement.tensor)
        if more or use.input != _KEY or node is None or maker is None:
            continue
        plain = not input_name(node, _SINK) and not any(attributes_of(node).get(one, 0) for one in _UNEVEN)
        tables = maker.op_type == "RotaryEmbedding" and set(maker.input[2:4]) <= index.constants.keys()
        if plain and tables:
            found[placement.tensor] = use
    return found


def _name_filled(index: GraphIndex, keys: Mapping[str, Use], feeds: Sequence[Feed]) -> str:
    """Return an input of earlier keys that is not empty; an empty name if there is none."""
    attentions = {use.node for use in keys.values()}
    pasts = [node.input[PASTS[_KEY]] for node in index.nodes if node.name in attentions]
    return next((name for name in pasts for feed in feeds if name in feed and feed[name].size), "")


def _turn(mean: NDArray[np.float64], node: onnx.NodeProto, index: GraphIndex) -> NDArray[np.float32]:
    """Return the mean of what `node` makes of `mean` [channels], over texts of all lengths."""
    tables = [np.asarray(index.array(name), np.float64) for name in node.input[2:4]]
    weights = np.log(len(tables[0]) / np.arange(1, len(tables[0]) + 1)) + 1 / len(tables[0])
    cos, sin = (np.einsum("p,pc->c", weights / weights.sum(), table) for table in tables)
    attrs = attributes_of(node)
    heads, axis = mean.reshape(attrs["num_heads"], -1), 2 if attrs.get("interleaved") else 1
    turned = heads[:, : 2 * len(cos)]
    first, second = np.moveaxis(turned.reshape(len(heads), *((-1, 2) if axis == 2 else (2, -1))), axis, 0)
    parts = np.stack([first * cos - second * sin, second * cos + first * sin], axis)
    return (
        np.concatenate([parts.reshape(turned.shape), heads[:, 2 * len(cos) :]], 1).ravel().astype(np.float32)
    )


KEYS = Remedy("keys", explain_unneeded, center_keys, estimate=estimate)
