"""The layers of the package: who may import whom."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from pathlib import Path

import pytest

import onnxfq
from onnxfq.cli.main import COMMANDS

PACKAGE = Path(onnxfq.__file__).parent
MODULES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
ROOMS = (
    "errors",
    "version",
    "choices",
    "support",
    "numerics",
    "metrics",
    "data",
    "graph",
    "calibration",
    "runtime",
    "documents",
    "quantized",
    "placement",
    "interchange",
    "checkpoints",
    "passes",
    "targets",
    "execution",
    "stages",
    "layers",
    "judging",
    "remedies",
    "tools",
    "diagnosis",
    "quantizing",
    "report",
    "torch",
    "plot",
    "cli",
    "__main__",
    "",
)
"""The folders and files of the package, the ground first: each imports from those before it only."""
HOMES = {
    "onnxruntime": {"runtime"},
    "PIL": {"data"},
    "torch": {"torch"},
    "ray": {"execution"},
    "tensorrt_rtx": {"targets"},
    "openvino": {"targets"},
    "onnxruntime_qnn": {"targets"},
    "onnx_graphsurgeon": set("graph passes placement quantized targets stages layers tools".split()),
}


def part_of(module: str) -> str:
    """Return the module or folder of the package that `module` belongs to; empty for the root."""
    return (module.split(".") + [""])[1]


@functools.cache
def imports(module: str) -> set[str]:
    """Return every module that `module` imports, at its top or inside a function."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports relatively"
            assert node.module is not None
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                found.add(full if full in MODULES else node.module)
    return found


def folder_of(module: str) -> str:
    """Return the folder that the file of `module` is in."""
    return str(MODULES[module].parent.relative_to(PACKAGE))


def assert_no_cycle(edges: dict[str, set[str]]) -> None:
    """Take away what needs nothing that is left, until nothing is left."""
    while edges:
        free = [name for name, needs in edges.items() if not needs & set(edges)]
        assert free, f"a cycle among {sorted(edges)}"
        for name in free:
            del edges[name]


def test_every_module_has_a_room() -> None:
    """A new folder or file at the top is given a place in the list."""
    assert {part_of(module) for module in MODULES} == set(ROOMS)


def test_imports_look_down() -> None:
    """A module imports from its own room and from rooms below only."""
    assert not [
        f"{module} imports {other}"
        for module in MODULES
        for other in imports(module)
        if other.split(".")[0] == "onnxfq" and ROOMS.index(part_of(other)) > ROOMS.index(part_of(module))
    ]


def test_folders_of_a_room_have_no_cycle() -> None:
    """Folders of a room import each other in one direction only; an `__init__.py` may offer all of it."""
    edges: dict[str, set[str]] = {folder_of(module): set() for module in MODULES if part_of(module)}
    for module, path in MODULES.items():
        if path.name != "__init__.py" and part_of(module):
            same = {other for other in imports(module) & MODULES.keys() if part_of(other) == part_of(module)}
            edges[folder_of(module)] |= {folder_of(other) for other in same} - {folder_of(module)}
    assert_no_cycle(edges)


def test_foreign_libraries_have_one_home() -> None:
    """A library that few need, or that has quirks, is imported where it lives only."""
    assert not [
        f"{module} imports {other}"
        for module in MODULES
        for other in imports(module)
        if part_of(module) not in HOMES.get(other.split(".")[0], {part_of(module)})
    ]


def test_modules_have_no_cycle() -> None:
    """Imports between modules, packages included, make no cycle."""
    assert_no_cycle({m: {o for o in imports(m) if o in MODULES and o != m} for m in MODULES})


@pytest.mark.sample
@pytest.mark.parametrize(
    ("statement", "libraries"),
    [
        ("import onnxfq, onnxfq.cli.main", "numpy onnx onnxruntime pydantic"),
        ("from onnxfq import quantize, evaluate, check, diagnose", "torch matplotlib jinja2 rich ray"),
        ("from onnxfq.cli.main import main; main(['--help'])", "numpy onnx onnxruntime pydantic"),
        ("from onnxfq.cli.main import main; main(['--wrong'])", "numpy onnx onnxruntime pydantic"),
        ("from onnxfq.tools import inspect, diff", "onnxruntime rich matplotlib"),
        ("from onnxfq.quantizing import pipeline", "matplotlib jinja2"),
        ("import onnxfq; onnxfq.plot.histogram; onnxfq.write_report", "matplotlib"),
    ],
)
def test_slow_libraries_are_not_imported(statement: str, libraries: str) -> None:
    """A library that takes a good part of a second is left alone until it is asked for."""
    code = (
        f"{statement}; import sys; sys.exit(' '.join(set({libraries.split()!r}) & sys.modules.keys()) or 0)"
    )
    run = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_wrong_usage_imports_no_stage() -> None:
    """A wrong option of any subcommand is refused before a library or a room of stages is imported."""
    code = """if True:
        import sys
        from onnxfq.cli.main import COMMANDS, main
        for command in COMMANDS:
            assert main([command, "--nope"]) == 2, command
        parts = {name.split(".")[1] for name in sys.modules if name.startswith("onnxfq.")}
        assert parts <= {"choices", "cli", "errors", "support", "version"}, parts
        assert not {"numpy", "onnx", "onnxruntime"} & sys.modules.keys()
    """
    run = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-500:]
    assert run.stderr.count("No such option: --nope") == run.stderr.count("\n") == len(COMMANDS)
