"""Graphs of a folder of GenAI in front of its decoder: an encoder, towers for images and speech, embeddings.

Source: onnxruntime-genai 0.18. Each graph has a section in genai_config.json with the names of its inputs and
outputs by key, %d standing for a layer. Outputs of a graph are inputs of the next ones under the same key,
with `past` for `present`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray

from onnxfq.data import Data, Feed, InputSpec
from onnxfq.data.feeds import Feeds
from onnxfq.data.model_inputs import input_specs
from onnxfq.graph.external.sizes import SMALL
from onnxfq.graph.io.load import read_model
from onnxfq.graph.model import default_opset, replace_nodes
from onnxfq.graph.normalize.opset import raise_opset

Fill = Callable[[InputSpec, Feed], NDArray[Any]]
"""Returns an input for the values so far."""

SECTIONS = ("vision", "speech", "encoder", "embedding", "decoder")
"""Sections of genai_config.json, in the order in which GenAI runs their graphs."""


@dataclass(frozen=True)
class FolderGraph:
    """One graph.

    Attributes:
        path: of its file.
        inputs: names by key.
        outputs: names by key.
    """

    path: Path
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]

    @cached_property
    def specs(self) -> tuple[InputSpec, ...]:
        """The inputs of its graph."""
        return input_specs(read_model(self.path, in_memory=SMALL)[0])

    def find_source(self, name: str, given: Mapping[str, str]) -> str:
        """Return the tensor that GenAI takes for input `name`, by what earlier graphs give; "" for none."""
        for key, pattern in self.inputs.items():
            found = re.fullmatch(re.escape(pattern).replace("%d", "([0-9]+)"), name)
            if found and key in given:
                return given[key].replace("%d", "".join(found.groups()))
        return ""


def find_sources(parts: Sequence[FolderGraph]) -> dict[str, str]:
    """Return the inputs that earlier graphs give, with the output that each takes."""
    given, sources = dict[str, str](), dict[str, str]()
    for part in parts:
        sources |= {one.name: name for one in part.specs if (name := part.find_source(one.name, given))}
        given |= {key.replace("present", "past"): name for key, name in part.outputs.items()}
    return sources


def join_parts(parts: Sequence[FolderGraph]) -> onnx.ModelProto:
    """Return one model of all graphs, with the outputs of the last, and what no graph gives as inputs.

    Args:
        parts: all graphs, in the order of SECTIONS.

    Raises ModelError for a graph that cannot be read, or raised to the opset of the others.
    """
    sources, given = find_sources(parts), dict[str, str]()
    read = [read_model(part.path)[0] for part in parts]
    opset = max(map(default_opset, read))
    read = [raise_opset(one, opset, str(part.path))[0] for one, part in zip(read, parts, strict=True)]
    ahead, joined = [], read[-1]
    for part, proto in zip(parts[:-1], read, strict=False):
        prefix = f"{part.path.stem}/"
        given |= {one.name: f"{prefix}{one.name}" for one in proto.graph.output}
        ahead.append(onnx.compose.add_prefix(proto, prefix, rename_inputs=False))
    graphs = [one.graph for one in (*ahead, joined)]
    inputs = {one.name: one for graph in graphs for one in graph.input}
    nodes = list[onnx.NodeProto]()
    for graph in graphs:
        taken = [one.name for one in graph.input if one.name in sources and inputs.pop(one.name, None)]
        nodes += [onnx.helper.make_node("Identity", [given[sources[name]]], [name]) for name in taken]
        nodes += graph.node
    for one in ahead:
        joined.graph.initializer.extend(one.graph.initializer)
        joined.graph.value_info.extend([*one.graph.value_info, *one.graph.output])
        joined.functions.extend(one.functions)
        known = {own.domain for own in joined.opset_import}
        joined.opset_import.extend(own for own in one.opset_import if own.domain not in known)
        joined.ir_version = max(joined.ir_version, one.ir_version)
    del joined.graph.input[:]
    joined.graph.input.extend(value for name, value in inputs.items() if name not in sources)
    replace_nodes(joined.graph, nodes)
    return joined


def feed_part(
    parts: Sequence[FolderGraph], at: int, data: Data, fill: Fill, filled: set[str], whole: bool = False
) -> Iterator[Feed]:
    """Yield the feeds of `parts[at]`, for which those in front of it run in float.

    Args:
        parts: all graphs, in the order of SECTIONS.
        at: place among them, negative ones from the end.
        data: the inputs that no graph gives, by name.
        fill: gives an input of `filled`.
        filled: inputs that follow from others, such as a mask.
        whole: yield the feeds of `join_parts` instead.

    Raises DataError for data without an input.
    """
    from onnxfq.runtime.session import Session  # commands that read folders alone do not wait for it

    sources = find_sources(parts)
    specs = {one.name: one for part in parts for one in part.specs}
    asked = tuple(one for name, one in specs.items() if name not in sources.keys() | filled)
    ahead = {part.path: Session(part.path) for part in parts[:at]}
    for values in Feeds(data, asked, 1):
        feed = dict(values)
        for part in (*parts[:at], parts[at]):
            feed |= {name: feed[source] for name, source in sources.items() if source in feed}
            feed |= {one.name: fill(one, feed) for one in part.specs if one.name in filled}
            own = {one.name: feed[one.name] for one in part.specs}
            if part.path in ahead:
                session = ahead[part.path]
                feed |= dict(zip(session.output_names, session.run(own), strict=True))
        yield {name: feed[name] for name in specs if name not in sources} if whole else own
