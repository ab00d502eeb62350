"""Layers of a result: what each costs, where it lies, and its figures for Model Explorer."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from onnxfq.calibration.calibrators.best_error import KEPT_DB
from onnxfq.choices import FLOAT, RANKING_FEEDS
from onnxfq.documents.layers import GraphNode, LayerRow, LayerTable, TensorRow
from onnxfq.documents.sensitivity import Sensitivity
from onnxfq.graph.external.sizes import tensor_bytes
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.node_notes import module_paths
from onnxfq.layers.layer_costs import measure_costs
from onnxfq.layers.noise_profile import measure_noise
from onnxfq.layers.quantizer_toggles import first_feeds
from onnxfq.numerics.float_types import FLOAT_CODES
from onnxfq.quantizing.pipeline import QuantizeResult
from onnxfq.remedies.sensitivity import rank_groups
from onnxfq.report.tensor_rows import all_tensors
from onnxfq.stages.options import RunOptions
from onnxfq.support.files import write_text
from onnxfq.support.groups import group_pairs


def layer_table(result: QuantizeResult) -> LayerTable:
    """Return the layers of a result, the one that costs most first.

    Both models run on the samples that the result keeps, so that noise is known where it arises, and the
    channels of all activations. Each group of layers runs alone. Without samples the noise of the tensors
    decides the order.
    """
    graph, plan = result.model.proto.graph, result.plan
    index = result.model.index
    kinds = {node.node: node.op_type for node in plan.nodes} | {b.node: b.op_type for b in plan.bridges}
    nodes = [node for node in index.nodes if node.name in kinds]
    read = {node.name: _list_activations(node.input, index) for node in nodes}
    activations = list(dict.fromkeys(name for names in read.values() for name in names))
    others = [name for name, kind in index.types.items() if kind in FLOAT_CODES and name in index.makers]
    wanted = [*activations, *(node.output[0] for node in nodes), *others]
    few = result.samples[:RANKING_FEEDS]
    noise = measure_noise(result.model, result.simulation, few, wanted, result.threads)
    products = measure_costs(result.model.proto, plan, result.samples[0]).products if result.samples else {}
    total = sum(products.values())
    multiplies = {node: count / total for node, count in products.items() if total}
    ranked = _rank_groups(result)
    # What repair left in float has the figure that was its reason.
    known = [found for found in (result.sensitivity, ranked) if found is not None]
    groups = {node: own for found in known for own in found.groups for node in own.nodes}
    shares = {} if ranked is None else {n: ranked.share(own) for own in ranked.groups for n in own.nodes}
    quantized = plan.quantized_nodes | {bridge.node for bridge in plan.bridges}
    why = {skipped.name: skipped.why for skipped in plan.skipped if skipped.kind == "node"}
    placed = group_pairs(
        (use.node, placement.tensor) for placement in plan.placements for use in placement.uses
    )
    paths = module_paths(graph)
    tensors = all_tensors(result, activations)
    rows = []
    for position, node in enumerate(nodes):
        inputs = [noise[name] for name in read[node.name] if name in noise and name in index.makers]
        own = groups.get(node.name)
        rows.append(
            LayerRow(
                node=node.name,
                op_type=kinds[node.name],
                output=node.output[0],
                module=paths.get(node.name, ""),
                position=position,
                quantized=node.name in quantized,
                why="" if node.name in quantized else why.get(node.name, "its inputs are not quantized"),
                tensors=tuple(dict.fromkeys([*placed.get(node.name, ()), *read[node.name]])),
                input_db=min(inputs, default=None),
                output_db=noise.get(node.output[0]),
                alone_db=None if own is None else own.alone_db,
                noise_share=shares.get(node.name),
                rest_db=None if own is None else own.rest_db,
                multiplies=multiplies.get(node.name),
            )
        )
    is_left = any(row.alone_db is not None and not row.quantized for row in rows)
    noises = {row.tensor: math.inf if row.sqnr_db is None else row.sqnr_db for row in tensors}
    rows.sort(key=lambda row: _rank(row, noises))
    return LayerTable(
        layers=tuple(rows),
        tensors=tensors,
        graph=tuple(_graph_nodes(index, noise, placed)),
        multiplies=sum(row.multiplies or 0.0 for row in rows if row.quantized) if total else None,
        weight_bytes=_quantized_bytes(result),
        samples=len(few),
        chosen_by=result.sensitivity.samples if result.sensitivity is not None and is_left else 0,
    )


def _list_activations(names: Iterable[str], index: GraphIndex) -> list[str]:
    """Return the names of computed floats, of inputs, and of tensors of unknown type."""
    kinds = {0, *FLOAT_CODES}
    return [n for n in names if n and n not in index.constants and index.types.get(n, 0) in kinds]


def _graph_nodes(
    index: GraphIndex, noise: Mapping[str, float], quantized: Mapping[str, Sequence[str]]
) -> Iterator[GraphNode]:
    """Yield the nodes in their order, with marks where they read `quantized` tensors."""
    places = {name: at for at, node in enumerate(index.nodes) for name in node.output if name}
    for node in index.nodes:
        tensors = {places[name]: name for name in node.input if name in places}
        yield GraphNode(
            node=node.name,
            op_type=node.op_type,
            output_db=noise.get(node.output[0]) if node.output else None,
            reads=tuple(tensors),
            pairs=tuple(place for place, name in tensors.items() if name in quantized.get(node.name, ())),
        )


def _rank_groups(result: QuantizeResult) -> Sensitivity | None:
    """Return the groups of layers of the written plan with the noise of each alone; None without data.

    A remedy may have ranked them already: one that was left, as all were behind it. Its budget may have been
    too short for as many samples.
    """
    made = result.candidate
    kept = () if made is None else made.session.kept
    feeds = first_feeds(kept, RANKING_FEEDS) if kept else ()
    for trial in reversed(result.trials):
        if trial.is_kept:
            break
        if isinstance(trial.evidence, Sensitivity) and trial.evidence.samples >= len(feeds):
            return trial.evidence
    if made is None or not feeds:
        return None
    toggles = made.open_toggles(RunOptions(threads=result.threads))
    return rank_groups(toggles, feeds, made.recipe) if toggles.groups else None


def lost_values(tensors: Iterable[TensorRow]) -> dict[str, float]:
    """Return the SQNR in dB of the middle half of tensors that lose it."""
    return {
        row.tensor: row.middle_db for row in tensors if row.middle_db is not None and row.middle_db < KEPT_DB
    }


def _rank(row: LayerRow, own: Mapping[str, float]) -> tuple[float, float, int]:
    """Return what sorts the layers: their cost alone, then the noise of their tensors, then their places."""
    alone = math.inf if row.alone_db is None else row.alone_db
    return alone, min((own[name] for name in row.tensors), default=math.inf), row.position


def _quantized_bytes(result: QuantizeResult) -> float:
    """Return the share of the bytes of constants that is quantized."""
    sizes = {name: tensor_bytes(one) for name, one in result.model.constants.items()}
    total = sum(sizes.values())
    return sum(sizes.get(p.tensor, 0) for p in result.plan.weights) / total if total else 0.0


_GRADIENTS = {
    "sqnr_db": ("#d73027", "#fee08b", "#1a9850"),
    "sensitivity_db": ("#d73027", "#fee08b", "#1a9850"),
    "bits": ("#4393c3", "#f7f7f7", "#d6604d"),
}
"""Colours by figure: of the lowest value, the middle and the highest."""


def layer_figures(table: LayerTable) -> dict[str, dict[str, float]]:
    """Return the known finite figures by name and node.

    Names: sqnr_db, of the output in the running model; sensitivity_db, the SQNR of the outputs of the model
    with only the layer's group quantized; bits, of its widest quantized input, 32 in float.
    """
    bits = {row.tensor: row.bits for row in table.tensors if row.format != FLOAT}
    choices: dict[str, Callable[[LayerRow], float | None]] = {
        "sqnr_db": lambda row: row.output_db,
        "sensitivity_db": lambda row: row.alone_db,
        "bits": lambda row: (
            max((bits[t] for t in row.tensors if t in bits), default=32) if row.quantized else 32
        ),
    }
    found: dict[str, dict[str, float]] = {}
    for name, choose in choices.items():
        known = {row.node: choose(row) for row in table.layers}
        finite = {node: v for node, v in known.items() if v is not None and math.isfinite(v)}
        if finite:
            found[name] = finite
    return found


def node_data(table: LayerTable) -> dict[str, str]:
    """Return the node data of Model Explorer as JSON, by figure.

    A node is known by its output tensor. Source: `GraphNodeData` in node_data_builder.py of
    google-ai-edge/model-explorer: `results` with a value by key, and the stops of a gradient.
    """
    outputs = {row.node: row.output for row in table.layers}
    return {
        name: json.dumps(
            {
                "results": {outputs[node]: {"value": round(value, 2)} for node, value in figures.items()},
                "gradient": [
                    {"stop": stop, "bgColor": colour}
                    for stop, colour in zip((0, 0.5, 1), _GRADIENTS[name], strict=True)
                ],
            },
            indent=2,
        )
        for name, figures in layer_figures(table).items()
    }


def write_node_data(table: LayerTable, paths: Mapping[str, Path]) -> list[Path]:
    """Write the JSON of each known figure to its path, each whole or not at all; return the written ones."""
    found = node_data(table)
    for name, text in found.items():
        write_text(paths[name], text + "\n")
    return [paths[name] for name in found]
