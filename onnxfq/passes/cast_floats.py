"""Cast of float32 operators of a Q/DQ model to a half type, with the exceptions of its `FloatPlan`."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onnxfq.documents.cast_plan import FloatPlan
from onnxfq.graph.constants import make_tensor
from onnxfq.graph.external.tensor import tensor_array
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.model import default_opset, replace_nodes
from onnxfq.graph.normalize.shapes import with_shapes
from onnxfq.graph.ops import QDQ_OPS, STANDARD_DOMAINS
from onnxfq.graph.queries import half_outputs, half_slots
from onnxfq.numerics.float_types import HALF_TYPES

_FLOAT = int(TensorProto.FLOAT)


def cast_floats(proto: onnx.ModelProto, plan: FloatPlan) -> onnx.ModelProto:
    """Return `proto` with every float32 node in the half type, except the nodes that `plan` keeps.

    A constant is cast once, at this point. A computed tensor has one Cast for all its readers of the other
    type. Inputs and outputs keep their names, and their types unless `plan.io` is set. Tensors that bodies
    read keep their type.
    """
    made = with_shapes(proto)
    _Caster(made, plan).run()
    return made


class _Caster:
    """Cast of one model, in place."""

    def __init__(self, proto: onnx.ModelProto, plan: FloatPlan) -> None:
        self.graph, self.plan, self.opset = proto.graph, plan, default_opset(proto)
        self.half = HALF_TYPES[plan.name]
        self.kept = {skipped.name for skipped in plan.nodes}
        self.kept_tensors = {skipped.name for skipped in plan.tensors}
        index = GraphIndex(self.graph)
        self.values, self.constants, self.claim = index.values, index.constants, index.names.claim
        # By tensor name: the type it is computed in. By tensor name and type: its name in that type.
        self.types: dict[str, int] = {}
        self.names: dict[tuple[str, int], str] = {}
        # Tensors that need a name in float32, and outputs in their type.
        self.fixed = dict.fromkeys(index.captured, _FLOAT)
        for output in self.graph.output:
            cast = plan.io and output.name not in self.kept_tensors | index.captured
            self.fixed[output.name] = self.half.onnx_type if cast else _FLOAT

    def run(self) -> None:
        nodes: list[onnx.NodeProto] = []
        wanted = self._collect_read_types()
        for value in self.graph.input:
            if self._is_float(value.name):
                self.types[value.name] = self._input_type(value)
                self.names[value.name, self.types[value.name]] = value.name
                nodes += self._casts(value.name, wanted)
        for name in list(self.constants):
            if self._is_float(name):
                self._cast_constant(name, wanted.get(name, set()))
        for node in self.graph.node:
            made, casts = self._rewire_node(node), list[onnx.NodeProto]()
            kinds = self._infer_types(node, made)
            for position, name in enumerate(node.output):
                if self._is_float(name):
                    made.output[position] = self._give(node, position, kinds)
                    casts += self._casts(name, wanted)
            nodes += [made, *casts]
        replace_nodes(self.graph, nodes)
        self._retype_values()

    def _collect_read_types(self) -> dict[str, set[int]]:
        """Return the types in which each float32 tensor is read."""
        wanted: dict[str, set[int]] = {name: {kind} for name, kind in self.fixed.items()}
        for node in self.graph.node:
            for slot, name in enumerate(node.input):
                if self._is_float(name):
                    wanted.setdefault(name, set()).add(self._input_kind(node, slot))
        return wanted

    def _is_float(self, name: str) -> bool:
        if name in self.types:  # it may be retyped already
            return True
        if name in self.constants:
            return bool(self.constants[name].data_type == _FLOAT)
        return name in self.values and self.values[name].type.tensor_type.elem_type == _FLOAT

    def _is_half(self, node: onnx.NodeProto) -> bool:
        return node.name not in self.kept

    def _input_kind(self, node: onnx.NodeProto, slot: int) -> int:
        """Return the type in which `node` reads its float input `slot`."""
        if not self._is_half(node):
            return _FLOAT
        half = self._is_free(node) or slot in half_slots(node, self.opset, self.half)
        return self.half.onnx_type if half else _FLOAT

    def _is_free(self, node: onnx.NodeProto) -> bool:
        """Tell whether all float operands of `node` have one type, as for Q and DQ."""
        return node.domain not in STANDARD_DOMAINS or node.op_type in QDQ_OPS

    def _input_type(self, value: onnx.ValueInfoProto) -> int:
        if not self.plan.io or value.name in self.kept_tensors:
            return _FLOAT
        # An input may be an output too, under its name, and then both have one type.
        value.type.tensor_type.elem_type = self.fixed.get(value.name, self.half.onnx_type)
        return int(value.type.tensor_type.elem_type)

    def _cast_constant(self, name: str, kinds: set[int]) -> None:
        tensor = self.constants[name]
        self.types[name] = own = min(kinds) if len(kinds) == 1 else self.fixed.get(name, _FLOAT)
        for kind in kinds:
            self.names[name, kind] = name if kind == own else self.claim(f"{name}/{self._suffix(kind)}")
        if self.half.onnx_type not in kinds:
            return
        values = tensor_array(tensor)
        # The values fit, except numbers used as minus infinity; infinities stay infinite.
        values = np.where(np.isfinite(values), np.maximum(values, np.float32(-self.half.largest)), values)
        cast = values.astype(self.half.dtype)
        if own == _FLOAT:
            self.graph.initializer.append(make_tensor(self.names[name, self.half.onnx_type], cast))
            return
        if _FLOAT in kinds:
            self.graph.initializer.add().CopyFrom(tensor)
            self.graph.initializer[-1].name = self.names[name, _FLOAT]
        tensor.CopyFrom(make_tensor(name, cast))

    def _rewire_node(self, node: onnx.NodeProto) -> onnx.NodeProto:
        made = deepcopy(node)
        for slot, name in enumerate(node.input):
            if name and self._is_float(name):
                made.input[slot] = self.names[name, self._input_kind(node, slot)]
        for attribute in made.attribute:
            named_type = attribute.name == "to" or (
                attribute.name == "output_dtype" and node.op_type == "TRT_MXFP8DequantizeLinear"
            )
            if named_type and attribute.i == _FLOAT and self._is_half(node):
                attribute.i = self.half.onnx_type
        return made

    def _infer_types(self, node: onnx.NodeProto, made: onnx.NodeProto) -> dict[str, int]:
        """Return the types that ONNX infers of the outputs of `made`, which is `node` with its new inputs."""
        types: dict[str, onnx.TypeProto] = {}
        for slot, (name, new) in enumerate(zip(node.input, made.input, strict=True)):
            if name and self._is_float(name):
                types[new] = helper.make_tensor_type_proto(self._input_kind(node, slot), None)
            elif name in self.values:
                types[new] = self.values[name].type
            elif name in self.constants:
                types[new] = helper.make_tensor_type_proto(self.constants[name].data_type, None)
        if not types.keys() >= {*made.input} - {""}:
            return {}
        try:
            schema = onnx.defs.get_schema(made.op_type, self.opset, made.domain)
            found = onnx.shape_inference.infer_node_outputs(schema, made, types)
        except (onnx.defs.SchemaError, onnx.shape_inference.InferenceError):  # another library's, or a body
            return {}
        return {name: kind.tensor_type.elem_type for name, kind in found.items()}

    def _give(self, node: onnx.NodeProto, position: int, inferred: dict[str, int]) -> str:
        """Return the name of the float output of `node` at `position`, in the type it is computed in."""
        name, kind = node.output[position], _FLOAT
        if self._is_half(node) and (
            self._is_free(node) or position in half_outputs(node, self.opset, self.half)
        ):
            kind = self.half.onnx_type
        kind = inferred.get(name) or kind
        self.types[name] = kind
        other = self.fixed.get(name, kind) != kind
        self.names[name, kind] = self.claim(f"{name}/{self._suffix(kind)}") if other else name
        return self.names[name, kind]

    def _casts(self, name: str, wanted: dict[str, set[int]]) -> Iterator[onnx.NodeProto]:
        """Yield the nodes that cast `name` from the type it is computed in to its other read types."""
        for kind in sorted(wanted.get(name, set()) - {self.types[name]}):
            given = self.names[name, self.types[name]]
            target = name if self.fixed.get(name) == kind else self.claim(f"{name}/{self._suffix(kind)}")
            self.names[name, kind] = target
            if kind != _FLOAT and name in self.plan.clipped:
                low = numpy_helper.from_array(np.float32(-self.half.largest), self.claim(f"{name}/lowest"))
                self.graph.initializer.append(low)
                finite = self.claim(f"{name}/finite")
                yield helper.make_node("Max", [given, low.name], [finite], name=finite)
                given = finite
            yield helper.make_node("Cast", [given], [target], name=self.claim(f"{target}/cast"), to=kind)

    def _suffix(self, kind: int) -> str:
        return "fp32" if kind == _FLOAT else self.plan.name

    def _retype_values(self) -> None:
        for output in self.graph.output:
            if output.name in self.fixed and output.type.tensor_type.elem_type == _FLOAT:
                output.type.tensor_type.elem_type = self.fixed[output.name]
        for value in self.graph.value_info:
            if value.name in self.types and self.fixed.get(value.name) is None:
                value.type.tensor_type.elem_type = self.types[value.name]
