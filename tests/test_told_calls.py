"""Calls that pages tell between backticks have names and arguments that the package takes."""

from __future__ import annotations

import ast
import inspect
import re
from collections import defaultdict
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
from pages import BLOCK, ROOT

import onnxfq
from onnxfq.numerics.spec import QuantSpec

pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.sample

PAGES = [*(ROOT / f"{name}.md" for name in ("README", "ROADMAP", "CHANGELOG")), *(ROOT / "docs").glob("*.md")]
MODULES = (
    *("onnxfq", "onnxfq.plot", "onnxfq.runtime.kernels", "onnxfq.numerics.spec", "onnxfq.torch"),
    *("onnxfq.torch.compat.nvidia", "onnxfq.torch.compat.aimet", "onnxfq.torch.compat.horizon"),
)
CALL = re.compile(r"`([^`\n]+\([^`\n]*\))`")


def signatures() -> dict[str, list[inspect.Signature]]:
    """Return the signatures of public functions, classes and their methods, by name."""
    found: dict[str, list[inspect.Signature]] = defaultdict(list)

    def add(name: str, thing: Callable[..., Any], bound: bool) -> None:
        signature = inspect.signature(thing)
        places = list(signature.parameters.values())[bound:]
        found[name].append(signature.replace(parameters=places))

    for module in map(import_module, MODULES):
        for name in filter(lambda name: name[0] != "_", dir(module)):
            thing = getattr(module, name)
            if not getattr(thing, "__module__", "").startswith("onnxfq") or not callable(thing):
                continue
            add(name, thing, False)
            for method, function in vars(thing).items() if inspect.isclass(thing) else ():
                if method[0] != "_" and inspect.isfunction(function):
                    add(method, function, True)
    return found


def wrong_calls(text: str, known: dict[str, list[inspect.Signature]]) -> list[str]:
    """Return the calls in the prose of a page that no function of their name takes."""
    wrong = []
    for code in CALL.findall(BLOCK.sub("", text)):
        try:
            calls = [one for one in ast.walk(ast.parse(code, mode="eval")) if isinstance(one, ast.Call)]
        except SyntaxError:  # a figure with brackets, or a part of a call
            continue
        for call in calls:
            name = getattr(call.func, "attr", getattr(call.func, "id", ""))
            if name == "QuantSpec":
                wrong += [] if makes(call) else [code]
            elif name in known and not any(takes(one, call) for one in meant(call.func, known[name])):
                wrong.append(code)
    return wrong


def meant(function: ast.expr, known: list[inspect.Signature]) -> list[inspect.Signature]:
    """Return the signature of onnxfq's function if a call names no other place, else all of the name."""
    place = getattr(getattr(function, "value", None), "id", "onnxfq")
    public = getattr(onnxfq, getattr(function, "attr", getattr(function, "id", "")), None)
    if place != "onnxfq" or not inspect.isfunction(public):
        return known
    return [inspect.signature(public)]


def takes(signature: inspect.Signature, call: ast.Call) -> bool:
    """Tell whether a function takes the arguments that a call shows; `...` stands for any."""
    shown = [one for one in call.args if not (isinstance(one, ast.Constant) and one.value is ...)]
    named = {str(one.arg): one.value for one in call.keywords}
    try:
        signature.bind_partial(*shown, **named)
    except TypeError:
        return False
    return True


def makes(call: ast.Call) -> bool:
    """Tell whether a spec, whose signature leaves out the fields of its granularity, is made by a call."""
    if call.args:
        return isinstance(call.args[0], ast.Constant) and call.args[0].value is ...
    try:
        QuantSpec(**{str(one.arg): ast.literal_eval(one.value) for one in call.keywords})
    except ValueError:
        return False
    return True


def test_every_told_call_is_taken() -> None:
    """No page tells a keyword or an argument that the function lacks; a wrong one is found."""
    known = signatures()
    assert len(known) > 150
    told = {page.name: wrong_calls(page.read_text(encoding="utf-8"), known) for page in PAGES}
    assert not {name: calls for name, calls in told.items() if calls}
    text = "`quantize(..., encodings=file)`, `QuantSpec(qtype='int8', axes=0)`, `learn_grids(m, 'range')`"
    assert wrong_calls(text, known) == ["quantize(..., encodings=file)", "QuantSpec(qtype='int8', axes=0)"]
