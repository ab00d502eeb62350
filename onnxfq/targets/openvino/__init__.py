"""OpenVINO on a CPU as a target."""

from __future__ import annotations

from functools import partial

import onnx_graphsurgeon as gs

from onnxfq.graph.model import Model
from onnxfq.graph.normalize.fold_batch_norm import fold_batch_norm
from onnxfq.graph.ops import CONVOLUTIONS, SCALES
from onnxfq.passes.product_forms import write_products
from onnxfq.passes.qdq_form import QdqForm
from onnxfq.passes.separate_constants import find_bias, separate_constants
from onnxfq.targets.openvino.check import check_model
from onnxfq.targets.openvino.other_values import give_biases
from onnxfq.targets.openvino.policy import POLICY
from onnxfq.targets.openvino.recipes import RECIPES
from onnxfq.targets.openvino.runtime import (
    name_half_type,
    name_release,
    open_model,
    profile_model,
    read_clock,
    run_model,
)
from onnxfq.targets.target import Target


def _find_scaled_weight(node: gs.Node) -> int | None:
    """Return the slot of a weight into which OpenVINO folds a factor; if others read it, that is in float."""
    readers = node.outputs[0].outputs if node.op in CONVOLUTIONS else ()
    scaled = (one.op in SCALES and any(isinstance(t, gs.Constant) for t in one.inputs) for one in readers)
    return 1 if any(scaled) else None


def _prepare(model: Model) -> Model:
    # Its compiled graph names a layer by what was folded into it last, and a check could not find it. It adds
    # a bias in the kernel, and a sum with it, only if nothing else reads the bias.
    return separate_constants(write_products(fold_batch_norm(model)), _find_scaled_weight, find_bias)


OPENVINO = Target(
    "openvino",
    POLICY,
    recipes=RECIPES,
    form=QdqForm(edit=give_biases),
    prepare=_prepare,
    check=check_model,
    run=run_model,
    values=open_model,
    open=partial(open_model, precision=""),  # users leave the precision of the float part to OpenVINO
    clock=read_clock,
    release=name_release,
    differs=name_half_type,
    profile=profile_model,
)
