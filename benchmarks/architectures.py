"""Graphs of many exporters: networks of many libraries, exported, quantized, checked and run.

Weights are random and inputs small: only the graphs matter. Missing libraries are skipped, with a message.

    PYTHONPATH=. python benchmarks/architectures.py own:tagger torchvision:resnet18 hf:qwen2 --build
    PYTHONPATH=. python benchmarks/architectures.py own: hf: --recipes tensorrt-int8 onnxruntime-int8

SOURCE: alone means all that is named in benchmarks/zoo. An exporter that wants other versions than onnxfq,
as tf2onnx may, has an environment of its own; there --export needs nothing of onnxfq, and here --from reads:

    python benchmarks/architectures.py keras: sklearn: --export FOLDER
    PYTHONPATH=. python benchmarks/architectures.py --from FOLDER --build
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from zoo.sources import SOURCES, Export, Feeds, split_name

if TYPE_CHECKING:
    from onnxfq import BuildOptions

RECIPES = (
    *("tensorrt-int8", "tensorrt-fp8", "tensorrt-int4", "tensorrt-int8-weights"),
    *("onnxruntime-int8", "onnxruntime-uint8-dynamic"),
)
INT4_BLOCK = 16
"""Small networks are too narrow for blocks of 128."""
SMALL = ("own", "hf", "sklearn")
DEFAULT = tuple(f"{source}:" for source in SOURCES)


def chosen(names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield (source, name) for each requested network that can be made; print the others."""
    for network in names:
        source, name = split_name(network)
        if source not in SOURCES:
            raise SystemExit(f"no source {source!r}; known: {', '.join(SOURCES)}")
        missing = SOURCES[source].missing
        if missing:
            print(f"{network} | left out: {', '.join(missing)} not installed", flush=True)
            continue
        yield from ((source, one) for one in ((name,) if name else SOURCES[source].names()))


def export(source: str, name: str, exporter: str, options: argparse.Namespace, folder: Path) -> Path | None:
    """Write one network and its feeds to `folder`; None, with a message, if the exporter cannot."""
    path = folder / f"{source}-{name}-{exporter}.onnx"
    for opened in (True, False) if options.open else (False,):
        try:
            feeds = SOURCES[source].write(name, path, Export(exporter, options.opset, opened))
        except Exception as fault:  # an exporter raises what it likes, and is not under test
            why = f"{type(fault).__name__}: {(str(fault).strip().splitlines() or [''])[0][:100]}"
            print(f"{path.stem} | {'open' if opened else 'fixed'} sizes not exported: {why}", flush=True)
            continue
        for number, feed in enumerate(feeds):
            np.savez(path.with_suffix(f".{number}.npz"), **feed)
        return path
    return None


def exported(folder: Path) -> Iterator[tuple[Path, Feeds]]:
    """Yield the networks that `export` wrote to `folder`, in the order of names."""
    for path in sorted(folder.glob("*.onnx")):
        arrays = [np.load(feed) for feed in sorted(folder.glob(f"{path.stem}.[0-9]*.npz"))]
        yield path, [dict(feed) for feed in arrays]


def rows(
    path: Path, feeds: Feeds, recipes: Sequence[str], build: BuildOptions | None
) -> Iterator[tuple[str, ...]]:
    """Yield for each recipe: coverage, least SQNR of an output in dB, and what the check found."""
    import onnxfq

    small = path.stem.partition("-")[0] in SMALL
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "quantized.onnx"
        for recipe in recipes:
            given: Any = recipe
            if recipe == "tensorrt-int4" and small:
                base = onnxfq.load_recipe(recipe).model_dump()
                given = onnxfq.Recipe(**base | {"weights": base["weights"] | {"block_size": INT4_BLOCK}})
            try:
                options = onnxfq.RunOptions(batch=0, threads=1)
                made = onnxfq.quantize(path, feeds, out, recipe=given, options=options)
            except onnxfq.OnnxfqError as refusal:
                yield path.stem, recipe, "refused", "", str(refusal).removeprefix(f"{path}: ")[:120]
                continue
            sqnr = min(
                (s.sqnr_db for c in made.evaluation.candidates for s in c.outputs), default=float("nan")
            )
            found = ""
            if recipe.startswith("tensorrt"):
                result = onnxfq.check(out, build=build)
                faults = [one for one in result.findings if one.severity != "warning"]
                found = f"{len(faults)} findings: {faults[0]}"[:160] if faults else "passed"
            yield path.stem, recipe, ", ".join(map(str, made.plan.coverage())), f"{sqnr:.1f}", found


def main() -> None:
    """Print one line for each network, exporter and recipe."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="*", metavar="SOURCE:NAME", help=f"sources: {', '.join(SOURCES)}")
    parser.add_argument("--opset", type=int, default=18)
    parser.add_argument("--exporter", choices=("torchscript", "dynamo"), help="of torch's two; default: both")
    parser.add_argument("--open", action="store_true", help="batch and length may be of any size")
    parser.add_argument("--recipes", nargs="+", default=RECIPES)
    parser.add_argument("--build", action="store_true", help="build with TensorRT for RTX as well")
    parser.add_argument("--export", type=Path, metavar="FOLDER", help="write the networks, no more")
    parser.add_argument("--from", type=Path, dest="source", metavar="FOLDER", help="quantize what lies there")
    options = parser.parse_args()
    build = None
    if options.export is None:
        import onnxfq

        build = onnxfq.BuildOptions() if options.build else None
        logging.getLogger("onnxfq").setLevel(logging.ERROR)  # three samples are enough here
    if options.source is not None:
        for path, feeds in exported(options.source):
            _tell(rows(path, feeds, options.recipes, build))
        return
    for source, name in chosen(options.networks or DEFAULT):
        for exporter in SOURCES[source].exporters:
            if options.exporter not in (None, exporter) and len(SOURCES[source].exporters) > 1:
                continue
            with tempfile.TemporaryDirectory() as temporary:
                folder = options.export or Path(temporary)
                folder.mkdir(parents=True, exist_ok=True)
                path = export(source, name, exporter, options, folder)
                if path is not None and options.export is None:
                    for one, feeds in exported(folder):
                        _tell(rows(one, feeds, options.recipes, build))


def _tell(lines: Iterator[tuple[str, ...]]) -> None:
    for row in lines:
        print(" | ".join(row), flush=True)


if __name__ == "__main__":
    sys.exit(main())
