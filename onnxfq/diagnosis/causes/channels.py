"""Channels of an activation of very different size under one scale."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfq.diagnosis.reading.board import Change
from onnxfq.diagnosis.reading.cause import Suspicion
from onnxfq.diagnosis.reading.patient import Patient
from onnxfq.documents.layers import WIDE, ChannelSizes

HALF = 0.5
"""Share of the noise of the file from which such a tensor is a cause: many sound networks have one."""


def find_activation_channels(patient: Patient) -> Iterator[Suspicion]:
    """Yield tensors whose largest channel is far larger than the typical one, at most of the noise."""
    if patient.board is None:
        return
    for quantizer in patient.form.activations:
        values = patient.values[quantizer.number]
        sizes = ChannelSizes.of(values.channels, len(values.lows))
        if sizes is None or not sizes.median or sizes.ratio < WIDE:
            continue
        if patient.share((quantizer.number,)) < HALF:
            continue
        repair = Change(off=frozenset({quantizer.number}))
        harm = patient.harm((quantizer.number,), repair)
        if harm < HALF:
            continue
        yield Suspicion(
            kind="channel_spread",
            evidence=f"{sizes}: that one has {100 / sizes.ratio:.2g} % of the grid",
            tensor=quantizer.tensor,
            node=quantizer.node,
            repair="quantize the float model again: `onnxfq quantize` evens out channels with --repair auto",
            harm=harm,
            numbers=(quantizer.number,),
            change=repair,
        )
