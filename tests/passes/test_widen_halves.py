"""16-bit floats: models of them in float32, and every operator with ONNX's types in them."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
import onnx
import pytest
from builders import BUILDERS, Arrays, build, onnx_cases, open_as_written, plain_quantize, weights
from half_models import HALVES, as_type, half_feed

import onnxfq
from onnxfq.documents.cast_plan import FloatOptions
from onnxfq.errors import OnnxfqError
from onnxfq.graph.io.load import load
from onnxfq.graph.normalize.shapes import with_shapes
from onnxfq.numerics.float_types import FLOATS, HALF_TYPES
from onnxfq.passes.cast_floats import cast_floats
from onnxfq.passes.widen_halves import widen_halves
from onnxfq.placement.float_casts import plan_floats
from onnxfq.runtime.float32_emulation import holds_types
from onnxfq.runtime.session import Session
from onnxfq.targets.target import BuildOptions, prepare_model


def assert_near(given: onnx.ModelProto, wide: onnx.ModelProto, feed: Arrays, step: float) -> None:
    """Outputs have equal types and near numbers: each operator of the given model rounds its result."""
    results = Session(wide, 1).run(feed), Session(given, 1, exact=True).run(feed)
    for found, wanted in zip(*results, strict=True):
        assert found.dtype == wanted.dtype
        most = step * max(1.0, np.abs(wanted).max())
        np.testing.assert_allclose(np.float32(found), np.float32(wanted), rtol=step, atol=most)


@pytest.mark.grid
@pytest.mark.parametrize("kind", HALVES)
@pytest.mark.parametrize("name", BUILDERS)
def test_every_structure(name: str, kind: str) -> None:
    """Valid, the ends as they were, and the numbers of the model whose results are rounded once more."""
    given = load(as_type(BUILDERS[name](), kind))
    wide, feed = widen_halves(given).proto, half_feed(given.proto)
    onnx.checker.check_model(wide, full_check=True)
    for ends in ("input", "output"):
        types = [[(value.name, value.type) for value in getattr(m.graph, ends)] for m in (given.proto, wide)]
        assert types[0] == types[1]
    ends = {value.name for value in (*wide.graph.input, *wide.graph.output)}
    inner = {t.data_type for t in wide.graph.initializer}
    inner |= {v.type.tensor_type.elem_type for v in wide.graph.value_info if v.name not in ends}
    assert not inner & {*HALVES.values()}
    assert_near(given.proto, wide, feed, 8 * FLOATS[kind].step)


def test_float32_models_stay() -> None:
    """A model without 16-bit floats is the model itself."""
    model = load(BUILDERS["gemm"]())
    assert widen_halves(model) is model


def test_ends_that_are_one_and_casts() -> None:
    """An input that is an output stays; a Cast between floats vanishes, one to integers does not."""
    text = """g (float16[N,4] x, float[N,4] z) => (float16[N,4] x, float16[N,4] y, int64[N,4] i) {
        n = Cast <to = 10> (z) [first] y = MatMul (n, w) i = Cast <to = 7> (y) }"""
    given = load(build(text, {"w": weights(4, 4).astype(np.float16)}))
    wide = widen_halves(given)
    onnx.checker.check_model(wide.proto, full_check=True)
    assert [node.op_type for node in wide.proto.graph.node].count("Identity") == 1
    feed = {"x": weights(3, 4).astype(np.float16), "z": weights(3, 4)}
    assert_near(given.proto, wide.proto, feed, 2**-8)


PLACES = {
    "a sequence": "s = SequenceConstruct (x, x) z = Constant <value = int64 {0}> () e = SequenceAt (s, z)",
    "an optional": "o = Optional (x) e = OptionalGetElement (o)",
    "a filled tensor": "s = Shape (x) o = ConstantOfShape <value = float16[1] {1}> (s) "
    "a = Add (x, o) e = CastLike (a, x)",
    "a loop": """n = Constant <value = int64 {2}> () c = Constant <value = bool {1}> ()
        e = Loop (n, c, x) <body = b (int64 i, bool k, float16[N,4] h) => (bool l, float16[N,4] m)
            { l = Identity (k) m = MatMul (h, w) }>""",
    "a branch that gives an input": """c = Constant <value = bool {1}> () e = If (c) <
        then_branch = one () => (float16[N,4] p) { p = MatMul (x, w) },
        else_branch = other () => (float16[N,4] q) { q = Identity (x) } >""",
}


@pytest.mark.parametrize("place", PLACES)
def test_where_types_are_written(place: str) -> None:
    """Types of sequences, optionals, bodies and filled tensors follow, and the numbers stay."""
    text = f"g (float16[N,4] x) => (float16[N,4] y) {{ {PLACES[place]} y = MatMul (e, w) }}"
    given = load(build(text, {"w": weights(4, 4).astype(np.float16)}, opset=18))
    wide, feed = widen_halves(given).proto, {"x": weights(3, 4).astype(np.float16)}
    onnx.checker.check_model(wide, full_check=True)
    assert_near(given.proto, wide, feed, 2**-8)


def test_models_of_sequences_stay() -> None:
    """A model that gives a sequence keeps the type that its users read."""
    text = "g (float16[N,4] x) => (seq(float16[N,4]) y) { m = MatMul (x, w) y = SequenceConstruct (m, m) }"
    given = load(build(text, {"w": weights(4, 4).astype(np.float16)}))
    assert widen_halves(given) is given


@pytest.mark.parametrize("target", ["onnxruntime", "qnn"])
def test_the_targets_take_it(target: str) -> None:
    """No tensor between the ends has 16 bits once a target without such integer kernels prepares it."""
    model = prepare_model(load(as_type(BUILDERS["gemm"](), "float16")), target)
    assert holds_types(model.proto, frozenset({HALVES["float16"]}))
    assert {tensor.data_type for tensor in model.proto.graph.initializer} == {onnx.TensorProto.FLOAT}


@pytest.mark.parametrize("kind", HALVES)
@pytest.mark.parametrize("name", ["gemm", "conv_relu"])
def test_onnxruntime_runs_it_in_integers(name: str, kind: str) -> None:
    """A 16-bit model runs in integers as its recipe promises, by ONNX Runtime's word."""
    proto = as_type(BUILDERS[name](), kind)
    made = plain_quantize(proto, half_feed(proto), recipe="onnxruntime-int8")
    result = onnxfq.check(made.qdq, "onnxruntime", build=BuildOptions())
    assert result.coverage and all(row.kept == row.promised for row in result.coverage), result.table()


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
