"""Qualcomm's HTP by QNN as a target."""

from __future__ import annotations

from onnxfq.graph.model import Model
from onnxfq.graph.normalize.fold_batch_norm import fold_batch_norm
from onnxfq.graph.normalize.turned_weights import store_turned
from onnxfq.passes.product_forms import write_products
from onnxfq.passes.qdq_form import QdqForm
from onnxfq.passes.separate_constants import find_bias, separate_constants
from onnxfq.passes.widen_halves import widen_halves
from onnxfq.runtime.type_inference import with_session_shapes
from onnxfq.targets.onnxruntime.float_products import keep_floats
from onnxfq.targets.qnn.build import name_release, open_model
from onnxfq.targets.qnn.check import check_model
from onnxfq.targets.qnn.fuse_gelus import fuse_gelus
from onnxfq.targets.qnn.fuse_norms import fuse_norms
from onnxfq.targets.qnn.operators import MIXING
from onnxfq.targets.qnn.policy import POLICY
from onnxfq.targets.qnn.recipes import RECIPES
from onnxfq.targets.target import Target


def _prepare(model: Model) -> Model:
    model = with_session_shapes(store_turned(write_products(fold_batch_norm(widen_halves(model)))))
    return separate_constants(fuse_gelus(fuse_norms(model)), find_bias)


QNN = Target(
    "qnn",
    POLICY,
    recipes=RECIPES,
    check=check_model,
    values=open_model,
    release=name_release,
    # ONNX Runtime makes no node units of pairs without zero points.
    form=QdqForm(finish=keep_floats, zero_points=True),
    prepare=_prepare,
    wide="uint16",
    fixed_sizes=True,
    mixing=MIXING,
)
