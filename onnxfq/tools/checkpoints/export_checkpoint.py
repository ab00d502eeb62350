"""`export_checkpoint`: a quantized ONNX model as a checkpoint in the form of another tool."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from onnxfq.checkpoints import WRITTEN
from onnxfq.checkpoints.folder import CONFIG, MODELOPT_CONFIG, Checkpoint, float_type_of
from onnxfq.checkpoints.layer import QuantizedLayer
from onnxfq.checkpoints.places import (
    LinearPlace,
    ModuleNames,
    ModuleRows,
    are_raised,
    find_places,
    float_constants,
    is_norm,
    places_by_path,
    spell,
)
from onnxfq.checkpoints.stored_layers import StoredLayers, restore_scale_type
from onnxfq.checkpoints.writing import CheckpointWriter, copy_companions, write_object
from onnxfq.errors import ModelError, RecipeError, nearest
from onnxfq.graph.external.tensor import tensor_array
from onnxfq.graph.io.load import read_model
from onnxfq.graph.model import Model
from onnxfq.numerics.float_types import FLOATS, FloatType
from onnxfq.support.files import replace_folder
from onnxfq.tools.checkpoints.fill_graph import list_names


@dataclass(frozen=True)
class ExportedCheckpoint:
    """Result of `export_checkpoint`.

    Attributes:
        source: name of the model.
        to: the form.
        formats: number of layers in each number format of the model.
        lost: module -> why the form cannot hold it; it is in float.
        notes: what differs or was left out.
    """

    source: str
    to: str
    formats: Counter[str]
    lost: dict[str, str]
    notes: list[str]


def export_checkpoint(
    model: str | Path | onnx.ModelProto,
    onto: str | Path,
    output: str | Path,
    to: str,
    *,
    partial: bool = False,
) -> ExportedCheckpoint:
    """Write the weights of a quantized ONNX model as a checkpoint.

    Integers, scales and zero points of the model stay. A layer whose numbers the form cannot hold is
    written in float, with its values in the model.

    Args:
        model: a model with DequantizeLinear or MatMulNBits behind its weights.
        onto: the float checkpoint of the model: names, configuration, tokenizer, and what the graph lacks.
        output: the new folder.
        to: a name of `WRITTEN`.
        partial: leave out layers without a module of that path, with a note, instead of an error.

    Raises ModelError for a model without quantized layers, or whose layers the checkpoint does not have;
    RecipeError for an unknown form.
    """
    if to not in WRITTEN:
        raise RecipeError(f"checkpoints are not written as {to!r}{nearest(to, WRITTEN)}")
    base = Checkpoint.open(onto)
    if base.quantization:
        raise ModelError(f"{onto} is quantized itself; give the float checkpoint of the model")
    proto, sha256, source = read_model(model)
    exporting = _Exporting(Model(proto, sha256, source), base, to, partial)
    with replace_folder(output) as folder:
        exporting.write(folder)
    return ExportedCheckpoint(source, to, exporting.formats, exporting.lost, exporting.notes)


class _Exporting:
    """Tensors of a new checkpoint, one layer at a time.

    Attributes:
        formats: number of layers by format.
        lost: module -> why it is in float.
        notes: for the user.
    """

    def __init__(self, model: Model, base: Checkpoint, to: str, partial: bool) -> None:
        self._base, self._form, self._to = base, WRITTEN[to], to
        self._model, self._source = model, model.source
        self._stored = StoredLayers(model.proto)
        self.formats: Counter[str] = Counter()
        self.lost: dict[str, str] = {}
        self.notes: list[str] = []
        self._schemes: dict[str, dict[str, Any]] = {}
        quantized, plain = self._stored.places(), find_places(model)
        if not quantized:
            raise ModelError(
                f"{model.source} has no quantized weights; quantize it with `onnxfq quantize` first"
            )
        linear = [n.removesuffix(".weight") for n, e in base.entries.items() if len(e.shape) == 2]
        self._names = ModuleNames([n for n in linear if f"{n}.weight" in base])
        self._layers = self._match(quantized, partial)
        self._matrices = self._match(plain, True, quiet=True)
        self._constants = float_constants(model)
        norms = [name for name in base.entries if is_norm(name) and spell(name) in self._constants]
        self._raised = are_raised(
            (np.asarray(tensor_array(self._constants[spell(name)])), base.array(name)) for name in norms
        )

    def write(self, folder: Path) -> None:
        """Write all files. Raises OSError, and ModelError if the form holds no layer."""
        writer = CheckpointWriter(folder)
        for name, values in self._tensors():
            writer.add(name, values)
        if not self._schemes:
            module, why = next(iter(self.lost.items()))
            raise ModelError(f"{self._to} holds no layer of {self._source}, as {module!r}: {why}")
        writer.finish()
        linear = {n.removesuffix(".weight") for n, e in self._base.entries.items() if len(e.shape) == 2}
        in_float = sorted(linear - set(self._schemes))
        files = self._form.write_config(self._schemes, in_float)
        for name, content in files.items():
            begin = self._base.config if name == CONFIG else {}
            write_object(folder / name, {**begin, **content})
        left = copy_companions(self._base, folder, (MODELOPT_CONFIG,))
        if left:
            self.notes.append(f"{len(left)} files of {self._base.path} are not copied{list_names(left)}")

    def _match(
        self, places: list[LinearPlace], partial: bool, quiet: bool = False
    ) -> dict[str, tuple[LinearPlace, int, int]]:
        """Return module -> its place and output channels there. Raises ModelError for layers without one."""
        by_path, found, lost = places_by_path(places), dict[str, tuple[LinearPlace, int, int]](), []
        for place in places:
            sources = self._names.sources(place, by_path)
            sizes = [self._base.entries[f"{source.module}.weight"].shape for source in sources]
            whole = all(source == ModuleRows(source.module) for source in sources)
            if not sources or not whole or sum(shape[0] for shape in sizes) != place.outputs:
                lost.append(place.paths[0] if place.paths else place.tensor)
                continue
            first = 0
            for source, shape in zip(sources, sizes, strict=True):
                found[source.module] = place, first, first + shape[0]
                first += shape[0]
        if lost and not partial:
            raise ModelError(
                f"{len(lost)} quantized layers of {self._source} have no module in {self._base.path}"
                f"{list_names(lost)}; give the float checkpoint of this model, or --partial to leave them out"
            )
        if lost and not quiet:
            self.notes.append(f"{len(lost)} quantized layers are left out{list_names(lost)}")
        return found

    def _tensors(self) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yield the tensors of the new checkpoint; parts of a joined matrix follow each other."""
        last, layer = None, None
        for module, (place, first, end) in self._layers.items():
            if place is not last:
                last, layer = place, restore_scale_type(self._stored.read(place))
            assert layer is not None
            yield from self._write_layer(module, layer.rows(first, end))
        kept, changed = 0, 0
        for name, entry in self._base.entries.items():
            if name.removesuffix(".weight") in self._layers:
                continue
            given = entry.array()
            values = self._find_float(name, given) if entry.dtype in _FLOAT_DTYPES else None
            kept += values is None
            made = given if values is None else values.astype(entry.dtype)
            changed += made is not given and bool((made != given).any())
            yield name, made
        if kept:
            self.notes.append(
                f"{kept} tensors are copied from {self._base.path}: the graph has none of that name"
            )
        if changed:
            self.notes.append(f"{changed} float tensors have other values in the graph, and get those")

    def _write_layer(self, module: str, layer: QuantizedLayer) -> Iterator[tuple[str, NDArray[Any]]]:
        kind = self._kind(module)
        if layer.qtype.is_float and layer.scale.ndim == 1 and (layer.scale == layer.scale[0]).all():
            layer = replace(layer, scale=layer.scale[0].reshape(()), zero_point=np.zeros((), np.int32))
        written = self._form.write_layer(layer, kind)
        if isinstance(written, str):
            self.lost[module] = written
            yield f"{module}.weight", layer.values.astype(FLOATS[kind].dtype)
            return
        self._schemes[module] = written.scheme
        self.formats[f"{layer.qtype} {layer.granularity}"] += 1
        notes = [note for note in (*layer.notes, written.note) if note]
        self.notes += [f"{module}: {note}" for note in notes]
        for part, values in written.parts.items():
            yield f"{module}.{part}", values

    def _kind(self, module: str) -> FloatType:
        """Return the type of a module's weight in the float checkpoint."""
        return float_type_of(self._base.entries[f"{module}.weight"].dtype)

    def _find_float(self, name: str, given: NDArray[Any]) -> NDArray[np.float32] | None:
        """Return the values of a float tensor in the graph; None if it has none of this name and shape."""
        placed = self._matrices.get(name.removesuffix(".weight"))
        if placed is not None:
            place, first, end = placed
            values = np.asarray(tensor_array(self._model.constants[place.tensor]), np.float32)
            return (values.T if place.turned else values)[first:end]
        tensor = self._constants.get(spell(name))
        if tensor is None or tuple(tensor.dims) != given.shape:
            return None
        values = np.asarray(tensor_array(tensor), np.float32)
        return values - np.float32(1) if self._raised and is_norm(name) else values


_FLOAT_DTYPES = tuple(info.dtype for info in FLOATS.values())
