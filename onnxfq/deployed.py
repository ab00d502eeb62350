"""The ONNX type that carries a number format in a written model: `deployed_qtype`."""

from __future__ import annotations

from onnxfq.qtypes import QTYPES, QType


def deployed_qtype(qtype: QType) -> QType | None:
    """Return the type of ONNX's QuantizeLinear that holds all numbers of `qtype`; None for none.

    int8[-127,127] is carried by int8, an odd width by the next wider integer: int3 by int4, int5 by int8,
    int12 by int16. Weights are stored inside their limits; activations are clipped to them.
    There is none where the installed onnx is older than the float type.
    """
    if qtype.min_opset is not None:
        return QTYPES[qtype.base]
    if qtype.is_float:
        return None
    width = next(bits for bits in (4, 8, 16) if bits >= qtype.bits)
    return QTYPES[f"{'' if qtype.signed else 'u'}int{width}"]
