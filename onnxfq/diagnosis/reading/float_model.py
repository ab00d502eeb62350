"""`FloatModel`: the float model of a quantized file, matched with it by names and by values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from onnxfq.data import Feed
from onnxfq.diagnosis.reading.quantizers import Limit, SwitchedForm
from onnxfq.diagnosis.reading.toggles import AS_WRITTEN, FileToggles
from onnxfq.errors import DataError, ModelError
from onnxfq.graph.bounds import UNKNOWN, Bounds, bounds_of
from onnxfq.graph.external.tensor import tensor_array
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.io.load import load
from onnxfq.graph.normalize.experts import split_experts
from onnxfq.graph.normalize.fold_batch_norm import FOLDED, fold_batch_norm
from onnxfq.graph.normalize.turned_weights import store_turned
from onnxfq.graph.ops import BIASED_PRODUCTS, QUANTIZED_OPS, WEIGHTED_INPUTS
from onnxfq.graph.signature import output_names, with_inputs_of, with_outputs
from onnxfq.runtime.session import Session

ALIKE = 0.8
"""Correlation from which tensors or weights of equal shape may be the same one.

Unrelated ones stay far below, and a coarse or saturated grid keeps it.
"""

_NEAR = 0.02
"""Loss of correlation for which a tensor of the same name is preferred."""


@dataclass(frozen=True)
class MatchedLayer:
    """A layer of the float model that has the weight of one of the file.

    Attributes:
        node: its name.
        weight: values in the layout of the file.
        bias: values; None without a constant one.
    """

    node: str
    weight: NDArray[np.float32]
    bias: NDArray[np.float32] | None


@dataclass
class FloatModel:
    """The float model.

    Attributes:
        proto: with all folded into convolutions that can be, but for what the file has.
        tensors: by number of a quantizer, the float tensor that it quantizes.
        layers: by node of the float form of the file, the layer with its weight.
        unmatched: quantized tensors of the file without a float one.
        asked: number of weights of the file whose layer was looked for.
    """

    proto: onnx.ModelProto
    session: Session
    index: GraphIndex
    tensors: dict[int, str] = field(default_factory=dict)
    layers: dict[str, MatchedLayer] = field(default_factory=dict)
    unmatched: list[str] = field(default_factory=list)
    asked: int = 0

    @staticmethod
    def open(model: str | Path | onnx.ModelProto, file: onnx.ModelProto, threads: int) -> FloatModel:
        """Return the float model of `file`. Raises ModelError for one that cannot be read or is quantized."""
        loaded = load(model)
        loaded = replace(loaded, proto=split_experts(loaded.proto, "MoE", loaded.source))
        if any(node.op_type in QUANTIZED_OPS for node in loaded.proto.graph.node):
            raise ModelError(f"{loaded.source} is quantized; give the float model that the file was made of")
        own = {node.output[0] for node in file.graph.node if node.op_type in FOLDED}
        folded = store_turned(fold_batch_norm(loaded, own))
        proto = with_inputs_of(folded.proto, file, loaded.source)
        index = GraphIndex.of_model(proto)
        inner = [name for node in proto.graph.node for name in node.output if name]
        floats = {onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.UNDEFINED}
        wanted = [name for name in inner if index.types.get(name, 0) in floats]
        return FloatModel(proto, Session(with_outputs(proto, wanted), threads), index)

    def run(self, feed: Feed, names: Sequence[str]) -> list[NDArray[Any]]:
        """Return tensors of one feed, inputs among them."""
        computed = [name for name in names if name not in feed]
        values = dict(zip(computed, self.session.run(feed, computed), strict=True)) if computed else {}
        return [np.asarray(feed[name]) if name in feed else values[name] for name in names]

    def match_outputs(self, form: SwitchedForm, outputs: Sequence[str]) -> list[str]:
        """Return the outputs of the float model for the ones of the file, by name or by place.

        Inner tensors among them have their names. Raises DataError if the numbers of outputs differ.
        """
        mine, all_of_file = output_names(self.proto), output_names(form.proto)
        if set(outputs) & set(all_of_file) <= set(mine):
            return list(outputs)
        if len(mine) != len(all_of_file):
            raise DataError(
                f"the float model has {len(mine)} outputs and the quantized one {len(all_of_file)}, by other "
                "names; give the float model that it was made of"
            )
        return [mine[all_of_file.index(name)] if name in all_of_file else name for name in outputs]

    def match(self, toggles: FileToggles, feeds: Sequence[Feed], *, keeps_relus: bool) -> None:
        """Match tensors by values on some feeds, and the weights of layers by values too.

        keeps_relus: whether the file has its Relu and Clip operators; else ranges do their work.
        """
        names = [*feeds[0], *self.session.output_names]
        floats = dict(zip(names, _stack(self.run(feed, names) for feed in feeds), strict=True))
        inner = _stack(toggles.run(feed, AS_WRITTEN, toggles.inner) for feed in feeds)
        for quantizer, array in zip(toggles.form.activations, inner, strict=True):
            alike = {n: correlate(array, one) for n, one in floats.items() if one.shape == array.shape}
            name = quantizer.tensor
            own = name if name in alike else name.removesuffix("_quantized")
            found = max(alike, key=lambda name: alike[name], default=own)
            if own in alike and (alike[own] >= alike[found] - _NEAR or alike[found] < ALIKE):
                found = own
            elif alike.get(found, 0.0) < ALIKE:
                self.unmatched.append(name)
                continue
            is_short = not keeps_relus and quantizer.starts_at_zero
            self.tensors[quantizer.number] = self._advance(found) if is_short else found
        self._match_layers(GraphIndex.of_model(toggles.form.proto))

    def _advance(self, name: str) -> str:
        """Go from a tensor to the Relu or Clip that is its only reader: the range does the work of that."""
        readers = self.index.readers.get(name, [])
        is_limited = len(readers) == 1 and readers[0].op_type in ("Relu", "Clip")
        return readers[0].output[0] if is_limited and name not in self.index.outputs else name

    def limits(self, form: SwitchedForm) -> dict[int, Limit]:
        """Return the ends that a Relu or Clip gives the matched tensors, where the file has neither."""
        found: dict[int, Limit] = {}
        for quantizer in form.activations:
            maker = self.index.makers.get(self.tensors.get(quantizer.number, ""))
            if quantizer.can_limit and maker is not None and maker.op_type in ("Relu", "Clip"):
                found[quantizer.number] = bounds_of(maker, [UNKNOWN, *map(self._bounds, maker.input[1:])])
        return found

    def _bounds(self, name: str) -> Bounds:
        tensor = self.index.constants.get(name)
        return UNKNOWN if tensor is None else (float(tensor_array(tensor).reshape(-1)[0]),) * 2

    def _match_layers(self, form: GraphIndex) -> None:
        """Match layers by the values of their weights, in both layouts of a matrix."""
        weights = [(node, values) for node in self.index.nodes for values in _weights(self.index, node)]
        for node in form.nodes:
            for stored in _weights(form, node)[:1]:
                alike = [
                    (abs(correlate(stored, turned)), other.name == node.name, other, turned)
                    for other, values in weights
                    for turned in ((values, values.T) if values.ndim == 2 else (values,))
                    if turned.shape == stored.shape
                ]
                self.asked += 1
                best = max(alike, key=lambda row: row[0] + _NEAR * row[1], default=None)
                if best is not None and best[0] >= ALIKE:
                    self.layers[node.name] = MatchedLayer(best[2].name, best[3], self._bias(best[2]))

    def _bias(self, node: onnx.NodeProto) -> NDArray[np.float32] | None:
        has_bias = node.op_type in BIASED_PRODUCTS and len(node.input) > 2
        tensor = self.index.constants.get(node.input[2]) if has_bias else None
        return None if tensor is None else np.asarray(tensor_array(tensor), np.float32)


def _weights(index: GraphIndex, node: onnx.NodeProto) -> list[NDArray[np.float32]]:
    """Return the constants that a node multiplies."""
    names = [node.input[slot] for slot in WEIGHTED_INPUTS.get(node.op_type, ())]
    tensors = [index.constants[name] for name in names if name in index.constants]
    return [np.asarray(tensor_array(tensor), np.float32) for tensor in tensors]


def _stack(runs: Iterable[list[NDArray[Any]]]) -> list[NDArray[Any]]:
    """Return each tensor over all runs, one behind the other; of runs of several shapes the first."""
    rows = list(runs)
    alike = ((arrays, len({array.shape for array in arrays}) == 1) for arrays in zip(*rows, strict=True))
    return [np.stack(arrays) if is_same else arrays[0][None] for arrays, is_same in alike]


def correlate(one: NDArray[Any], other: NDArray[Any]) -> float:
    """Return the cosine of two arrays of equal shape, 0 if one of them is zero or not finite."""
    a, b = np.asarray(one, np.float64).ravel(), np.asarray(other, np.float64).ravel()
    product = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / product if product and np.isfinite(product) else 0.0
