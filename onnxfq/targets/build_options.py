"""`BuildOptions`: shapes and time limit of a build."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class BuildOptions:
    """Options for the builder of a target.

    Attributes:
        shapes: shapes of inputs with open dimensions by name, see `profiles`.
        seconds: time limit for one engine.
    """

    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    seconds: float = 600.0
