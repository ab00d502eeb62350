"""TensorRT 10 and 11 as a target."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import onnx

from onnxfq.graph.model import Model, list_nodes
from onnxfq.graph.normalize.shapes import add_shapes
from onnxfq.numerics.float_types import FloatInfo
from onnxfq.passes.product_forms import write_products
from onnxfq.passes.qdq_form import QdqForm
from onnxfq.placement.float_casts import Shapes
from onnxfq.runtime.type_inference import with_session_shapes
from onnxfq.targets.target import Target
from onnxfq.targets.tensorrt.gpus import LEAST_CAPABILITY
from onnxfq.targets.tensorrt.limits import CAST_BEFORE_LOOP, NO_BFLOAT16, NO_BFLOAT16_OPS, loops_several_steps
from onnxfq.targets.tensorrt.policy import POLICY
from onnxfq.targets.tensorrt.recipes import RECIPES
from onnxfq.targets.tensorrt.rewrites.block_formats import DOMAIN, block_writer
from onnxfq.targets.tensorrt.rewrites.mxfp8_functions import with_mxfp8_functions
from onnxfq.targets.tensorrt.rewrites.refused_forms import (
    count_padding,
    move_guards,
    part_results,
    separate_constants,
)
from onnxfq.targets.tensorrt.rewrites.split_projections import divide_products
from onnxfq.targets.tensorrt.tools.check import check_model
from onnxfq.targets.tensorrt.tools.engine_files import check_engine
from onnxfq.targets.tensorrt.tools.gpu_fit import HARDWARE
from onnxfq.targets.tensorrt.tools.kit import KIT
from onnxfq.targets.tensorrt.tools.runner import refuse_times, run_engine

_REWRITTEN = frozenset({"AveragePool", "IsNaN"})


def _prepare(model: Model) -> Model:
    """Return `model` in the form that TensorRT fuses and has in low precision; itself if nothing changes."""
    model = with_session_shapes(write_products(model))  # attention of Einsums is one too
    if not any(node.op_type in _REWRITTEN for node in list_nodes(model.proto.graph)):
        return model
    proto = deepcopy(model.proto)
    notes = [note for note in (move_guards(proto), count_padding(proto)) if note]
    if not notes:
        return model
    add_shapes(proto)
    return replace(model, proto=proto, notes=(*model.notes, *notes))


def _keeps_float32(node: onnx.NodeProto, half: FloatInfo) -> str | None:
    if node.op_type == "TRT_FP4DynamicQuantize":
        return "TensorRT quantizes float4 from float32"
    if node.domain == DOMAIN:
        return ""
    if node.op_type in NO_BFLOAT16_OPS and half.name == "bfloat16":
        return NO_BFLOAT16.format(node.op_type)
    return None


def _wants_no_cast(node: onnx.NodeProto, shapes: Shapes) -> str:
    loops = loops_several_steps(node, shapes(node.input[0]))
    return CAST_BEFORE_LOOP.format(node.op_type, node.name) if loops else ""


def _finish(proto: onnx.ModelProto) -> onnx.ModelProto:
    return with_mxfp8_functions(separate_constants(part_results(proto)))


TENSORRT = Target(
    "tensorrt",
    POLICY,
    recipes=RECIPES,
    prepare=_prepare,
    form=QdqForm(block_writer, divide_products, _finish),
    domains={DOMAIN: "TensorRT"},
    keeps_float32=_keeps_float32,
    cast_free=_wants_no_cast,
    conversion="tensorrt-int8",
    check=check_model,
    check_engine=check_engine,
    run=run_engine,
    open=refuse_times,
    kit=KIT,
    compares=True,
    capabilities=LEAST_CAPABILITY,
    hardware=HARDWARE,
)
