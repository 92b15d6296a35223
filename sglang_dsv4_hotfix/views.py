"""Shadows of SGLang's objects: a few attributes replaced, everything else the real object's.

Handing ``maybe_send_extra`` a view is how a fix corrects what the method reads, while the method itself, its checks
and its logs stay the build's own.
"""

from __future__ import annotations

import inspect
from types import MethodType
from typing import Any


class View:
    """``real`` with the attributes in ``shown`` replaced.

    Methods reached through a view are bound to it, so what they call in turn sees the same: a fork's own sender reads
    ``self.kv_args`` where others are handed its contents. Assignments go to the real object. A view claims the real
    object's class, as ``isinstance`` and zero-argument ``super()`` in a build's method expect.
    """

    _real: Any

    def __init__(self, real: Any, shown: dict[str, Any]) -> None:
        # What is shown is found like any attribute, without a call of __getattr__.
        self.__dict__.update(shown, _real=real)

    def __getattr__(self, name: str) -> Any:
        real = self._real
        value = getattr(real, name)
        if not callable(value):
            return value
        if getattr(value, "__self__", None) is not real or name in getattr(real, "__dict__", ()):
            return value
        if type(value) is MethodType:
            return MethodType(value.__func__, self)
        # Somebody's wrapper around a method: bound anew, it stays in place.
        return inspect.getattr_static(type(real), name).__get__(self, type(real))

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._real, name, value)

    def __repr__(self) -> str:
        return f"<view of {self._real!r} with other {', '.join(name for name in vars(self) if name != '_real')}>"

    @property
    def __class__(self) -> Any:
        return type(self._real)

    @__class__.setter
    def __class__(self, value: Any) -> None:
        raise TypeError("a view has the class of what it shows")


class CallView(View):
    """A view for one call, which keeps assignments to itself.

    What a method works out from what it is shown and puts aside on ``self``, pointers or lengths say, is wrong for
    every other call.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        self.__dict__[name] = value
