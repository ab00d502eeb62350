"""Scripts of benchmarks run; the figures of speed are not judged here."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import build, weights

ROOT = Path(__file__).resolve().parents[1]


def tiny_network() -> onnx.ModelProto:
    """Return a network with the input of the benchmarks' networks."""
    return build(
        """g (float[1,3,224,224] x) => (float[1,4,55,55] y) {
            h = Conv <strides = [4, 4]> (x, w) y = Relu (h) }""",
        {"w": weights(4, 3, 7, 7)},
    )


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Return what imports a script of benchmarks/ by its name; a tiny network is there for it."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name in ("quantize", "diagnose", "streams"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    onnx.save(tiny_network(), tmp_path / "tiny.onnx")
    return import_module


@pytest.mark.sample
def test_the_whole_job_is_measured(tmp_path: Path, script: Callable[[str], Any]) -> None:
    """Each job runs in its own process on its network and gives one row of figures, no error."""
    jobs = ["plain inference", "onnxfq", "onnxruntime minmax"]
    rows = script("quantize").measure(tmp_path / "tiny.onnx", 2, jobs, threads=1, rounds=1)
    assert [row[:3] for row in rows] == [["tiny", "2", job] for job in jobs]
    assert all(float(cell) > 0 for row in rows for cell in row[3:])
    assert (tmp_path / "onnxfq.onnx").exists() and (tmp_path / "onnxruntime.onnx").exists()


def test_the_diagnosis_is_measured(tmp_path: Path, script: Callable[[str], Any]) -> None:
    """Each job gives one row of figures, no error."""
    diagnose = script("diagnose")
    rows = diagnose.measure(tmp_path / "tiny.onnx", 4, threads=1, rounds=1)
    assert [row[1] for row in rows] == list(diagnose.JOBS)
    assert all(float(cell) > 0 for row in rows for cell in row[2:])


def test_what_lies_behind_a_choice_is_measured(
    script: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row has what is printed and what is true: of few samples no more is printed than is true."""
    selections = script("selections")
    monkeypatch.setattr(selections, "SAMPLES", 32)
    row = dict(zip(selections.HEADS[2:-2], selections.row("codec", "tensorrt-int8")[2:-2], strict=True))
    printed, true = float(row["default: printed"]), float(row["true"])
    assert 30 < printed < true + 2 and true > float(row["nearest: true"]) - 1 and row["same"].endswith("%")


@pytest.mark.parametrize("shape", ["readers", "branches"])
def test_growth_is_linear(shape: str, script: Callable[[str], Any]) -> None:
    """Twice the nodes take twice the calls of functions, and no session more, however tensors are read.

    Branches stand behind a chain.
    """
    scale = script("scale")
    _, small, large = (scale.measure(scale.SHAPES[shape](nodes)) for nodes in (20, 80, 320))
    assert scale.find_power(small, large, "calls") < 1.05
    assert small.sessions == large.sessions


def test_constants_of_the_judge_are_changed_wherever_they_are_known(script: Callable[[str], Any]) -> None:
    """Every module that has one under its name is changed and restored; the cheapest of near values wins."""
    constants = script("judge_constants")
    trees = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): ast.parse(path.read_text(encoding="utf-8"))
        for path in (ROOT / "onnxfq").rglob("*.py")
    }
    for name, (value, _) in constants.CONSTANTS.items():
        readers = [
            module
            for module, tree in trees.items()
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module == constants.HOMES[name]
            if name in [alias.name for alias in node.names]
        ]
        modules = [import_module(one) for one in (constants.HOMES[name], *readers)]
        own = [getattr(module, name) for module in modules]
        with constants.changed(name, value):
            assert {getattr(module, name) for module in modules} == {value} != {*own}
        assert [getattr(module, name) for module in modules] == own
    gains = {1.0: [0.0, 1.0], 2.0: [0.6, 0.46], 3.0: [-3.0, 3.0]}
    costs = {1.0: [1.0, 1.0], 2.0: [2.0, 2.0], 3.0: [0.1, 0.1]}
    assert constants.choose_value(gains, costs) == 1.0  # the second has a mean that is better by nothing
    assert constants.choose_value(gains | {2.0: [0.6, 0.6]}, costs) == 2.0


def test_scripts_import_what_the_package_has() -> None:
    """No other test runs most of them."""
    folders = ("benchmarks", "scripts", "tests/slow", "examples")
    scripts = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    imported = {
        (node.module, alias.name): str(path.relative_to(ROOT))
        for path in scripts
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "onnxfq"
        for alias in node.names
    }
    assert len(scripts) > 60 and len(imported) > 60
    for (module, name), script in imported.items():
        found = __import__(module, fromlist=[name])
        assert hasattr(found, name), f"{script}: {module} has no {name}"


def test_drift_is_measured(script: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each way gives a row; the recurrent product in float is better along the other recording."""
    streams = script("streams")
    monkeypatch.setattr(streams, "RECIPES", ("onnxruntime-int8",))
    monkeypatch.setattr(streams, "CURES", {"in float": {"keep_float": True}})
    model = streams.plant()
    plain, cured = streams.measure(
        "planted", model, streams.record(model, 150, 1), streams.record(model, 250, 2), "state"
    )
    assert [row[1] for row in (plain, cured)] == ["onnxruntime-int8", "onnxruntime-int8, recurrent in float"]
    assert float(cured[5]) > float(plain[5]) + 10 and plain[6:] == cured[6:] == ["", ""]


def test_a_tool_runs_its_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs of a tool run in a separate process: Q/DQ models, a ranking, an accuracy, errors as text."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "peers"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    import job

    network = build(
        """g (float[2,3,6,6] x) => (float[2,4] y) {
            h = Conv (x, w) p = GlobalAveragePool (h) f = Flatten (p) y = Gemm (f, v) }""",
        {"w": weights(8, 3, 3, 3), "v": weights(8, 4)},
    )
    rng = np.random.default_rng(0)
    feeds = [{"x": rng.normal(size=(2, 3, 6, 6)).astype(np.float32)} for _ in range(8)]
    onnx.save(network, tmp_path / "float.onnx")
    float_run = job.open_model(tmp_path / "float.onnx")
    labels = np.concatenate([float_run(feed)[0].argmax(-1) for feed in feeds])
    with job.job_folder(network, feeds, labels) as work:
        made = job.run(None, "onnxfq", "quantize", work)
        assert made["sessions"] > 0 and made["processor"] > 0
        low = work / made["model"]
        assert job.count_float(low) == (0, 2) and job.count_weights(low) == (2, 2)
        assert 20 < job.output_db(work / "model.onnx", low, feeds) < 80
        ranked = job.run(None, "onnxfq", "analyze", work)["ranking"]
        assert {name for names in ranked for name in names} == {"h", "y"}
        assert "error" not in job.run(None, "onnxfq", "control", work, max_drop=0.5)
        failed = job.run(None, "onnxfq", "quantize", work, recipe={"weights": {"qtype": "int7x"}})
        assert "int7x" in failed["error"]


def test_a_section_replaces_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script rewrites its section of the page and leaves the others."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import timing

    page = tmp_path / "page.md"
    for title, text in (("One", "old"), ("Two", "kept"), ("One", "new")):
        timing.write_section(page, "onnxfq next to other tools", title, text)
    assert page.read_text() == "# onnxfq next to other tools\n\n## Two\n\nkept\n\n## One\n\nnew\n"


def cells_of(file: str) -> list[list[str]]:
    """Return the cells of the lines of tables in a file of the checkout."""
    lines = (ROOT / file).read_text(encoding="utf-8").split("Before `quantize`")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line[:1] == "|"]


def test_the_held_intervals_in_the_docs_are_the_measured_ones() -> None:
    """docs/accuracy.md says of how many networks the interval holds as the two pages have it."""
    text = " ".join((ROOT / "docs/accuracy.md").read_text(encoding="utf-8").split())
    for page, section in (("intervals", "an-sqnr"), ("intervals_public", "networks-that-chose-nothing")):
        rows = [
            row
            for row in cells_of(f"benchmarks/results/{page}.md")
            if row[-1] == "yes" or "dB off" in row[-1]
        ]
        held = sum(row[-1] == "yes" for row in rows)
        assert len(rows) >= 10
        assert f"[{held} of {len(rows)}](../benchmarks/results.md#intervals-of-{section})" in text


def test_losses_without_data_in_the_docs_are_the_measured_ones() -> None:
    """docs/data.md counts the networks that lose little and much by drawn inputs."""
    rows = cells_of("benchmarks/results/no_data.md")
    losses = [float(row[2]) - float(row[3]) for row in rows if re.fullmatch(r"[\d.]+", row[3])]
    little, much = ([loss for loss in losses if low <= loss < high] for low, high in ((-1, 2), (9, 20)))
    page = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
    assert f"{len(little)} of {len(losses)} networks lose less than 2 dB" in page and len(losses) > 10
    assert f"and {len(much)} lose 9 to 20 dB" in page and len(little) + len(much) == len(losses)


def test_counts_in_the_docs_are_the_measured_ones() -> None:
    """Pages have the counts of a suite, the cost of a proof and the figure of a GPU that the results have."""

    def results(name: str) -> str:
        return (ROOT / "benchmarks" / "results" / f"{name}.md").read_text(encoding="utf-8")

    def page(name: str) -> str:
        return " ".join((ROOT / name).read_text(encoding="utf-8").split())

    suite = results("checks").partition("## suite of pytorch-quantization\n")[2].partition("\n## ")[0]
    skipped, passed, failed = map(int, re.findall(r"(\d+) skipped\n(\d+) passed, (\d+) failed", suite)[0])
    told = f"{passed} of {passed + failed + skipped} pass and {skipped} are skipped."
    assert told in page("docs/migrating.md")
    table = (ROOT / "docs/migrating.md").read_text(encoding="utf-8").partition(told)[2].partition("\n\n|")[2]
    rows = [line for line in table.split("\n\n")[0].splitlines() if "_test" in line]
    assert sum(int(re.findall(r"(\d+) tests", row + " 1 tests")[0]) for row in rows) == failed
    medians = [float(one) for one in re.findall(r"^\| median .* (\d\.\d+) \|$", results("proof"), re.M)]
    ort, openvino = (round(100 * (one - 1)) for one in medians)
    assert f"[{ort}% longer for ONNX Runtime, {openvino}% for OpenVINO]" in page("docs/accuracy.md")
    observed = re.search(
        r"^## resnet50.*?^\| observed \|.*?(\d\.\d{3}) \|", results("networks_nvidia_h200"), re.M | re.S
    )
    assert observed is not None
    assert f"ResNet-50 takes {float(observed[1]):.1f} times plain inference" in page("README.md")


def test_the_page_of_results_is_that_of_its_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file of results is on the page once, with command, date and commit, and the mark of its age."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import results_page

    page = results_page.write_page()
    assert results_page.PAGE.read_text(encoding="utf-8") == page
    readme = results_page.README.read_text(encoding="utf-8")
    assert readme == results_page.mark_readme(readme) and results_page.AGE.search(readme)
    origins = results_page.read_origins()
    assert sorted(origins) == sorted(path.name for path in results_page.RESULTS.glob("*.md"))
    titles = [(results_page.RESULTS / file).read_text(encoding="utf-8").splitlines()[0] for file in origins]
    assert len(set(titles)) == len(titles)
    for file, origin in origins.items():
        older = results_page.form_of(results_page.measured_files(origin)) != origin["form"]
        title = (results_page.RESULTS / file).read_text(encoding="utf-8").partition("\n")[0]
        if file != "comparison.md":  # it marks its rows
            assert (f"#{title}\n\n**Older: measured on {origin['date']}" in page) == older, file
        script = origin["command"].split()[0].rstrip(",")
        assert (ROOT / script).is_file() and re.fullmatch(r"2\d{3}-\d\d-\d\d", origin["date"])
        assert re.fullmatch(r"[0-9a-f]{8}", origin["commit"])


def test_training_by_each_interface_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each interface trains the same network; the page's section has a row for each."""
    torch = pytest.importorskip("torch")
    for name in ("timing", "qat_interfaces"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    for folder in ("models", "benchmarks"):
        monkeypatch.syspath_prepend(str(ROOT / folder))
    import qat_interfaces

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.Flatten())
    model.append(torch.nn.Linear(4 * 36, 10))
    images, labels = torch.rand(60, 1, 8, 8), torch.arange(60) % 10
    network = model, (images, labels), (images, labels)
    monkeypatch.setattr(qat_interfaces, "digit_network", lambda seed: network)
    monkeypatch.setattr(qat_interfaces, "MARK", 100.0)
    page = tmp_path / "page.md"
    monkeypatch.setattr(sys, "argv", ["qat_interfaces", "--seeds", "1", "--steps", "2", "--out", str(page)])
    qat_interfaces.main()
    rows = [line.split(" | ")[0] for line in page.read_text().splitlines() if line.startswith("| ")]
    assert rows[2:] == ["| none, float", *(f"| {name}" for name in qat_interfaces.INTERFACES)]


def test_no_interface_misses_the_accuracy_of_torch_ao() -> None:
    """In results/training.md means and distances follow from the runs; distances are at most 0.3 points."""
    page = (ROOT / "benchmarks" / "results" / "training.md").read_text(encoding="utf-8")
    sections = page.split("\n## By interface: ")[1:]
    assert [section.splitlines()[0] for section in sections] == [
        "residual_cnn, digits",
        "ResNet-20, CIFAR-10",
    ]
    for section in sections:
        lines = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")]
        rows = {name: [float(cell) for cell in cells] for name, *cells in lines[2:]}
        assert rows.keys() == {"none, float", "torch.ao", "core", "horizon", "aimet", "nvidia"}
        for *runs, mean, off in rows.values():
            assert np.mean(runs) == pytest.approx(mean, abs=0.011)  # all have two digits
            assert mean - rows["torch.ao"][-2] == pytest.approx(off, abs=0.011) and abs(off) <= 0.3


def test_learned_scales_gain_over_fixed_ones() -> None:
    """In results/learned_scales.md gains follow from the runs: two above their error, none below minus it."""
    page = (ROOT / "benchmarks" / "results" / "learned_scales.md").read_text(encoding="utf-8")
    lines = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    gains: dict[str, list[float]] = {}
    for _, optimizer, *ways, told in lines[2:]:
        fixed, learned = (np.array(way.split(), np.float64) for way in ways)
        gain, error = map(float, told.split(" ± "))
        assert np.mean(learned - fixed) == pytest.approx(gain, abs=0.011)  # all have two digits
        assert np.std(learned - fixed, ddof=1) / len(fixed) ** 0.5 == pytest.approx(error, abs=0.011)
        gains.setdefault(optimizer, []).append(gain / error)
    assert all(len(each) == 3 and min(each) >= -1 for each in gains.values())
    assert "`AdamW(1e-3)`" in gains and all(sum(one > 1 for one in each) >= 2 for each in gains.values())


def test_float16_models_are_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model of `onnxfq.cast` loads and builds, and its Casts and float32 nodes are those of the file."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "peers"))
    monkeypatch.delitem(sys.modules, "cast", raising=False)
    import cast

    network = build(
        "g (float[N,8] x) => (float[N,8] y) { h = MatMul (x, w) y = Relu (h) }", {"w": weights(8, 8)}
    )
    onnx.save(network, tmp_path / "model.onnx")
    feeds = [{"x": np.ones((1, 8), np.float32)}]
    made = tmp_path / cast.cast_by_onnxfq(tmp_path, feeds)["model"]
    assert cast.count_nodes(network) == (0, 2) and cast.count_nodes(onnx.load(made)) == (2, 0)
    loads, _, score, *counts = cast.judge(tmp_path / "model.onnx", made, feeds)
    assert loads == "yes" and float(score) > 40 and counts == ["2", "0"]


def test_a_language_model_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bits by hand: 4 a number, 8 for the scale of 16; a tied table counts once; the page has its results."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import language

    decoder = build(
        """g (int64[N,S] input_ids) => (float[N,S,64] logits) {
            e = Gather (table, input_ids) [up] h = MatMul (e, w) [act] r = Relu (h)
            [turn] t = Transpose <perm = [1,0]> (table) [head] logits = MatMul (r, t) }""",
        {"table": weights(64, 48), "w": weights(48, 48)},
    )
    texts = np.random.default_rng(0).integers(0, 64, (6, 12))
    monkeypatch.setattr(language, "ROWS", [row for row in language.ROWS if row.base == "nvfp4"])
    rows = language.measure(decoder, texts[:4], texts[4:])
    count = 48 * 48 + 64 * 48
    whole, *quantized = [row[1:3] for row in rows]
    assert whole == ["32.00", f"{count * 4 / 1e6:.3f}"]
    assert quantized == [["4.50", f"{count * 4.5 / 8e6:.3f}"]] * 2
    assert all(float(row[3]) > 1 for row in rows)
    monkeypatch.undo()
    table = (ROOT / "benchmarks" / "results" / "language.md").read_text().partition("\n\n| ")[2]
    assert table in (ROOT / "docs" / "llm.md").read_text()
    titles = re.findall(r"^\| (.*?) \|", table, re.MULTILINE)
    assert titles == ["float", *(row.title for row in language.ROWS)]


@pytest.mark.parametrize("name", ["genai", "genai_caches", "decoder_costs"])
def test_the_page_has_the_tables_of_large_and_generating_models(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page of language models has the results as written, and the arithmetic gives them again."""
    table = (ROOT / "benchmarks" / "results" / f"{name}.md").read_text().strip().rpartition("\n\n")[2]
    assert table in (ROOT / "docs" / "llm.md").read_text()
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    if name == "decoder_costs":
        import decoder_costs

        rows = [
            [title, *decoder_costs.count(shape, 40, 200)] for title, shape in decoder_costs.SHAPES.items()
        ]
        assert table.splitlines()[2:] == [f"| {' | '.join(row)} |" for row in rows]
    else:
        import genai

        titles = re.findall(r"^\| (.*?) \|", table, re.MULTILINE)
        built, rows = (["float"], genai.CACHE_ROWS)
        if name == "genai":
            built, rows = [*genai.BUILT], genai.ROWS
        assert titles == ["folder", *built, *(row.title for row in rows)]


def test_wider_heads_have_the_same_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads of 16 with the rotary angles of transformers give the scores of pairs side by side in 8."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import genai

    names = [
        f"layers.{n}.{short}.weight" for n in range(5) for short in ("q", "k", "v", "o", "w1", "w2", "w3")
    ]
    names += [f"layers.{n}.{short}.weight" for n in range(5) for short in ("n1", "n2")]
    given = {name: weights(64, 64) for name in [*names, "tok", "norm.weight"]}
    graph = onnx.GraphProto(initializer=[onnx.numpy_helper.from_array(one, n) for n, one in given.items()])
    made = genai.llama_weights(onnx.ModelProto(graph=graph))
    x, at = np.random.default_rng(0).normal(size=64), 5.0
    angles = at * 10000.0 ** (-np.arange(4) / 4)
    wide = at * 10000.0 ** (-np.arange(8) / 8)
    scores = []
    for turned in (False, True):
        heads = []
        for short in "qk":
            if turned:
                head = made[f"model.layers.0.self_attn.{short}_proj.weight"][:16] @ x
                pairs, steps, root = head[:8] + 1j * head[8:], wide, 16**0.5
            else:
                head = given[f"layers.0.{short}.weight"][:8] @ x
                pairs, steps, root = head[::2] + 1j * head[1::2], angles, 8**0.5
            heads.append(pairs * np.exp(1j * steps) if short == "q" else pairs)
        scores.append((heads[0] * heads[1].conj()).sum().real / root)
    assert scores[0] == pytest.approx(scores[1], rel=1e-6)  # the weights are float32
