"""Concat and poolings between quantized tensors: where they get pairs, and one scale."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import build, planned, stage, weights, with_override

import onnxfq
from onnxfq.documents.encodings import Encodings
from onnxfq.documents.plan import Plan
from onnxfq.documents.recipe import Recipe
from onnxfq.errors import RecipeError
from onnxfq.runtime.session import Session
from onnxfq.stages.insert import insert_fake_quantize, insert_qdq
from onnxfq.targets.recipes import load_recipe
from onnxfq.targets.tensorrt.rewrites.refused_forms import count_padding

SKIP = """[c1] a = Conv <pads = [1,1,1,1]> (x, w) [relu] b = Relu (a)
    [pool] c = MaxPool <kernel_shape = [3,3], pads = [1,1,1,1]> (b) [c2] d = Conv (c, k)
    [join] e = Concat <axis = 1> (b, d) [c3] {} = Conv (e, k2)"""
CONSTANTS = {"w": weights(4, 4, 3, 3), "k": weights(4, 4, 1, 1) / 4, "k2": weights(4, 8, 1, 1)}


def network(
    text: str = SKIP, shape: str = "N,4,8,8", outputs: str = "float[] y", **more: object
) -> onnx.ModelProto:
    """A skip connection around a MaxPool and a convolution, joined by a Concat; `text` may replace it."""
    return build(f"g (float[{shape}] x) => ({outputs}) {{ {text.format('y')} }}", CONSTANTS | more)


def bridges(plan: Plan) -> dict[str, tuple[str, ...]]:
    """Return the tensors of each bridge."""
    return {bridge.node: bridge.tensors for bridge in plan.bridges}


def scale_of(encodings: Encodings, tensor: str) -> float:
    """Return the one scale of `tensor`."""
    return float(encodings[tensor].scale)


def test_a_skip_connection() -> None:
    """The Concat, its inputs and the MaxPool next to it have one pair a tensor, all of one scale."""
    proto = network()
    one = stage(proto)
    assert bridges(one.plan) == {"pool": ("b", "c"), "join": ("b", "d", "e")}
    assert one.encodings.unshared == ()
    assert len({scale_of(one.encodings, tensor) for tensor in "bcde"}) == 1
    assert scale_of(one.encodings, "x") != scale_of(one.encodings, "b")
    why = next(p.why for p in one.plan.placements if p.tensor == "d")
    assert why == "input of Concat 'join', which runs in low precision between pairs"
    parts = (one.model, one.plan, one.encodings)
    qdq = insert_qdq(*parts)
    onnx.checker.check_model(qdq, full_check=True)
    join = next(node for node in qdq.graph.node if node.name == "join")
    assert list(join.input) == ["b/dq", "d/dq"]
    (got,) = Session(qdq, 1, exact=True).run(one.feed)
    (want,) = Session(insert_fake_quantize(*parts), 1, exact=True).run(one.feed)
    np.testing.assert_array_equal(got, want)
    (real,) = Session(proto, 1).run(one.feed)
    assert np.linalg.norm(got - real) < 0.1 * np.linalg.norm(real)


def test_values_of_other_sizes_keep_their_scales() -> None:
    """If one scale costs too much, the encodings name the operator, and its inputs lose their pairs."""
    one = stage(network(k=weights(4, 4, 1, 1) * 1000))
    assert one.encodings.unshared == ("join",)
    assert scale_of(one.encodings, "b") < scale_of(one.encodings, "e") / 100
    qdq = insert_qdq(one.model, one.plan, one.encodings)
    join = next(node for node in qdq.graph.node if node.name == "join")
    assert list(join.input) == ["b", "d"]
    part = one.plan.without_bridges(one.encodings.unshared, "why")
    assert {s.name: s.why for s in part.skipped if s.name in ("join", "d")} == {
        "join": "why",
        "d": "read by an operator in float: why",
    }
    assert Encodings.model_validate(one.encodings.model_dump()).unshared == ("join",)


UNBRIDGED = {
    "an output of the model": network(SKIP, outputs="float[] y, float[] e"),
    "a reader in float": network(SKIP + " [s] z = Sigmoid (e)", outputs="float[] y, float[] z"),
    "a constant input": network(SKIP.replace("(b, d)", "(b, v)"), "1,4,8,8", v=weights(1, 4, 8, 8)),
    "an equalized input": network(
        "[c1] b = Conv (x, k) [deep] d = Conv <group = 4, pads = [1,1,1,1]> (b, g) [join] "
        "e = Concat <axis = 1> (b, d) [c3] y = Conv (e, k2)",
        g=weights(4, 1, 3, 3),
    ),
    "keys of an attention": build(
        """g (float[N,2,8,16] q, float[N,2,8,16] k, float[N,2,8,16] v) => (float[] y) {
            [join] t = Concat <axis = 3> (k, v) [two] s = Concat <axis = 3> (q, q)
            u = Transpose <perm = [0,1,3,2]> (t) [m] y = MatMul (s, u) }"""
    ),
}


@pytest.mark.parametrize("name", UNBRIDGED)
def test_none_where_pairs_would_cost(name: str) -> None:
    """A reader that wants floats, and tensors that cannot have the common scale, prevent it."""
    assert "join" not in bridges(planned(UNBRIDGED[name]))


@pytest.mark.parametrize(
    "recipe",
    [
        with_override(op_types=["Concat", "MaxPool"], keep_float=True),
        with_override(nodes=["join", "pool"], keep_float=True),
        load_recipe("tensorrt-int8-weights").model_copy(update={"target": "onnxruntime"}),
    ],
)
def test_no_bridges(recipe: Recipe) -> None:
    """An override leaves them out, and a target without integer kernels for them has none."""
    plan = planned(network(), recipe)
    assert not plan.bridges and not any(p.tensor == "d" for p in plan.activations)


def test_chains_of_pools() -> None:
    """Poolings that feed each other and a Concat are bridges of one scale; a first pooling is none."""
    pool = "MaxPool <kernel_shape = [3,3], pads = [1,1,1,1]>"
    text = f"""[first] o = {pool} (x) [c1] a = Conv (o, k) [p1] b = {pool} (a) [p2] c = {pool} (b)
        [join] e = Concat <axis = 1> (a, b, c) [c3] y = Conv (e, k3)"""
    one = stage(network(text, k3=weights(4, 12, 1, 1)))
    assert bridges(one.plan) == {"p1": ("a", "b"), "p2": ("b", "c"), "join": ("a", "b", "c", "e")}
    assert len({scale_of(one.encodings, tensor) for tensor in "abce"}) == 1


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ("kernel_shape = [2,2]", True),
        ("kernel_shape = [2,2], ceil_mode = 1", False),
        ("kernel_shape = [2,2], count_include_pad = 1", True),
        ("kernel_shape = [3,3], pads = [1,1,1,1]", True),
        ("kernel_shape = [3,3], pads = [0,0,1,1]", False),
    ],
)
def test_average_pools(attributes: str, expected: bool) -> None:
    """An AveragePool that TensorRT has in int8 gets a pair in front, of its own scale."""
    text = f"[c1] a = Conv (x, k) [pool] b = AveragePool <{attributes}> (a) [c2] y = Conv (b, k)"
    one = stage(network(text))
    assert bridges(one.plan) == ({"pool": ("a", "b")} if expected else {})
    if expected:
        assert scale_of(one.encodings, "a") != scale_of(one.encodings, "b")
        kept = planned(network(text), with_override(op_types=["AveragePool"], keep_float=True))
        assert not kept.bridges
        asked = with_override(op_types=["AveragePool"], activations={"calibrator": "minmax"})
        made = {p.tensor: str(p.calibrator) for p in planned(network(text), asked).activations}
        assert made == {"x": "best_error", "a": "minmax", "b": "best_error"}


@pytest.mark.parametrize("more", ["", ', auto_pad = "VALID"', ", strides = [2,2]", ", pads = [0,0,0,0]"])
def test_pools_without_padding(more: str) -> None:
    """They get the attribute that TensorRT needs for int8, and give the same bits."""
    proto = network(f"[pool] y = AveragePool <kernel_shape = [3,3]{more}> (x)", "N,4,9,9")
    made = deepcopy(proto)
    assert count_padding(made) and not count_padding(made)
    attributes = {a.name: a.i for a in made.graph.node[0].attribute}
    assert attributes["count_include_pad"] == 1 and "auto_pad" not in attributes
    feed = {"x": weights(2, 4, 9, 9)}
    np.testing.assert_array_equal(*(Session(one, 1).run(feed)[0] for one in (proto, made)))


@pytest.mark.parametrize("op_type", ["Relu", "AveragePool"])
def test_an_override_that_changes_nothing(op_type: str) -> None:
    """A format for an operator that no rule quantizes is an error with the nearest right way."""
    text = """[c1] a = Conv (x, k) [r] b = Relu (a)
        [pool] c = AveragePool <kernel_shape = [2,2], ceil_mode = 1> (b) [c2] y = Conv (c, k)"""
    words = f"override of {op_type} sets a format but matches no input that target tensorrt quantizes"
    words += ".* of Conv, such as Conv 'c2', which reads it" if op_type == "AveragePool" else ""
    with pytest.raises(RecipeError, match=words):
        planned(network(text), with_override(op_types=[op_type], activations={"calibrator": "minmax"}))
    planned(network(text), with_override(op_types=[op_type], keep_float=True))


def test_scales_of_a_file(tmp_path: Path) -> None:
    """A file without scales of the inputs of a Concat is used as it is, the Concat in float."""
    one = stage(network(k=weights(4, 4, 1, 1) * 1000))
    path = tmp_path / "cache"
    path.write_text(onnxfq.export_encodings(one.encodings, one.plan, "tensorrt-cache").text, encoding="utf-8")
    made = onnxfq.quantize(
        network(k=weights(4, 4, 1, 1) * 1000), [one.feed], sources=onnxfq.Sources(encodings=path)
    )
    assert bridges(made.plan) == {"pool": ("b", "c")} and "join" in {s.name for s in made.plan.skipped}
    assert scale_of(made.encodings, "e") == pytest.approx(scale_of(one.encodings, "e"))
