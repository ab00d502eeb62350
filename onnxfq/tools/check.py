"""`check`: nodes that a target rejects, runs in float or computes differently."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import onnx

from onnxfq.choices import TOLERANCE_DB
from onnxfq.errors import OnnxfqError, RecipeError, nearest
from onnxfq.execution.drawn_inputs import draw_feed
from onnxfq.graph.io.load import read_model
from onnxfq.interchange.genai_folder import find_decoder
from onnxfq.judging.written_proof import Written
from onnxfq.stages.insert import find_target
from onnxfq.targets.findings import CheckResult, Finding, worst_first
from onnxfq.targets.profiles import profiles
from onnxfq.targets.target import (
    DEFAULT_TARGET,
    TARGETS,
    BuildOptions,
    Target,
    collect_parts,
    target_by_name,
)


def check(
    model: str | Path | onnx.ModelProto,
    target: str | None = None,
    *,
    build: BuildOptions | Literal[False] | None = None,
    layers: str | Path | None = None,
    profile: str | Path | None = None,
    gpus: Sequence[str] = (),
) -> CheckResult:
    """Return findings where `target` deviates from the Q/DQ `model`; nothing is changed or written.

    Args:
        model: a path or a ModelProto.
        target: a target with rules, which need nothing installed; None for the one that the model was written
            for; TensorRT where it names none, and where GPUs or engines are asked for.
        build: also open the model in the runtime or builder of the target, which may be an extra and needs
            no GPU, and report the precision of each node. None asks ONNX Runtime alone, which is always
            installed, if it is the target; False asks nothing.
        layers: what the target's tools exported of an engine of the model that was built elsewhere: the
            precision of each node there, and what is fused. It takes the place of `build`.
        profile: times of the layers of the same engine.
        gpus: names or compute capabilities; formats that one of them lacks are refused. `build` is for
            them where the builder has their kernels.

    Raises ModelError for a model that cannot be read, RecipeError for a target without rules, and with
    `build` or `layers` RuntimeLibraryError and DataError.
    """
    rules, readers = collect_parts(lambda one: one.check), collect_parts(lambda one: one.check_engine)
    proto, _, source = read_model(find_decoder(model))
    if target is None:
        is_engine = gpus or layers is not None or (build and build.against)
        written = None if is_engine else TARGETS.get(find_target(proto))
        target = DEFAULT_TARGET if written is None else written.rules or written.name
    if target not in rules:
        raise RecipeError(f"there are no rules for target {target!r}{nearest(target, rules)}")
    if layers is not None and target not in readers:
        raise RecipeError(f"no engines are read of target {target!r}{nearest(target, readers)}")
    asked = build is None and layers is None and target_by_name(target).asked
    build = build or None
    if build is not None and build.against and not target_by_name(target).compares:
        raise RecipeError(
            f"the builder of target {target!r} compares with no graph without pairs; leave out --against, or "
            "give target tensorrt"
        )
    if layers is None:
        build = None if build is None else replace(build, gpus=tuple(gpus))
        found = rules[target](proto, source, BuildOptions() if asked else build)
        more = [] if build is None else compare_session(proto, target_by_name(target), build)
        return _add_gpus(
            found.model_copy(update={"findings": worst_first([*found.findings, *more])}), proto, gpus
        )
    times = None if profile is None else Path(profile)
    return _add_gpus(readers[target](proto, source, Path(layers), times), proto, gpus)


def _add_gpus(found: CheckResult, proto: onnx.ModelProto, gpus: Sequence[str]) -> CheckResult:
    """Return the result with what the model has that a GPU lacks. Raises RecipeError without any GPU."""
    hardware = target_by_name(found.target).hardware
    if not gpus:
        return found
    if hardware is None:
        raise RecipeError(f"target {found.target} has no GPUs by name; leave gpus out")
    return found.model_copy(update={"findings": worst_first([*found.findings, *hardware.check(proto, gpus)])})


def compare_session(proto: onnx.ModelProto, target: Target, build: BuildOptions) -> list[Finding]:
    """Return a finding if the runtime of `target` computes other numbers than the pairs mean, else none.

    Both run one sample of random numbers. A runtime that refuses the model, or numbers that it cannot take,
    have findings of the build.
    """
    if target.values is None:
        return []
    shapes = {name: (least,) * 3 for name, (least, *_) in profiles(proto, build.shapes).items()}
    try:
        written = Written(proto, proto, proto, [draw_feed(proto, shapes)], threads=1)
        (score,) = written.score(
            {target.release(): proto}, {target.release(): target.values}, written.feeds
        ).values()
    except OnnxfqError:
        return []
    if score.lowest_db >= TOLERANCE_DB:
        return []
    message = (
        f"{score.candidate} has {score.lowest_db:.1f} dB beside what the pairs mean, on random numbers; "
        "quantize with data, which finds the operator"
    )
    return [Finding(rule="session", severity="wrong", node="", op_type="model", message=message)]
