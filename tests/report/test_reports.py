"""Reports: the rows, the HTML page, the plot and the text for a terminal."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import build, conv_relu, feed_for, two_branch, weights, with_override
from keyword_numerics import fake_quantize
from planted_chain import LAYERS

from onnxfq import plot
from onnxfq.calibration.calibrators.grid_error import estimate_sqnr_db
from onnxfq.choices import RANKING_FEEDS
from onnxfq.documents.layers import TensorRow
from onnxfq.documents.plan import Skipped
from onnxfq.documents.plan_text import coverage_line, plan_summary
from onnxfq.documents.scores import LOW_SQNR_DB
from onnxfq.documents.sensitivity import GroupNoise, Sensitivity
from onnxfq.documents.trial import Trial
from onnxfq.errors import PlanError
from onnxfq.graph.signature import with_outputs
from onnxfq.judging.accuracy_target import AccuracyTarget
from onnxfq.numerics.metrics import ErrorSums
from onnxfq.quantizing.pipeline import QuantizeResult, quantize
from onnxfq.report.contents import page_contents
from onnxfq.report.html import render_report, write_report
from onnxfq.report.layer_table import layer_table
from onnxfq.report.page_tables import score_tables
from onnxfq.report.record import ResultRecord, quantize_record
from onnxfq.report.tensor_rows import quantized_tensors
from onnxfq.report.text import quantize_summary
from onnxfq.report.tiles import make_tile
from onnxfq.runtime.session import Session
from onnxfq.support.records import to_json
from onnxfq.targets.recipes import RECIPES, find_wider, load_recipe


@pytest.fixture(scope="module")
def result() -> QuantizeResult:
    """A quantized residual block, whose weights stay at the nearest numbers."""
    feeds = [feed_for(two_branch(), seed) for seed in range(16)]
    return quantize(two_branch(), feeds, accuracy=AccuracyTarget(repair=None))


def rows_of(result: QuantizeResult) -> tuple[TensorRow, ...]:
    """Return the rows of its report."""
    return quantized_tensors(result.model, result.plan, result.statistics, result.encodings)


def test_the_page_allows_its_own_script_alone(result: QuantizeResult) -> None:
    """The policy names the SHA-256 of the one script that runs and of the one style, as CSP Level 3 says."""
    page = render_report(result)
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'" and "unsafe" not in policy
    for tag in ("script", "style"):
        (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert rules[f"{tag}-src"] == f"'sha256-{digest}'"
    assert not re.findall(r"<[^>]* (style|on\w+)=", page.replace(text, ""))


def test_rows_follow_the_plan(result: QuantizeResult) -> None:
    """One row a placement, in order, with the observed range and the grid."""
    rows = rows_of(result)
    assert [row.tensor for row in rows] == [p.tensor for p in result.plan.placements]
    for row in rows:
        assert row.observed is not None and row.observed[0] <= row.observed[1]
        encoding = result.encodings[row.tensor]
        assert row.grid == pytest.approx((encoding.rmin, encoding.rmax), rel=1e-4)  # a report has five digits


def test_weight_noise_is_exact(result: QuantizeResult) -> None:
    """The figure of a weight is the SQNR of its values, computed in float64."""
    row = next(row for row in rows_of(result) if row.tensor == "w1")
    w = weights(4, 4, 3, 3, seed=1).astype(np.float64)
    noise = w - fake_quantize(w.astype(np.float32), result.encodings["w1"].scale, qtype="int8", axis=0)
    # Sums in another order.
    assert row.sqnr_db == pytest.approx(10 * math.log10((w**2).sum() / (noise**2).sum()), abs=1e-9)
    assert row.observed == pytest.approx((w.min(), w.max()), rel=1e-4)


def test_activation_noise_is_expected_from_the_histogram(result: QuantizeResult) -> None:
    """The figure of an activation comes from its statistics and is near the SQNR of its values."""
    row = next(row for row in rows_of(result) if row.tensor == "h")
    scale = float(result.encodings["h"].scale)
    qtype = result.encodings["h"].spec.qtype
    assert row.sqnr_db == estimate_sqnr_db(result.statistics["h"], scale, 0, qtype)
    h = np.maximum(feed_for(two_branch())["x"], 0).astype(np.float64)
    noise = h - fake_quantize(h.astype(np.float32), scale, qtype=qtype)
    # The histogram knows a value to 1/64 of itself only.
    assert row.sqnr_db == pytest.approx(10 * math.log10((h**2).sum() / (noise**2).sum()), abs=1.0)


def test_few_feeds_tell_the_share_of_weights(result: QuantizeResult) -> None:
    """On the few first feeds, weights alone may make more noise than everything together."""
    assert result.evaluation is not None
    (scores, *_), (name, *_) = result.evaluation.candidates, result.evaluation.candidates[0].weight_shares
    for share, shown in ((0.25, "25%"), (1.0, "100%"), (6.4, "all")):
        told = scores.model_copy(update={"weight_shares": {name: share}})
        (table, *_) = score_tables([told], "4 samples")
        assert [row[table["heads"].index("by weights")] for row in table["rows"] if row[1] == name] == [shown]


def test_rows_of_another_model(result: QuantizeResult) -> None:
    """A weight that the model lacks is named."""
    other = quantize(conv_relu(), [feed_for(conv_relu())])
    with pytest.raises(PlanError, match="the plan calls 'w1' a weight, but it is not a constant"):
        quantized_tensors(other.model, result.plan, result.statistics, result.encodings)


def contents(page: str) -> list[dict[str, Any]]:
    """Return the data inside a page, as its script reads it."""
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    return json.loads(text)


def rows_under(content: dict[str, Any], title: str) -> list[list[Any]]:
    """Return the rows of the tables of a title; [] without one."""
    tables = [*content["tables"], *content["floats"]]
    return [row for table in tables if table["title"] == title for row in table["rows"]]


@pytest.mark.sample
def test_page_has_every_tensor_and_reason(result: QuantizeResult) -> None:
    """Each quantized tensor, each layer, each skipped one and each reason is in the data of the page."""
    (shown,) = contents(render_report(result))
    tensors = [row["tensor"] for row in shown["tensors"]]
    assert tensors[: len(result.plan.placements)] == [p.tensor for p in result.plan.placements]
    assert {row["node"] for row in shown["layers"]} == {node.node for node in result.plan.nodes}
    floats = rows_under(shown, "Tensors and nodes in float")
    reasons = {name: why for why, _, names in floats for name in names}
    assert {one.name: one.why for one in result.plan.skipped}.items() <= reasons.items()
    assert {"value": "4/4", "label": "operators in low precision", "low": False} in shown["tiles"]
    assert ("SHA-256 of the data", result.encodings.data_sha256) in map(tuple, shown["facts"])


class Loads(HTMLParser):
    """Collects what a browser would fetch for a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take note of frames and of addresses outside of the page."""
        self.found += [tag] if tag in ("iframe", "object", "embed", "img") else []
        names = ("src", "href", "xlink:href", "data")
        self.found += [f"{k}={v}" for k, v in attrs if k in names and v not in ("data:,",)]


def test_page_stands_alone(result: QuantizeResult) -> None:
    """Nothing is fetched for the page, so it may be mailed, kept, and read without a network."""
    page = render_report(result)
    reader = Loads()
    reader.feed(page)
    assert not reader.found and "{{" not in page and "{%" not in page
    assert "@import" not in page and not re.search(r"url\((?!#)|https?://(?!www\.w3\.org/2000/svg)", page)


def test_low_outputs_are_told(result: QuantizeResult) -> None:
    """Below 20 dB the summary says so, with what to do next, and the page marks the figure."""
    (candidate,) = result.evaluation.candidates[-1:]
    for sqnr_db, told in ((LOW_SQNR_DB - 0.1, True), (LOW_SQNR_DB, False)):
        score = candidate.outputs[0].model_copy(update={"sqnr_db": sqnr_db})
        scores = candidate.model_copy(update={"outputs": (score,)})
        other = replace(result, evaluation=result.evaluation.model_copy(update={"candidates": (scores,)}))
        assert ("low SQNR" in quantize_summary(other)) == told
        (shown,) = contents(render_report(other))
        assert shown["tiles"][0]["low"] == told
        notes = {head: lines[0] for head, lines in shown["notes"]}
        assert ("--max-drop" in notes.get("low SQNR", "")) == told
        assert rows_under(shown, "Comparison with the float model")[0][2] == f"{sqnr_db:.2f}"


@pytest.mark.parametrize(
    "name",
    [
        "</script><b>&<!--<script>",
        "$x_1$",
        "\\frac",
        "ü-β-ж层\t\u2028",
        "x" * 300 + "50%{{ 1 }}",
    ],
)
def test_any_name_is_shown_as_it_is(name: str) -> None:
    """A name like HTML, a template or mathematics is data: the page has no tag of it, and the letters."""
    proto = build(
        "g (float[N,4] x) => (float[N,4] y) { h = Relu (x) [mm] y = MatMul (h, w) }", {"w": weights(4, 4)}
    )
    proto.graph.node[0].output[0] = proto.graph.node[1].input[0] = name
    recipe = load_recipe("tensorrt-int8").model_copy(update={"name": name})
    result = quantize(proto, [feed_for(proto)], recipe=recipe)
    page = render_report(result)
    assert page.count("<script") == page.count("</script>") == 2 and "<b>" not in page
    (shown,) = contents(page)
    assert shown["tensors"][0]["tensor"] == name and f"recipe {name} " in shown["subtitle"]
    assert name in plot.histogram(result, name).axes[0].get_title()


@pytest.mark.parametrize("name", ["protected", "plain"])
def test_the_guilty_layer_comes_first(name: str, planted: dict[str, QuantizeResult]) -> None:
    """The first rows name the planted layers by their modules, protected or not; the others are sound."""
    result, is_protected = planted[name], name == "protected"
    record = quantize_record(result)
    first, second, *others = record.table.layers
    assert {first.module, second.module} == {"blocks.0.fc3", "blocks.1.fc6"}
    assert first.module == "blocks.0.fc3" and first.alone_db is not None and first.alone_db < 1
    assert first.quantized == (not is_protected) == ((first.noise_share or 0) > 0.9)
    assert others == sorted(others, key=lambda row: row.alone_db or 0)
    graph = {one.node: one for one in record.table.graph}
    (reader,) = [one for one in record.table.graph if one.reads == (list(graph).index("m3"),)]
    assert reader.op_type == "Relu" and not reader.pairs
    assert bool(graph["m3"].pairs) == first.quantized and len(graph["m3"].reads) == 1
    assert all(row.multiplies == pytest.approx(1 / LAYERS) for row in (first, second, *others))
    assert record.table.multiplies == pytest.approx(1 - is_protected / LAYERS)
    (shown,) = contents(render_report(result))
    tried = [(remedy, kept) for remedy, kept, *_ in rows_under(shown, "What repair tried")]
    assert tried == [(one.remedy, one.result) for one in record.trials if one.is_needed]
    assert (("protected", "kept") in tried) == is_protected
    # Layers left in float have the figures of repair, whose budget may have had time for fewer samples.
    assert (record.table.chosen_by > 0) == is_protected
    fewer = record.table.model_copy(update={"chosen_by": 1})
    (short,) = page_contents([("m", record.model_copy(update={"table": fewer}))])
    assert "on 1" not in shown["measured"] and "left in float on 1" in short["measured"]
    # The file is the record: what --json prints comes back whole.
    text = to_json(record)
    assert to_json(ResultRecord.model_validate(json.loads(text))) == text


@pytest.mark.parametrize(
    ("name", "wider"), [("tensorrt-nvfp4", "tensorrt-fp8"), ("tensorrt-int8", ""), ("nvfp4", "")]
)
def test_low_outputs_of_few_bits_are_offered_8(name: str, wider: str) -> None:
    """The promise of a recipe in 4 bits has a fallback in 8, if its target has one."""
    assert find_wider(load_recipe(name)) == wider


def test_running_noise_is_that_of_onnxruntime(result: QuantizeResult) -> None:
    """The noise of a layer is the error of its output in ONNX Runtime, over the kept samples."""
    rows = {row.node: row for row in quantize_record(result).table.layers}
    name = next(node.output[0] for node in result.model.proto.graph.node if node.name == "conv2")
    sums = ErrorSums()
    for feed in result.samples[:RANKING_FEEDS]:
        both = [
            Session(with_outputs(proto, [name]), 1).run(feed, [name])[0]
            for proto in (result.model.proto, result.simulation)
        ]
        sums = sums + ErrorSums.from_arrays(*both)
    # Other outputs are fetched with it, so that other operators fuse.
    assert rows["conv2"].output_db == pytest.approx(sums.sqnr_db, abs=0.01)


def test_histograms_count_all_values(result: QuantizeResult) -> None:
    """A histogram has every value, and `best_error` is followed by the method that it took."""
    for row in rows_of(result):
        seen = result.statistics.tensors.get(row.tensor)
        values = weights(4, 4, 3, 3, seed=1).size if seen is None else seen.finite
        assert sum(row.counts) == values and row.edges is not None
        assert seen is None or re.fullmatch(
            r"best_error: (minmax|percentile|entropy|mse|sqnr)", row.calibrator
        )


def test_exact_tensors_have_a_place(tmp_path: Path) -> None:
    """A weight on the grid has endless SQNR: it is still drawn and written."""
    proto = build(
        "g (float[N,4] x) => (float[N,4] y) { y = MatMul (x, w) }", {"w": 127 * np.eye(4, dtype=np.float32)}
    )
    result = quantize(proto, [feed_for(proto)])
    assert math.isinf(next(row for row in rows_of(result) if row.tensor == "w").sqnr_db)
    write_report(result, tmp_path / "r.html")
    assert "inf dB" in plot.histogram(result, "w").axes[0].get_title()


def test_figures_show_the_rows(result: QuantizeResult) -> None:
    """A histogram has the counts, the grid and every calibrator; an unknown tensor gets the nearest names."""
    (row,) = [row for row in rows_of(result) if row.tensor == "h"]
    axes = plot.histogram(result, "h").axes[0]
    counts, edges, _ = axes.patches[0].get_data()
    assert tuple(counts) == row.counts and (edges[0], edges[-1]) == row.edges
    assert {text.get_text() for text in axes.texts} == set(row.thresholds)
    assert tuple(line.get_xdata()[0] for line in axes.lines[:2]) == row.grid
    with pytest.raises(PlanError, match="'h1' is not quantized; nearest: .*h"):
        plot.histogram(result, "h1")
    with pytest.raises(PlanError, match="'h' has no ranges of channels: it was not equalized"):
        plot.channel_ranges(result, "h")


def test_channels_are_drawn_before_and_after() -> None:
    """Each channel of a depthwise input has a bar as observed, and one divided by its power of two."""
    proto = build(
        "g (float[N,8,6,6] x) => (float[N,8,6,6] y) { y = Conv <group = 8, pads = [1,1,1,1]> (x, w) }",
        {"w": weights(8, 1, 3, 3)},
    )
    sizes = np.float32(2.0) ** np.arange(8, dtype=np.float32).reshape(1, 8, 1, 1)
    feed = {"x": weights(4, 8, 6, 6) * sizes}
    result = quantize(proto, [feed])
    (row,) = [row for row in rows_of(result) if row.tensor == "x"]
    wanted = np.abs(feed["x"]).max(axis=(0, 2, 3))
    assert np.allclose(row.channels, wanted, rtol=1e-3)  # a report keeps four digits
    spread = [max(bars) / min(bars) for bars in (row.channels, row.equalized_channels)]
    assert spread[0] > 30 and spread[1] < 4 and row.calibrator == "by channel"
    bars = [bar.get_height() for bar in plot.channel_ranges(result, "x").axes[0].patches]
    assert bars == [*row.channels, *row.equalized_channels]


@pytest.mark.share(3)
@pytest.mark.parametrize("recipe", sorted(RECIPES))
def test_every_recipe_has_a_page(recipe: str) -> None:
    """A depthwise convolution, a sum and a product in the formats of each recipe are on the page."""
    proto = build(
        "g (float[N,128,4,4] x) => (float[N,16] y) {"
        " c = Conv <group = 128, pads = [1,1,1,1]> (x, w)  s = Add (c, x)"
        " p = GlobalAveragePool (s)  f = Flatten (p)  y = MatMul (f, v) }",
        {"w": weights(128, 1, 3, 3), "v": weights(128, 16)},
    )
    data = [{"x": weights(2, 128, 4, 4)}]
    whole = RECIPES[recipe].override(small_shapes="quantize")
    result = quantize(proto, data, recipe=whole, accuracy=AccuracyTarget(repair=None))
    (shown,) = contents(render_report(result))
    known = {row["tensor"]: row["sqnr_db"] for row in shown["tensors"] if row["grid"] is not None}
    assert {row["node"] for row in shown["layers"]} == {node.node for node in result.plan.nodes}
    assert all(float(db) > 5 for db in known.values())
    runs = result.statistics.feeds
    seen = "observed over 2 runs" if runs else "no activation observed"
    assert runs in (0, 2) and shown["subtitle"].endswith(f", {seen}")
    costs = [float(row["alone_db"] or "inf") for row in shown["layers"]]
    assert costs == sorted(costs)
    shares = [row["noise_share"] or 0.0 for row in shown["layers"]]
    assert max(shares) > 0.05 and all(0 <= share <= 1 for share in shares)


def test_each_figure_names_its_samples(result: QuantizeResult) -> None:
    """The SQNR, the table of outputs and the layers say of how many samples they are, as the summary does."""
    record, feeds = quantize_record(result), result.evaluation.feeds
    (shown,) = page_contents([("m", record)])
    assert shown["tiles"][0]["label"].endswith(f", {feeds} samples" if feeds > 1 else ", 1 sample")
    assert record.samples in quantize_summary(result)
    assert record.samples.startswith(f"{feeds} of {result.statistics.data.samples} samples, ")
    assert shown["tables"][0]["note"].startswith(f"On {record.samples}. ")
    assert f" {record.table.samples} " in shown["measured"] and record.table.samples > 0


def test_a_short_ranking_is_made_again(result: QuantizeResult) -> None:
    """A trial that ranked layers on fewer samples than the table names gives no figures; a full one does."""
    table = layer_table(result)
    true = {row.node: row.alone_db for row in table.layers if row.quantized}
    groups = tuple(GroupNoise(tensors=(), nodes=(node,), op_types=(), noise=0.5) for node in true)
    for samples in (1, table.samples):
        found = Sensitivity(model_sha256="", recipe="", outputs=(), samples=samples, noise=0.5, groups=groups)
        short = layer_table(replace(result, trials=(Trial(remedy="protected", evidence=found),)))
        shown = {row.node: row.alone_db for row in short.layers if row.quantized}
        assert shown == (true if samples == 1 else dict.fromkeys(true, groups[0].alone_db)) != {}


def test_axes_of_charts_have_names(result: QuantizeResult) -> None:
    """Every axis of the figures of matplotlib says what it counts, with its unit."""
    name = result.plan.activations[0].tensor
    drawn = [plot.histogram(result, name), plot.quantization_errors([[1.0]], [[1]], [[1.0]])]
    named = [
        (one.get_xlabel(), one.get_ylabel()) for figure in drawn for one in figure.axes if one.get_title()
    ]
    assert len(named) == 5 and all(all(texts) for texts in named)


def test_a_page_counts_in_words(result: QuantizeResult) -> None:
    """Nouns on a page agree with their numbers, as in the terminal."""
    record = quantize_record(result)
    origin, notes = record.origin.model_copy(update={"feeds": 1}), ("1 Constant node(s) made initializers",)
    (shown,) = page_contents([("m", record.model_copy(update={"origin": origin, "notes": notes}))])
    assert shown["subtitle"].endswith("observed over 1 run")
    assert shown["notes"][2:] == [("Note", ["1 Constant node made initializers"])]
    assert shown["notes"][0][0] == "verdict" and shown["notes"][0][1][0].startswith(
        "ship when the task agrees"
    )
    assert shown["notes"][1][0] == "not run" and "target tensorrt" in shown["notes"][1][1][0]
    assert make_tile("1", "causes")["label"] == "cause" and make_tile("29", "causes")["label"] == "causes"


def test_results_are_short_in_notebooks(result: QuantizeResult) -> None:
    """A result is a small table in a notebook and one line elsewhere, and names in it are text."""
    shown = result._repr_html_()
    assert (
        len(shown) < 2000
        and "Conv 3/3" in shown
        and f"{result.evaluation.candidates[0].outputs[0].sqnr_db:.1f} dB" in shown
    )
    assert len(repr(result)) < 200 and "tensorrt-int8" in repr(result)
    odd = replace(result, recipe=result.recipe.model_copy(update={"name": "<b>"}))
    assert "<b>" not in odd._repr_html_()


def test_text(result: QuantizeResult) -> None:
    """The summary has verdict, coverage and counts first, then the scores, then reasons and times."""
    lines = quantize_summary(result, (3000, 1200)).splitlines()
    assert coverage_line(result.plan) == "Conv 3/3, Add (residual) 1/1"
    (score,) = result.evaluation.candidates[-1].outputs
    assert lines.pop(-2).startswith("verdict    ship when the task agrees: ")
    assert lines.pop(1).startswith("not run    nothing here runs a file for target tensorrt")
    assert lines[:7] == [
        f"SQNR       about {score.figure} at {score.output!r}, on unseen samples",
        "quantized  Conv 3/3, Add (residual) 1/1",
        "tensors    3 activations, 3 weights",
        "size       3,000 -> 1,200 bytes (40%)",
        "",
        "against the float model, 16 of 64 samples, unseen:",
        *("  " + line for line in result.evaluation.table().splitlines()[:1]),
    ]
    reasons = [number for number, line in enumerate(lines) if line.startswith("float  ")]
    assert reasons and reasons[0] > 7 and lines[-1].startswith("time  ")
    assert not any(line.startswith("size") for line in quantize_summary(result).splitlines())


def test_worst_output_is_the_verdict(result: QuantizeResult) -> None:
    """The summary begins with the output of lowest SQNR."""
    (candidate,) = result.evaluation.candidates[-1:]
    scores = [candidate.outputs[0].model_copy(update={"output": f"o{db}", "sqnr_db": db}) for db in (31, 24)]
    scores = candidate.model_copy(update={"outputs": tuple(scores)})
    other = replace(result, evaluation=result.evaluation.model_copy(update={"candidates": (scores,)}))
    low, high = candidate.outputs[0].interval
    figure = f"24.0 dB ({low:.1f} to {high:.1f}) at 'o24', the worst of 2 outputs, on unseen samples\n"
    assert quantize_summary(other).startswith(f"SQNR       about {figure}")
    bare = replace(result, plan=result.plan.model_copy(update={"placements": ()}))
    assert "verdict    keep the float model: nothing in this file is quantized" in quantize_summary(bare)


def test_reasons_share_lines(result: QuantizeResult) -> None:
    """Reasons that differ in readers, names and numbers are one line, nodes first, and all are counted."""
    whys = {
        "a": "no quantized operator reads it (read by Relu)",
        "b": "no quantized operator reads it (read by Add, Mul)",
        "c": "no quantized operator reads it (read by Add, Mul)",
        "d": "output of the model",
    }
    skipped = [Skipped(name=name, kind="tensor", op_type="activation", why=why) for name, why in whys.items()]
    small = "float8 gains from more than 16 channels: {} in and 4 out"
    skipped += [Skipped(name=f"n{n}", kind="node", op_type="Conv", why=small.format(n)) for n in (8, 16)]
    skipped += [Skipped(name="g", kind="node", op_type="Gemm", why=small.format(16))]
    skipped += [Skipped(name=f"a{n}", kind="node", op_type="Add (residual)", why="kept") for n in (1, 2)]
    plan = result.plan.model_copy(update={"skipped": tuple(skipped)})
    assert plan_summary(plan).splitlines()[2:] == [
        f"float      2 Convs, 1 Gemm, such as 'n16': {small.format(16)}",
        "float      2 Adds (residual): kept",
        "float      3 tensors, such as 'b': no quantized operator reads it (read by Add, Mul)",
        "float      tensor 'd': output of the model",
    ]
    assert plan_summary(plan, reasons=0).splitlines()[2:] == [
        "           and 5 more nodes, 4 more tensors; the plan file and the report list all"
    ]


def test_details_follow_their_note(result: QuantizeResult) -> None:
    """Lines that a terminal shows below another one are part of its note on the page."""
    notes = ("first", "rounding   gptq, the worst layers:", "           'a': 1 dB", "           and 2 more")
    record = quantize_record(result).model_copy(update={"notes": notes})
    (content,) = page_contents([("q", record)])
    (head, lines) = content["notes"][-1]
    assert (head, lines) == (
        "Notes",
        ["", "first", "rounding   gptq, the worst layers: 'a': 1 dB; and 2 more"],
    )


def test_long_summaries_are_cut() -> None:
    """Beyond a few reasons the summary says how many more there are."""
    recipe = with_override(nodes=["conv1", "conv2"], keep_float=True)
    plan = quantize(two_branch(), [feed_for(two_branch())], recipe=recipe).plan
    text = plan_summary(plan, reasons=1)
    assert "float      2 Convs: kept in float by an override" in text
    assert "more tensors; the plan file and the report list all" in text
    assert "more nodes" not in text
