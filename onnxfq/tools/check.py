"""`check`: nodes that a target rejects, runs in float or computes differently."""

from __future__ import annotations

from pathlib import Path

import onnx

from onnxfq.errors import RecipeError, nearest
from onnxfq.graph.io.load import read_model
from onnxfq.targets.findings import CheckResult
from onnxfq.targets.target import DEFAULT_TARGET, BuildOptions, collect_parts, target_by_name


def check(
    model: str | Path | onnx.ModelProto, target: str = DEFAULT_TARGET, *, build: BuildOptions | None = None
) -> CheckResult:
    """Return findings where `target` deviates from the Q/DQ `model`; nothing is changed or written.

    Args:
        model: a path or a ModelProto.
        target: a target with rules. The rules need nothing installed.
        build: also open the model in the runtime or builder of the target, which may be an extra and needs
            no GPU, and report the precision of each node.

    Raises ModelError for a model that cannot be read, RecipeError for a target without rules, and with
    `build` RuntimeLibraryError and DataError.
    """
    rules = collect_parts(lambda one: one.check)
    if target not in rules:
        raise RecipeError(f"there are no rules for target {target!r}{nearest(target, rules)}")
    if build is not None and build.against and not target_by_name(target).compares:
        raise RecipeError(
            f"the builder of target {target!r} compares with no graph without pairs; leave out --against, or "
            "give target tensorrt"
        )
    proto, _, source = read_model(model)
    return rules[target](proto, source, build)
