"""The script that runs the suite of an imitated library, on suites of three tests."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("onnxscript")

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).parents[1] / "slow" / "check_suites.py"


def run(*words):
    """Return the script's exit code and output."""
    command = [sys.executable, SCRIPT, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.whole
def test_a_suite_is_fetched_by_the_user(tmp_path):
    """A folder that is missing is a line that says how to fetch it."""
    code, text = run("pytorch-quantization", tmp_path / "none")
    assert code == 2 and "fetch the suite: git clone" in text


@pytest.mark.whole
def test_tests_of_the_original_see_our_objects(tmp_path):
    """Names are the original's, CUDA is the CPU, families and totals are printed, outcomes are written."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_some.py").write_text(
        """
import torch
from pytorch_quantization import nn as quant_nn, tensor_quant
from pytorch_quantization.nn.modules.quant_conv import Conv2d
torch.set_default_tensor_type("torch.cuda.FloatTensor")
def test_ours():
    assert tensor_quant.__name__ == "onnxfq.torch.compat.nvidia.tensor_quant"
    assert Conv2d is quant_nn.QuantConv2d
def test_cuda():
    x = torch.ones(2, device="cuda").cuda().to("cuda:0")
    assert quant_nn.Linear(2, 2).cuda()(x).device.type == "cpu"
def test_wrong():
    assert False
"""
    )
    results = tmp_path / "results.json"
    code, text = run("pytorch-quantization", tmp_path, "--results", results)
    assert code == 1  # fewer than the suite of the original has
    assert text.splitlines()[-1] == "2 passed, 1 failed"
    assert any(
        line.split() == ["tests.test_some", "2", "passed", "1", "failed"] for line in text.splitlines()
    )
    assert json.loads(results.read_text())["tests.test_some.test_wrong"] == "failed"


@pytest.mark.parametrize(
    ("suite", "sentence"),
    [
        ("AIMET", "{tests} on a machine without a GPU: aimet-torch 2.42 passes 475, and onnxfq {passed} "),
        ("pytorch-quantization", "{passed} of {tests} pass and {skipped} are skipped."),
    ],
)
def test_the_pages_tell_what_passes(suite, sentence):
    """docs/migrating.md has the totals of the last run in the page of checks."""
    text = (ROOT / "benchmarks" / "results" / "checks.md").read_text(encoding="utf-8")
    last = text.split(f"## suite of {suite}\n")[1].split("```")[1]
    totals = re.search(r"(\d+) skipped\n(\d+) passed, (\d+) failed", last)
    skipped, passed, failed = map(int, totals.groups())
    wanted = sentence.format(tests=skipped + passed + failed, passed=passed, skipped=skipped)
    assert wanted in " ".join((ROOT / "docs" / "migrating.md").read_text(encoding="utf-8").split())


def test_each_failure_of_aimets_suite_has_a_reason():
    """The rows of the table in docs/migrating.md sum to the failures of the last run."""
    checks, page = (
        (ROOT / name).read_text(encoding="utf-8")
        for name in ("benchmarks/results/checks.md", "docs/migrating.md")
    )
    failed = re.search(r"\d+ passed, (\d+) failed", checks.split("## suite of AIMET\n")[1])[1]
    table = page.split("| tests | failed | reason |")[1].split("\n\n")[0]
    assert sum(map(int, re.findall(r"^\| [^|]+ \| (\d+) \|", table, re.MULTILINE))) == int(failed)
