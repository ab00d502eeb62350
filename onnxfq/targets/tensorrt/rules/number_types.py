"""Rules about element types: types that TensorRT lacks, and types that must match."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from onnx import TensorProto

from onnxfq.graph.normalize.node_sites import NodeSite
from onnxfq.graph.ops import CONVOLUTIONS, QDQ_OPS, QUANTIZED_OPS, SIZES, STANDARD_DOMAINS, WEIGHTED_INPUTS
from onnxfq.numerics.float_types import FLOAT_CODES
from onnxfq.numerics.qtypes import QTYPES
from onnxfq.targets.findings import Finding
from onnxfq.targets.reading.context import CheckContext, Rule, make_finding
from onnxfq.targets.reading.limits import check_limits
from onnxfq.targets.reading.quantizer_reader import DEQUANTIZE_OPS, find_source, quantizer, type_name
from onnxfq.targets.tensorrt.limits import MIXED_TYPES, TENSOR_TYPES

_CODES = dict(TensorProto.DataType.items())
# By name: an installed onnx may be older than a type.
_INSTEAD = {
    **dict.fromkeys(("INT16", "UINT16"), "int8"),
    **dict.fromkeys(("INT2", "UINT2"), "int4"),
    "UINT4": "int4 with zero point 0",
    **dict.fromkeys(("FLOAT8E5M2", "FLOAT8E4M3FNUZ", "FLOAT8E5M2FNUZ"), "float8e4m3fn"),
    **dict.fromkeys(("FLOAT6E2M3", "FLOAT6E3M2"), "float8e4m3fn"),
    "FLOAT8E8M0": "uint8 scales with TRT_MXFP8DequantizeLinear",
}
_MISSING = {_CODES[name]: instead for name, instead in _INSTEAD.items() if name in _CODES}
# Operators whose inputs have one type; others, such as Resize, take several float types.
_ONE_FLOAT = frozenset({*WEIGHTED_INPUTS, "Add", "Concat", "Div", "Max", "Min", "Mul", "Sub", "Sum"})
_FIRST_OPSETS = {one.onnx_type: one.min_opset or 0 for one in QTYPES.values() if one.onnx_type}
# Types whose constants are read by a DequantizeLinear only.
_DEQUANTIZED = frozenset(
    _CODES[name] for name in ("INT8", "INT4", "FLOAT8E4M3FN", "FLOAT4E2M1") if name in _CODES
)
# Inputs that TensorRT reads when it parses the model, so that they are no tensors of the engine.
_PARSED: Mapping[str, frozenset[int]] = {
    "Clip": frozenset({1, 2}),
    "CastLike": frozenset({1}),
    **dict.fromkeys(SIZES, frozenset({0})),
}
_NOT_IN_INT8 = frozenset({"Einsum", "GridSample", "Mod"})


def check_tensor_types(reading: CheckContext) -> Iterator[Finding]:
    """Refuse constants and quantized tensors of types that TensorRT lacks.

    Its types are int8, float8e4m3fn, int4 and float4e2m1 (NvInfer.h, DataType); the parser stops at any
    constant of another one ("Failed to import initializer").
    """
    told = set()
    for q in reading.quantizers:
        told |= {q.data, q.site.input(2), str(q.site.node.output[0])}
        if q.qtype in _MISSING and (q.quantizes or q.data in q.site.index.stored):
            yield _make_type_finding(q.site, q.data, q.qtype)
    index = reading.index
    for name in index.stored:
        readers = index.reading(name)
        if readers and name not in told and index.dtype(name) in _MISSING:
            yield _make_type_finding(readers[0], name, index.dtype(name))


def input_types(reading: CheckContext) -> Iterator[Finding]:
    """Refuse inputs of other types than TensorRT's engines have (parser: "Failed to convert ONNX date type").

    It has float8, int4 and float4 for inputs of plugins only.
    """
    for value in reading.proto.graph.input:
        code, readers = value.type.tensor_type.elem_type, reading.index.reading(value.name)
        if value.name not in reading.index.constants and readers and code not in TENSOR_TYPES:
            message = f"input {value.name!r} is {type_name(code)}, which no engine takes; feed int32 or float"
            yield make_finding("tensor-type", "refused", readers[0], message, value.name)


def quantized_constants(reading: CheckContext) -> Iterator[Finding]:
    """Refuse quantized constants that another operator than a DequantizeLinear reads.

    Source: TensorRT for RTX 1.7.1, "Quantized constant is only allowed before DQ". A uint8 constant is int32
    in an operator that also reads a uint8 tensor: "must have same input types".
    """
    index = reading.index
    for site in reading.sites:
        name = str(site.node.output[0]) if site.op == "ConstantOfShape" else ""
        if index.dtype(name) in _DEQUANTIZED:
            yield _make_constant_finding(site, name, index.dtype(name), "gives")
    for name in index.stored:
        code = index.dtype(name)
        for site in index.reading(name) if code in (*_DEQUANTIZED, TensorProto.UINT8) else ():
            if not _is_parsed(site, name) and (code in _DEQUANTIZED or _meets_uint8(site)):
                yield _make_constant_finding(site, name, code, "reads")


def _make_constant_finding(site: NodeSite, name: str, code: int, verb: str) -> Finding:
    """Refuse a quantized constant that anything but a DequantizeLinear reads."""
    message = (
        f"{verb} the {type_name(code)} constant {name!r}, and TensorRT takes quantized constants in front of "
        "a DequantizeLinear only; move the operator behind it, or use `onnxfq convert`"
    )
    return make_finding("quantized-constant", "refused", site, message, name)


def _is_parsed(site: NodeSite, name: str) -> bool:
    """Tell whether `site` quantizes, reads a constant as a parameter or hands it on as a zero point only."""
    if site.op in QUANTIZED_OPS or site.node.domain not in STANDARD_DOMAINS:
        return True
    slots = {slot for slot, one in enumerate(site.node.input) if one == name}
    readers = [(one, output) for output in site.node.output for one in site.index.reading(output)]
    zero_points = name in site.index.stored and all(
        quantizer(one) is not None and one.input(2) == output for one, output in readers
    )
    return slots <= _PARSED.get(site.op, frozenset()) or (bool(readers) and zero_points)


def _meets_uint8(site: NodeSite) -> bool:
    """Tell whether `site` also reads a computed tensor of uint8."""
    return any(
        name and site.index.dtype(name) == TensorProto.UINT8 and not site.index.is_constant(name)
        for name in site.node.input
    )


def int8_operators(reading: CheckContext) -> Iterator[Finding]:
    """Refuse operators that ONNX has for int8 and TensorRT for RTX 1.7.1 does not."""
    for site in reading.sites:
        read = [name for name in site.node.input if name and site.index.dtype(name) == TensorProto.INT8]
        if site.op in _NOT_IN_INT8 and read:
            message = f"computes with the int8 numbers of {read[0]!r}, and TensorRT does not; dequantize them"
            yield make_finding("int8-operator", "refused", site, message, read[0])


def _make_type_finding(site: NodeSite, tensor: str, code: int) -> Finding:
    """Refuse tensors of types that TensorRT lacks."""
    message = f"{tensor!r} is in {type_name(code)}, a type that TensorRT lacks; use {_MISSING[code]}"
    return make_finding("tensor-type", "refused", site, message, tensor)


def check_uint8(reading: CheckContext) -> Iterator[Finding]:
    """Refuse uint8 weights and inputs; report uint8 activations, which the builder computes as int8.

    Source: the parser of TensorRT for RTX 1.7.1 ("UINT8 zero_point only on DLA"). `zero_points` reports
    zero points other than 0.
    """
    for q in reading.quantizers:
        if q.qtype != TensorProto.UINT8 or (q.zero_point is not None and np.any(q.zero_point)):
            continue
        if not q.quantizes and q.data in q.site.index.stored:
            message = f"{q.data!r} is uint8, and TensorRT takes int8 weights only; use int8 with zero point 0"
            yield make_finding("uint8", "refused", q.site, message, q.data)
        elif not q.quantizes and ((source := find_source(q.site, q.data)) is None or source.op == "Cast"):
            message = (
                f"{q.data!r} is uint8 without a QuantizeLinear, and TensorRT takes none; put a Cast and "
                "a Mul there, or feed int8"
            )
            yield make_finding("uint8", "refused", q.site, message, q.data)
        elif q.quantizes and q.declared:
            message = (
                f"{q.data!r} becomes uint8 with zero point 0, which TensorRT computes as int8: all above 127 "
                "steps is lost; use int8"
            )
            yield make_finding("uint8", "wrong", q.site, message, q.data)


def check_undeclared_types(reading: CheckContext) -> Iterator[Finding]:
    """Report a Q without zero point and output_dtype: uint8 by ONNX's definition, int8 for TensorRT.

    Source: ONNX, QuantizeLinear; onnx-tensorrt, QuantDequantLinearHelper, whose default is INT8.
    """
    for q in reading.quantizers:
        if q.quantizes and not q.declared:
            message = (
                f"{q.data!r} has neither zero point nor output_dtype: uint8 for ONNX, int8 for TensorRT; "
                "write output_dtype=INT8 from opset 21 on, an int8 zero point below"
            )
            yield make_finding("undeclared-type", "wrong", q.site, message, q.data)


def wide_integers(reading: CheckContext) -> Iterator[Finding]:
    """Refuse a DQ of int32, which ONNX Runtime's tools write for biases.

    Source: NVIDIA/TensorRT issue 3360; parser: "input has type Int32 but must have type FP8 ...".
    """
    for q in reading.quantizers:
        if not q.quantizes and q.qtype == TensorProto.INT32:
            message = f"{q.data!r} is int32, like a quantized bias, and TensorRT dequantizes 8 bits at most; "
            yield make_finding(
                "int32-dequantize", "refused", q.site, message + "keep biases in float", q.data
            )


def check_opsets(reading: CheckContext) -> Iterator[Finding]:
    """Warn of a quantized type at an opset that has none of it: TensorRT takes it, ONNX and its tools do not.

    Source: ONNX, QuantizeLinear and DequantizeLinear by opset.
    """
    for q in reading.quantizers:
        first = _FIRST_OPSETS.get(q.qtype, 0)
        if q.site.op in QDQ_OPS and q.site.index.opset < first and q.quantizes:
            message = (
                f"{q.data!r} becomes {q.type_name}, which ONNX has from opset {first} on, not at "
                f"{q.site.index.opset}; convert the model to opset {first}, or no other tool reads it"
            )
            yield make_finding("opset", "warning", q.site, message, q.data)


def float_types(reading: CheckContext) -> Iterator[Finding]:
    """Refuse a node whose dequantized input and other inputs have different float types.

    The result of a DQ has the type of its scale, or its output_dtype from opset 23 on, and TensorRT is
    strongly typed: "must be of same type".
    """
    for site in reading.sites:
        if site.op not in _ONE_FLOAT:
            continue
        floats = {name: _float_type(site, name) for name in site.node.input if name}
        found = {code: name for name, code in floats.items() if code in FLOAT_CODES}
        dequantized = [name for name in floats if getattr(site.index.maker(name), "op", "") in DEQUANTIZE_OPS]
        if len(found) > 1 and dequantized:
            all_types = ", ".join(f"{name!r} is {type_name(code)}" for code, name in found.items())
            message = f"reads different floats: {all_types}; write the scale in the type of the other inputs"
            yield make_finding("float-types", "refused", site, message, dequantized[0])
    for promised in reading.promises:  # behind a Cast, or an output_dtype
        scales = [(q.site.index.dtype(q.site.input(1)), q) for q in promised.pairs]
        kinds = {code if code in FLOAT_CODES else q.float_type: q.data for code, q in scales}
        if len(kinds) > 1 and promised.site.op not in CONVOLUTIONS:
            names = " and ".join(f"{name!r} in {type_name(code)}" for code, name in kinds.items())
            message = (
                f"its scales have two types, of {names}; TensorRT multiplies scales of one type; use one"
            )
            yield make_finding("float-types", "refused", promised.site, message)


def _float_type(site: NodeSite, tensor: str) -> int:
    made_by = quantizer(site.index.maker(tensor))
    return site.index.dtype(tensor) if made_by is None or made_by.quantizes else made_by.float_type


RULES: tuple[Rule, ...] = (
    check_tensor_types,
    input_types,
    quantized_constants,
    int8_operators,
    check_uint8,
    check_undeclared_types,
    wide_integers,
    check_limits(MIXED_TYPES),
    check_opsets,
    float_types,
)
