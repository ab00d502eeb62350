"""Shared by tests of several folders: the shipped digits, and a logger that no test leaves changed."""

from __future__ import annotations

import gc
import json
import logging
import os
import re
import signal
import sys
import zlib
from collections import Counter, defaultdict
from collections.abc import Generator, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
from durations import DEAR, RECORD, duration_of, is_sampled, read_durations, spent_seconds
from integer_kernels import SATURATES, sums_saturate
from skips import remedy_of

from onnxfq.runtime import device_choice as choice
from onnxfq.support.resources import package_file

# For the workers, and for commands that tests start: they share the cores, and threads for every core in each
# of them would wait for one another. A Cholesky factor of 144 columns took 300 times as long.
for _pool in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(_pool, "1")
# Else each command that tests start would compile the whole package.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A busy machine is not a fault of the code, so no example has a deadline.
# Each run draws the same ones: no verdict is by chance. --all-cases draws others, and more of them.
hypothesis.settings.register_profile("onnxfq", deadline=None, derandomize=True, max_examples=50)
hypothesis.settings.register_profile("drawn", deadline=None)
hypothesis.settings.load_profile("onnxfq")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the device of the kernel tests, and how many of what is drawn at random."""
    parser.addoption(
        "--device", choices=("cpu", "cuda"), default="cpu", help="where the tests of custom_ops run kernels"
    )
    parser.addoption("--random-graphs", type=int, default=60, help="graphs drawn (CI: 60)")
    parser.addoption("--all-opsets", action="store_true", help="every opset with every recipe")
    parser.addoption("--all-ways", action="store_true", help="every option in every way of feeding")
    parser.addoption("--all-cases", action="store_true", help="every case of tests that take a sample")
    parser.addoption("--damaged-files", type=int, default=120, help="files damaged (CI: 120)")
    parser.addoption("--test-seconds", type=int, default=600, help="a test that takes longer hangs")
    parser.addoption("--whole", action="store_true", help="every test; else dear files give a sample")
    parser.addoption("--record-durations", action="store_true", help=f"write {RECORD.name} at the end")


_SAMPLED = pytest.StashKey[bool]()
_spent: dict[str, float] = defaultdict(float)
_before = 0.0


def pytest_configure(config: pytest.Config) -> None:
    """Tell whether dear files give a sample, in a run that names no tests; and choose what is drawn."""
    given = getattr(config, "workerinput", None)
    named = config.args_source is pytest.Config.ArgsSource.ARGS
    whole = (
        config.getoption("--whole")
        or "ONNXFQ_WHOLE" in os.environ
        or config.getoption("--all-cases")
        or bool(config.getoption("-m"))
    )
    if config.getoption("--all-cases"):
        hypothesis.settings.load_profile("drawn")
    config.stash[_SAMPLED] = given["sampled"] if given is not None else not (named or whole)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker what the run is; it is started with names."""
    node.workerinput["sampled"] = node.config.stash[_SAMPLED]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave dear files without a sample unread."""
    if not config.stash[_SAMPLED] or collection_path.suffix != ".py":
        return None
    return True if duration_of(collection_path) >= DEAR and not is_sampled(collection_path) else None


def pytest_collection_finish() -> None:
    """Let exports share torch's table; leave what was collected out of the work of the garbage collector."""
    if "torch" in sys.modules and find_spec("onnxscript"):
        from exporter_functions import keep_functions

        keep_functions()
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """Note the processor time of each part of a test, with its children, if it is recorded."""
    global _before
    report = yield
    if item.config.getoption("--record-durations"):
        now = spent_seconds()
        report.processor, _before = now - _before if _before else 0.0, now
    return report


def pytest_runtest_logreport(report: Any) -> None:
    """Add up the processor time of files, of all workers."""
    _spent[report.nodeid.partition("::")[0].removeprefix("tests/")] += getattr(report, "processor", 0.0)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """List the skipped tests by reason, and how each kind of them is run."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = Counter(str(one.longrepr[2]).removeprefix("Skipped: ") for one in skipped)
    if reasons:
        terminalreporter.section("skipped, by reason")
    for reason, count in reasons.most_common():
        terminalreporter.line(f"{count:5} {reason}{'; ' if (how := remedy_of(reason)) else ''}{how}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the processor time of the files that ran; the others keep theirs."""
    if session.config.getoption("--record-durations") and not hasattr(session.config, "workerinput"):
        known = read_durations() | {file: round(seconds, 1) for file, seconds in _spent.items()}
        there = {file: known[file] for file in sorted(known) if (RECORD.parent / file).exists()}
        RECORD.write_text(json.dumps(there, indent=1) + "\n", encoding="utf-8")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put dear files first: with several workers no file is left for one of them at the end.

    A sample stays of grids and of dear files, and no dear test of a cheap one; pytest counts the others as
    deselected.
    """
    paths = {item.path for item in items}
    seconds = {path: duration_of(path) for path in paths}
    asking = {path for path in paths if NAMES_A_RUNTIME.search(path.read_text(encoding="utf-8"))}
    items.sort(key=lambda item: -seconds[item.path])
    for item in items:
        if item.path in asking:
            item.add_marker("runtime")
        if item.get_closest_marker("wide_sums") and sums_saturate():
            item.add_marker(pytest.mark.skip(SATURATES))
    left_out = set[pytest.Item]()
    if config.stash[_SAMPLED]:
        plain = [item for item in items if item.get_closest_marker("sample") is None]
        left_out |= {item for item in plain if seconds[item.path] >= DEAR}
        left_out |= {item for item in items if item.get_closest_marker("whole")}
    if not config.getoption("--all-cases"):
        left_out |= set(items) - choose_cases(items)
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]


NAMES_A_RUNTIME = re.compile(
    r"^from (?:engines|ort_quantizer|integer_kernels) |\b(?:builder_installed|openvino|onnxruntime_qnn)\b",
    re.MULTILINE,
)
"""Marks of a file of tests that asks TensorRT, OpenVINO, QNN, or ONNX Runtime's quantizer or kernels."""


def choose_cases(items: list[pytest.Item]) -> set[pytest.Item]:
    """Return the tests without a grid, and of each grid cases that have every value of every parameter.

    A case stays if it has a value that no case before it has. They are looked at in an order that only their
    names decide, so that the same cases stay on every machine. A share of one in n keeps each nth case.
    """
    grids = [item for item in items if item.get_closest_marker("grid")]
    chosen, cases = set(items) - set(grids), Counter[str]()
    for item in items:
        if share := item.get_closest_marker("share"):
            name = item.nodeid.partition("[")[0]
            chosen -= {item} if cases[name] % share.args[0] else set()
            cases[name] += 1
    seen: dict[str, set[tuple[str, int]]] = defaultdict(set)
    for item in sorted(grids, key=lambda item: zlib.crc32(item.nodeid.encode())):
        values = {(parameter, id(value)) for parameter, value in item.callspec.params.items()}
        name = item.nodeid.partition("[")[0]
        if not values <= seen[name]:
            chosen.add(item)
            seen[name] |= values
    return chosen


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test that hangs, where the system has the signal: the next test begins."""
    seconds = item.config.getoption("--test-seconds")

    def end(*_: object) -> None:
        pytest.fail(f"{item.nodeid} has not ended after {seconds} s", pytrace=True)

    if not hasattr(signal, "SIGALRM"):
        return (yield)
    signal.signal(signal.SIGALRM, end)
    signal.alarm(seconds)
    try:
        return (yield)
    finally:
        signal.alarm(0)


@pytest.fixture(scope="session")
def digits_model() -> Path:
    """The shipped network."""
    return package_file("digits", "digits_cnn.onnx")


@pytest.fixture(scope="session")
def digit_images() -> np.ndarray:
    """All 10,000 images as the network takes them."""
    with np.load(package_file("digits", "mnist_t10k.npz")) as data:
        return data["images"].reshape(-1, 1, 28, 28).astype(np.float32) / np.float32(255)


@pytest.fixture(autouse=True)
def auto_is_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests mean the CPU where they name no device, on machines with a GPU too."""
    monkeypatch.setattr(choice, "_choose_any", lambda: "cpu")


@pytest.fixture(autouse=True)
def same_draws() -> None:
    """Let torch, where it is imported, draw the same for each test, whatever ran before."""
    if hasattr(sys.modules.get("torch"), "manual_seed"):
        sys.modules["torch"].manual_seed(0)


@pytest.fixture(autouse=True)
def quiet_log() -> Iterator[None]:
    """Undo what the command line and scripts do to the package's logger, also in fixtures of a file."""

    def reset() -> None:
        logger = logging.getLogger("onnxfq")
        logger.handlers[:], logger.propagate = [], True
        logger.setLevel(logging.NOTSET)

    reset()
    yield
    reset()
