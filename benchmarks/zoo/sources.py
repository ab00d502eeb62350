"""`SOURCES`: the libraries and exporters that networks come from, and which networks of them are tried."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

Feeds = list[dict[str, NDArray[Any]]]
EXPORTERS = ("torchscript", "dynamo")


@dataclass(frozen=True)
class Export:
    """How a network is written: torch's exporter, the opset, and whether batch and length are open."""

    exporter: str = "dynamo"
    opset: int = 18
    opened: bool = True


@dataclass(frozen=True)
class Source:
    """One library. needs: the modules to import. module: of this folder, None where there is no list."""

    needs: tuple[str, ...]
    names: Callable[[], Sequence[str]]
    write: Callable[[str, Path, Export], Feeds]
    exporters: tuple[str, ...] = EXPORTERS

    @property
    def missing(self) -> tuple[str, ...]:
        """What is not installed."""
        return tuple(name for name in self.needs if importlib.util.find_spec(name) is None)


def split_name(network: str) -> tuple[str, str]:
    """Return (source, name) of `SOURCE:NAME`; without a source it is one of torchvision."""
    source, _, name = network.rpartition(":")
    return source or "torchvision", name


def _torch(module: str, name: str, path: Path, export: Export) -> Feeds:
    from zoo.from_torch import Network, write

    made = importlib.import_module(f"zoo.{module}").NETWORKS[name]()
    network = made if isinstance(made, Network) else Network(*made)
    return write(network, path, export.exporter, export.opset, export.opened)


def _images(library: str, name: str, path: Path, export: Export) -> Feeds:
    from zoo.from_torch import write
    from zoo.images import network

    return write(network(library, name), path, export.exporter, export.opset, export.opened)


def _other(module: str, name: str, path: Path, export: Export) -> Feeds:
    made: Feeds = importlib.import_module(f"zoo.{module}").write(name, path, export.opset, export.opened)
    return made


def _names(module: str, *needs: str) -> Callable[[], Sequence[str]]:
    return lambda: tuple(importlib.import_module(f"zoo.{module}").NETWORKS)


SOURCES: dict[str, Source] = {
    "own": Source(("torch", "onnxscript"), _names("own_layers"), lambda *given: _torch("own_layers", *given)),
    "hf": Source(("torch", "transformers"), _names("hf"), lambda *given: _torch("hf", *given)),
    "torchvision": Source(
        ("torch", "torchvision"),
        lambda: importlib.import_module("zoo.images").TORCHVISION,
        lambda *given: _images("torchvision", *given),
    ),
    "timm": Source(
        ("torch", "timm"),
        lambda: importlib.import_module("zoo.images").TIMM,
        lambda *given: _images("timm", *given),
    ),
    "keras": Source(
        ("keras", "tensorflow", "tf2onnx"),
        _names("from_keras"),
        lambda *given: _other("from_keras", *given),
        ("tf2onnx",),
    ),
    "sklearn": Source(
        ("sklearn", "skl2onnx"),
        _names("from_sklearn"),
        lambda *given: _other("from_sklearn", *given),
        ("skl2onnx",),
    ),
}
