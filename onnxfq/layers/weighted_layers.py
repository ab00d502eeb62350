"""Layers whose weights can be rounded: the weight as matrices, and the inputs that it multiplies."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import onnx_graphsurgeon as gs

from onnxfq.calibration.weights import InputView, MatrixView
from onnxfq.documents.plan import Placement, Plan
from onnxfq.graph.model import Model
from onnxfq.graph.names import Use
from onnxfq.graph.ops import STANDARD_DOMAINS, WEIGHTED_INPUTS
from onnxfq.graph.queries import weight_source


@dataclass(frozen=True)
class LayerInput:
    """Input of one node of a layer.

    Attributes:
        node: name of the node.
        slot: of the input.
        tensor: name of the input in the float model.
        view: how the node reads it.
    """

    node: str
    slot: int
    tensor: str
    view: InputView


@dataclass(frozen=True)
class WeightedLayer:
    """A weight and all nodes that multiply it.

    Attributes:
        placement: of the weight.
        view: the weight as matrices.
        inputs: of the nodes, in the order of computation.
    """

    placement: Placement
    view: MatrixView
    inputs: tuple[LayerInput, ...]

    def with_rounding(self, method: str) -> WeightedLayer:
        """Return the layer with another method of rounding."""
        return replace(self, placement=self.placement.model_copy(update={"rounding": method}))


@dataclass
class _Found:
    views: list[MatrixView] = field(default_factory=list)
    inputs: list[LayerInput] = field(default_factory=list)
    uses: set[Use] = field(default_factory=set)


def find_layers(model: Model, plan: Plan) -> tuple[list[WeightedLayer], dict[str, str]]:
    """Return the layers of the weights of `plan`, and the reason for each weight that has none.

    A weight has none if a body, or another operator than Conv, ConvTranspose, Gemm and MatMul, reads it
    quantized, or if its readers multiply it along different axes.

    Args:
        model: the float model, as the target of the plan prepares it.
        plan: with the weights.
    """
    graph = model.graph()
    wanted = {placement.tensor: placement for placement in plan.weights}
    found: dict[str, _Found] = {name: _Found() for name in wanted}
    for node in graph.nodes:
        for slot in WEIGHTED_INPUTS.get(node.op, ()) if node.domain in STANDARD_DOMAINS else ():
            source = weight_source(node, slot)
            if source is None or source.tensor.name not in wanted:
                continue
            other = node.inputs[1 - slot]
            views = _views(node, slot, source.permutation, tuple(source.tensor.shape))
            if (
                views is None
                or isinstance(other, gs.Constant)
                or source.use not in wanted[source.tensor.name].uses
            ):
                continue
            entry = found[source.tensor.name]
            entry.uses.add(source.use)
            entry.views.append(views[0])
            entry.inputs.append(LayerInput(node.name, 1 - slot, other.name, views[1]))
    layers, refused = [], {}
    outside = {node.name: node.op for node in graph.nodes}
    for name, entry in found.items():
        missing = [use.node for use in wanted[name].uses if use not in entry.uses]
        if missing and missing[0] in outside:
            refused[name] = f"{outside[missing[0]]} {missing[0]!r} does not multiply it as one matrix"
        elif missing:
            refused[name] = f"node {missing[0]!r} reads it in a body of If, Loop or Scan"
        elif len(set(entry.views)) > 1:
            refused[name] = "its readers multiply it along different axes"
        else:
            layers.append(WeightedLayer(wanted[name], entry.views[0], tuple(entry.inputs)))
    return layers, refused


def _views(
    node: gs.Node, slot: int, order: tuple[int, ...], stored: tuple[int, ...]
) -> tuple[MatrixView, InputView] | None:
    """Return the weight in `slot` as matrices and the view of the other input; None if there is none."""
    shape = tuple(stored[axis] for axis in order)
    if node.op == "Gemm":
        flipped = [int(bool(node.attrs.get(name, 0))) for name in ("transA", "transB")]
        axis = flipped[1 - slot] ^ slot
        return MatrixView("Gemm", order, outputs_first=flipped[slot] == slot), InputView("Gemm", axis)
    if node.op == "MatMul":
        if len(shape) > 2 or (slot == 0 and len(shape) < 2):
            return None
        other = node.inputs[1].shape
        if slot == 0 and other is None:
            return None
        axis = -1 if slot == 1 else -2 if len(other) > 1 else 0
        return MatrixView("MatMul", order, outputs_first=slot == 0), InputView("MatMul", axis)
    if node.op not in ("Conv", "ConvTranspose") or slot != 1:
        return None
    rank, group = len(shape) - 2, int(node.attrs.get("group", 1))
    if node.op == "ConvTranspose":
        return MatrixView("ConvTranspose", order, group), InputView("ConvTranspose", group=group)
    pads = tuple(node.attrs.get("pads", (0,) * 2 * rank))
    view = InputView(
        "Conv",
        group=group,
        kernel=shape[2:],
        strides=tuple(node.attrs.get("strides", (1,) * rank)),
        dilations=tuple(node.attrs.get("dilations", (1,) * rank)),
        pads=pads[:rank],
        ends=pads[rank:],
        auto_pad=str(node.attrs.get("auto_pad", "NOTSET")),
    )
    return MatrixView("Conv", order, group), view
