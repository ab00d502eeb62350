"""The error tree and the hint that ends a message about an unknown name."""

from __future__ import annotations

import inspect
import pickle

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


BUILTIN = {
    "ModelError": (RuntimeError,),
    "RecipeError": (ValueError,),
    "PlanError": (ValueError,),
    "DataError": (ValueError,),
    "StatisticsError": (RuntimeError,),
    "SpecError": (ValueError, RuntimeError),
    "ArgumentError": (TypeError,),
    "OutputError": (RuntimeError,),
    "RuntimeLibraryError": (RuntimeError,),
    "DeviceMemoryError": (RuntimeError,),
}


def test_every_error_is_one_of_pythons():
    """Each class derives from what torch and other quantizers raise, and the tree says so."""
    assert BUILTIN.keys() == CLASSES.keys() - {"OnnxfqError"}
    lines = " ".join(errors.__doc__.replace("│", " ").split())
    for name, kinds in BUILTIN.items():
        assert issubclass(CLASSES[name], kinds) and CLASSES[name].__bases__[1:] == kinds
        said = lines.partition(f"── {name} ")[2].partition("──")[0]
        assert all(kind.__name__ in said for kind in kinds), (name, said)


@pytest.mark.parametrize("name", CLASSES)
def test_an_error_is_one_line_and_crosses_processes(name):
    """Line breaks that a value brings are gone, so no other test asks; it is read back with its class."""
    found = pickle.loads(pickle.dumps(CLASSES[name]("one\n\tline\r\nof all")))
    assert type(found) is CLASSES[name] and str(found) == "one line of all"


@pytest.mark.parametrize(
    ("name", "known", "hint"),
    [
        pytest.param("con1", ["conv1", "conv2", "gemm"], "; nearest: conv1", id="one letter"),
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
