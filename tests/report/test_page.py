"""The page of results in a real browser: sorted, filtered, opened, printed, in both themes.

The tests need the package playwright and an installed Chromium, and are skipped elsewhere.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from browser import Tab
from builders import feed_for, two_branch
from planted_chain import LAYERS

from onnxfq.cli.main import main
from onnxfq.quantizing.pipeline import QuantizeResult, quantize
from onnxfq.report.contents import read_result
from onnxfq.report.html import render_page
from onnxfq.report.record import quantize_record
from onnxfq.support.records import to_json

HOSTILE = "</script><img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, planted: dict[str, QuantizeResult]) -> dict[str, Path]:
    """Pages of the planted chain, protected and not, of both, and of a model with names like HTML."""
    folder = tmp_path_factory.mktemp("pages")
    odd = two_branch()
    for node in odd.graph.node:
        node.output[:] = [HOSTILE if name == "h" else name for name in node.output]
        node.input[:] = [HOSTILE if name == "h" else name for name in node.input]
    hostile = quantize_record(quantize(odd, [feed_for(odd)]))
    for name, result in planted.items():
        record = quantize_record(result)
        (folder / f"{name}.json").write_text(to_json(record), encoding="utf-8")
        (folder / f"{name}.html").write_text(render_page([(name, record)]), encoding="utf-8")
    (folder / "hostile.html").write_text(render_page([(HOSTILE, hostile)]), encoding="utf-8")
    both = [str(folder / "protected.json"), str(folder / "plain.json")]
    assert main(["report", *both, "-o", str(folder / "both.html"), "-q"]) == 0
    return {path.stem: path for path in folder.glob("*.html")}


def test_the_reader_finds_the_guilty_layer(tab: Tab, files: dict[str, Path]) -> None:
    """The first row is the planted layer by its module; a click opens histograms and neighbours."""
    page = tab.open(files["plain"])
    assert tab.texts(".open-layer")[0].strip() == "blocks.0.fc3"
    assert tab.texts("#verdict .tiles b.low") == tab.texts("#verdict .tiles b")[:1]
    page.locator("tr.layer").first.click()
    assert page.locator("svg.histogram").count() == 2
    page.get_by_role("button", name="MatMul blocks.1.fc4").click()
    assert page.locator("tr.open").count() == 2
    assert "blocks.1.fc4" in tab.texts("tr.open")[-1]
    page.locator("tr.layer").first.click()
    assert page.locator("tr.open").count() == 1
    page.locator("#noise circle").first.click()
    assert "blocks.0.fc0" in " ".join(tab.texts("tr.open"))
    assert not tab.said and tab.asked == [files["plain"].as_uri()]


def test_sort_and_filter(tab: Tab, files: dict[str, Path]) -> None:
    """A heading sorts up, then down; words, operator and state leave the rows that fit."""
    page = tab.open(files["protected"])
    heading = page.locator("#layers th", has_text="running dB")
    for direction, turned in (("ascending", False), ("descending", True)):
        heading.get_by_role("button").click()
        assert heading.get_attribute("aria-sort") == direction
        place = [one.split(" ")[0] for one in page.locator("#layers th").all_inner_texts()].index("running")
        cells = page.locator(f"tr.layer > td:nth-child({place + 1})").all_inner_texts()
        assert cells == sorted(cells, key=float, reverse=turned) and len(cells) == LAYERS
    page.fill("#filter", "blocks.1 matmul")
    assert sorted(text.strip() for text in tab.texts(".open-layer")) == [
        f"blocks.1.fc{n}" for n in range(4, 8)
    ]
    assert tab.texts("#count") == [f"4 of {LAYERS} layers"]
    page.fill("#filter", "")
    page.select_option("#state", "float")
    assert [text.strip() for text in tab.texts(".open-layer")] == ["blocks.0.fc3"]
    page.select_option("#operator", "MatMul")
    assert len(tab.texts(".open-layer")) == 1 and not tab.said


def test_both_themes(tab: Tab, files: dict[str, Path]) -> None:
    """The page follows the system, the button turns it round, and paper is always light."""
    page = tab.open(files["protected"])

    def ink() -> int:
        return page.evaluate("parseInt(getComputedStyle(document.body).color.match(/\\d+/)[0])")

    assert ink() < 100
    page.emulate_media(color_scheme="dark")
    assert ink() > 200
    page.click("#theme")
    assert ink() < 100
    page.click("#theme")
    assert ink() > 200
    page.emulate_media(media="print", color_scheme="dark")
    assert ink() < 100 and not tab.said


def test_two_results_side_by_side(tab: Tab, files: dict[str, Path]) -> None:
    """Each result has its verdict, its line in the plot and its columns; rows are joined by layer."""
    page = tab.open(files["both"])
    assert tab.texts("#verdict h2") == ["Aprotected", "Bplain"]
    assert page.locator("#noise polyline").count() == 2
    heads = [" ".join(text.split()) for text in page.locator("#layers th").all_inner_texts()]
    assert {"Arunning dB", "Brunning dB", "Aalone dB", "Balone dB", "Anoise", "Bnoise"} <= set(heads)
    assert page.locator("tr.layer").count() == LAYERS
    first = page.locator("tr.layer").first
    first.click()
    assert first.locator("td").all_inner_texts()[-2:] == ["float", "int8"]
    assert page.locator(".detail h3", has_text="blocks.0.fc3").count() == 2 and not tab.said


def test_names_are_text(tab: Tab, files: dict[str, Path]) -> None:
    """A tensor called like HTML is shown, not run."""
    page = tab.open(files["hostile"])
    for row in page.locator("tr.layer").all():
        row.click()
    assert HOSTILE in " ".join(tab.texts(".detail h3")) and page.title() == f"onnxfq: {HOSTILE}"
    assert page.locator("img").count() == 0 and not tab.said and len(tab.asked) == 1


def test_many_layers(tab: Tab, files: dict[str, Path], tmp_path: Path) -> None:
    """Two results of 4,000 show their tables in seconds, in portions; all rows are sorted and found."""
    record = json.loads(files["plain"].with_suffix(".json").read_text(encoding="utf-8"))
    row, count = record["table"]["layers"][0], 4_000
    record["table"]["layers"] = [
        row | {"node": f"n{at}", "output": f"t{at}", "position": at, "output_db": at % 50, "module": ""}
        for at in range(count)
    ]
    (tmp_path / "large.json").write_text(json.dumps(record))
    read = read_result(tmp_path / "large.json")
    (tmp_path / "large.html").write_text(render_page([("a", read), ("b", read)]), encoding="utf-8")
    page = tab.open(tmp_path / "large.html")
    assert tab.texts("#count") == [f"{count} of {count} layers"]
    assert page.locator("tr.layer").count() < 1000 and page.locator("#noise circle").count() < 2 * count
    heading = page.locator("#layers th", has_text="#").get_by_role("button")
    for first in ("n0", f"n{count - 1}"):
        heading.click()
        assert tab.texts(".open-layer")[0].strip() == first
    page.fill("#filter", "n3123")
    assert tab.texts("#count") == [f"1 of {count} layers"]
    page.fill("#filter", "")
    before = page.locator("tr.layer").count()
    page.locator("#more").scroll_into_view_if_needed()
    page.locator("tr.layer").nth(before).wait_for()
    page.evaluate("reveal('n1234')")
    assert page.locator("tr.open").inner_text().startswith("1235") and not tab.said


def test_the_policy_of_the_page(tab: Tab, files: dict[str, Path]) -> None:
    """Scripts, styles and requests other than the page's own are refused by the browser."""
    page = tab.open(files["plain"])
    page.evaluate(
        """() => {
          const script = document.createElement("script");
          script.textContent = "document.title = 'changed'";
          const image = document.createElement("img");
          image.src = "http://127.0.0.1:9/a.png";
          const part = document.createElement("p");
          part.setAttribute("style", "color: red");
          document.body.append(script, image, part);
        }"""
    )
    page.wait_for_timeout(200)
    assert page.title() == "onnxfq: plain"
    assert len(tab.said) >= 3 and all("Content Security Policy" in said for said in tab.said)
