"""Forms of operators that TensorRT's parser refuses, from a table that it made itself.

`refused_forms.json` has what the parser of TensorRT for RTX 1.7.1 says of each value of an attribute,
optional input and output and element type of each operator, each alone in a model that it takes otherwise.
`scripts/tensorrt_forms.py` makes the table, and a test compares it. Classic TensorRT is not installable
without a GPU's software; its column is what NVIDIA documents.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

TABLE_FILE = Path(__file__).with_suffix(".json")

CLASSIC_ALONE = frozenset({"DeformConv", "NonMaxSuppression", "NonZero", "RoiAlign"})
"""Operators that classic TensorRT has and TensorRT for RTX 1.7.1 lacks.

Source: onnx-tensorrt, docs/operators.md, release 10.1 and later.
"""
ON_CLASSIC = "TensorRT for RTX 1.7.1 lacks it, and classic TensorRT 10 and 11 have it; build there"

CLASSIC_OPSETS = (9, 25)
"""Least and largest opset of TensorRT 11 (NVIDIA, ONNX opset guide); TensorRT for RTX 1.7.1 takes 28 too."""


class RefusedForm(NamedTuple):
    """A place of an operator and what the parser refuses there.

    Attributes:
        op: the operator.
        kind: attribute, input, output or type.
        place: name of the attribute or of the type; "left out" and "asked for" for inputs and outputs.
        value: of the attribute, position of the input or output, or name of the element type of input 0.
    """

    op: str
    kind: str
    place: str
    value: Any


@cache
def refused_forms() -> Mapping[str, tuple[RefusedForm, ...]]:
    """Return the refused forms by operator."""
    content = json.loads(TABLE_FILE.read_text(encoding="utf-8"))
    rows = [RefusedForm(*(row[name] for name in RefusedForm._fields)) for row in content["refused"]]
    return {op: tuple(row for row in rows if row.op == op) for op in {row.op for row in rows}}
