"""`check`: nodes that a target rejects, runs in float or computes differently."""

from __future__ import annotations

from pathlib import Path

import onnx

from onnxfq.errors import RecipeError, nearest
from onnxfq.graph.io.load import read_model
from onnxfq.targets.findings import CheckResult
from onnxfq.targets.target import DEFAULT_TARGET, BuildOptions, collect_parts


def check(
    model: str | Path | onnx.ModelProto,
    target: str = DEFAULT_TARGET,
    *,
    build: BuildOptions | None = None,
    layers: str | Path | None = None,
    profile: str | Path | None = None,
) -> CheckResult:
    """Return findings where `target` deviates from the Q/DQ `model`; nothing is changed or written.

    Args:
        model: a path or a ModelProto.
        target: a target with rules. The rules need nothing installed.
        build: also open the model in the runtime or builder of the target, which may be an extra and needs
            no GPU, and report the precision of each node.
        layers: what the target's tools exported of an engine of the model that was built elsewhere: the
            precision of each node there, and what is fused. It takes the place of `build`.
        profile: times of the layers of the same engine.

    Raises ModelError for a model that cannot be read, RecipeError for a target without rules, and with
    `build` or `layers` RuntimeLibraryError and DataError.
    """
    if layers is not None:
        readers = collect_parts(lambda one: one.check_engine)
        if target not in readers:
            raise RecipeError(f"no engines are read of target {target!r}{nearest(target, readers)}")
        proto, _, source = read_model(model)
        return readers[target](proto, source, Path(layers), None if profile is None else Path(profile))
    rules = collect_parts(lambda one: one.check)
    if target not in rules:
        raise RecipeError(f"there are no rules for target {target!r}{nearest(target, rules)}")
    proto, _, source = read_model(model)
    return rules[target](proto, source, build)
