"""`Target`: capabilities, checks and tools of one place that runs models."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx
from numpy.typing import NDArray

from onnxfq.data import Feed
from onnxfq.documents.recipe import Recipe
from onnxfq.graph.model import Model
from onnxfq.passes.qdq_form import PLAIN, QdqForm
from onnxfq.placement.float_casts import CastFreeRule, CastRule, no_rule, take_casts
from onnxfq.placement.target_policy import TargetPolicy
from onnxfq.targets.build_options import BuildOptions
from onnxfq.targets.findings import CheckResult
from onnxfq.targets.profiles import Profile

Values = Mapping[str, NDArray[Any]]
Runner = Callable[[onnx.ModelProto, Sequence[Feed], Sequence[str], int], Iterator[Values]]
"""Takes a model, feeds, names of tensors and a number of threads; yields the tensors of each feed."""

Check = Callable[[onnx.ModelProto, str, BuildOptions | None], CheckResult]
"""Takes a Q/DQ model, its name for messages, and options for a build; None for no build."""


@dataclass(frozen=True)
class Samples:
    """Feeds that go along with a model, and their results.

    Attributes:
        profiles: profile by input, for inputs with open dimensions.
        first: shapes of the first feed by input.
        results: results of the feeds; empty if no runtime ran the model.
        agreements: least cosine over the feeds between `results` and those of ONNX Runtime with its
            optimisations, by output.
    """

    proto: onnx.ModelProto
    profiles: Mapping[str, Profile]
    first: Mapping[str, tuple[int, ...]]
    feeds: Sequence[Feed]
    results: Sequence[Values]
    agreements: Mapping[str, float]


@dataclass(frozen=True)
class Kit:
    """Contents of a hand-over folder for the tools of a target.

    Attributes:
        texts: returns text files by name.
        raw_files: returns the name of each input's file.
        readme: returns the README, given the findings, notes and samples.
    """

    texts: Callable[[Samples], Mapping[str, str]]
    raw_files: Callable[[Iterable[str]], Mapping[str, str]]
    readme: Callable[[CheckResult, Sequence[str], Samples], str]


def _keep(model: Model) -> Model:
    return model


@dataclass(frozen=True)
class Target:
    """Runtime or builder that models are quantized for.

    Attributes:
        name: name in recipes and plans.
        policy: rules of placement and refusal.
        recipes: recipes, known by name once the target is registered.
        prepare: returns the float model with the rewrites that the target needs before placement, equal in
            its results; the model itself if it needs none.
        form: parts written in other operators than ONNX's.
        is_written: False if only fake-quant models are written.
        domains: operator sets that only this target has, with their descriptions.
        keeps_float32: rule for nodes that would be cast to a half type.
        cast_free: rule for float32 nodes that would have a Cast in front of them.
        conversion: name of the recipe that `convert` starts from; empty for none.
        check: rules over a Q/DQ model.
        run: an engine of the target on this machine.
        kit: files that `handoff` writes.
    """

    name: str
    policy: TargetPolicy = TargetPolicy()
    recipes: tuple[Recipe, ...] = ()
    prepare: Callable[[Model], Model] = _keep
    form: QdqForm = PLAIN
    is_written: bool = True
    domains: Mapping[str, str] = field(default_factory=dict)
    keeps_float32: CastRule = no_rule
    cast_free: CastFreeRule = take_casts
    conversion: str = ""
    check: Check | None = None
    run: Runner | None = None
    kit: Kit | None = None
