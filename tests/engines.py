"""Engines of TensorRT for RTX in tests: many models in one process, and models whose scales are made up."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxfq.documents.cast_plan import FloatOptions
from onnxfq.documents.encodings import Encoding, Encodings
from onnxfq.documents.plan import Placement, Plan
from onnxfq.documents.recipe import Recipe
from onnxfq.graph.constants import weight_array
from onnxfq.graph.io.load import load
from onnxfq.graph.model import Model
from onnxfq.graph.ops import is_weighted
from onnxfq.graph.queries import nodes_by_graph
from onnxfq.numerics.float_types import HALF_TYPES, FloatName
from onnxfq.numerics.layout import Layout
from onnxfq.passes.cast_floats import cast_floats
from onnxfq.placement.float_casts import plan_floats
from onnxfq.placement.prices import count_multiplies
from onnxfq.runtime.type_inference import with_found_types
from onnxfq.stages.derived_scales import with_half_scales
from onnxfq.stages.insert import with_target_qdq
from onnxfq.stages.plan import make_plan
from onnxfq.targets.engine_figures import EngineFigures
from onnxfq.targets.profiles import profiles
from onnxfq.targets.reading.context import CheckContext, read
from onnxfq.targets.recipes import load_recipe
from onnxfq.targets.target import prepare_model, target_by_name
from onnxfq.targets.tensorrt.builder.build import capabilities
from onnxfq.targets.tensorrt.builder.figures import compare_layers
from onnxfq.targets.tensorrt.builder.jobs import Job, Report, builder_installed, run_jobs
from onnxfq.targets.tensorrt.builder.layers import parse_layers, verdict
from onnxfq.targets.tensorrt.builder.without_pairs import without_pairs
from onnxfq.targets.tensorrt.rules.structure import EXTRA

needs_builder = pytest.mark.skipif(not builder_installed(), reason="TensorRT for RTX is not installed")

SECONDS = 120
"""For one engine; a busy machine is slow, and none takes a tenth of it."""


def build_all(folder: Path, models: dict[str, onnx.ModelProto]) -> dict[str, dict[str, Report]]:
    """Build all `models` for each of their architectures; return {name: {architecture: report}}."""
    keys, jobs = [], []
    for name, proto in models.items():
        reading = read(proto, EXTRA)
        path = folder / f"{len(jobs)}.onnx"
        onnx.save(reading.proto, path)
        for capability in capabilities(reading):
            keys.append((name, capability))
            jobs.append(Job(path, capability, profiles(reading.proto, {})))
    reports: dict[str, dict[str, Report]] = {name: {} for name in models}
    for (name, capability), report in zip(keys, run_jobs(jobs, SECONDS), strict=True):
        reports[name][capability] = report
    return reports


def build_beside_half(plan: onnx.ModelProto, folder: Path) -> tuple[EngineFigures, EngineFigures]:
    """Return the figures of a model's engine for its newest architecture, and of the one without pairs."""
    reading = read(plan, EXTRA)
    built = build_all(folder, {"plan": plan, "half": without_pairs(reading)})
    reports = {name: list(found.values())[-1] for name, found in built.items()}
    assert all(report.built for report in reports.values()), reports
    compared = compare_layers(reading, "", *(parse_layers(report.layers) for report in reports.values()))
    return compared.quantized, compared.plain


def verdicts(reading: CheckContext, report: Report) -> dict[str, str]:
    """Return the precision of each promised node, as `Conv low as low`: operator, verdict, promise."""
    layers = parse_layers(report.layers)
    return {
        p.site.name: f"{p.site.op} {verdict(layers, p.site.name)} as {p.expects}" for p in reading.promises
    }


def counts(proto: onnx.ModelProto, reports: dict[str, Report]) -> dict[str, dict[str, int]]:
    """Return how many nodes run in which precision by architecture, and how many attentions are fused."""
    reading, found = read(proto, EXTRA), {}
    for capability, report in reports.items():
        if not report.built:
            continue
        rows = Counter(verdicts(reading, report).values())
        rows["attention in one kernel"] = sum(layer.is_attention for layer in parse_layers(report.layers))
        found[capability] = {row: count for row, count in sorted(rows.items()) if count}
    return found


def count_all(folder: Path, models: dict[str, onnx.ModelProto]) -> dict[str, dict[str, dict[str, int]]]:
    """Build all `models`; return the `counts` of each, by name."""
    return {name: counts(models[name], found) for name, found in build_all(folder, models).items()}


def see_engines(folder: Path, proto: onnx.ModelProto) -> list[dict[str, str]]:
    """Build a model for all of its architectures; return the `verdicts` of each engine."""
    reports = build_all(folder, {"m": proto})["m"].values()
    assert all(report.built for report in reports), reports
    return [verdicts(read(proto, EXTRA), report) for report in reports]


def depthwise_channels(proto: onnx.ModelProto, name: str) -> int:
    """Return the groups of the convolution called `name`."""
    node = next(node for node in proto.graph.node if node.name == name)
    return next(a.i for a in node.attribute if a.name == "group")


def plan_model(model: str | Path | onnx.ModelProto, recipe: str | Recipe) -> tuple[Model, Plan]:
    """Return the model as the target of `recipe` prepares it, and its plan."""
    chosen = load_recipe(recipe)
    loaded = prepare_model(load(model), chosen.target)
    return loaded, make_plan(loaded, chosen)


def unmeasured(
    model: str | Path | onnx.ModelProto, recipe: str | Recipe, floats: FloatName = "fp32"
) -> onnx.ModelProto:
    """Return the Q/DQ model of `recipe` with made-up scales: what a builder fuses does not depend on them.

    floats: type of what is not quantized; no tensor is taken to be beyond it.
    """
    loaded, plan = plan_model(model, recipe)
    encodings = [_make_up(loaded, placement) for placement in plan.placements]
    made = Encodings(model_sha256=loaded.sha256, encodings=tuple(encodings))
    if floats == "fp32":
        return with_target_qdq(loaded, plan, made).proto
    made = with_half_scales(made, floats)
    qdq = with_target_qdq(loaded, plan, made, HALF_TYPES[floats].min_opset).proto
    return cast_floats(
        qdq, plan_floats(qdq, {}, FloatOptions(floats), target_by_name(plan.target).keeps_float32)
    )


def count_low(model: str | Path | onnx.ModelProto, recipe: str) -> tuple[int, int]:
    """Return the multiply-adds of a sample in low precision by the plan of `recipe`, and in all."""
    loaded, plan = plan_model(model, recipe)
    low = plan.quantized_nodes
    nodes = filter(is_weighted, nodes_by_graph(with_found_types(loaded)[0].graph()))
    counts = {node.name: count_multiplies(node) for node in nodes}
    return sum(count for name, count in counts.items() if name in low), sum(counts.values())


def _make_up(model: Model, placement: Placement) -> Encoding:
    """Return an encoding of the form that `placement` asks for, with numbers that are made up."""
    spec, shape = placement.spec, ()
    shared = None if spec.scale_type == "float32" else np.float32(2**-6)
    if spec.dynamic:
        return Encoding.of_running_model(
            placement.tensor, spec, shared if spec.scale_type == "e4m3" else None
        )
    if placement.role != "activation":
        values = weight_array(model, placement.tensor)
        shape = Layout(spec.granularity, values.shape).scale_shape
    scale = np.full(shape, shared or 0.01, np.float32)
    if spec.equalized:
        shape = (depthwise_channels(model.proto, placement.uses[0].node),)
        scale = np.ldexp(np.float32(0.01), -(np.arange(shape[0]) % 4)).astype(np.float32)
    zeros = np.zeros(shape, np.int32)
    return Encoding.of(placement.tensor, spec, scale, zeros, shared if spec.scale_type == "e4m3" else None)
