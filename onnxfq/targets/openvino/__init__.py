"""OpenVINO on a CPU as a target."""

from __future__ import annotations

from functools import partial

from onnxfq.graph.normalize.fold_batch_norm import fold_batch_norm
from onnxfq.passes.product_forms import write_products
from onnxfq.passes.qdq_form import QdqForm
from onnxfq.passes.separate_biases import separate_biases
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
from onnxfq.targets.openvino.separate_weights import separate_weights
from onnxfq.targets.target import Target

OPENVINO = Target(
    "openvino",
    POLICY,
    recipes=RECIPES,
    form=QdqForm(edit=give_biases),
    # Its compiled graph names a layer by what was folded into it last, and a check could not find it. It adds
    # a bias in the kernel, and a sum with it, only if nothing else reads the bias.
    prepare=lambda model: separate_biases(separate_weights(write_products(fold_batch_norm(model)))),
    check=check_model,
    run=run_model,
    values=open_model,
    open=partial(open_model, precision=""),  # users leave the precision of the float part to OpenVINO
    clock=read_clock,
    release=name_release,
    differs=name_half_type,
    profile=profile_model,
)
