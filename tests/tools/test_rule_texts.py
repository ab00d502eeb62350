"""Rules of `check` have a code, a text that explains it, and a way to leave them out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from builders import build, feed_for, weights

import onnxfq
from onnxfq.cli.main import main
from onnxfq.errors import RecipeError
from onnxfq.targets.target import TARGETS
from onnxfq.tools.explain_rules import explain_rule, list_rules

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of a recipe of one target, which another refuses."""
    path = tmp_path_factory.mktemp("rules") / "q%.onnx"
    proto = build("g (float[N,8] x) => (float[N,4] y) { y = MatMul (x, w) }", {"w": weights(8, 4)})
    onnxfq.quantize(proto, [feed_for(proto, seed) for seed in range(4)], path, recipe="tensorrt-int8")
    return path


def test_every_rule_of_the_pages_has_a_text() -> None:
    """The tables of the pages and the texts have the same codes; a text is one of sentences."""
    written = set()
    for name in TARGETS:
        page = DOCS / f"{name}.md"
        lines = page.read_text(encoding="utf-8").splitlines() if page.exists() else []
        for line in lines:
            if re.match(r"\| (?:`[a-z0-9-]+`|[a-z ,]+\|)", line):
                written |= set(re.findall(r"`([a-z0-9]+(?:-[a-z0-9]+)+)`", line))
    known, recipes = list_rules(), {f"tensorrt-{one}" for one in FORMATS}
    assert written - known.keys() <= recipes | {"weight-only"}
    assert len(known) > 80
    for code, texts in known.items():
        assert all(text.endswith(".") or text.endswith("`") for text in texts.values()), (code, texts)


FORMATS = ("fp8", "int4", "int8", "int8-weights", "mxfp8", "nvfp4")


def test_findings_have_texts() -> None:
    """Each finding of `check` in a wrong model can be looked up."""
    proto = build("g (float[N,8] x) => (float[N,4] y) { y = MatMul (x, w) }", {"w": weights(8, 4)})
    for recipe in ("tensorrt-int8", "tensorrt-int8-weights"):
        made = onnxfq.quantize(proto, [feed_for(proto, seed) for seed in range(4)], recipe=recipe).qdq
        for target in ("onnxruntime", "openvino", "qnn", "tensorrt"):
            for found in onnxfq.check(made, target, build=False).findings:
                assert target in list_rules()[found.rule] or "" in list_rules()[found.rule]


def test_the_command_explains(capfd: pytest.CaptureFixture[str]) -> None:
    """A code is enough; an unknown one has the nearest."""
    assert main(["check", "--explain", "saturation"]) == 0
    said = capfd.readouterr().out
    assert said.startswith("saturation of onnxruntime\n\nWarn of neighbouring weights") and "VNNI" in said
    assert main(["check", "--explain", "saturatoin"]) == 1
    assert "no rule of check is called 'saturatoin'; nearest: saturation" in capfd.readouterr().err
    with pytest.raises(RecipeError, match="no rule of check is called 'x'"):
        explain_rule("x")


def test_rules_are_left_out(wrong: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Without the findings of all its rules a model passes, and the text counts them."""
    line = ["check", str(wrong), "--target", "qnn"]
    assert main(line) == 1
    codes = set(re.findall(r"^(?:refused|wrong|float) +([a-z-]+)", capfd.readouterr().out, re.MULTILINE))
    assert codes
    ignored = [word for code in codes for word in ("--ignore", code)]
    assert main([*line, *ignored]) == 0
    assert re.search(r"^ignored +\d+ ", capfd.readouterr().out, re.MULTILINE)
    assert main([*line, "--ignore", "nothing"]) == 1
    assert "no rule of check is called 'nothing'" in capfd.readouterr().err


def test_annotations_of_github(wrong: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Each finding is a workflow command with file, code and message, escaped as GitHub's runner reads it.

    Source: "Workflow commands for GitHub Actions", Setting an error message.
    """
    assert main(["check", str(wrong), "--target", "qnn", "--github"]) == 1
    said = capfd.readouterr().out
    found = re.findall(r"^::(error|warning) file=(.*?),title=([a-z-]+)::(.*)$", said, re.MULTILINE)
    result = onnxfq.check(wrong, "qnn")
    kinds = [("warning" if one.severity == "warning" else "error", one.rule) for one in result.findings]
    assert kinds == [(kind, rule) for kind, _, rule, _ in found]
    for _, path, _, text in found:
        assert path == str(wrong).replace("%", "%25") and "%" not in re.sub("%25|%0A", "", text)
