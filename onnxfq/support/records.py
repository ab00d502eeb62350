"""JSON and YAML documents as validated records: one base class, one reader, one-line errors."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin

import pydantic
import yaml

from onnxfq.errors import OnnxfqError, nearest
from onnxfq.support.files import write_text

if TYPE_CHECKING:
    from typing_extensions import Self


class Record(pydantic.BaseModel):
    """A frozen record with known fields only."""

    model_config = pydantic.ConfigDict(
        frozen=True, extra="forbid", ser_json_inf_nan="strings", protected_namespaces=()
    )

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy with other values for the fields of `update`."""
        made = super().model_copy(update=update, deep=deep)
        for name in [name for name in made.__dict__ if name not in type(self).model_fields]:
            del made.__dict__[name]  # pydantic copies what is cached too
        return made


R = TypeVar("R", bound=Record)


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, but that it refuses a mapping that says the same field twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        twice = first_repeated(keys)
        if twice is not None:
            raise yaml.constructor.ConstructorError(
                None, None, f"field {twice!r} is there twice, and only one would count", node.start_mark
            )
        return super().construct_mapping(node, deep)


def read_document(path: str | Path, record: type[R], error: type[OnnxfqError]) -> R:
    """Read a JSON or YAML file into `record`; any fault is raised as one line of class `error`."""
    return parse(read_content(path, error), record, error, str(Path(path)))


def read_content(path: str | Path, error: type[OnnxfqError]) -> Any:
    """Return what a JSON or YAML file holds; any fault is raised as one line of class `error`."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise error(f"no such file: {path}; check the path") from None
    except (OSError, UnicodeDecodeError) as fault:
        raise error(f"cannot read {path}: {fault}") from None
    try:
        return read_json(text) if path.suffix == ".json" else yaml.load(text, _Loader)
    except (ValueError, RecursionError, yaml.YAMLError) as fault:
        kind = path.suffix.lstrip(".") or "YAML"
        raise error(
            f"{path} is not valid {kind}: {one_line(fault)}; repair it or give another file"
        ) from None


def read_json(text: str) -> Any:
    """Return what `text` holds. Raises ValueError, for a name that stands twice too, or RecursionError."""
    return json.loads(text, object_pairs_hook=_once_each)


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object. Raises ValueError for a name that it has twice, of which JSON keeps the last."""
    twice = first_repeated(name for name, _ in pairs)
    if twice is not None:
        raise ValueError(f"{twice!r} stands twice in one object")
    return dict(pairs)


def parse(content: Any, record: type[R], error: type[OnnxfqError], source: str) -> R:
    """Validate `content` as `record`; the first fault is raised as one line naming `source` and field."""
    try:
        return record.model_validate(content)
    except pydantic.ValidationError as fault:
        first = fault.errors(include_url=False)[0]
        where = ": ".join(part for part in (source, ".".join(str(part) for part in first["loc"])) if part)
        message = one_line(first["msg"].removeprefix("Value error, "))
        if first["type"] == "extra_forbidden":
            known = _record_at(record, first["loc"][:-1]).model_fields
            hint = nearest(str(first["loc"][-1]), known) or "; known: " + ", ".join(known)
            message = f"no such field{hint}"
        elif first["loc"] == ("format",):
            wanted = record.model_fields["format"].default
            message = f"is {first['input']!r:.40}, wanted is {wanted!r}; give the file of that kind"
        elif first["type"] == "model_type":
            message = f"must be a mapping of fields, got {first['input']!r:.40}"
        elif first["type"] in ("literal_error", "enum"):
            message += f", got {first['input']!r:.40}"
        raise error(f"{where}: {message}") from None


def _record_at(record: type[Record], where: tuple[int | str, ...]) -> type[Record]:
    """Return the record that the field path `where` leads to from `record`."""
    for part in where:
        if isinstance(part, str) and part in record.model_fields:
            annotation = record.model_fields[part].annotation
            for inner in (annotation, *get_args(annotation)):
                if get_origin(inner) is None and isinstance(inner, type) and issubclass(inner, Record):
                    record = inner
    return record


def write_document(path: str | Path, record: Record) -> None:
    """Write `record` as indented JSON, whole or not at all."""
    write_text(path, record.model_dump_json(indent=2, exclude_defaults=False) + "\n")


def one_line(text: object) -> str:
    """Return `text` in one line: white space runs are single blanks, what is not printable is spelled."""
    line = " ".join(str(text).split())
    return line if line.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)


def first_repeated(names: Iterable[str]) -> str | None:
    """Return the first of `names` that has come before, or None when all differ."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None
