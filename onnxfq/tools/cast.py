"""`cast`: a model in float16 or bfloat16, without quantization, with what has to stay in float32."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import onnx
from onnx import TensorProto

from onnxfq.choices import FloatName
from onnxfq.data import Data
from onnxfq.documents.cast_plan import FloatOptions, FloatPlan
from onnxfq.documents.plan import Skipped
from onnxfq.documents.scores import Evaluation
from onnxfq.errors import DataError, ModelError, OnnxfqError, join_lines
from onnxfq.execution.drawn_inputs import draw_feed
from onnxfq.execution.sides import LEAST_FEEDS
from onnxfq.graph.external.scratch_file import Scratch, weights_stored_in
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.io.data_paths import check_model_output
from onnxfq.graph.model import default_opset
from onnxfq.graph.normalize.opset import raise_opset
from onnxfq.graph.ops import QDQ_OPS, STANDARD_DOMAINS
from onnxfq.graph.queries import half_slots
from onnxfq.judging.written_proof import Written, prove
from onnxfq.numerics.float_types import HALF_TYPES
from onnxfq.passes.cast_floats import cast_floats
from onnxfq.runtime.type_inference import with_all_types
from onnxfq.stages.cast import decide_floats
from onnxfq.stages.inputs import QuantizeSession, open_inputs
from onnxfq.stages.insert import FLOAT_KEY, TARGET_KEY, with_float_type
from onnxfq.stages.options import RunOptions, shows_progress
from onnxfq.stages.write import write_model
from onnxfq.support.progress import counting
from onnxfq.targets.findings import CheckResult
from onnxfq.targets.profiles import profiles
from onnxfq.targets.recipes import load_recipe
from onnxfq.targets.target import DEFAULT_TARGET, target_by_name
from onnxfq.tools.check import check

FP16 = FloatOptions("fp16")

_DRAWN = 4
"""Feeds that show without data what overflows."""


@dataclass(frozen=True)
class Casting:
    """Result of `cast`.

    Attributes:
        half: the model in the type.
        floats: nodes and tensors that stay in float32, with the reason.
        wider: nodes in bfloat16, because float16 does not hold their values, with the reason.
        nodes: number of nodes of the source.
        casts: number of Cast nodes that were written.
        check: findings of TensorRT's rules.
        evaluation: against the source; None without data.
        scratch: the file of large weights of `half`, which exists as long as this object; None if they are in
            memory.
    """

    source: str
    half: onnx.ModelProto
    floats: FloatPlan
    wider: tuple[Skipped, ...]
    nodes: int
    casts: int
    check: CheckResult
    evaluation: Evaluation | None = None
    notes: tuple[str, ...] = ()
    scratch: Scratch | None = field(default=None, repr=False, compare=False)


@shows_progress
def cast(
    model: str | Path | onnx.ModelProto,
    data: Data | None = None,
    output: str | Path | None = None,
    *,
    floats: FloatOptions = FP16,
    overflow: FloatName = "fp32",
    options: RunOptions | None = None,
) -> Casting:
    """Cast `model` to a 16-bit float type for a strongly typed TensorRT network, and write it to `output`.

    Args:
        model: a float model, or one with Q/DQ pairs, whose float part is cast: a path or a ModelProto.
        data: every float tensor is observed on all of it, and the result is compared with the model on some
            of it. Without data operators whose results may overflow stay in float32, and what overflows with
            inputs drawn from a fixed seed.
        output: where to write the result; None writes nothing.
        floats: the type, and whether inputs and outputs are cast too.
        overflow: type of nodes whose values float16 does not hold: fp32 or bf16, where ONNX has the operator.
        options: batch, threads, device and how the data is read.

    Raises DataError for the type fp32, ModelError for a model without float32 to cast, and the errors of
    reading model and data.
    """
    options = options or RunOptions()
    options = replace(options, data=options.data.unsurveyed.padded)
    _refuse_types(floats, overflow)
    check_model_output(output, model, data)
    recipe = load_recipe("tensorrt-int8").model_copy(update={"existing": "keep"})
    inputs = open_inputs(model, data, recipe, options, output=output)
    with weights_stored_in(inputs.scratch):
        ready, note = _prepare(inputs, floats, overflow)
        kept, told = _decide(inputs, ready, floats, options)
        half, wider = _cast_both(ready, kept, overflow)
        plain = kept.model_copy(update={"io": False})
        comparable = _cast_both(ready, plain, overflow)[0] if kept.io else half
    kept = _without_nodes(kept, wider, ready)
    evaluation = None if data is None else _compare(inputs, floats.name, comparable, options)
    if evaluation is not None:
        written = Written(half, comparable, inputs.compared, inputs.kept, inputs.judged, options.threads)
        with weights_stored_in(inputs.scratch):
            proof = prove(target_by_name(DEFAULT_TARGET), written)
        evaluation = evaluation.model_copy(update={"proof": proof})
    write_model(half, output, inputs.kept, options.threads)
    return Casting(
        source=inputs.model.source,
        half=half,
        floats=kept,
        wider=wider,
        nodes=len(ready.graph.node),
        casts=_count_casts(half) - _count_casts(ready),
        check=_check(half, inputs.model.source),
        evaluation=evaluation,
        notes=(*inputs.model.notes, *filter(None, (note, told))),
        scratch=inputs.scratch,
    )


def _decide(
    inputs: QuantizeSession, ready: onnx.ModelProto, floats: FloatOptions, options: RunOptions
) -> tuple[FloatPlan, str]:
    """Return what stays in float32, and a note without data."""
    decide = partial(decide_floats, inputs.model, ready, inputs.feeds, floats, options.observing)
    if inputs.feeds is not None:
        return decide(), ""
    proto = inputs.model.proto
    try:
        shapes = profiles(proto, {})
        kept = decide([draw_feed(proto, shapes, seed) for seed in range(_DRAWN)])
    except OnnxfqError as fault:  # inputs may depend on each other in ways that no shape tells
        why = f"inputs drawn at random do not run ({join_lines(fault)})"
        return decide(), f"nothing was compared: {why}; give data"
    return (
        kept,
        "nothing was compared, and float32 keeps what overflows with inputs drawn at random; give data",
    )


def _refuse_types(floats: FloatOptions, overflow: FloatName) -> None:
    if floats.name not in HALF_TYPES:
        raise DataError(f"a model in {floats.name} needs no cast; give fp16 or bf16")
    if overflow == "fp16" or (overflow == "bf16" and floats.name != "fp16"):
        raise DataError(
            f"overflow is {overflow!r}, which holds no more than {floats.name}; give fp32, or bf16 for fp16"
        )


def _prepare(
    inputs: QuantizeSession, floats: FloatOptions, overflow: FloatName
) -> tuple[onnx.ModelProto, str]:
    """Return the model at an opset whose operators have the types, with all types known, and a note."""
    model = inputs.model
    index = GraphIndex.of_model(model.proto)
    made = (name for node in index.nodes for name in node.output)
    if not any(index.types.get(name) == TensorProto.FLOAT for name in made):
        raise ModelError(f"{model.source} has no operator on float32 to cast; give a float model")
    used = {floats.name, overflow} - {"fp32"}
    has_pairs = any(node.op_type in QDQ_OPS for node in model.proto.graph.node)
    lowest = max(HALF_TYPES[name].min_opset if has_pairs or name == "bf16" else 0 for name in used)
    proto = deepcopy(model.proto)
    entries = [entry for entry in proto.metadata_props if entry.key not in (TARGET_KEY, FLOAT_KEY)]
    del proto.metadata_props[:]
    proto.metadata_props.extend(entries)
    proto.metadata_props.add(key=TARGET_KEY, value=DEFAULT_TARGET)
    raised, note = raise_opset(proto, lowest, model.source)
    return with_float_type(with_all_types(raised), floats.name), note


def _cast_both(
    proto: onnx.ModelProto, kept: FloatPlan, overflow: FloatName
) -> tuple[onnx.ModelProto, tuple[Skipped, ...]]:
    """Return the model in the type, with what overflows in bfloat16 if that is wanted, and these nodes."""
    half = cast_floats(proto, kept)
    if overflow == "fp32":
        return half, ()
    wide, opset, kinds = HALF_TYPES[overflow], default_opset(half), {n.name: n for n in half.graph.node}
    wider = tuple(
        node
        for node in kept.nodes
        if node.rule == "unfit-tensor" and 0 in half_slots(kinds[node.name], opset, wide)
    )
    moved = _with_casts(half, {node.name for node in wider})
    rest = tuple(
        Skipped(name=node.name, kind="node", op_type=node.op_type, why="not in bfloat16")
        for node in half.graph.node
        if node.name not in moved
    )
    return (cast_floats(half, FloatPlan(name=overflow, nodes=rest)), wider) if wider else (half, ())


def _with_casts(half: onnx.ModelProto, names: set[str]) -> set[str]:
    """Return `names` with the Casts between these nodes and those in float16, which change type with them."""
    index = GraphIndex.of_model(half)
    found = set(names)
    for node in index.nodes:
        if node.op_type != "Cast":
            continue
        maker, readers = index.makers.get(node.input[0]), index.readers.get(node.output[0], [])
        into = index.types.get(node.output[0]) == TensorProto.FLOAT
        inner = into and node.output[0] not in index.outputs
        if inner and all(reader.name in names for reader in readers):
            found.add(node.name)
        if not into and maker is not None and maker.name in names:
            found.add(node.name)
    return found


def _without_nodes(plan: FloatPlan, nodes: Iterable[Skipped], proto: onnx.ModelProto) -> FloatPlan:
    """Return the plan without `nodes`, and without the tensors that only they touch."""
    names = {node.name for node in nodes}
    left = tuple(node for node in plan.nodes if node.name not in names)
    kept = {node.name for node in left}
    moved = {one for node in proto.graph.node if node.name in names for one in (*node.input, *node.output)}
    moved -= {one for node in proto.graph.node if node.name in kept for one in (*node.input, *node.output)}
    tensors = tuple(tensor for tensor in plan.tensors if tensor.name not in moved)
    return plan.model_copy(update={"nodes": left, "tensors": tensors})


def _check(half: onnx.ModelProto, source: str) -> CheckResult:
    """Return the findings, without those on what is not quantized."""
    found = check(half, DEFAULT_TARGET)
    findings = tuple(finding for finding in found.findings if finding.rule != "not-quantized")
    return found.model_copy(update={"source": source, "findings": findings})


def _compare(inputs: QuantizeSession, name: str, half: onnx.ModelProto, options: RunOptions) -> Evaluation:
    progress = counting("evaluate", len(inputs.kept))
    narrow_from = 0 if options.exact or inputs.judged.states else LEAST_FEEDS
    return inputs.score({name: half}, inputs.kept, options, progress=progress, narrow_from=narrow_from)


def _count_casts(proto: onnx.ModelProto) -> int:
    return sum(node.op_type == "Cast" and node.domain in STANDARD_DOMAINS for node in proto.graph.node)
