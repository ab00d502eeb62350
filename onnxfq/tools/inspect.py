"""`inspect_model`: summary of a model file."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from onnxfq.data.inputs import Inputs
from onnxfq.data.model_inputs import input_specs
from onnxfq.data.options import DataOptions, image_layout
from onnxfq.documents.scores import FORMAT_KEY
from onnxfq.graph.external.sizes import tensor_bytes
from onnxfq.graph.external.tensor import tensor_array
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.io.load import read_model
from onnxfq.graph.model import default_opset, list_graphs, list_nodes
from onnxfq.graph.node_fields import attributes_of, input_name, numbers_type
from onnxfq.graph.normalize.inline_functions import inline_model
from onnxfq.graph.normalize.stored_scales import granularity_of
from onnxfq.graph.ops import BLOCK_BITS, BLOCK_PRODUCTS, INTEGER_PRODUCTS, QUANTIZED_OPS, WEIGHTED_INPUTS
from onnxfq.graph.signature import output_names
from onnxfq.interchange.genai_folder import find_decoder, is_folder
from onnxfq.numerics.granularity import PER_TENSOR, Granularity
from onnxfq.quantized.forms import as_pairs
from onnxfq.quantized.nbits import unpack_bits
from onnxfq.quantized.number_grids import quantized_slots
from onnxfq.support.records import PrintedRecord, Record
from onnxfq.support.tables import table_lines

_PRODUCTS = (*WEIGHTED_INPUTS, *sorted(INTEGER_PRODUCTS | BLOCK_PRODUCTS))


class QuantizedTensor(Record):
    """One quantizer: tensor, format and scales; None for scales that the model computes."""

    tensor: str
    op_type: str
    qtype: str
    granularity: str
    scale_min: float | None
    scale_max: float | None
    zero_points: str


class Inspection(PrintedRecord):
    """Summary of a model file.

    Attributes:
        data: what data of the inputs is, as commands take it.
        next: the command to go on with.
    """

    source: str
    opset: int
    ir_version: int
    producer: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    operators: dict[str, int]
    weighted: dict[str, int]
    weight_bytes: int
    quantized: tuple[QuantizedTensor, ...]
    metadata: dict[str, str]
    data: str
    next: str

    def table(self) -> str:
        """Return the summary as plain text."""
        operators = ", ".join(f"{op} {count}" for op, count in self.operators.items())
        weighted = ", ".join(f"{op} {count}" for op, count in self.weighted.items()) or "none"
        metadata = (pair for pair in self.metadata.items() if not pair[0].startswith(FORMAT_KEY))
        lines = [
            f"model      {self.source}",
            f"opset      {self.opset} (IR {self.ir_version}), producer {self.producer or 'unknown'}",
            *(f"input      {line}" for line in self.inputs),
            f"data       {self.data}",
            f"next       {self.next}",
            f"outputs    {', '.join(self.outputs)}",
            f"operators  {operators}",
            f"weighted   {weighted}",
            f"constants  {self.weight_bytes / 1e6:.2f} MB",
            *(f"metadata   {key} = {value}" for key, value in metadata),
        ]
        if not self.quantized:
            found = sorted(set(self.operators) & QUANTIZED_OPS)
            lines.append(f"quantized  by {', '.join(found)}" if found else "quantized  no")
            return "\n".join(lines)
        rows = [("tensor", "operator", "type", "per", "scale", "to", "zero point")]
        for q in self.quantized:
            rows.append(
                (q.tensor, q.op_type, q.qtype, q.granularity.removeprefix("per-"), *_scales(q), q.zero_points)
            )
        return "\n".join([*lines, "", *table_lines(rows, names=(0,))])


def inspect_model(model: str | Path | onnx.ModelProto) -> Inspection:
    """Return a summary of a model. Raises ModelError in one line."""
    proto, _, source = read_model(find_decoder(model))
    counts = Counter(node.op_type for node in list_nodes(proto.graph))
    weight_bytes = sum(tensor_bytes(t) for graph in list_graphs(proto.graph) for t in graph.initializer)
    # Quantizers of other tools keep the names of their nodes as pairs.
    given = {node.name: node.op_type for node in list_nodes(proto.graph) if node.name}
    known = QUANTIZED_OPS & {function.name for function in proto.functions}
    pairs = as_pairs(inline_model(deepcopy(proto), known) if proto.functions else proto, source)
    nodes, index = list_nodes(pairs.graph), GraphIndex.of_model(pairs)
    dtypes = {tensor.name: tensor.data_type for tensor in index.constants.values()}
    for node in nodes:
        if node.op_type == "QuantizeLinear":
            dtypes[node.output[0]] = numbers_type(node, dtypes.get(input_name(node, 2)))
    metadata = {entry.key: entry.value for entry in proto.metadata_props}
    rows = [(given.get(node.name), _quantizer(node, index, dtypes)) for node in nodes]
    found = [row.model_copy(update={"op_type": op or row.op_type}) for op, row in rows if row is not None]
    found += [row for node in nodes for row in _blocked_weights(node, index)]
    return Inspection(
        source=source,
        opset=default_opset(proto),
        ir_version=proto.ir_version,
        producer=f"{proto.producer_name} {proto.producer_version}".strip(),
        inputs=tuple(str(spec) for spec in input_specs(proto)),
        outputs=output_names(proto),
        operators=dict(counts.most_common()),
        weighted={op: counts[op] for op in _PRODUCTS if counts[op]},
        weight_bytes=weight_bytes,
        quantized=tuple(_as_asked(q, metadata) for q in found),
        metadata=metadata,
        data=TEXTS if is_folder(model) else _describe_data(input_specs(proto)),
        next=_next_command(model, bool(found or counts.keys() & QUANTIZED_OPS)),
    )


TEXTS = "a .txt or .jsonl file of texts"
"""Data of a folder of GenAI."""


def _describe_data(inputs: Inputs) -> str:
    """Return what --data of a model is: the arrays of a file and their shapes."""
    shapes = [["unknown shape"] if spec.shape is None else list(spec.shape) for spec in inputs]
    texts = [
        f"{spec.name} {spec.type_name} [{', '.join('any' if size is None else str(size) for size in shape)}]"
        for spec, shape in zip(inputs, shapes, strict=True)
    ]
    first = {shape[0] if shape else None for shape in shapes}
    samples = ", axis 0 for samples" if first == {None} else ", one sample a file or list element"
    images = ""
    if len(inputs) == 1 and image_layout(inputs[0], DataOptions()):
        images = "; or a folder of images" + (" with --scale" if inputs[0].dtype.kind == "f" else "")
    return f"an .npz with {', '.join(texts)}{samples}{images}" if inputs else "none: the model has no inputs"


def _next_command(model: str | Path | onnx.ModelProto, is_quantized: bool) -> str:
    """Return the command that quantizes a float model, or the one that judges a quantized one."""
    path = Path("MODEL.onnx" if isinstance(model, onnx.ModelProto) else model)
    name = shlex.quote(str(path))
    if is_folder(model):
        made = shlex.quote(str(path.with_name(f"{path.name}.int4")))
        done = f"onnxfq evaluate FLOAT {name} --data TEXTS --metric perplexity"
        return done if is_quantized else f"onnxfq quantize {name} --data TEXTS -o {made} --recipe genai-int4"
    if is_quantized:
        return f"onnxfq diagnose {name} --data DATA"
    return f"onnxfq quantize {name} --data DATA -o {shlex.quote(str(path.with_suffix('.int8.onnx')))}"


def _scales(quantized: QuantizedTensor) -> tuple[str, str]:
    """Return the only scale, or the smallest and the largest."""
    low, high = quantized.scale_min, quantized.scale_max
    if low is None or high is None:
        return "dynamic", ""
    return (f"{low:.6g}", "") if low == high else (f"{low:.4g}", f"{high:.4g}")


def _as_asked(quantized: QuantizedTensor, metadata: dict[str, str]) -> QuantizedTensor:
    """Return `quantized` with the number format that the metadata name for its storage type, if any."""
    name = quantized.tensor.removesuffix("/clip").removesuffix("/q")
    return quantized.model_copy(update={"qtype": metadata.get(FORMAT_KEY + name, quantized.qtype)})


def _blocked_weights(node: onnx.NodeProto, index: GraphIndex) -> Iterator[QuantizedTensor]:
    """Yield the summaries of the weights that a product stores in blocks."""
    given = attributes_of(node)
    bits, block = given.get("expert_weight_bits", given.get("bits", 4)), given.get("block_size", 0)
    axis = (2 if node.op_type == "QMoE" else 1) - (not block)
    for operand in quantized_slots(node).operands if node.op_type in _BLOCKED else ():
        scale, zeros = (index.array(input_name(node, slot)) for slot in operand[1:])
        numbers = np.array([(1 << max(bits, 1)) >> 1])
        if zeros is not None and zeros.size and zeros.dtype == np.uint8 and bits in BLOCK_BITS:
            numbers = unpack_bits(zeros, bits)
        if scale is not None and scale.size:
            yield QuantizedTensor(
                tensor=node.input[operand.data],
                op_type=node.op_type,
                qtype=f"uint{bits}",
                granularity=str(Granularity.of(axis, block or None)),
                scale_min=float(scale.min()),
                scale_max=float(scale.max()),
                zero_points=_ends(numbers),
            )


def _quantizer(node: onnx.NodeProto, index: GraphIndex, dtypes: dict[str, int]) -> QuantizedTensor | None:
    """Return the summary of a quantizing node; DequantizeLinear counts if it reads a stored constant."""
    attributes = attributes_of(node)
    reads_constant = node.op_type in _DEQUANTIZES and node.input[0] in index.constants
    has_axis = bool(attributes.get("block_shape"))
    if node.op_type in _DYNAMIC:
        scale, has_axis = None, has_axis or "axis" in attributes
    elif node.op_type in ("QuantizeLinear", "FakeQuantize") or reads_constant:
        scale = _constant_scale(node.input[1], index)
        if scale is None or not scale.size:
            return None
        has_axis |= scale.ndim > 0
    else:
        return None
    if "qtype" in attributes:
        qtype = attributes["qtype"].decode()
    elif node.op_type in _DYNAMIC:
        qtype = _DYNAMIC[node.op_type]
    else:
        code = dtypes.get(node.input[0] if reads_constant else node.output[0], 0)
        qtype = onnx.TensorProto.DataType.Name(code).lower()
    return QuantizedTensor(
        tensor=node.input[0],
        op_type=node.op_type,
        qtype=qtype,
        granularity=str(granularity_of(node) if has_axis else PER_TENSOR),
        scale_min=None if scale is None else float(scale.min()),
        scale_max=None if scale is None else float(scale.max()),
        zero_points="dynamic" if _asymmetric(node, attributes) else _zero_points(node, index.constants),
    )


# Quantizers with dynamic scales, and their number format.
_DYNAMIC = {
    "DynamicQuantizeLinear": "uint8",
    "DynamicFakeQuantize": "",
    "TRT_FP4DynamicQuantize": "float4e2m1",
    "TRT_MXFP8DynamicQuantize": "float8e4m3fn",
}
_BLOCKED = BLOCK_PRODUCTS | {"GatherBlockQuantized"}
_DEQUANTIZES = ("DequantizeLinear", "TRT_MXFP8DequantizeLinear")


def _asymmetric(node: onnx.NodeProto, attributes: dict[str, Any]) -> bool:
    return node.op_type == "DynamicQuantizeLinear" or attributes.get("symmetric") == 0


def _constant_scale(name: str, index: GraphIndex) -> NDArray[np.float64] | None:
    """Return a scale that is a constant, or a product of two constants as for NVFP4; otherwise None."""
    constants = index.constants
    if name in constants:
        values = tensor_array(constants[name])
        # MXFP8 in uint8 holds exponents, biased by 127.
        exponents = values.dtype == np.uint8
        return np.asarray(np.exp2(values.astype(np.float64) - 127) if exponents else values, np.float64)
    node = index.makers.get(name)
    if node is None or node.op_type != "DequantizeLinear":
        return None
    factors = [constants[part] for part in node.input[:2] if part in constants]
    if len(factors) != 2:
        return None
    first, second = (tensor_array(factor).astype(np.float64) for factor in factors)
    return np.asarray(first * second)


def _zero_points(node: onnx.NodeProto, constants: dict[str, onnx.TensorProto]) -> str:
    if len(node.input) < 3 or node.input[2] not in constants:
        return "0"
    values = tensor_array(constants[node.input[2]]).astype(np.float64)
    if not values.size:
        return "none"
    return _ends(values)


def _ends(values: NDArray[np.generic]) -> str:
    """Return the only value, or the smallest and the largest."""
    low, high = np.min(values), np.max(values)
    return f"{low:g}" if low == high else f"{low:g} … {high:g}"
