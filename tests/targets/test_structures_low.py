"""Small whole networks of many structures: runtimes keep the promises of their recipes."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

pytest.importorskip("torch")

from builders import plain_quantize
from structure_networks import STRUCTURES, structure

import onnxfq
from onnxfq.targets.target import BuildOptions

PACKAGES = {"onnxruntime": "onnxruntime", "openvino": "openvino", "qnn": "onnxruntime_qnn"}
PRODUCTS = {"Conv", "ConvTranspose", "Einsum", "Gemm", "MatMul"}
IN_FLOAT = {
    "onnxruntime": {"ConvTranspose": 2},  # no integer kernel; the plan promises none
    "openvino": {"ConvTranspose": 1},  # in groups
    "qnn": {},
}
"""Most products of an operator that the plan leaves in float in one network."""


@pytest.mark.grid
@pytest.mark.parametrize("recipe", ["onnxruntime-int8", "openvino-int8", "qnn-int8", "qnn-a16w8"])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.sample) if name == "mixer" else name for name in STRUCTURES]
)
def test_what_is_promised_runs_low(name: str, recipe: str) -> None:
    """Every promised operator, by the runtime's word and with its numbers; `quantize` counts as `check`."""
    target = recipe.partition("-")[0]
    if find_spec(PACKAGES[target]) is None:
        pytest.skip(f"{PACKAGES[target]} is not installed")
    proto, samples = structure(name)
    made = plain_quantize(proto, samples, recipe=recipe)
    checked = onnxfq.check(made.qdq, target, build=BuildOptions())
    assert checked.passed and checked.coverage, checked.table()
    assert all(row.kept == row.promised for row in checked.coverage), checked.table()
    assert made.proof is not None and not made.proof.difference and not made.proof.kept_float
    assert made.proof.coverage == (checked.coverage if target == "onnxruntime" else ())
    for row in made.plan.coverage():
        if row.op_type in PRODUCTS:
            assert row.total - row.quantized <= IN_FLOAT[target].get(row.op_type, 0), row
