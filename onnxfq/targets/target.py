"""`Target`: all that the stages ask about where a model is to run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx
from numpy.typing import NDArray

from onnxfq.data import Feed
from onnxfq.documents.recipe import Recipe
from onnxfq.graph.model import Model
from onnxfq.passes.qdq_form import PLAIN, QdqForm
from onnxfq.placement.float_casts import CastRule, no_rule
from onnxfq.placement.target_policy import TargetPolicy
from onnxfq.targets.build_options import BuildOptions
from onnxfq.targets.findings import CheckResult
from onnxfq.targets.profiles import Profile

Values = Mapping[str, NDArray[Any]]
Runner = Callable[[onnx.ModelProto, Sequence[Feed], Sequence[str], int], Iterator[Values]]
"""Takes a model, feeds, names of tensors and a number of threads; gives the tensors of each feed."""

Check = Callable[[onnx.ModelProto, str, BuildOptions | None], CheckResult]
"""Takes a Q/DQ model, what messages call it, and how to build it, None not to."""


@dataclass(frozen=True)
class Samples:
    """What goes along with a model: feeds of numbers, and their results, none where nothing ran it.

    profiles: by input with open dimensions. first: shapes of the first feed by input.
    """

    proto: onnx.ModelProto
    profiles: Mapping[str, Profile]
    first: Mapping[str, tuple[int, ...]]
    feeds: Sequence[Feed]
    results: Sequence[Values]


@dataclass(frozen=True)
class Kit:
    """What the folder of a hand-over holds for the tools of a target.

    texts: returns files of text by name. raw_name: returns the name, without ending, of the file of an input.
    readme: returns the page over all, given the findings, notes and whether results are expected.
    """

    texts: Callable[[Samples], Mapping[str, str]]
    raw_name: Callable[[str], str]
    readme: Callable[[CheckResult, Sequence[str], bool], str]


def _keep(model: Model) -> Model:
    return model


@dataclass(frozen=True)
class Target:
    """One place that models are quantized for.

    name: what recipes and plans call it. policy: what is placed, and what is refused. recipes: known by name
    once the target is registered. prepare: returns the float model with rewrites that the target needs
    before anything is placed, the same numbers for the same inputs; the model itself where it needs none.
    form: what is written otherwise than by ONNX's own operators. is_written: False where a fake-quant model
    is all that is made. domains: operator sets that only this target has, with words for it.
    keeps_float32: its word on nodes that would be cast to a half type. conversion: name of the recipe that
    `convert` starts from; empty where it has none.
    check: rules over a Q/DQ model. run: an engine of the target on this machine. kit: what `handoff` writes.
    """

    name: str
    policy: TargetPolicy = TargetPolicy()
    recipes: tuple[Recipe, ...] = ()
    prepare: Callable[[Model], Model] = _keep
    form: QdqForm = PLAIN
    is_written: bool = True
    domains: Mapping[str, str] = field(default_factory=dict)
    keeps_float32: CastRule = no_rule
    conversion: str = ""
    check: Check | None = None
    run: Runner | None = None
    kit: Kit | None = None
