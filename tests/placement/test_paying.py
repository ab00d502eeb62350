"""Products that a table of times leaves in float."""

from __future__ import annotations

import importlib
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from builders import build, plain_quantize, planned, weights
from torch.utils.flop_counter import FlopCounterMode

from onnxfq.cli.main import main
from onnxfq.documents.product_times import ProductSize, ProductTimes, TimedProduct, load_times
from onnxfq.errors import RecipeError
from onnxfq.graph.io.load import load
from onnxfq.graph.queries import nodes_by_graph
from onnxfq.placement.paying import size_product
from onnxfq.targets.recipes import load_recipe
from onnxfq.targets.target import prepare_model

pytestmark = pytest.mark.sample

WIDTHS, ROWS = (16, 32, 48, 64, 96), 8
CROSSING = 1e-9
"""Seconds of a number between the forms."""


def chain() -> onnx.ModelProto:
    """Four products with a Relu behind each."""
    text = " ".join(
        f"[m{n}] a{n} = MatMul (x{n}, w{n}) x{n + 1} = Relu (a{n})" for n in range(len(WIDTHS) - 1)
    )
    arrays = {f"w{n}": weights(*pair) for n, pair in enumerate(itertools.pairwise(WIDTHS))}
    graph = f"g (float[{ROWS},16] x0) => (float[{ROWS},96] x{len(WIDTHS) - 1}) {{ {text} }}"
    return build(graph, arrays)


def table(seconds: Sequence[tuple[float, float]], crossing: float = CROSSING) -> ProductTimes:
    """Return times in float and in int8 of the products of `chain`."""
    rows = [
        TimedProduct(
            kind="product",
            groups=1,
            rows=ROWS,
            columns=out,
            summed=into,
            seconds={"float": full, "int8": low},
            crossing=(ROWS, ROWS * crossing),
        )
        for (into, out), (full, low) in zip(itertools.pairwise(WIDTHS), seconds, strict=True)
    ]
    return ProductTimes(
        device="a GPU",
        how="a test",
        date="2026-01-02",
        versions={},
        float_type="float16",
        errors={"int8": (0.1, 0.2)},
        rows=tuple(rows),
    )


def cost(seconds: Sequence[tuple[float, float]], low: Sequence[bool]) -> float:
    """Return the time of `chain` by its products, and by tensors in float that one in few bits reads."""
    forms = itertools.pairwise([False, *low])
    crossed = [
        ROWS * width * CROSSING for width, (a, b) in zip(WIDTHS[:-1], forms, strict=True) if b and not a
    ]
    return sum(pair[is_low] for pair, is_low in zip(seconds, low, strict=True)) + sum(crossed)


def test_the_sum_of_times_is_least(tmp_path: Path) -> None:
    """No other choice of one product is cheaper, nor all alike; nearly always none of all 16 choices is."""
    drawn, best = np.random.default_rng(0), 0
    for _ in range(12):
        seconds = [(float(a), float(b)) for a, b in drawn.uniform(1e-7, 2e-6, (4, 2))]
        table(seconds).save(tmp_path / "t.json")
        plan = planned(chain(), load_recipe("tensorrt-int8").override(pays=str(tmp_path / "t.json")))
        low = [f"m{n}" in plan.quantized_nodes for n in range(4)]
        found = cost(seconds, low)
        near = [[other ^ (n == place) for n, other in enumerate(low)] for place in range(4)]
        for other in ([False] * 4, [True] * 4, *near):
            assert found <= cost(seconds, other) + 1e-12
        best += found <= min(cost(seconds, one) for one in itertools.product([False, True], repeat=4)) + 1e-12
    assert best >= 10


@pytest.mark.parametrize("crossing, left", [(1e-12, {"m1"}), (1e-8, set()), (1e-6, {"m0", "m1", "m2", "m3"})])
def test_a_slow_product_stays_in_float_unless_its_way_there_costs_more(
    crossing: float, left: set[str], tmp_path: Path
) -> None:
    """The plan, its file and the metadata of the model say what decided."""
    given, made = tmp_path / "t.json", tmp_path / "q.onnx"
    table([(9e-6, 1e-6), (1e-6, 2e-6), (9e-6, 1e-6), (9e-6, 1e-6)], crossing).save(given)
    onnx.save(chain(), tmp_path / "m.onnx")
    out = tmp_path / "p.json"
    assert main(["plan", str(tmp_path / "m.onnx"), "-o", str(out), "--pays", str(given), "-q"]) == 0
    content = json.loads(out.read_text())
    skipped = {one["name"]: one for one in content["skipped"] if one["kind"] == "node"}
    assert skipped.keys() == left and content["pays"] == "a GPU, 2026-01-02"
    for name, one in skipped.items():
        assert one["rule"] == "times" and " (measured) on a GPU" in one["why"]
        assert ("its ways to few bits and back take more" in one["why"]) == (name != "m1"), name
    if len(left) == 4:
        return
    recipe = load_recipe("tensorrt-int8").override(pays=str(given))
    feeds = [{"x0": np.ones((ROWS, 16), np.float32)}] * 2
    plain_quantize(tmp_path / "m.onnx", feeds, made, recipe=recipe)
    assert ("onnxfq.pays", content["pays"]) in {(p.key, p.value) for p in onnx.load(made).metadata_props}


def test_formats_without_times_are_not_judged(tmp_path: Path) -> None:
    """Float8 is quantized as before by a table of int8, and nothing changes without the option."""
    table([(1e-6, 9e-6)] * 4).save(tmp_path / "t.json")
    for name in ("tensorrt-fp8", "tensorrt-int4"):
        recipe = load_recipe(name).override(small_shapes="quantize")
        assert planned(chain(), recipe.override(pays=str(tmp_path / "t.json"))).placements == (
            planned(chain(), recipe).placements
        )


@pytest.mark.parametrize(
    "name, words",
    [
        ("SM90x", r"no table of times is called 'SM90x'.*gpu_times\.py"),
        ("none.json", "no such file"),
        ("bad.json", "float"),
    ],
)
def test_an_unknown_table_is_one_line(
    name: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that is not shipped, a missing file and one without times in float are refused."""
    monkeypatch.chdir(tmp_path)
    content = json.loads(table([(1e-6, 1e-6)] * 4).model_dump_json())
    del content["rows"][0]["seconds"]["float"]
    Path("bad.json").write_text(json.dumps(content))
    with pytest.raises(RecipeError, match=words) as raised:
        load_times(name)
    assert "\n" not in str(raised.value)


SIZES = {
    "convolution": ("Conv <strides = [2,2], pads = [1,1,1,1]>", (2, 6, 9, 9), (8, 6, 3, 3)),
    "pointwise": ("Conv", (2, 6, 5, 5), (8, 6, 1, 1)),
    "grouped": ("Conv <group = 2>", (1, 6, 9, 9), (8, 3, 3, 3)),
    "depthwise": ("Conv <group = 6>", (1, 6, 9, 9), (6, 1, 3, 3)),
    "product": ("MatMul", (3, 5, 7), (7, 4)),
    "heads": ("MatMul", (2, 3, 5, 7), (2, 3, 7, 4)),
    "gemm": ("Gemm <transA = 1, transB = 1>", (7, 5), (4, 7)),
}


@pytest.mark.parametrize("name", SIZES)
def test_sizes_have_the_multiplies_of_torch(name: str) -> None:
    """Torch's count of operations is twice the multiply-adds of the size, of every kind and grouping."""
    op, left, right = SIZES[name]
    graph = "g (float[{}] x) => (float[{}] y) {{ y = {} (x, w) }}"
    made = ("N0", "N1", "N2", "N3")[: len(left)] if name != "gemm" else ("N0", "N1")
    text = graph.format(",".join(map(str, left)), ",".join(made), op)
    model = load(build(text, {"w": weights(*right)}))
    (node,) = nodes_by_graph(prepare_model(model, "tensorrt").graph())
    size = size_product(node)
    assert size is not None
    x, w = torch.zeros(left), torch.zeros(right)
    with FlopCounterMode(display=False) as counter:
        if name == "gemm":
            x.T @ w.T
        elif op.startswith("MatMul"):
            x @ w
        else:
            stride, padding = (2, 1) if "strides" in op else (1, 0)
            torch.conv2d(x, w, stride=stride, padding=padding, groups=node.attrs.get("group", 1))
    assert size.multiplies * 2 == counter.get_total_flops()
    assert size.kind == {"grouped": "convolution", "heads": "product", "gemm": "product"}.get(name, name)


def test_times_between_measured_sizes() -> None:
    """If each multiply-add takes the same time, every size has it, and leaving out a row gives no error."""
    sizes = [
        ProductSize(kind="product", groups=1, rows=m, columns=n, summed=k)
        for m, n, k in itertools.product((8, 64), (16, 128), (32, 256))
    ]
    rows = [
        TimedProduct(
            **one.model_dump(),
            seconds={"float": 2e-12 * one.multiplies, "int8": 1e-12 * one.multiplies},
            crossing=(one.rows, 1e-9 * one.rows),
        )
        for one in sizes
    ]
    times = table([(1e-6, 1e-6)] * 4).model_copy(update={"rows": tuple(rows)})
    found = times.find(ProductSize(kind="product", groups=2, rows=17, columns=40, summed=99), "int8")
    assert found is not None and not found.is_measured
    np.testing.assert_allclose(found[:2], np.array([2e-12, 1e-12]) * 2 * 17 * 40 * 99)
    np.testing.assert_allclose(times.with_errors().errors["int8"], 0, atol=1e-12)
    np.testing.assert_allclose([times.cross(n, convolves=False) for n in (1, 99, 10**7)], [1e-9, 99e-9, 1e-2])
    assert times.find(ProductSize(kind="depthwise", groups=8, rows=8, columns=1, summed=9), "int8") is None


SCRIPT = Path(__file__).parents[2] / "scripts" / "gpu_times.py"


def test_the_script_measures_and_its_table_plans(tmp_path: Path) -> None:
    """On this processor each product has a row, errors are stated, and a plan takes the table."""
    onnx.save(chain(), tmp_path / "m.onnx")
    given = str(tmp_path / "t.json")
    words = [given, str(tmp_path / "m.onnx"), "--device", "cpu", "--clock", "processor"]
    subprocess.run(
        [sys.executable, str(SCRIPT), *words],
        check=True,
        cwd=SCRIPT.parents[1],
        env=os.environ | {"PYTHONPATH": "."},
    )
    times = load_times(given)
    assert sorted((row.summed, row.columns) for row in times.rows) == [*itertools.pairwise(WIDTHS)]
    assert times.errors.keys() == {"uint8"} and times.float_type == "float32"
    recipe = load_recipe("onnxruntime-int8").override(pays=given)
    assert planned(chain(), recipe).pays == times.name


def test_the_products_of_a_gpu_have_the_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results of torch have the rows and columns, filled up, in every form of this processor."""
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    calls = importlib.import_module("gpu_times").list_calls
    size = ProductSize(kind="product", groups=1, rows=40, columns=33, summed=20)
    shapes = {
        form: tuple(call().shape) for form, call in calls(size, "cpu").items() if form != "float8e4m3fn"
    }
    assert shapes == dict.fromkeys(("float", "bfloat16", "int8"), (48, 48)) | {"crossing": (48, 32)}
    assert "int8" not in calls(size.model_copy(update={"groups": 3}), "cpu")
