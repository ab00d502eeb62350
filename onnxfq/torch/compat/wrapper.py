"""Base of modules with the interface of another library around one `FakeQuantize`."""

from __future__ import annotations

from typing import Any

from torch import nn

from onnxfq.errors import SpecError, nearest


class Wrapper(nn.Module):
    """Module whose public settings are properties, which parameters do not bypass.

    `nn.Module` registers a parameter under any name that it is assigned to. Here a property gets it. Once
    `_sealed` is set, names that the module lacks are errors.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        """Set a property or an attribute. Raises SpecError for a name without effect."""
        found = getattr(type(self), name, None)
        if isinstance(found, property):
            if found.fset is None:
                raise SpecError(
                    f"{name} of {type(self).__name__} is read only; make a new one with another {name}"
                )
            found.fset(self, value)
            return
        if self.__dict__.get("_sealed") and not name.startswith("_") and not hasattr(self, name):
            settings = [key for key in dir(type(self)) if isinstance(getattr(type(self), key), property)]
            raise SpecError(f"{type(self).__name__} has no setting {name!r}{nearest(name, settings)}")
        super().__setattr__(name, value)
