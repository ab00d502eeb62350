"""The table of forms of operators: what the runtimes say today, and what plan and check make of it."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import pytest
from builders import build, plain_quantize, weights

import onnxfq
from onnxfq.targets.reading import runtime_forms
from onnxfq.targets.reading.runtime_forms import read_table
from onnxfq.targets.tensorrt.builder.jobs import builder_installed

SCRIPTS = Path(__file__).parents[2] / "scripts"
STEPS = {"onnxruntime": 199, "openvino": 199, "tensorrt": 16, "qnn": 1}
EVERY = {name: slice(None, None, step) for name, step in STEPS.items()}
"""One form of so many is tried again; `scripts/runtime_forms.py --check N` tries others each day."""

PRODUCTS = slice(None, None, 47)
"""One product of so many."""

BETWEEN = "form_tables.between_products"
NEEDED = {
    "tensorrt": builder_installed,
    "qnn": lambda: importlib.util.find_spec("onnxruntime_qnn") is not None,
}


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script that makes the table."""
    monkeypatch.syspath_prepend(SCRIPTS)
    return importlib.import_module("runtime_forms")


@pytest.fixture
def between(scripts: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module of operators between products; they are quantized as if the table were empty."""
    monkeypatch.setattr(runtime_forms, "read_table", dict)
    return importlib.import_module(BETWEEN)


@pytest.mark.parametrize("runtime", EVERY)
@pytest.mark.wide_sums
@pytest.mark.filterwarnings("ignore")  # some networks are of odd numbers
def test_the_runtimes_still_say_so(scripts: ModuleType, runtime: str) -> None:
    """A sample of the forms is right, or not, as the table has it."""
    if not NEEDED.get(runtime, lambda: True)():
        pytest.skip("its package is not installed")
    tried, part = scripts.TABLES[runtime].ask(EVERY[runtime]), scripts.read_parts()[runtime]
    assert len(tried) > 10
    assert not scripts.compare(tried, part.rows, part.partly)


@pytest.mark.parametrize("runtime", EVERY)
@pytest.mark.wide_sums
@pytest.mark.filterwarnings("ignore")  # few samples
def test_products_run_as_the_table_has_it(scripts: ModuleType, runtime: str) -> None:
    """Promises of a sample of products are kept, or not, as the table has it."""
    if not NEEDED.get(runtime, lambda: True)():
        pytest.skip("its package is not installed")
    tried, part = scripts.products.ask_all(runtime, PRODUCTS), scripts.read_parts()[runtime]
    assert len(tried) > 5
    assert not scripts.compare(tried, part.rows, part.partly)


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
@pytest.mark.wide_sums
def test_rows_are_still_needed(
    scripts: ModuleType, between: ModuleType, runtime: str, request: pytest.FixtureRequest
) -> None:
    """A network of a row is wrong in the runtime; a row that is right in its release can go."""
    forms = list(between.list_forms(between.LAST_OPSET))
    rows = [row for row in scripts.read_parts()[runtime].rows if not row.bits]
    for row in rows[:: 1 if request.config.getoption("--all-cases") else 3]:
        known = (form for form in forms if scripts.is_known(scripts.Tried(form.row(), form.opset), [row]))
        tried = (between.try_form(form, runtime) for form in known)
        assert next(one for one in tried if one is not None).form.says == row.says, row


@pytest.mark.sample
def test_the_releases_are_those_that_are_installed(scripts: ModuleType) -> None:
    """The table names the releases that made it."""
    for runtime, table in scripts.TABLES.items():
        if NEEDED.get(runtime, lambda: True)():
            assert read_table()[runtime][0] == table.release()


def test_the_table_has_the_known_refusals() -> None:
    """TensorRT's parser refuses attributes, outputs and types, and no input that is left out."""
    _, rows = read_table()["tensorrt"]
    fields = ("attributes", "dtype", "output", "missing")
    assert {name for row in rows for name in fields if getattr(row, name)} == {
        "attributes",
        "dtype",
        "output",
    }
    found = [(row.op, row.attributes, row.dtype) for row in rows]
    assert ("Resize", {"coordinate_transformation_mode": "tf_crop_and_resize"}, "") in found
    assert ("Transpose", {}, "UINT8") in found


def network(operator: str, opset: int = 17) -> onnx.ModelProto:
    """An operator from "a" to "p" between two convolutions."""
    return build(
        f"g (float[N,8,8,8] x) => (float[N,8,H,W] y) {{ [before] a = Conv <pads = [1,1,1,1]> (x, w)"
        f" {operator} [behind] y = Conv (p, v) }}",
        {"w": weights(8, 8, 3, 3), "v": weights(8, 8, 1, 1)},
        opset=opset,
    )


def rules_of(proto: onnx.ModelProto, runtime: str) -> set[str]:
    """Return the rules that `check` names."""
    return {found.rule for found in onnxfq.check(proto, target=runtime).findings}


POOL = "[pool] p = AveragePool <kernel_shape = [3,3], {}> ({})"
CASES = {
    "counted pads": (
        "onnxruntime",
        POOL.format("count_include_pad = 1, ceil_mode = 1, strides = [2,2]", "a"),
        17,
        "pool",
    ),
    "dilations": ("onnxruntime", POOL.format("dilations = [2,2]", "a"), 19, "pool"),
    "pads": ("openvino", POOL.format("count_include_pad = 1, pads = [1,1,1,1]", "a"), 17, "pool"),
    "largest": ("openvino", "[pool] p = GlobalMaxPool (a)", 17, "behind"),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.wide_sums
def test_plan_and_check_read_the_table(
    scripts: ModuleType, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cure stays in float with the release as reason, the runtime agrees, and `check` is clean.

    A file that was made without the table is a finding, and `quantize` without it cures what it runs.
    """
    runtime, operator, opset, kept = CASES[case]
    proto, x = network(operator, opset), np.random.default_rng(0).normal(size=(24, 8, 8, 8))
    given = {"x": x.astype(np.float32)}
    result = plain_quantize(proto, given, recipe=f"{runtime}-int8")
    release, _ = read_table()[runtime]
    (why,) = [one.why for one in result.plan.skipped if one.name == kept]
    assert release in why and "between pairs" in why
    assert "session-form" not in rules_of(result.qdq, runtime)
    assert result.evaluation.proof is not None and not result.evaluation.proof.difference
    assert not result.evaluation.proof.kept_float
    with monkeypatch.context() as patch:
        patch.setattr(runtime_forms, "read_table", dict)
        uncured = importlib.import_module(BETWEEN).quantize(proto, runtime).qdq
    assert "session-form" in rules_of(uncured, runtime)
    monkeypatch.setattr(runtime_forms, "read_table", dict)
    cured = plain_quantize(proto, given, recipe=f"{runtime}-int8")
    assert cured.evaluation.proof is not None and cured.evaluation.proof.kept_float
    assert not cured.evaluation.proof.difference


def test_what_cannot_be_negative_keeps_its_pairs() -> None:
    """Pads that count are zeros of the grid behind a Relu, and OpenVINO is right there."""
    operator = "r = Relu (a) " + POOL.format("count_include_pad = 1, pads = [1,1,1,1]", "r")
    x = np.random.default_rng(0).normal(size=(24, 8, 8, 8)).astype(np.float32)
    result = plain_quantize(network(operator), {"x": x}, recipe="openvino-int8")
    assert "pool" not in {one.name for one in result.plan.skipped}
    assert not rules_of(result.qdq, "openvino")
