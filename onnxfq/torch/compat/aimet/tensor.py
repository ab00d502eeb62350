"""AIMET's document: tensors that carry their encoding.

| operation | its result |
|---|---|
| casts to another float type or device, contiguous, clone, detach, copies | keeps the encoding |
| views and choices of elements: reshape, transpose, split, index_select, ... | keeps a single scale |
| in place, other than views | loses the encoding |
| a product of values and a number, a quotient by one | scales the encoding, if the grid allows its sign |
| all others, and casts to integers | a plain tensor |
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from onnxfq.errors import SpecError, StatisticsError
from onnxfq.torch.compat.aimet.encodings import AffineEncoding, EncodingBase

_CASTS = "half float double char short int long cuda cpu to type type_as bfloat16"
_KEEPS = "contiguous requires_grad_ share_memory_"
_VIEWS = """__getitem__ as_strided broadcast_to chunk dsplit expand expand_as flatten flip fliplr flipud
    gather hsplit index_select kthvalue masked_select movedim moveaxis msort narrow permute repeat reshape
    reshape_as resize resize_ resize_as resize_as_ select split squeeze squeeze_ swapaxes swapdims t t_ take
    take_along_dim tensor_split tile transpose unbind unflatten unsqueeze unsqueeze_ view view_as vsplit
    as_strided_copy expand_copy narrow_copy permute_copy squeeze_copy t_copy unsqueeze_copy view_copy"""


def _functions(names: str) -> set[Callable[..., Any]]:
    """Return torch's methods and functions of these names."""
    homes = (Tensor, torch)
    return {getattr(home, name) for name in names.split() for home in homes if hasattr(home, name)}


_CAST, _KEEP, _VIEW = _functions(_CASTS), _functions(_KEEPS), _functions(_VIEWS)
_VIEW |= {Tensor.T.__get__, Tensor.mT.__get__, Tensor.H.__get__, Tensor.mH.__get__}
_COPY = _functions("clone detach")
_WHOLE = {Tensor.__deepcopy__, Tensor.__reduce_ex__, Tensor.__repr__}
_KNOWN = _CAST | _KEEP | _VIEW | _COPY | _WHOLE
_TIMES, _OVER = {torch.mul, Tensor.mul}, {torch.div, Tensor.div}
_WRITE = {Tensor.__setitem__, Tensor.data.__set__}
Made = TypeVar("Made", bound="QuantizedTensorBase")


class EncodingError(StatisticsError):
    """A tensor has no encoding."""


def plain(x: Tensor) -> Tensor:
    """Return x as a plain tensor, without an encoding."""
    return x if type(x) is Tensor or torch.compiler.is_compiling() else x.as_subclass(Tensor)


class QuantizedTensorBase(Tensor):
    """Float tensor with an encoding.

    Attributes:
        encoding: None once an operation has changed the values.
    """

    encoding: EncodingBase | None

    @classmethod
    def of(cls: type[Made], values: Tensor, encoding: EncodingBase | None) -> Made:
        """Return `values` with an encoding; the gradient passes."""
        made: Made = values.as_subclass(cls)
        made.encoding = encoding
        return made

    @staticmethod
    def __new__(cls: type[Made], *args: Any, encoding: EncodingBase | None = None, **keywords: Any) -> Made:
        """Make a tensor as torch.Tensor does. Raises SpecError for integers."""
        made: Made = super().__new__(cls, *args, **keywords)
        if not made.is_floating_point():
            raise SpecError(f"{cls.__name__} must be of a float type, found {made.dtype}; call float() first")
        made.encoding = encoding
        return made

    def quantize(self) -> QuantizedTensor:
        """Return the tensor as integers, of its float type. Raises EncodingError without an encoding."""
        return self._as(QuantizedTensor, "quantize")

    def dequantize(self) -> DequantizedTensor:
        """Return the values of the tensor. Raises EncodingError without an encoding."""
        return self._as(DequantizedTensor, "dequantize")

    def _as(self, kind: type[Made], method: str) -> Made:
        if isinstance(self, kind):
            return self
        encoding = self._known()
        return kind.of(getattr(encoding, method)(plain(self)), copy.copy(encoding))

    def quantized_repr(self) -> Tensor:
        """Return the integers in the integer type of the encoding. Raises EncodingError without one."""
        encoding: Any = self._known()
        if not hasattr(encoding, "dtype"):
            raise SpecError(f"{type(encoding).__name__} has no integers; use quantize()")
        return plain(self.quantize()).to(encoding.dtype)

    def _known(self) -> EncodingBase:
        if self.encoding is None:
            raise EncodingError("the tensor has no encoding: an operation changed it; quantize it again")
        return self.encoding

    def new_empty(self, *args: Any, **keywords: Any) -> Any:
        """Return an empty tensor of this class without an encoding, from which torch makes copies."""
        return type(self).of(plain(self).new_empty(*args, **keywords), None)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch by the table of this module."""
        kwargs, source = kwargs or {}, args[0] if args else None
        known = func in _KNOWN and isinstance(source, QuantizedTensorBase)
        if not known and not torch.compiler.is_compiling():
            with torch._C.DisableTorchFunctionSubclass():  # results are plain at once, and no views
                made = func(*args, **kwargs)
            for written in (source, kwargs.get("out")):
                if isinstance(written, QuantizedTensorBase) and (made is written or func in _WRITE):
                    written.encoding = None
            return _scale(func, args, kwargs, made)
        made = super().__torch_function__(func, types, args, kwargs)
        if torch.compiler.is_compiling() or func in _WHOLE or made is source:
            return made
        encoding = getattr(source, "encoding", None)
        if func in _CAST:
            if not made.dtype.is_floating_point:
                return plain(made)
            found = None if encoding is None else encoding.to(device=made.device)
        elif func in _COPY:
            change = torch.clone if func in (torch.clone, Tensor.clone) else torch.detach
            found = None if encoding is None else encoding.change(change)
        else:
            single = encoding is not None and encoding.granularity == "pertensor"
            found = encoding if func in _KEEP or single else None
        return tree_map(lambda x: _give(x, found), made)


def _scale(func: Any, args: Any, kwargs: Any, made: Any) -> Any:
    """Return the product of values and a number with the encoding of the values, scaled; else `made`."""
    if func not in _TIMES | _OVER or len(args) != 2 or kwargs:
        return made
    values, number = args if isinstance(args[0], Tensor) or func in _OVER else args[::-1]
    encoding: Any = getattr(values, "encoding", None)
    known = isinstance(values, DequantizedTensor) and isinstance(encoding, AffineEncoding)
    if not known or isinstance(number, Tensor) or not number:
        return made
    scale = encoding.scale * abs(number) if func in _TIMES else encoding.scale / abs(number)
    scaled = encoding.with_scale(scale, number < 0)
    return made if scaled is None else DequantizedTensor.of(made, scaled)


def _give(x: Any, encoding: EncodingBase | None) -> Any:
    if isinstance(x, QuantizedTensorBase):
        x.encoding = copy.copy(encoding)
    return x


class QuantizedTensor(QuantizedTensorBase):
    """Integers, as floats."""


class DequantizedTensor(QuantizedTensorBase):
    """Values of a grid."""
