"""Tensors whose noise judges a model: float outputs and their parts, and what other outputs come from.

The index of a class or box has no noise in dB: it is right or wrong. Rows that are selected by values change
places, so that one swap looks like a broken layer. The floats in front of them tell how well a model is
quantized.

Behind a final sigmoid or softmax both decide. Large negative logits hide the few that matter, which the
probabilities show. Probabilities near 0 and 1 hide the noise until one of them turns, and few samples may
have none that does. Two trained networks had probabilities whose SQNR was 11 and 14 dB too good on such
samples; the SQNR of the logits was right within 5 dB.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import onnx
from onnx import TensorProto

from onnxfq.errors import ModelError
from onnxfq.graph.external.weightless import strip_weights
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.model import list_nodes
from onnxfq.graph.normalize.shapes import add_shapes
from onnxfq.graph.ops import QUANTIZED_OPS, SIZES, STANDARD_DOMAINS
from onnxfq.graph.patterns.choices import CHOOSING, FLOATS, ChoiceFinder, ChoiceType, multiplies
from onnxfq.graph.patterns.fed_back import find_states
from onnxfq.graph.patterns.makers import name_tensor
from onnxfq.graph.patterns.parts import OutputPart, PartFinder
from onnxfq.graph.segments import list_reads
from onnxfq.graph.walk import nodes_inside

SATURATING = frozenset({"Sigmoid", "HardSigmoid", "Softmax", "LogSoftmax", "Hardmax", "Tanh"})
"""Operators whose outputs hide noise in their input, because they are nearly constant."""

_MAKES_PROBABILITIES = frozenset({"Sigmoid", "HardSigmoid", "Softmax", "LogSoftmax"})
"""Those whose logits decide with their outputs; the product of a final Tanh may be an image or a sound."""

_MOVING = frozenset(
    {"Reshape", "Transpose", "Identity", "Squeeze", "Unsqueeze", "Flatten", "Cast", "Dropout"}
)
_TENSORS = (None, "tensor_type")
_BOOLEAN = TensorProto.BOOL


@dataclass(frozen=True)
class JudgedTensors:
    """Tensors that judge a model.

    Attributes:
        deciding: the tensors whose worst SQNR is that of the model: float outputs in place, the logits of
            their probabilities, and `sources`.
        moved: float outputs whose elements change places with their values.
        sources: by inner tensor, the moved and discrete outputs that come from it, where no output that
            stays in place has it as its logits.
        parts: by deciding output, the parts that decide in its place.
        logits: by inner tensor that a final operator of `SATURATING` reads, the output.
        states: by output that is fed back, the input that takes it; it decides only if nothing else does.
        classes: outputs whose last axis may have scores of classes, each with its rank, 2 or 3.
        choices: by tensor whose values the float model gives to all others, its type.
        unjudged: by node whose choices are not given although products depend on them, the reason.
        makers: words for the node or module behind an inner tensor, see `name_tensor`.
    """

    deciding: tuple[str, ...] = ()
    moved: frozenset[str] = frozenset()
    sources: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    parts: Mapping[str, tuple[OutputPart, ...]] = field(default_factory=dict)
    logits: Mapping[str, str] = field(default_factory=dict)
    states: Mapping[str, str] = field(default_factory=dict)
    classes: Mapping[str, int] = field(default_factory=dict)
    choices: Mapping[str, ChoiceType] = field(default_factory=dict)
    unjudged: Mapping[str, str] = field(default_factory=dict)
    makers: Mapping[str, str] = field(default_factory=dict)

    @property
    def inner(self) -> tuple[str, ...]:
        """The inner tensors that are scored with the outputs; an output may be a choice too."""
        return (*self.sources, *self.logits, *self.choices)

    def explain_unjudged(self) -> str:
        """Return what has no figure because products depend on choices that are not given; "" if nothing."""
        node, why = next(iter(self.unjudged.items()), ("", ""))
        return f"what depends on the choices of node {node!r} is not judged: {why}" if node else ""

    def within(self, present: Container[str], kinds: Collection[str] = ("logits",)) -> JudgedTensors:
        """Return this without the inner tensors of these kinds that are not among `present`."""
        kept: dict[str, Any] = {
            kind: {n: of for n, of in getattr(self, kind).items() if n in present} for kind in kinds
        }
        absent = {name for kind in kinds for name in getattr(self, kind).keys() - kept[kind].keys()}
        return replace(self, deciding=tuple(n for n in self.deciding if n not in absent), **kept)


NOTHING_KNOWN = JudgedTensors()
"""Result for a model whose outputs are only scored."""


def judge_outputs(proto: onnx.ModelProto) -> JudgedTensors:
    """Return what judges `proto`, whose types are inferred; tensors of unknown type count as floats."""
    return _Judge(proto.graph).judge()


def judge_given(proto: onnx.ModelProto, present: Container[str] | None = None) -> JudgedTensors:
    """Return what judges a model as given, which may be quantized; types and shapes are inferred.

    Choices that are not `present` in other models are not given to them; None if all are.
    """
    kinds = {value.type.tensor_type.elem_type for value in proto.graph.output}
    chooses = not CHOOSING.isdisjoint(node.op_type for node in list_nodes(proto.graph))
    light = strip_weights(proto)
    try:
        add_shapes(light)
    except ModelError:  # declared shapes that contradict each other: ONNX Runtime infers its own
        light = proto
    # Integers other than choices are numbers of a grid, which move nothing.
    return _Judge(light.graph, chooses or not kinds <= FLOATS, present).judge()


def _element_type(kind: onnx.TypeProto) -> int:
    """Return the type of the elements in a sequence, an optional value or a map."""
    if kind.HasField("map_type"):
        return _element_type(kind.map_type.value_type)
    for one in (kind.sequence_type, kind.optional_type):
        if one.HasField("elem_type"):
            return _element_type(one.elem_type)
    return int(kind.tensor_type.elem_type)


class _Judge:
    """Tensors of one main graph that noise can change, and those whose elements it moves."""

    def __init__(
        self, graph: onnx.GraphProto, moves: bool = True, present: Container[str] | None = None
    ) -> None:
        self._graph, self._index, self._moves = graph, GraphIndex(graph), moves
        index = self._index
        self._makers, self._types, self._constants = index.makers, index.types, index.constants
        others = {n: v.type for n, v in index.values.items() if v.type.WhichOneof("value") not in _TENSORS}
        self._types |= {name: _element_type(kind) for name, kind in others.items()}
        self._others = others.keys()
        self._choosing = ChoiceFinder(graph, index, present)
        self._choices: dict[str, ChoiceType] = {}
        known = -1
        while known < len(self._choices):  # a Cast shows that what was rounded long before is a choice
            known = len(self._choices)
            self._noisy: set[str] = set()
            self._moved: set[str] = set()
            for node in graph.node:
                self._follow(node)
        self._finder = PartFinder(index, self._noisy)

    def judge(self) -> JudgedTensors:
        """Return outputs in place with their parts and logits, and the sources of others."""
        outputs = [value.name for value in self._graph.output]
        found = {output: dict.fromkeys(self._sources(output)) for output in outputs}
        placed = [name for name in found if self._is_placed(name)]
        known = {source for name in placed for source in found[name]}
        found |= {name: dict.fromkeys(self._sources(name)) for name in self._choices}
        sources: dict[str, tuple[str, ...]] = {}
        for output, names in found.items():
            for name in [name for name in names if output not in placed and name not in known]:
                sources[name] = (*sources.get(name, ()), output)
        states = {name: of for name, of in find_states(self._graph, self._index).items() if name in placed}
        deciding = (*[name for name in placed if name not in states], *sources)
        tensors = [name for name in placed if name not in self._others]
        parts = {name: self._finder.find(name) for name in tensors if not deciding or name in deciding}
        logits = {
            name: output
            for output in placed
            for name in found[output]
            if name not in outputs and self._is_float(name) and self._logits(output) == name != output
        }
        deciding = (*deciding, *(name for name, of in logits.items() if self._decides(of) and of in deciding))
        makers = {name: name_tensor(name, self._index) for name in (*sources, *logits)}
        return JudgedTensors(
            deciding=deciding or (*states,),
            moved=frozenset(name for name in outputs if name in self._moved and self._is_float(name)),
            sources=sources,
            parts={name: found for name, found in parts.items() if found},
            logits=logits,
            states=states if deciding else {},
            classes={
                name: len(self._index.shape(name) or ())
                for name in filter(self._finder.counts_classes, tensors)
            },
            choices={n: one._replace(follows=n not in self._noisy) for n, one in self._choices.items()},
            unjudged=self._choosing.left,
            makers={name: text for name, text in makers.items() if text != repr(name)},
        )

    def _follow(self, node: onnx.NodeProto) -> None:
        """Note whether the outputs of `node` hold noise, and whether it moves their elements."""
        if node.op_type in SIZES:
            return
        read = list_reads(node) - self._constants.keys()
        noisy = (read & self._noisy) - self._choices.keys()
        inner = nodes_inside(node)
        if not noisy and not any(map(multiplies, (node, *inner))):
            return
        self._noisy.update(filter(None, node.output))
        if not self._moves:
            return
        chosen = self._choosing.find(node, noisy) if noisy else {}
        self._choices |= chosen
        inside = {one.op_type for one in inner}
        indices = {n for n in noisy if not self._is_float(n) and self._types.get(n) != _BOOLEAN}
        moves = self._choosing.selects(node, noisy) or not inside.isdisjoint(CHOOSING)
        moves = moves or (bool(indices) and node.op_type not in QUANTIZED_OPS)
        if noisy & self._moved or (moves and not chosen):
            self._moved.update(filter(None, node.output))

    def _is_float(self, name: str) -> bool:
        """Tell whether `name` holds floats, as a tensor, a map or a sequence."""
        return self._types.get(name, TensorProto.UNDEFINED) in FLOATS

    def _is_placed(self, name: str) -> bool:
        return self._is_float(name) and name not in self._moved

    def _sources(self, output: str) -> Iterator[str]:
        """Yield the logits of an output in place, or the nearest floats in place before another one.

        Before a choice these are the nearest behind all other choices.
        """
        stack, seen = [output], {output, *self._choices}
        while stack:
            name = stack.pop()
            node = self._makers.get(name)
            if self._is_placed(name) and name not in self._choices and name not in self._others:
                yield self._logits(name)
            elif node is not None and name in self._noisy:
                beside = [
                    other for other in node.output if other not in ("", name) and self._is_placed(other)
                ]
                beside = [] if node.op_type in CHOOSING else beside
                before = [*dict.fromkeys([*node.input, *sorted(list_reads(node))])]
                following = [one for one in beside or before if one in self._noisy and one not in seen]
                seen.update(following)
                stack += following[::-1]

    def _decides(self, output: str) -> bool:
        """Tell whether the logits of `output` decide with it."""
        operator = self._saturating(output)
        return operator is not None and operator.op_type in _MAKES_PROBABILITIES

    def _logits(self, output: str) -> str:
        """Return `output`, or what a saturating operator reads for it, before operators that move it."""
        operator = self._saturating(output)
        if operator is None:
            return output
        name = str(operator.input[0])
        while (node := self._makers.get(name)) is not None and self._moves_values(node):
            if node.input[0] not in self._noisy:
                break
            name = node.input[0]
        return name

    def _saturating(self, output: str) -> onnx.NodeProto | None:
        """Return the first saturating operator on the way to `output` that others only move or saturate."""
        name, found = output, None
        while (node := self._makers.get(name)) is not None:
            if node.op_type in SATURATING and node.domain in STANDARD_DOMAINS:
                found = node
            elif not self._moves_values(node):
                break
            name = node.input[0]
        return found

    @staticmethod
    def _moves_values(node: onnx.NodeProto) -> bool:
        return node.op_type in _MOVING and node.domain in STANDARD_DOMAINS
