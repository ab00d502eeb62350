"""`Target`: capabilities, checks and tools of one place that runs models, and the targets by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, TypeAlias, TypeVar

import onnx
from numpy.typing import NDArray

from onnxfq.choices import DEFAULT_TARGET as DEFAULT_TARGET
from onnxfq.data import Feed
from onnxfq.documents.recipe import Recipe
from onnxfq.errors import RecipeError, nearest
from onnxfq.graph.model import Model
from onnxfq.passes.qdq_form import PLAIN, QdqForm
from onnxfq.placement.float_casts import CastFreeRule, CastRule
from onnxfq.placement.target_policy import TargetPolicy
from onnxfq.runtime.unsupported_ops import FOREIGN_DOMAINS
from onnxfq.support.attempts import attempt
from onnxfq.targets.findings import CheckResult, Finding
from onnxfq.targets.profiles import Profile, Range
from onnxfq.targets.recipes import RECIPES


@dataclass(frozen=True)
class BuildOptions:
    """Options for the builder of a target.

    Attributes:
        shapes: shapes of inputs with open dimensions by name, see `profiles`.
        seconds: time limit for one engine.
        against: "half" to build the same graph without pairs too, and compare; TensorRT alone has it.
        covered: profiles in place of those by `shapes`.
        values: numbers of integer inputs that TensorRT reads while it builds, such as a shape, by name.
        gpus: names or compute capabilities of GPUs to build for, in place of the builder's choice.
    """

    shapes: Mapping[str, Sequence[int | Range]] = field(default_factory=dict)
    seconds: float = 600.0
    against: Literal["", "half"] = ""
    covered: Mapping[str, Profile] | None = None
    values: Mapping[str, Sequence[int]] = field(default_factory=dict)
    gpus: tuple[str, ...] = ()


Values = Mapping[str, NDArray[Any]]
Runner = Callable[[onnx.ModelProto, Sequence[Feed], Sequence[str], int], Iterator[Values]]
"""Takes a model, feeds, names of tensors and a number of threads; yields the tensors of each feed."""

AnyModel: TypeAlias = onnx.ModelProto | Path
"""A model, or the path of one."""

Opener = Callable[[AnyModel, int], Callable[[Feed], Values]]
"""Takes a model or its path, and a number of threads, 0 for the runtime's own choice.

It opens the model and returns a function from a feed to the outputs by name, which several threads may call
at the same time. It raises RuntimeLibraryError if the runtime is not on this machine, and RuntimeLibraryError
or ModelError if the runtime refuses the model.
"""

Profiler = Callable[[AnyModel, int, Feed], Mapping[tuple[str, str], float]]
"""Takes what an Opener takes and a feed; returns the seconds of a run by operator and node, as executed."""

Check = Callable[[onnx.ModelProto, str, BuildOptions | None], CheckResult]
"""Takes a Q/DQ model, its name for messages, and options for a build; None for no build."""

EngineCheck = Callable[[onnx.ModelProto, str, Path, Path | None], CheckResult]
"""Takes a Q/DQ model, its name for messages, and files with the layers and the times of an engine."""


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
class Hardware:
    """GPUs of a target by name, and what runs on all of those that are given.

    Attributes:
        describe: returns lines with the formats of each GPU.
        judge: tells whether a recipe runs; None if that is unknown.
        refuse: raises RecipeError for a recipe that does not run, with the nearest that does.
        check: returns what a model has that the GPUs lack.
    """

    describe: Callable[[Sequence[str]], list[str]]
    judge: Callable[[Recipe, Sequence[str]], bool | None]
    refuse: Callable[[Recipe, Sequence[str]], None]
    check: Callable[[onnx.ModelProto, Sequence[str]], list[Finding]]


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


@dataclass(frozen=True)
class Target:
    """Runtime or builder that models are quantized for.

    Attributes:
        name: name in recipes and plans.
        policy: rules of placement and refusal.
        recipes: recipes, known by name once the target is registered.
        prepare: returns the float model with the rewrites that the target needs before placement, equal in
            its results; the model itself if it needs none. A tensor keeps its name only with its values.
        form: parts written in other operators than ONNX's.
        unit: returns the name of what a node is written as a part of; repairs give one format to a unit.
        has_pairs: False if models are written with FakeQuantize nodes in place of Q/DQ pairs.
        domains: operator sets that only this target has, with their descriptions.
        keeps_float32: rule for nodes that would be cast to a half type.
        cast_free: rule for float32 nodes that would have a Cast in front of them.
        conversion: name of the recipe that `convert` starts from; empty for none.
        check: rules over a Q/DQ model.
        rules: name of the target by whose rules its files are checked; empty for its own.
        check_engine: the same with what an engine of the model does, built elsewhere.
        run: an engine of the target on this machine.
        values: opens a model in its runtime on this machine, with the float part in float32.
        open: its runtime on this machine as users open it, for times.
        clock: tells the seconds of runs of `open`, whose arrays may come from another process.
        unsaturated: the same as `values`, with int8 sums that do not saturate on a processor without VNNI.
        release: returns the name and version of the runtime that `values` opens, such as ONNX Runtime 1.31.1.
            It raises RuntimeLibraryError if it is not on this machine.
        differs: returns what `open` computes otherwise than `values` on this machine; empty for nothing.
        profile: the same runtime's own account of its time.
        kit: files that `handoff` writes.
        asked: whether `check` opens a file in its runtime by default, which is always installed.
        compares: whether its builder also builds the same graph without pairs.
        capabilities: by number format, the least compute capability of a GPU that multiplies in it, 89 for
            8.9; empty for a target whose hardware is not told by it.
        hardware: its GPUs by name; None for a target without them.
        wide: number format that repair gives to all activations at once, since a layer in float leaves the
            hardware; empty for none.
        fixed_sizes: whether its runtime takes fixed sizes alone; padding of samples is filled then, not cut.
        mixing: operators that take operands and results of this format and of a narrower one together.
    """

    name: str
    policy: TargetPolicy = TargetPolicy()
    recipes: tuple[Recipe, ...] = ()
    prepare: Callable[[Model], Model] = lambda model: model
    form: QdqForm = PLAIN
    unit: Callable[[str], str] = lambda node: node
    has_pairs: bool = True
    domains: Mapping[str, str] = field(default_factory=dict)
    keeps_float32: CastRule = lambda node, half: None
    cast_free: CastFreeRule = lambda node, shapes: ""
    conversion: str = ""
    check: Check | None = None
    rules: str = ""
    check_engine: EngineCheck | None = None
    run: Runner | None = None
    values: Opener | None = None
    open: Opener | None = None
    clock: Callable[[], float] = perf_counter
    unsaturated: Opener | None = None
    release: Callable[[], str] = lambda: ""
    differs: Callable[[], str] = lambda: ""
    profile: Profiler | None = None
    kit: Kit | None = None
    asked: bool = False
    compares: bool = False
    capabilities: Mapping[str, int] = field(default_factory=dict)
    hardware: Hardware | None = None
    wide: str = ""
    fixed_sizes: bool = False
    mixing: frozenset[str] = frozenset()


Part = TypeVar("Part")

TARGETS: dict[str, Target] = {}
"""Targets by name, filled by `register_target`."""


def register_target(target: Target) -> None:
    """Register `target` and its recipes by name in this process.

    Args:
        target: the record; its name and the names of its recipes must be unique.

    Raises RecipeError if another record has one of the names.
    """
    if TARGETS.get(target.name, target) != target:
        raise RecipeError(f"another target is called {target.name!r}; choose another name")
    for recipe in target.recipes:
        if RECIPES.setdefault(recipe.name, recipe) != recipe:
            raise RecipeError(f"another recipe is called {recipe.name!r}; choose another name")
    TARGETS[target.name] = target
    FOREIGN_DOMAINS.update(target.domains)


def target_by_name(name: str) -> Target:
    """Return the target called `name`.

    Raises RecipeError with the nearest names if it is not registered.
    """
    if name in TARGETS:
        return TARGETS[name]
    hint = nearest(name, TARGETS) or f"; known: {', '.join(TARGETS)}"
    raise RecipeError(f"unknown target {name!r}: give a registered one{hint}")


def collect_parts(part: Callable[[Target], Part | None]) -> dict[str, Part]:
    """Return what `part` takes from each registered target, by name, without targets that lack it."""
    return {name: found for name, target in TARGETS.items() if (found := part(target))}


def prepare_model(model: Model, target: str) -> Model:
    """Return `model` with the rewrites that `target` needs before placement; computed once.

    A rewrite that fails is left out, with a note. Raises RecipeError for an unknown target.
    """
    rewrite = target_by_name(target).prepare
    what = f"preparing the model for target {target}"
    return model.prepared_for(target, lambda given: attempt(what, lambda: rewrite(given), lambda: given))
