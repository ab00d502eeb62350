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

from onnxfq.errors import ModelError, nearest
from onnxfq.interchange.checkpoints import (
    awq,
    compressed_tensors,
    compressed_tensors_writer,
    gptq,
    modelopt,
    modelopt_writer,
)
from onnxfq.interchange.checkpoints.folder import CONFIG, Checkpoint
from onnxfq.interchange.checkpoints.layer import Layer
from onnxfq.interchange.checkpoints.writing import ConfigWriter, LayerWriter


class CheckpointForm(NamedTuple):
    """Detection and reader of one form.

    Attributes:
        is_one: tells by its quantization whether a checkpoint has the form.
        find: the modules of its layers.
        read: the layer of a module.
        parts: endings of the tensors that belong to a layer.
    """

    is_one: Callable[[Mapping[str, Any]], bool]
    find: Callable[[Checkpoint], list[str]]
    read: Callable[[Checkpoint, str], Layer]
    parts: tuple[str, ...]


FORMS: dict[str, CheckpointForm] = {
    "gptq": CheckpointForm(gptq.is_one, gptq.find, gptq.read, gptq.PARTS),
    "awq": CheckpointForm(awq.is_one, awq.find, awq.read, awq.PARTS),
    "compressed-tensors": CheckpointForm(
        compressed_tensors.is_one, compressed_tensors.find, compressed_tensors.read, compressed_tensors.PARTS
    ),
    "modelopt": CheckpointForm(modelopt.is_one, modelopt.find, modelopt.read, modelopt.PARTS),
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
                else f"{path} is not quantized: {CONFIG} has no quantization_config; give a "
                "quantized checkpoint"
            )
        chosen = FORMS[self.form]
        self.modules = tuple(chosen.find(self.files))
        if not self.modules:
            raise ModelError(
                f"{path} is {self.form} by its {CONFIG}, and has no quantized layer; download it again"
            )
        taken = {f"{module}.{part}" for module in self.modules for part in chosen.parts}
        self.floats = tuple(name for name in self.files.entries if name not in taken)

    def read(self, module: str) -> Layer:
        """Return the layer of a module. Raises ModelError in one line for any fault."""
        return FORMS[self.form].read(self.files, module)
