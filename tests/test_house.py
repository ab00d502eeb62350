"""The size and shape of the house: one table of marks, and a test that measures each."""

from __future__ import annotations

import ast
import functools
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from subprocess import PIPE

import pytest
from durations import DEAR, is_sampled, read_durations, spent_seconds
from skips import CASES, REMEDIES

import onnxfq
from onnxfq.cli.main import COMMANDS

pytestmark = pytest.mark.sample
ROOT = Path(__file__).parents[1]
PACKAGE = Path(onnxfq.__file__).parent


@functools.cache
def trees() -> dict[str, ast.Module]:
    """Return the files of the package, parsed, by their path in it."""
    files = sorted(PACKAGE.rglob("*.py"))
    return {str(path.relative_to(PACKAGE)): ast.parse(path.read_text(encoding="utf-8")) for path in files}


@functools.cache
def walked() -> dict[str, list[ast.AST]]:
    """Return all nodes of these files."""
    return {file: list(ast.walk(tree)) for file, tree in trees().items()}


SAME_NAMES = {
    "FakeQuantize": "torch/compat has the class names of the libraries that it stands for: Horizon's",
    "QuantizedTensor": "torch/compat has the class names of the libraries that it stands for: AIMET's",
    "ExternalTensor": "graph/ has the values in a data file, interchange/ the scales from another tool",
}
"""Classes whose name stands more than once, with the reason; at most five."""


def names_in(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the names and attributes that nodes read, write or import."""
    return {
        getattr(node, field)
        for node in nodes
        for kind, field in ((ast.Name, "id"), (ast.Attribute, "attr"), (ast.alias, "name"))
        if isinstance(node, kind)
    }


def count_calls(name: str) -> int:
    """Return how often the package calls `name`."""
    return sum(
        isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) == name
        for nodes in walked().values()
        for node in nodes
    )


def judging_files() -> list[str]:
    """Return the files other than the judge's that name a least gain: each decides what is kept."""
    return [
        file
        for file, nodes in walked().items()
        if file != "judging/judge.py" and any(name.startswith("LEAST_GAIN") for name in names_in(nodes))
    ]


def feeding_files() -> list[str]:
    """Return the files of stages and of the shelf of remedies with a loop over feeds."""
    return [
        file
        for file, nodes in walked().items()
        if file.startswith(("stages/", "layers/", "judging/", "remedies/"))
        and any(
            isinstance(node, ast.For | ast.comprehension)
            and any(name.strip("_").endswith("feeds") for name in names_in(ast.walk(node.iter)))
            for node in nodes
        )
    ]


def count_hand_made_tables() -> int:
    """Return the number of comprehensions that make a table of `GraphIndex` again."""
    return sum(
        isinstance(node, ast.DictComp | ast.SetComp) and _is_table(node)
        for file, nodes in walked().items()
        if file != "graph/index.py"
        for node in nodes
    )


def _is_table(made: ast.DictComp | ast.SetComp) -> bool:
    source = getattr(made.generators[-1].iter, "attr", "")
    if source == "initializer":
        return getattr(made.key if isinstance(made, ast.DictComp) else made.elt, "attr", "") == "name"
    nodes = [one.target.id for one in made.generators[:-1] if isinstance(one.target, ast.Name)]
    return source == "output" and isinstance(made, ast.DictComp) and getattr(made.value, "id", "") in nodes


def body_of_quantize() -> int:
    """Return the lines of `pipeline.quantize` behind its docstring."""
    *_, function = [
        n
        for n in trees()["quantizing/pipeline.py"].body
        if isinstance(n, ast.FunctionDef) and n.name == "quantize"
    ]
    return (function.end_lineno or 0) - (function.body[0].end_lineno or 0)


def lines_of(file: str) -> int:
    """Return the number of lines of a file of the package."""
    return len((PACKAGE / file).read_text(encoding="utf-8").splitlines())


MARKS: dict[str, tuple[int, Callable[[], int]]] = {
    "files beside judging/judge.py that name a least gain": (1, lambda: len(judging_files())),
    "files of stages/ and of the shelf of remedies that loop over feeds": (11, lambda: len(feeding_files())),
    "tables of makers and of constants beside GraphIndex, in data/ below it": (1, count_hand_made_tables),
    "commands": (18, lambda: len(COMMANDS)),
    "files in stages/": (18, lambda: sum(file.startswith("stages/") for file in trees()) - 1),
    "lines in the body of pipeline.quantize": (10, body_of_quantize),
    "lines of pipeline.py": (185, lambda: lines_of("quantizing/pipeline.py")),
    "classes in pipeline.py": (
        0,
        lambda: sum(isinstance(n, ast.ClassDef) for n in trees()["quantizing/pipeline.py"].body),
    ),
    "lines of the longest file": (581, lambda: max(map(lines_of, trees()))),
    "calls of prepare_model": (17, lambda: count_calls("prepare_model")),
    "calls of _select_part, by which only calibrating knows what is encoded": (
        2,
        lambda: count_calls("_select_part"),
    ),
}
"""What is counted, and the most that it may be. A mark is lowered whenever a change allows it."""


def code_lines(file: str) -> int:
    """Return the lines of a file with code: no docstrings, imports, comments or blank lines."""
    text = (PACKAGE / file).read_text(encoding="utf-8")
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            lines |= set(range(token.start[0], token.end[0] + 1))
    for node in walked()[file]:
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node, ast.Import | ast.ImportFrom) or is_text:
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}

ROOM_LINES: dict[str, int] = {
    "": 222,  # choices of rotations; no room fell
    "calibration": 2436,  # ranges with room for values that the samples lack; no room fell
    "checkpoints": 1344,  # bits and groups that no layer has are refused; no room fell
    "cli": 1946,  # products that measured times leave in float; no room fell
    "data": 1863,  # padding that a mask hides is cut off, or filled; no room fell
    "diagnosis": 2072,  # weights of few bits in MatMulNBits and QMoE; targets fell
    "documents": 1619,  # caches of 4 bits have ranges of least error; no room fell
    "execution": 1223,  # inputs of layers are read where the model runs; no room fell
    "graph": 5094,  # bounds of tensors, at which ranges end; calibration fell
    "interchange": 1367,  # graphs of a folder as one model, to evaluate them together; no room fell
    "judging": 1255,  # estimates of gains that gate remedies, weights that combinations share; numerics fell
    "layers": 973,  # massive rows are left out of moments; no room fell
    "metrics": 427,  # errors of functions of users name what these get; no room fell
    "numerics": 1178,  # small floats and grids of ranges by one formula for NumPy and torch; torch fell
    "passes": 1769,  # means of any input are taken away; no room fell
    "placement": 1749,  # keys keep two scales in pairs that the context turns little; no room fell
    "quantized": 1525,  # turned weights are stored as integers; torch fell
    "quantizing": 359,  # the word for folders of checkpoints; torch fell
    "remedies": 1836,  # keys of caches without their mean; no room fell
    "report": 1241,  # a file without pairs has its verdict; no room fell
    "runtime": 1549,  # freed graphs are given back after growth; no room fell
    "stages": 1975,  # ranges end at the bounds of tensors; calibration fell
    "support": 1374,  # errors of functions of users name what these get; no room fell
    "targets": 6407,  # pairs in front of a Relu at the end of a branch; no room fell
    "tools": 1794,  # weights in blocks are listed; targets fell
    "torch": 5920,  # keys and masks of attentions as torch exports them, what LSTM and GRU read; no room fell
}
"""Lines of code of each room, and of the files at the top as "". A number falls with a change that allows it.

It rises only with a comment beside it that names the ability, and the room that became smaller.
"""


def test_rooms_do_not_grow() -> None:
    """No room has more lines of code than the table says, and the table is not out of date by over 20."""
    counts: Counter[str] = Counter()
    for file in trees():
        room, _, rest = file.partition("/")
        counts[room if rest else ""] += code_lines(file)
    assert counts.keys() == ROOM_LINES.keys()
    off = {
        room: (counts[room], most)
        for room, most in ROOM_LINES.items()
        if not most - 20 <= counts[room] <= most
    }
    assert not off


@pytest.mark.parametrize("name", MARKS)
def test_marks(name: str) -> None:
    """Nothing grows over its mark."""
    most, measure = MARKS[name]
    assert measure() <= most


def test_class_names_are_unique() -> None:
    """A class has its name alone in the package; the exceptions are few, and none is out of date."""
    names = Counter(n.name for tree in trees().values() for n in tree.body if isinstance(n, ast.ClassDef))
    assert len(names) > 200
    assert {name for name, count in names.items() if count > 1} == set(SAME_NAMES)
    assert len(SAME_NAMES) <= 5


def imported_modules(path: Path) -> Iterator[str]:
    """Yield the modules that a file imports, and what it imports from them, with dots."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module or ''}.{alias.name}" for alias in node.names)


def test_no_test_imports_a_test() -> None:
    """What several files of tests use lies in a module of its own below tests/."""
    tests = sorted((ROOT / "tests").rglob("*.py"))
    files = {path.stem for path in tests if path.stem.startswith("test_")}
    assert len(files) > 150
    assert not {
        f"{path.relative_to(ROOT)}: {module}"
        for path in tests
        if files & set(re.findall(r"\w+", path.read_text(encoding="utf-8"))) - {path.stem}
        for module in imported_modules(path)
        if files & set(module.split("."))
    }


def test_reasons_of_skipped_tests_are_known() -> None:
    """A test is skipped for hardware, a package, a folder, a system or a case: no test runs nowhere."""
    reasons: set[str] = set()
    for path in (ROOT / "tests").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        reasons |= set(re.findall(r'(?:reason=|pytest\.skip\()f?"([^"]+)"', text))
    known = re.compile("|".join([*REMEDIES, CASES.pattern]))
    assert len(reasons) > 40 and not {reason for reason in reasons if not known.search(reason)}
    assert {"make gpu", "make qnn, behind the licence of onnxruntime-qnn"} < set(REMEDIES.values())
    recipes = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert all(
        f"\n{how.split()[1].strip(',')}:" in recipes for how in REMEDIES.values() if how.startswith("make ")
    )


VERDICT = 480.0
"""Seconds of processor time for the files that a plain `pytest` runs whole; collecting comes on top."""


def test_the_verdict_is_quick() -> None:
    """Every file of tests has its processor time on record; those that a plain `pytest` runs take minutes."""
    durations = read_durations()
    files = {str(path.relative_to(ROOT / "tests")) for path in (ROOT / "tests").rglob("test_*.py")}
    assert not files ^ durations.keys(), "make durations"
    assert sum(seconds for seconds in durations.values() if seconds < DEAR) <= VERDICT
    dear = {file for file, seconds in durations.items() if seconds >= DEAR}
    sampled = {file for file in dear if is_sampled(ROOT / "tests" / file)}
    assert len(sampled) > 10


def test_processor_time_has_children_that_live() -> None:
    """A server of commands ends behind the last test, and its time is of the tests that asked it."""
    before = spent_seconds()
    work = "import time\nwhile time.process_time() < .5: pass\nprint(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", work], stdin=PIPE, stdout=PIPE) as child:
        assert child.stdout is not None and child.stdout.readline()
        alive = spent_seconds() - before
        child.communicate(b"\n")
    assert 0.4 < alive <= spent_seconds() - before + 0.05  # the clock of processes has steps of .01 s


@pytest.mark.parametrize("file", ["Makefile", ".ci/run", "scripts/gpu_check.sh", "tests/slow/run_all.py"])
def test_lists_of_files_are_true(file: str) -> None:
    """Every test, benchmark and script that a list of checks names is there."""
    named = set(re.findall(r"\b(?:tests|scripts|benchmarks)/[\w/]+(?:\.\w+)?", (ROOT / file).read_text()))
    assert named
    assert not {name for name in named if not (ROOT / name).exists()}
