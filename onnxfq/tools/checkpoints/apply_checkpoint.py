"""`apply_checkpoint`: the weights of a quantized checkpoint on the graph of its model, bits exact."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx

from onnxfq.checkpoints import QuantizedCheckpoint
from onnxfq.documents.encodings import Encodings
from onnxfq.documents.plan import Plan
from onnxfq.errors import ModelError
from onnxfq.graph.external.scratch_file import Scratch, scratch_for, weights_stored_in
from onnxfq.graph.io.load import load
from onnxfq.graph.io.save import save
from onnxfq.graph.model import Model
from onnxfq.stages.insert import insert_fake_quantize, insert_qdq
from onnxfq.stages.write import write_model
from onnxfq.support.files import replace_folder
from onnxfq.targets.target import target_by_name
from onnxfq.tools.checkpoints.fill_graph import GraphFilling
from onnxfq.tools.checkpoints.layer_encodings import encode_layers


@dataclass
class AppliedCheckpoint:
    """Result of `apply_checkpoint`.

    Attributes:
        source: path of the checkpoint.
        form: name of its form.
        model: the float graph, with the values of the checkpoint.
        plan: of the quantized tensors.
        encodings: of the plan, with the scales of the checkpoint.
        formats: number of matrices in each number format.
        notes: what could not be kept as it was, and what was left out.
        scratch: the file of large weights of `model`, which exists as long as this object.
    """

    source: str
    form: str
    model: Model
    plan: Plan
    encodings: Encodings
    formats: Counter[str]
    notes: list[str]
    scratch: Scratch | None = field(default=None, repr=False, compare=False)


def apply_checkpoint(
    checkpoint: str | Path,
    onto: str | Path | onnx.ModelProto,
    output: str | Path | None = None,
    *,
    target: str = "onnxruntime",
    partial: bool = False,
) -> AppliedCheckpoint:
    """Put the tensors of a quantized checkpoint on the float graph of its model.

    The graph gets the checkpoint's own values, of norms and biases too: AWQ and SmoothQuant change them. The
    encodings have its scales and zero points, so that inserting writes exactly its numbers.

    Args:
        checkpoint: a folder of safetensors.
        onto: the float model.
        output: a path that ends in .onnx gets the quantized model; any other becomes a folder of the float
            model, its plan and its encodings. None writes nothing.
        target: what the model is written for.
        partial: leave out what has no place on the other side, with a note, instead of an error.

    Raises ModelError for a damaged or foreign folder, and, unless `partial`, for tensors without a place;
    RecipeError for a format that the target does not take.
    """
    opened = QuantizedCheckpoint(checkpoint)
    graph = load(onto)
    folder = None if output is None else Path(output).parent
    scratch = scratch_for(graph.proto, folder)
    with weights_stored_in(scratch):
        filling = GraphFilling(opened, graph, partial)
        model = replace(graph, proto=filling.fill())
        model = load(model.proto)
        if not filling.formats:
            raise ModelError(f"{checkpoint}: encodings hold none of its layers; {'; '.join(filling.notes)}")
        plan, encodings, notes = encode_layers(model, filling.formats, target, opened.form)
        formats = Counter(str(layer.spec) for layer in filling.formats.values())
        notes = [*filling.notes, *notes]
        applied = AppliedCheckpoint(
            str(checkpoint), opened.form, model, plan, encodings, formats, notes, scratch
        )
        if output is not None:
            _write(applied, Path(output))
    return applied


def _write(applied: AppliedCheckpoint, output: Path) -> None:
    """Write the quantized model, or the folder of the float model, its plan and its encodings."""
    if output.suffix == ".onnx" and not target_by_name(applied.plan.target).has_pairs:
        save(insert_fake_quantize(applied.model, applied.plan, applied.encodings), output)
        return
    if output.suffix == ".onnx":
        write_model(insert_qdq(applied.model, applied.plan, applied.encodings), output)
        return
    with replace_folder(output) as place:
        path = place / "model.onnx"
        save(applied.model.proto, path)
        same = {"model_sha256": load(path).sha256}
        applied.plan.model_copy(update=same).save(place / "model.plan.json")
        applied.encodings.model_copy(update=same).save(place / "model.encodings.json")
