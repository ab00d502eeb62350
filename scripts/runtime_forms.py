"""Make the table of forms of operators that runtimes refuse, compute otherwise or do not run.

    python scripts/runtime_forms.py [--check N] [--runtimes NAME ...]

Each runtime whose package is installed is asked, and its part of the table is written; others keep theirs.
ONNX Runtime and OpenVINO take half an hour each, the HTP's emulation as long, TensorRT's parser a minute. The
forms that changed are printed with both releases. `--check N` asks about every Nth form from the number of
the day on, so that N days ask about all. It writes nothing, and fails if an answer differs.
"""

from __future__ import annotations

import argparse
import datetime
import json
import logging
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from form_tables import Tried, between_products, htp_operators, parser_forms, products

from onnxfq.errors import RuntimeLibraryError
from onnxfq.targets.qnn.build import name_release
from onnxfq.targets.reading.runtime_forms import CURES, LAST, RuntimeForm
from onnxfq.targets.target import target_by_name

FILE = Path(__file__).resolve().parents[1] / "onnxfq/targets/reading/runtime_forms.json"
"""The table of the checkout, also where the package that asks is installed."""


class Table(NamedTuple):
    """How a runtime is asked: its release, and what it makes of a part of the forms."""

    release: Callable[[], str]
    ask: Callable[[slice], Sequence[Tried]]


TABLES: Mapping[str, Table] = {
    **{
        name: Table(target_by_name(name).release, partial(between_products.ask_all, name))
        for name in ("onnxruntime", "openvino")
    },
    "qnn": Table(name_release, htp_operators.ask_all),
    "tensorrt": Table(parser_forms.name_release, parser_forms.ask_all),
}
_DEFAULTS = json.loads(json.dumps(RuntimeForm("")._asdict() | {"op": None}))


def make_rows(tried: Sequence[Tried]) -> list[RuntimeForm]:
    """Return the rows of forms that are wrong in every network with their place; no row covers another."""
    by_place: dict[str, list[Tried]] = defaultdict(list)
    for one in tried:
        by_place[repr(one.form._replace(says="", words=""))].append(one)
    rows: list[RuntimeForm] = []
    for same in sorted(by_place.values(), key=_order):
        opsets = sorted({one.opset for one in same})
        wrong = [opset for opset in opsets if all(one.form.says for one in same if one.opset == opset)]
        found = [one for one in same if one.opset in wrong]
        cures = [cure for cure in CURES if found and all(cure in one.cures for one in found)]
        if not cures:
            continue
        before = max((one for one in opsets if one < wrong[0]), default=0)
        last = wrong[-1] if wrong[-1] != opsets[-1] else LAST
        row = found[0].form._replace(
            opsets=[before + 1, last], signed=all(one.signed for one in found), cure=list(cures[0])
        )
        if not any(_covers(known, row) for known in rows):
            rows.append(row)
    return rows


def _order(same: Sequence[Tried]) -> tuple[Any, ...]:
    form = same[0].form
    return form.op, len(form.attributes), form.bits, repr(form._replace(says="", words=""))


def _covers(known: RuntimeForm, row: RuntimeForm) -> bool:
    """Tell whether a known row holds wherever `row` does."""
    same = ["op", "reducer", "cure", "dtype", "output", "missing", "bits", "rank"]
    same += ["between"] if list(row.cure) != ["tried"] else []
    wide = known.opsets[0] <= row.opsets[0] and known.opsets[1] >= row.opsets[1]
    alike = known.attributes.items() <= row.attributes.items() and known.signed <= row.signed
    return all(getattr(known, name) == getattr(row, name) for name in same) and wide and alike


def is_known(one: Tried, rows: Sequence[RuntimeForm]) -> bool:
    """Tell whether the table has a form as wrong."""
    alike = {"opsets": [one.opset, one.opset], "signed": True}
    return any(_covers(row, one.form._replace(**alike, cure=row.cure)) for row in rows)


def compare(tried: Sequence[Tried], rows: Sequence[RuntimeForm], partly: Sequence[str] = ()) -> list[str]:
    """Return a line for each form that the table has otherwise; `partly` has operators with odd networks.

    A form that is right counts if a row has its attributes: a row of fewer ones may cover it too.
    """

    def has_row(one: Tried) -> bool:
        fitting = [row for row in rows if one.form.says or row.attributes == one.form.attributes]
        return is_known(one, fitting)

    return [
        f"{_describe(one.form)} at opset {one.opset}: {one.form.says or 'right'}"
        for one in tried
        if bool(one.form.says) != has_row(one) and not (one.form.says and one.form.op in partly)
    ]


def _describe(form: RuntimeForm) -> str:
    return json.dumps(store(form._replace(says="", words="")))


def store(form: RuntimeForm) -> dict[str, Any]:
    """Return a row of the file: what is not the default."""
    return {
        name: value
        for name, value in json.loads(json.dumps(form._asdict())).items()
        if value != _DEFAULTS[name]
    }


class Part(NamedTuple):
    """A runtime's part of the file.

    Attributes:
        release: its name and release.
        tried: how many forms it was asked about.
        partly: operators with wrong networks that no row has: other constants are right, or nothing cures.
        rows: the forms.
    """

    release: str
    tried: int
    partly: list[str]
    rows: list[RuntimeForm]


def read_parts() -> dict[str, Part]:
    """Return the parts of the file by runtime."""
    content = json.loads(FILE.read_text(encoding="utf-8"))
    return {
        name: Part(*(part[key] for key in Part._fields[:3]), [_read_row(row) for row in part["forms"]])
        for name, part in content.items()
    }


def _read_row(row: Mapping[str, Any]) -> RuntimeForm:
    return RuntimeForm(**{"opsets": [1, LAST], "cure": []} | row)


def write(parts: Mapping[str, Part]) -> None:
    """Write the table, a line for each form."""
    texts = []
    for name, part in parts.items():
        head = ", ".join(f"{json.dumps(key)}: {json.dumps(getattr(part, key))}" for key in Part._fields[:3])
        rows = ",\n".join("  " + json.dumps(store(row)) for row in part.rows)
        texts.append(f' {json.dumps(name)}: {{{head}, "forms": [\n{rows}\n ]}}')
    FILE.write_text("{\n" + ",\n".join(texts) + "\n}\n", encoding="utf-8")


def main() -> int:
    """Write the table, or compare a sample with it; say what changed."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--check", type=int, metavar="N", help="compare every Nth form with the table")
    arguments.add_argument("--runtimes", nargs="+", default=list(TABLES), choices=TABLES)
    given = arguments.parse_args()
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")  # onnx makes its cases of operators from infinities
    parts, differ, every = read_parts(), False, given.check or 1
    part = slice(datetime.date.today().toordinal() % every, None, every)
    for name in given.runtimes:
        known = parts[name]
        try:
            release = TABLES[name].release()
        except RuntimeLibraryError as error:
            print(f"{name}: the table has {known.release}; {error}")
            continue
        tried = [*TABLES[name].ask(part), *products.ask_all(name, part)]
        changed = compare(tried, known.rows, known.partly)
        print(
            f"{name}: {known.release} -> {release}, {len(tried)} forms asked "
            f"from {part.start} on, {len(changed)} changed"
        )
        print(*(f"  {line}\n" for line in changed), sep="", end="", flush=True)
        differ |= bool(changed)
        if not given.check:
            rows = make_rows(tried)
            partly = sorted({one.form.op for one in tried if one.form.says and not is_known(one, rows)})
            parts[name] = Part(release, len(tried), partly, rows)
            write(parts)
    return int(differ and bool(given.check))


if __name__ == "__main__":
    sys.exit(main())
