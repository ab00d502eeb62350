"""Runs every subcommand on damaged inputs of every kind, and prints what ends wrongly; five a second.

    python tests/slow/fuzz_commands.py [--cases 2000] [--first 0] [--seconds 60]

Not a pytest. A case is wrong when it ends in a traceback, runs over --seconds, takes over 4 GB, changes an
input, leaves a file after an error, or says anything but one clear line; the exit code is 1 then. A case is
known by its number.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "networks"))

from command_server import command_server
from fuzzed_inputs import MODELS, OPTIONS, damage, draw_options, run_case, write_inputs


def main() -> int:
    """Run the cases; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60)
    asked = parser.parse_args()
    codes: Counter[int] = Counter()
    wrong, memory, longest = 0, 0, 0.0
    with command_server() as server, tempfile.TemporaryDirectory() as place:
        for name in MODELS:
            write_inputs(name, Path(place) / name, server)
        for number in range(asked.first, asked.first + asked.cases):
            folder = Path(place) / f"case {number}"
            rng = np.random.default_rng(number)
            shutil.copytree(Path(place) / MODELS[number % len(MODELS)], folder)
            # The first cases try every option of every command once.
            case = draw_options(rng, number) if number < OPTIONS else damage(folder, rng)
            fault, ended = run_case(case, folder, server, asked.seconds)
            codes[ended.code] += 1
            memory, longest = max(memory, ended.memory), max(longest, ended.seconds)
            if fault:
                wrong += 1
                print(f"{number}: {case.what:.120}: {fault:.500}", flush=True)
            shutil.rmtree(folder)
    print(f"{asked.cases} cases, exit codes {dict(codes)}, at most {memory / 1e6:.0f} MB and {longest:.1f} s")
    print(f"{wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
