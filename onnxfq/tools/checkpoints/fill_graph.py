"""`GraphFilling`: the constants of a graph with the values of a checkpoint, matched by module path."""

from __future__ import annotations

import numpy as np
import onnx
from numpy.typing import NDArray

from onnxfq.checkpoints import QuantizedCheckpoint
from onnxfq.checkpoints.layer import FloatLayer, Layer, QuantizedLayer, join_rows
from onnxfq.checkpoints.places import (
    LinearPlace,
    ModuleNames,
    ModuleRows,
    are_raised,
    find_places,
    float_constants,
    is_norm,
    list_parts,
    places_by_path,
    spell,
)
from onnxfq.errors import ModelError
from onnxfq.graph.constants import make_tensor
from onnxfq.graph.external.tensor import tensor_array
from onnxfq.graph.external.weightless import with_initializers
from onnxfq.graph.model import Model
from onnxfq.numerics.float_types import FLOATS
from onnxfq.support.plurals import name_first
from onnxfq.tools.checkpoints.layer_encodings import PlacedLayer

_LISTED = 4
_BUFFERS = ("rotary_emb.inv_freq",)
"""Endings of tensors that graphs compute or hold themselves."""
_CACHE = ("k_scale", "v_scale", "k_zero_point", "v_zero_point", "k_bias", "v_bias")
"""Endings of the scales of a cache of keys and values."""
_ALIKE = 0.5
"""Least cosine of a matrix and its rounded form, even in 2 bits; unrelated ones are near 0."""
_UNLIKE = "a weight of the checkpoint unlike the graph's own, as of another model; the checkpoint's counts"
_SPLIT = "another part of the matrix is in float"
_RAISED = "the graph has the weight of a norm plus 1, and gets that of the checkpoint plus 1"


class GraphFilling:
    """Values of a graph, taken from a checkpoint one matrix at a time.

    Attributes:
        formats: constant -> how the checkpoint quantizes it.
        notes: for the user.
    """

    def __init__(self, checkpoint: QuantizedCheckpoint, model: Model, partial: bool) -> None:
        """Start with both; `partial` leaves out what has no place on the other side, with a note."""
        self.checkpoint, self.model, self.partial = checkpoint, model, partial
        self.formats: dict[str, PlacedLayer] = {}
        self.notes: list[str] = []
        self._why: dict[str, list[str]] = {}
        self._raised = False

    def fill(self) -> onnx.ModelProto:
        """Return the graph with the checkpoint's values. Raises ModelError for what has no place."""
        places = find_places(self.model)
        by_path = places_by_path(places)
        floats = self._floats()
        linear = {name.removesuffix(".weight") for name in floats if name.endswith(".weight")}
        names = ModuleNames([*self.checkpoint.modules, *linear])
        if self.checkpoint.files.config.get("tie_word_embeddings") and "lm_head.weight" not in floats:
            names.tie("lm_head", "embed_tokens")  # they share one tensor
        chosen = {place.tensor: names.sources(place, by_path) for place in places}
        constants = self._match_floats(floats, set(chosen))
        self._refuse_unplaced(places, chosen, floats, constants)
        values: dict[str, onnx.TensorProto] = {}
        for place in places:
            if chosen[place.tensor]:
                made = self._fill_place(place, chosen[place.tensor])
                self._compare(place, made)
                values[place.tensor] = self._tensor(place.tensor, made)
        norms = [(name, parts[0]) for name, parts in constants.items() if is_norm(name) and len(parts) == 1]
        self._raised = are_raised(
            (np.asarray(tensor_array(self.model.constants[name])), self.checkpoint.files.array(part))
            for name, part in norms
        )
        for name, parts in constants.items():
            values[name] = self._tensor(name, self._fill_constant(name, parts))
        self.notes += [f"{len(modules)} x {why}{list_names(modules)}" for why, modules in self._why.items()]
        tensors = (values.get(tensor.name, tensor) for tensor in self.model.proto.graph.initializer)
        return with_initializers(self.model.proto, tensors)

    def _floats(self) -> list[str]:
        """Return the float tensors of the checkpoint that a graph may have; note scales of its cache."""
        cache = [n for n in self.checkpoint.floats if n.rpartition(".")[2] in _CACHE]
        if cache:
            self.notes.append(
                f"{len(cache)} scales of the cache of keys and values are not taken{list_names(cache)}"
            )
        return [n for n in self.checkpoint.floats if n not in cache and not n.endswith(_BUFFERS)]

    def _match_floats(self, floats: list[str], matrices: set[str]) -> dict[str, list[str]]:
        """Return constant -> the float tensors that are its parts, in order."""
        known = {spell(name): name for name in floats}
        matched: dict[str, list[str]] = {}
        for spelled, tensor in float_constants(self.model).items():
            if tensor.name in matrices:
                continue
            module, _, part = spelled.rpartition(".")
            parts = list_parts(module)
            whole = [known[f"{one}.{part}"] for one in parts if f"{one}.{part}" in known]
            if spelled in known:
                matched[tensor.name] = [known[spelled]]
            elif whole and len(whole) == len(parts):
                matched[tensor.name] = whole
        return matched

    def _refuse_unplaced(
        self,
        places: list[LinearPlace],
        chosen: dict[str, list[ModuleRows]],
        floats: list[str],
        constants: dict[str, list[str]],
    ) -> None:
        """Note what has no place on the other side, or raise ModelError."""
        used = {source.module for sources in chosen.values() for source in sources}
        taken = {name for parts in constants.values() for name in parts} | {f"{m}.weight" for m in used}
        groups = {
            f"quantized layers of {self.checkpoint.files.path} have no MatMul or Gemm in the graph": [
                module for module in self.checkpoint.modules if module not in used
            ],
            f"tensors of {self.checkpoint.files.path} have no constant in the graph": [
                name for name in floats if name not in taken
            ],
            "products of the graph have no weight in the checkpoint": [
                place.nodes[0] for place in places if not chosen[place.tensor]
            ],
        }
        for what, names in groups.items():
            if names and not self.partial:
                raise ModelError(
                    f"{len(names)} {what}{list_names(names)}; give the graph of this model, or --partial to "
                    "leave them as they are"
                )
            if names:
                self.notes.append(f"{len(names)} {what}, and stay as they are{list_names(names)}")
        if not used & set(self.checkpoint.modules):
            raise ModelError(
                f"no layer of {self.checkpoint.files.path} is in {self.model.source}; give the "
                "graph of this model"
            )

    def _fill_place(self, place: LinearPlace, sources: list[ModuleRows]) -> NDArray[np.float32]:
        """Return the values of a matrix, in the order of its constant; remember its format."""
        layers = [self._read(source) for source in sources]
        whole = [layer for layer in layers if isinstance(layer, QuantizedLayer)]
        if len(whole) == len(layers):
            layer = whole[0] if len(whole) == 1 else join_rows(whole, place.paths[0])
            for note in layer.notes:
                self._why.setdefault(note, []).append(layer.module)
            values = layer.values
        else:
            for left in (layer for layer in layers if layer.module in self.checkpoint.modules):
                why = left.why if isinstance(left, FloatLayer) else _SPLIT
                why = f"{why}; they stay in float, with the values of the checkpoint"
                self._why.setdefault(why, []).append(left.module)
            parts = [layer.values for layer in layers]
            values = np.concatenate(parts) if len(parts) > 1 else parts[0]
        self._check_shape(place.tensor, values, place.outputs, place.inputs)
        if len(whole) == len(layers):
            self.formats[place.tensor] = PlacedLayer.of(layer, place)
        return values.T if place.turned else values

    def _compare(self, place: LinearPlace, values: NDArray[np.float32]) -> None:
        """Note a matrix that is unlike the graph's own: of another model, or of another layer."""
        own = tensor_array(self.model.constants[place.tensor]).astype(np.float32)
        norms = float(np.linalg.norm(own)) * float(np.linalg.norm(values))
        if norms and float(np.vdot(own, values)) < _ALIKE * norms:
            self._why.setdefault(_UNLIKE, []).append(place.nodes[0])

    def _read(self, source: ModuleRows) -> Layer:
        if source.module in self.checkpoint.modules:
            layer = self.checkpoint.read(source.module)
        else:
            values = self.checkpoint.files.floats(f"{source.module}.weight")
            layer = FloatLayer(source.module, values, "")
        return layer if source.last is None else layer.rows(source.first, source.last)

    def _fill_constant(self, name: str, parts: list[str]) -> NDArray[np.float32]:
        """Return the values of a float constant."""
        given = [self.checkpoint.files.floats(part) for part in parts]
        values = np.concatenate(given) if len(given) > 1 else given[0]
        tensor = self.model.constants[name]
        if values.T.shape == tuple(tensor.dims) != values.shape:
            values = values.T
        self._check_shape(name, values, *tensor.dims)
        if is_norm(name) and self._raised:
            self._why.setdefault(_RAISED, []).append(name)
            return values + np.float32(1)
        return values

    def _check_shape(self, name: str, values: NDArray[np.float32], *wanted: int) -> None:
        if values.shape != wanted:
            raise ModelError(
                f"{name!r} of {self.model.source} needs shape {list(wanted)}, and the checkpoint has "
                f"{list(values.shape)}; give the graph of this model"
            )

    def _tensor(self, name: str, values: NDArray[np.float32]) -> onnx.TensorProto:
        """Return the constant `name` with other values, in its type."""
        dtype = next(i.dtype for i in FLOATS.values() if i.onnx_type == self.model.constants[name].data_type)
        with np.errstate(over="ignore"):
            cast = values.astype(dtype)
        if not np.isfinite(cast.astype(np.float32)).all():
            raise ModelError(
                f"{name!r}: a value of the checkpoint is beyond {dtype}, the type of the graph; export the "
                "graph in float32"
            )
        return make_tensor(name, cast)


def list_names(names: list[str]) -> str:
    """Return the first names for a message."""
    return f": {name_first([*map(repr, names)], _LISTED)}"
