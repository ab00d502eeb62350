"""Runs the public test suite of a library that `onnxfq.torch.compat` imitates, against onnxfq.

    python tests/slow/check_suites.py SUITE [FOLDER] [--results FILE]

FOLDER is the library's folder as its authors publish it, with its tests; it is fetched by the user and never
part of this repository. Without FOLDER, build/suites/SUITE is taken. Requests for CUDA run on the CPU. The
exit code is 1 if fewer tests pass than should, and 2 if there is no suite.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent

SUITES = {"aimet": "suites.aimet", "pytorch-quantization": "suites.pytorch_quantization"}
"""The module of each suite: FETCH, TESTS, LEAST, and the hooks of a pytest plugin."""


def main() -> int:
    """Run the suite that is named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("suite", choices=SUITES)
    parser.add_argument(
        "folder", nargs="?", type=Path, help="the library's folder, default build/suites/SUITE"
    )
    parser.add_argument("--results", type=Path, help="write the outcome of each test, as JSON")
    given = parser.parse_args()
    suite = importlib.import_module(SUITES[given.suite])
    folder = (given.folder or ROOT / "build" / "suites" / given.suite).resolve()
    if not folder.is_dir():
        print(f"{folder} is missing; fetch the suite: {suite.FETCH}")
        return 2
    outcomes = run(folder, given.suite, suite.TESTS)
    if given.results is not None:
        given.results.write_text(json.dumps(outcomes, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    passed = print_families(outcomes)
    return 0 if passed >= suite.LEAST else 1


def run(folder: Path, suite: str, tests: tuple[str, ...]) -> dict[str, str]:
    """Return passed, failed or skipped for each test; a file that cannot be imported is one failed test."""
    paths = os.pathsep.join([str(HERE), str(ROOT), str(folder)])
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.xml"
        options = ["-p", SUITES[suite], "-q", "--tb=line", "-p", "no:cacheprovider", f"--junitxml={report}"]
        # PYTHONDONTWRITEBYTECODE: the folder stays as it was fetched.
        environment = os.environ | {"PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-m", "pytest", *options, *tests]
        subprocess.run(command, cwd=folder, env=environment, check=False)
        if not report.is_file():
            raise SystemExit(f"pytest made no report of {folder}; its last lines say why")
        cases = list(ElementTree.parse(report).iter("testcase"))
    return {f"{case.get('classname')}.{case.get('name')}".lstrip("."): outcome(case) for case in cases}


def outcome(case: ElementTree.Element) -> str:
    """Return what became of one test."""
    kinds = {child.tag for child in case}
    return "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"


def print_families(outcomes: dict[str, str]) -> int:
    """Print passed and failed tests of each file and class; return how many passed."""
    families: dict[str, Counter[str]] = {}
    for name, found in outcomes.items():
        families.setdefault(name.split("[")[0].rpartition(".")[0], Counter())[found] += 1
    width = max(map(len, families), default=0)
    for family, counts in sorted(families.items()):
        print(f"{family:<{width}}  {counts['passed']:4} passed {counts['failed']:4} failed")
    total = sum(families.values(), Counter())
    print(f"{total['skipped']} skipped")
    print(f"{total['passed']} passed, {total['failed']} failed")
    return total["passed"]


if __name__ == "__main__":
    sys.exit(main())
