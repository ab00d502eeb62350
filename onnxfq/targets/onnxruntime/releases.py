"""Opset and IR limits of ONNX Runtime releases, and models limited to them."""

from __future__ import annotations

import re
from copy import deepcopy
from dataclasses import dataclass

import onnx
from onnx import TensorProto

from onnxfq.errors import ModelError, RecipeError
from onnxfq.graph.model import default_opset, list_nodes
from onnxfq.graph.node_fields import attributes_of
from onnxfq.graph.normalize.opset import lowest_ir
from onnxfq.graph.ops import QDQ_OPS
from onnxfq.graph.signature import element_types

# Release -> (newest ai.onnx opset, newest IR version) of models that it runs: each tried, with Q/DQ pairs.
# 1.15 loads opset 19 too and 1.23 opset 23, without kernels for their QuantizeLinear.
# tests/graph/test_releases.py tries the installed one again.
_RELEASES = {
    (1, 15): (18, 9),
    (1, 16): (19, 9),
    (1, 17): (20, 9),
    **dict.fromkeys(((1, 18), (1, 19), (1, 20)), (21, 10)),
    **dict.fromkeys(((1, 21), (1, 22)), (22, 10)),
    (1, 23): (22, 11),
    (1, 24): (25, 13),
    **{(1, minor): (26, 13) for minor in range(25, 32)},
}

_BLOCKS = "scales of blocks"

# Types without kernels in a release that reads their opset and IR version: each tried on DequantizeLinear.
_LACKING = {(1, 18): {"INT4", "UINT4", _BLOCKS}}

# Element types and the IR versions that brought them, from onnx.proto's history of versions.
_IR_OF_TYPE = {
    **dict.fromkeys(("FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ"), 9),
    **dict.fromkeys(("INT4", "UINT4"), 10),
    "FLOAT4E2M1": 11,
    "FLOAT8E8M0": 12,
    **dict.fromkeys(("INT2", "UINT2"), 13),
    **dict.fromkeys(("FLOAT6E2M3", "FLOAT6E3M2"), 14),
}
_IR_OF_FUNCTIONS = 8

_FORM = re.compile(r"(?:onnxruntime|ort)\s*==\s*(\d+)\.(\d+)(?:\.\d+)?")


@dataclass(frozen=True)
class Release:
    """Limits of one release of ONNX Runtime.

    Attributes:
        name: the release, such as `1.18`.
        opset: newest opset that it runs.
        ir_version: newest IR version that it runs.
        lacking: element types and forms without kernels.
    """

    name: str
    opset: int
    ir_version: int
    lacking: frozenset[str] = frozenset()

    def check_opset(self, opset: int, what: str) -> None:
        """Raise ModelError if this release does not read `opset`.

        Args:
            opset: version to check.
            what: beginning of the message, such as "recipe NAME needs".
        """
        if opset > self.opset:
            raise ModelError(
                f"{what} opset {opset}, and onnxruntime {self.name} reads {self.opset} at most; export the "
                "model lower, choose another recipe, or give a newer --runtime"
            )

    def limit_model(self, proto: onnx.ModelProto, recipe: str) -> onnx.ModelProto:
        """Return `proto` with an IR version that this release reads.

        Raises ModelError if no IR version will do, or if the release lacks kernels for the model.
        """
        if self is _ANY:
            return proto
        self.check_opset(default_opset(proto), f"recipe {recipe} needs")
        lowest, why = _find_needed_ir(proto)
        if lowest > self.ir_version:
            raise ModelError(
                f"recipe {recipe} needs IR version {lowest} for {why}, and onnxruntime {self.name} reads "
                f"{self.ir_version} at most; choose another recipe, or give a newer --runtime"
            )
        lacking = sorted(self.lacking & {*_types(proto), *_forms(proto)})
        if lacking:
            raise ModelError(
                f"recipe {recipe} needs {lacking[0].lower()}, and onnxruntime {self.name} has no kernels for "
                "them; choose another recipe, or give a newer --runtime"
            )
        kept = deepcopy(proto)
        kept.ir_version = min(proto.ir_version, self.ir_version)
        return kept


_ANY = Release("of any version", 1 << 31, 1 << 31)


def release_of(words: str | None) -> Release:
    """Return the release that `words` name, such as `onnxruntime==1.18`; for None one that reads everything.

    Raises RecipeError for unknown releases.
    """
    if words is None:
        return _ANY
    found = _FORM.fullmatch(words.strip())
    known = [f"{major}.{minor}" for major, minor in _RELEASES]
    if found is None:
        raise RecipeError(f"no runtime {words!r}; give onnxruntime==X, with X from {known[0]} to {known[-1]}")
    version = int(found[1]), int(found[2])
    if version not in _RELEASES:
        raise RecipeError(
            f"the limits of onnxruntime {version[0]}.{version[1]} are unknown; known releases are "
            f"{known[0]} to {known[-1]}"
        )
    lacking = frozenset(_LACKING.get(version, ()))
    return Release(f"{version[0]}.{version[1]}", *_RELEASES[version], lacking)


def _find_needed_ir(proto: onnx.ModelProto) -> tuple[int, str]:
    """Return (lowest IR version for `proto`, feature that needs it)."""
    opset = default_opset(proto)
    needs = [(lowest_ir(opset), f"opset {opset}")]
    if proto.functions:
        needs.append((_IR_OF_FUNCTIONS, "functions"))
    needs += [(_IR_OF_TYPE[name], name.lower()) for name in _types(proto) if name in _IR_OF_TYPE]
    return max(needs)


def _types(proto: onnx.ModelProto) -> list[str]:
    """Return the names of the element types in `proto`."""
    kinds = element_types(proto) & {*TensorProto.DataType.values()}
    return [TensorProto.DataType.Name(kind) for kind in sorted(kinds)]


def _forms(proto: onnx.ModelProto) -> set[str]:
    """Return the forms in `proto`, apart from element types, that some releases lack."""
    nodes = [node for node in list_nodes(proto.graph) if node.op_type in QDQ_OPS]
    return {_BLOCKS for node in nodes if attributes_of(node).get("block_size")}
