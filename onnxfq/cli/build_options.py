"""Options of the GPU, and of the runtime that a model is built or timed in."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from onnxfq.cli.console import Printer
from onnxfq.cli.option import BUILDING, flag, option, refuse
from onnxfq.cli.option_groups import OptionGroup

if TYPE_CHECKING:
    from onnxfq.targets.target import BuildOptions

GpuOption = Annotated[
    list[str] | None,
    option(
        "NAME|SM",
        "Keep to the formats of this GPU, such as l4, orin, rtx50, dla or SM89 (repeatable: of all of "
        "them). A recipe that does not run there is refused.",
        kind="gpus",
    ),
]
TimeOption = Annotated[
    bool,
    flag(
        "Also time the models in turn on one sample, in the runtime of their target.",
        "--time",
        panel=BUILDING,
    ),
]

_VALUES = re.compile(r"[^:]+=-?\d{1,18}(x-?\d{1,18})*", re.ASCII)
"""Values of a shape input: NAME=1x-1x64."""

_BUILD = flag(
    "Also open the model in the target's runtime and count what runs in low precision: TensorRT "
    "for RTX (extra tensorrt; no GPU needed), OpenVINO (extra openvino), QNN (package "
    "onnxruntime-qnn) or ONNX Runtime.",
    "--build",
    panel=BUILDING,
)
_SHAPE = option(
    "NAME:1x3x224x224",
    "Build for this shape of an input with open dimensions; 1-8 is a range, NAME=2x3 the values "
    "of a shape input (repeatable).",
    panel=BUILDING,
)


@dataclass(frozen=True)
class Build:
    """Whether to build the model, and the shapes to build it for."""

    build: Annotated[bool, _BUILD] = False
    shape: Annotated[list[str] | None, _SHAPE] = None

    @property
    def options(self) -> BuildOptions | None:
        """The options of the build; None without one."""
        from onnxfq.targets.target import BuildOptions

        values = [text for text in self.shape or () if _VALUES.fullmatch(text)]
        shapes = [text for text in self.shape or () if text not in values]
        numbers = {
            text.rpartition("=")[0]: [int(n) for n in text.rpartition("=")[2].split("x")] for text in values
        }
        return BuildOptions(read_shapes(shapes, ranges=True), values=numbers) if self.build else None

    def check(self) -> None:
        """Raise BadParameter for shapes that nothing is built for."""
        refuse(self.shape and not self.build, "--shape needs --build; add it")


BuildChoice = Annotated[Build, OptionGroup(Build)]


def note_gpus(gpus: Sequence[str] | None, printer: Printer) -> None:
    """Print a line for each GPU with the formats that run there."""
    from onnxfq.targets.target import DEFAULT_TARGET, target_by_name

    hardware = target_by_name(DEFAULT_TARGET).hardware
    for line in [] if not gpus or hardware is None else hardware.describe(gpus):
        printer.note(f"gpu        {line}")


def read_shapes(texts: Sequence[str] | None, ranges: bool = False) -> dict[str, tuple[Any, ...]]:
    """Return shape by input name of `NAME:1x3x224x224`, also joined by commas; a name may hold colons.

    With `ranges` a size may be two, `1-8`.
    """
    shapes: dict[str, tuple[Any, ...]] = {}
    size = r"\d{1,9}(-\d{1,9})?" if ranges else r"\d{1,9}"
    for text in (one for given in texts or () for one in re.split(r"(?<=\d),", given)):
        name, _, sizes = text.rpartition(":")
        refuse(
            not name or not all(re.fullmatch(size, one, re.ASCII) for one in sizes.split("x")),
            f"a shape is NAME:1x3x224x224, got {text!r:.80}",
        )
        shapes[name] = tuple(_read_size(one) for one in sizes.split("x"))
    return shapes


def _read_size(text: str) -> int | tuple[int, int]:
    low, dash, high = text.partition("-")
    refuse(dash and int(low) > int(high), f"a range of sizes begins with the smaller one, got {text!r}")
    return (int(low), int(high)) if dash else int(low)
