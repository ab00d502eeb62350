"""Make the table of operator forms that the parser of TensorRT for RTX refuses.

The node tests of the onnx package give valid models of each operator. If the parser takes one, the script
changes one place of it: a value of an attribute, an optional input or output, or an element type. A change is
a row if onnx's checker takes it and the parser refuses it, in each model with that place. It needs
`onnxfq[tensorrt]` and takes half a minute. `--check N` compares every Nth form with the table instead.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, defs, helper, numpy_helper

from onnxfq.graph.ops import QDQ_OPS
from onnxfq.targets.tensorrt.builder.jobs import Job, run_jobs
from onnxfq.targets.tensorrt.refused_forms import TABLE_FILE, RefusedForm
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

_TOGETHER = frozenset({("RotaryEmbedding", "input"), ("Slice", "input"), ("Range", "type")})
"""Places whose forms other inputs decide."""

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


def list_forms(base: Base, words: dict[str, set[Any]]) -> Iterator[tuple[RefusedForm, onnx.ModelProto]]:
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
                    RefusedForm(node.op_type, "attribute", name, _plain(value)),
                    _with_attribute(base, name, value),
                )
    optional = defs.OpSchema.FormalParameterOption.Optional
    for slot, formal in enumerate(schema.inputs):
        if formal.option == optional and slot < len(node.input) and node.input[slot]:
            yield RefusedForm(node.op_type, "input", "left out", slot), _without_input(base, slot)
    for slot, formal in enumerate(schema.outputs):
        if formal.option == optional and slot >= len(node.output):
            yield RefusedForm(node.op_type, "output", "asked for", slot), _with_outputs(base, slot + 1)
    for name in {formal.type_str for formal in schema.inputs[:1]}:
        allowed = next((c.allowed_type_strs for c in schema.type_constraints if c.type_param_str == name), ())
        for kind in TYPES:
            spelled = f"tensor({onnx.helper.tensor_dtype_to_string(_CODES[kind])[12:].lower()})"
            if spelled in allowed:
                yield RefusedForm(node.op_type, "type", name, kind), _with_type(base, name, kind)


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


def make_rows(every: int = 1) -> list[dict[str, Any]]:
    """Return the rows of all forms, or of every Nth, that some model has and the parser refuses in each."""
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
    forms = [pair for pair in forms if (pair[0].op, pair[0].kind) not in _TOGETHER]
    wanted = set(sorted({form for form, _ in forms}, key=repr)[::every])
    forms = [pair for pair in forms if pair[0] in wanted]
    found: dict[RefusedForm, list[str]] = defaultdict(list)
    for (form, _), answer in zip(forms, parse_models([model for _, model in forms]), strict=True):
        if answer is not None:
            found[form].append(answer)
    return [
        {**form._asdict(), "says": answers[0][:160], "tried": len(answers), "refused": all(answers)}
        for form, answers in sorted(found.items(), key=repr)
    ]


def main() -> None:
    """Write the table, or compare a sample with it."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--check", type=int, metavar="N", help="compare every Nth form with the table")
    given = arguments.parse_args()
    rows = make_rows(given.check or 1)
    if given.check:
        raise SystemExit("\n".join(compare(rows)) or 0)
    import tensorrt_rtx

    refused = [row for row in rows if row["refused"]]
    content = {
        "builder": f"TensorRT for RTX {tensorrt_rtx.__version__}",
        "tried": len(rows),
        "refused": [{key: row[key] for key in ("op", "kind", "place", "value", "says")} for row in refused],
    }
    TABLE_FILE.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(f"{len(refused)} of {len(rows)} forms are refused; wrote {TABLE_FILE}")


def compare(rows: list[dict[str, Any]]) -> list[str]:
    """Return a line for each of `rows` that the table has otherwise."""
    content = json.loads(TABLE_FILE.read_text(encoding="utf-8"))
    known = {RefusedForm(*(row[key] for key in RefusedForm._fields)) for row in content["refused"]}
    return [
        f"{row['op']} {row['kind']} {row['place']} {row['value']}: refused is {row['refused']}"
        for row in rows
        if row["refused"] != (RefusedForm(*(row[key] for key in RefusedForm._fields)) in known)
    ]


if __name__ == "__main__":
    main()
