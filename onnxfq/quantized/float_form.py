"""Dequantization of a quantized model to float, with its ranges and grids.

A tensor of quantized numbers is read as their real values. QuantizeLinear and DequantizeLinear disappear, an
integer operator becomes its float one, and operators that only move, pick, order or compare numbers stay. A
pair also limits values to its range, which may be all that is left of a Relu or Clip: onnxruntime's quantizer
removes these. A Clip stands where values may be outside.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NoReturn

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from onnxfq.errors import ModelError, OnnxfqError, join_lines, nearest
from onnxfq.graph.bounds import UNKNOWN, Bounds, bounds_of
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.model import bodies, list_graphs, list_nodes, replace_nodes
from onnxfq.graph.node_fields import attributes_of, input_name
from onnxfq.graph.normalize.steps import evaluate_node
from onnxfq.graph.ops import (
    MOVES,
    QUANTIZED_OPS,
    RESHAPES,
    SIZES,
    SPLITS,
    STANDARD_DOMAINS,
    WEIGHTED_INPUTS,
)
from onnxfq.graph.prune import remove_unread
from onnxfq.graph.saturation import ValueLimit
from onnxfq.graph.stored_grid import StoredGrid, grid_of
from onnxfq.graph.walk import rename_tensors
from onnxfq.quantized.number_grids import (
    COMPARISONS,
    GridOperand,
    NumberGrid,
    find_grids,
    joined_slots,
)
from onnxfq.quantized.rounding import find_stored_type
from onnxfq.quantized.saturation import Clipping
from onnxfq.quantized.source_graph import SourceGraph

# The data movement through which onnxruntime's quantizer passes dequantized numbers: it keeps their range.
_MOVES = MOVES | SPLITS | {"MaxPool"}
WEIGHT = "/weight"
"""Ending of the name of a weight while its integers are still in the graph."""

_SAME_RANK = frozenset({"Add", "Clip", "Concat", "LeakyRelu", "Mul", "Relu", "Sigmoid"})


@dataclass
class FloatForm:
    """The float model, and the quantization of its source.

    Attributes:
        proto: the float model.
        ranges: real numbers that a quantized tensor covers.
        grids: of constants.
        clips: Clip nodes that do the work of a pair, by output.
        inputs: by weighted node, its quantized operands.
        changes: edits, counted.
    """

    proto: onnx.ModelProto
    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)
    grids: dict[str, StoredGrid] = field(default_factory=dict)
    clips: dict[str, ValueLimit] = field(default_factory=dict)
    inputs: dict[str, set[int]] = field(default_factory=dict)
    changes: Counter[str] = field(default_factory=Counter)


Handler = Callable[["Unfolding", onnx.NodeProto], None]


class Unfolding(SourceGraph):
    """Builder of the float form of one model, node by node; handlers convert quantized operators."""

    enters_bodies = True
    """Whether quantizers in bodies are read."""

    def __init__(
        self, proto: onnx.ModelProto, source: str, handlers: dict[str, Handler], *, keeps_names: bool = False
    ) -> None:
        """Take a normalised model.

        Args:
            proto: the model.
            source: its name in messages.
            handlers: by op type, for operators of quantized numbers.
            keeps_names: whether what a pair gives keeps its name, with the limits of the pair behind it.
        """
        super().__init__(proto, source, enters_bodies=self.enters_bodies, keeps_names=keeps_names)
        self.handlers, self.form = handlers, FloatForm(self.proto)
        self.nodes: list[onnx.NodeProto] = []
        # The node of the source that is converted.
        self.node = onnx.NodeProto()
        self.quantized: set[str] = set()
        # Tensors of the source that stand there as they were, for bodies.
        self.standing: set[str] = set()
        self.numbers: dict[str, NumberGrid] = {}
        # Ranks of float tensors that operators with their channels last need.
        self.ranks: dict[str, int] = {}
        self._bounds: dict[str, Bounds] = {}
        self._clips: dict[ValueLimit, str] = {}
        # Pairs that left a limit.
        self.limited = 0
        self._is_inside = False

    def run(self) -> FloatForm:
        """Return the float form. Raises ModelError for an operator without a float form."""
        try:
            return self._run()
        except OnnxfqError:
            raise
        except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as fault:
            where = f"{self.node.op_type} {self.node.name!r}" if self.node.op_type else "a quantizer"
            raise ModelError(
                f"{self.source}: {where} does not fit its inputs ({join_lines(fault)[:200]}); export it again"
            ) from None

    def _run(self) -> FloatForm:
        nodes = [node for node in self.index.nodes if not self.fold(node)]
        self.find_pairs(nodes)
        apart = self.absorbed | self.pairs.keys()
        joined = [node for node in nodes if apart.isdisjoint(node.output)]
        self.numbers = find_grids(joined, self.constants, self.grid, self.source)
        self._unfold(self.graph)
        graphs = list_graphs(self.graph)
        remove_unread(self.form.proto, graphs, lambda n: not self.passed.isdisjoint(n.output))
        for graph in graphs:  # tensors of quantized numbers have become float
            del graph.value_info[:]
        self.rename_weights()
        return self.form

    def rename_weights(self) -> None:
        """Give weights the names of the integers that they stand for, where nothing reads these any more."""
        taken = GraphIndex.of_model(self.form.proto).names
        names = {name: name.removesuffix(WEIGHT) for name in self.form.grids if name.endswith(WEIGHT)}
        names = {name: given for name, given in names.items() if given not in taken}
        for tensor in self.graph.initializer:
            tensor.name = names.get(tensor.name, tensor.name)
        rename_tensors(list_nodes(self.graph), names, made=False)
        self.form.grids = {names.get(name, name): grid for name, grid in self.form.grids.items()}

    def _unfold(self, graph: onnx.GraphProto) -> None:
        """Convert the nodes of the main graph or of a body, in place."""
        outer, self.nodes = (self._is_inside, self.nodes), []
        self._is_inside = graph is not self.graph
        known, gone = (dict(self.real), dict(self._clips)), self.folded | self.absorbed
        for node in graph.node:
            if gone.isdisjoint(node.output):
                self._convert(node)
        for output in sorted(value.name for value in graph.output):
            self._give_output(output)
        replace_nodes(graph, self.nodes)
        if self._is_inside:  # what a body computes is not there outside
            self.real, self._clips = known
        self._is_inside, self.nodes = outer

    def _convert(self, node: onnx.NodeProto) -> None:
        self._keep_captured(node)
        self.node = node
        handler = self.handlers.get(node.op_type)
        if handler is not None:
            handler(self, node)
        elif node.op_type in QUANTIZED_OPS or node.op_type.startswith(("QLinear", "QOrdered")):
            raise ModelError(
                f"{self.source}: {node.op_type} {node.name!r} has no known float form"
                f"{nearest(node.op_type, self.handlers)}; export the model without it"
            )
        else:
            self.keep(node)

    def keep(self, node: onnx.NodeProto) -> None:
        """Keep a float node, or one that joins quantized numbers; its inputs become real numbers."""
        inputs, outputs = joined_slots(node)
        joined = [*(node.input[slot] for slot in inputs), *(node.output[slot] for slot in outputs)]
        grid = next((self.numbers[name] for name in joined if name in self.numbers), None)
        for slot, name in enumerate(node.input):
            if name in self.numbers and slot not in inputs:
                self.refuse(node, f"computes with the quantized numbers of {name!r}")
        if node.op_type == "ConstantOfShape" and node.output[0] in self.numbers:
            self._fill(node, self.numbers[node.output[0]])
            return
        if grid is not None and node.op_type not in SIZES:
            self._join(node, grid, inputs, outputs)
            return
        if node.op_type in WEIGHTED_INPUTS and node.domain in STANDARD_DOMAINS:
            slots = WEIGHTED_INPUTS[node.op_type]
            self.form.inputs[node.name] = {slot for slot in slots if node.input[slot] in self.quantized}
        if node.op_type in RESHAPES and self._move_weight(node):
            return
        if node.op_type in _MOVES and node.input[0] in self.quantized:
            self.quantized |= set(node.output)
            covered = self.form.ranges.get(self.name(node.input[0]))
            if covered is not None:
                self.form.ranges |= dict.fromkeys(node.output, covered)
        if node.op_type in ("Div", "Mul"):
            self._scale(node)
        self.emit(node.op_type, [self.name(i) for i in node.input], list(node.output), node)

    def refuse(self, node: onnx.NodeProto, why: str) -> NoReturn:
        """Raise ModelError for a node that computes with quantized numbers."""
        raise ModelError(
            f"{self.source}: {node.op_type} {node.name!r} {why}; only what moves, picks, orders or compares "
            "numbers can be converted between a pair, so dequantize in front of it"
        )

    def _join(
        self, node: onnx.NodeProto, grid: NumberGrid, slots: tuple[int, ...], outputs: tuple[int, ...]
    ) -> None:
        """Keep a node whose inputs at `slots` and `outputs` hold quantized numbers of `grid`."""
        attributes = attributes_of(node)
        if node.op_type in COMPARISONS:
            inputs = [self._whole_number(node, name, grid) for name in node.input]
            self.emit(node.op_type, inputs, list(node.output), node)
            return
        inputs = [
            self._real_operand(node, name, grid) if slot in slots else self.name(name)
            for slot, name in enumerate(node.input)
        ]
        op = node.op_type
        if attributes.get("reduction", b"none") != b"none":
            self.refuse(node, f"reduces quantized numbers by {attributes['reduction'].decode()}")
        if attributes.get("coordinate_transformation_mode") == b"tf_crop_and_resize":
            self.refuse(node, "fills quantized numbers beyond the image")
        if grid.zero and op == "Trilu":
            self.refuse(node, f"writes 0, which stands for {grid.value(0):g} here,")
        zero = [] if not grid.zero else [self.constant(f"{node.name}/zero", grid.value(0), grid.floats)]
        if zero and op == "Pad" and attributes.get("mode", b"constant") == b"constant" and 2 not in slots:
            inputs[2:3] = zero
        if zero and op == "Relu":
            op, inputs = "Max", inputs + zero
        self.emit(op, inputs, list(node.output), node)
        for name in (node.output[slot] for slot in outputs):
            self.real[name] = name
            self._note_range(name, grid)

    def _real_operand(self, node: onnx.NodeProto, name: str, grid: NumberGrid) -> str:
        """Return the float tensor of an input of quantized numbers, constant or computed."""
        stored = self.array(name)
        if stored is None:
            return self.real_numbers(name)
        if grid.is_dynamic:
            self.refuse(node, f"reads the constant {name!r} beside numbers whose scale is dynamic")
        scale, zero = np.asarray(grid.scale, grid.floats), np.asarray(grid.zero, np.float32)
        return self.weight(self.names.claim(f"{name}/real"), grid_of(stored, scale, zero), grid.floats)

    def _fill(self, node: onnx.NodeProto, grid: NumberGrid) -> None:
        """Keep a node that fills a tensor with one quantized number."""
        if grid.is_dynamic:
            self.refuse(node, "fills a tensor beside numbers whose scale is dynamic")
        number = next((numpy_helper.to_array(a.t) for a in node.attribute), np.zeros(1, grid.kind))
        real = np.asarray([grid.value(float(number.astype(np.float32).item()))], grid.floats)
        fill, stem = {"value": numpy_helper.from_array(real)}, f"{node.output[0]}/real"
        self.real[node.output[0]] = self.compute("ConstantOfShape", list(node.input), stem, **fill)

    def _whole_number(self, node: onnx.NodeProto, name: str, grid: NumberGrid) -> str:
        """Return the float tensor of the steps of an input of quantized numbers, counted from 0."""
        real = self._real_operand(node, name, grid)
        inputs = [real, self.constant(f"{name}/step", grid.scale, grid.floats)]
        return self.compute("Round", [self.compute("Div", inputs, f"{name}/steps")], f"{name}/rounded")

    def _move_weight(self, node: onnx.NodeProto) -> bool:
        """Reshape a weight on its grid, if one number is its scale; tell whether it did."""
        grid = self.form.grids.get(self.name(node.input[0]))
        others = [self.array(name) for name in node.input[1:]]
        same = node.op_type == "Identity"
        if grid is None or not (same or grid.scale.size == 1) or any(values is None for values in others):
            return False
        given = dict(zip(node.input, [grid.steps, *others], strict=True))
        (steps,) = evaluate_node(node, given, self.form.proto)
        kind = helper.tensor_dtype_to_np_dtype(self.constants[self.name(node.input[0])].data_type)
        moved = grid if same else StoredGrid(steps, grid.scale.reshape(()))
        self.real[node.output[0]] = self.weight(self.own_name(node), moved, kind)
        self.quantized.add(node.output[0])
        return True

    def _scale(self, node: onnx.NodeProto) -> None:
        """Mark a quantized tensor times one number as quantized too: the scale absorbs the number."""
        slot = next((s for s in (0, 1) if node.input[s] in self.quantized), None)
        factor = None if slot is None else self.array(self.name(node.input[1 - slot]))
        if factor is None or factor.size != 1 or (slot == 1 and node.op_type == "Div") or not factor.all():
            return
        self.quantized |= set(node.output)
        covered = self.form.ranges.get(self.name(node.input[slot or 0]))
        if covered is not None:
            number = float(factor.item())
            ends = [end * number if node.op_type == "Mul" else end / number for end in covered]
            self.form.ranges[node.output[0]] = (min(ends), max(ends))

    def emit(
        self, op: str, inputs: list[str], outputs: list[str], like: onnx.NodeProto | str, **attributes: Any
    ) -> None:
        """Add a node with `attributes`, and the attributes of `like` if both have the same op type.

        like: a node of the source, or an unused name.
        """
        name = like if isinstance(like, str) else like.name
        node = helper.make_node(op, inputs, outputs, name=name, **attributes)
        if not isinstance(like, str) and op == like.op_type:
            node.CopyFrom(like)
            node.input[:], node.output[:] = inputs, outputs
        self.nodes.append(node)
        self._bounds |= dict.fromkeys(outputs, bounds_of(node, [self.bounds(name) for name in inputs]))
        if op in _SAME_RANK and inputs[0] in self.ranks:
            self.ranks |= dict.fromkeys(outputs, self.ranks[inputs[0]])
        elif "perm" in attributes:
            self.ranks |= dict.fromkeys(outputs, len(attributes["perm"]))

    def compute(self, op: str, inputs: list[str], stem: str, **attributes: Any) -> str:
        """Add a node with one output and the name of it, `stem` or the next that is free; return the name."""
        name = self.names.claim(stem)
        self.emit(op, inputs, [name], name, **attributes)
        return name

    def bounds(self, tensor: str) -> Bounds:
        """Return the least and the largest value that a float tensor can have, as far as known."""
        values = None if tensor in self._bounds else self.array(tensor)
        if values is not None and values.dtype.kind in "fiu" and values.size:
            self._bounds[tensor] = (float(values.min()), float(values.max()))
        return self._bounds.get(tensor, UNKNOWN)

    def know(self, tensor: str, bounds: Bounds) -> None:
        """Remember the bounds of a tensor of the source."""
        self._bounds[self.name(tensor)] = bounds

    def own_name(self, node: onnx.NodeProto) -> str:
        """Return the name of a constant that replaces the output of `node`."""
        output = node.output[0]
        return self.names.claim(f"{output}/real") if output in self.outputs else output

    def weight(self, name: str, grid: StoredGrid, kind: Any = np.float32) -> str:
        """Add the constant of `grid`, remember the grid, and return the name."""
        constant = self.constant(name, grid.values, kind)
        self.form.grids[constant] = grid.positive()
        return constant

    def parameter(self, node: onnx.NodeProto, slot: int | None) -> NDArray[Any] | None:
        """Return the constant at input `slot`, None if absent. Raises ModelError if computed."""
        name = input_name(node, slot)
        value = self.array(self.name(name)) if name else None
        if name and value is None:
            raise ModelError(
                f"{self.source}: {node.op_type} {node.name!r} computes its parameter {name!r}; only "
                "constant ones can be converted"
            )
        return value

    def parameters(self, node: onnx.NodeProto, operand: GridOperand) -> tuple[NDArray[Any], Any]:
        """Return the scale, and the zero point or None, of an operand. Raises ModelError if computed."""
        scale, zero = self.parameter(node, operand.scale), self.parameter(node, operand.zero)
        if scale is None:
            scale = np.ones(np.shape(0 if zero is None else zero), np.float32)
        return scale, zero

    def grid(self, node: onnx.NodeProto, operand: GridOperand) -> NumberGrid:
        """Return the grid of a computed operand or output of `node`.

        Raises ModelError for computed parameters and for several scales.
        """
        scale, zero = self.parameters(node, operand)
        if np.size(scale) != 1 or np.size(0 if zero is None else zero) != 1:
            raise ModelError(
                f"{self.source}: {node.op_type} {node.name!r} has {np.size(scale)} scales for the activation "
                f"{node.input[operand.data]!r}; only one for a tensor can be converted"
            )
        is_sum = operand.scale is None and operand.zero is None
        kind = np.dtype(np.int32) if is_sum else find_stored_type(node, zero)
        offset = 0.0 if zero is None else float(np.asarray(zero).astype(np.float32).item())
        return NumberGrid(float(scale.item()), offset, kind, scale.dtype)

    def read(self, node: onnx.NodeProto, operand: GridOperand, axis: int = 0) -> str:
        """Return the float tensor of an operand; scales of a constant are along `axis`."""
        name = node.input[operand.data]
        stored = self.array(name)
        if stored is not None:
            scale, zero = self.parameters(node, operand)
            scale, zero = (values.reshape(-1) if np.size(values) > 1 else values for values in (scale, zero))
            return self.weight(f"{name}{WEIGHT}", grid_of(stored, scale, zero, axis), scale.dtype)
        return self.read_computed(name, self.grid(node, operand))

    def read_computed(self, name: str, grid: NumberGrid) -> str:
        """Return the float tensor of computed numbers, read on `grid`, which may not be their own."""
        own, real = self.numbers[name], self.real_numbers(name)
        grid = replace(grid, kind=own.kind)
        if own.is_dynamic or own.agrees(grid):
            return real
        factor, shift = grid.scale / own.scale, grid.value(own.zero)
        for op, number in (("Mul", factor), ("Add", shift)):
            if number != (1 if op == "Mul" else 0):
                result = self.names.claim(f"{real}/{'scaled' if op == 'Mul' else 'shifted'}")
                self.emit(op, [real, self.constant(f"{result}/by", number, own.floats)], [result], result)
                real = result
        self.form.changes["scale or zero point that a pair changes between its nodes applied"] += 1
        low, high = (grid.value(end / own.scale + own.zero) for end in own.limits)
        self._bounds[real] = (min(low, high), max(low, high))
        self._note_range(real, grid)
        return real

    def real_numbers(self, name: str) -> str:
        """Return the float tensor of computed numbers; integers from outside of the pairs are dequantized."""
        if name not in self.real:
            grid = self.numbers[name]
            zero = self.constant(f"{name}/zero", grid.zero, grid.floats)
            factor = self.constant(f"{name}/factor", grid.scale, grid.floats)
            to = int(helper.np_dtype_to_tensor_dtype(grid.floats))
            cast = self.compute("Cast", [name], f"{name}/cast", to=to)
            shifted = self.compute("Sub", [cast, zero], f"{name}/shifted")
            self.real[name] = real = self.compute("Mul", [shifted, factor], f"{name}/real")
            self._bounds[real] = grid.limits
            self._note_range(real, grid)
        return self.real[name]

    def give(self, node: onnx.NodeProto, tensor: str) -> None:
        """Map output 0 of `node`, of quantized numbers, to `tensor`, limited to the range of its grid."""
        grid = self.numbers[node.output[0]]
        if grid.kind == np.int32:  # a sum of products
            self.real[node.output[0]] = tensor
            return
        if grid.zero:
            self.form.changes[f"activation with {grid.kind.name} zero point made symmetric"] += 1
        elif grid.kind != np.int8:
            self.form.changes[f"activation of {grid.kind.name} made symmetric"] += 1
        self.real[node.output[0]] = self.saturate(tensor, grid)

    def clipping(self, limited: str, name: str, floats: Any) -> Clipping:
        """Return how a Clip is written, with ends of the type `floats`."""
        return Clipping(limited, name, self.opset, partial(self.constant, kind=floats))

    def stand_for(self, node: onnx.NodeProto, tensor: str) -> None:
        """Give what `node` computes as `tensor`, under its own name if names are kept."""
        if self.keeps_names:  # runtimes remove an Identity
            self.emit("Identity", [tensor], [node.output[0]], node.name)
        else:
            self.real[node.output[0]] = tensor

    def note_limit(self, limited: str, limit: ValueLimit | None) -> None:
        """Remember a Clip or Relu that a pair left, None for one along an axis; data judges those outside."""
        self.limited += 1
        if limit is not None and (self.keeps_names or not self._is_inside):
            self.form.clips[limited] = limit

    def saturate(self, tensor: str, grid: NumberGrid) -> str:
        """Return `tensor`, or its Clip to the range of `grid` if values may be outside of it."""
        (low, high), (least, most), half = grid.limits, self.bounds(tensor), grid.scale / 2
        ends = {"min": low} if least < low - half else {}
        ends |= {"max": high} if most > high + half else {}
        if not ends:
            self._note_range(tensor, grid)
            return tensor
        wanted = ValueLimit(tensor, ends.get("min"), ends.get("max"), grid.scale)
        clipped = self._clips.get(wanted, "")
        if not clipped:
            clipped = self._clips[wanted] = self.names.claim(f"{tensor}/clipped")
            clip = self.clipping(clipped, clipped, grid.floats).make(tensor, ends)
            self.emit("Clip", list(clip.input), [clipped], clip)
            self.note_limit(clipped, wanted)
        self._note_range(clipped, grid)
        return clipped

    def _note_range(self, tensor: str, grid: NumberGrid) -> None:
        """Remember the range of a tensor of quantized numbers, unless it is known or dynamic."""
        if not grid.is_dynamic and grid.kind != np.int32:
            self.form.ranges.setdefault(tensor, grid.covered(self.bounds(tensor)))

    def _keep_captured(self, node: onnx.NodeProto) -> None:
        """Restore the original names of float tensors that bodies of `node` read, and convert the bodies."""
        if not bodies(node):
            return
        captured = GraphIndex(onnx.GraphProto(node=[node])).captured
        self.meet_captured(node, captured)
        for name in sorted(captured & set(self.real) - self.numbers.keys() - self.standing):
            real = self.real[name]
            self._restore(name)
            if real in self.constants:  # as a scale it is still known
                self.real[name] = real
                self.standing.add(name)
        for body in bodies(node) if self.enters_bodies else ():
            self._unfold(body)

    def meet_captured(self, node: onnx.NodeProto, captured: set[str]) -> None:
        """Meet a node with bodies, and what these read from outside."""

    def _restore(self, tensor: str) -> None:
        """Give the float form of `tensor` its name of the source."""
        real = self.real.pop(tensor)
        if real != tensor:
            self.emit("Identity", [real], [tensor], self.names.claim(f"{tensor}/identity"))

    def _give_output(self, name: str) -> None:
        """Give an output of a graph its name; one of quantized numbers is rounded to them."""
        grid = self.numbers.get(name)
        if name in self.folded:
            numbers = self.array(name)
            stored = self.constant(f"{name}/numbers", np.asarray(numbers), np.asarray(numbers).dtype)
            self.emit("Identity", [stored], [name], self.names.claim(f"{name}/same"))
        elif grid is not None and name in self.real:
            if grid.is_dynamic or grid.kind == np.int32:
                what = "has a scale of its data" if grid.is_dynamic else "is int32"
                raise ModelError(f"{self.source}: output {name!r} {what}; export it in float")
            self.give_numbers(name, grid)
        elif name in self.real.keys() - self.standing:
            self._restore(name)

    def give_numbers(self, name: str, grid: NumberGrid) -> None:
        """Compute an output of quantized numbers from its real ones."""
        real, floats = self.real.pop(name), partial(self.constant, kind=grid.floats)
        if real == name:
            real = self.names.claim(f"{name}/real")
            rename_tensors(self.nodes, {name: real})
        steps = self.compute("Div", [real, floats(f"{name}/scale", grid.scale)], f"{name}/steps")
        whole = self.compute("Round", [steps], f"{name}/rounded") if "int" in grid.kind.name else steps
        shifted = self.compute("Add", [whole, floats(f"{name}/zero", grid.zero)], f"{name}/numbers")
        within = self.names.claim(f"{name}/within")
        ends = dict(zip(("min", "max"), grid.codes, strict=True))
        clip = self.clipping(within, within, grid.floats).make(shifted, ends)
        self.emit("Clip", list(clip.input), [within], clip)
        kind = int(helper.np_dtype_to_tensor_dtype(grid.kind))
        self.emit("Cast", [within], [name], self.names.claim(f"{name}/cast"), to=kind)
