"""Rules about LSTM, GRU and RNN: their weights, and casts in front of their steps."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import TensorProto

from onnxfq.graph.ops import MOVES, RECURRENT_OPS
from onnxfq.targets.findings import Finding
from onnxfq.targets.reading.context import CheckContext, Rule, make_finding
from onnxfq.targets.reading.quantizer_reader import quantizer
from onnxfq.targets.tensorrt.limits import loops_several_steps


def recurrent_weights(reading: CheckContext) -> Iterator[Finding]:
    """Warn of quantized weights of LSTM, GRU and RNN: only the product with the input uses them.

    TensorRT for RTX 1.7.1 builds no GRU of several steps whose weights of the input are int8.
    """
    for site in reading.sites:
        if site.op not in RECURRENT_OPS:
            continue
        makers = [site.index.maker(site.input(slot)) for slot in (1, 2)]
        first = quantizer(makers[0])
        several = loops_several_steps(site.node, site.index.shape(site.input(0)))
        if site.op == "GRU" and several and first is not None and first.qtype == TensorProto.INT8:
            message = (
                "its weights are int8, and TensorRT builds no such GRU of several steps; leave them in float"
            )
            yield make_finding("recurrent", "refused", site, message)
        elif any(maker is not None and maker.op == "DequantizeLinear" for maker in makers):
            message = "its weights are quantized, and TensorRT runs its loop in float; leave them in float"
            yield make_finding("recurrent", "warning", site, message)


def casts_before_loops(reading: CheckContext) -> Iterator[Finding]:
    """Refuse a Cast in front of a recurrent operator of several steps (`rewrites.refused_forms`)."""
    for site in reading.sites:
        if not loops_several_steps(site.node, site.index.shape(site.input(0))):
            continue
        maker = site.index.maker(site.input(0))
        while maker is not None and maker.op in MOVES:
            maker = maker.index.maker(maker.input(0))
        if maker is not None and maker.op == "Cast":
            message = (
                f"Cast {maker.name!r} stands in front of its steps, and TensorRT builds no such loop; "
                "compute its input in its own type, or cast the loop too"
            )
            yield make_finding("recurrent-cast", "refused", site, message, site.input(0))


RULES: tuple[Rule, ...] = (recurrent_weights, casts_before_loops)
