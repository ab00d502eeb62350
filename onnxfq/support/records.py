"""Validated records in JSON and YAML files, with one-line errors."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar, get_args, get_origin

import pydantic
import yaml
from pydantic._internal._model_construction import ModelMetaclass
from pydantic_core import to_json as to_json_bytes
from typing_extensions import dataclass_transform

from onnxfq.errors import OnnxfqError, nearest
from onnxfq.errors import join_lines as join_lines
from onnxfq.support.files import write_text
from onnxfq.support.reading import MOST_TEXT, read_text

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass_transform(kw_only_default=True, field_specifiers=(pydantic.Field,))
class _OneLine(ModelMetaclass):
    """Metaclass: a record made by hand raises its faults as files do; records in records stay pydantic's.

    The metaclass above has the decorator too, but type checkers look for it in the class itself.
    """

    fault: type[OnnxfqError] | None

    def __call__(cls: Any, *args: Any, **fields: Any) -> Any:
        if cls.fault is None:
            return super().__call__(*args, **fields)
        try:
            return super().__call__(*args, **fields)
        except pydantic.ValidationError as fault:
            raise cls.fault(describe_fault(fault, cls, cls.__name__)) from None


class Record(pydantic.BaseModel, metaclass=_OneLine):
    """Frozen record that rejects unknown fields.

    Attributes:
        fault: class of the one-line errors for wrong fields in Python; None leaves them to pydantic.
    """

    fault: ClassVar[type[OnnxfqError] | None] = None

    model_config = pydantic.ConfigDict(
        frozen=True, extra="forbid", ser_json_inf_nan="strings", protected_namespaces=()
    )

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy in which the fields of `update` have new values."""
        copy = super().model_copy(update=update, deep=deep)
        for name in [name for name in copy.__dict__ if name not in type(self).model_fields]:
            del copy.__dict__[name]  # pydantic copies cached properties too
        return copy

    def __repr__(self) -> str:
        """Return its table, if it has one, else its fields."""
        table = getattr(self, "table", None)
        return str(table()) if callable(table) else super().__repr__()

    def __str__(self) -> str:
        """Return its table, if it has one, else its fields."""
        return repr(self) if callable(getattr(self, "table", None)) else super().__str__()

    def _repr_html_(self) -> str | None:
        """Return its table as a notebook shows it; None without one."""
        return f"<pre>{escape(repr(self))}</pre>" if callable(getattr(self, "table", None)) else None

    def __dir__(self) -> list[str]:
        """Return its own names, and none of pydantic."""
        kinds = (one for one in type(self).__mro__ if issubclass(one, Record) and one is not Record)
        own = {name for kind in kinds for name in vars(kind) if name[0] != "_" and name != "model_config"}
        return sorted({*type(self).model_fields, *own})

    @classmethod
    def file_fields(cls) -> tuple[str, ...]:
        """Return the names of the fields in a file."""
        return tuple(cls.model_fields)


class PrintedRecord(Record):
    """Record that a command prints as JSON, where the field `reading` (`support/readings.py`) is added."""

    @pydantic.model_validator(mode="before")
    @classmethod
    def _leave_reading(cls, given: Any) -> Any:
        """Leave out what the command read, which no result holds."""
        return (
            {key: value for key, value in given.items() if key != "reading"} if type(given) is dict else given
        )


class Document(Record):
    """Record that has a JSON file."""

    def save(self, path: str | Path) -> None:
        """Write as JSON, whole or not at all."""
        write_document(path, self)


R = TypeVar("R", bound=Record)

Amount = Annotated[float, pydantic.Field(ge=0)]
"""A number of at least 0, which may be infinite, and is not NaN."""

Share = Annotated[float, pydantic.Field(ge=0, le=1)]
"""A part of a whole, 0 to 1."""

Count = Annotated[int, pydantic.Field(ge=0, lt=1 << 63)]
"""A whole number of at least 0."""


Size = Annotated[int, pydantic.Field(strict=True, ge=1, lt=1 << 31)]
"""A whole number of at least 1 that counts something in memory; neither true nor a text."""


def _check_name(name: str) -> str:
    if Path(name).name != name or not name or "\0" in name:
        raise ValueError(f"{name!r:.80} is not a file of the folder")
    return name


FileName = Annotated[str, pydantic.AfterValidator(_check_name)]
"""The name of a file, without a folder."""


class ForeignRecord(Record):
    """Record of a file of another tool, whose further fields are left out."""

    model_config = pydantic.ConfigDict(extra="ignore")


MOST_YAML = 4 << 20
"""Largest YAML file in bytes; PyYAML reads about 1 MB in 10 seconds."""
_MOST_NODES = 1_000_000
"""Most nodes of a YAML file with its references written out: a few lines can stand for a billion."""


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader that also rejects repeated fields, and references that unfold without end."""

    def get_single_node(self) -> yaml.Node | None:
        node = super().get_single_node()
        if node is not None:
            _check_unfolded(node)
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, TypeError, LookupError, AttributeError, OverflowError):
            what = f"{node.value!r:.40} is not a {node.tag.rpartition(':')[2]}"
            raise yaml.constructor.ConstructorError(None, None, what, node.start_mark) from None

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        pairs = node.value if isinstance(node, yaml.MappingNode) else ()  # else super() refuses it
        keys = [key.value for key, _ in pairs if isinstance(key, yaml.ScalarNode)]
        twice = first_repeated(keys)
        if twice is not None:
            raise yaml.constructor.ConstructorError(
                None, None, f"field {twice!r} appears twice, and only one would count", node.start_mark
            )
        return super().construct_mapping(node, deep)


def _check_unfolded(root: yaml.Node) -> None:
    """Raise ConstructorError for references that contain themselves, or unfold to too many nodes."""
    sizes: dict[int, int] = {}

    def size(node: yaml.Node) -> int:
        if id(node) not in sizes:
            sizes[id(node)] = _MOST_NODES  # the size of a reference to itself
            pairs = node.value if isinstance(node, yaml.CollectionNode) else ()
            parts = [part for child in pairs for part in (child if isinstance(child, tuple) else (child,))]
            sizes[id(node)] = min(_MOST_NODES, 1 + sum(map(size, parts)))
        return sizes[id(node)]

    if size(root) >= _MOST_NODES:
        what = "its references contain themselves, or stand for a million values and more"
        raise yaml.constructor.ConstructorError(None, None, what, root.start_mark)


def read_document(path: str | Path, record: type[R], error: type[OnnxfqError]) -> R:
    """Read a JSON or YAML file into `record`; any fault is raised as one line of class `error`."""
    return parse(read_content(path, error), record, error, str(Path(path)))


def read_content(path: str | Path, error: type[OnnxfqError]) -> Any:
    """Return the content of a JSON or YAML file; any fault is raised as one line of class `error`."""
    path = Path(path)
    try:
        text = read_text(path, MOST_TEXT if path.suffix == ".json" else MOST_YAML)
    except FileNotFoundError:
        raise error(f"no such file: {path}; check the path") from None
    except OSError as fault:
        raise error(f"cannot read {path}: {fault.strerror or fault}; give another file") from None
    except UnicodeDecodeError as fault:
        raise error(f"cannot read {path}: it is not UTF-8 text ({fault}); give another file") from None
    try:
        return read_json(text) if path.suffix == ".json" else yaml.load(text, _Loader)
    except (ValueError, RecursionError, yaml.YAMLError) as fault:
        kind = path.suffix.lstrip(".") or "YAML"
        raise error(
            f"{path} is not valid {kind}: {join_lines(fault)}; repair it or give another file"
        ) from None


def read_json(text: str) -> Any:
    """Parse JSON `text`. Raises ValueError, also for a name that appears twice, or RecursionError.

    Half of a pair of UTF-16, such as an escaped D800, raises it too: no UTF-8 file can hold it.
    """
    content = json.loads(text, object_pairs_hook=_once_each)
    if _HALF_PAIR.search(text):
        json.dumps(content, ensure_ascii=False).encode()
    return content


_HALF_PAIR = re.compile(r"\\u[dD][89a-fA-F]")


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object. Raises ValueError for a repeated name, of which JSON would keep the last."""
    twice = first_repeated(name for name, _ in pairs)
    if twice is not None:
        raise ValueError(f"{twice!r} appears twice in one object")
    return dict(pairs)


def parse(content: Any, record: type[R], error: type[OnnxfqError], source: str) -> R:
    """Validate `content` as `record`; the first fault is raised as one line with `source` and field."""
    try:
        return record.model_validate(content)
    except pydantic.ValidationError as fault:
        raise error(describe_fault(fault, record, source)) from None


def describe_fault(fault: pydantic.ValidationError, record: type[Record], source: str) -> str:
    """Return the first fault of `record` in one line, with `source` and field."""
    first, *others = fault.errors(include_url=False)
    where = ": ".join(part for part in (source, ".".join(str(part) for part in first["loc"])) if part)
    message = join_lines(first["msg"].removeprefix("Value error, ")).replace("valid tuple", "valid list")
    if first["type"] == "extra_forbidden":
        known = _record_at(record, first["loc"][:-1]).file_fields()
        hint = nearest(str(first["loc"][-1]), known) or "; known: " + ", ".join(known)
        message = f"no such field{hint}"
    elif first["loc"] == ("format",):
        wanted = record.model_fields["format"].default
        message = f"is {first['input']!r:.40}, wanted is {wanted!r}; give the file of that kind"
    elif first["type"] == "model_type":
        message = f"must be a mapping of fields, got {first['input']!r:.40}"
    elif first["type"] in ("literal_error", "enum", "greater_than_equal", "less_than", "less_than_equal"):
        message += f", got {first['input']!r:.40}"
    more = dict.fromkeys(str(one["loc"][0]) for one in others if one["loc"][:1] != first["loc"][:1])
    return f"{where}: {message}" + (f"; faulty too: {', '.join(more)}" if more else "")


def _record_at(record: type[Record], where: tuple[int | str, ...]) -> type[Record]:
    """Return the record class at the field path `where` of `record`."""
    for part in where:
        if isinstance(part, str) and part in record.model_fields:
            annotation = record.model_fields[part].annotation
            for inner in (annotation, *get_args(annotation)):
                if get_origin(inner) is None and isinstance(inner, type) and issubclass(inner, Record):
                    record = inner
    return record


def to_json(value: object) -> str:
    """Return records, dataclasses and containers of them as indented JSON; infinities and NaN as strings."""
    return to_json_bytes(value, indent=2, inf_nan_mode="strings").decode()


def write_document(path: str | Path, record: Record) -> None:
    """Write `record` as indented JSON completely or not at all."""
    write_text(path, record.model_dump_json(indent=2, exclude_defaults=False) + "\n")


def first_repeated(names: Iterable[str]) -> str | None:
    """Return the first repeated name, or None if all differ."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None
