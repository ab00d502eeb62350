"""Rule about forms of operators that TensorRT has and refuses, where the remedy is not another plain value.

Each was tried on TensorRT for RTX 1.7.1, whose parser reports the operators as supported. The table of
`refused_forms` has the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
from onnx import TensorProto

from onnxfq.graph.normalize.node_sites import NodeSite
from onnxfq.graph.ops import RECURRENT_OPS
from onnxfq.targets.findings import Finding
from onnxfq.targets.reading.context import CheckContext, Rule, make_finding
from onnxfq.targets.reading.quantizer_reader import type_name
from onnxfq.targets.tensorrt.limits import TENSOR_TYPES
from onnxfq.targets.tensorrt.rules.classic import ON_CLASSIC
from onnxfq.targets.tensorrt.rules.operator_structures import STRUCTURES, find_rank

MOST_TOP = 3840
"""Largest K of TopK (ITopKLayer)."""

CACHE_AXES = 4
"""Axes of the cache that TensorScatter writes into."""

_WRITTEN_OUT = "`onnxfq quantize` and `onnxfq cast` write it out in other operators"


class FormLimit(NamedTuple):
    """Values of an attribute that TensorRT takes; of a list, for each element.

    Attributes:
        default: the value of an attribute that is left out.
        taken: the values; the first one is what the others have to be replaced by.
        remedy: what to do about other values.
    """

    attribute: str
    default: int | str
    taken: tuple[int | str, ...]
    remedy: str


_STEPS = FormLimit(
    "activations",
    "Tanh",
    tuple("Tanh Sigmoid Relu LeakyRelu ThresholdedRelu ScaledTanh HardSigmoid Elu Softsign Softplus".split()),
    "use one of these",
)
_DILATIONS = FormLimit("dilations", 1, (1,), "export without dilations, or gather the elements by Slice")

LIMITS: Mapping[str, tuple[FormLimit, ...]] = {
    **dict.fromkeys(("AveragePool", "MaxPool"), (_DILATIONS,)),
    "BatchNormalization": (
        FormLimit("training_mode", 0, (0,), "export the model in evaluation mode, as model.eval() sets it"),
    ),
    **dict.fromkeys(RECURRENT_OPS, (_STEPS,)),
    "LRN": (FormLimit("size", 1, tuple(range(1, 16, 2)), "use one of these"),),
    "LpPool": (_DILATIONS, FormLimit("p", 2, (1, 2), "compute it by Pow and AveragePool")),
}
"""Op type -> attributes of which TensorRT takes some values only; the parser refuses the others."""


def _find_beyond(site: NodeSite) -> Iterator[str]:
    for limit in LIMITS.get(site.op, ()):
        found = site.attrs.get(limit.attribute, limit.default)
        values = found if isinstance(found, list) else [found]
        if any(value not in limit.taken for value in values):
            have, taken = (" and ".join(map(repr, each)) for each in (dict.fromkeys(values), limit.taken))
            yield f"{limit.attribute} is {have}, and TensorRT has {taken} only; {limit.remedy}"


def _find_large_k(site: NodeSite) -> str:
    k = site.index.value(site.input(1))
    if k is None or np.max(k, initial=0) <= MOST_TOP:
        return ""
    return f"K is {int(np.max(k))}, and TensorRT takes up to {MOST_TOP}; select fewer"


def _find_type(site: NodeSite) -> str:
    code = site.attrs["to"]
    return "" if code in TENSOR_TYPES else f"TensorRT casts to no {type_name(code)}; cast to int32 or float"


def _find_integers(site: NodeSite) -> str:
    wide = site.index.dtype(site.input(0)) == TensorProto.INT32
    return "it reads int32, and TensorRT quantizes floats only; put a Cast in front of it" if wide else ""


def _find_training(site: NodeSite) -> str:
    training = site.index.value(site.input(2)) if site.input(2) else None
    if training is None or not np.any(training):
        return ""
    return "it is in training mode, which TensorRT lacks; export the model in evaluation mode"


def _find_upper_case(site: NodeSite) -> str:
    equation = site.attrs.get("equation", "")
    remedy = "rename them, as `onnxfq quantize` does"
    lower = equation == equation.lower()
    return (
        "" if lower else f"{equation!r} has upper-case labels, and TensorRT takes lower-case ones; {remedy}"
    )


def _find_attention(site: NodeSite) -> str:
    precise = site.attrs.get("softmax_precision") is not None
    if any(site.node.output[1:]) or site.input(4) or site.input(5) or precise:
        return (
            "TensorRT has ONNX's Attention with one output, without past keys and softmax_precision only; "
            + _WRITTEN_OUT
        )
    output = site.outputs[0]
    half = output.index.dtype(output.name) != TensorProto.FLOAT
    return "" if half else f"TensorRT has ONNX's Attention in half types only; {_WRITTEN_OUT}"


def _find_unloaded(site: NodeSite) -> str:
    return f"TensorRT cannot load its plugin of {site.op}; {_WRITTEN_OUT}"


def _find_cache(site: NodeSite) -> str:
    shape = site.inputs[0].shape
    if shape is None or len(shape) == CACHE_AXES:
        return ""
    return f"TensorRT takes a cache of {CACHE_AXES} axes, and this has {len(shape)}; reshape it"


FORMS: Mapping[str, Callable[[NodeSite], str]] = {
    "Attention": _find_attention,
    "Cast": _find_type,
    "Dropout": _find_training,
    "Einsum": _find_upper_case,
    **dict.fromkeys(("CausalConvWithState", "LinearAttention"), _find_unloaded),
    **dict.fromkeys(("NonMaxSuppression", "NonZero", "RoiAlign"), lambda site: ON_CLASSIC),
    "QuantizeLinear": _find_integers,
    "TensorScatter": _find_cache,
    "TopK": _find_large_k,
    **STRUCTURES,
}
"""Op type -> why TensorRT refuses a form that is not one attribute, with the remedy; empty if it takes it."""


def operator_forms(reading: CheckContext) -> Iterator[Finding]:
    """Refuse forms of operators that the parser or the builder refuses."""
    for site in reading.sites:
        for message in find_refused(site):
            yield make_finding("operator-form", "refused", site, message)


def find_refused(site: NodeSite) -> Iterator[str]:
    """Yield why TensorRT refuses the form of `site`, with the remedy, one line for each place."""
    why = FORMS[site.op](site) if site.op in FORMS else ""
    yield from filter(None, (why, find_rank(site), *_find_beyond(site)))


RULES: tuple[Rule, ...] = (operator_forms,)
