"""The public types as `mypy --strict` gives them to a script of a user, which follows the file `py.typed`."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import onnxfq

PACKAGE = Path(onnxfq.__file__).parent
SCRIPT = Path(__file__).with_name("typed_user.py")

CONFIG = """[mypy]
strict = True
follow_imports = silent
[mypy-torch.*,ray.*,openvino.*,tensorrt_rtx.*,matplotlib.*,jinja2.*]
follow_imports = skip
"""
"""Libraries whose own types nothing here asks for take minutes to read."""

ALLOWED = {
    "QuantizedArray": "its arrays belong to the library of the array that was quantized, NumPy or torch",
    "quantize_array": "the same",
    "export_torch": "torch is not read here",
    "register_custom_ops": "onnxruntime has no types",
    "Model": "onnx-graphsurgeon has no types",
    "Override": "values of the fields of a recipe",
    "Recipe": "values of the fields of a recipe",
    "Statistics": "each kind of statistics has values of its own",
}
"""Public names in whose types `Any` stands for more than an element of an array, with the reason."""

KNOWN = re.compile(
    r"numpy\.ndarray\[(?:builtins\.)?tuple\[Any, \.\.\.\], |numpy\.dtype\[Any\]"  # any shape, any elements
    r"|(?<=\]\]\], )Any(?=\) -> (?:builtins\.)?float)"  # a metric of the user says what it takes
)
"""Texts of types in which `Any` is right."""

OF_PYDANTIC = ("model_config", "model_copy")
"""Parts of a record that have the types of pydantic."""


def list_expressions(name: str) -> list[str]:
    """Return what has a type of `name`: a function itself, of a class its fields, properties and methods."""
    thing = None if name == "export_torch" else getattr(onnxfq, name)
    if not inspect.isclass(thing):
        return [f"onnxfq.{name}"]
    own = {*vars(thing), *getattr(thing, "__annotations__", ())} - {*OF_PYDANTIC}
    parts = sorted(part for part in own if not part.startswith("_"))
    return [f"onnxfq.{name}", *(f"one_{name}.{part}" for part in parts)]


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> list[str]:
    """The lines of mypy on the script, and on one that reveals the types of every public name."""
    pytest.importorskip("mypy", reason="mypy comes with the extra dev")
    folder = tmp_path_factory.mktemp("types")
    (folder / "mypy.ini").write_text(CONFIG)
    names = onnxfq.__all__
    lines = ["import onnxfq"]
    lines += [f"one_{name}: onnxfq.{name}" for name in names if len(list_expressions(name)) > 1]
    lines += [f"reveal_type({one})  # {name}" for name in names for one in list_expressions(name)]
    (folder / "revealed.py").write_text("\n".join(lines))
    kept = getattr(request.config, "cache", None)  # not there with -p no:cacheprovider
    cache = kept.mkdir("mypy") if kept else folder / "cache"
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--no-pretty",
        "--cache-dir",
        str(cache),
        str(SCRIPT),
        "revealed.py",
    ]
    # An installed package is found by its py.typed; a checkout that is run as it is, by this variable.
    found = os.environ | ({} if PACKAGE.parent.name == "site-packages" else {"MYPYPATH": str(PACKAGE.parent)})
    ended = subprocess.run(command, cwd=folder, env=found, capture_output=True, text=True)
    assert not ended.stderr
    return [
        line.replace("revealed.py", f"{lines[int(line.split(':')[1]) - 1]}")
        if line.startswith("revealed.py")
        else line
        for line in ended.stdout.splitlines()
    ]


def test_the_script_uses_every_public_name() -> None:
    """A new public name comes with a line of a user."""
    used = set(re.findall(r"\bonnxfq\.(\w+)", SCRIPT.read_text(encoding="utf-8")))
    assert used == set(onnxfq.__all__)


def test_a_script_of_a_user_has_no_error(said: list[str]) -> None:
    """It passes `mypy --strict`."""
    assert (PACKAGE / "py.typed").exists()
    assert not [line for line in said if ": error:" in line]


def test_types_are_known(said: list[str]) -> None:
    """No signature and no field has `Any` where the type is known; each exception has its reason."""
    revealed = {}
    for line in said:
        if "Revealed type is" in line:
            revealed.setdefault(line.partition("# ")[2].partition(":")[0], []).append(line)
    assert revealed.keys() == set(onnxfq.__all__)
    leaking = {
        name: [
            line for line in lines if re.search(r"\bAny\b", KNOWN.sub("array", line.partition("Revealed")[2]))
        ]
        for name, lines in revealed.items()
    }
    assert {name for name, lines in leaking.items() if lines} == set(ALLOWED), leaking
