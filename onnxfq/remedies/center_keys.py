"""`KEYS`: cached keys lose what all have in common, which a Softmax does not see.

    softmax_i(q (k_i - c)) = softmax_i(q k_i - q c) = softmax_i(q k_i)

Behind a rotary embedding, a mean m of keys is R(p) m at position p. Their common part is the mean of R(p) m
over texts of all lengths up to the context, so the weight of position p of n is log(n / (p + 1)).
The error of a float is a share of its size. Integers would need ranges for all turns of the mean, and lose.
Source of R: Su et al., RoFormer, 2021.
"""

from __future__ import annotations

import numpy as np
import onnx
from numpy.typing import NDArray

from onnxfq.documents.plan import Plan
from onnxfq.graph.external.scratch_file import weights_stored_in
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.model import Model
from onnxfq.graph.node_fields import attributes_of, input_name
from onnxfq.judging.candidate import Candidate, build_candidate
from onnxfq.judging.judge import Judge, Proposal, Refusal, Remedy, explain_gain
from onnxfq.passes.center import CenteredTensor, center_inputs
from onnxfq.placement.caches import ATTENTION, PASTS
from onnxfq.remedies.center import estimate, measure_means
from onnxfq.remedies.same_function import explain_fixed_model, select_apart, with_model

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


def center_keys(candidate: Candidate, judge: Judge) -> Proposal | Refusal:
    """Return the candidate whose cached keys lack their common part, if it gains."""
    session, feeds = candidate.session, select_apart(candidate, judge)
    with weights_stored_in(session.scratch):
        model, keys = session.model, _find_keys(session.model, candidate.plan)
        pasts = [attention.input[PASTS[_KEY]] for attention, _ in keys]
        filled = next((name for name in pasts for feed in feeds if feed[name].size), "")
        if filled:
            return Refusal(f"input {filled!r} of the data has keys with their mean; begin with empty caches")
        unturned = [rotary.input[0] for _, rotary in keys]
        means = measure_means(model, unturned, feeds, judge.options.threads)
        shares = {
            attention.name: CenteredTensor(rotary.output[0], _turn(means[name], rotary, model.index), ())
            for name, (attention, rotary) in zip(unturned, keys, strict=True)
            if name in means
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


def _find_keys(model: Model, plan: Plan) -> list[tuple[onnx.NodeProto, onnx.NodeProto]]:
    """Return each attention that caches keys in float8, and the RotaryEmbedding in front of it."""
    index, found = model.index, []
    cached = {p.tensor for p in plan.placements if p.stored and p.spec.qtype.is_float}
    for node in (node for node in index.nodes if node.op_type == ATTENTION and node.input[_KEY] in cached):
        maker = index.makers.get(node.input[_KEY])
        plain = not input_name(node, _SINK) and not any(attributes_of(node).get(one, 0) for one in _UNEVEN)
        if plain and maker is not None and maker.op_type == "RotaryEmbedding":
            found += [(node, maker)] if set(maker.input[2:4]) <= index.constants.keys() else []
    return found


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
    whole = np.concatenate([parts.reshape(turned.shape), heads[:, 2 * len(cos) :]], 1)
    return whole.ravel().astype(np.float32)


KEYS = Remedy("keys", explain_unneeded, center_keys, estimate=estimate)
