"""ONNX Runtime GenAI as a target: weights of language models in MatMulNBits, or in DequantizeLinear."""

from __future__ import annotations

from dataclasses import replace

from onnxfq.documents.plan import Placement
from onnxfq.graph.edit import Editor
from onnxfq.graph.model import Model
from onnxfq.graph.normalize.experts import find_unit
from onnxfq.graph.normalize.turned_weights import store_turned
from onnxfq.passes.qdq_form import QdqForm, Writer
from onnxfq.targets.genai.cache import write_cache
from onnxfq.targets.genai.experts import join_experts, split_moe
from onnxfq.targets.genai.matmul_nbits import note_rounding, write_weight
from onnxfq.targets.genai.policy import PAIR_POLICY, POLICY
from onnxfq.targets.genai.recipes import RECIPES
from onnxfq.targets.genai.rotated_keys import rotate_inside, rotate_outside
from onnxfq.targets.genai.turned_pairs import turn_pairs
from onnxfq.targets.target import Target


def _choose_writer(placement: Placement) -> Writer | None:
    """Return the writer of a placed tensor: all that the policy lets through."""
    if placement.role == "weight":
        return write_weight
    return _choose_cache_writer(placement) if placement.stored else note_rounding


def _choose_cache_writer(placement: Placement) -> Writer | None:
    return write_cache if placement.stored and all(use.node for use in placement.uses) else None


def _prepare_pairs(model: Model) -> Model:
    return rotate_outside(store_turned(model))


def _edit_products(editor: Editor) -> None:
    rotate_inside(editor)
    join_experts(editor)


def _edit_turned(editor: Editor) -> None:
    rotate_inside(editor)
    turn_pairs(editor)


GENAI = Target(
    "genai",
    POLICY,
    recipes=RECIPES,
    prepare=lambda model: split_moe(_prepare_pairs(model)),
    form=QdqForm(_choose_writer, edit=_edit_products),
    unit=find_unit,
    rules="onnxruntime",
)

GENAI_QDQ = replace(
    GENAI,
    name="genai-qdq",
    policy=PAIR_POLICY,
    recipes=(),
    prepare=_prepare_pairs,
    form=QdqForm(_choose_cache_writer, edit=rotate_inside),
)
"""Weights in DequantizeLinear of ONNX, for providers without MatMulNBits."""

GENAI_QDQ_TRANSPOSE = replace(
    GENAI_QDQ, name="genai-qdq-transpose", form=QdqForm(_choose_cache_writer, edit=_edit_turned)
)
"""The same with a row for each output and a Transpose behind, as for TensorRT for RTX."""
