"""`load_existing`: a model that may be quantized already, with its quantizers or without them."""

from __future__ import annotations

from pathlib import Path

import onnx

from onnxfq.documents.scores import FORMAT_KEY
from onnxfq.errors import ModelError
from onnxfq.graph.io.load import normalize_model, read_model
from onnxfq.graph.model import Existing, Model, list_nodes
from onnxfq.graph.normalize.experts import split_experts
from onnxfq.graph.ops import QUANTIZED_OPS
from onnxfq.graph.saturation import ValueLimit
from onnxfq.quantized.float_form import Unfolding
from onnxfq.quantized.operators import HANDLERS
from onnxfq.quantized.qonnx import pairs_of_qonnx

_TAKEN = QUANTIZED_OPS - {"QuantizeLinear", "DynamicQuantizeLinear"}


def load_existing(model: str | Path | onnx.ModelProto | Model, existing: Existing) -> Model:
    """Return what `load` does; "requantize" removes the quantizers of a model that has some."""
    if isinstance(model, Model):
        return model
    proto, sha256, source = read_model(model)
    return normalize_existing(pairs_of_qonnx(proto, source), sha256, source, existing)


def normalize_existing(proto: onnx.ModelProto, sha256: str, source: str, existing: Existing) -> Model:
    """Normalise a model of ONNX's own operators as `load_existing` does; may change `proto`."""
    return normalize_model(proto, sha256, source, take_out_quantizers if existing == "requantize" else None)


def take_out_quantizers(proto: onnx.ModelProto, source: str) -> tuple[str, dict[str, ValueLimit]]:
    """Give a normalised model its float form, in place; names of tensors stay.

    Returns a note, and the Clip and Relu that ranges left by their outputs.

    The input of a pair replaces it, limited to the range of the pair where values may pass its ends; a factor
    between its scales becomes a Mul. Real numbers replace a quantized constant. Raises ModelError for an
    operator without a float form, and for a pair whose parts differ in zero points.
    """
    taken = sum(node.op_type in _TAKEN for node in list_nodes(proto.graph))
    if not taken:
        return "", {}
    unfolding = Unfolding(split_experts(proto, "QMoE", source), source, HANDLERS, keeps_names=True)
    try:
        form = unfolding.run()
    except ModelError as fault:
        raise ModelError(f"{fault}, or --keep-existing") from None
    proto.CopyFrom(form.proto)
    for entry in [one for one in proto.metadata_props if one.key.startswith(FORMAT_KEY)]:
        proto.metadata_props.remove(entry)
    kept = f"; {unfolding.limited} that may saturate left a Relu or Clip" if unfolding.limited else ""
    return f"{taken} quantizer(s) taken out{kept}", form.clips
