"""Names mean nothing, and a constant that several nodes read is one constant."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import numpy as np
import onnx
import pytest
from builders import BUILDERS, Arrays, build, constants, feed_for, planned, square, stage, weights

from onnxfq.errors import PlanError
from onnxfq.graph.io.load import load
from onnxfq.graph.model import list_graphs, list_nodes
from onnxfq.passes.observe.insert_observers import OBSERVE_OUTPUTS, observe_output
from onnxfq.runtime.session import Session
from onnxfq.stages.calibrate import calibrate
from onnxfq.stages.insert import insert_fake_quantize, insert_qdq
from onnxfq.stages.observe import collect_statistics
from onnxfq.stages.observers import ObserveOptions
from onnxfq.stages.plan import make_plan
from onnxfq.targets.recipes import load_recipe

Rename = Callable[[str, int], str]


def renamed(proto: onnx.ModelProto, tensors: Rename, nodes: Rename) -> tuple[onnx.ModelProto, dict[str, str]]:
    """Return `proto` with other names, numbered in order of appearance, and {old tensor: new}."""
    made = deepcopy(proto)
    names: dict[str, str] = {"": ""}
    for graph in list_graphs(made.graph):
        values = [*graph.input, *graph.initializer, *graph.output]
        outputs = [name for node in graph.node for name in node.output]
        for name in [*(v.name for v in values), *outputs]:
            names.setdefault(name, tensors(name, len(names)))
        for value in values:
            value.name = names[value.name]
        del graph.value_info[:]
    for number, node in enumerate(list_nodes(made.graph)):
        node.name = nodes(node.name, number)
        node.input[:] = [names[name] for name in node.input]
        node.output[:] = [names[name] for name in node.output]
    return made, names


def outputs(proto: onnx.ModelProto, feed: Arrays) -> list[list[np.ndarray]]:
    """Quantize on `feed` and return what the Q/DQ and the fake-quant model give."""
    model = load(proto)
    plan = make_plan(model, load_recipe("tensorrt-int8"))
    encodings = calibrate(model, plan, collect_statistics(model, plan, [feed], ObserveOptions(threads=1)))
    results = []
    for insert in (insert_qdq, insert_fake_quantize):
        made = insert(model, plan, encodings)
        onnx.checker.check_model(made, full_check=insert is insert_qdq)
        assert [v.name for v in made.graph.output] == [v.name for v in proto.graph.output]
        names = [node.name for node in list_nodes(made.graph)]
        assert len(set(names)) == len(names) and all(names)
        results.append(Session(made, 1, exact=True).run(feed))
    return results


OURS = tuple("q dq scale zero_point fq clip observe observe/range observe/bins q_2 dq_2".split())
SCHEMES: dict[str, tuple[Rename, Rename]] = {
    "unicode": (lambda n, i: f"层/卷积 {i} ñ\U0001f600{n}", lambda n, i: f"узел {i}"),
    "spaces": (lambda n, i: f"  a b {i}\t", lambda n, i: f" {n} {i} "),
    "slashes": (lambda n, i: f"//{i}///{n}/", lambda n, i: f"/{i}/"),
    "signs": (lambda n, i: f"a|b]{i}[*?'\"%s{{}}\\", lambda n, i: f"]|{i}"),
    "numbers": (lambda n, i: str(i), lambda n, i: str(i)),
    "suffixes": (lambda n, i: "b" if i == 1 else f"b_{i}" if i % 2 else f"b{i}", lambda n, i: f"b_{i}"),
    "long": (lambda n, i: f"{'l' * 900}{i}", lambda n, i: "n" * 900),
    "unnamed nodes": (lambda n, i: n, lambda n, i: ""),
    "nodes of one name": (lambda n, i: n, lambda n, i: "same"),
    "tensors like ours": (
        lambda n, i: "t" if i == 1 else f"t/{OURS[i % len(OURS)]}{'' if i < len(OURS) else f'_{i}'}",
        lambda n, i: f"t/{OURS[i % len(OURS)]}",
    ),
    "nodes like tensors": (lambda n, i: n, lambda n, i: "x"),
    "the switch": (lambda n, i: "onnxfq/enabled" if i == 3 else f"onnxfq/{i}", lambda n, i: f"onnxfq/{i}"),
}


@pytest.mark.grid
@pytest.mark.parametrize("name", ["two_branch", "attention", "tied_embedding", "if_body", "gemm"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_names_change_nothing(scheme: str, name: str) -> None:
    """Any names give the bits of the plain ones; inputs and outputs keep theirs, nodes are unique."""
    proto = BUILDERS[name]()
    feed = feed_for(proto)
    strange, names = renamed(proto, *SCHEMES[scheme])
    want = outputs(proto, feed)
    got = outputs(strange, {names[key]: array for key, array in feed.items()})
    for have, wanted in zip(got, want, strict=True):
        for a, b in zip(have, wanted, strict=True):
            np.testing.assert_array_equal(a, b)


def test_an_input_named_like_an_observer() -> None:
    """Only the name of an input cannot be given away: refused, with the remedy."""
    taken = observe_output("h", OBSERVE_OUTPUTS[0])
    proto = square("h = Relu (x) y = MatMul (h, w)")
    proto, _ = renamed(proto, lambda n, i: taken if n == "x" else n, lambda n, i: n)
    says = "input 'h/observe/range' has the name of a result .* rename the input"
    with pytest.raises(PlanError, match=says):
        collect_statistics(load(proto), planned(proto), [feed_for(proto)])


def test_a_tied_table_is_split_with_a_note() -> None:
    """The lookup stays exact, so the table is stored in both forms, and the plan says so."""
    (weight,) = planned(BUILDERS["tied_embedding"]()).weights
    assert weight.why.endswith("; Gather 'look' reads it in float, so it is stored in both forms")
    one = stage(BUILDERS["tied_embedding"]())
    stored = {t.name for t in insert_qdq(one.model, one.plan, one.encodings).graph.initializer}
    assert {"table", "table/q"} <= stored


def test_tied_weights_of_two_transposes_are_one() -> None:
    """Two Transposes of one weight, and the weight itself, are placed once and stored once."""
    turned = "t1 = Transpose (w) a = MatMul (x, t1) t2 = Transpose (w) b = MatMul (a, t2)"
    one = stage(square(f"{turned} y = Gemm <transB=1> (b, w)"))
    (weight,) = one.plan.weights
    assert len(weight.uses) == 3 and weight.spec.granularity.axis == 0
    qdq = insert_qdq(one.model, one.plan, one.encodings)
    assert [t.name for t in qdq.graph.initializer if t.name.startswith("w")].count("w/q") == 1
    assert "w" not in {t.name for t in qdq.graph.initializer}


def test_a_weight_behind_reshapes() -> None:
    """A weight that a Conv reads as it is and a MatMul reshaped is quantized for each as it reads it."""
    proto = build(
        """g (float[1,4,3,3] x) => (float[1,9,4] y) {
            c = Conv (x, w) f = Reshape (c, flat) t = Transpose <perm=[0,2,1]> (f)
            m = Reshape (w, square) y = MatMul (t, m) }""",
        {"w": weights(4, 4, 1, 1), "flat": np.int64([1, 4, 9]), "square": np.int64([4, 4])},
    )
    plan = planned(proto)
    assert {(p.tensor, p.spec.granularity.axis) for p in plan.weights} == {("w", 0), ("m", 1)}
    got, want = outputs(proto, feed_for(proto))
    np.testing.assert_array_equal(got[0], want[0])


def test_a_bias_of_three_convolutions() -> None:
    """A bias that three Conv share stays one float constant."""
    proto = build(
        """g (float[N,4,3,3] x) => (float[N,4,3,3] y) {
            a = Conv (x, w1, b) c = Conv (a, w2, b) y = Conv (c, w3, b) }""",
        {**{f"w{i}": weights(4, 4, 1, 1, seed=i) for i in (1, 2, 3)}, "b": weights(4)},
    )
    one = stage(proto)
    assert [str(row) for row in one.plan.coverage()] == ["Conv 3/3"]
    made = insert_qdq(one.model, one.plan, one.encodings)
    assert [t.name for t in made.graph.initializer].count("b") == 1
    assert sum("b" in node.input for node in made.graph.node) == 3
    got, want = outputs(proto, one.feed)
    np.testing.assert_array_equal(got[0], want[0])


def test_equal_weights_keep_their_names() -> None:
    """Two constants of equal content are two weights: nothing is merged that the model keeps apart."""
    one = stage(square("h = MatMul (x, a) y = MatMul (h, b)", dict.fromkeys("ab", weights(4, 4))))
    stored = constants(insert_qdq(one.model, one.plan, one.encodings))
    np.testing.assert_array_equal(stored["a/q"], stored["b/q"])
