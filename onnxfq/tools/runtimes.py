"""Runners: runtimes that compute requested tensors."""

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
from onnxfq.targets.target import Runner, Values, collect_parts


def onnxruntime(
    proto: onnx.ModelProto, feeds: Sequence[Feed], tensors: Sequence[str], threads: int
) -> Iterator[Values]:
    """Yield the tensors of each feed, with Q and DQ as defined and every product in float32."""
    session = Session(with_outputs(proto, tensors), threads, exact=True)
    for feed in feeds:
        yield dict(zip(tensors, session.run(feed, tensors), strict=True))


def integer(
    proto: onnx.ModelProto, feeds: Sequence[Feed], tensors: Sequence[str], threads: int
) -> Iterator[Values]:
    """Yield the tensors as `onnxruntime`, but sum int8 products in integers, as fused kernels do."""
    return onnxruntime(integer_products(proto).proto, feeds, tensors, threads)


def read_saved(path: Path) -> Runner:
    """Return a runner that reads results of `polygraphy run --save-outputs`.

    It raises DataError for a file without such results, or with another number of feeds.
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
    """Return every runner by name: ONNX Runtime's, and the runners of registered targets."""
    return {"onnxruntime": onnxruntime, "integer": integer} | collect_parts(lambda one: one.run)


def runner(name: str) -> Runner:
    """Return the runner called `name`, or the runner of a .json file. Raises DataError for neither."""
    known = runners()
    if name in known:
        return known[name]
    if Path(name).suffix == ".json":
        return read_saved(Path(name))
    raise DataError(
        f"unknown runtime {name!r}{nearest(name, known)}; or give a .json file of `polygraphy run "
        "--save-outputs`"
    )
