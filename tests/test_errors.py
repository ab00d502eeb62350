"""The error tree and the hint that ends a message about an unknown name."""

from __future__ import annotations

import inspect

import pytest

from onnxfq import errors
from onnxfq.errors import OnnxfqError, nearest

CLASSES = {
    name: value for name, value in vars(errors).items() if inspect.isclass(value) and name != "Iterable"
}


@pytest.mark.parametrize("name", sorted(set(CLASSES) - {"OnnxfqError"}))
def test_every_error_has_the_one_root(name):
    """Whoever catches OnnxfqError catches all of ours, and the tree at the top of the file is complete."""
    assert CLASSES[name].__mro__[1] is OnnxfqError
    assert f"── {name} " in errors.__doc__


@pytest.mark.parametrize(
    ("name", "known", "hint"),
    [
        pytest.param(
            "con1", ["conv1", "conv2", "gemm"], "; nearest: conv1, conv2", id="close ones, best first"
        ),
        pytest.param("zzz", ["b", "a", "b"], "; known: a, b", id="none close, few known: all, sorted, once"),
        pytest.param("zzz", [f"t{i}" for i in range(9)], "", id="none close, many known: nothing"),
        pytest.param("zzz", [], "", id="nothing known"),
        pytest.param("t", ["t1", "t2", "t3", "t4"], "; nearest: t4, t3, t2", id="three at most"),
        pytest.param("x", (n for n in ("x1",)), "; nearest: x1", id="any iterable"),
    ],
)
def test_nearest(name, known, hint):
    """The hint lists what the user may have meant, and is empty when that would be noise."""
    assert nearest(name, known) == hint
