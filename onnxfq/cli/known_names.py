"""Names in help that only the libraries know: `{calibrators}` stands for them until help is shown.

Wrong usage is so refused without the imports of the stages.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def fill_names(command: Any) -> None:
    """Put the names of calibrators, targets and others into the help of the parameters of `command`.

    Raises KeyError for an unknown kind.
    """
    texts = {parameter: getattr(parameter, "help", None) or "" for parameter in command.params}
    if not any("{" in text for text in texts.values()):
        return
    from onnxfq.calibration.calibrators import spellings
    from onnxfq.documents.rounding import RECIPE_ROUNDINGS
    from onnxfq.interchange import WRITERS
    from onnxfq.metrics import METRICS, RATES
    from onnxfq.targets.target import collect_parts
    from onnxfq.tools.runtimes import runners

    names: dict[str, Iterable[str]] = {
        "calibrators": spellings(),
        "roundings": RECIPE_ROUNDINGS,
        "formats": WRITERS,
        "metrics": [*METRICS, *(f"{name}:ALPHABET" for name in RATES)],
        "runtimes": runners(),
        "value_runtimes": ["onnxruntime", *collect_parts(lambda target: target.values)],
        "checked_targets": collect_parts(lambda target: target.check),
        "conversion_targets": collect_parts(lambda target: target.conversion),
    }
    for parameter, text in texts.items():
        if "{" in text:
            parameter.help = text.format_map({kind: ", ".join(known) for kind, known in names.items()})
