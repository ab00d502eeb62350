"""Precision of each promised node in the graph that ONNX Runtime runs, and why one stays in float."""

from __future__ import annotations

from collections.abc import Collection

import onnx
from onnx import TensorProto

from onnxfq.errors import ModelError
from onnxfq.graph.model import list_nodes
from onnxfq.graph.normalize.node_sites import CLIPPING, NodeSite
from onnxfq.graph.ops import BLOCK_PRODUCTS, INTEGER_PRODUCTS, QDQ_OPS
from onnxfq.runtime.optimized_graph import VERSION, optimize_graph
from onnxfq.targets.findings import EngineNode, Verdict, about_model
from onnxfq.targets.profiles import profiles
from onnxfq.targets.reading.context import CheckContext
from onnxfq.targets.reading.marks import find_marks, mark_promises
from onnxfq.targets.reading.operands import ExpectedPrecision
from onnxfq.targets.reading.proof import Built, describe_node
from onnxfq.targets.reading.quantizer_reader import quantizer, type_name
from onnxfq.targets.target import BuildOptions

DEVICE = "CPU"
_LOW = INTEGER_PRODUCTS | set(
    "QLinearAdd QLinearAveragePool QLinearConcat QLinearGlobalAveragePool QLinearLeakyRelu QLinearMul "
    "QLinearReduceMean QLinearSigmoid QLinearSoftmax".split()
)
_GEMMS = frozenset({"FusedGemm", "Gemm"})
# They stand around a node, and move or convert its tensors.
_GLUE = QDQ_OPS | {"Cast", "Reshape", "Squeeze", "Transpose", "Unsqueeze"}
# They have no kernel of their own for 8 bits: ONNX Runtime takes the pairs away and moves the integers.
_MOVING = frozenset({"MaxPool", "Resize"})
_MOVED = "moved integers"


def build_model(reading: CheckContext, options: BuildOptions) -> Built:
    """Open the model as it is in a plain session and return the precision of each promised node.

    Raises DataError for shapes that do not fit.
    """
    builder = f"ONNX Runtime {VERSION}"
    profiles(reading.proto, options.shapes)  # checks them; the session of users has the sizes of the file
    try:
        optimized = optimize_graph(mark_promises(reading, {}))
    except ModelError as error:
        message = f"{error}; run it at ORT_ENABLE_BASIC, or quantize with recipe onnxruntime-int8"
        return Built(builder, (about_model("session", message),))
    found: dict[int, set[str]] = {}
    integers = find_integers(optimized)
    for node in list_computing(optimized):
        kind = _MOVED if node.op_type in _MOVING and node.input[0] in integers else node.op_type
        for number in find_marks([node.name, *node.output]):
            found.setdefault(number, set()).add(kind)
    nodes = [_describe(promised, found.get(at, set())) for at, promised in enumerate(reading.promises)]
    return Built(builder, nodes=tuple(nodes))


def _describe(promised: ExpectedPrecision, op_types: set[str]) -> EngineNode:
    """Return the record of a promised node that became nodes of `op_types`."""
    verdict = _judge(op_types)
    why = "" if verdict == promised.expects else explain_float(promised, op_types)
    return describe_node(promised, DEVICE, verdict, why)


def list_computing(proto: onnx.ModelProto) -> list[onnx.NodeProto]:
    """Return the nodes of `proto`, bodies included, that compute more than moves and conversions."""
    return [node for node in list_nodes(proto.graph) if node.op_type not in _GLUE]


def find_integers(proto: onnx.ModelProto) -> set[str]:
    """Return the tensors of 8 bits that a pair or an integer kernel makes, and what is moved of them."""
    found: set[str] = set()
    for node in list_nodes(proto.graph):
        moved = node.op_type in (_GLUE | _MOVING) - QDQ_OPS and bool(node.input) and node.input[0] in found
        if moved or node.op_type == "QuantizeLinear" or node.op_type.startswith("QLinear"):
            found.update(node.output)
    return found


def _judge(op_types: set[str]) -> Verdict:
    if not op_types:
        return "missing"
    if op_types & {*_LOW, _MOVED}:
        return "low"
    return "weight-only" if op_types & BLOCK_PRODUCTS else "float"


def explain_float(promised: ExpectedPrecision, op_types: Collection[str]) -> str:
    """Return what ONNX Runtime lacks to run a promised node in 8 bits, which became nodes of `op_types`.

    It makes a MatMul of matrices, or of fixed shapes, and the sum behind it a Gemm.
    """
    site = promised.site
    if promised.expects == "weight-only":
        return "ONNX Runtime dequantizes the weight before it multiplies; quantize the input too"
    halves = {operand.pair.float_type for operand in promised.operands if operand.pair is not None}
    halves -= {TensorProto.FLOAT, TensorProto.UNDEFINED}
    if halves:
        return (
            f"ONNX Runtime puts Casts between {type_name(min(halves))} pairs and most products, which run in "
            "float then; quantize the float model with recipe onnxruntime-int8, whose pairs are float32"
        )
    if site.op == "Gemm" and not all(pair.site.input(2) for pair in promised.pairs):
        return "ONNX Runtime fuses no Gemm without zero points; give its DequantizeLinear nodes one, also 0"
    if site.op == "MatMul" and _GEMMS & set(op_types):
        return (
            "ONNX Runtime joins it with the sum behind it to a Gemm, and fuses it only with a bias of int32 "
            "or a pair on the sum; quantize one of them"
        )
    with_pair = any(reader.op == "QuantizeLinear" for result in site.outputs for reader in result.outputs)
    lacking = _find_lacking_pair(site) if with_pair or site.op != "MatMul" else ""
    if lacking and not (site.op == "Gemm" and not site.input(2)):
        return f"{lacking}; ONNX Runtime fuses it only if one pair alone reads its result"
    types = sorted({operand.pair.type_name for operand in promised.operands if operand.pair is not None})
    return f"ONNX Runtime fuses no {site.op} of {' and '.join(types)} like this one; leave it in float"


def _find_lacking_pair(site: NodeSite) -> str:
    """Return who else than one pair reads the result of `site`; empty if nobody does."""
    for result in site.outputs:
        clipping = [reader for reader in result.outputs if reader.op in CLIPPING]
        behind = clipping[0].outputs[0] if len(clipping) == len(result.outputs) == 1 else result
        if any(value.name in (result.name, behind.name) for value in site.index.proto.graph.output):
            return f"its result {behind.name!r} is an output in float"
        in_float = [reader for reader in behind.outputs if reader.op != "QuantizeLinear"]
        if in_float:
            return f"{in_float[0].op} {in_float[0].name!r} reads its result {behind.name!r} in float"
        if len(behind.outputs) > 1:
            return f"{len(behind.outputs)} pairs read its result {behind.name!r}"
        pair = quantizer(behind.outputs[0]) if behind is not result and behind.outputs else None
        if behind is not result and (pair is None or not pair.starts_at_zero):
            return f"the pair behind {clipping[0].op} {clipping[0].name!r} has numbers that this one cuts off"
    return ""
