"""Pictures of the report in Chromium, and the time that a page of 2,000 tensors takes: to be looked at.

Needs the package playwright and an installed Chromium: `python scripts/report_pictures.py FOLDER`.
"""

from __future__ import annotations

import shutil
import sys
from itertools import product
from pathlib import Path
from statistics import median

from playwright.sync_api import Page, sync_playwright

from onnxfq.cli.digits import run_demo
from onnxfq.documents.layers import GraphNode, LayerRow, TensorRow
from onnxfq.quantizing.pipeline import QuantizeResult
from onnxfq.report.html import render_page
from onnxfq.report.record import ResultRecord, quantize_record

LAYERS, ROUNDS = 1000, 5
"""Layers of the large page, each with an activation and a weight, and times that it is loaded."""

WIDTHS = (1920, 1280, 900, 500, 360)
"""Pixels of the windows, each in light and in dark."""

PAPER = 1030
"""Pixels between the margins of A4 in landscape."""


def enlarge(record: ResultRecord, layers: int) -> ResultRecord:
    """Return `record` with its layers and tensors repeated under other names."""
    table = record.table
    tensors, graph = {row.tensor: row for row in table.tensors}, []
    made: list[LayerRow] = []
    found: list[TensorRow] = []
    for at in range(layers):
        row = table.layers[at % len(table.layers)]
        both = [tensors[name] for name in row.tensors][:2] * 2
        names = (f"blocks.{at}.input", f"blocks.{at}.weight")
        found += [one.model_copy(update={"tensor": name}) for one, name in zip(both, names, strict=False)]
        made.append(
            row.model_copy(
                update={
                    "node": f"node_{at}",
                    "module": f"blocks.{at}.conv",
                    "position": at,
                    "tensors": names,
                }
            )
        )
        graph.append(GraphNode(node=f"node_{at}", op_type=row.op_type, reads=(at - 1,) if at else ()))
    changes = {"layers": tuple(made), "tensors": tuple(found), "graph": tuple(graph)}
    large = table.model_copy(update=changes)
    return record.model_copy(update={"table": large})


def write_pages(folder: Path) -> dict[str, Path]:
    """Write the pages of the demo's network, alone, side by side and enlarged; return them by name."""
    results: dict[str, QuantizeResult] = run_demo(folder / "demo").results
    records = [(name, quantize_record(result, command="onnxfq demo")) for name, result in results.items()]
    label, record = records[-1]
    contents = {"one": records[-1:], "two": records, "large": [(label, enlarge(record, LAYERS))]}
    pages = {name: folder / f"{name}.html" for name in contents}
    for name, content in contents.items():
        pages[name].write_text(render_page(content), encoding="utf-8")
    return pages


def seconds_to_draw(page: Page, path: Path) -> tuple[float, float]:
    """Return the seconds until the page is drawn, by the clock and of the processor."""
    clock = page.context.new_cdp_session(page)
    clock.send("Performance.enable", {"timeDomain": "threadTicks"})
    page.goto(path.as_uri())
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    found = {one["name"]: one["value"] for one in clock.send("Performance.getMetrics")["metrics"]}
    return float(page.evaluate("performance.now()")) / 1000, float(found["TaskDuration"])


def main(folder: Path) -> None:
    """Write pages, pictures and a PDF to `folder`, and print the times."""
    folder.mkdir(parents=True, exist_ok=True)
    pages = write_pages(folder)
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, width, theme in product(("one", "two"), WIDTHS, ("light", "dark")):
            page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=theme)
            page.goto(pages[name].as_uri())
            page.locator("tr.layer").first.click()
            page.screenshot(path=folder / f"{name}-{width}-{theme}.png", full_page=True)
            page.close()
        page = browser.new_page(viewport={"width": PAPER, "height": 700})
        page.goto(pages["one"].as_uri())
        page.locator("tr.layer").first.click()
        page.emulate_media(media="print")
        page.screenshot(path=folder / "one-paper.png", full_page=True)
        page.pdf(path=folder / "one.pdf", prefer_css_page_size=True)
        times, busy = zip(
            *(seconds_to_draw(browser.new_page(), pages["large"]) for _ in range(ROUNDS)), strict=True
        )
        page.goto(pages["large"].as_uri())
        size = pages["large"].stat().st_size / 1e6
        print(
            f"{2 * LAYERS} tensors, {size:.1f} MB: median {median(times):.2f} s, slowest {max(times):.2f} s"
        )
        print(f"processor time of the page: median {median(busy):.2f} s, slowest {max(busy):.2f} s")
        click = "document.querySelector('#layers th button').click()"
        sort = f"(() => {{ const begin = performance.now(); {click}; return performance.now() - begin; }})()"
        print(f"sorting takes {float(page.evaluate(sort)):.0f} ms")
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
