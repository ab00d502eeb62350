"""Every operator of every opset keeps ONNX's types when the rest of a model becomes float16 or bfloat16."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import onnx
import pytest
from builders import onnx_cases, open_as_written

from onnxfq.documents.cast_plan import FloatOptions
from onnxfq.errors import OnnxfqError
from onnxfq.graph.io.load import load
from onnxfq.graph.normalize.shapes import with_shapes
from onnxfq.numerics.float_types import HALF_TYPES
from onnxfq.passes.cast_floats import cast_floats
from onnxfq.placement.float_casts import plan_floats

OLDEST = 13
"""Opset to which older models are raised."""

EVERY = 120
"""One network in so many is cast, unless all cases are asked for."""

INLINED = ("Clip", "SoftmaxCrossEntropyLoss")
"""Operators that ONNX Runtime replaces by others, of which it has none in bfloat16, though ONNX has."""


@functools.cache
def versions() -> dict[str, set[int]]:
    """Return the opsets from which on each operator has another form."""
    made: dict[str, set[int]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "":
            made.setdefault(schema.name, set()).add(max(OLDEST, schema.since_version))
    return made


def draw_models(step: int) -> Iterator[tuple[str, onnx.ModelProto]]:
    """Yield networks of one node that ONNX tests its operators with, in each opset that takes them."""
    for case in onnx_cases()[::step]:
        yield from _in_all_opsets(case.name, case.model)


def _in_all_opsets(name: str, model: onnx.ModelProto) -> Iterator[tuple[str, onnx.ModelProto]]:
    newest = next((one.version for one in model.opset_import if one.domain == ""), 0)
    known = set.union(*(versions().get(node.op_type, {newest}) for node in model.graph.node), set())
    for opset in sorted(one for one in {*known, newest} if one <= newest):
        made = onnx.ModelProto.FromString(model.SerializeToString())
        for one in made.opset_import:
            one.version = opset if one.domain == "" else one.version
        if is_typed(made):
            yield f"{name} at opset {opset}", made


def is_typed(proto: onnx.ModelProto) -> bool:
    """Tell whether ONNX's own inference finds the types of a model right."""
    try:
        onnx.checker.check_model(proto)
        onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return False
    return True


def opens(proto: onnx.ModelProto) -> str:
    """Return why ONNX Runtime refuses a model as wrong; a missing kernel does not count."""
    try:
        open_as_written(proto, log_severity_level=4)
    except Exception as fault:
        return "" if "NOT_IMPLEMENTED" in str(fault) else str(fault)
    return ""


@pytest.mark.whole
@pytest.mark.parametrize("half", HALF_TYPES)
def test_types_of_every_operator(half: str, request: pytest.FixtureRequest) -> None:
    """ONNX's strict inference and ONNX Runtime take the cast form of whatever they take in float32."""
    wrong = []
    for name, given in draw_models(1 if request.config.getoption("--all-cases") else EVERY):
        try:
            model = load(given)
        except OnnxfqError:  # forms that are refused in float32 too
            continue
        if not is_typed(model.proto):
            continue
        made = cast_floats(model.proto, plan_floats(with_shapes(model.proto), None, FloatOptions(half)))
        inlined = half == "bf16" and any(node.op_type in INLINED for node in made.graph.node)
        why = "" if is_typed(made) else "its types differ"
        why = why or ("" if inlined or opens(model.proto) else opens(made))
        wrong += [f"{name}: {why[:200]}"] if why else []
    assert not wrong, "\n".join(wrong)
