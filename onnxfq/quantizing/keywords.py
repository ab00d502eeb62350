"""Keywords that `quantize` does not take itself: the error names the argument that takes each."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any, TypeVar, cast

from onnxfq.data import DataOptions
from onnxfq.documents.recipe import Recipe
from onnxfq.documents.schemes import ActivationScheme, WeightScheme
from onnxfq.errors import ArgumentError, nearest
from onnxfq.judging.accuracy_target import AccuracyTarget
from onnxfq.judging.candidate import Sources
from onnxfq.stages.options import QuantizeOptions
from onnxfq.support.other_words import KEYWORDS

Function = TypeVar("Function", bound=Callable[..., Any])

_RECORDS: tuple[tuple[type[Any], str], ...] = (
    (Sources, "sources=onnxfq.Sources({}=...)"),
    (AccuracyTarget, "accuracy=onnxfq.AccuracyTarget({}=...)"),
    (QuantizeOptions, "options=onnxfq.QuantizeOptions({}=...)"),
    (DataOptions, "options=onnxfq.QuantizeOptions(data=onnxfq.DataOptions({}=...))"),
)
_OTHER_WORDS = {
    "float": "floats",
    "float_io": "floats",
    "float_type": "floats",
    "gpu": "gpus",
    "keep_existing": "existing",
    "kv": "cache",
    "kv_granularity": "cache",
    "requantize": "existing",
    "weight_form": "target",
}
"""Words of the command line, and the fields that have their meaning."""

_OTHER_FUNCTIONS = {
    "artifacts": "result.plan.save(...), result.encodings.save(...)",
    "build": "onnxfq.check(..., build=onnxfq.BuildOptions())",
    "custom_ops": "onnxfq.use_custom_ops(...) before",
    "no_data": "data=onnxfq.DrawnInputs()",
    "python": "model=FOLDER, which onnxruntime_genai.models.builder wrote before",
    "report": "onnxfq.write_report(result, ...)",
    "shape": "onnxfq.check(..., build=onnxfq.BuildOptions(...))",
    "thumbnails": "onnxfq.write_report(result, ...), which has no pictures",
    "time": "onnxfq.compare_recipes(..., time=True)",
}
"""Python calls in place of other options of the command line, after or before quantizing."""


def _places() -> Iterator[tuple[str, str]]:
    """Yield every field with the argument that takes it, the first of each name first."""
    for record, text in _RECORDS:
        yield from ((field.name, text.format(field.name)) for field in fields(record))
    yield from _OTHER_FUNCTIONS.items()
    yield "preprocessor", "options=onnxfq.QuantizeOptions(data=onnxfq.read_preprocessor(...))"
    override = "recipe=onnxfq.load_recipe(NAME).override({})"
    for part, scheme in (("activations", ActivationScheme), ("weights", WeightScheme)):
        for name in scheme.model_fields:
            yield name, override.format(f'{part}={{"{name}": ...}}')
    yield from ((name, override.format(f"{name}=...")) for name in Recipe.model_fields)


def explain_keywords(function: Function) -> Function:
    """Return `function`, which refuses a keyword that it lacks with the argument that takes it.

    Raises ArgumentError.
    """
    taken = inspect.signature(function).parameters

    @functools.wraps(function)
    def call(*given: Any, **keywords: Any) -> Any:
        for name in keywords.keys() - taken.keys():
            places = dict(reversed([*_places()]))
            place = places.get(_OTHER_WORDS.get(name, name), KEYWORDS.get(name))
            advice = f"; write {place}" if place else nearest(name, [*taken, *places])
            raise ArgumentError(f"{function.__name__} takes no keyword {name!r}{advice}")
        return function(*given, **keywords)

    return cast(Function, call)
