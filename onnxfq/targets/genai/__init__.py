"""ONNX Runtime GenAI as a target: weights of language models in MatMulNBits."""

from __future__ import annotations

from onnxfq.documents.plan import Placement
from onnxfq.graph.normalize.turned_weights import store_turned
from onnxfq.passes.qdq_form import QdqForm, Writer
from onnxfq.targets.genai.cache import write_cache
from onnxfq.targets.genai.matmul_nbits import note_rounding, write_weight
from onnxfq.targets.genai.policy import POLICY
from onnxfq.targets.genai.recipes import RECIPES
from onnxfq.targets.genai.rotated_keys import rotate_inside, rotate_outside
from onnxfq.targets.target import Target


def _choose_writer(placement: Placement) -> Writer | None:
    """Return the writer of a placed tensor: all that the policy lets through."""
    if placement.role == "weight":
        return write_weight
    if not placement.stored:
        return note_rounding
    return write_cache if all(use.node for use in placement.uses) else None


GENAI = Target(
    "genai",
    POLICY,
    recipes=RECIPES,
    prepare=lambda model: rotate_outside(store_turned(model)),
    form=QdqForm(_choose_writer, edit=rotate_inside),
)
