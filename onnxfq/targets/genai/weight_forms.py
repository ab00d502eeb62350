"""Forms of the weights of a folder of GenAI, each a target."""

from __future__ import annotations

from onnxfq.choices import WeightForm
from onnxfq.documents.recipe import Recipe
from onnxfq.errors import RecipeError

TARGETS: dict[WeightForm, str] = {
    "matmulnbits": "genai",
    "qdq": "genai-qdq",
    "qdq-transpose": "genai-qdq-transpose",
}
"""Target by form."""


def with_weight_form(recipe: Recipe, form: WeightForm) -> Recipe:
    """Return `recipe` with weights in this form. Raises RecipeError for a recipe of another target.

    Only MatMulNBits rounds its input, so that the others have no activations.
    """
    if recipe.target not in TARGETS.values():
        raise RecipeError(
            f"recipe {recipe.name} is for {recipe.target}, which has one form of weights; use genai-int4, "
            "or omit --weight-form"
        )
    if form == "matmulnbits":
        return recipe.override(target=TARGETS[form])
    return recipe.override(target=TARGETS[form], activations=None)
