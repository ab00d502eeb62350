"""`switch_form`: the float form of a quantized file, with a FakeQuantize in place of each quantizer.

It reads a switch, so that one session runs the file as it is, or without some of its quantizers.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace

import numpy as np
import onnx
from onnx import helper

from onnxfq.diagnosis.reading.dynamic_products import write_products
from onnxfq.diagnosis.reading.quantizers import (
    PREFIX,
    ActivationQuantizer,
    Limit,
    StoredConstant,
    SwitchedForm,
)
from onnxfq.errors import ModelError
from onnxfq.graph.model import bodies, list_nodes
from onnxfq.graph.node_fields import input_name
from onnxfq.graph.ops import BLOCK_PRODUCTS, ONNX_QUANTIZERS, ONNXFQ_DOMAIN, QDQ_OPS, QUANTIZED_OPS
from onnxfq.graph.stored_grid import StoredGrid
from onnxfq.quantized.float_form import Unfolding
from onnxfq.quantized.number_grids import NumberGrid, quantized_slots
from onnxfq.quantized.operators import HANDLERS
from onnxfq.support.groups import group_pairs

_KEPT = "Kept"
# Begin of the op types of quantizers that stay as they are.

_KNOWN = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear")
# Operators whose result may be a scale.

_PASSED_OVER = {
    "DynamicQuantizeLinear": "range that each run sets (DynamicQuantizeLinear)",
    "DynamicQuantizeLSTM": "weights of DynamicQuantizeLSTM",
}

NOTHING: Mapping[str, Limit] = {}
"""No range does the work of another operator."""

_NOT_POSITIVE = "scale that is not positive"


class _SwitchedUnfolding(Unfolding):
    """Builder of the form: where `Unfolding` leaves a Clip, it leaves a quantizer with its switch."""

    enters_bodies = False

    def __init__(self, proto: onnx.ModelProto, source: str, limits: Mapping[str, Limit]) -> None:
        super().__init__(proto, source, HANDLERS)
        self._limits = limits
        self.switched = SwitchedForm(onnx.ModelProto())
        self._clips_within: set[str] = set()

    def set_aside(self) -> list[str]:
        """Rename the pairs of computed tensors that stay as they are, and return what each is."""
        pairs = [node for node in self.index.nodes if node.op_type in QDQ_OPS]
        kinds = [_PASSED_OVER[node.op_type] for node in self.index.nodes if node.op_type in _PASSED_OVER]
        for node, what in [(node, self._explain_aside(node)) for node in pairs]:
            if what:
                kinds += [what] * (node.op_type == "DequantizeLinear")
                node.op_type = _KEPT + node.op_type
        return kinds

    def _explain_aside(self, node: onnx.NodeProto) -> str:
        """Return what the scale of a pair is that stays as it is; empty for one that is read."""
        scale, maker = self.array(node.input[1]), self.index.makers.get(node.input[1])
        if scale is None:
            return "" if maker is not None and maker.op_type in _KNOWN else "scale that is computed"
        if node.input[0] in self._fixed:
            return ""
        is_positive = bool((scale > 0).all() and np.isfinite(scale).all())
        return "activation with several scales" if scale.size > 1 else "" if is_positive else _NOT_POSITIVE

    def give(self, node: onnx.NodeProto, tensor: str) -> None:
        grid = self.numbers[node.output[0]]
        slots = quantized_slots(node).output
        if grid.kind == np.int32 or grid.is_dynamic or slots is None:
            super().give(node, tensor)
            return
        grid = replace(grid, ends=self._absorb_clip(node.output[0]))
        number = len(self.switched.activations)
        (least, most), (low, high) = self.bounds(tensor), grid.limits
        quantizer = ActivationQuantizer(
            number=number,
            tensor=node.input[0] if node.op_type == "QuantizeLinear" else node.output[0],
            node=node.name,
            op_type=node.op_type,
            scale=input_name(node, slots.scale),
            zero_point=input_name(node, slots.zero),
            grid=grid,
            plain=tensor,
            can_limit=least < low - grid.scale / 2 or most > high + grid.scale / 2,
        )
        self.switched.activations.append(quantizer)
        self._insert(node, quantizer)

    def _absorb_clip(self, numbers: str) -> tuple[float, float] | None:
        """Return the ends of the Clip that alone reads these numbers, which the quantizer does too."""
        readers = self.index.readers.get(numbers, [])
        ends = self._ends_of(readers[0]) if len(readers) == 1 else None
        if ends is not None:
            self._clips_within.add(readers[0].output[0])
        return ends

    def _ends_of(self, node: onnx.NodeProto | None) -> tuple[float, float] | None:
        """Return the two constant ends of a Clip; None for another node."""
        if node is None or node.op_type != "Clip":
            return None
        low, high = (self.array(input_name(node, slot)) for slot in (1, 2))
        return None if low is None or high is None else (float(low.reshape(())), float(high.reshape(())))

    def keep(self, node: onnx.NodeProto) -> None:
        if node.output and node.output[0] in self._clips_within:
            self.real[node.output[0]] = self.real[node.input[0]]
        else:
            super().keep(node)

    def meet_captured(self, node: onnx.NodeProto, captured: set[str]) -> None:
        for name in sorted(captured & self.numbers.keys()):
            maker = self.index.makers.get(name)
            if maker is None or maker.op_type not in ONNX_QUANTIZERS:
                self.refuse(node, f"has a body that reads the quantized numbers of {name!r}")
            if self.standing.isdisjoint(maker.output):
                self.emit(maker.op_type, [self.name(i) for i in maker.input], list(maker.output), maker)
                self.standing.update(maker.output)
        for inner in (one for body in bodies(node) for one in list_nodes(body)):
            if inner.op_type in QUANTIZED_OPS and inner.op_type != "QuantizeLinear":  # its other half counts
                self.switched.passed_over.append(f"quantizer in a body of {node.op_type}")

    def _insert(self, node: onnx.NodeProto, quantizer: ActivationQuantizer) -> None:
        """Add the FakeQuantize, behind the ends that do the work of a Relu or Clip, on and off."""
        grid, named, real = quantizer.grid, quantizer.name, quantizer.plain
        for op, end in zip(("Max", "Min"), self._limits.get(quantizer.node, ()), strict=False):
            limit = self.constant(named(op), end, grid.floats)
            real = self.compute(op, [real, limit], named(f"{op}/limited"))
        inputs = [self.constant(named("scale"), grid.scale), self.constant(named("zero_point"), grid.zero)]
        inputs.append(self.constant(named("on"), True, np.bool_))
        made = {"domain": ONNXFQ_DOMAIN, "qtype": str(quantizer.qtype)}
        self.real[node.output[0]] = self.compute("FakeQuantize", [real, *inputs], quantizer.output, **made)

    def rename_weights(self) -> None:
        """Keep their names, by which their constants are known."""

    def weight(self, name: str, grid: StoredGrid, kind: type = np.float32) -> str:
        constant = super().weight(name, grid, kind)
        node = self.node
        is_pair = node.op_type == "DequantizeLinear"
        operands = quantized_slots(node).operands
        operand = next((o for o in operands if is_pair or f"{node.input[o.data]}/weight" == name), None)
        if operand is None:
            return constant
        name, floats = node.input[operand.data], None
        stored, maker = np.asarray(self.array(name)).dtype, self.index.makers.get(name)
        codes = self._ends_of(maker) or NumberGrid(kind=stored).codes
        while maker is not None and maker.op_type in ("Clip", "QuantizeLinear"):
            name = maker.input[0]
            floats = self.array(name) if maker.op_type == "QuantizeLinear" else None
            maker = self.index.makers.get(name)
        self.switched.constants.append(
            StoredConstant(
                constant=constant,
                codes=codes,
                data=name,
                scale=input_name(node, operand.scale),
                zero_point=input_name(node, operand.zero),
                grid=grid,
                kind=stored.name,
                floats=None if floats is None else np.asarray(floats, np.float32),
                is_editable=not node.name.startswith(PREFIX),
            )
        )
        return constant

    def read_computed(self, name: str, grid: NumberGrid) -> str:
        own = self.numbers[name]
        if not own.is_dynamic and not own.agrees(grid):
            self.switched.shifted.append((self.node.name, name))
        return super().read_computed(name, grid)

    def build(self) -> SwitchedForm:
        """Return the form."""
        proto = self.switched.proto = self.run().proto
        if all(opset.domain != ONNXFQ_DOMAIN for opset in proto.opset_import):
            proto.opset_import.append(helper.make_opsetid(ONNXFQ_DOMAIN, 1))
        self.switched.activations = _mark_symmetric(self.switched.activations)
        return self.switched


def _mark_symmetric(quantizers: list[ActivationQuantizer]) -> list[ActivationQuantizer]:
    """Return the quantizers; those with 0 in the middle are symmetric if half of their type are.

    One among asymmetric ones was calibrated on values that are as far below 0 as above.
    """
    centered = group_pairs((quantizer.grid.kind.name, quantizer.is_centered) for quantizer in quantizers)
    return [
        replace(q, is_symmetric=q.is_centered and 2 * sum(found := centered[q.grid.kind.name]) >= len(found))
        for q in quantizers
    ]


def switch_form(proto: onnx.ModelProto, source: str, limits: Mapping[str, Limit] = NOTHING) -> SwitchedForm:
    """Return the float form of a normalised quantized model, with its switches.

    limits: by the node of a quantizer, the ends that its range gives in place of a Relu or Clip.

    Raises ModelError for an operator without a float form, and for a model without quantizers.
    """
    copy = deepcopy(proto)
    write_products(copy)
    unfolding = _SwitchedUnfolding(copy, source, limits)
    passed_over = unfolding.set_aside()
    form = unfolding.build()
    for node in form.proto.graph.node:
        node.op_type = node.op_type.removeprefix(_KEPT)
    form.passed_over += passed_over
    if not form.activations and not form.constants and not form.passed_over:
        others = {node.op_type for node in list_nodes(proto.graph)} & BLOCK_PRODUCTS
        if others:
            how = f"by {', '.join(sorted(others))}, which this command does not read"
            raise ModelError(f"{source} is quantized {how}; `onnxfq convert` writes it with pairs")
        raise ModelError(f"{source} has no quantizers; give a quantized model, or quantize it first")
    return form
