"""The table of operators that runtimes compute otherwise: what they say today, and what plan and check do."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import onnxruntime
import openvino
import pytest
from builders import build, weights

import onnxfq
from onnxfq.judging.accuracy_target import AccuracyTarget
from onnxfq.targets.reading import session_forms
from onnxfq.targets.reading.session_forms import TABLE_FILE, read_table

SCRIPT = Path(__file__).parents[2] / "scripts" / "runtime_forms.py"
EVERY = 97
"""One network of so many is tried again; `scripts/runtime_forms.py --check 1` tries all."""


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """The script that makes the table."""
    spec = importlib.util.spec_from_file_location("runtime_forms", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its records look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def without_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks are quantized as if the table were empty."""
    monkeypatch.setattr(session_forms, "read_table", dict)


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
@pytest.mark.usefixtures("without_table")
@pytest.mark.wide_sums
@pytest.mark.filterwarnings("ignore")  # some networks are of odd numbers
def test_the_runtimes_still_say_so(script: ModuleType, runtime: str) -> None:
    """A sample of the networks is right, or not, as the table has it."""
    forms = list(script.list_forms(script.LAST_OPSET))[::EVERY]
    tried = [one for one in (script.try_form(form, runtime) for form in forms) if one is not None]
    assert len(tried) > 20
    assert not script.compare(tried, json.loads(TABLE_FILE.read_text(encoding="utf-8"))[runtime])


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
@pytest.mark.usefixtures("without_table")
@pytest.mark.wide_sums
def test_every_row_is_still_needed(script: ModuleType, runtime: str) -> None:
    """A network of each row is wrong in the runtime; a row that is right in its release can go."""
    forms = list(script.list_forms(script.LAST_OPSET))
    _, rows = read_table()[runtime]
    assert rows
    for row in rows:
        known = [{**row._asdict(), "attributes": dict(row.attributes)}]
        tried = (script.try_form(form, runtime) for form in forms if script._is_known(form, known))
        assert next(one for one in tried if one is not None).says == row.says, row


@pytest.mark.sample
def test_the_releases_are_those_that_are_installed() -> None:
    """The table names the releases that made it."""
    assert read_table()["onnxruntime"][0] == f"ONNX Runtime {onnxruntime.__version__}"
    assert read_table()["openvino"][0] == f"OpenVINO {openvino.__version__.partition('-')[0]}"


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
    script: ModuleType, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cure stays in float with the release as reason, the runtime agrees, and `check` is clean.

    A file that was made without the table is a finding, and `quantize` without it cures what it runs.
    """
    runtime, operator, opset, kept = CASES[case]
    proto, x = network(operator, opset), np.random.default_rng(0).normal(size=(24, 8, 8, 8))
    given = {"x": x.astype(np.float32)}
    plain = AccuracyTarget(repair=None)
    result = onnxfq.quantize(proto, given, recipe=f"{runtime}-int8", accuracy=plain)
    release, _ = read_table()[runtime]
    (why,) = [one.why for one in result.plan.skipped if one.name == kept]
    assert release in why and "between pairs" in why
    assert "session-form" not in rules_of(result.qdq, runtime)
    assert result.evaluation.proof is not None and not result.evaluation.proof.difference
    assert not result.evaluation.proof.kept_float
    with monkeypatch.context() as patch:
        patch.setattr(session_forms, "read_table", dict)
        uncured = script.quantize(proto, runtime).qdq
    assert "session-form" in rules_of(uncured, runtime)
    monkeypatch.setattr(session_forms, "read_table", dict)
    cured = onnxfq.quantize(proto, given, recipe=f"{runtime}-int8", accuracy=plain)
    assert cured.evaluation.proof is not None and cured.evaluation.proof.kept_float
    assert not cured.evaluation.proof.difference


def test_what_cannot_be_negative_keeps_its_pairs() -> None:
    """Pads that count are zeros of the grid behind a Relu, and OpenVINO is right there."""
    operator = "r = Relu (a) " + POOL.format("count_include_pad = 1, pads = [1,1,1,1]", "r")
    x = np.random.default_rng(0).normal(size=(24, 8, 8, 8)).astype(np.float32)
    result = onnxfq.quantize(
        network(operator), {"x": x}, recipe="openvino-int8", accuracy=AccuracyTarget(repair=None)
    )
    assert "pool" not in {one.name for one in result.plan.skipped}
    assert not rules_of(result.qdq, "openvino")
