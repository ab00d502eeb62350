"""Writer of AIMET's encodings files, versions 0.6.1, 1.0.0 and 2.0.0."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxfq.documents.encodings import Encoding, Encodings
from onnxfq.documents.plan import Placement, Plan
from onnxfq.interchange.external import WrittenEncodings, select_held
from onnxfq.version import VERSION

_PRODUCER = {"package": "onnxfq", "version": VERSION}


def write_0_6_1(encodings: Encodings, plan: Plan) -> WrittenEncodings:
    """Return the file of version 0.6.1: integers per tensor or per output channel."""
    return _write_sections("0.6.1", encodings, plan, _entry_0_6_1)


def write_1_0_0(encodings: Encodings, plan: Plan) -> WrittenEncodings:
    """Return the file of version 1.0.0: integers, per tensor, output channel or block."""
    return _write_sections("1.0.0", encodings, plan, _entry_1_0_0)


def write_2_0_0(encodings: Encodings, plan: Plan) -> WrittenEncodings:
    """Return the file of version 2.0.0: every format of ONNX's QuantizeLinear."""
    held, lost = select_held(encodings, plan, lambda _, encoding: _explain_lost(encoding))
    entries = [{"name": encoding.tensor, **_entry_2_0_0(encoding)} for _, encoding in held]
    content = {"version": "2.0.0", "producer": _PRODUCER, "encodings": entries}
    return WrittenEncodings(json.dumps(content, indent=4) + "\n", len(entries), lost)


_Entry = Callable[[Encoding], Any]


def _write_sections(version: str, encodings: Encodings, plan: Plan, entry: _Entry) -> WrittenEncodings:
    """Return a file with separate activations and parameters: lists of entries or, in 0.6.1, by name."""
    turned = {node.node for node in plan.nodes if node.op_type == "ConvTranspose"}
    sections: dict[str, dict[str, Any]] = {"activation_encodings": {}, "param_encodings": {}}

    def explain_lost(placement: Placement, encoding: Encoding) -> str:
        why = _explain_lost(encoding) or _explain_lost_unsigned(encoding, version)
        if not why and encoding.param_shape and placement.role == "activation":
            return f"{version} tells no axis of an activation; use 2.0.0"
        blocked = encoding.spec.granularity.is_blocked
        if not why and blocked and any(use.node in turned for use in placement.uses):
            return f"{version} tells no axis of blocks of a ConvTranspose; use 2.0.0"
        return why

    held, lost = select_held(encodings, plan, explain_lost)
    for placement, encoding in held:
        section = "activation_encodings" if placement.role == "activation" else "param_encodings"
        sections[section][encoding.tensor] = entry(encoding)
    content: dict[str, Any] = {"version": version, "producer": _PRODUCER}
    for name, entries in sections.items():
        content[name] = entries
        if version == "1.0.0":
            content[name] = [{"name": tensor, **fields} for tensor, fields in entries.items()]
    count = sum(map(len, sections.values()))
    return WrittenEncodings(json.dumps(content, indent=4) + "\n", count, lost)


def _explain_lost(encoding: Encoding) -> str:
    """Return why no version can hold `encoding`; empty when 2.0.0 can."""
    spec = encoding.spec
    if spec.dynamic:
        return "its scales are dynamic"
    if spec.equalized:
        return "its channels are equalized, and AIMET has no factors for that; plan with equalize: none"
    if spec.qtype.bits not in (2, 4, 8, 16) or spec.qtype.name.startswith("float6"):
        return f"AIMET has no {spec.qtype}"
    if not spec.qtype.full_range and not _strict(encoding):
        return f"AIMET has no {spec.qtype}; of integers with limits it has int8[-127,127] and its like"
    if encoding.global_scale is not None:
        return "its scales are float8 times one of all, and 2.0.0 has float scales"
    if len([size for size in spec.granularity.block_shape or () if size not in (1, -1)]) > 1:
        return f"AIMET has blocks along one axis, not {spec.granularity}"
    return ""


def _explain_lost_unsigned(encoding: Encoding, version: str) -> str:
    """Return why 0.6.1 or 1.0.0 cannot hold an encoding that 2.0.0 can; empty when it can."""
    spec = encoding.spec
    if spec.qtype.is_float:
        return f"{version} has integers only, not {spec.qtype}; use 2.0.0"
    if spec.zero_point == "fractional":
        return f"{version} has whole offsets; use 2.0.0"
    blocks = spec.granularity
    held = _is_kernel_block(blocks.block_shape) or (blocks.block_size and len(encoding.param_shape) == 2)
    if blocks.is_blocked and (version == "0.6.1" or not held):
        return f"{version} has no {spec.granularity}; use 2.0.0"
    return ""


def _is_kernel_block(block_shape: tuple[int, ...] | None) -> bool:
    """Tell whether blocks run along the input channels of a convolution's kernel, over its whole window."""
    return (
        block_shape is not None
        and len(block_shape) > 2
        and block_shape[0] == 1
        and block_shape[1] > 0
        and set(block_shape[2:]) == {-1}
    )


def _strict(encoding: Encoding) -> bool:
    """Tell whether the grid is AIMET's strict symmetric: signed, without the lowest number."""
    qtype = encoding.spec.qtype
    most = (1 << (qtype.bits - 1)) - 1
    return bool(qtype.signed and (qtype.qmin, qtype.qmax) == (-most, most) and not encoding.zero_point.any())


def _convert_to_unsigned(encoding: Encoding) -> tuple[bool, NDArray[np.int64]]:
    """Return (whether it is symmetric, its offsets on the unsigned integers)."""
    half = 1 << (encoding.spec.qtype.bits - 1)
    zero = encoding.zero_point.astype(np.int64)
    if _strict(encoding):
        return True, np.full(zero.shape, 1 - half)
    signed = encoding.spec.qtype.signed
    return signed and not zero.any(), -(zero + half) if signed else -zero


def _entry_0_6_1(encoding: Encoding) -> list[dict[str, Any]]:
    bits = encoding.spec.qtype.bits
    symmetric, offsets = _convert_to_unsigned(encoding)
    steps = (1 << bits) - 1
    return [
        {
            "bitwidth": bits,
            "dtype": "int",
            "is_symmetric": str(symmetric),
            "max": (offset + steps) * scale,
            "min": offset * scale,
            "offset": offset,
            "scale": scale,
        }
        for scale, offset in zip(encoding.scale.ravel().tolist(), offsets.ravel().tolist(), strict=True)
    ]


def _entry_1_0_0(encoding: Encoding) -> dict[str, Any]:
    symmetric, offsets = _convert_to_unsigned(encoding)
    scale, granularity = encoding.scale, encoding.spec.granularity
    fields: dict[str, Any] = {"enc_type": "PER_CHANNEL" if scale.ndim else "PER_TENSOR"}
    if granularity.block_size is not None:
        fields = {"enc_type": "PER_BLOCK", "block_size": granularity.block_size}
        if granularity.axis == 0 and scale.ndim == 2:  # the output channels come first
            scale, offsets = scale.T, offsets.T
    if granularity.block_shape is not None:
        fields = {"enc_type": "PER_BLOCK", "block_size": granularity.block_shape[1]}
    return {
        "bw": encoding.spec.qtype.bits,
        "dtype": "INT",
        **fields,
        "is_sym": symmetric,
        "offset": offsets.ravel().tolist(),
        "scale": scale.ravel().tolist(),
    }


def _entry_2_0_0(encoding: Encoding) -> dict[str, Any]:
    spec = encoding.spec
    zero = encoding.zero_point
    if _strict(encoding):
        zero = np.full(zero.shape, -1)
    fields: dict[str, Any] = {"output_dtype": spec.qtype.base, "y_scale": encoding.scale.tolist()}
    if zero.any():
        fields["y_zero_point"] = zero.tolist()
    blocks = spec.granularity.block_shape
    if blocks is None:
        fields |= spec.granularity.attributes
    else:
        sized = [axis for axis, size in enumerate(blocks) if size not in (1, -1)]
        # Any axis is valid when no block is longer than one element.
        axis = sized[0] if sized else 0
        fields |= {"axis": axis, "block_size": max(blocks[axis], 1)}
    return fields
