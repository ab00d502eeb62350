"""Parts of outputs: what a last Concat joins, where it stands in the output, and what stays whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from builders import build, feed_for, scalars, weights
from detector_heads import PLACES, detector, head

from onnxfq.graph.node_notes import SCOPES_KEY
from onnxfq.graph.normalize.shapes import with_shapes
from onnxfq.graph.patterns.logits import JudgedTensors, judge_outputs
from onnxfq.graph.patterns.parts import MOST_PARTS
from onnxfq.graph.signature import with_outputs
from onnxfq.runtime.session import Session
from onnxfq.stages.evaluate import evaluate

X = np.random.default_rng(2).normal(size=(5, 16)).astype(np.float32)


def judged(proto: onnx.ModelProto) -> JudgedTensors:
    """Return what judges a model."""
    return judge_outputs(with_shapes(proto))


@pytest.mark.parametrize("form", PLACES)
def test_parts_hold_what_the_concat_joins(form: str) -> None:
    """Each part has the values of its inner tensors as ONNX Runtime computes them, and all are in one."""
    proto, wanted = detector(form), PLACES[form][2]
    parts = judged(proto).parts["y"]
    inner = [name for names in wanted for name in names]
    y, *values = Session(with_outputs(proto, inner), 1).run({"x": X}, ["y", *inner])
    known = dict(zip(inner, values, strict=True))
    for part, names in zip(parts, wanted, strict=True):
        expected = np.concatenate([known[name].ravel() for name in names])
        np.testing.assert_array_equal(np.sort(part.of(y).ravel()), np.sort(expected))
    numbers = np.arange(y.size).reshape(y.shape)
    found = np.concatenate([part.of(numbers).ravel() for part in parts])
    np.testing.assert_array_equal(np.sort(found), numbers.ravel())


BEHIND = {
    "a factor": "y = Mul (c, stride)",
    "a shift for each place": "y = Add (grid, c)",
    "a squash": "y = Tanh (c)",
    "several": "d = Div (c, stride) e = Identity (d) f = Sub (e, prior) y = Sigmoid (f)",
    "axes of one": "d = Unsqueeze (c, one) y = Squeeze (d, one)",
}
OPEN = {
    "a sum of two": "y = Mul (c, c)",
    "another function": "y = Exp (c)",
    "a cut": "y = Slice (c, zero, two, one)",
}


@pytest.mark.parametrize("nodes", [*BEHIND, *OPEN])
def test_operators_behind_the_concat(nodes: str) -> None:
    """What moves, scales, shifts or squashes is followed; what mixes elements leaves the output whole."""
    size = 2 if nodes == "a cut" else 7
    proto = head(f"float[N,{size},8] y", f"c = Concat <axis = 1> (boxes, scores) {(BEHIND | OPEN)[nodes]}")
    for name, values in (("one", [1]), ("zero", [0]), ("two", [2])):
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.int64(values), name))
    assert [part.source for part in judged(proto).parts.get("y", ())] == (
        ["'boxes'", "'scores'"] if nodes in BEHIND else []
    )


def test_numbered_tensors_are_named_by_their_makers() -> None:
    """A part that an exporter numbered is named by the module or node that makes it; equals are counted."""
    proto = build(
        """g (float[N,4,8] x) => (float[N,4,24] y) {
            [node_1] val_1 = MatMul (x, w)
            [node_2] val_2 = MatMul (x, w)
            val_3 = Identity (val_2)
            [node_4] val_4 = MatMul (x, w)
            y = Concat <axis = 2> (val_1, val_3, val_4) }""",
        {"w": weights(8, 8)},
    )
    for node in proto.graph.node:
        if node.name in ("node_1", "node_2"):
            node.metadata_props.add(key=SCOPES_KEY, value="['', 'head.boxes', 'linear']")
    assert [part.name for part in judged(proto).parts["y"]] == [
        "part 1 of 2, MatMul of 'head.boxes'",
        "part 2 of 2, MatMul of 'head.boxes'",
        "part MatMul of 'node_4'",
    ]


@pytest.mark.parametrize("count", [2, MOST_PARTS, MOST_PARTS + 1])
def test_many_parts(count: int) -> None:
    """An output of more parts than MOST_PARTS stays whole."""
    names = ", ".join(["a"] * count)
    proto = build(
        f"g (float[N,4] x) => (float[N,K] y) {{ a = MatMul (x, w) y = Concat <axis = 1> ({names}) }}",
        {"w": weights(4, 4)},
    )
    assert len(judged(proto).parts.get("y", ())) == (count if count <= MOST_PARTS else 0)


def test_open_sizes() -> None:
    """One open size is what the others leave; with two of them nobody knows where the second begins."""
    text = """g (float[1,M] x, float[1,K] u) => (float[1,L] y) {{
        a = MatMul (one, x) b = MatMul (one, u) c = MatMul (one, three) y = Concat <axis = 1> ({}) }}"""
    constants = {"one": np.ones((1, 1), np.float32), "three": np.ones((1, 3), np.float32)}
    for inputs, starts in (("c, a, c", [0, 3, 8]), ("a, c", [0, 5]), ("a, b", None)):
        proto = build(text.format(inputs), constants)
        proto.graph.node[2].input[0] = "x1"
        proto.graph.node.insert(0, onnx.helper.make_node("ReduceMax", ["x"], ["x1"], axes=[1]))
        parts = judged(proto).parts.get("y", ())
        y = np.arange(11 if inputs == "c, a, c" else 8)[None]
        assert ([int(part.of(y).flat[0]) for part in parts] or None) == starts


def test_a_long_chain_of_concats_ends() -> None:
    """A tensor that is joined with itself forty times has 2^40 parts; it stays whole, at once."""
    lines = " ".join(f"c{n + 1} = Concat <axis = {1 + n % 2}> (c{n}, c{n})" for n in range(40))
    proto = build(
        f"""g (float[1,4] x) => (float[1,K,L] y) {{
            c = MatMul (x, w) c0 = Unsqueeze (c, one) {lines} y = Identity (c40) }}""",
        {"w": weights(4, 4), "one": np.int64([1])},
    )
    assert len(judged(proto).parts.get("y", ())) <= MOST_PARTS


STATES = {
    "names of past and present, one known size": (
        "float[N,4] x, float[N,2,p,d] past_key_values_0_key, float[N,2,p,d] past_key_values_0_value",
        "float[N,4] y, float[N,2,t,d] present_0_value, float[N,2,t,d] present_0_key",
        {"present_0_value": "past_key_values_0_value", "present_0_key": "past_key_values_0_key"},
    ),
    "shapes": ("float[N,16] x, float[2,1,4] a", "float[N,16] y, float[2,1,4] b", {"b": "a"}),
    "names": ("float[N,16] x, float[N,4] h", "float[N,16] y, float[N,4] hn", {"hn": "h"}),
    "two of one shape": (
        "float[N,16] x, float[2,4] h, float[2,4] c",
        "float[N,16] y, float[2,4] cn, float[2,4] hn",
        {"cn": "c", "hn": "h"},
    ),
    "another shape": ("float[N,16] x, float[2,4] h", "float[N,16] y, float[2,5] hn", {}),
    "another type": ("float[N,16] x, int64[2,4] h", "float[N,16] y, float[2,4] hn", {}),
    "the first output": ("float[N,16] x, float[2,4] h", "float[2,4] hn", {}),
    "an image that is cleaned": ("float[1,3,8,8] x", "float[1,1,8,8] y, float[1,3,8,8] z", {}),
    "one open size and another name": ("float[N,16] x, float[N,4] u", "float[N,16] y, float[N,4] v", {}),
}


@pytest.mark.parametrize("name", STATES)
def test_state_that_is_fed_back(name: str) -> None:
    """A further output of the type and shape of a further input is state, and decides nothing."""
    inputs, outputs, states = STATES[name]
    names = [text.split()[-1] for text in outputs.split(", ")]
    lines = " ".join(f"{output} = Relu (x)" for output in names)
    found = judged(build(f"g ({inputs}) => ({outputs}) {{ {lines} }}"))
    assert found.states == states
    assert found.deciding == tuple(output for output in names if output not in states)


CACHES = {
    "one size is known, GroupQueryAttention": (
        "float[b,2,p,d] past_0_k, float[b,2,p,d] past_0_v",
        "float[b,2,t,d] now_0_a, float[b,2,t,d] now_0_b",
        "[at] c, now_0_a, now_0_b = com.microsoft.GroupQueryAttention <num_heads = 2, kv_num_heads = 2>"
        " (a, k, v, past_0_k, past_0_v, len, tot) y = Relu (c)",
        {"now_0_a": "past_0_k", "now_0_b": "past_0_v"},
    ),
    "fixed lengths, Concat behind a Transpose": (
        "float[1,4,2,8] earlier", "float[1,2,5,8] later",
        "t = Transpose <perm = [0, 2, 1, 3]> (earlier) n = Relu (k) j = Concat <axis = 2> (t, n)"
        " later = Identity (j) y = Relu (a)",
        {"later": "earlier"},
    ),
    "a Concat with the data of the task": (
        "float[1,2,4,8] first", "float[1,1,64] both",
        "both = Concat <axis = 2> (a, v) y = Relu (a)",
        {},
    ),
    "a Concat of two computed tensors": (
        "float[1,2,4,8] first", "float[1,2,5,8] second",
        "r = Relu (first) n = Relu (k) second = Concat <axis = 2> (r, n) y = Relu (a)",
        {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CACHES)
def test_caches_are_state(name: str) -> None:
    """An output that hands on what it reads of an input is state, whatever names and shapes are."""
    inputs, outputs, body, states = CACHES[name]
    given = "float[1,1,32] a, float[1,2,1,8] k, float[1,1,32] v, int32[1] len, int32[1] tot"
    proto = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>\n'
        f"g ({given}, {inputs}) => (float[1,1,32] y, {outputs}) {{ {body} }}"
    )
    assert judged(proto).states == states


_IMAGE = "i = Reshape (x, image) a = Conv (i, k)"
ROWS = {
    "product": ("y = MatMul (x, w)", True),
    "product, bias and log softmax": ("a = MatMul (x, w) b = Add (a, c) y = LogSoftmax (b)", True),
    "product through pairs": (
        "a = MatMul (x, w) q = QuantizeLinear (a, s, z) y = DequantizeLinear (q, s, z)", True,
    ),
    "softmax of features": ("a = MatMul (x, w) r = Relu (a) y = Softmax (r)", True),
    "softmax by its formula": ("a = MatMul (x, w) e = Exp (a) t = ReduceSum (e, one) y = Div (e, t)", True),
    "rows against rows": ("a = MatMul (x, w) t = Transpose (a) y = Gemm (x, t)", True),
    "pooled convolution": (f"{_IMAGE} p = GlobalAveragePool (a) y = Flatten (p)", True),
    "pooled features": (f"{_IMAGE} r = Relu (a) p = GlobalAveragePool (r) y = Flatten (p)", False),
    "mean of positions": (
        "i = Reshape (x, positions) a = MatMul (i, w) y = ReduceMean <axes = [1], keepdims = 0> (a)", False,
    ),
    "unit length": ("a = MatMul (x, w) n = ReduceL2 <axes = [1]> (a) y = Div (a, n)", False),
    "normalized layer": ("a = MatMul (x, w) y = LayerNormalization (a, c)", False),
    "normalized batch": ("a = MatMul (x, w) y = BatchNormalization (a, c, c, c, v)", False),
    "sum of two": ("a = MatMul (x, w) b = MatMul (a, w) y = Add (a, b)", False),
    "activation": ("a = MatMul (x, w) y = Relu (a)", False),
    "pooler": ("a = MatMul (x, w) y = Tanh (a)", False),
    "several answers": ("a = MatMul (x, w) y = Sigmoid (a)", False),
    "boxes and scores": ("y = MatMul (x, far)", False),
    "one column": ("a = MatMul (x, w) y = Slice (a, zero, one, one)", False),
}  # fmt: skip
"""Ends of a network with an output of rank 2, and whether its columns are classes."""

HEADS = {
    "product": ("y = MatMul (x, w)", True),
    "product, bias and softmax": ("a = MatMul (x, w) b = Add (a, c) y = Softmax (b)", True),
    "normalized": ("a = MatMul (x, w) y = LayerNormalization (a, c)", False),
    "sigmoid": ("a = MatMul (x, w) y = Sigmoid (a)", False),
    "product of two": ("t = Transpose <perm = [0, 2, 1]> (x) y = MatMul (x, t)", False),
    "turned": ("a = MatMul (x, w) y = Transpose <perm = [0, 2, 1]> (a)", False),
    "rows": ("r = Reshape (x, rows) a = Gemm (r, w) y = Reshape (a, whole)", True),
    "side by side": ("a = MatMul (x, w) y = Concat <axis = 1> (a, a)", False),
}
"""At rank 3 only an output that ends in the channels of a product with weights has a same top-1."""
ENDS = {
    **{f"rows, {name}": ("float[8,6]", "float[8,K]", *end) for name, end in ROWS.items()},
    **{f"heads, {name}": ("float[2,6,6]", "float[2,K,L]", *end) for name, end in HEADS.items()},
}


def top1(nodes: str, x: str = "float[8,6]", y: str = "float[8,K]", **more: Any) -> float | None:
    """Return the share of equal top-1 of a network with itself, None without classes."""
    constants = {
        **{"w": weights(6, 6), "k": weights(6, 6, 1, 1), "c": weights(6), "v": np.ones(6, np.float32)},
        **{"s": np.float32(0.1), "z": np.int8(0)},
        **scalars(np.int64, zero=[0], one=[1], image=[8, 6, 1, 1], positions=[8, 1, 6]),
        **scalars(np.int64, rows=[-1, 6], whole=[2, 6, 6]),
        "far": weights(6, 6) * np.float32([1000, 1000, 1000, 1000, 1, 1]),
    }
    proto = build(f"g ({x} x) => ({y} y) {{ {nodes} }}", constants)
    feed = feed_for(proto)
    (score,) = evaluate(proto, proto, [feed], **more).candidates[0].outputs
    return score.top1_agreement


"""Ends of a network with an output of rank 2, and whether its columns are classes."""


@pytest.mark.parametrize("name", ENDS)
def test_same_class_needs_classes(name: str) -> None:
    """Scores of a last product, and probabilities on the data, have a same top-1; features have none."""
    x, y, nodes, has_classes = ENDS[name]
    assert top1(nodes, x, y) == (1.0 if has_classes else None)


def test_labels_say_that_there_are_classes() -> None:
    """With labels the first output has classes, whatever makes it."""
    assert top1("a = MatMul (x, w) y = Sigmoid (a)", labels=np.arange(8) % 6) == 1.0
