"""Names in help that only the libraries know: `{calibrators}` stands for them until help is shown.

Wrong usage is so refused without the imports of the stages.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def fill_names(command: Any) -> None:
    """Put the names of calibrators, targets and others into the help of the parameters of `command`."""
    for parameter in command.params:
        text = getattr(parameter, "help", None)
        if text and "{" in text:
            parameter.help = fill_text(text)


def fill_text(text: str) -> str:
    """Return `text` with the names that its `{kind}` stands for. Raises KeyError for an unknown kind."""
    from onnxfq.calibration.calibrators import spellings
    from onnxfq.documents.rounding import RECIPE_ROUNDINGS
    from onnxfq.interchange import WRITERS
    from onnxfq.targets.target import collect_parts
    from onnxfq.tools.runtimes import runners

    names: dict[str, Iterable[str]] = {
        "calibrators": spellings(),
        "roundings": RECIPE_ROUNDINGS,
        "formats": WRITERS,
        "runtimes": runners(),
        "value_runtimes": ["onnxruntime", *collect_parts(lambda one: one.values)],
        "checked_targets": collect_parts(lambda one: one.check),
        "conversion_targets": collect_parts(lambda one: one.conversion),
    }
    return text.format_map({kind: ", ".join(known) for kind, known in names.items()})
