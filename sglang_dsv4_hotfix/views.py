"""Shadows of SGLang's objects: a few attributes replaced, everything else the real object's.

Handing ``maybe_send_extra`` a view is how a fix corrects what the method reads, while the method itself, its checks
and its logs stay the build's own.
"""

from __future__ import annotations

from typing import Any


class View:
    """``real`` with the attributes in ``shown`` replaced.

    Methods reached through a view are bound to the real object, so only the code that was handed the view sees the
    replacements. Assignments go to the real object. It claims the real object's class, as ``isinstance`` and
    zero-argument ``super()`` in a build's method expect.
    """

    __slots__ = ("_real", "_shown")

    def __init__(self, real: Any, shown: dict[str, Any]) -> None:
        object.__setattr__(self, "_real", real)
        object.__setattr__(self, "_shown", shown)

    def __getattr__(self, name: str) -> Any:
        shown = self._shown
        return shown[name] if name in shown else getattr(self._real, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._real, name, value)

    def __repr__(self) -> str:
        return f"<view of {self._real!r} with other {', '.join(self._shown)}>"

    @property
    def __class__(self) -> Any:
        return type(self._real)

    @__class__.setter
    def __class__(self, value: Any) -> None:
        raise TypeError("a view has the class of what it shows")
