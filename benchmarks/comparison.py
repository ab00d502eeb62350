"""The comparison with other tools: accuracy and time of one run, a row for each network, tool and option.

    python benchmarks/comparison.py [--only TOOL ...] [--networks TEXT ...] [--again SHARE]
        [--environments FOLDER]

A row holds the digest of its network, data, tool, release and scorer. A row of the same digest is not run
again, so an ended run goes on where it was. Each tool has an environment of its own with the releases of
peers/constraints, made below FOLDER (build/figures/environments) when it is missing. inputs.py finds networks
and data. `--again .33` runs a drawn share of the rows a second time and tells whether the figures lie in the
intervals of the rows. It writes nothing. The rows are in results/comparison.json and on comparison.md there.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "peers")]

import onnx  # noqa: E402
from comparison_networks import NETWORKS, Network, Samples  # noqa: E402
from comparison_page import write_pages  # noqa: E402
from comparison_rows import ROWS, TOOLS, WAYS, Way, digest_of, read_rows, releases  # noqa: E402
from inputs import MissingInputError, find  # noqa: E402
from job import job_folder, open_model, run  # noqa: E402
from planted_damage import scale_channels  # noqa: E402
from scorers.figure import measure  # noqa: E402
from timing import machine  # noqa: E402

import onnxfq  # noqa: E402

ENVIRONMENTS = HERE.parent / "build" / "figures" / "environments"


class Job(NamedTuple):
    """A network that is ready for the tools, and the place that it is from."""

    model: onnx.ModelProto
    samples: Samples
    place: str


def open_job(network: Network) -> Job:
    """Return a network as onnxfq loads it, shapes inferred and weights inside, for all tools alike."""
    path, place = find(network.model)
    if network.damaged:
        with tempfile.TemporaryDirectory() as folder:
            scale_channels(path, Path(folder) / "damaged.onnx", one_channel=False)
            path = Path(folder) / "damaged.onnx"
            return Job(onnxfq.load(path).proto, network.samples(), place)
    return Job(onnxfq.load(path).proto, network.samples(), place)


def python_of(tool: str, folder: Path) -> str | None:
    """Return the python of a tool's environment, None for this one; the environment is made if missing."""
    if tool == "onnxfq":
        return None
    python = folder / tool / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder / tool)], check=True)
        constraints = HERE / "peers" / "constraints" / f"{tool}.txt"
        subprocess.run([str(python), "-m", "pip", "install", "-q", "-r", str(constraints)], check=True)
    return str(python)


def run_row(name: str, way: Way, job: Job, environments: Path) -> dict[str, Any]:
    """Return a row: the figure with its interval and costs, or the first line of the tool's error."""
    network = NETWORKS[name]
    row: dict[str, Any] = {"network": name, "tool": way.tool, "way": way.title, "from": job.place}
    row["busy"] = os.getloadavg()[0] > (os.cpu_count() or 1)
    with job_folder(job.model, job.samples.calibrating) as folder:
        source, made = folder / "model.onnx", {"model": "model.onnx"}
        if way.tool != "float":
            made = run(python_of(way.tool, environments), way.tool, way.task, folder, **way.options)
        try:
            if "error" in made:
                raise RuntimeError(made["error"])
            level = "ORT_ENABLE_ALL" if way.tool == "float" else "ORT_ENABLE_BASIC"
            runs = open_model(folder / made["model"], level), open_model(source)
            found = measure(network.scorer, *runs, job.samples.judging, job.samples.truths)
            row |= dict(zip(("figure", "low", "high"), found, strict=True))
        except Exception as error:  # a file that its own maker's runtime does not open has no common class
            lines = str(error).strip().splitlines() or [type(error).__name__]
            row["error"] = lines[0].removeprefix("RuntimeError: ")[:160]
        row |= {key: made[key] for key in ("processor", "peak") if key in made}
    return row | {"release": releases().get(way.tool, ""), "digest": digest_of(name, way)}


def write_row(row: dict[str, Any]) -> None:
    """Put a row in the place of the one of its network and way, in the order of the tables."""
    git = ["git", "-C", str(HERE), "rev-parse", "--short=8", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True).stdout.strip() or "no commit"
    rows = read_rows() | {
        (row["network"], row["tool"], row["way"]): row
        | {"date": str(datetime.date.today()), "commit": commit, "machine": machine()}
    }
    order = [(name, way.tool, way.title) for name in NETWORKS for way in WAYS]
    kept = [rows[key] for key in order if key in rows]
    ROWS.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def compare_again(share: float, environments: Path) -> int:
    """Run a drawn share of the rows again; return 1 if a figure lies outside the written interval."""
    rows = sorted(key for key, row in read_rows().items() if "figure" in row)
    random.shuffle(rows)
    outside = 0
    for name, tool, title in rows[: max(1, round(share * len(rows)))]:
        (way,) = (one for one in WAYS if (one.tool, one.title) == (tool, title))
        written = read_rows()[name, tool, title]
        found = run_row(name, way, open_job(NETWORKS[name]), environments).get("figure")
        inside = found is not None and written["low"] <= found <= written["high"]
        outside += not inside
        print(
            name, tool, title, found, "inside" if inside else "OUTSIDE", f"{written['low']} {written['high']}"
        )
    return int(outside > 0)


def main() -> int:
    """Run the rows that are missing or of another form, and write the pages."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[], metavar="TEXT", help=f"tools: {', '.join(TOOLS)}")
    parser.add_argument("--networks", nargs="*", default=[], metavar="TEXT", help="parts of names")
    parser.add_argument("--again", type=float, metavar="SHARE", help="run this share of the rows again")
    parser.add_argument("--environments", type=Path, default=ENVIRONMENTS, metavar="FOLDER")
    asked = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    if asked.again:
        return compare_again(asked.again, asked.environments)
    for name, network in NETWORKS.items():
        if asked.networks and not any(text in name for text in asked.networks):
            continue
        there = read_rows()
        ways = [
            way
            for way in WAYS
            if (not asked.only or way.tool in (*asked.only, "float"))
            and there.get((name, way.tool, way.title), {}).get("digest") != digest_of(name, way)
        ]
        if not ways:
            continue
        try:
            job = open_job(network)
        except MissingInputError as error:
            print(f"{name}: left out, {error}", flush=True)
            continue
        for way in ways:
            row = run_row(name, way, job, asked.environments)
            write_row(row)
            told = row.get("error") or f"{row['figure']:.4f} ({row['low']:.4f} to {row['high']:.4f})"
            print(name, way.tool, way.title, told, f"{row.get('processor', 0):.1f} s", sep=" | ", flush=True)
    write_pages()
    return 0


if __name__ == "__main__":
    sys.exit(main())
