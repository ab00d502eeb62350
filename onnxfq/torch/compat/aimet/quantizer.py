"""AIMET's document: what all quantizers have, parameters that are set or not and ranges that may be kept."""

from __future__ import annotations

import contextlib
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn

from onnxfq.errors import ArgumentError, SpecError, StatisticsError, nearest
from onnxfq.numerics.layout import Layout
from onnxfq.numerics.qtypes import QType
from onnxfq.torch.arguments import Unscripted, checked_methods
from onnxfq.torch.arithmetic import RoundingGrid, granularity_of_shape
from onnxfq.torch.compat.aimet.encoding_analyzer import StatisticsNotFoundError
from onnxfq.torch.compat.aimet.encodings import EncodingBase
from onnxfq.torch.compat.aimet.functions import fits
from onnxfq.torch.compat.aimet.tensor import DequantizedTensor, QuantizedTensorBase, plain
from onnxfq.torch.onnx_node import is_exporting
from onnxfq.torch.qat_gradients import quantize_to

EXTRA = "_extra_state"
_METHODS = ("update_stats", "reset_stats", "compute_encodings", "compute_encodings_from_stats")


@checked_methods("allow_overwrite", "is_overwrite_allowed")
class QuantizerBase(Unscripted, nn.Module):
    """Module that rounds a tensor by an encoding.

    A parameter is set once it is written in place, replaced, or loaded from a state dict. The
    first values do not count.

    Attributes:
        encoding_analyzer: turns the data of `compute_encodings` into a range.
        shape: of the range.
        block_size: elements of a block along each axis of the shape, -1 for what fits; None without blocks.
    """

    encoding_analyzer: Any
    shape: Any
    block_size: tuple[int, ...] | None
    # What a subclass has beside these: the encoding, or None while a parameter is not set; that of a batch's
    # own range; x by an encoding; the steps and the symmetry of the grid, for the analyzer.
    get_encodings: Callable[[], Any]
    _range_of: Callable[[Tensor, Tensor], EncodingBase]
    _round: Callable[[Tensor, Any], Tensor]
    _analyzed: Any
    _take: Callable[[Tensor, Tensor], None]
    # The grid as numbers under AIMET's names; its node in an exported graph; the encoding during an export.
    _grid_state: Callable[[], dict[str, Any]]
    _set_grid_state: Callable[[Mapping[str, Any]], None]
    _as_node: Callable[[Tensor, Any], Tensor]
    _frozen: Any = None
    result: type[QuantizedTensorBase] = DequantizedTensor

    def __init__(self) -> None:
        """Make a quantizer without parameters."""
        super().__init__()
        self._fresh: dict[str, tuple[weakref.ref[Tensor], int]] = {}
        self._overwrites: dict[str, bool] = {}
        self._gathers, self._passes = False, False

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute. Raises SpecError for one that a quantizer lacks, and that would do nothing."""
        kind = getattr(type(self), name, None)
        # Replicas of DataParallel hold parameters as attributes.
        free = name.startswith("_") or kind is not None or name in self.__dict__.get("_overwrites", ())
        if isinstance(kind, property) and kind.fset is None:
            raise SpecError(f"{name} of {type(self).__name__} is read only; make a new quantizer")
        if name in self.__dict__.get("_parameters", ()):
            value = self._as_parameter(name, value)
        elif name == "encoding_analyzer" and value is not None:
            self._check_analyzer(value)
        elif self.__dict__.get("_sealed") and not free and not hasattr(self, name):
            raise SpecError(f"{type(self).__name__} has no setting {name!r}{nearest(name, dir(self))}")
        super().__setattr__(name, value)

    def _as_parameter(self, name: str, value: Any) -> nn.Parameter:
        held = self._parameters[name]
        if not isinstance(value, Tensor):
            raise ArgumentError(f"{name} must be a Parameter, found {type(value).__name__}; use set_range")
        if held is not None and value.shape != held.shape:
            raise SpecError(f"{name} has shape {list(held.shape)}, found {list(value.shape)}; make a new one")
        return value if isinstance(value, nn.Parameter) else nn.Parameter(value.detach().clone())

    def register_quantization_parameter(self, name: str, param: nn.Parameter) -> None:
        """Add a parameter that counts as not set until it changes."""
        self.register_parameter(name, param)
        self._forget(name)

    def _forget(self, name: str) -> None:
        """Count a parameter as not set until it changes from now on."""
        param = self._parameters[name]
        assert param is not None
        self._fresh[name] = (weakref.ref(param), _version(param))

    def _is_set(self, name: str) -> bool:
        if name not in self._fresh:
            return True
        first, version = self._fresh[name]
        param: Any = self._parameters.get(name)
        # A replica of DataParallel has no parameter of the name.
        if param is None or (param is first() and _version(param) == version):
            return False
        del self._fresh[name]
        return True

    def is_initialized(self) -> bool:
        """Tell whether all parameters are set."""
        if torch.compiler.is_compiling():  # compiled code sees no versions; an earlier call has looked
            return not self._fresh
        return all([self._is_set(name) for name in list(self._fresh)])

    def get_encoding(self) -> Any:
        """Return what `get_encodings` returns; AIMET's earlier name."""
        return self.get_encodings()

    def forward(self, input: Tensor) -> Tensor:
        """Return the rounded input with its encoding, or without it while torch compiles or exports.

        Raises StatisticsError before a range is known, SpecError for an input that does not fit.
        """
        if isinstance(input, fx.Proxy):  # a leaf of torch.fx
            return input.tracer.create_proxy("call_module", input.tracer.path_of_module(self), (input,), {})
        if not isinstance(input, Tensor):
            raise ArgumentError(f"{type(self).__name__} takes a tensor, found {type(input).__name__}")
        x = plain(input)
        gathers = self._gathers and x.numel() and self._frozen is None
        encoding = self._gathered(x) if gathers else self._frozen or self.get_encodings()
        if encoding is None:
            if not x.numel():
                return self.result.of(x.clone(), None)
            raise StatisticsError(f"{type(self).__name__} has no range yet; run data in compute_encodings")
        if is_exporting():
            return self._as_node(x, encoding)
        y = x.clone() if self._passes else self._round(x, encoding)
        return y if torch.compiler.is_compiling() else self.result.of(y, encoding)

    def _gathered(self, x: Tensor) -> EncodingBase:
        """Add x to the statistics, and return the encoding of its own range."""
        with torch.no_grad():
            stats = self.encoding_analyzer.update_stats(x)
            ends = self.encoding_analyzer.compute_encodings_from_stats(stats, *self._analyzed)
            return self._range_of(*ends)

    @contextlib.contextmanager
    def compute_encodings(self, *, passthrough: bool = False) -> Iterator[None]:
        """Observe inputs inside the block, and set the range at its end.

        Inside, inputs are rounded by their own range; with `passthrough` they pass unchanged. Without data,
        and for what `allow_overwrite` keeps, everything stays. An exception in the block sets nothing.
        Warns of a range with NaN, infinities or numbers near the largest of its type.
        """
        if self.encoding_analyzer is None or not self.is_overwrite_allowed():
            yield
            return
        self.encoding_analyzer.reset_stats()
        before = self._gathers, self._passes
        self._gathers, self._passes = True, passthrough
        try:
            yield
        finally:
            self._gathers, self._passes = before
        try:
            low, high = self.encoding_analyzer.compute_encodings(*self._analyzed)
        except StatisticsNotFoundError:
            return
        warn_of_extremes(low, high)
        self._take(low, high)

    def allow_overwrite(self, mode: bool | None = None, **modes: bool) -> None:
        """Say whether `compute_encodings` may replace the parameters: all, or some by name.

        Raises SpecError for a name that the range lacks.
        """
        wanted = modes if mode is None else dict.fromkeys(self._overwrites, mode)
        for name in wanted:
            self.is_overwrite_allowed(name)  # raises for a name that the range lacks
        self._overwrites.update(wanted)

    def is_overwrite_allowed(self, name: str | None = None) -> bool:
        """Tell whether `compute_encodings` may replace a parameter by name, or any one."""
        if name is None:
            return any(self._overwrites.values())
        if name not in self._overwrites:
            raise SpecError(f"a {type(self).__name__} has no range {name!r}{nearest(name, self._overwrites)}")
        return self._overwrites[name]

    def freeze_encodings(self) -> None:
        """Keep the range: neither `compute_encodings` nor training changes it."""
        self.allow_overwrite(False)
        self.requires_grad_(False)

    def _check_analyzer(self, analyzer: Any) -> None:
        """Raise SpecError for an analyzer without the methods, or of another shape."""
        name = type(analyzer).__name__
        missing = [method for method in _METHODS if not callable(getattr(analyzer, method, None))]
        if missing:
            raise SpecError(f"{name} has no {missing[0]}(); derive it from EncodingAnalyzer")
        held = getattr(getattr(analyzer, "observer", None), "shape", ())
        if not fits(held, self.shape):
            raise SpecError(f"{name} {list(held)} does not fit {list(self.shape)}; give both one shape")

    def get_extra_state(self) -> Any:
        """Return what a state dict holds in addition: which parameters are set, and the grid."""
        if is_exporting():  # an exporter detaches every value of a state dict
            return torch.zeros(0)
        flags = {name: torch.tensor(self._is_set(name)) for name in self._parameters}
        grid = self._grid_state() | {"block_size": self.block_size or ()}
        return flags | {name: torch.tensor(value) for name, value in grid.items()}

    def set_extra_state(self, state: Any) -> None:
        """Take what `get_extra_state` returned; the state brings its grid."""
        if isinstance(state, Tensor):
            return
        for name in [name for name in self._parameters if name in state]:
            if bool(state[name]):
                self._fresh.pop(name, None)
            else:
                self._forget(name)
        if "block_size" in state:
            self.block_size = tuple(map(int, state["block_size"].tolist())) or None
        self._set_grid_state({name: value.tolist() for name, value in state.items()})

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Load a state as torch does. With strict=False, ranges of another shape replace the ones here."""
        if not isinstance(state_dict, Mapping):
            raise ArgumentError(f"a state dict is a mapping, found {type(state_dict).__name__}; load it")
        for name in (*self._parameters, *self._buffers):
            held, given = getattr(self, name), state_dict.get(name)
            if not strict and given is not None and given.shape != held.shape:
                held.data = torch.zeros(given.shape, dtype=held.dtype, device=held.device)
        return super().load_state_dict(state_dict, strict, assign)

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        """Load a state with or without AIMET's extra state; without it, what is there is set."""
        names = [name for name in (*self._parameters, *self._buffers) if prefix + name in state_dict]
        extra = {name: torch.tensor(True) for name in names}
        super()._load_from_state_dict({prefix + EXTRA: extra, **state_dict}, prefix, *args)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for copies and pickles: they know which parameters are set."""
        return {**self.__dict__, "_fresh": [name for name in self._parameters if not self._is_set(name)]}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        """Take the state of a copy."""
        super().__setstate__({**state, "_fresh": {}})
        for name in state["_fresh"]:
            self._forget(name)

    def check_export(self, name: str) -> None:
        """Raise StatisticsError before a range is known, SpecError for a grid that no model file has."""
        if not self.is_initialized():
            raise StatisticsError(f"quantizer {name!r}: it has no range yet; run data in compute_encodings")

    @contextlib.contextmanager
    def freeze_grid(self) -> Iterator[None]:
        """Hold the range as constants inside the block, for an export."""
        self._frozen = self.get_encodings().change(lambda value: plain(value).detach().clone())
        try:
            yield
        finally:
            del self._frozen

    def _node(self, x: Tensor, qtype: QType, scale: Tensor, zero_point: Tensor) -> Tensor:
        """Return x rounded by a node of an exported graph, with scales of the quantizer's shape."""
        granularity = granularity_of_shape(self.shape, x.shape)
        scales, zeros = (one.reshape(Layout(granularity, x.shape).scale_shape) for one in (scale, zero_point))
        return quantize_to(x, scales, zeros, RoundingGrid(qtype, granularity=granularity))


def _version(x: Tensor) -> int:
    """Return how often x was written in place; 0 for tensors of the inference mode, which do not count."""
    return 0 if x.is_inference() else int(x._version)


def warn_of_extremes(low: Tensor, high: Tensor) -> None:
    """Warn of a range that NaN, infinities or numbers near the largest of their type have made."""
    ends = torch.stack(torch.broadcast_tensors(low.detach(), high.detach()))
    if not ends.isfinite().all():
        warnings.warn("Infinite or NaN values are in the range; remove their samples", stacklevel=4)
    elif (ends.abs() >= 0.95 * torch.finfo(ends.dtype).max).any():
        warnings.warn("Extreme values are in the range; remove their samples", stacklevel=4)
