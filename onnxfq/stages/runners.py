"""Who computes: each runner gives the wanted tensors of a model for each feed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import onnx

from onnxfq.data import Feed
from onnxfq.errors import DataError, nearest
from onnxfq.graph.signature import with_outputs
from onnxfq.interchange.polygraphy_json import read_results
from onnxfq.passes.integer_matmul import integer_products
from onnxfq.runtime.session import Session
from onnxfq.targets.registry import collect_parts
from onnxfq.targets.target import Runner, Values


def onnxruntime(
    proto: onnx.ModelProto, feeds: Sequence[Feed], tensors: Sequence[str], threads: int
) -> Iterator[Values]:
    """Q and DQ as their definition says, every product in float32."""
    session = Session(with_outputs(proto, tensors), threads, exact=True)
    for feed in feeds:
        yield dict(zip(tensors, session.run(feed, tensors), strict=True))


def integer(
    proto: onnx.ModelProto, feeds: Sequence[Feed], tensors: Sequence[str], threads: int
) -> Iterator[Values]:
    """As `onnxruntime`, but int8 products are summed in whole numbers, as fused kernels do."""
    return onnxruntime(integer_products(proto).proto, feeds, tensors, threads)


def read_saved(path: Path) -> Runner:
    """Return a runner that reads what Polygraphy saved: `polygraphy run --save-outputs`.

    Running it raises DataError for a file without such results, or with another number of feeds.
    """

    def run(
        proto: onnx.ModelProto, feeds: Sequence[Feed], tensors: Sequence[str], threads: int
    ) -> Iterator[Values]:
        del proto, tensors, threads
        found = read_results(path)
        if len(found) != len(feeds):
            raise DataError(
                f"{path} has results for {len(found)} feeds, the data has {len(feeds)}; give the data and "
                "the --batch that it was made with"
            )
        yield from found

    return run


def runners() -> dict[str, Runner]:
    """Return every runner by name: those of ONNX Runtime, and those of registered targets."""
    return {"onnxruntime": onnxruntime, "integer": integer} | collect_parts(lambda one: one.run)


def runner(name: str) -> Runner:
    """Return the runner called `name`, or that of a file. Raises DataError for neither."""
    known = runners()
    if name in known:
        return known[name]
    if Path(name).suffix == ".json":
        return read_saved(Path(name))
    raise DataError(
        f"nothing is called {name!r} that could run the model{nearest(name, known)}; or give a .json file "
        "of `polygraphy run --save-outputs`"
    )
