"""Comparison of roundings per weight: range and expected noise of the outputs."""

from __future__ import annotations

from onnxfq.calibration.weights import Moments
from onnxfq.documents.encodings import Encodings
from onnxfq.documents.plan import Plan
from onnxfq.documents.rounding import NEAREST
from onnxfq.errors import StatisticsError
from onnxfq.graph.model import Model
from onnxfq.report.calibrator_table import CalibratorRow
from onnxfq.stages.layer_inputs import find_layers
from onnxfq.stages.moments import layer_keys
from onnxfq.stages.round_weights import round_weights
from onnxfq.targets.registry import prepare_model

METHOD = "gptq"


def rounding_rows(model: Model, plan: Plan, encodings: Encodings, moments: Moments) -> list[CalibratorRow]:
    """Return two rows for each weight that `moments` can round: the nearest numbers, and METHOD.

    `calibrate` takes the nearest numbers. The rows show the SQNR of the layer's outputs.

    Args:
        model: the float model.
        plan: its weights.
        encodings: of the plan.
        moments: of the inputs of the layers.

    Raises StatisticsError for moments that do not fit the model or the plan.
    """
    layers = find_layers(prepare_model(model, plan.target), plan)[0]
    known = {
        one.placement.tensor for one in layers if all(key in moments.ranges for key in layer_keys([one]))
    }
    if not known:
        raise StatisticsError(
            f"the moments hold no input of a weight that recipe {plan.recipe} quantizes; gather them for it "
            "with `onnxfq moments`"
        )
    asked = tuple(
        p.model_copy(update={"rounding": METHOD if p.tensor in known else NEAREST}) for p in plan.placements
    )
    plan = plan.model_copy(update={"placements": asked})
    made = round_weights(model, plan, encodings, (), moments=moments)
    rows = []
    for layer in made.layers:
        ways = ((NEAREST, encodings, layer.before_db), (METHOD, made.encodings, layer.after_db))
        for name, source, db in ways:
            one = source[layer.weight]
            rows.append(CalibratorRow(layer.weight, name, one.rmin, one.rmax, db, name == NEAREST))
    return rows
