"""Places of a checkpoint's tensors in the graph of its model: by module path, else by name of the constant.

torch's exporter notes the module of a node. The builder of ONNX Runtime GenAI (0.18, models/builders/base.py)
names constants `model.layers.0.attn.qkv_proj.MatMul.weight`, joins q, k and v along their output channels,
and has its own spelling of some modules; `spell` removes it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from onnxfq.graph.index import GraphIndex
from onnxfq.graph.model import Model
from onnxfq.graph.node_fields import attributes_of
from onnxfq.graph.node_notes import module_path
from onnxfq.graph.ops import STANDARD_DOMAINS, TRANSPOSES
from onnxfq.numerics.float_types import FLOAT_CODES

JOINED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
"""Modules that stand for several, whose output channels follow each other."""

_ENDINGS = (".MatMul.weight", ".weight")


@dataclass(frozen=True)
class LinearPlace:
    """A constant matrix that multiplies from the right.

    Attributes:
        tensor: its name.
        turned: whether it is [K, N]; a checkpoint has [N, K].
        nodes: the products that read it.
        paths: possible paths of its module, as `spell` writes them.
        outputs: number of output channels.
        inputs: number of inputs, K.
    """

    tensor: str
    turned: bool
    nodes: tuple[str, ...]
    paths: tuple[str, ...]
    outputs: int
    inputs: int


@dataclass(frozen=True)
class ModuleRows:
    """Output channels of a module of a checkpoint, from `first` up to `last`; all if `last` is None."""

    module: str
    first: int = 0
    last: int | None = None


def find_places(model: Model) -> list[LinearPlace]:
    """Return the places of linear layers in the outermost graph, in its order."""
    places = dict[str, LinearPlace]()
    for node in model.proto.graph.node:
        if node.op_type not in ("MatMul", "Gemm") or node.domain not in STANDARD_DOMAINS:
            continue
        name, turned = find_weight(model.index, node, TRANSPOSES)
        tensor = model.constants.get(name)
        if tensor is None or len(tensor.dims) != 2 or tensor.data_type not in FLOAT_CODES:
            continue
        known = places.get(name)
        if known is not None and known.turned != turned:
            continue
        nodes = (*(known.nodes if known else ()), node.name)
        paths = (*(known.paths if known else ()), *list_paths(node, name))
        inputs, outputs = tensor.dims if turned else reversed(tensor.dims)
        places[name] = LinearPlace(name, turned, nodes, tuple(dict.fromkeys(paths)), outputs, inputs)
    return list(places.values())


def find_weight(index: GraphIndex, product: onnx.NodeProto, moves: Collection[str]) -> tuple[str, bool]:
    """Return the tensor that a product multiplies from the right, before `moves`; whether it is [K, N]."""
    name, turned = product.input[1], not attributes_of(product).get("transB", 0)
    while (maker := index.makers.get(name)) is not None and maker.op_type in moves:
        turned ^= maker.op_type == "Transpose"
        name = maker.input[0]
    return name, turned


def list_paths(node: onnx.NodeProto, constant: str) -> Iterator[str]:
    """Yield the possible paths of the module of a product, the surest first."""
    noted = module_path(node)
    if noted:
        yield spell(noted)
    ending = next((one for one in _ENDINGS if constant.endswith(one)), None)
    if ending is not None:
        yield spell(constant.removesuffix(ending))
    if node.name.startswith("/") and node.name.rpartition("/")[2].startswith(node.op_type):
        yield spell(node.name.rpartition("/")[0].strip("/").replace("/", "."))


def spell(path: str) -> str:
    """Return a module path, or the name of a tensor, without what exporters spell in several ways."""
    path = path.replace(".self_attn.", ".attn.")
    path = re.sub(r"^model\.layers\.\d+\.final_norm_layernorm\.", "model.norm.", path)
    path = re.sub(r"\.([qk]_norm)\.layernorm\.", r".\1.", path)
    return re.sub(r"\.Add\.bias$", ".bias", path)


class ModuleNames:
    """Modules of a checkpoint, found by the paths of a graph: spelled alike, or one path inside the other."""

    def __init__(self, modules: Iterable[str]) -> None:
        """Start with the paths of the modules."""
        self._known = {spell(module): module for module in modules}
        self._last: dict[str, list[str]] = {}
        for path in self._known:
            self._last.setdefault(path.rpartition(".")[2], []).append(path)

    def tie(self, module: str, other: str) -> None:
        """Let `module` stand for the only module that is called `other`, if there is one."""
        alike = self._last.get(other, [])
        if len(alike) == 1:
            self._known.setdefault(module, self._known[alike[0]])

    def find(self, paths: Iterable[str]) -> str | None:
        """Return the module with one of `paths`; None if there is none, or several end alike."""
        paths = list(paths)
        for path in paths:
            if path in self._known:
                return self._known[path]
        for path in paths:
            alike = [p for p in self._last.get(path.rpartition(".")[2], ()) if _ends_alike(p, path)]
            if len(alike) == 1:
                return self._known[alike[0]]
        return None

    def sources(self, place: LinearPlace, places: Mapping[str, LinearPlace]) -> list[ModuleRows]:
        """Return what the output channels of a place are in the checkpoint, in order; none if unknown.

        Args:
            place: the place.
            places: all places by path.
        """
        module = self.find(place.paths)
        if module is not None:
            return [ModuleRows(module)]
        for path in place.paths:
            parent, _, last = path.rpartition(".")
            parts = [self.find([part]) for part in list_parts(path)]
            if parts and all(part is not None for part in parts):
                return [ModuleRows(str(part)) for part in parts]
            for joined, names in JOINED.items():
                whole = self.find([f"{parent}.{joined}"]) if last in names else None
                before = (
                    [places.get(f"{parent}.{name}") for name in names[: names.index(last)]] if whole else []
                )
                if whole and all(one is not None for one in before):
                    first = sum(one.outputs for one in before if one is not None)
                    return [ModuleRows(whole, first, first + place.outputs)]
        return []


def list_parts(path: str) -> list[str]:
    """Return the modules that the module at `path` joins; none for any other module."""
    parent, _, last = path.rpartition(".")
    return [f"{parent}.{part}" for part in JOINED.get(last, ())]


def _ends_alike(path: str, other: str) -> bool:
    return path.endswith(f".{other}") or other.endswith(f".{path}")


def places_by_path(places: Iterable[LinearPlace]) -> dict[str, LinearPlace]:
    """Return the places by each of their paths."""
    return {path: place for place in places for path in place.paths}


def float_constants(model: Model) -> dict[str, onnx.TensorProto]:
    """Return the float constants that the outermost graph reads, by name as `spell` writes it."""
    used = {name for node in model.proto.graph.node for name in node.input}
    constants = {name: t for name, t in model.constants.items() if t.data_type in FLOAT_CODES}
    return {spell(name): tensor for name, tensor in constants.items() if name in used}


def is_norm(name: str) -> bool:
    """Tell whether a constant is the weight of a norm."""
    return name.endswith("norm.weight")


def are_raised(pairs: Iterable[tuple[NDArray[Any], NDArray[Any]]]) -> bool:
    """Tell whether a graph has the weights of its norms plus 1, as GenAI's builder stores Gemma's.

    One that is exactly so is enough: equalization changes others. Source: ONNX Runtime GenAI 0.18,
    models/builders/gemma.py, add_offset.

    Args:
        pairs: (values in the graph, values in the checkpoint) of each norm.
    """
    return any(
        present.shape == given.shape
        and np.array_equal((given.astype(np.float32) + np.float32(1)).astype(present.dtype), present)
        for present, given in pairs
    )
