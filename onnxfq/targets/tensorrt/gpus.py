"""GPUs by name, and the number formats that each multiplies in: one table, each cell with its source.

A format has the least compute capability that NVIDIA's support matrices of TensorRT 10 and 11 give it. Builds
of TensorRT for RTX 1.7.1 for SM75, 80, 86, 89, 120 and 121 agree: a product in a format that the GPU lacks
does not build. A cell without a source is unknown. TensorRT's documentation names no GPU for MXFP8. The
support matrix of NVIDIA's Transformer Engine does: its products run on SM100 and SM103, and not on SM120.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from onnxfq.errors import DataError, nearest

MATRIX = "NVIDIA's support matrix of TensorRT 10 and 11"
BUILDS = "builds of TensorRT for RTX 1.7.1"

LEAST_CAPABILITY: dict[str, int] = {"int8": 75, "int4": 80, "float8e4m3fn": 89, "float4e2m1": 100}
"""Compute capability, ten times the number that NVIDIA prints: 89 for 8.9."""

BUILT = frozenset({75, 80, 86, 89, 120, 121})
"""Compute capabilities that TensorRT for RTX has kernels for."""

OLDEST = 75
"""Least compute capability of the support matrices of TensorRT 10 and 11."""

_NAMES = {
    37: "k80",
    52: "m60",
    60: "p100",
    61: "p4 p40 gtx10",
    70: "v100 titanv",
    72: "xavier",
    75: "t4 rtx20",
    80: "a100 a30",
    86: "a10 a10g a2 a16 a40 rtx30 rtxa2000 rtxa4000 rtxa5000 rtxa6000",
    87: "orin agxorin orinagx orinnx orinnano",
    89: "l4 l40 l40s rtx40 rtx2000ada rtx4000ada rtx5000ada rtx6000ada",
    90: "h100 h200 gh200",
    100: "b200 gb200",
    103: "b300 gb300",
    110: "thor agxthor",
    120: "rtx50 rtxpro4000 rtxpro5000 rtxpro6000",
    121: "gb10 dgxspark",
}
_ALL = {name: number for number, names in _NAMES.items() for name in names.split()}
_OLD = {name: number for name, number in _ALL.items() if number < OLDEST}
CAPABILITIES = {name: number for name, number in _ALL.items() if name not in _OLD} | {"dla": 0}
"""Compute capability of the GPUs with a name, by NVIDIA's list "CUDA GPU Compute Capability".

DLA, an accelerator next to the GPU of Orin, has none.
"""

_DIGITS = re.compile(r"\d+")
_MAKERS = re.compile(r"nvidia|geforce|tesla|jetson|\d+ ?gb|sxm\d?|pcie|[^a-z0-9.]")
_CARDS = re.compile(r"((?:rtx|gtx)\d0)[5-9]0(?:d|m|ti|super|tisuper|laptop)?")
"""Cards of one family, such as rtx4090 and rtx3080ti."""

FORMATS = {
    "int8": "int8",
    "int4 weights": "int4",
    "float8": "float8e4m3fn",
    "MXFP8": "MXFP8",
    "NVFP4": "float4e2m1",
}
"""Formats as lines name them, and their keys in the table."""

DLA = (
    "of dla the sources name int8 alone, by Q/DQ from TensorRT 11.4.1 on, on Orin; for its limits ask "
    "`trtexec --useDLACore=0`"
)


@dataclass(frozen=True)
class NamedGpu:
    """A GPU, or DLA.

    Attributes:
        name: as it was given.
        capability: 89 for 8.9; 0 for DLA.
    """

    name: str
    capability: int

    @property
    def is_dla(self) -> bool:
        """Whether it is DLA."""
        return self.capability == 0

    def __str__(self) -> str:
        """Return `l4 (SM89)`."""
        number = f"SM{self.capability}"
        return self.name if self.is_dla or self.name.upper() == number else f"{self.name} ({number})"


@dataclass(frozen=True)
class Cell:
    """Whether products of a format run on a GPU; None if no source says it.

    Attributes:
        source: who says it; what is known, where nobody says it.
    """

    runs: bool | None
    source: str


_NUMBER = re.compile(r"(?:sm_?)?(\d{1,2})\.?(\d)", re.IGNORECASE)


def read_gpu(text: str) -> NamedGpu:
    """Return the GPU of a name or of a compute capability: l4, RTX 4090, 8.9, 89, SM89 and sm_89.

    Raises DataError for other text, with the names of the same number that are near, and for GPUs that
    TensorRT 10 has no kernels for.
    """
    name = _MAKERS.sub("", text.lower())
    card = _CARDS.fullmatch(name)
    family = name if card is None else card[1]
    capability = CAPABILITIES.get(family, _OLD.get(family.removeprefix("agx")))
    if capability is not None:
        return _refuse_old(NamedGpu(name, capability))
    match = _NUMBER.fullmatch(text)
    if match is None:
        digits = _DIGITS.findall(name)
        alike = [known for known in CAPABILITIES if _DIGITS.findall(known) == digits]
        raise DataError(
            f"gpu is {text!r:.40}; give its compute capability, such as 8.9 or SM89, or a name such as t4, "
            f"a10g, l40s, h100, rtx4090 or orin{nearest(name, alike) if alike else ''}"
        )
    return _refuse_old(NamedGpu(f"SM{match[1]}{match[2]}", int(match[1] + match[2])))


def _refuse_old(gpu: NamedGpu) -> NamedGpu:
    if gpu.is_dla or gpu.capability >= OLDEST:
        return gpu
    raise DataError(
        f"gpu {gpu} is older than SM{OLDEST}, where {MATRIX} begins; quantize for another runtime, such as "
        "--recipe onnxruntime-int8"
    )


def find_cell(key: str, gpu: NamedGpu) -> Cell:
    """Return whether products of the format `key`, a value of `FORMATS`, run on `gpu`."""
    if gpu.is_dla:
        known = key == "int8"
        return Cell(True if known else None, "TensorRT 11.4.1" if known else "no source says it of DLA")
    if key == "MXFP8":
        return _find_mxfp8(gpu)
    least = LEAST_CAPABILITY[key]
    source = f"{MATRIX}, and {BUILDS}" if gpu.capability in BUILT else MATRIX
    return Cell(gpu.capability >= least, f"from SM{least} on: {source}")


def _find_mxfp8(gpu: NamedGpu) -> Cell:
    if gpu.capability in BUILT:
        return Cell(None, f"in {BUILDS} its products run in half")
    engine = ", and Transformer Engine multiplies in it there" if gpu.capability in (100, 103) else ""
    return Cell(None, f"no source says it of TensorRT{engine}")


def describe_gpus(gpus: Sequence[NamedGpu]) -> list[str]:
    """Return a line for each GPU with the formats that run there, those that do not, and those unknown."""
    lines = []
    for gpu in gpus:
        cells = {name: find_cell(key, gpu) for name, key in FORMATS.items()}
        words = [
            f"{what} {', '.join(names)}"
            for what, runs in (("runs", True), ("lacks", False), ("unknown:", None))
            if (names := [name for name, cell in cells.items() if cell.runs is runs])
        ]
        lines.append(f"{gpu}: {'; '.join(words)}")
        lines += [DLA] if gpu.is_dla else []
    return lines
