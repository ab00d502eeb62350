"""Limits of formats: a plan and the file written by it look alike to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import onnx
import onnx_graphsurgeon as gs
import pytest
from builders import attention, conv_relu, qdq_of, stage, two_branch

from onnxfq.graph.names import Use
from onnxfq.graph.ops import is_weighted
from onnxfq.placement.target_policy import Operands
from onnxfq.targets.reading.context import read
from onnxfq.targets.reading.limits import Product
from onnxfq.targets.target import prepare_model

RECIPES = ("tensorrt-int8", "tensorrt-fp8", "onnxruntime-int8", "openvino-int8", "qnn-int8")


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("make", [conv_relu, attention, two_branch])
def test_plan_and_file_look_alike(recipe: str, make: Callable[[], onnx.ModelProto]) -> None:
    """Each operand of a product has in the file what the planner judged; a zero point may turn out as 0."""
    made = stage(make(), recipe)
    model = prepare_model(made.model, made.plan.target)
    nodes = {node.name: node for node in model.graph().nodes if is_weighted(node)}
    placed = {use: p for p in made.plan.placements for use in p.uses if p.role != "bias"}
    count = 0
    for promised in read(qdq_of(made)).promises:
        node = nodes.get(promised.site.name)
        if node is None:
            continue
        slots = [placed.get(Use(node.name, slot)) for slot in (0, 1)]
        placements = [placement for placement in slots if placement is not None]
        shapes = {t.name: tuple(t.shape) for t in node.inputs if isinstance(t, gs.Constant)}
        for operand, placement in zip(promised.operands, slots, strict=True):
            assert operand.pair is not None and placement is not None
            planned = Product.planned(placement, Operands(node, placements, shapes))
            found = Product.read(promised, operand, operand.pair)
            assert found.zeros in ("none", planned.zeros)
            assert replace(found, zeros=planned.zeros, axis=planned.axis) == planned
            count += 1
    assert count
