"""How the page looks in a real browser: nothing is cut or overlaps, all is readable, every table sorts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from browser import PRINTED, Tab
from builders import build
from planted_chain import chain, unequalized, with_modules

from onnxfq.cli.main import main
from onnxfq.documents.timing import OperatorCost, TimedModel, Timing
from onnxfq.judging.accuracy_target import AccuracyTarget
from onnxfq.quantizing.pipeline import QuantizeResult, quantize
from onnxfq.report.html import render_page
from onnxfq.report.record import quantize_record

AUDIT = (Path(__file__).parent / "audit.js").read_text(encoding="utf-8")
"""A function that returns what is wrong on the page, a line for each fault."""

SCREENS = (*((width, "light") for width in (1920, 900, 480, 360)), (1280, "dark"))
PAGES = ("wrecked", "pair", "long", "pictures", "diagnosis")


def with_long_names(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return `proto` with tensors and nodes of names without a place to break."""
    renamed = {name: f"{name}_{'abcdefghij' * 12}" for node in proto.graph.node for name in node.output[:1]}
    renamed.pop("y")
    for node in proto.graph.node:
        node.name = f"node_{node.name}_{'klmnopqrst' * 12}"
        for names in (node.input, node.output):
            names[:] = [renamed.get(name, name) for name in names]
    return proto


def convolution() -> onnx.ModelProto:
    """Return a model that takes images of three channels."""
    weight = np.random.default_rng(3).normal(size=(4, 3, 3, 3)).astype(np.float32)
    return build("g (float[N,3,32,32] x) => (float[N,4,30,30] y) { y = Conv (x, w) }", {"w": weight})


def timed() -> Timing:
    """Return times with every column filled."""
    least = {"target": "onnxruntime", "least_ms": 1.0, "median_ms": 1.2}
    costs = tuple(OperatorCost(op_type=f"Operator{n}", nodes=n, share=0.1) for n in range(6))
    slow = TimedModel(model="quantized", **least, ratio=2.0, low=1.9, high=2.1, costs=costs)
    return Timing(threads=1, models=(TimedModel(model="float", **least), slow))


@pytest.fixture(scope="module")
def pages(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[dict[str, np.ndarray]],
    planted: dict[str, QuantizeResult],
) -> dict[str, Path]:
    """A wrecked and repaired chain, both beside another, long names, thumbnails, and a diagnosis."""
    folder, wrecked = tmp_path_factory.mktemp("looks"), planted["protected"]
    evaluation = wrecked.evaluation.model_copy(update={"timing": timed()})
    record = quantize_record(replace(wrecked, evaluation=evaluation))
    named = with_long_names(with_modules(chain((3, 6))))
    long = quantize(named, rows, recipe=unequalized(), accuracy=AccuracyTarget(repair=None))
    contents = {
        "wrecked": [("wrecked", record)],
        "pair": [("wrecked", record), ("long", quantize_record(long))],
        "long": [("long", quantize_record(long))],
    }
    for name, content in contents.items():
        (folder / f"{name}.html").write_text(render_page(content), encoding="utf-8")
    source, images = folder / "m.onnx", folder / "d.npz"
    onnx.save(convolution(), source)
    sizes = np.float32([1, 1, 500]).reshape(3, 1, 1)
    np.savez(images, x=np.random.default_rng(2).normal(size=(12, 3, 32, 32)).astype(np.float32) * sizes)
    line = ["quantize", str(source), "--data", str(images), "-o", str(folder / "q.onnx"), "-q"]
    assert main([*line, "--report", str(folder / "pictures.html"), "--thumbnails"]) == 0
    onnx.save(planted["plain"].qdq, folder / "w.onnx")
    np.savez(folder / "w.npz", x=np.concatenate([row["x"] for row in rows]))
    given = ["diagnose", str(folder / "w.onnx"), "--data", str(folder / "w.npz"), "-q"]
    assert main([*given, "--report", str(folder / "diagnosis.html")]) == 0
    return {name: folder / f"{name}.html" for name in PAGES}


def open_rows(page: Any) -> None:
    """Open the first two layers, of which the page draws all that it knows."""
    for row in page.locator("tr.layer").all()[:2]:
        row.click()


@pytest.mark.parametrize("name", PAGES)
def test_nothing_is_wrong_on_screens(tab: Tab, pages: dict[str, Path], name: str) -> None:
    """At each width, and in the dark, text is whole, apart, in a known glyph and in contrast."""
    page = tab.open(pages[name])
    open_rows(page)
    for width, scheme in SCREENS:
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(media="screen", color_scheme=scheme)
        page.wait_for_timeout(50)
        assert page.evaluate(AUDIT) == [], f"{width} {scheme}"
    page.set_viewport_size({"width": 1280, "height": 800})
    assert not tab.said and tab.asked == [pages[name].as_uri()]


def test_axes_have_names(tab: Tab, pages: dict[str, Path]) -> None:
    """The charts of a page say on their axes what they show, and in which unit."""
    page = tab.open(pages["long"])
    open_rows(page)
    said = " ".join(page.locator("svg text").all_text_contents())
    assert all(text in said for text in ("SQNR of its output, dB", "number of the layer", "value", "count ("))


@pytest.mark.parametrize("name", PAGES)
def test_nothing_is_wrong_on_paper(tab: Tab, pages: dict[str, Path], name: str) -> None:
    """Between the margins of A4 the same holds, with every column."""
    page = tab.open(pages[name])
    open_rows(page)
    page.set_viewport_size({"width": PRINTED, "height": 700})
    page.emulate_media(media="print", color_scheme="dark")
    page.wait_for_timeout(50)
    assert page.evaluate(AUDIT) == []
    assert all(head.is_visible() for head in page.locator("#layers th").all())
    printed = page.pdf(prefer_css_page_size=True) if name == "pair" else b""
    assert name != "pair" or (printed.startswith(b"%PDF") and len(printed) > 10_000)
    page.set_viewport_size({"width": 1280, "height": 800})


def test_the_audit_finds_faults(tab: Tab, pages: dict[str, Path]) -> None:
    """Each fault that is planted on a sound page is found."""
    faults = {
        "wide": ".tiles { width: 200vw }",
        "cut": "h1 { width: 2rem; overflow: hidden; white-space: nowrap }",
        "overlap": "h2 { margin-top: -2rem }",
        "contrast": ".soft { color: #aaa }",
    }
    for word, style in faults.items():
        page = tab.open(pages["wrecked"])
        page.evaluate(
            "css => { const s = new CSSStyleSheet(); s.replaceSync(css); "
            "document.adoptedStyleSheets = [s]; }",
            style,
        )
        assert any(fault.startswith(word) for fault in page.evaluate(AUDIT)), word
    page = tab.open(pages["wrecked"])
    page.evaluate("document.querySelector('h1').textContent = 'a \\u{10FFFE}'")
    assert any(fault.startswith("glyph") for fault in page.evaluate(AUDIT))


@pytest.mark.parametrize("name", ["pair", "diagnosis"])
def test_every_table_sorts(tab: Tab, pages: dict[str, Path], name: str) -> None:
    """Each heading of each table sorts its column up, then down; a pair has the tables of both results."""
    page = tab.open(pages[name])
    open_rows(page)
    tables = page.locator("table").evaluate_all(CLICK_HEADINGS)
    assert any(tables)
    for head, directions, up, down in (found for table in tables for found in table):
        assert directions == ["ascending", "descending"] and sorted(up) == sorted(down), head
        assert all(page.evaluate(IS_SORTED, texts) for texts in (up, down[::-1])), head
    assert not tab.said


CLICK_HEADINGS = """tables => tables.map(table => [...table.querySelectorAll(":scope > thead th:has(button)")]
  .filter(head => head.checkVisibility()).map(head => {
    const path = `:scope > tbody > tr:not(.detail) > td:nth-child(${head.cellIndex + 1})`;
    const found = ["up", "down"].map(() => {
      head.querySelector("button").click();
      const texts = [...table.querySelectorAll(path)].map(one =>
        (one.querySelector(".open-layer, summary, div") ?? one).textContent.replace(/, … \\(\\d+\\)$/, ""));
      return [head.getAttribute("aria-sort"), texts.filter(text => text)];
    });
    return [head.textContent, found.map(one => one[0]), found[0][1], found[1][1]];
  }))"""
"""For each table what its headings say, their directions, and the texts of cells behind each click.

A cell of several lines has the first, by which a column is sorted.
"""

IS_SORTED = """texts => {
  const plain = text => text.replace(/^\\d+: /, "").replace("∞", "Infinity").replaceAll(",", "");
  const figures = texts.map(text => parseFloat(plain(text)));
  return texts.every((text, at) => !at || (figures.some(Number.isNaN)
    ? texts[at - 1].localeCompare(text) <= 0 : figures[at - 1] <= figures[at]));
}"""
"""Whether texts ascend: by their figures if all have one, else as the browser compares words."""


def test_every_node_of_a_drawing_leads_to_its_layer(tab: Tab, pages: dict[str, Path]) -> None:
    """A click on a layer in the graph around another opens it, and shows its row."""
    page = tab.open(pages["wrecked"])
    page.locator("tr.layer").first.click()
    names = [one.get_attribute("aria-label") for one in page.locator(".graph [role=button]").all()]
    assert names == ["MatMul blocks.0.fc2", "MatMul blocks.1.fc4"]
    for name in names:
        page.locator(f'.graph [aria-label="{name}"]').first.click()
        row = page.locator("tr.open", has_text=name.split(" ")[1])
        assert row.count() == 1 and row.is_visible()
    targets = page.evaluate("[...document.querySelectorAll('a[href]')].map(one => one.getAttribute('href'))")
    assert all(page.locator(target).count() for target in targets) and not tab.said


def test_the_guilty_channel_is_named(tab: Tab, pages: dict[str, Path]) -> None:
    """The first row has the number of the planted channel, though its layer is in float; more is below."""
    page = tab.open(pages["wrecked"])
    heads = [text.split("\n")[0] for text in page.locator("#layers th").all_inner_texts()]
    place = heads.index("largest channel")
    first = page.locator("tr.layer").first
    assert first.locator("td").nth(place).inner_text().startswith("3: ")
    first.click()
    assert "stays in float" in page.locator(".detail").inner_text()
    assert page.locator(".detail p.low").inner_text().startswith("In 8 samples, channel 3 of 24 reaches")
    assert page.locator(".detail svg.histogram").count() == 1
