"""Models, feeds and plans whose statistics tests compare."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from body_models import MODELS
from builders import BUILDERS, build, feed_for, planned, weights

from onnxfq.calibration.statistics import Statistics
from onnxfq.data import Feed
from onnxfq.documents.plan import Plan
from onnxfq.documents.recipe import Recipe
from onnxfq.graph.edit import Editor
from onnxfq.graph.io.load import load
from onnxfq.graph.model import Model
from onnxfq.numerics.granularity import Granularity


def narrow_channels() -> onnx.ModelProto:
    """Convolutions whose channels fill no whole block of the runtime's layout: 16, 24, 40, 17 of them."""
    return build(
        """g (float[N,3,12,12] x) => (float[N,17,12,12] y) {
            a = Conv <kernel_shape = [3,3], pads = [1,1,1,1]> (x, w0) b = Relu (a)
            c = Conv <kernel_shape = [1,1]> (b, w1) d = Sigmoid (c)
            e = Conv <kernel_shape = [3,3], pads = [1,1,1,1]> (d, w2)
            f = Conv <kernel_shape = [1,1]> (e, w3) h = Relu (f) y = Conv <kernel_shape = [1,1]> (h, w4) }""",
        {"w0": weights(16, 3, 3, 3), "w1": weights(24, 16, 1, 1), "w2": weights(40, 24, 3, 3)}
        | {"w3": weights(17, 40, 1, 1), "w4": weights(17, 17, 1, 1)},
    )


def feeds_of(count: int, batch: int = 1, seed: int = 0) -> list[Feed]:
    """Random feeds for `narrow_channels`."""
    rng = np.random.default_rng(seed)
    return [{"x": rng.standard_normal((batch, 3, 12, 12)).astype(np.float32)} for _ in range(count)]


def file_bytes(statistics: Statistics, folder: Path) -> bytes:
    """What the statistics' file holds."""
    statistics.save(folder / "s.npz")
    return (folder / "s.npz").read_bytes()


CASES = {name: (make, {}) for name, make in BUILDERS.items()} | MODELS


def case(name: str, count: int = 3) -> tuple[Model, Plan, list[Feed]]:
    """A model, what is observed of it, and feeds."""
    make, more = CASES[name]
    proto = make()
    return load(proto), planned(proto), [feed_for(proto, seed) | more for seed in range(count)]


def by_axis(plan: Plan, tensors: Collection[str]) -> Plan:
    """The plan with one scale for each index of axis 1 of some of its tensors."""
    made = []
    for one in plan.activations:
        spec = one.spec.model_copy(update={"granularity": Granularity(1)})
        made.append(one.model_copy(update={"spec": spec}) if one.tensor in tensors else one)
    return plan.model_copy(update={"placements": tuple(made)})


def known_channels(model: Model, plan: Plan) -> list[str]:
    """The tensors of a plan whose axis 1 has a known size."""
    editor = Editor(model.graph())
    shapes = {p.tensor: editor.tensor(p).shape for p in plan.activations}
    return [name for name, shape in shapes.items() if shape and len(shape) > 1 and isinstance(shape[1], int)]


def by_groups(target: str = "onnxruntime", **activations: Any) -> Recipe:
    """A recipe whose activations are asymmetric int8 of the granularity given."""
    scheme = {"qtype": "int8", "symmetric": False, "calibrator": "minmax"} | activations
    fields = {"name": "groups", "target": target, "activations": scheme, "weights": {"qtype": "int8"}}
    return Recipe.model_validate(fields | {"conv_transpose": "quantize"})


X = np.random.default_rng(0).standard_normal((24, 32)).astype(np.float32)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with two models and data."""
    for name, seed in (("m", 0), ("other", 9)):
        made = build(
            "g (float[N,32] x) => (float[N,8] y) { h = MatMul (x, w1) r = Relu (h) y = MatMul (r, w2) }",
            {"w1": weights(32, 64, seed=seed), "w2": weights(64, 8, seed=1)},
        )
        onnx.save(made, tmp_path / f"{name}.onnx")
    np.savez(tmp_path / "x.npz", x=X)
    for at in (0, 1):
        np.savez(tmp_path / f"x{at}.npz", x=X[at::2])
    return tmp_path
