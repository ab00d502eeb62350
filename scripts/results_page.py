"""Writes benchmarks/results.md, the one page of results, from the files of benchmarks/results.

    python scripts/results_page.py [--measured FILE ...]

origins.json there has the order of the files and, for each, the command that wrote it, date and commit.
--measured gives files of that folder the date of today and the commit of the checkout: name those that were
just measured.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import subprocess
from os.path import relpath
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "benchmarks" / "results.md"
LINK = re.compile(r"(\]\()([^)\s#:]*)(#[^)\s]*)?(?=\))")

HEAD = """# Results

`python scripts/results_page.py` writes this page from the files of `benchmarks/results`. A row gives the
command that measured a section, and the date and the commit of the run. Later commits may give other figures.

| section | command | date | commit |
|---|---|---|---|
"""


def read_origins() -> dict[str, dict[str, str]]:
    """Return command, date and commit of each file of results, in the order of the page."""
    origins: dict[str, dict[str, str]] = json.loads((RESULTS / "origins.json").read_text(encoding="utf-8"))
    return origins


def write_page() -> str:
    """Return the page: a table of the sections, then each file as a section."""
    rows, sections = [], []
    for file, origin in read_origins().items():
        text = (RESULTS / file).read_text(encoding="utf-8").strip()
        title = text.partition("\n")[0].removeprefix("# ")
        command = origin["command"].replace("|", "\\|")
        rows.append(f"| [{title}](#{slug(title)}) | `{command}` | {origin['date']} | {origin['commit']} |\n")
        deeper = re.sub(r"^(#+) ", r"#\1 ", text, flags=re.MULTILINE)
        sections.append(LINK.sub(_relink, deeper) + "\n")
    return HEAD + "".join(rows) + "\n" + "\n".join(sections)


def slug(heading: str) -> str:
    """Return the anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-")


def _relink(link: re.Match[str]) -> str:
    """Point a link of a file of results from the page: to a section if it names another such file."""
    if not link[2]:
        return link[0]
    target = (RESULTS / link[2]).resolve()
    if target.parent == RESULTS:
        heading = target.read_text(encoding="utf-8").partition("\n")[0]
        return link[1] + (link[3] or "#" + slug(heading.removeprefix("# ")))
    return link[1] + relpath(target, PAGE.parent) + (link[3] or "")


def main() -> None:
    """Write the page, after new dates for what was measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    origins = read_origins()
    parser.add_argument("--measured", nargs="*", metavar="FILE", default=[], choices=[*origins, []])
    asked = parser.parse_args()
    git = ["git", "-C", str(ROOT), "rev-parse", "--short=8", "HEAD"]
    for file in asked.measured:
        commit = subprocess.run(git, check=True, capture_output=True, text=True).stdout.strip()
        origins[file] |= {"date": str(datetime.date.today()), "commit": commit}
    (RESULTS / "origins.json").write_text(json.dumps(origins, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(write_page(), encoding="utf-8")


if __name__ == "__main__":
    main()
