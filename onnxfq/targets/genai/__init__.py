"""ONNX Runtime GenAI as a target: weights of language models in MatMulNBits."""

from __future__ import annotations

from onnxfq.graph.normalize.turned_weights import store_turned
from onnxfq.passes.qdq_form import QdqForm
from onnxfq.support.attempts import attempt
from onnxfq.targets.genai.matmul_nbits import choose_writer
from onnxfq.targets.genai.policy import POLICY
from onnxfq.targets.genai.recipes import RECIPES
from onnxfq.targets.genai.rotated_keys import rotate_inside, rotate_outside
from onnxfq.targets.target import Target

GENAI = Target(
    "genai",
    POLICY,
    recipes=RECIPES,
    prepare=lambda model: attempt(
        "preparing the decoder for GenAI", lambda: rotate_outside(store_turned(model)), lambda: model
    ),
    form=QdqForm(choose_writer, edit=rotate_inside),
)
