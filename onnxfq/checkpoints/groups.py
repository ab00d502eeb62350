"""Groups of a configuration of compressed-tensors: the scheme of a module, by name, pattern or class."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

from onnxfq.checkpoints.folder import Checkpoint
from onnxfq.errors import ModelError
from onnxfq.support.records import ForeignRecord, parse

_LONGEST = 400
"""Characters of patterns, and of the modules that they are compared with."""
_REPEATED = re.compile(r"[*+{]")
_GROUP_REPEATED = re.compile(r"\)[*+?{]")


class _SchemeGroup(ForeignRecord):
    targets: tuple[str, ...] | None = None


class _SchemeGroups(ForeignRecord):
    config_groups: dict[str, _SchemeGroup]


def find_scheme(checkpoint: Checkpoint, module: str) -> Mapping[str, Any]:
    """Return the group of a module: by its name or pattern, else the one for a class of modules."""
    groups = checkpoint.quantization.get("config_groups") or {}
    said = parse({"config_groups": groups}, _SchemeGroups, ModelError, str(checkpoint.path)).config_groups
    for name, group in said.items():
        if any(_names(target, module) for target in group.targets or ()):
            return cast(Mapping[str, Any], groups[name])
    general = [
        groups[name]
        for name, group in said.items()
        if not any("." in target or target.startswith("re:") for target in group.targets or ())
    ]
    if len(general) != 1:
        raise ModelError(
            f"{checkpoint.path}: config_groups has {len(general)} groups for layer {module!r}; name it in one"
        )
    return cast(Mapping[str, Any], general[0])


def _names(target: str, module: str) -> bool:
    """Tell whether a target names a module, by a pattern too.

    Raises ModelError for a group that repeats, and for many repetitions: their search may never end.
    """
    pattern = target.removeprefix("re:")
    if pattern == target or len(module) > _LONGEST:
        return target == module
    try:
        if len(pattern) > _LONGEST or _GROUP_REPEATED.search(pattern) or len(_REPEATED.findall(pattern)) > 3:
            raise re.error("it repeats too much")
        return re.match(pattern, module) is not None
    except (re.error, RecursionError, OverflowError) as fault:
        raise ModelError(
            f"config_groups: the pattern {target!r:.60} is not used: {fault}; name the modules in its place"
        ) from None
