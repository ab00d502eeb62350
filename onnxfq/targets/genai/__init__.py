"""ONNX Runtime GenAI as a target: weights of language models in MatMulNBits."""

from __future__ import annotations

from onnxfq.passes.qdq_form import QdqForm
from onnxfq.targets.genai.matmul_nbits import choose_writer
from onnxfq.targets.genai.policy import POLICY
from onnxfq.targets.genai.recipes import RECIPES
from onnxfq.targets.target import Target

GENAI = Target("genai", POLICY, recipes=RECIPES, form=QdqForm(choose_writer))
