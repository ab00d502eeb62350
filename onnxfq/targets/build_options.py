"""`BuildOptions`: how the builder of a target is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class BuildOptions:
    """How a model is built.

    shapes: of inputs with open dimensions by name, see `profiles`. seconds: for one engine at most.
    """

    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    seconds: float = 600.0
