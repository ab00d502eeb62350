"""Each planted mistake is named by its rule, and is one for TensorRT's real builder as well."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import onnx
import pytest
from engines import needs_builder
from planted import CASES, Planted

from onnxfq import targets
from onnxfq.targets.profiles import profiles
from onnxfq.targets.reading.context import read
from onnxfq.targets.tensorrt.builder.build import capabilities
from onnxfq.targets.tensorrt.builder.jobs import Job, Report, run_jobs
from onnxfq.targets.tensorrt.builder.layers import parse_layers, verdict
from onnxfq.targets.tensorrt.rules.structure import EXTRA, STANDARD, UNSUPPORTED
from onnxfq.tools.check import check

FOLDER = Path(targets.__file__).parent
SOURCES = sorted([*FOLDER.glob("reading/*.py"), *FOLDER.rglob("tensorrt/**/*.py")])
OTHERS = {"openvino": "test_openvino", "onnxruntime": "test_check_onnxruntime", "qnn": "test_qnn"}
GUIDE = Path(__file__).parents[2] / "docs" / "tensorrt.md"


def by_name(case: Planted) -> str:
    """Return the name of a case."""
    return case.name


@pytest.mark.parametrize("case", CASES, ids=by_name)
def test_rule_names_the_mistake(case: Planted) -> None:
    """The mistake gives the finding it is planted for and no other rule's; a clean model gives none."""
    result = check(case.make())
    found = [(f.severity, f.rule, f.node) for f in result.findings]
    assert found[:1] == ([(case.severity, case.rule, case.node)] if case.rule else []), result.table()
    # Operators of opset 27 are in models at opset 27, which classic TensorRT does not take either.
    assert {rule for _, rule, _ in found} <= {case.rule, "classic-opset"}, result.table()
    assert result.passed == (case.severity in ("", "warning"))
    for finding in result.findings:
        assert "\n" not in finding.message and len(finding.message) < 300


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Report]:
    """Results of the builder for every case, by its name."""
    folder, jobs = tmp_path_factory.mktemp("planted"), []
    for number, case in enumerate(CASES):
        reading = read(case.make(), EXTRA)
        path = Path(folder / f"{number}.onnx")
        onnx.save(reading.proto, path)
        jobs.append(Job(path, capabilities(reading)[0], profiles(reading.proto, {})))
    return dict(zip(map(by_name, CASES), run_jobs(jobs, seconds=60), strict=True))


@needs_builder
@pytest.mark.parametrize("case", CASES, ids=by_name)
def test_builder_agrees(case: Planted, reports: dict[str, Report]) -> None:
    """TensorRT for RTX refuses, crashes, or runs the node in the precision that the rule tells."""
    report = reports[case.name]
    stage, _, text = case.real.partition(" ")
    if stage == "crash":
        assert report.ended
    elif stage == "parser":
        assert not report.ended and not report.parsed
        assert text in " ".join(fault[2] for fault in report.faults)
    elif stage == "builder":
        assert report.parsed and not report.built
        assert text in " ".join(report.errors)
    else:
        assert report.built, (report.faults, report.errors, report.ended)
        (node,) = {n.name for n in onnx_nodes(case)} & {"mm", "conv"}
        assert verdict(parse_layers(report.layers), node) == case.real


def onnx_nodes(case: Planted) -> list[onnx.NodeProto]:
    """Return the nodes of a case, bodies included."""
    return [site.node for site in read(case.make(), EXTRA).sites]


def rules_in(paths: Iterable[Path]) -> set[str]:
    """Return the names of the rules in these sources."""
    calls = re.compile(r'(?:finding\(\s*|Finding\(rule=|TargetLimit\(\s*|needs_both\("\w+", )"([a-z0-9-]+)"')
    return {name for path in paths for name in calls.findall(path.read_text(encoding="utf-8"))}


@pytest.mark.parametrize("target", OTHERS)
def test_rules_of_other_targets_are_tried_and_told(target: str) -> None:
    """Each rule of a target is in the tests that ask its runtime, and in its guide."""
    names = rules_in((FOLDER / target).glob("*.py"))
    files = Path(__file__).parent.glob(f"{OTHERS[target]}*.py")
    tests = "".join(path.read_text(encoding="utf-8") for path in files)
    guide = GUIDE.with_name(f"{target}.md").read_text(encoding="utf-8")
    assert len(names) > 3
    assert not {name for name in names if f'"{name}"' not in tests or f"`{name}`" not in guide}


@pytest.mark.sample
def test_every_rule_is_planted_and_told() -> None:
    """Each rule of the code has a planted mistake and stands in the guide."""
    # These need a GPU by name or are of other targets, and have their own tests.
    names = rules_in(SOURCES) - {"engine", "gpu", "session-form"}
    assert names == {case.rule for case in CASES} - {""}
    guide = GUIDE.read_text(encoding="utf-8")
    assert [name for name in sorted(names) if f"`{name}`" not in guide] == []


@needs_builder
def test_operators_are_those_of_the_parser() -> None:
    """The operators that the rules know are those that the parser says it supports."""
    trt = pytest.importorskip("tensorrt_rtx")
    logger = trt.Logger(trt.Logger.INTERNAL_ERROR)
    parser = trt.OnnxParser(trt.Builder(logger).create_network(0), logger)
    latest = {schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == ""}
    assert {name for name in latest if not parser.supports_operator(name)} == latest & UNSUPPORTED
    assert all(parser.supports_operator(name) for name in EXTRA) and not EXTRA & STANDARD
