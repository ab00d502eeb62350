"""`inspect_model`: what stands in a model file, quantized or not."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from onnxfq.documents import Record
from onnxfq.graph.load import read_model
from onnxfq.graph.model import default_opset
from onnxfq.graph.ops import QUANTIZED_OPS, WEIGHTED_INPUTS
from onnxfq.graph.signature import input_specs, output_names
from onnxfq.text_table import table_lines


class QuantizedTensor(Record):
    """One quantizer found: where, in which format, with which scales."""

    tensor: str
    op_type: str
    qtype: str
    granularity: str
    scale_min: float
    scale_max: float
    zero_points: str


class Inspection(Record):
    """Summary of a model file."""

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

    def table(self) -> str:
        """Return the summary as plain text."""
        operators = ", ".join(f"{op} {count}" for op, count in self.operators.items())
        weighted = ", ".join(f"{op} {count}" for op, count in self.weighted.items()) or "none"
        lines = [
            f"model      {self.source}",
            f"opset      {self.opset} (IR {self.ir_version}), producer {self.producer or 'unknown'}",
            *(f"input      {line}" for line in self.inputs),
            f"outputs    {', '.join(self.outputs)}",
            f"operators  {operators}",
            f"weighted   {weighted}",
            f"constants  {self.weight_bytes / 1e6:.2f} MB",
            *(f"metadata   {key} = {value}" for key, value in self.metadata.items()),
        ]
        if not self.quantized:
            found = sorted(set(self.operators) & QUANTIZED_OPS)
            lines.append(f"quantized  by {', '.join(found)}" if found else "quantized  no")
            return "\n".join(lines)
        rows = [("tensor", "operator", "type", "granularity", "scale", "zero point")]
        for q in self.quantized:
            same = q.scale_min == q.scale_max
            scale = f"{q.scale_min:.6g}" if same else f"{q.scale_min:.4g} … {q.scale_max:.4g}"
            rows.append((q.tensor, q.op_type, q.qtype, q.granularity, scale, q.zero_points))
        return "\n".join([*lines, "", *table_lines(rows)])


def inspect_model(model: str | Path | onnx.ModelProto) -> Inspection:
    """Read a model and list what is in it. Raises ModelError in one line."""
    proto, _, source = read_model(model)
    counts = Counter(node.op_type for node in proto.graph.node)
    constants = {tensor.name: tensor for tensor in proto.graph.initializer}
    dtypes = {tensor.name: tensor.data_type for tensor in proto.graph.initializer}
    for node in proto.graph.node:
        if node.op_type == "QuantizeLinear":
            dtypes[node.output[0]] = _output_type(node, dtypes)
    found = [_quantizer(node, constants, dtypes) for node in proto.graph.node]
    return Inspection(
        source=source,
        opset=default_opset(proto),
        ir_version=proto.ir_version,
        producer=f"{proto.producer_name} {proto.producer_version}".strip(),
        inputs=tuple(str(spec) for spec in input_specs(proto)),
        outputs=output_names(proto),
        operators=dict(counts.most_common()),
        weighted={op: counts[op] for op in WEIGHTED_INPUTS if counts[op]},
        weight_bytes=sum(len(t.raw_data) or t.ByteSize() for t in constants.values()),
        quantized=tuple(q for q in found if q is not None),
        metadata={entry.key: entry.value for entry in proto.metadata_props},
    )


def _quantizer(
    node: onnx.NodeProto, constants: dict[str, onnx.TensorProto], dtypes: dict[str, int]
) -> QuantizedTensor | None:
    """Return what a quantizing node says; DequantizeLinear counts where it reads a stored constant."""
    reads_constant = node.op_type == "DequantizeLinear" and node.input[0] in constants
    if node.op_type not in ("QuantizeLinear", "FakeQuantize") and not reads_constant:
        return None
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    scale = constants.get(node.input[1])
    if scale is None:
        return None
    values = numpy_helper.to_array(scale).astype(np.float64)
    if node.op_type == "FakeQuantize":
        qtype = attributes["qtype"].decode()
    else:
        code = dtypes[node.input[0]] if reads_constant else dtypes[node.output[0]]
        qtype = onnx.TensorProto.DataType.Name(code).lower()
    return QuantizedTensor(
        tensor=node.input[0],
        op_type=node.op_type,
        qtype=qtype,
        granularity=_granularity(values.ndim, attributes),
        scale_min=float(values.min()),
        scale_max=float(values.max()),
        zero_points=_zero_points(node, constants),
    )


def _output_type(node: onnx.NodeProto, dtypes: dict[str, int]) -> int:
    if len(node.input) > 2 and node.input[2] in dtypes:
        return dtypes[node.input[2]]
    given = next((a.i for a in node.attribute if a.name == "output_dtype"), 0)
    return int(given or onnx.TensorProto.UINT8)  # ONNX's default


def _granularity(rank: int, attributes: dict[str, object]) -> str:
    if attributes.get("block_shape"):
        return f"blocks of {attributes['block_shape']}"
    if rank == 0:
        return "per-tensor"
    axis, block = attributes.get("axis", 1), attributes.get("block_size", 0)
    return f"blocks of {block} on axis {axis}" if block else f"per-axis {axis}"


def _zero_points(node: onnx.NodeProto, constants: dict[str, onnx.TensorProto]) -> str:
    if len(node.input) < 3 or node.input[2] not in constants:
        return "0"
    values = numpy_helper.to_array(constants[node.input[2]]).astype(np.int64)
    low, high = int(values.min()), int(values.max())
    return str(low) if low == high else f"{low} … {high}"
