"""Names that only the libraries know, for help and completion; `{calibrators}` stands for them in texts.

Wrong usage is so refused without the imports of the stages.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any


def _list_calibrators() -> Iterable[str]:
    from onnxfq.calibration.calibrators import spellings

    return spellings()


def _list_roundings() -> Iterable[str]:
    from onnxfq.documents.rounding import RECIPE_ROUNDINGS

    return RECIPE_ROUNDINGS


def _list_formats() -> Iterable[str]:
    from onnxfq.interchange import WRITERS

    return WRITERS


def _list_metrics() -> Iterable[str]:
    from onnxfq.metrics import SPELLINGS

    return SPELLINGS


def _list_runtimes() -> Iterable[str]:
    from onnxfq.tools.runtimes import runners

    return runners()


def _list_recipes() -> Iterable[str]:
    from onnxfq.targets.recipes import RECIPES

    return RECIPES


def _list_gpus() -> Iterable[str]:
    from onnxfq.targets.tensorrt.gpus import CAPABILITIES

    return CAPABILITIES


def _list_rules() -> Iterable[str]:
    from onnxfq.tools.explain_rules import list_rules

    return list_rules()


def _list_targets(part: str) -> Callable[[], Iterable[str]]:
    def listed() -> Iterable[str]:
        from onnxfq.targets.target import collect_parts

        return collect_parts(lambda target: getattr(target, part))

    return listed


NAMES: dict[str, Callable[[], Iterable[str]]] = {
    "calibrators": _list_calibrators,
    "roundings": _list_roundings,
    "formats": _list_formats,
    "metrics": _list_metrics,
    "runtimes": _list_runtimes,
    "recipes": _list_recipes,
    "gpus": _list_gpus,
    "rules": _list_rules,
    "value_runtimes": lambda: ["onnxruntime", *_list_targets("values")()],
    "checked_targets": _list_targets("check"),
    "conversion_targets": _list_targets("conversion"),
}
"""Names by kind."""


def fill_names(command: Any) -> None:
    """Put the names of calibrators, targets and others into the help of the parameters of `command`.

    Raises KeyError for an unknown kind.
    """
    for parameter in command.params:
        text = getattr(parameter, "help", None) or ""
        parameter.help = re.sub(r"\{(\w+)\}", lambda kind: ", ".join(NAMES[kind[1]]()), text)


def complete(kind: str) -> Callable[[str], list[str]]:
    """Return what completes the beginning of a name in a shell."""
    return lambda incomplete: [name for name in NAMES[kind]() if name.startswith(incomplete)]
