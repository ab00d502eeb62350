"""Wrong arguments of every public callable: one line of ours, never an error of Python's alone."""

from __future__ import annotations

import importlib
import inspect
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

nn = pytest.importorskip("torch.nn")
pytest.importorskip("onnxscript")

import torch

from onnxfq.errors import ArgumentError, OnnxfqError, RecipeError, SpecError
from onnxfq.numerics.spec import QuantSpec

HOMES = (
    "onnxfq.torch",
    "onnxfq.torch.checkpoints",
    "onnxfq.torch.compat.horizon",
    "onnxfq.torch.compat.guide",
    "onnxfq.torch.compat.nvidia",
    "onnxfq.torch.compat.nvidia.tensor_quant",
    "onnxfq.torch.compat.nvidia.optim.helper",
)
LEFT_OUT = {"OBSERVERS", "Observer", "FORMATS"}
"""Tables, and the base of a user's own observers."""

WRONG = [
    None,
    object(),
    "wrong",
    b"wrong",
    -1,
    2.5,
    [],
    ["x"],
    {},
    {"x": 1},
    torch.ones(2, 3),
    int,
    nn.ReLU(),
]
COSTLY = {"export_torch", "encodings_from_onnx", "plot_quantization_errors"}
"""Functions that take a second for a value that they accept, as None: they get every third of the others."""
METHODS = ("__call__", "quantize", "set_qparams", "set_range", "learn", "allow_overwrite")


def good() -> dict[str, Any]:
    """Return a right value for each name of a parameter."""
    module = nn.Sequential(nn.Linear(4, 4))
    x = torch.rand(2, 4)
    return {
        **{name: x for name in ("x", "input", "inputs", "tensor", "r_tensor", "integers")},
        **{name: x for name in ("original_tensor", "dequantized_tensor", "quantized_tensor")},
        **{"scale": torch.ones(()), "zero_point": 0, "alpha": torch.ones(()), "factor": 2.0, "elements": 4},
        **{"rmin": torch.zeros(()), "rmax": torch.ones(()), "qtype": "int8", "symmetric": False, "axis": 0},
        **{"quant_min": -128, "quant_max": 127, "model": module, "spec": "int8", "dim": 0, "path": None},
        **{"format": "torch-ao", "source": {}, "what": "scale", "encodings": None, "kwargs": {}},
    }


def public() -> Iterator[Any]:
    """Yield each public function and class with its home."""
    for home in HOMES:
        module = importlib.import_module(home)
        names = getattr(module, "__all__", None) or [
            n
            for n, v in vars(module).items()
            if str(getattr(v, "__module__", "")).startswith(home) and not n.startswith("_")
        ]
        for name in names:
            if name not in LEFT_OUT and callable(getattr(module, name)):
                yield pytest.param(getattr(module, name), id=f"{home.rpartition('.')[2]}.{name}")


def attempt(function: Any, *args: Any, **keywords: Any) -> None:
    """Call it; whatever it raises is one line of ours."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = function(*args, **keywords)
            if hasattr(made, "__enter__") and not isinstance(made, nn.Module):
                with made:
                    return
    except OnnxfqError as error:
        assert str(error)


def try_all(function: Any, known: dict[str, Any]) -> None:
    """Give each parameter each wrong value, too few arguments, too many, and one with another name."""
    parameters = inspect.signature(function).parameters.values()
    taken = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    right = {p.name: known[p.name] for p in taken if p.default is p.empty and p.name in known}
    wrong = WRONG[1::3] if function.__name__ in COSTLY else WRONG
    for parameter in taken:
        for value in wrong:
            attempt(function, **{**right, parameter.name: value})
    attempt(function)
    attempt(function, *[1] * 30)
    attempt(function, **right, unheard_of=1)


@pytest.mark.parametrize("function", list(public()))
def test_public_callables(function: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values of other types for each parameter, alone; missing, unknown and too many arguments."""
    monkeypatch.chdir(tmp_path)  # "wrong" is a good path
    try_all(function, good())


@pytest.mark.parametrize("home", ["onnxfq.torch", "onnxfq.torch.compat.horizon"])
@pytest.mark.parametrize("method", METHODS)
def test_methods_of_the_quantizer(home: str, method: str) -> None:
    """The same for the methods of both quantizers, with a scale."""
    cls = importlib.import_module(home).FakeQuantize
    made = cls("int8") if home == "onnxfq.torch" else cls()
    made.set_qparams(0.1)
    known = {**good(), "scale": 0.5, "rmin": -1.0, "rmax": 1.0, "x": torch.rand(2, 4)}
    if method == "__call__":
        for value in WRONG:
            attempt(made, value)
        attempt(made)
    else:
        try_all(getattr(made, method), known)


@pytest.mark.sample
def test_lines_name_the_argument() -> None:
    """What was wrong, what it must be, and the nearest name for a misspelled one."""
    from onnxfq.torch import FakeQuantize, fake_quantize, quantize_module, quantizers

    for call, kind, words in (
        (lambda: quantizers(5), ArgumentError, r"model of quantizers must be nn.Module, found 5 \(int\)"),
        (lambda: fake_quantize("x", 1.0, qtype="int8"), ArgumentError, "x of fake_quantize must be Tensor"),
        (lambda: fake_quantize(torch.ones(2), 1.0, qtyp="int8"), ArgumentError, "nearest: qtype"),
        (lambda: FakeQuantize("int8").set_qparams("one"), ArgumentError, "scale of FakeQuantize.set_qparams"),
        (lambda: FakeQuantize("int9x"), SpecError, "int9x"),
        (lambda: quantize_module(nn.Linear(2, 2), 7), ArgumentError, "a recipe is a name, a file"),
        (lambda: quantize_module(nn.Linear(2, 2), {"": 7}), RecipeError, "is not a QConfig of torch.ao"),
        (lambda: FakeQuantize(QuantSpec(qtype="int8", axis=0))(torch.tensor(1.0)), SpecError, "axis"),
    ):
        with pytest.raises(kind, match=words):
            call()
