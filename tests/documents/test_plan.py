"""Plans: exact through files, coverage counted, another model refused."""

from __future__ import annotations

import json

import pytest

from onnxfq.documents.plan import Coverage, Placement, Plan, QuantizableNode, Skipped
from onnxfq.errors import PlanError
from onnxfq.graph.names import Use
from onnxfq.numerics.spec import QuantSpec

SPEC = QuantSpec(qtype="int8")


def placed(tensor, *uses, role="activation"):
    """A placement of `tensor` that is read at `uses`."""
    return Placement(
        tensor=tensor, role=role, spec=SPEC, uses=tuple(Use(*u) for u in uses), why="input of Conv"
    )


def node(name, op_type, *slots):
    """A node that needs its input `slots`."""
    return QuantizableNode(node=name, op_type=op_type, needs=tuple(Use(name, s) for s in slots))


PLAN = Plan(
    model_sha256="ab" * 32,
    recipe="tensorrt-int8",
    target="tensorrt",
    placements=(
        placed("x", ("c1", 0), ("c2", 0)),
        placed("w1", ("c1", 1), role="weight"),
        placed("y", ("g", 0)),
        placed("wg", ("g", 1), role="weight"),
    ),
    nodes=(
        node("c1", "Conv", 0, 1),
        node("c2", "Conv", 0, 1),  # its weight is not placed
        node("g", "Gemm", 0, 1),
        node("b", "MatMul (in a body)"),  # nothing to read: counted, never quantized
    ),
    skipped=(Skipped(name="c2", kind="node", op_type="Conv", why="kept in float"),),
)


def test_file_is_exact(tmp_path):
    """A plan, saved and loaded, is equal, uses included."""
    PLAN.save(tmp_path / "p.json")
    loaded = Plan.load(tmp_path / "p.json")
    assert loaded == PLAN
    assert loaded.placements[0].uses[1] == Use(node="c2", input=0)


def test_coverage_counts_nodes_whose_every_need_is_placed():
    """A node is quantized when all its needed slots read quantized values; most frequent op types first."""
    assert PLAN.coverage() == [
        Coverage("Conv", 1, 2),
        Coverage("Gemm", 1, 1),
        Coverage("MatMul (in a body)", 0, 1),
    ]
    assert [str(row) for row in PLAN.coverage()] == ["Conv 1/2", "Gemm 1/1", "MatMul (in a body) 0/1"]


def test_coverage_follows_an_edit():
    """Whoever removes a placement from the file sees it in the coverage."""
    fewer = PLAN.model_copy(update={"placements": PLAN.placements[1:]})
    assert fewer.coverage()[0] == Coverage("Conv", 0, 2)
    assert PLAN.model_copy(update={"nodes": ()}).coverage() == []


def test_roles():
    """Activations need data, weights do not; together they are all placements, in order."""
    assert [p.tensor for p in PLAN.activations] == ["x", "y"]
    assert [p.tensor for p in PLAN.weights] == ["w1", "wg"]


def test_another_model():
    """A plan of another model is refused with both hashes and the remedy."""
    PLAN.check_model("ab" * 32)
    with pytest.raises(
        PlanError, match="SHA-256 abababababab, this one has cdcdcdcdcdcd; make a new plan with"
    ):
        PLAN.check_model("cd" * 32)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda p: p.update(format="onnxfq.plan/2"), "format: is 'onnxfq.plan/2', wanted is 'onnxfq.plan/1'"),
        (
            lambda p: p["placements"][1]["spec"].update(dynamic=True),
            "placements.1: weight 'w1' is dynamic, but its values are constant; remove dynamic",
        ),
        (
            lambda p: p["placements"][0].update(role="output"),
            "placements.0.role: Input should be 'activation', 'weight' or 'bias'",
        ),
        (
            lambda p: p["placements"][0].update(tensr="x"),
            "placements.0.tensr: no such field; nearest: tensor",
        ),
        (
            lambda p: p["placements"][0]["spec"].update(symetric=True),
            "placements.0.spec.symetric: no such field; nearest: symmetric",
        ),
        (
            lambda p: p["placements"][0]["spec"].update(qtype="uint8"),
            "placements.0.spec: symmetric needs a signed qtype, got uint8",
        ),
        (lambda p: p["placements"][0].update(uses=[["c1"]]), "placements.0.uses.0"),
    ],
)
def test_edited_wrongly(tmp_path, change, words):
    """A person may edit a plan; a slip is one line with file, field and remedy."""
    content = json.loads(PLAN.model_dump_json())
    change(content)
    path = tmp_path / "p.json"
    path.write_text(json.dumps(content))
    with pytest.raises(PlanError) as caught:
        Plan.load(path)
    assert str(caught.value).startswith(f"{path}: {words}")


def test_a_tensor_is_placed_once(tmp_path):
    """An edited plan that places one tensor twice is refused with its name: which spec would win?"""
    content = json.loads(PLAN.model_dump_json())
    content["placements"].append(content["placements"][0])
    (tmp_path / "p.json").write_text(json.dumps(content))
    with pytest.raises(PlanError, match="tensor 'x' is placed twice; join its uses in one placement"):
        Plan.load(tmp_path / "p.json")
