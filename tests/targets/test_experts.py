"""Experts: their products against ONNX Runtime's MoE, QMoE against the simulation, and routers."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from builders import build, plain_quantize, weights
from onnx.numpy_helper import from_array, to_array

import onnxfq
from onnxfq.graph.io.load import load
from onnxfq.interchange.genai_folder import _find_rings
from onnxfq.quantized.existing import load_existing
from onnxfq.runtime.session import Session
from onnxfq.targets.target import prepare_model

EXPERTS, WIDTH, INNER, TOKENS = 4, 64, 32, 40
SWIGLU = 'activation_type = "swiglu", swiglu_fusion = 1'
LIMITED = f"{SWIGLU}, activation_alpha = 1.702, activation_beta = 1.0, swiglu_limit = 0.5"


def experts(
    attributes: str = f"{SWIGLU}, normalize_routing_weights = 1", last: float = 0.0
) -> onnx.ModelProto:
    """Return a router and a MoE, whose sizes suit QMoE; `last` is added to the scores of the last expert."""
    text = f"""g (float[1,T,{WIDTH}] x) => (float[1,T,{WIDTH}] y) {{
        logits = MatMul (x, router) raised = Add (logits, favour)
        scores = Reshape <allowzero = 0> (raised, rows)
        y = com.microsoft.MoE <k = 2, {attributes}> (x, scores, up, up_bias, down, down_bias) }}"""
    constants = {
        "router": weights(WIDTH, EXPERTS),
        "favour": np.array([*[0.0] * (EXPERTS - 1), last], np.float32),
        "rows": np.array([-1, EXPERTS]),
        "up": weights(EXPERTS, 2 * INNER, WIDTH) / 8,
        "up_bias": weights(EXPERTS, 2 * INNER),
        "down": weights(EXPERTS, WIDTH, INNER, seed=1) / 8,
        "down_bias": weights(EXPERTS, WIDTH, seed=1),
    }
    return build(text, constants, opset=21, ir=10, **{"com.microsoft": 1})


def samples(count: int = 4) -> list[dict[str, np.ndarray]]:
    """Return tokens."""
    drawn = np.random.default_rng(0).normal(size=(count, 1, TOKENS, WIDTH)).astype(np.float32)
    return [{"x": one} for one in drawn]


def run(proto: onnx.ModelProto) -> np.ndarray:
    """Return the output of the first sample in a session as users open it."""
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, samples()[0])[0])


def simulate(result: onnxfq.QuantizeResult) -> np.ndarray:
    """Return the same of the simulation."""
    return Session(result.simulation, exact=True).run(samples()[0])[0]


def assert_close(found: np.ndarray, wanted: np.ndarray) -> None:
    """Check values that are sums in another order."""
    np.testing.assert_allclose(found, wanted, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.sample
@pytest.mark.parametrize("normalize", [0, 1])
@pytest.mark.parametrize("activation", [SWIGLU, LIMITED])
def test_products(activation: str, normalize: int) -> None:
    """The products of the experts compute what ONNX Runtime's MoE computes."""
    proto = experts(f"{activation}, normalize_routing_weights = {normalize}")
    split = prepare_model(load(proto), "genai").proto
    assert not any(node.op_type == "MoE" for node in split.graph.node)
    assert_close(run(split), run(proto))


@pytest.mark.parametrize(
    ("qtype", "rounded"),
    [("int2", False), ("uint2", False), ("int4", False), ("int4", True), ("uint4", True), ("int8", True)],
)
def test_quantized(qtype: str, rounded: bool) -> None:
    """ONNX Runtime's QMoE computes what the simulation computes; the router stays in float by its rule."""
    scheme = {"qtype": qtype, "symmetric": not qtype.startswith("u")}
    proto, recipe = experts(), onnxfq.load_recipe("genai-int4").override(weights=scheme)
    result = plain_quantize(proto, samples(), recipe=recipe if rounded else recipe.override(activations=None))
    assert [node.op_type for node in result.qdq.graph.node] == ["MatMul", "Add", "Reshape", "QMoE"]
    assert ("MatMul", "router") in {(one.op_type, one.rule) for one in result.plan.skipped}
    assert_close(run(result.qdq), simulate(result))


@pytest.mark.parametrize(("qtype", "rounded"), [("int2", True), ("int8", False)])
def test_products_in_place_of_a_kernel(qtype: str, rounded: bool, caplog: pytest.LogCaptureFixture) -> None:
    """A QMoE that would not round its inputs as the recipe says stays products, with a warning."""
    recipe = onnxfq.load_recipe("genai-int4").override(weights={"qtype": qtype})
    result = plain_quantize(
        experts(), samples(), recipe=recipe if rounded else recipe.override(activations=None)
    )
    assert "QMoE" not in {node.op_type for node in result.qdq.graph.node}
    assert "8 bits beside inputs rounded to int8, 2 beside float" in caplog.text
    assert_close(run(result.qdq), simulate(result))


def unpack(bytes_: np.ndarray, bits: int) -> np.ndarray:
    """Return numbers of 4 or 8 bits along the last axis, the low half of a byte first."""
    halves = np.stack([bytes_ & 15, bytes_ >> 4], -1).reshape(*bytes_.shape[:-1], -1)
    return (bytes_ if bits == 8 else halves).astype(np.float32)


@pytest.mark.parametrize("name", ["genai-int4", "genai-uint4", "genai-int8"])
def test_read_back(name: str) -> None:
    """A QMoE is read as its numbers times its scales, computes the same, and is written again as it was."""
    recipe, bits = onnxfq.load_recipe(name), 8 if name == "genai-int8" else 4
    recipe = recipe if bits == 8 else recipe.override(activations=None)
    made = plain_quantize(experts(), samples(), recipe=recipe)
    read = load_existing(made.qdq, "requantize")
    stored = {one.name: to_array(one) for one in made.qdq.graph.initializer}
    for product in ("y/fc1", "y/fc2"):
        numbers, scale = unpack(stored[f"{product}_0"], bits), stored[f"{product}_1"]
        zeros = stored.get(f"{product}_3")
        zero = np.float32(1 << (bits - 1))
        zero = zero if zeros is None else unpack(zeros, bits)[..., : scale.shape[2], None]
        values = (numbers.reshape(*scale.shape, -1) - zero) * scale[..., None]
        for expert, wanted in enumerate(values.reshape(numbers.shape)):
            found = to_array(read.constants[f"{product}_0.{expert}"])
            np.testing.assert_array_equal(found.T, wanted)
    if bits == 4:  # kernels of 8 bits round their inputs
        assert_close(run(read.proto), run(made.qdq))
    again = plain_quantize(made.qdq, samples(), recipe=recipe.override(existing="requantize"))
    assert [node.op_type for node in again.qdq.graph.node] == ["MatMul", "Add", "Reshape", "QMoE"]
    assert_close(run(again.qdq), run(made.qdq))
    rows = onnxfq.inspect_model(made.qdq).quantized
    found = [(row.tensor, row.qtype) for row in rows]
    assert found == [("y/fc1_0", f"uint{bits}"), ("y/fc2_0", f"uint{bits}")]


def numbered(bits: int, block: int) -> onnx.ModelProto:
    """Return a router and a QMoE with drawn numbers of `bits`; a scale for each row without a block."""
    blocks = f", block_size = {block}" if block else ""
    draw = np.random.default_rng(0)
    given = f"k = 2, accuracy_level = 4, expert_weight_bits = {bits}{blocks}, {LIMITED}"
    text = f"""g (float[1,T,{WIDTH}] x) => (float[1,T,{WIDTH}] y) {{
        logits = MatMul (x, router) scores = Reshape <allowzero = 0> (logits, rows)
        y = com.microsoft.QMoE <{given}> (x, scores, w1, s1, b1, w2, s2, b2) }}"""
    constants = {"router": weights(WIDTH, EXPERTS), "rows": np.array([-1, EXPERTS])}
    for at, (rows, columns) in enumerate([(2 * INNER, WIDTH), (WIDTH, INNER)], 1):
        sizes = (columns // block,) if block else ()
        constants[f"w{at}"] = draw.integers(0, 256, (EXPERTS, rows, columns * bits // 8)).astype(np.uint8)
        constants[f"s{at}"] = draw.uniform(0.01, 0.03, (EXPERTS, rows, *sizes)).astype(np.float32)
        constants[f"b{at}"] = weights(EXPERTS, rows, seed=at)
    return build(text, constants, opset=21, ir=10, **{"com.microsoft": 1})


@pytest.mark.parametrize(("bits", "block"), [(2, 0), (2, 16), (4, 0), (8, 0)])
def test_other_numbers(bits: int, block: int) -> None:
    """A QMoE of 2 bits, or with a scale for each row, computes what its float form computes."""
    proto = numbered(bits, block)
    assert_close(run(load_existing(proto, "requantize").proto), run(proto))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("expert_weight_bits", 0),
        ("expert_weight_bits", -4),
        ("block_size", -1),
        ("block_size", 1 << 40),
        ("w1", np.zeros((), np.uint8)),
        ("b1", np.zeros(2 * INNER, np.float32)),
        ("b1", np.zeros((EXPERTS + 1, 2 * INNER), np.float32)),
        ("s2", np.ones(2, np.float32)),
    ],
)
def test_damaged(name: str, value: int | np.ndarray) -> None:
    """A QMoE whose attributes and constants do not fit is refused in one line, and listed by `inspect`."""
    proto = numbered(4, 32)
    (node,) = [node for node in proto.graph.node if node.op_type == "QMoE"]
    if isinstance(value, int):
        (given,) = [one for one in node.attribute if one.name == name]
        given.i = value
    else:
        (stored,) = [one for one in proto.graph.initializer if one.name == name]
        stored.CopyFrom(from_array(value, name))
    for call in (onnxfq.convert, onnxfq.diagnose):
        with pytest.raises(onnxfq.errors.ModelError, match="QMoE .* has no known float form"):
            call(proto)
    with nullcontext() if name != "block_size" or value > 0 else pytest.raises(onnxfq.OnnxfqError):
        onnxfq.inspect_model(proto)


@pytest.mark.parametrize("name", ["genai-int4", "genai-uint4"])
def test_diagnosed(name: str, tmp_path: Path) -> None:
    """A MoE whose few bits make the noise is a cause, and its repair is a QMoE of 8 bits."""
    made = plain_quantize(experts(), samples(), recipe=name)
    path, again = tmp_path / "repaired.onnx", tmp_path / "again.yaml"
    files = {"output": path, "recipe_output": again}
    found = onnxfq.diagnose(made.qdq, reference=experts(), data=samples(8), **files)
    (cause,) = found.causes
    assert (cause.kind, cause.node) == ("coarse_weight", "y")
    assert cause.after is not None and cause.before is not None and cause.after > cause.before + 10
    repaired, wanted = onnx.load(path), run(experts())
    (node,) = [node for node in repaired.graph.node if node.op_type == "QMoE"]
    assert {a.name: a.i for a in node.attribute}["expert_weight_bits"] == 8
    assert np.sum((run(repaired) - wanted) ** 2) < np.sum((run(made.qdq) - wanted) ** 2) / 10
    again = plain_quantize(experts(), samples(), recipe=again)
    assert np.sum((run(again.qdq) - wanted) ** 2) < np.sum((run(made.qdq) - wanted) ** 2) / 10


def test_gates_of_another_sum() -> None:
    """Gates that are a part of the Softmax over all scores keep their sum; the kernel of QMoE makes it 1."""
    proto = experts(f"{SWIGLU}, normalize_routing_weights = 0")
    recipe = onnxfq.load_recipe("genai-int4").override(activations=None)
    result = plain_quantize(proto, samples(), recipe=recipe)
    assert any(node.op_type == "QMoE" for node in result.qdq.graph.node)
    assert_close(run(result.qdq), simulate(result))
    assert_close(run(load_existing(result.qdq, "requantize").proto), run(result.qdq))


def test_an_expert_without_tokens() -> None:
    """Weights of an expert that no token reaches keep the nearest numbers, and are named."""
    int4 = onnxfq.load_recipe("genai-int4")
    schemes = [int4.override(weights={"rounding": one}) for one in ("nearest", "qronos")]
    made = [plain_quantize(experts(last=-1e4), samples(), recipe=scheme) for scheme in schemes]
    assert made[1].rounding.nearest.keys() == {f"up.{EXPERTS - 1}", f"down.{EXPERTS - 1}"}
    nearest, rounded = ({one.name: to_array(one) for one in each.qdq.graph.initializer} for each in made)
    for name in ("y/fc1_0", "y/fc2_0"):
        same = [bool((nearest[name][at] == rounded[name][at]).all()) for at in range(EXPERTS)]
        assert same == [*[False] * (EXPERTS - 1), True]


def test_experts_that_differ(caplog: pytest.LogCaptureFixture) -> None:
    """Experts of two formats are right as products of every token, and a note says that they are."""
    override = {"nodes": ["*/1/fc2"], "weights": {"qtype": "int8"}}
    recipe = onnxfq.load_recipe("genai-int4").override(overrides=[override])
    result = plain_quantize(experts(), samples(), recipe=recipe)
    assert sum(node.op_type == "MatMulNBits" for node in result.qdq.graph.node) == 2 * EXPERTS
    assert "is written as 8 products that compute every token" in caplog.text
    assert_close(run(result.qdq), simulate(result))


@pytest.mark.parametrize(("most", "bits"), [(6.0, 4), (8.0, 8)])
def test_experts_get_wider_together(most: float, bits: int) -> None:
    """All experts get more bits or none does, so that a QMoE holds them."""
    wider = onnxfq.AccuracyTarget(weight_bits=most, fallback="genai-int8")
    result = onnxfq.quantize(experts(), samples(8), recipe="genai-int4", accuracy=wider)
    (node,) = [node for node in result.qdq.graph.node if node.op_type == "QMoE"]
    assert {a.name: a.i for a in node.attribute}["expert_weight_bits"] == bits


def test_other_forms() -> None:
    """A MoE without SwiGLU, which GenAI's builder does not write for CPUs, stays whole."""
    split = prepare_model(load(experts('activation_type = "silu"')), "genai").proto
    assert [node.op_type for node in split.graph.node] == ["MatMul", "Add", "Reshape", "MoE"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("s = Softmax (m) v, i = TopK <axis = -1> (s, two) p = Gather (table, i) z = MatMul (p, w)", True),
        ("v, z = TopK <axis = -1> (m, two)", False),  # the best classes of a classifier
        ("v, i = TopK <axis = 0> (m, two) p = Gather (table, i) z = MatMul (p, w)", False),  # of queries
    ],
)
def test_routers(text: str, found: bool) -> None:
    """A narrow matrix whose largest columns choose for later products stays in float, for any target."""
    kind = "int64" if "v, z" in text else "float"
    proto = build(
        f"g (float[T,{WIDTH}] x) => ({kind}[] z) {{ m = MatMul (x, r) {text} }}",
        {"r": weights(WIDTH, 16), "two": np.array([2]), "table": weights(TOKENS, 16), "w": weights(16, 16)},
    )
    plan = onnxfq.make_plan(onnxfq.load(proto), onnxfq.load_recipe("tensorrt-int8"))
    assert found == any(one.rule == "router" for one in plan.skipped)


def test_rings() -> None:
    """A cache that is a ring is given with the places of its window."""
    node = onnx.helper.make_node(
        "GroupQueryAttention", [*"qkvab"], ["y"], sliding_window_cache=1, local_window_size=8
    )
    graph = onnx.helper.make_graph([node], "g", [], [])
    assert _find_rings(onnx.helper.make_model(graph)) == {"a": 8, "b": 8}
