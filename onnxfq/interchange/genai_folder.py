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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import onnx
from onnx.numpy_helper import to_array

from onnxfq.data import Data, Feed, InputSpec
from onnxfq.data.model_inputs import input_specs
from onnxfq.data.texts import SUFFIXES, TextTokens, read_texts
from onnxfq.errors import DataError, ModelError
from onnxfq.graph.external.sizes import SMALL
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.io.data_paths import data_files
from onnxfq.graph.io.load import read_model
from onnxfq.support.files import replace_folder, write_text
from onnxfq.support.outputs import writing
from onnxfq.support.reading import read_bytes
from onnxfq.support.records import read_json

log = logging.getLogger(__name__)

Function = TypeVar("Function", bound=Callable[..., Any])

CONFIG = "genai_config.json"

CACHE_SCALES = "kv_cache_scales.json"
"""Scales of quantized caches."""

WINDOW = 512
"""Tokens of a sample made of texts, unless the context of the model is shorter."""


@dataclass(frozen=True)
class GenaiFolder:
    """A folder that GenAI loads.

    Attributes:
        path: of the folder.
        model: path of the decoder in it.
        config: content of genai_config.json.
    """

    path: Path
    model: Path
    config: dict[str, Any]

    @classmethod
    def read(cls, path: Path) -> GenaiFolder:
        """Read the configuration. Raises ModelError for a folder that GenAI would not load."""
        place = path / CONFIG
        try:
            config = read_json(read_bytes(place).decode("utf-8"))
            name = config["model"]["decoder"]["filename"]
            inputs = dict(config["model"]["decoder"].get("inputs", {}))
        except OSError as fault:
            raise ModelError(
                f"cannot read {place}: {fault.strerror or fault}; give a folder of ONNX Runtime GenAI, or "
                "the path of a model"
            ) from None
        except (ValueError, KeyError, TypeError, RecursionError):
            raise ModelError(f"{place} names no model.decoder.filename; export the folder again") from None
        if not isinstance(name, str) or not name or Path(name).name != name:
            raise ModelError(
                f"{place}: the decoder {name!r:.80} is not a file of the folder; export it again"
            )
        if not all(isinstance(one, str) for one in inputs.values()):
            raise ModelError(f"{place}: model.decoder.inputs are not names; export the folder again")
        model = path / name
        if model.is_symlink() and not Path(os.path.realpath(model)).is_relative_to(os.path.realpath(path)):
            raise ModelError(f"{model} leads out of the folder; copy the model into it")
        if not model.is_file():
            raise ModelError(f"{place} names the decoder {name!r}, which the folder lacks; export it again")
        return cls(path, model, config)

    @property
    def window(self) -> int:
        """Tokens of a sample."""
        length = self.config["model"].get("context_length")
        return min(WINDOW, length) if isinstance(length, int) and length > 1 else WINDOW

    def feeds(self, data: Data | None) -> Data | None:
        """Return the feeds of the texts in `data`, a path of a file of texts; other data as it is.

        Raises DataError for texts that cannot be read, and for inputs that texts do not give.
        """
        if not isinstance(data, (str, Path)) or Path(data).suffix not in SUFFIXES:
            return data
        tokens = TextTokens(self.path)
        specs = input_specs(read_model(self.model, in_memory=SMALL)[0])
        windows = list(tokens.windows(read_texts(Path(data)), self.window))
        self._note_variety(Path(data), windows)
        return [self._feed(specs, window) for window in windows]

    def _note_variety(self, data: Path, windows: list[list[int]]) -> None:
        """Note texts of fewer tokens than a vector of the decoder has numbers.

        The inputs of the first layer, one for each token, then leave directions open, in which weights that
        are rounded by moments may move freely. Unseen windows of the same texts do not show it.
        """
        found = len({token for window in windows for token in window})
        width = self.config["model"]["decoder"].get("hidden_size")
        if isinstance(width, int) and found < width:
            log.warning(
                "%s has %d different tokens, fewer than the %d numbers of hidden_size: other texts may lose "
                "by weights that are rounded for these; give more texts, or --rounding nearest",
                data,
                found,
                width,
            )

    def _feed(self, specs: tuple[InputSpec, ...], tokens: list[int]) -> Feed:
        """Return the inputs that read `tokens` from an empty cache."""
        given = self.config["model"]["decoder"].get("inputs", {})
        row = np.arange(len(tokens))[None]
        known = {
            given.get("input_ids", "input_ids"): np.array([tokens]),
            given.get("attention_mask", "attention_mask"): np.ones_like(row),
            given.get("position_ids", "position_ids"): row,
        }
        return {spec.name: self._value(spec, known) for spec in specs}

    def _value(self, spec: InputSpec, known: dict[str, Any]) -> Any:
        if spec.name in known:
            return known[spec.name].astype(spec.dtype)
        head = self.config["model"]["decoder"].get("head_size")
        if spec.shape is None or len(spec.shape) != len(_CACHE) or not isinstance(head, int):
            raise DataError(
                f"texts give tokens, a mask, positions and empty caches, and no input {spec.name!r}; give "
                "the inputs as .npz"
            )
        return np.zeros((1, spec.shape[1] or 1, 0, spec.shape[3] or head), spec.dtype)

    def copy_rest(self, folder: Path) -> None:
        """Copy all files but the decoder and its data to `folder`. Raises OutputError."""
        own = {os.path.realpath(path) for path in (self.model, *data_files(self.model))}
        for source in sorted(self.path.rglob("*")):
            inside = source.relative_to(self.path)
            if os.path.realpath(source) in own or source.is_symlink() or not source.is_file():
                continue
            with writing(folder / inside):
                (folder / inside).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, folder / inside)


_CACHE = ("batch", "heads", "past", "head_size")
"""Axes of a cache of keys or values."""


@contextmanager
def open_folder(
    model: str | Path | onnx.ModelProto, data: Data | None, output: str | Path | None
) -> Iterator[tuple[str | Path | onnx.ModelProto, Data | None, str | Path | None]]:
    """Yield the model, the feeds and the path of the new model of a folder of GenAI; others as given.

    `output` is then a new folder with the other files and the scales of quantized caches too. It appears when
    the block ends.
    """
    if not _is_folder(model):
        yield model, data, output
        return
    folder = GenaiFolder.read(Path(str(model)))
    feeds = folder.feeds(data)
    if output is None:
        yield folder.model, feeds, None
        return
    with replace_folder(output) as place:
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
    def call(model: Any, data: Any, *output: Any, **options: Any) -> Any:
        if isinstance(options.get("recipe"), list) and _is_folder(model):
            raise ModelError(f"{model}: a folder of GenAI takes one recipe at a time; quantize it with each")
        with open_folder(model, data, output[0] if output else options.pop("output", None)) as given:
            named = {} if given[2] is None else {"output": given[2]}
            return function(*given[:2], **named, **options)

    return cast(Function, call)


Given = TypeVar("Given", bound="str | Path | onnx.ModelProto")


def find_decoder(model: Given) -> Given | Path:
    """Return the decoder of a folder of GenAI, others as given. Raises ModelError for another folder."""
    return GenaiFolder.read(Path(str(model))).model if _is_folder(model) else model


def _is_folder(model: object) -> bool:
    """Tell whether a model is given as a folder; unlike Path.is_dir this raises for no name."""
    return isinstance(model, (str, Path)) and os.path.isdir(model)
