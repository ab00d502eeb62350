"""Quantized checkpoints of language models: folders of safetensors, one form a file.

| form               | written by                                                             |
|--------------------|------------------------------------------------------------------------|
| gptq               | gptqmodel, AutoGPTQ, AutoRound                                         |
| awq                | AutoAWQ, gptqmodel, AutoRound                                          |
| compressed-tensors | llm-compressor                                                         |
| modelopt           | NVIDIA ModelOpt's export_hf_checkpoint                                 |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from onnxfq.checkpoints import (
    columns,
    compressed_tensors,
    compressed_tensors_writer,
    modelopt,
    modelopt_writer,
)
from onnxfq.checkpoints.folder import CONFIG, Checkpoint, StoredModule
from onnxfq.checkpoints.layer import Layer
from onnxfq.checkpoints.writing import ConfigWriter, LayerWriter
from onnxfq.errors import ModelError, nearest


class CheckpointForm(NamedTuple):
    """Detection and reader of one form.

    Attributes:
        is_one: tells by its quantization whether a checkpoint has the form.
        read: the layer of a module.
        parts: endings of the tensors that belong to a layer; each layer has the first.
        check: raises ModelError for a checkpoint that is not read.
    """

    is_one: Callable[[Mapping[str, Any]], bool]
    read: Callable[[StoredModule], Layer]
    parts: tuple[str, ...]
    check: Callable[[Checkpoint], None] = lambda checkpoint: None


_MODELOPT = ("weight_scale", "weight", "weight_scale_2", "input_scale", "pre_quant_scale")
_COMPRESSED = (
    *("weight_scale", "weight", "weight_packed", "weight_zero_point", "weight_shape", "weight_g_idx"),
    *("weight_global_scale", "input_scale", "input_zero_point", "input_global_scale"),
)
_COLUMNS = ("qweight", "qzeros", "scales")

FORMS: dict[str, CheckpointForm] = {
    "gptq": CheckpointForm(columns.is_gptq, columns.read_gptq, (*_COLUMNS, "g_idx"), columns.check_packing),
    "awq": CheckpointForm(columns.is_awq, columns.read_awq, _COLUMNS, columns.check_awq),
    "compressed-tensors": CheckpointForm(
        compressed_tensors.is_one, compressed_tensors.read, _COMPRESSED, compressed_tensors.check
    ),
    "modelopt": CheckpointForm(modelopt.is_one, modelopt.read, _MODELOPT),
}
"""Forms of quantized checkpoints by name."""


class WrittenForm(NamedTuple):
    """Writers of one form: of a layer, and of the configuration."""

    write_layer: LayerWriter
    write_config: ConfigWriter


WRITTEN: dict[str, WrittenForm] = {
    "modelopt": WrittenForm(modelopt_writer.write_layer, modelopt_writer.write_config),
    "compressed-tensors": WrittenForm(
        compressed_tensors_writer.write_layer, compressed_tensors_writer.write_config
    ),
}
"""Forms that are written by name."""


class QuantizedCheckpoint:
    """A quantized checkpoint: its layers, which are read one at a time, and its other tensors.

    Attributes:
        files: the folder.
        form: name in FORMS.
        modules: paths of the quantized layers.
        floats: names of the tensors that belong to no layer.
    """

    def __init__(self, path: str | Path) -> None:
        """Open a folder. Raises ModelError in one line for any fault, and for a checkpoint in float."""
        self.files = Checkpoint.open(path)
        said = self.files.quantization
        self.form = next((name for name, form in FORMS.items() if form.is_one(said)), "")
        if not self.form:
            method = said.get("quant_method", said.get("quant_algo"))
            raise ModelError(
                f"{path} is quantized by {method!r:.40}, which is not read{nearest(str(method), FORMS)}"
                if said
                else f"{path} is not quantized: {CONFIG} has no quantization_config; "
                "give a quantized checkpoint"
            )
        chosen = FORMS[self.form]
        chosen.check(self.files)
        self.modules = tuple(self.files.modules(chosen.parts[0]))
        if not self.modules:
            raise ModelError(
                f"{path} is {self.form} by its {CONFIG}, and has no quantized layer; download it again"
            )
        taken = {f"{module}.{part}" for module in self.modules for part in chosen.parts}
        self.floats = tuple(name for name in self.files.entries if name not in taken)

    def read(self, module: str) -> Layer:
        """Return the layer of a module. Raises ModelError in one line for any fault."""
        return FORMS[self.form].read(StoredModule(self.files, module))
