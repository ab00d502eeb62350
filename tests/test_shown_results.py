"""Results print themselves: their text in Python, HTML in notebooks, their own names behind Tab."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import pydantic
import pytest
from builders import conv_relu, feed_for

import onnxfq

FEEDS = [feed_for(conv_relu(), seed) for seed in range(8)]
RESULT = onnxfq.quantize(conv_relu(), FEEDS, accuracy=onnxfq.AccuracyTarget(repair=None))
RESULTS: dict[str, Any] = {
    "evaluation": RESULT.evaluation,
    "plan": RESULT.plan,
    "check": onnxfq.check(RESULT.qdq),
    "sensitivity": onnxfq.sensitivity(conv_relu(), FEEDS),
    "comparison": onnxfq.compare(RESULT.qdq, FEEDS),
    "diagnosis": onnxfq.diagnose(RESULT.qdq, data=FEEDS),
}


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_is_its_text(name: str) -> None:
    """`print`, a prompt and a notebook show what the command prints; fields come back from JSON."""
    result = RESULTS[name]
    assert repr(result) == str(result) == result.table() and "format=" not in repr(result)
    html = result._repr_html_()
    assert html.startswith("<pre>") and html.endswith("</pre>") and "<" not in html[5:-6]
    text = result.model_dump_json()
    assert type(result).model_validate_json(text).model_dump_json() == text


@pytest.mark.parametrize("name", RESULTS)
def test_tab_shows_own_names(name: str) -> None:
    """Fields, properties and functions of the class are listed, and no name of pydantic."""
    result = RESULTS[name]
    listed = set(dir(result))
    assert {"table", *type(result).model_fields} <= listed
    assert not listed & set(dir(pydantic.BaseModel)) and all(hasattr(result, one) for one in listed)


def test_models_and_statistics_are_one_line() -> None:
    """A proto and arrays of numbers have no readable form."""
    assert repr(RESULT.model) == "Model(the given model, opset 17: x -> y; Conv 1, Relu 1)"
    said = repr(RESULT.statistics)
    assert said.startswith("Statistics(1 tensors, 32 samples in 32 feeds") and "array" not in said


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("evalute", "; nearest: evaluate"),
        ("quantize_static", "; write onnxfq.quantize"),
        ("nothing_alike", ""),
    ],
)
def test_unknown_names_have_hints(name: str, hint: str) -> None:
    """A misspelled name has the nearest, a name of another tool what stands for it, others nothing."""
    with pytest.raises(AttributeError, match=f"^module 'onnxfq' has no attribute '{name}'{hint}$"):
        getattr(onnxfq, name)


@pytest.mark.parametrize("word", ["per_channel", "activation_type", "calibrate_method", "nodes_to_exclude"])
def test_keywords_of_others_have_hints(word: str) -> None:
    """A keyword of onnxruntime's quantizer is answered with the recipe's field."""
    with pytest.raises(TypeError, match=f"quantize takes no keyword '{word}'; write recipe="):
        onnxfq.quantize(conv_relu(), FEEDS, **{word: True})


def test_what_is_written_for_others_exists() -> None:
    """Every function that a hint names is public, and every argument is one of quantize."""
    from onnxfq.choices import OTHER_NAMES
    from onnxfq.support.other_words import KEYWORDS

    for text in OTHER_NAMES.values():
        module, _, name = text.split("(")[0].split(",")[0].rpartition(".")
        assert callable(getattr(importlib.import_module(module), name)), text
    taken = inspect.signature(onnxfq.quantize).parameters
    assert all(text.split("=")[0] in taken for text in KEYWORDS.values())
