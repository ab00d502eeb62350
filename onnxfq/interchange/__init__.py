"""Files of other tools that say how tensors are quantized: read as one value, `Given`, and written.

The format is told from the content, never from the name of the file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from onnxfq.documents.encodings import Encodings
from onnxfq.documents.plan import Plan
from onnxfq.errors import PlanError, nearest
from onnxfq.interchange.aimet.read import is_aimet, read_aimet
from onnxfq.interchange.aimet.write import write_0_6_1, write_1_0_0, write_2_0_0
from onnxfq.interchange.exported import Written
from onnxfq.interchange.external import Given
from onnxfq.interchange.onnxruntime import is_overrides, is_ranges, read_overrides, read_ranges
from onnxfq.interchange.tensorrt_cache import is_cache, read_cache, write_cache
from onnxfq.support.records import one_line, read_json

GivenFile = str | Path | Mapping[str, Any]
"""A path, or a dictionary as onnxruntime's TensorQuantOverrides."""


class Format(NamedTuple):
    """How a JSON document of one kind is told and read."""

    is_one: Callable[[Any], bool]
    read: Callable[[Any, str], Given]


FORMATS: dict[str, Format] = {
    "AIMET encodings": Format(is_aimet, read_aimet),
    "onnxruntime calibration": Format(is_ranges, read_ranges),
    "onnxruntime TensorQuantOverrides": Format(is_overrides, read_overrides),
}
"""The formats that are JSON; TensorRT's cache is text."""


WRITERS: dict[str, Callable[[Encodings, Plan], Written]] = {
    "tensorrt-cache": write_cache,
    "aimet-0.6.1": write_0_6_1,
    "aimet-1.0.0": write_1_0_0,
    "aimet-2.0.0": write_2_0_0,
}
"""What encodings are written as, by name."""


_JSON_OF_THREE = "; of onnxruntime's three files give calibration.json: the others hold one end of a range"


def export_encodings(encodings: Encodings, plan: Plan, to: str) -> Written:
    """Return `encodings` as another tool reads them, with what its format cannot hold.

    Args:
        encodings: as `calibrate` made them.
        plan: the plan they were made for.
        to: a name of WRITERS.

    Raises:
        PlanError: for an unknown name, or a format that holds none of them.
    """
    writer = WRITERS.get(to)
    if writer is None:
        raise PlanError(f"encodings are not written as {to!r}{nearest(to, WRITERS)}")
    written = writer(encodings, plan)
    written.refuse_empty(to)
    return written


def read_given(file: GivenFile) -> Given:
    """Return what `file` says of tensors. Raises PlanError in one line for a file of no known format."""
    if isinstance(file, Mapping):
        return _read(file, "the given dictionary")
    source = str(file)
    try:
        text = Path(file).read_bytes().decode("utf-8")
    except FileNotFoundError:
        raise PlanError(f"no such file: {source}; check the path") from None
    except UnicodeDecodeError:
        raise PlanError(f"{source} is not text, and {_known()} are{_JSON_OF_THREE}") from None
    except OSError as fault:
        raise PlanError(f"cannot read {source}: {fault.strerror or fault}; check the path") from None
    if is_cache(text):
        return read_cache(text, source)
    try:
        content = read_json(text)
    except (ValueError, RecursionError) as fault:
        if text.lstrip()[:1] in ("{", "["):
            raise PlanError(f"{source} is damaged: {one_line(fault)}; write it again") from None
        raise PlanError(f"{source} is none of {_known()}{_JSON_OF_THREE}") from None
    return _read(content, source)


def load_encodings(path: str | Path) -> Encodings:
    """Return encodings of onnxfq's own. Raises PlanError; for another tool's file it tells what to do."""
    try:
        return Encodings.load(path)
    except PlanError as fault:
        try:
            kind = read_given(path).kind
        except PlanError:
            raise fault from None
        raise PlanError(
            f"{path} is of another tool ({kind}); make encodings of it with `onnxfq plan` and "
            "`onnxfq calibrate`, both with --encodings"
        ) from None


def _read(content: Any, source: str) -> Given:
    if isinstance(content, Mapping) and str(content.get("format", "")).startswith("onnxfq.encodings/"):
        raise PlanError(
            f"{source} is of onnxfq's own, with scales for a plan: `onnxfq insert --plan PLAN --encodings` "
            "takes it"
        )
    for one in FORMATS.values():
        if one.is_one(content):
            return one.read(content, source)
    raise PlanError(f"{source} is none of {_known()}; give one of these")


def _known() -> str:
    return ", ".join(["TensorRT calibration cache", *FORMATS])
