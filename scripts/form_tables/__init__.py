"""Tables of forms of operators: each module lists forms, and asks a runtime about each."""

from __future__ import annotations

from typing import NamedTuple

from onnxfq.targets.reading.runtime_forms import LAST, RuntimeForm


class Tried(NamedTuple):
    """A form that was tried.

    Attributes:
        form: its `says` is what the runtime says if it is wrong, else empty.
        opset: of the network; LAST if the form is of no opset.
        cures: what in float cures it; the first one is nothing, for a form that has no cure.
        signed: whether it is right behind a Relu.
    """

    form: RuntimeForm
    opset: int = LAST
    cures: frozenset[tuple[str, ...]] = frozenset({()})
    signed: bool = False
