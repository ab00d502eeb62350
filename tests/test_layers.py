"""The layers of the package: who may import whom."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import onnxfq

PACKAGE = Path(onnxfq.__file__).parent
MODULES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
LAYERS = [
    {"errors"},
    {
        "qtypes",
        "float_types",
        "granularity",
        "metrics",
        "files",
        "package_files",
        "temporary",
        "text_table",
        "version",
    },
    {
        "aimet_range",
        "deployed",
        "documents",
        "dynamic_scales",
        "float_grid",
        "numerics",
        "qparams",
        "rounding",
        "spec",
    },
    {"encoding", "float_plan", "plan", "recipe", "statistics", "feeds", "labels", "scores", "calibrators"},
    {"graph", "half_scales", "made_scales"},
    {"interchange", "policies", "passes", "runtime"},
    {
        "accumulation",
        "calibration",
        "distribution",
        "evaluation",
        "float_remainder",
        "given_encodings",
        "insertion",
        "observation",
        "observers",
        "planning",
        "targets",
        "torch",
    },
    {"comparison", "conversion", "handoff", "pipeline", "reporting", "demo"},
    {"cli"},
    {"", "__main__"},
]
LAYER_OF = {part: level for level, parts in enumerate(LAYERS) for part in parts}
# Neighbours of one layer that build on each other; each is needed, and none runs the other way.
NEIGHBOURS = {
    ("files", "temporary"),
    ("float_grid", "rounding"),
    ("numerics", "rounding"),
    ("numerics", "float_grid"),
    ("dynamic_scales", "rounding"),
    ("dynamic_scales", "float_grid"),
    ("dynamic_scales", "numerics"),
    ("spec", "documents"),
    ("spec", "dynamic_scales"),
    ("aimet_range", "qparams"),
    ("recipe", "calibrators"),
    ("recipe", "plan"),
    ("labels", "feeds"),
    ("feeds", "statistics"),
    ("calibrators", "statistics"),
    ("distribution", "observation"),
    ("distribution", "observers"),
    ("observation", "accumulation"),
    ("observation", "observers"),
    ("observers", "accumulation"),
    ("float_plan", "plan"),
    ("float_remainder", "observation"),
    ("given_encodings", "calibration"),
    ("given_encodings", "planning"),
    ("insertion", "calibration"),
    ("float_remainder", "observers"),
    ("conversion", "pipeline"),
    ("comparison", "pipeline"),
    ("handoff", "pipeline"),
    ("reporting", "conversion"),
    ("reporting", "pipeline"),
    ("demo", "pipeline"),
    ("demo", "reporting"),
}
HOMES = {
    "onnxruntime": {"runtime"},
    "PIL": {"feeds"},
    "torch": {"torch"},
    "ray": {"distribution"},
    "tensorrt_rtx": {"targets"},
    "onnx_graphsurgeon": {"graph", "passes", "policies", "planning"},
}


def part_of(module: str) -> str:
    """Return the module or folder of the package that `module` belongs to; empty for the root."""
    return (module.split(".") + [""])[1]


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


def test_every_module_has_a_layer() -> None:
    """A new module or folder is given a place in the layers."""
    assert {part_of(module) for module in MODULES} == set(LAYER_OF)


@pytest.mark.parametrize("module", MODULES)
def test_imports_look_down(module: str) -> None:
    """A module imports lower layers, its own folder, and the listed neighbours only."""
    mine = part_of(module)
    for other in imports(module):
        if other.split(".")[0] != "onnxfq":
            continue
        theirs = part_of(other)
        allowed = theirs == mine or LAYER_OF[theirs] < LAYER_OF[mine] or (mine, theirs) in NEIGHBOURS
        assert allowed, f"{module} imports {other}"


def test_neighbours_are_needed() -> None:
    """An exception that nothing uses any more is removed."""
    used = {(part_of(m), part_of(o)) for m in MODULES for o in imports(m) if o.startswith("onnxfq")}
    assert NEIGHBOURS <= used
    assert {(b, a) for a, b in NEIGHBOURS} & used == set()


@pytest.mark.parametrize("module", MODULES)
def test_foreign_libraries_have_one_home(module: str) -> None:
    """A library that few need, or that has quirks, is imported where it lives only."""
    for other in imports(module):
        homes = HOMES.get(other.split(".")[0])
        assert homes is None or part_of(module) in homes, f"{module} imports {other}"


def test_modules_have_no_cycle() -> None:
    """Imports between modules, packages included, make no cycle."""
    edges = {m: {o for o in imports(m) if o in MODULES and o != m} for m in MODULES}
    while edges:
        free = [module for module, needs in edges.items() if not needs & set(edges)]
        assert free, f"a cycle among {sorted(edges)}"
        for module in free:
            del edges[module]


@pytest.mark.parametrize("statement", ["import onnxfq", "import onnxfq.cli.main"])
def test_torch_is_not_imported(statement: str) -> None:
    """torch, an extra that takes seconds, is left alone until it is asked for."""
    code = f"{statement}; import sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
