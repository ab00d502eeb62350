"""Experts: their products against ONNX Runtime's MoE, QMoE against the simulation, and routers."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from builders import build, plain_quantize, weights
from onnx.numpy_helper import to_array

import onnxfq
from onnxfq.graph.io.load import load
from onnxfq.interchange.genai_folder import _find_rings
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
        logits = MatMul (x, router)
        raised = Add (logits, favour)
        scores = Reshape <allowzero = 0> (raised, rows)
        y = com.microsoft.MoE <k = 2, {attributes}> (x, scores, up, up_bias, down, down_bias)
    }}"""
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
    return [
        {"x": one}
        for one in np.random.default_rng(0).normal(size=(count, 1, TOKENS, WIDTH)).astype(np.float32)
    ]


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
    ("name", "rounded"),
    [("genai-int4", False), ("genai-int4", True), ("genai-uint4", True), ("genai-int8", True)],
)
def test_quantized(name: str, rounded: bool) -> None:
    """ONNX Runtime's QMoE computes what the simulation computes; the router stays in float by its rule."""
    proto, recipe = experts(), onnxfq.load_recipe(name)
    result = plain_quantize(proto, samples(), recipe=recipe if rounded else recipe.override(activations=None))
    assert [node.op_type for node in result.qdq.graph.node] == ["MatMul", "Add", "Reshape", "QMoE"]
    assert ("MatMul", "router") in {(one.op_type, one.rule) for one in result.plan.skipped}
    assert_close(run(result.qdq), simulate(result))


def test_an_expert_without_tokens() -> None:
    """Weights of an expert that no token reaches keep the nearest numbers, and are named."""
    schemes = [
        onnxfq.load_recipe("genai-int4").override(weights={"rounding": one}) for one in ("nearest", "qronos")
    ]
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
