"""Clips of a float form that do the work of pairs: which of them the data or another pair makes idle.

A Clip is judged by what it takes away, which may be far less than a step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from copy import deepcopy
from dataclasses import replace
from functools import partial

import numpy as np
import onnx
from onnx import helper

from onnxfq.data import Feed
from onnxfq.documents.plan import Plan
from onnxfq.graph.external.tensor import tensor_array
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.ops import DATA_MOVEMENT
from onnxfq.graph.prune import leave_out
from onnxfq.graph.saturation import ValueLimit
from onnxfq.quantized.float_form import FloatForm
from onnxfq.runtime.segmented_session import open_in_segments
from onnxfq.runtime.session import Session

# Mean square of what a Clip may take away unnoticed, in squared steps: a hundredth of what rounding makes.
_UNNOTICED = 1 / 12 / 100


def drop_unreached_clips(form: FloatForm, feeds: Iterable[Feed], threads: int) -> None:
    """Leave out, in place, the Clips of a float form that take away far less than rounding does."""
    if not form.clips:
        return
    losses: dict[str, list[float]] = defaultdict(list)
    observed, names = _with_losses(form), list(form.clips)
    session = open_in_segments(
        observed, partial(Session, threads=threads), [f"{name}/loss" for name in names]
    )
    for feed in feeds:
        for name, loss in zip(names, session.run(feed), strict=True):
            losses[name].append(float(loss))
    idle = {name for name in names if np.mean(losses[name]) <= _UNNOTICED * form.clips[name].step ** 2}
    drop_clips(form, idle)


def drop_clips(form: FloatForm, names: Collection[str]) -> None:
    """Leave out, in place, the Clips that make these tensors; what they limit takes over their ranges."""
    sources: dict[str, str] = {}
    for name, one in list(form.clips.items()):  # in the order of computation: one may limit another
        tensor = sources.get(one.tensor, one.tensor)
        form.clips[name] = replace(one, tensor=tensor)
        if name in names:
            sources[name] = form.clips.pop(name).tensor
            form.ranges.setdefault(tensor, form.ranges[name])
    leave_out(form.proto.graph, sources)


def find_covered_clips(bare: FloatForm, clips: Mapping[str, ValueLimit], plan: Plan) -> set[str]:
    """Return the Clips in whose place `plan`, of the form without Clips, has a pair of the same range."""
    index, placed = GraphIndex(bare.proto.graph), {one.tensor: one for one in plan.activations}
    found = set()
    for name, clip in clips.items():
        pair, limits = placed.get(clip.tensor), bare.ranges.get(clip.tensor)
        if pair is None or limits is None or clip.tensor in index.outputs | index.captured:
            continue
        step = max(map(abs, limits)) / 127
        whole = len(pair.uses) == len(index.readers.get(clip.tensor, []))
        if whole and pair.spec.qtype.name == "int8" and _fits(clip, step):
            found.add(name)
    return found


def _with_losses(form: FloatForm) -> onnx.ModelProto:
    """Return the float form with one more output for each Clip: the mean square of what it takes away."""
    proto = deepcopy(form.proto)
    del proto.graph.output[:]
    for name, one in form.clips.items():
        lost, squared, loss = (f"{name}/{word}" for word in ("lost", "squared", "loss"))
        nodes = [
            helper.make_node("Sub", [one.tensor, name], [lost]),
            helper.make_node("Mul", [lost, lost], [squared]),
            helper.make_node("ReduceMean", [squared], [loss], keepdims=0),
        ]
        proto.graph.node.extend(nodes)
        proto.graph.output.append(helper.make_empty_tensor_value_info(loss))
    return proto


def drop_repeated_clips(proto: onnx.ModelProto, clips: Mapping[str, ValueLimit]) -> int:
    """Leave out, in place, each Clip that only pairs with the same range read; return how many stay."""
    index = GraphIndex.of_model(proto)
    left = {name: one for name, one in clips.items() if name in index.makers}
    repeated = {}
    for name, one in left.items():
        readers = index.readers.get(name, [])
        if name not in index.outputs and all(_limits_alike(node, one, index) for node in readers):
            repeated[name] = index.makers[name].input[0]
    leave_out(proto.graph, repeated)
    return len(left) - len(repeated)


def _limits_alike(node: onnx.NodeProto, clip: ValueLimit, index: GraphIndex) -> bool:
    """Tell whether `node` quantizes to one range of int8 that ends within half a step of the Clip's.

    Readers of what only moves numbers are asked in its place.
    """
    if node.op_type in DATA_MOVEMENT:
        readers = [reader for name in node.output for reader in index.readers.get(name, [])]
        return index.outputs.isdisjoint(node.output) and all(_limits_alike(r, clip, index) for r in readers)
    if node.op_type != "QuantizeLinear" or node.input[1] not in index.constants:
        return False
    scale = tensor_array(index.constants[node.input[1]]).astype(np.float32)
    if scale.size != 1:
        return False
    return _fits(clip, float(scale.item()))


def _fits(clip: ValueLimit, step: float) -> bool:
    """Tell whether int8 with this step limits values as the Clip does, within half a step."""
    return (clip.low is None or clip.low <= -127.5 * step) and (
        clip.high is None or clip.high >= 126.5 * step
    )
