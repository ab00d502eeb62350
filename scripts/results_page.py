"""Writes benchmarks/results.md, the one page of results, from the files of benchmarks/results.

    python scripts/results_page.py [--measured FILE ...]

origins.json there has the order of the files and, for each, the command that wrote it, date and commit, what
it measures, and the form of that then. --measured gives files of that folder the date of today, the commit of
the checkout and the form of today: name those that were just measured. A section is older if what it measures
has another form now. The page says so by itself, and `make release` fails on it.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import subprocess
import sys
from os.path import relpath
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "benchmarks"))

from comparison_page import write_pages  # noqa: E402  (just added)
from comparison_rows import OF_LIBRARY, OF_ONNXFQ, is_older_row, read_rows  # noqa: E402
from forms import form_of  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "benchmarks" / "results.md"
README = ROOT / "README.md"
AGE = re.compile(r"<!-- age of (\S+) -->[^<]*<!-- end -->")
"""A place of README that tells whether a section is older, and is empty if not."""

LINK = re.compile(r"(\]\()([^)\s#:]*)(#[^)\s]*)?(?=\))")

GROUPS: dict[str, tuple[str, ...]] = {
    "quantize": (*OF_ONNXFQ, *OF_LIBRARY),
    "kernels": ("onnxfq/numerics", *OF_LIBRARY),
    "statistics": ("onnxfq/calibration", "onnxfq/passes/observe", "onnxfq/numerics", *OF_LIBRARY),
    "torch": ("onnxfq/torch", "onnxfq/numerics"),
    "cuda": ("custom_ops/include", "custom_ops/src/cuda"),
    "package": ("onnxfq", "custom_ops"),
}
"""Files that sections measure, by the words of origins.json. Another word there is a pattern."""

HEAD = """# Results

`python scripts/results_page.py` writes this page from the files of `benchmarks/results`. A row gives the
command that measured a section, and the date and the commit of the run. The last column tells whether the
measured files have the same form now. Comments, docstrings and white space of Python do not
count.

| section | command | date | commit | measured files |
|---|---|---|---|---|
"""
SAME, OLDER = "the same", "**older**"


def read_origins() -> dict[str, dict[str, Any]]:
    """Return command, date, commit, measured files and their form of each file of results, in order."""
    origins: dict[str, dict[str, Any]] = json.loads((RESULTS / "origins.json").read_text(encoding="utf-8"))
    return origins


def measured_files(origin: dict[str, Any]) -> tuple[str, ...]:
    """Return the patterns of what a section measures, with the scripts of its command."""
    scripts = [word.strip(",") for word in origin["command"].split() if re.search(r"/\w+\.(py|sh),?$", word)]
    return tuple(one for word in origin["measures"] for one in GROUPS.get(word, (word,))) + tuple(scripts)


def age_of(file: str, origin: dict[str, Any]) -> str:
    """Return whether what a section measured has the form of today, and the hardware that is not here."""
    if file == "comparison.md":  # each of its rows has a form
        older = sum(map(is_older_row, read_rows().values()))
        return f"{OLDER}: {older} rows" if older else SAME
    if form_of(measured_files(origin)) == origin["form"]:
        return SAME
    return OLDER + (f", on {origin['hardware']}" if "hardware" in origin else "")


def mark_readme(text: str) -> str:
    """Return README with a remark behind each claim whose section is older."""
    origins = read_origins()

    def remark(place: re.Match[str]) -> str:
        age, date = age_of(place[1], origins[place[1]]), origins[place[1]]["date"]
        told = "" if age == SAME else f" (measured on {date} with another form)"
        return f"<!-- age of {place[1]} -->{told}<!-- end -->"

    return AGE.sub(remark, text)


def list_older() -> list[str]:
    """Return the sections that a release must not have: older, and of hardware that is at hand."""
    ages = {file: age_of(file, origin) for file, origin in read_origins().items()}
    return [file for file, age in ages.items() if age != SAME and ", on " not in age]


def write_page() -> str:
    """Return the page: a table of the sections, then each file as a section."""
    rows, sections = [], []
    for file, origin in read_origins().items():
        text = (RESULTS / file).read_text(encoding="utf-8").strip()
        title = text.partition("\n")[0].removeprefix("# ")
        command = origin["command"].replace("|", "\\|")
        place, age = f"[{title}](#{slug(title)})", age_of(file, origin)
        rows.append(f"| {place} | `{command}` | {origin['date']} | {origin['commit']} | {age} |\n")
        if age.startswith(OLDER):
            heading, _, rest = text.partition("\n")
            mark = f"**Older: measured on {origin['date']} with another form of {_names(origin)}.**"
            text = f"{heading}\n\n{mark}\n{rest}"
        deeper = re.sub(r"^(#+) ", r"#\1 ", text, flags=re.MULTILINE)
        sections.append(LINK.sub(_relink, deeper) + "\n")
    return HEAD + "".join(rows) + "\n" + "\n".join(sections)


def _names(origin: dict[str, Any]) -> str:
    """Return what a section measures in the words of origins.json."""
    return ", ".join(f"`{word}`" for word in origin["measures"] or measured_files(origin))


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
        form = form_of(measured_files(origins[file]))
        origins[file] |= {"date": str(datetime.date.today()), "commit": commit, "form": form}
    (RESULTS / "origins.json").write_text(json.dumps(origins, indent=1) + "\n", encoding="utf-8")
    write_pages()
    PAGE.write_text(write_page(), encoding="utf-8")
    README.write_text(mark_readme(README.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
