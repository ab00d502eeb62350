"""Forms of operators that the parser of TensorRT for RTX refuses.

The node tests of the onnx package give valid models of each operator. If the parser takes one, one place of
it is changed: a value of an attribute, an optional input or output, or an element type. A change counts if
onnx's checker takes it, and is refused if the parser refuses it in each model with that place.
"""

from __future__ import annotations

import re
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, defs, helper, numpy_helper

from form_tables import Tried
from onnxfq.errors import RuntimeLibraryError
from onnxfq.graph.ops import QDQ_OPS
from onnxfq.targets.reading.runtime_forms import REFUSES, RuntimeForm
from onnxfq.targets.tensorrt.builder.jobs import Job, run_jobs
from onnxfq.targets.tensorrt.rules.structure import UNSUPPORTED

TYPES = ("FLOAT", "FLOAT16", "BFLOAT16", "INT32", "INT64", "BOOL", "UINT8")
"""Element types of TensorRT's tensors; other rules speak of int8."""

MOST_BASES = 3
"""Models of each version of an operator that are changed."""

SECONDS = 60.0
_CODES = {name: TensorProto.DataType.Value(name) for name in TYPES}
_NO_FLAG = re.compile("axis|group|dim|fmod")
"""Attributes with 0 or 1 as default, but more values, or with a value that the type of the input decides."""

_NO_VALUE = re.compile("x_|length_|output_|max_sequence")
"""Words of descriptions without a meaning as a value."""

_TOGETHER = (("RotaryEmbedding", "missing"), ("Slice", "missing"), ("Range", "dtype"))
"""Operators and places whose forms other inputs decide."""

_WORD = re.compile(r"[`'\"]([a-z][a-z0-9_]+)[`'\"]")


class Base(NamedTuple):
    """A model of one node, with its operator's schema."""

    model: onnx.ModelProto
    schema: defs.OpSchema


def list_bases() -> Iterator[Base]:
    """Yield models of one standard operator, with all inputs but the first constant, and as they are."""
    from onnx.backend.test.case.node import collect_testcases

    for case in collect_testcases(None):
        graph, model = case.model.graph, case.model
        if len(graph.node) != 1 or graph.node[0].domain or graph.node[0].op_type in UNSUPPORTED | QDQ_OPS:
            continue
        kinds = [value.type.WhichOneof("value") for value in (*graph.input, *graph.output)]
        codes = {v.type.tensor_type.elem_type for v in graph.input}
        if set(kinds) != {"tensor_type"} or not codes <= set(_CODES.values()) or not graph.input:
            continue
        opset = next(one.version for one in model.opset_import if not one.domain)
        schema = defs.get_schema(graph.node[0].op_type, opset, "")
        if any(a.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS) for a in graph.node[0].attribute):
            continue
        if case.data_sets:
            yield Base(_with_constants(model, case.data_sets[0][0]), schema)
        yield Base(_without_types(model), schema)
        if len(graph.output) > schema.min_output and case.data_sets:
            fewer = _with_constants(model, case.data_sets[0][0])
            del fewer.graph.output[schema.min_output :], fewer.graph.node[0].output[schema.min_output :]
            yield Base(fewer, schema)


def _with_constants(model: onnx.ModelProto, values: list[Any]) -> onnx.ModelProto:
    made = _without_types(model)
    inputs = list(made.graph.input)
    for value, array in list(zip(inputs, values, strict=False))[1:]:
        given = isinstance(array, onnx.TensorProto)
        tensor = array if given else numpy_helper.from_array(np.asarray(array), value.name)
        made.graph.initializer.add().CopyFrom(tensor)
        made.graph.initializer[-1].name = value.name
        made.graph.input.remove(value)
    return made


def _without_types(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy without types of outputs, which inference finds."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    made.ir_version = min(made.ir_version, 11)
    for value in made.graph.output:
        value.ClearField("type")
    return made


def list_forms(base: Base, words: dict[str, set[Any]]) -> Iterator[tuple[RuntimeForm, onnx.ModelProto]]:
    """Yield forms of `base` with their models; words: values of attributes seen in other models."""
    node, schema = base.model.graph.node[0], base.schema
    given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    for name, attribute in schema.attributes.items():
        if _NO_FLAG.search(name):
            continue
        usual = helper.get_attribute_value(attribute.default_value) if attribute.default_value.name else None
        for value in _values(attribute, usual, words.get(name, set())):
            if value != given.get(name, usual):
                yield (
                    RuntimeForm(node.op_type, attributes={name: _plain(value)}),
                    _with_attribute(base, name, value),
                )
    optional = defs.OpSchema.FormalParameterOption.Optional
    for slot, formal in enumerate(schema.inputs):
        if formal.option == optional and slot < len(node.input) and node.input[slot]:
            yield RuntimeForm(node.op_type, missing=slot), _without_input(base, slot)
    for slot, formal in enumerate(schema.outputs):
        if formal.option == optional and slot >= len(node.output):
            yield RuntimeForm(node.op_type, output=slot), _with_outputs(base, slot + 1)
    for name in {formal.type_str for formal in schema.inputs[:1]}:
        allowed = next((c.allowed_type_strs for c in schema.type_constraints if c.type_param_str == name), ())
        for kind in TYPES:
            spelled = f"tensor({onnx.helper.tensor_dtype_to_string(_CODES[kind])[12:].lower()})"
            if spelled in allowed:
                yield RuntimeForm(node.op_type, dtype=kind), _with_type(base, name, kind)


def _values(attribute: Any, usual: Any, seen: set[Any]) -> set[Any]:
    """Return values to try: flags, words of the description, and what other models have."""
    if attribute.type == defs.OpSchema.AttrType.STRING:
        words = {word for word in _WORD.findall(attribute.description) if not _NO_VALUE.match(word)}
        return {word.encode() for word in words} | seen
    if attribute.type == defs.OpSchema.AttrType.INT and usual in (0, 1):
        return {0, 1}
    return set()


def _plain(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def _with_attribute(base: Base, name: str, value: Any) -> onnx.ModelProto:
    made = _without_types(base.model)
    node = made.graph.node[0]
    kept = [a for a in node.attribute if a.name not in (name, "pads" if name == "auto_pad" else name)]
    node.ClearField("attribute")
    node.attribute.extend([*kept, helper.make_attribute(name, value)])
    return made


def _without_input(base: Base, slot: int) -> onnx.ModelProto:
    made = _without_types(base.model)
    made.graph.node[0].input[slot] = ""
    while made.graph.node[0].input and not made.graph.node[0].input[-1]:
        del made.graph.node[0].input[-1]
    used = set(made.graph.node[0].input)
    for values in (made.graph.input, made.graph.initializer):
        kept = [value for value in values if value.name in used]
        del values[:]
        values.extend(kept)
    return made


def _with_outputs(base: Base, count: int) -> onnx.ModelProto:
    made = _without_types(base.model)
    node = made.graph.node[0]
    for slot in range(len(node.output), count):
        node.output.append(f"more_{slot}")
        made.graph.output.append(onnx.ValueInfoProto(name=f"more_{slot}"))
    return made


def _with_type(base: Base, name: str, kind: str) -> onnx.ModelProto:
    made = _without_types(base.model)
    node, code = made.graph.node[0], _CODES[kind]
    formals = list(base.schema.inputs)
    formals += formals[-1:] * (len(node.input) - len(formals))
    bound = {one for one, formal in zip(node.input, formals, strict=False) if formal.type_str == name}
    if kind in ("FLOAT16", "BFLOAT16"):  # other floats have the type of the model too
        floats = [v.name for v in made.graph.input if v.type.tensor_type.elem_type == TensorProto.FLOAT]
        floats += [v.name for v in made.graph.initializer if v.data_type == TensorProto.FLOAT]
        bound |= set(floats)
    for value in made.graph.input:
        if value.name in bound:
            value.type.tensor_type.elem_type = code
    for tensor in made.graph.initializer:
        if tensor.name in bound:
            array = numpy_helper.to_array(tensor).astype(helper.tensor_dtype_to_np_dtype(code))
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return made


def parse_models(models: list[onnx.ModelProto]) -> list[str | None]:
    """Return why the parser refuses each model, empty if it takes it; None for a model that onnx refuses."""
    answers: list[str | None] = [None] * len(models)
    with tempfile.TemporaryDirectory() as folder:
        jobs, places = [], []
        for place, model in enumerate(models):
            try:
                typed = onnx.shape_inference.infer_shapes(model, strict_mode=True)
                onnx.checker.check_model(typed, full_check=True)
            except Exception:  # invalid by ONNX, in one of many ways
                continue
            path = Path(folder) / f"{place}.onnx"
            onnx.save(typed, path)
            jobs.append(Job(path, "SM89", build=False))
            places.append(place)
        for place, report in zip(places, run_jobs(jobs, SECONDS), strict=True):
            text = "; ".join(fault[2] for fault in report.faults) or report.ended or "no reason is given"
            answers[place] = "" if report.parsed else " ".join(text.split())
    return answers


def ask_all(part: slice) -> list[Tried]:
    """Return what the parser says of `part` of the forms: one is refused if each model with it is."""
    bases = list(list_bases())
    taken: dict[tuple[str, int], list[Base]] = defaultdict(list)
    words: dict[str, dict[str, set[Any]]] = defaultdict(lambda: defaultdict(set))
    for base, answer in zip(bases, parse_models([base.model for base in bases]), strict=True):
        node = base.model.graph.node[0]
        for attribute in node.attribute:
            if attribute.type == AttributeProto.STRING:
                words[node.op_type][attribute.name].add(attribute.s)
        same = taken[node.op_type, base.schema.since_version]
        if answer == "" and len(same) < MOST_BASES:
            same.append(base)
    forms = [pair for key in sorted(taken) for base in taken[key] for pair in list_forms(base, words[key[0]])]
    forms = [
        pair for pair in forms if not any(pair[0].op == op and getattr(pair[0], at) for op, at in _TOGETHER)
    ]
    wanted = dict(sorted({repr(form): form for form, _ in forms}.items())[part])
    forms = [pair for pair in forms if repr(pair[0]) in wanted]
    found: dict[str, list[str]] = defaultdict(list)
    for (form, _), answer in zip(forms, parse_models([model for _, model in forms]), strict=True):
        if answer is not None:
            found[repr(form)].append(answer)
    return [
        Tried(wanted[key]._replace(says=REFUSES, words=answers[0][:160]) if all(answers) else wanted[key])
        for key, answers in found.items()
    ]


def name_release() -> str:
    """Return the name and release of the parser. Raises RuntimeLibraryError without it."""
    try:
        return f"TensorRT for RTX {version('tensorrt-rtx')}"
    except PackageNotFoundError:
        raise RuntimeLibraryError(
            "package tensorrt-rtx is not installed; pip install onnxfq[tensorrt]"
        ) from None
