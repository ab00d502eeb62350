"""Channels of an activation of very different size under one scale."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from onnxfq.diagnosis.reading.board import Change
from onnxfq.diagnosis.reading.cause import Suspicion
from onnxfq.diagnosis.reading.patient import Patient

SPREAD = 16.0
"""Size of the largest channel over the typical one's, from which the typical one loses half of its 8 bits."""

HALF = 0.5
"""Share of the noise of the file from which such a tensor is a cause: many sound networks have one."""


def find_activation_channels(patient: Patient) -> Iterator[Suspicion]:
    """Yield tensors whose largest channel is far larger than the typical one, at most of the noise."""
    if patient.board is None:
        return
    for quantizer in patient.form.activations:
        channels = patient.values[quantizer.number].channels
        typical = float(np.median(channels)) if channels.size > 2 else 0.0
        is_spread = typical and channels.max() >= SPREAD * typical
        if not is_spread or patient.share((quantizer.number,)) < HALF:
            continue
        repair = Change(off=frozenset({quantizer.number}))
        harm = patient.harm((quantizer.number,), repair)
        if harm < HALF:
            continue
        worst = int(channels.argmax())
        yield Suspicion(
            kind="channel_spread",
            evidence=(
                f"channel {worst} of {channels.size} reaches {channels.max():.4g}, the typical one "
                f"{typical:.4g}: it has {100 * typical / channels.max():.2g} % of the grid"
            ),
            tensor=quantizer.tensor,
            node=quantizer.node,
            repair="quantize the float model with `--recipe` and equalization of channels",
            harm=harm,
            numbers=(quantizer.number,),
            change=repair,
        )
