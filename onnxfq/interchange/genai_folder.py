"""Folders of ONNX Runtime GenAI: a decoder, its configuration and its tokenizer.

Source: genai_config.json as onnxruntime-genai 0.18 writes it, with `model.context_length`, and in
`model.decoder` the names of the file, the inputs and the outputs.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import shutil
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import onnx
from onnx.numpy_helper import to_array

from onnxfq.data import Data, DataOptions, DrawnInputs, Feed, InputSpec
from onnxfq.data.model_inputs import input_specs
from onnxfq.data.texts import SUFFIXES, TextTokens, read_texts
from onnxfq.documents.recipe import Recipe
from onnxfq.errors import DataError, ModelError, PlanError, RecipeError
from onnxfq.graph.external.sizes import SMALL
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.io.data_paths import data_files
from onnxfq.graph.io.load import read_model
from onnxfq.graph.node_fields import attributes_of
from onnxfq.graph.patterns.fed_back import naming_states
from onnxfq.interchange.genai_parts import SECTIONS, FolderGraph, feed_part, join_parts
from onnxfq.support.files import replace_folder, write_text
from onnxfq.support.other_words import HUGGING_FACE
from onnxfq.support.outputs import writing
from onnxfq.support.reading import is_inside
from onnxfq.support.readings import reading
from onnxfq.support.records import FileName, ForeignRecord, Size, read_document

log = logging.getLogger(__name__)

Function = TypeVar("Function", bound=Callable[..., Any])

CONFIG = "genai_config.json"

HUB_CONFIG = "config.json"
"""File of a checkpoint of transformers."""

CACHE_SCALES = "kv_cache_scales.json"
"""Scales of quantized caches."""

_MOST_LAYERS = 1 << 12
"""Layers of a decoder whose caches are looked for."""

WINDOW = 512
"""Tokens of a sample made of texts, unless the context of the model is shorter."""


class _GraphFile(ForeignRecord):
    filename: FileName = ""
    inputs: dict[str, str] = {}
    outputs: dict[str, str] = {}


class _Decoder(_GraphFile):
    filename: FileName
    num_hidden_layers: Size | None = None
    head_size: Size | None = None
    hidden_size: Size | None = None


class _Model(ForeignRecord):
    decoder: _Decoder
    encoder: _GraphFile | None = None
    embedding: _GraphFile | None = None
    speech: _GraphFile | None = None
    vision: _GraphFile | None = None
    context_length: Size | None = None


class _GenaiConfig(ForeignRecord):
    model: _Model


@dataclass(frozen=True)
class GenaiFolder:
    """A folder that GenAI loads.

    Attributes:
        path: of the folder.
        model: path of the decoder in it.
        config: what genai_config.json says of it.
    """

    path: Path
    model: Path
    config: _Model

    @classmethod
    def read(cls, path: Path) -> GenaiFolder:
        """Read the configuration. Raises ModelError for a folder that GenAI would not load."""
        if not (path / CONFIG).exists():
            of_hub = (path / HUB_CONFIG).exists()
            remedy = f": {HUGGING_FACE.format(path)}" if of_hub else ", or the path of a model"
            raise ModelError(f"cannot read {path / CONFIG}; give a folder of ONNX Runtime GenAI{remedy}")
        config = read_document(cls._inside(path, CONFIG), _GenaiConfig, ModelError).model
        model = cls._inside(path, config.decoder.filename)
        if not model.is_file():
            raise ModelError(
                f"{path / CONFIG} names the decoder {model.name!r}, which is missing; export again"
            )
        return cls(path, model, config)

    @staticmethod
    def _inside(folder: Path, name: str) -> Path:
        if not is_inside(folder / name, folder):
            raise ModelError(f"{folder / name} leads out of the folder; copy the file into it")
        return folder / name

    @cached_property
    def parts(self) -> list[FolderGraph]:
        """The graphs in the order in which they run, the decoder last."""
        graphs = [graph for name in SECTIONS if (graph := getattr(self.config, name)) and graph.filename]
        return [FolderGraph(self._inside(self.path, one.filename), one.inputs, one.outputs) for one in graphs]

    def states(self) -> dict[str, str]:
        """Return the outputs that GenAI hands on to the next token, with the input that takes each.

        The configuration has pairs of names such as `past_key_names` and `present_key_names`, in which %d
        stands for the layer.
        """
        decoder = self.config.decoder
        pairs = [
            (decoder.outputs[kind], past)
            for name, past in decoder.inputs.items()
            if (kind := name.replace("past", "present")) in decoder.outputs and kind != name
        ]
        layers = map(str, range(min(decoder.num_hidden_layers or 1, _MOST_LAYERS)))
        return {
            present.replace("%d", layer): past.replace("%d", layer)
            for layer in layers
            for present, past in pairs
        }

    @property
    def window(self) -> int:
        """Tokens of a sample."""
        length = self.config.context_length or 1
        return min(WINDOW, length) if length > 1 else WINDOW

    @property
    def unit(self) -> Path | onnx.ModelProto:
        """All graphs as one model; the path of the decoder where there is no other."""
        return self.model if len(self.parts) < 2 else join_parts(self.parts)

    def feeds(self, data: Data | None, limit: int | None = None, whole: bool = False) -> Data | None:
        """Return the feeds of the texts in `data`, a path of a file of texts; other data as it is.

        For several graphs the data has the inputs that none of them gives; those in front of the decoder run.

        Args:
            data: as a command takes it.
            limit: number of samples after which no text is read.
            whole: give the inputs of `unit`.

        Raises DataError for texts that cannot be read, and for inputs that texts do not give.
        """
        if len(self.parts) > 1:
            return self.feeds_of(-1, data, whole)
        if not isinstance(data, (str, Path)) or Path(data).suffix not in SUFFIXES:
            return data
        proto = read_model(self.model, in_memory=SMALL)[0]
        specs, rings = input_specs(proto), _find_rings(proto)
        windows = islice(TextTokens(self.path).windows(read_texts(Path(data)), self.window), limit)
        tokens = array("q", chain.from_iterable(windows))
        self._note_variety(Path(data), len({*tokens}))
        return _TextFeeds(tokens, self.window, lambda part: self._feed(specs, rings, part))

    def feeds_of(self, at: int, data: Data | None, whole: bool = False) -> Data | None:
        """Return the feeds of `parts[at]`, or of the whole `unit`; None and drawn inputs as they are.

        Raises DataError for texts.
        """
        if data is None or isinstance(data, DrawnInputs):
            return data
        if isinstance(data, (str, Path)) and Path(data).suffix in SUFFIXES:
            path, read = self.parts[0].path, ", ".join(one.name for one in self.parts[0].specs)
            remedy = "give the inputs of all graphs as .npz, or as feeds"
            raise DataError(f"{data} has texts, and {path.name} reads {read}; {remedy}")
        given = self.config.decoder.inputs
        tokens = given.get("input_ids", given.get("inputs_embeds", "input_ids"))
        follow = {given.get(key, key) for key in ("attention_mask", "position_ids")}

        def fill(spec: InputSpec, feed: Feed) -> Any:
            length = np.shape(feed[tokens])[1]
            return self._feed((spec,), {}, range(length))[spec.name]

        filled = follow | {*self.states().values()}
        return lambda: feed_part(self.parts, at, data, fill, filled, whole)

    def change_parts(self, change: Callable[..., Any], data: Data | None, target: Path) -> None:
        """Write what `change` makes of the graphs in front of the decoder to a folder, or name what stays."""
        for at, part in enumerate(self.parts[:-1]):
            feeds, name = self.feeds_of(at, data), part.path.name
            try:
                made = change(part.path, feeds, output=target / name)
                log.warning(f"{name} too: {', '.join(map(str, made.plan.coverage()))}")
            except (ModelError, PlanError, RecipeError) as fault:
                files = [part.path, *data_files(part.path)]
                for file in files:
                    shutil.copyfile(file, target / file.name)
                size = sum(file.stat().st_size for file in files)
                why = str(fault).removeprefix(f"{part.path}: ")
                log.warning(f"{name} stays in float, {size:,} bytes: {why}")

    def _note_variety(self, data: Path, found: int) -> None:
        """Note texts of fewer tokens than a vector of the decoder has numbers.

        The inputs of the first layer, one for each token, then leave directions open, in which weights that
        are rounded by moments may move freely. Unseen windows of the same texts do not show it.
        """
        width = self.config.decoder.hidden_size
        if width is not None and found < width:
            log.warning(
                f"{data} has {found} different tokens, fewer than the {width} numbers of hidden_size: other "
                "texts may lose by weights that are rounded for these; give more texts, or --rounding "
                "nearest"
            )

    def _feed(self, specs: tuple[InputSpec, ...], rings: Mapping[str, int], tokens: Sequence[int]) -> Feed:
        """Return the inputs that read `tokens` from an empty cache."""
        given = self.config.decoder.inputs
        row = np.arange(len(tokens))[None]
        known = {
            given.get("input_ids", "input_ids"): np.array([tokens]),
            given.get("attention_mask", "attention_mask"): np.ones_like(row),
            given.get("position_ids", "position_ids"): row,
        }
        return {spec.name: self._value(spec, known, rings.get(spec.name, 0)) for spec in specs}

    def _value(self, spec: InputSpec, known: dict[str, Any], places: int) -> Any:
        if spec.name in known:
            return known[spec.name].astype(spec.dtype)
        head = self.config.decoder.head_size
        if spec.shape is None or len(spec.shape) != len(_CACHE) or head is None:
            raise DataError(
                f"texts give tokens, a mask, positions and empty caches, and no input {spec.name!r}; give "
                "the inputs as .npz"
            )
        shape = (1, spec.shape[1] or 1, places, spec.shape[3] or head)
        try:
            return np.zeros(shape, spec.dtype)
        except ValueError as fault:
            raise DataError(
                f"input {spec.name!r} cannot have shape {list(shape)} ({fault}); repair it"
            ) from None

    def copy_rest(self, folder: Path) -> None:
        """Copy all files but the graphs and their data to `folder`; note what is left. Raises OutputError."""
        graphs = [part.path for part in self.parts]
        own = {os.path.realpath(path) for one in graphs for path in (one, *data_files(one))}
        left: list[str] = []
        for source in sorted(self.path.rglob("*")):
            inside = source.relative_to(self.path)
            if os.path.realpath(source) in own or (source.is_dir() and not source.is_symlink()):
                continue
            if not source.is_file() or not is_inside(source, self.path):
                left.append(str(inside))
                continue
            if source.suffix == ".onnx":
                size = source.stat().st_size
                log.warning(f"{inside} is copied as it is, {size:,} bytes: {CONFIG} names no such graph")
            with writing(folder / inside):
                (folder / inside).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, folder / inside)
        if left:
            told = (
                f"the new folder lacks {', '.join(left)}: links that lead out of {self.path}, and what is no "
                "file, are not copied"
            )
            log.warning("%s", told, extra=reading(str(self.path), left=told))


class _TextFeeds(Sequence[Feed]):
    """Feeds of equal parts of tokens, the last perhaps shorter, each made when it is asked for."""

    def __init__(self, tokens: array[int], length: int, make: Callable[[Sequence[int]], Feed]) -> None:
        self._tokens, self._length, self._make = tokens, length, make

    def __len__(self) -> int:
        return -(-len(self._tokens) // self._length)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return [self[one] for one in range(*place.indices(len(self)))]
        if not -len(self) <= place < len(self):
            raise IndexError(place)
        first = place % len(self) * self._length
        return self._make(self._tokens[first : first + self._length])


def _find_rings(proto: onnx.ModelProto) -> dict[str, int]:
    """Return the places of each cache that is a ring: its attention takes none of fewer than its window."""
    found = [
        (node, attributes_of(node)) for node in proto.graph.node if node.op_type == "GroupQueryAttention"
    ]
    rings = [
        (node, int(given["local_window_size"])) for node, given in found if given.get("sliding_window_cache")
    ]
    return {name: places for node, places in rings for name in node.input[3:5]}


_CACHE = ("batch", "heads", "past", "head_size")
"""Axes of a cache of keys or values."""


@contextmanager
def open_folder(
    model: str | Path | onnx.ModelProto,
    data: Data | None,
    output: str | Path | None,
    limit: int | None = None,
    whole: bool = False,
) -> Iterator[tuple[str | Path | onnx.ModelProto, Data | None, str | Path | None]]:
    """Yield the model, the feeds and the path of the new model of a folder of GenAI; others as given.

    `output` is then a new folder with the other files and the scales of quantized caches too. It appears when
    the block ends. The model is the decoder, or, to be read as a `whole`, all graphs as one.
    """
    if not is_folder(model):
        yield model, data, output
        return
    folder = GenaiFolder.read(Path(str(model)))
    feeds = folder.feeds(data, limit, whole)
    if output is None:
        with naming_states(folder.states()):
            yield folder.unit if whole else folder.model, feeds, None
        return
    with replace_folder(output) as place, naming_states(folder.states()):
        folder.copy_rest(place)
        yield folder.model, feeds, place / folder.model.name
        write_cache_scales(place / folder.model.name)


def write_cache_scales(model: Path) -> None:
    """Write the scales of the quantized caches of the decoder `model` to a file for GenAI's builder.

    By layer in the order of the graph, `k_scales` and `v_scales` hold a number, or one for each channel of
    each head. Raises OutputError.
    """
    if not model.is_file():
        return
    index = GraphIndex.of_model(read_model(model, in_memory=SMALL)[0])
    layers = [node for node in index.nodes if node.op_type == "GroupQueryAttention"]
    given = [[to_array(index.constants[name]) for name in node.input[12:14]] for node in layers]
    if not any(given):
        return
    keys, values = (
        [one.item() if one.size == 1 else one.ravel().tolist() for one in part]
        for part in zip(*given, strict=True)
    )
    content = {"scales": {"k_scales": keys, "v_scales": values}, "layer_ids": list(range(len(layers)))}
    write_text(model.parent / CACHE_SCALES, json.dumps(content))


def open_folders(function: Function) -> Function:
    """Return a function of a model, data and perhaps an output that takes a folder too, see `open_folder`."""

    @functools.wraps(function)
    def call(model: Any, data: Any = None, *output: Any, **options: Any) -> Any:
        if isinstance(options.get("recipe"), list) and is_folder(model):
            raise ModelError(f"{model}: a folder of GenAI takes one recipe at a time; quantize it with each")
        limit = getattr(options.get("options"), "data", DataOptions()).limit
        with open_folder(model, data, output[0] if output else options.pop("output", None), limit) as given:
            named = {} if given[2] is None else {"output": given[2]}
            if given[2] is not None and is_folder(model):
                rest = {name: value for name, value in options.items() if name != "sources"}
                if isinstance(recipe := options.get("recipe"), Recipe):
                    rest["recipe"] = recipe.override(cache=None)  # only the decoder has one
                each = functools.partial(function, **rest)
                GenaiFolder.read(Path(model)).change_parts(each, data, Path(given[2]).parent)
            return function(*given[:2], **named, **options)

    return cast(Function, call)


Given = TypeVar("Given", bound="str | Path | onnx.ModelProto")


def find_decoder(model: Given, whole: bool = False) -> Given | Path | onnx.ModelProto:
    """Return the decoder of a folder of GenAI, or the `whole` as one model; others as given.

    Raises ModelError for another folder.
    """
    if not is_folder(model):
        return model
    folder = GenaiFolder.read(Path(str(model)))
    return folder.unit if whole else folder.model


def is_folder(model: object) -> bool:
    """Tell whether a model is given as a folder; unlike Path.is_dir this raises for no name."""
    return isinstance(model, (str, Path)) and os.path.isdir(model)
