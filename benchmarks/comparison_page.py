"""Pages of the comparison: results/comparison.md, README's table, and the list of tools and inputs."""

from __future__ import annotations

from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

from comparison_networks import NETWORKS
from comparison_rows import REPORTING, TOOLS, WAYS, Way, is_older_row, read_rows, releases
from inputs import INPUTS
from timing import markdown_table

HERE = Path(__file__).resolve().parent
NOT_RUN = "**not run yet**"
IN_README = ("PP-OCR directions", "UltraFace", "ResNet-20, uneven channels")
BEST = {"onnxfq": "onnxruntime-int8"}
"""Options that README shows of a tool with several.

The figures are taken in ONNX Runtime, where zero points cost nothing. The other tools have them by default.
"""

TEXT = """`make figures` writes this page. {ran} of {count} rows were run. {older} of them say that network,
data, tool or scorer had another form than today's. Tools calibrate on the same samples. Others judge, by
`benchmarks/scorers`. All tools get the model as onnxfq loads it. A figure has the interval of 95% over the
samples that judge. Processor seconds and peak memory are of the run that made the file, on one thread,
without imports. Seconds of a machine that had more to do than its cores can are marked as busy. Networks of
the reporting set chose no constant of onnxfq. {machines}"""


def cell_of(row: dict[str, Any] | None) -> str:
    """Return the figure of a row with its seconds, or what there is in its place."""
    if row is None:
        return NOT_RUN
    told = "fails" if "error" in row else f"{row['figure']:.4f}"
    if "processor" in row and "error" not in row:
        told += f" in {row['processor']:.1f} s"
    return told + (" (older)" if is_older_row(row) else "")


def write_page() -> str:
    """Return the page: a table for each network."""
    rows = read_rows()
    wanted = [(name, way) for name in NETWORKS for way in WAYS]
    ran = [row for name, way in wanted if (row := rows.get((name, way.tool, way.title)))]
    machines = Counter(row["machine"] for row in ran)
    text = TEXT.format(
        ran=len(ran),
        count=len(wanted),
        older=sum(map(is_older_row, ran)),
        machines=f"{'; '.join(machines)}." if machines else "",
    )
    return (
        "\n\n".join(["# Comparison by one command", text, *(_section(name, rows) for name in NETWORKS)])
        + "\n"
    )


def _section(name: str, rows: dict[tuple[str, str, str], dict[str, Any]]) -> str:
    metric = import_module(f"scorers.{NETWORKS[name].scorer}").METRIC
    table = [_line(way, rows.get((name, way.tool, way.title))) for way in WAYS]
    head = ["tool", "option", metric, "interval", "processor s", "peak MB", "on"]
    purpose = "reporting" if name in REPORTING else "tuning"
    model = INPUTS[NETWORKS[name].model]
    places = sorted({row["from"] for (network, _, _), row in rows.items() if network == name})
    source = f"{model.get('package') or model['address']}, {model['licence']}"
    by = f", taken from the {' and '.join(places)}" if places else ""
    return f"## {name}, {purpose} set\n\nModel: {source}{by}.\n\n{markdown_table(head, table)}"


def _line(way: Way, row: dict[str, Any] | None) -> list[str]:
    tool = " ".join([TOOLS.get(way.tool, way.tool), releases().get(way.tool, "")]).strip()
    if row is None:
        return [tool, way.title, NOT_RUN, "", "", "", ""]
    named = " ".join([TOOLS.get(way.tool, way.tool), row["release"]]).strip()
    date = f"{row['date']}, {row['commit']}" + (", older" if is_older_row(row) else "")
    seconds = f"{row.get('processor', 0):.1f}" + (", busy" if row.get("busy", True) else "")
    costs = [seconds, f"{row['peak'] / 1e6:.0f}"] if "processor" in row else ["", ""]
    if "error" in row:
        return [named, way.title, f"fails: {row['error'].replace('|', '/')}", "", *costs, date]
    return [named, way.title, f"{row['figure']:.4f}", f"{row['low']:.4f} to {row['high']:.4f}", *costs, date]


def table_of_readme() -> str:
    """Return README's table: each tool by its defaults, then by its best documented option."""
    rows, shown_rows = read_rows(), list[dict[str, Any]]()
    table = [["float", *(cell_of(rows.get((name, "float", "as it is"))) for name in IN_README)]]
    for tool, called in TOOLS.items():
        ways = [way for way in WAYS if way.tool == tool]
        best = next(way for way in ways if way.title == BEST.get(tool, ways[-1].title) and not way.default)
        cells = []
        for name in IN_README:
            shown = [rows.get((name, tool, way.title)) for way in (ways[0], best)]
            shown_rows += [row for row in shown if row is not None and "processor" in row]
            cells.append("; ".join(map(cell_of, shown)))
        table.append([f"{called}; {best.title}", *cells])
    busy = ", seconds of a busy machine" if any(row.get("busy", True) for row in shown_rows) else ""
    heads = [f"{name}, {'F1' if NETWORKS[name].scorer == 'boxes' else 'top-1'}" for name in IN_README]
    return markdown_table([f"tool; its best option{busy}", *heads], table)


def list_peers() -> str:
    """Return the tools with their releases, and the inputs with their sources and licences."""
    tools = ", ".join(f"{TOOLS[tool]} {release}" for tool, release in releases().items())
    inputs = [
        [name, entry.get("package") or entry["address"], entry["licence"], f"`{entry['sha256'][:12]}`"]
        for name, entry in INPUTS.items()
    ]
    return f"Releases: {tools}.\n\n{markdown_table(['input', 'from', 'licence', 'SHA-256'], inputs)}"


def blocks() -> dict[Path, tuple[str, str]]:
    """Return for each page with a generated block the name of the block and its text."""
    root = HERE.parent
    return {
        root / "README.md": ("comparison", table_of_readme()),
        root / "benchmarks" / "README.md": ("peers", list_peers()),
    }


def with_block(page: str, name: str, text: str) -> str:
    """Return a page with a text between the marks of a block. Raises ValueError without the marks."""
    begin, end = f"<!-- {name}: by make figures -->\n", "\n<!-- end -->"
    before, found, rest = page.partition(begin)
    if not found or end not in rest:
        raise ValueError(f"the page has no block {name!r}; write {begin.strip()!r} and {end.strip()!r}")
    return before + begin + text + end + rest.partition(end)[2]


def write_pages() -> None:
    """Write the page of results and the blocks of other pages."""
    (HERE / "results" / "comparison.md").write_text(write_page(), encoding="utf-8")
    for path, (name, text) in blocks().items():
        path.write_text(with_block(path.read_text(encoding="utf-8"), name, text), encoding="utf-8")
