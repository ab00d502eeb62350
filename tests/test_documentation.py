"""README and docs: every command and every Python block is executed, every link leads somewhere."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import build, feed_for, linear, weights
from checkpoint_graphs import CHECKPOINTS, FLOAT, builder_graph
from command_server import CommandServer, command_server
from genai_folders import WORDS
from genai_folders import write_folder as write_genai_folder
from integer_kernels import SATURATES, sums_saturate
from loops import loop_over
from pages import BLOCK, INSTALLS, ROOT, TUTORIALS, blocks, steps
from short_digits import short_digits

import onnxfq
from onnxfq.judging.accuracy_target import AccuracyTarget
from onnxfq.quantizing.pipeline import quantize
from onnxfq.runtime.session import Session

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.fixture(scope="module")
def workdir(tmp_path_factory: pytest.TempPathFactory, digit_images: np.ndarray) -> Path:
    """A folder with the files that pages begin with: digits and their classes, a decoder, checkpoints."""
    folder = tmp_path_factory.mktemp("pages")
    onnx.save(short_digits(), folder / "model.onnx")
    np.savez(folder / "calibration.npz", image=digit_images[8000:8020])
    logits = Session(short_digits(), 1).run({"image": digit_images[8500:8700]})[0]
    clear = np.argsort(np.diff(np.sort(logits)[:, -2:])[:, 0])[-20:]
    np.savez(folder / "test.npz", image=digit_images[8500:8700][clear])
    np.save(folder / "labels.npy", logits[clear].argmax(1))
    for_cpu = quantize(folder / "model.onnx", folder / "calibration.npz", recipe="onnxruntime-int8")
    onnx.save(for_cpu.qdq, folder / "model.onnxruntime.onnx")
    sizes = {"table": (64, 256), "up": (256, 512), "down": (512, 256), "last": (256, 64)}
    decoder = build(
        """g (int64[N,S] input_ids) => (float[N,S,64] logits) {
            [embed] e = Gather (table, input_ids)
            [up] h = MatMul (e, up)
            [act] r = Relu (h)
            [down] d = MatMul (r, down)
            [add] s = Add (e, d)
            [head] logits = MatMul (s, last) }""",
        {name: weights(*shape) / np.float32(shape[0] ** 0.5) for name, shape in sizes.items()},
    )
    onnx.save(decoder, folder / "decoder.onnx")
    write_genai_folder(folder / "float")
    (folder / "texts.txt").write_text(" ".join(np.random.default_rng(0).choice(WORDS, 1000)))
    shutil.copytree(FLOAT, folder / "llama")
    shutil.copytree(CHECKPOINTS / "awq", folder / "llama-awq")
    onnx.save(builder_graph(), folder / "llama.onnx")
    np.savez(folder / "tokens.npz", input_ids=np.random.default_rng(0).integers(0, 64, (16, 24)))
    return folder


@pytest.fixture(scope="module")
def server() -> Iterator[CommandServer]:
    """Runs commands of onnxfq, and Python, without the imports of each."""
    with command_server("torch.onnx", "torch.export", "onnxscript", "short_times") as made:
        yield made


def run_page(page: Path, folder: Path, server: CommandServer) -> str:
    """Run every command and every Python block of a page in `folder`; return what commands print.

    `onnxfq demo` is left out if its files are there; tests/cli/test_demo.py runs it.
    """
    printed = ""
    for program, arguments in steps(page, folder):
        if arguments == ["demo"] and (folder / "onnxfq-demo").exists():
            continue
        done = server.run(arguments, folder, seconds=600, program=program)
        assert done.code == 0, (arguments, done.out + done.err)
        printed += done.out if program == "onnxfq" else ""
    return printed


def sampled(pages: Iterable[Path], one: str) -> list[Any]:
    """Mark the page with the stem `one`, which stands for all where a run takes a sample."""
    marks = {one: pytest.mark.sample}
    return [pytest.param(page, marks=marks.get(page.stem, ()), id=page.name) for page in pages]


@pytest.mark.parametrize("page", sampled((page for page in PAGES if page not in TUTORIALS), "README"))
def test_commands_and_code_run(page: Path, workdir: Path, tmp_path: Path, server: CommandServer) -> None:
    """Every command and every Python block of a page works as written, without another page."""
    if page.stem == "openvino":
        pytest.importorskip("openvino", reason="OpenVINO is not installed")
        if sums_saturate():
            pytest.skip(SATURATES)
    run_page(page, shutil.copytree(workdir, tmp_path / "page"), server)


LOSSES = {
    "tutorial": (r"^model\S* .* ([01]\.\d{4})$", 1.01),
    "tutorial-onnx": (r"^digits\S* .* ([01]\.\d{4})$", 1.01),
    "tutorial-llm": (r"^decoder\S* .* (\d\.\d{5})(?: \(\S+ to \S+\))?$", 1.05),
}
"""Pattern of what `evaluate` prints for each model of a tutorial, and the largest ratio of two of them."""


@pytest.mark.parametrize("page", sampled(TUTORIALS, "tutorial"))
def test_a_tutorial_leads_to_checked_models(
    page: Path, workdir: Path, tmp_path: Path, server: CommandServer
) -> None:
    """A newcomer's path: from an empty folder, through a tutorial as written, to what its text shows.

    The network has learned its task, the quantized ones keep it, and onnx's checker accepts them.
    """
    if page.stem == "tutorial-onnx":  # it shows no figure of the digits, so a shorter network does
        folder = tmp_path / "onnxfq-demo"
        folder.mkdir()
        shutil.copy(workdir / "model.onnx", folder / "digits.onnx")
        for name in ("calibration.npz", "test.npz", "labels.npy"):
            shutil.copy(workdir / name, folder)
    printed = run_page(page, tmp_path, server)
    shown = "".join(blocks(page, "text")).splitlines()
    assert shown and set(shown) <= set(printed.splitlines())
    pattern, largest = LOSSES[page.stem]
    figures = [float(text) for text in re.findall(pattern, printed, re.MULTILINE)]
    assert len(figures) >= 2 and max(figures) <= largest * min(figures)
    assert 0.9 < figures[0] <= 1 or 2 < figures[0] < 8  # an accuracy; a perplexity, of 64 words
    written = [path for path in tmp_path.rglob("*.onnx") if path.stem not in ("theirs", "digits_fakequant")]
    assert len(written) >= 3
    for path in written:
        onnx.checker.check_model(onnx.load(path), full_check=True)


@pytest.mark.sample
def test_recipes_are_valid(workdir: Path, tmp_path: Path) -> None:
    """The recipes of their page, of channels and of weights quantize a model; that in blocks is simulated."""
    (named,) = blocks(ROOT / "docs" / "recipes.md", "yaml")
    written = dict(
        zip(("channels", "simulated", "", "weights"), blocks(ROOT / "docs/formats.md", "yaml"), strict=True)
    )
    for name, text in (written | {"named": named}).items():
        (tmp_path / f"{name}.yaml").write_text(text, encoding="utf-8")
    path, data = workdir / "model.onnx", workdir / "calibration.npz"
    proto = linear(64, 6)
    alone = quantize(proto, [feed_for(proto)], recipe=tmp_path / "weights.yaml")
    assert [p.role for p in alone.plan.placements] == ["weight"] and alone.rounding is not None
    model = onnxfq.load(path)
    plan = onnxfq.make_plan(model, onnxfq.load_recipe(tmp_path / "simulated.yaml"))
    statistics = onnxfq.collect_statistics(model, plan, onnxfq.open_feeds(model.proto, data))
    simulated = onnxfq.insert_fake_quantize(model, plan, onnxfq.calibrate(model, plan, statistics))
    assert onnxfq.evaluate(path, simulated, workdir / "test.npz").candidates
    off = AccuracyTarget(repair=None)
    kept = quantize(path, data, recipe=tmp_path / "named.yaml", accuracy=off)
    assert [str(row) for row in kept.plan.coverage()][-1] == "Gemm 0/1"
    many = quantize(path, data, recipe=tmp_path / "channels.yaml", accuracy=off)
    assert all(len(many.encodings[p.tensor].scale) > 1 for p in many.plan.activations[1:])


@pytest.mark.sample
def test_install_commands_are_those_of_the_check() -> None:
    """The two commands of README are in README, and in the check that runs them from a clean clone."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    check = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    for command in INSTALLS:
        assert f"```sh\n{command}\n```" in readme
        assert f"\n{command}\n" in check


LINKS = re.compile(r"\]\(([^)\s]+)\)")
LINKED = [
    *PAGES,
    ROOT / "CONTRIBUTING.md",
    ROOT / "benchmarks" / "results.md",
    *(ROOT / folder / "README.md" for folder in ("benchmarks", "models")),
    *sorted((ROOT / "examples").rglob("README.md")),
    ROOT / "ROADMAP.md",
]


def anchors(page: Path) -> set[str]:
    """Return the names that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@loop_over("page", LINKED)
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link names a file that is there, and a heading that the page has."""
    for target in LINKS.findall(BLOCK.sub("", page.read_text(encoding="utf-8"))):
        if ":" in target:
            continue
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        assert file.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor in anchors(file), f"{page.name} links to {target}"


@pytest.mark.sample
def test_every_page_is_linked_from_readme() -> None:
    """Who reads README finds every page of docs, in one step or two."""
    seen: set[Path] = set()
    for page in (ROOT / "README.md", ROOT / "docs" / "tasks.md"):
        links = LINKS.findall(page.read_text(encoding="utf-8"))
        seen |= {(page.parent / link.partition("#")[0]).resolve() for link in links if ":" not in link}
    assert {page.resolve() for page in (ROOT / "docs").glob("*.md")} <= seen


def test_the_map_names_every_module() -> None:
    """CONTRIBUTING's map of the code has every module and folder of the package."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for entry in sorted((ROOT / "onnxfq").iterdir()):
        if entry.suffix == ".py" and entry.name != "__main__.py":
            assert f"`{entry.name}`" in text, entry.name
        if entry.is_dir() and any(entry.glob("*.py")):
            assert f"`{entry.name}/`" in text, entry.name


def test_what_the_roadmap_lists_is_missing() -> None:
    """Each item of ROADMAP is of an ability that the checkout does not have, by its own files."""
    text = (ROOT / "ROADMAP.md").read_text(encoding="utf-8")
    results = {
        path.name: path.read_text(encoding="utf-8") for path in (ROOT / "benchmarks/results").glob("*.md")
    }
    targets = " ".join(path.stem for path in (ROOT / "onnxfq/targets").rglob("*.py"))
    missing = {
        "Times of TensorRT": not any("trtexec" in page for page in results.values()),
        "A packaged release": "(unreleased)" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"),
        "Large language models": "what was measured on tasks is small" in text
        and "| float |" in results["language.md"],
        "Other runtimes": not re.search("coreml|litert", targets),
        "Other GPUs": {name for name in results if name.startswith("cuda_")} == {"cuda_nvidia_h200.md"},
    }
    assert re.findall(r"^\d\. \*\*(.*?)\.\*\*", text, re.MULTILINE) == list(missing)
    assert all(missing.values()), missing


def test_pages_are_few_and_short() -> None:
    """README has under 100 lines, the changelog of a version at most 40, and docs at most 25 pages."""
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < 100
    versions = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    assert versions and all(len(version.splitlines()) <= 40 for version in versions)
    assert len(list((ROOT / "docs").glob("*.md"))) <= 25
