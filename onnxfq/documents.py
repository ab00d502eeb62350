"""JSON and YAML documents as validated records: one base class, one reader, one-line errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

import pydantic
import yaml

from onnxfq.errors import OnnxfqError
from onnxfq.files import write_text


class Record(pydantic.BaseModel):
    """A frozen record with known fields only."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings", protected_namespaces=())


R = TypeVar("R", bound=Record)


def read_document(path: str | Path, record: type[R], error: type[OnnxfqError]) -> R:
    """Read a JSON or YAML file into `record`; any fault is raised as one line of class `error`."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise error(f"no such file: {path}; check the path") from None
    except (OSError, UnicodeDecodeError) as fault:
        raise error(f"cannot read {path}: {fault}") from None
    try:
        content = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (json.JSONDecodeError, yaml.YAMLError) as fault:
        raise error(f"{path} is not valid {path.suffix.lstrip('.') or 'YAML'}: {one_line(fault)}") from None
    return parse(content, record, error, str(path))


def parse(content: Any, record: type[R], error: type[OnnxfqError], source: str) -> R:
    """Validate `content` as `record`; the first fault is raised as one line naming `source` and field."""
    try:
        return record.model_validate(content)
    except pydantic.ValidationError as fault:
        first = fault.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "the top level"
        known = ", ".join(record.model_fields)
        hint = f"; fields here are {known}" if first["type"] == "extra_forbidden" else ""
        message = first["msg"].removeprefix("Value error, ")
        raise error(f"{source}: {field}: {one_line(message)}{hint}") from None


def write_document(path: str | Path, record: Record) -> None:
    """Write `record` as indented JSON, whole or not at all."""
    write_text(path, record.model_dump_json(indent=2, exclude_defaults=False) + "\n")


def one_line(text: object) -> str:
    """Return `text` with all white space runs, newlines included, made single blanks."""
    return " ".join(str(text).split())
