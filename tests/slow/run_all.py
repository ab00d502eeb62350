"""Runs all slow checks, and writes what each found to the page of results.

    python tests/slow/run_all.py [NAME ...]

Not a pytest. Without names all checks run, which takes hours. A check that is not named keeps its row on the
page. The exit code is 1 when a check that ran has found something.
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "benchmarks" / "results" / "checks.md"

CHECKS = {
    "pythons": ("every Python 3 that is supported", "python tests/slow/check_pythons.py WHEEL"),
    "tutorials": (
        "the tutorials in fresh environments of the oldest Python and the newest",
        "python tests/slow/check_tutorials.py WHEEL",
    ),
    "release": (
        "an archive of sources, a wheel from it, and the wheel alone; no extra with a second runtime",
        "python tests/slow/check_release.py",
    ),
    "runtimes": (
        "the operators in four releases of onnxruntime",
        "python tests/custom_ops/check_runtimes.py",
    ),
    "networks": (
        "ten networks of torchvision, timm and transformers by both roads",
        "python tests/slow/check_torch_networks.py",
    ),
    "commands": ("every command on damaged inputs", "python tests/slow/fuzz_commands.py --cases 2000"),
    "paths": (
        "odd paths as every parameter of every command",
        "env ONNXFQ_ODD_PATHS=1 python -m pytest -q -n 0 --test-seconds 7200 -o faulthandler_timeout=7190 "
        "tests/cli/test_paths.py",
    ),
    "kills": ("folders that commands write, after a kill", "python tests/slow/kill_commands.py"),
    "bits": (
        "the same bits however data are fed",
        "python -m pytest -q -n 0 tests/test_same_bits.py --all-ways",
    ),
    "graphs": ("random graphs", "python -m pytest -q -n 0 tests/test_random_graphs.py --random-graphs 5000"),
    "files": (
        "damaged files",
        "python -m pytest -q -n 0 tests/support/test_damaged_files.py --damaged-files 2000",
    ),
    "opsets": ("every opset and recipe", "python -m pytest -q -n 0 tests/graph/test_opsets.py --all-opsets"),
    "cases": ("every case of the tests that take a sample", "python -m pytest -q --all-cases"),
    "engines": (
        "every network and recipe as an engine of TensorRT",
        "env ONNXFQ_GOLDEN=all python -m pytest -q -n 0 --test-seconds 7200 -o faulthandler_timeout=7190 "
        "tests/targets/test_golden.py",
    ),
    "forms": (
        "a fifth of the forms of operators, another one each day, in each runtime that is installed",
        "env PYTHONPATH=. python scripts/runtime_forms.py --check 5",
    ),
    "plans": (
        "plans of 41 networks as engines of TensorRT",
        "env ONNXFQ_GOLDEN=all python -m pytest -q -n 0 -s --test-seconds 3600 -o faulthandler_timeout=3590 "
        "tests/targets/test_plan_engines.py",
    ),
    "HTP": ("the table and the tests of QNN on the emulation of Qualcomm's HTP", "make qnn"),
    "GenAI": ("folders of language models that GenAI generates from", "python tests/slow/check_genai.py"),
    "checkpoints": (
        "checkpoints both ways, with transformers and onnxruntime",
        "python tests/slow/check_checkpoints.py",
    ),
    "ARM": ("the kernels for ARM, emulated: the bits of this processor", "make arm"),
    "Haswell": ("int8 on a processor without VNNI, emulated", "python tests/slow/check_haswell.py"),
    "suite of AIMET": (
        "its own tests, with its names given to ours",
        "python tests/slow/check_suites.py aimet",
    ),
    "suite of pytorch-quantization": (
        "its own tests, with its names given to ours",
        "python tests/slow/check_suites.py pytorch-quantization",
    ),
    "memory of readers": (
        "100 MB of hostile input of each kind, under 1 GB",
        "python tests/slow/measure_readers.py",
    ),
    "files of others": (
        "quantized files of NNCF, ONNX Runtime, Brevitas and torch.ao",
        "python tests/slow/check_foreign_files.py",
    ),
    "large model": ("models over 2 GB", "python tests/slow/check_large_model.py"),
    "large decoder": ("a billion weights", "python tests/slow/check_large_decoder.py"),
}
"""Checks by name: what each tries, and its command."""

HEAD = """# Checks that take long

`make slow` runs these checks, which take hours together, and writes this page. `.ci/run` has a sample of
each. A check that finds nothing is "clean".

| check | tries | found | minutes | on |
| --- | --- | --- | --- | --- |
"""

ROW = re.compile(r"^\| `?(?P<name>[^|`]+?)`? \|")


def main() -> int:
    """Run the checks that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", choices=[*CHECKS, []], help=", ".join(CHECKS))
    names = parser.parse_args().names or list(CHECKS)
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            print(f"== {name}", flush=True)
            start = time.monotonic()
            code, said = run_check(name, Path(folder))
            tries, _ = CHECKS[name]
            rows, lines = read_page()  # another run may have written it
            found = "clean" if code == 0 else f"exit code {code}"
            minutes = f"{(time.monotonic() - start) / 60:.1f}"
            rows[name] = f"| {name} | {tries} | {found} | {minutes} | {datetime.date.today()} |"
            lines[name] = said
            failed += [name] if code else []
            write_page(rows, lines)
    merge = [sys.executable, ROOT / "scripts" / "results_page.py", "--measured", PAGE.name]
    subprocess.run(merge, check=True)
    return 1 if failed else 0


def run_check(name: str, folder: Path) -> tuple[int, list[str]]:
    """Return the exit code of a check, and its last lines; its output is shown at once."""
    command = CHECKS[name][1]
    if "WHEEL" in command:
        build = [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "-q",
            "--no-deps",
            "--wheel-dir",
            str(folder),
            str(ROOT),
        ]
        subprocess.run(build, check=True, env=os.environ | FOR_CPUS)
        command = command.replace("WHEEL", str(next(folder.glob("onnxfq-*.whl"))))
    words = [sys.executable if word == "python" else word for word in command.split()]
    process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        print(line, end="", flush=True)
        if not line.startswith("WARNING: "):  # pip warns of the package index of this machine
            said.append(line.rstrip())
    return process.wait(), [line for line in said if line][-LAST_LINES:]


FOR_CPUS = {"CMAKE_ARGS": "-DONNXFQ_CUDA=OFF", "ONNXFQ_RUNTIME": "cpu"}
"""A wheel for every machine, which requires the smaller onnxruntime."""

LAST_LINES = 6
"""Lines of a check that the page shows: its totals stand there."""


def read_page() -> tuple[dict[str, str], dict[str, list[str]]]:
    """Return the row and the lines of each check that the page has; none without a page."""
    text = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    rows = {match["name"]: line for line in text.splitlines() if (match := ROW.match(line))}
    parts = re.findall(r"^## ([^\n]+)\n\n```text\n(.*?)\n```$", text, re.MULTILINE | re.DOTALL)
    return rows, {name: said.splitlines() for name, said in parts}


def write_page(rows: dict[str, str], lines: dict[str, list[str]]) -> None:
    """Write the page: a row for each check, then the last lines of those that ran."""
    table = "\n".join(rows.get(name, f"| {name} | {CHECKS[name][0]} | not run | | |") for name in CHECKS)
    parts = [f"## {name}\n\n```text\n{chr(10).join(lines[name])}\n```\n" for name in CHECKS if name in lines]
    PAGE.write_text(HEAD + table + "\n\n" + "\n".join(parts), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
