"""External encodings: files of other tools, read as `ExternalEncodings` and written.

The content determines the format, never the name of the file.
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
from onnxfq.interchange.external import ExternalEncodings, WrittenEncodings
from onnxfq.interchange.onnxruntime import is_overrides, is_ranges, read_overrides, read_ranges
from onnxfq.interchange.tensorrt_cache import read_cache, write_cache
from onnxfq.support.reading import read_text
from onnxfq.support.records import join_lines, read_json

ExternalEncodingsFile = str | Path | Mapping[str, object]
"""A path, or a dictionary like onnxruntime's TensorQuantOverrides."""


class FileFormat(NamedTuple):
    """Detection and reader of one kind of JSON document."""

    is_one: Callable[[Any], bool]
    read: Callable[[Any, str], ExternalEncodings]


FORMATS: dict[str, FileFormat] = {
    "AIMET encodings": FileFormat(is_aimet, read_aimet),
    "onnxruntime calibration": FileFormat(is_ranges, read_ranges),
    "onnxruntime TensorQuantOverrides": FileFormat(is_overrides, read_overrides),
}
"""JSON formats; TensorRT's cache is text."""


WRITERS: dict[str, Callable[[Encodings, Plan], WrittenEncodings]] = {
    "tensorrt-cache": write_cache,
    "aimet-0.6.1": write_0_6_1,
    "aimet-1.0.0": write_1_0_0,
    "aimet-2.0.0": write_2_0_0,
}
"""Writers of encodings by format name."""


_JSON_OF_THREE = "; of onnxruntime's three files give calibration.json: the others hold one end of a range"


def export_encodings(encodings: Encodings, plan: Plan, to: str) -> WrittenEncodings:
    """Return `encodings` in another tool's format, with the encodings that do not fit it.

    Args:
        encodings: from `calibrate`.
        plan: the plan of the encodings.
        to: a name of WRITERS.

    Raises:
        PlanError: for an unknown name, or a format that supports none of the encodings.
    """
    writer = WRITERS.get(to)
    if writer is None:
        raise PlanError(f"encodings are not written as {to!r}{nearest(to, WRITERS)}")
    written = writer(encodings, plan)
    written.refuse_empty(to)
    return written


def read_given(file: ExternalEncodingsFile) -> ExternalEncodings:
    """Return the encodings in `file`. Raises PlanError in one line for an unknown format."""
    if isinstance(file, Mapping):
        return _read(file, "the given dictionary")
    source = str(file)
    try:
        text = read_text(file)
    except FileNotFoundError:
        raise PlanError(f"no such file: {source}; check the path") from None
    except UnicodeDecodeError:
        raise PlanError(f"{source} is not text, and {_list_formats()} are{_JSON_OF_THREE}") from None
    except OSError as fault:
        raise PlanError(f"cannot read {source}: {fault.strerror or fault}; check the path") from None
    if text.startswith("TRT-"):  # a calibration cache
        return read_cache(text, source)
    try:
        content = read_json(text)
    except (ValueError, RecursionError) as fault:
        if text.lstrip()[:1] in ("{", "["):
            raise PlanError(f"{source} is damaged: {join_lines(fault)}; write it again") from None
        raise PlanError(f"{source} is none of {_list_formats()}{_JSON_OF_THREE}") from None
    return _read(content, source)


def read_own(path: str | Path) -> Encodings | ExternalEncodings:
    """Return onnxfq's encodings, or another tool's. Raises PlanError for a file of neither."""
    try:
        return Encodings.load(path)
    except PlanError as fault:
        try:
            return read_given(path)
        except PlanError:
            raise fault from None


def load_encodings(path: str | Path) -> Encodings:
    """Return onnxfq's own encodings. Raises PlanError, with the remedy for another tool's file."""
    encodings = read_own(path)
    if isinstance(encodings, Encodings):
        return encodings
    raise PlanError(
        f"{path} belongs to another tool ({encodings.kind}); make encodings of it with `onnxfq plan` and "
        "`onnxfq calibrate`, both with --encodings"
    )


def _read(content: Any, source: str) -> ExternalEncodings:
    if isinstance(content, Mapping) and str(content.get("format", "")).startswith("onnxfq.encodings/"):
        raise PlanError(
            f"{source} is in onnxfq's own format, for a plan; give it to `onnxfq insert --plan PLAN "
            "--encodings`"
        )
    for one in FORMATS.values():
        if one.is_one(content):
            return one.read(content, source)
    raise PlanError(f"{source} is none of {_list_formats()}; give one of these")


def _list_formats() -> str:
    return ", ".join(["TensorRT calibration cache", *FORMATS])
