"""Check of one Q/DQ model for Qualcomm's HTP: by rules, and by the nodes that onnxruntime-qnn gives to it.

The rules need no package of Qualcomm. Their source is ONNX Runtime: its node units and `get_qnn_qdq_config`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from onnx import TensorProto

from onnxfq.graph.bounds import UNKNOWN, Bounds, bounds_of
from onnxfq.graph.model import list_nodes
from onnxfq.graph.normalize.node_sites import NodeSite
from onnxfq.graph.ops import (
    BIASED_PRODUCTS,
    FAKE_QUANTIZE_OPS,
    QDQ_OPS,
    SIZED_BY_VALUES,
    SIZES,
    STANDARD_DOMAINS,
    WEIGHTED_INPUTS,
)
from onnxfq.graph.patterns.bias_sums import find_bias_sum
from onnxfq.graph.patterns.whole_numbers import find_whole_numbers
from onnxfq.targets.findings import Finding, about_model
from onnxfq.targets.onnxruntime.float_products import rounded_products
from onnxfq.targets.profiles import profiles
from onnxfq.targets.qnn.build import build_model
from onnxfq.targets.qnn.operators import ABSORBED, AXES, EIGHT_BITS, OPERATORS, explain_axes, needs_one_scale
from onnxfq.targets.qnn.policy import GROUPS, IN_BODY, LIMITS
from onnxfq.targets.reading.context import CheckContext, Rule, make_finding
from onnxfq.targets.reading.general_rules import check_quantized, refuse_simulated
from onnxfq.targets.reading.limits import check_limits
from onnxfq.targets.reading.operands import Units
from onnxfq.targets.reading.proof import make_check
from onnxfq.targets.reading.quantizer_reader import Quantizer, quantizer

_FLOATS = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16})
_UNPAIRED = QDQ_OPS | {"Cast"}
UNITS: Units = {op: (0,) for op in OPERATORS if op not in WEIGHTED_INPUTS}
"""Operators without a product that the HTP runs between pairs, and the slot of their data."""

# Inputs that are parameters: their floats have no pairs in the models of ONNX Runtime's quantizer.
_PLAIN = {"BatchNormalization": (3, 4), "Clip": (1, 2), "Resize": (1, 2), "Upsample": (1,)}


def operators(reading: CheckContext) -> Iterator[Finding]:
    """Report operators on floats that QNN does not have and the CPU runs."""
    folded = SIZES if _has_fixed_sizes(reading) else frozenset()
    for site in _computing(reading):
        given = _pair(site, 0)
        if site.op in EIGHT_BITS and given is not None and given.qtype == TensorProto.UINT16:
            message = f"the HTP has {site.op} in 8 bits alone, and its session fails; leave the node in float"
            yield make_finding("operator", "refused", site, message)
        elif given is not None and (few := explain_axes(site.op, site.index.shape(site.input(0)))):
            yield make_finding("operator", "float", site, f"{few}; leave the node in float")
        known = site.op in OPERATORS and (site.node.domain or "") in STANDARD_DOMAINS
        if not known and site.op not in FAKE_QUANTIZE_OPS | folded:
            message = f"QNN has no operator {site.op}, and the CPU runs it; export the model without it"
            yield make_finding("operator", "float", site, message)


def _has_fixed_sizes(reading: CheckContext) -> bool:
    """Tell whether no size of the model depends on its inputs, so that ONNX Runtime computes sizes once."""
    proto = reading.proto
    dims = [dim for value in proto.graph.input for dim in value.type.tensor_type.shape.dim]
    by_values = any(node.op_type in SIZED_BY_VALUES for node in list_nodes(proto.graph))
    return not by_values and all(dim.HasField("dim_value") for dim in dims)


def _pair(site: NodeSite, slot: int) -> Quantizer | None:
    return quantizer(site.index.maker(site.input(slot)))


def body_nodes(reading: CheckContext) -> Iterator[Finding]:
    """Report operators between pairs in a body of If, Loop or Scan: ONNX Runtime asks QNN of none."""
    for promised in reading.promises:
        if promised.site.graph:
            message = (
                f"{IN_BODY}, and the CPU runs it; leave it in float, or export the model without the body"
            )
            yield make_finding("body", "float", promised.site, message)


def gains(reading: CheckContext) -> Iterator[Finding]:
    """Report int8 gains of LayerNormalization without a bias of 8 bits, which the HTP does not take."""
    for site in (one for one in reading.sites if one.op == "LayerNormalization"):
        gain, bias = (_pair(site, slot) for slot in (1, 2))
        eight = bias is not None and bias.qtype in (TensorProto.INT8, TensorProto.UINT8)
        if gain is not None and gain.qtype != TensorProto.UINT8 and not eight:
            message = f"the HTP takes a gain of {gain.type_name} only beside a bias of 8 bits; use uint8"
            yield make_finding("gain", "float", site, message, site.input(1))


def node_units(reading: CheckContext) -> Iterator[Finding]:
    """Report operators with a float input or output without a pair: the HTP runs whole node units only."""
    for site in _computing(reading):
        if site.op not in OPERATORS or _vanishes(site):
            continue
        bare = [(name, "input") for name in _read_in_float(site)]
        if site.op != "Concat":  # it joins tensors of other scales in float, in the same partition
            bare += [(name, "output") for name in _written_in_float(site)]
        if bare:
            name, kind = bare[0]
            message = (
                f"its {kind} {name!r} has no pair, and QNN takes operators with pairs on all float inputs "
                "and outputs only; quantize it too, as recipe qnn-int8 does"
            )
            yield make_finding("node-unit", "float", site, message, name)


def zero_points(reading: CheckContext) -> Iterator[Finding]:
    """Report pairs without a zero point as input: ONNX Runtime makes no node units of them."""
    for q in reading.quantizers:
        if not q.site.input(2):
            message = f"ONNX Runtime makes no node unit without a zero point; give {q.data!r} one, also 0"
            yield make_finding("zero-point", "float", q.site, message, q.data)


def group_axes(reading: CheckContext) -> Iterator[Finding]:
    """Report a ConvTranspose in groups of three dimensions: its numbers are others, in float too."""
    for site in reading.sites:
        axes = len(site.index.shape(site.input(0)) or ())
        if site.op == "ConvTranspose" and site.attrs.get("group", 1) > 1 and axes > AXES:
            message = (
                f"the HTP computes it in groups of over {AXES} axes otherwise; export one for each group"
            )
            yield make_finding("group-axes", "wrong", site, message)


def moved_scales(reading: CheckContext) -> Iterator[Finding]:
    """Warn of moved data in another scale: the HTP then computes numbers again that it need only move."""
    for site in _computing(reading):
        if not needs_one_scale(site, lambda tensor: reading.index.value(tensor.name)):
            continue
        source = _pair(site, 0)
        for result in site.outputs:
            pairs = [pair for reader in result.outputs if (pair := quantizer(reader)) is not None]
            if source is not None and pairs and not _is_same_grid(source, pairs[0]):
                message = (
                    f"its output {result.name!r} has another scale than its input, and the HTP rounds it "
                    "again; give both one scale"
                )
                yield make_finding("moved-scale", "warning", site, message, result.name)


def _is_same_grid(one: Quantizer, other: Quantizer) -> bool:
    if one.scale is None or other.scale is None or one.qtype != other.qtype:
        return False
    first, second = (np.asarray(0 if q.zero_point is None else q.zero_point) for q in (one, other))
    return np.array_equal(one.scale, other.scale) and np.array_equal(first, second)


def _computing(reading: CheckContext) -> Iterator[NodeSite]:
    """Yield the nodes that compute with floats, from more than constants; QNN takes a Cast without pairs.

    Sizes, indices and lengths are computed in float.
    """
    whole = find_whole_numbers(reading.index)
    for site in reading.sites:
        if site.name in whole.nodes:
            continue
        names = [name for name in (*site.node.input, *site.node.output) if name]
        constant = all(reading.index.is_constant(name) for name in site.node.output if name)
        if site.op not in _UNPAIRED and not constant and any(_is_float(site, name) for name in names):
            yield site


def _is_float(site: NodeSite, name: str) -> bool:
    return site.index.dtype(name) in _FLOATS


def _read_in_float(site: NodeSite) -> Iterator[str]:
    """Yield the float inputs without a pair that need one.

    ONNX Runtime turns a weight itself, and gives a constant bias of a product the int32 of its scales
    (`WeightBiasQuantization`).
    """
    for slot, name in enumerate(site.node.input):
        if not name or slot in _PLAIN.get(site.op, ()) or not _is_float(site, name):
            continue
        is_constant, maker = site.index.is_constant(name), site.index.maker(name)
        if is_constant and maker is not None and maker.op == "Transpose":
            maker = site.index.maker(maker.input(0))
        is_bias = is_constant and slot == 2 and site.op in BIASED_PRODUCTS
        if not is_bias and (maker is None or maker.op != "DequantizeLinear"):
            yield name


def _written_in_float(site: NodeSite) -> Iterator[str]:
    outputs = {value.name for value in site.index.proto.graph.output}
    for result in site.outputs:
        readers = result.outputs
        if not result.name or not _is_float(site, result.name) or not (readers or result.name in outputs):
            continue
        vanishing = len(readers) == 1 and _vanishes(readers[0])
        if result.name in outputs or not (vanishing or all(r.op == "QuantizeLinear" for r in readers)):
            yield result.name


def _vanishes(site: NodeSite) -> bool:
    """Tell whether `site` is behind an operator, and the pair behind it does its work, or it adds a bias.

    Source: `IsClipMadeRedundantByQ` of ONNX Runtime.
    """
    readers = site.outputs[0].outputs
    if _is_bias_sum(site):
        return len(readers) == 1 and (quantizer(readers[0]) is not None or _vanishes(readers[0]))
    maker = site.index.maker(site.input(0))
    if site.op not in ABSORBED or maker is None or maker.op in QDQ_OPS:
        return False
    if len(readers) != 1 or len(site.index.reading(site.input(0))) != 1:
        return False
    behind = quantizer(readers[0])
    if behind is None:
        return _vanishes(readers[0])
    limits = _limits(site)
    if limits is None or behind.scale is None or behind.scale.ndim or behind.zero_point is None:
        return False
    ends = np.iinfo(behind.zero_point.dtype)
    low, high = np.rint(np.asarray(limits) / float(behind.scale)) + int(behind.zero_point)
    return bool(low <= ends.min and high >= ends.max)


def _is_bias_sum(site: NodeSite) -> bool:
    """Tell whether `site` adds the bias of a product, with which ONNX Runtime makes a Gemm of it."""
    products = [maker for tensor in site.inputs for maker in tensor.inputs]
    sums = (find_bias_sum(one, lambda tensor: site.index.is_constant(tensor.name)) for one in products)
    return any(add is site for add in sums)


def _limits(site: NodeSite) -> Bounds | None:
    """Return the least and the largest number that a Relu or Clip lets through; None if they are computed."""
    given = [UNKNOWN]
    for name in site.node.input[1:]:
        value = site.index.value(name) if name else None
        if name and value is None:
            return None
        given.append(UNKNOWN if value is None else (float(value), float(value)))
    return bounds_of(site.node, given)


def open_sizes(reading: CheckContext) -> Iterator[Finding]:
    """Warn of inputs of open sizes: the HTP takes none of the nodes behind them."""
    if names := ", ".join(map(repr, profiles(reading.proto, {}))):
        message = (
            f"open sizes of {names} leave all nodes to the CPU; fix them in the file, or by "
            "free dimension overrides of the session"
        )
        yield about_model("open-size", message, "warning")


RULES: tuple[Rule, ...] = (
    check_quantized,
    refuse_simulated("QNN"),
    open_sizes,
    operators,
    body_nodes,
    node_units,
    gains,
    zero_points,
    check_limits(*LIMITS, GROUPS),
    group_axes,
    moved_scales,
    rounded_products,
)

check_model = make_check("qnn", RULES, UNITS, build_model)
