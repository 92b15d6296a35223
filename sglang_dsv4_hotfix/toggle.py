"""``SGLANG_DSV4_HOTFIX``: which fixes the operator asks for."""

# No "from __future__ import annotations" here, nor in __init__.py: it costs a start as much as this module does.
import os

from . import _say

VARIABLE = "SGLANG_DSV4_HOTFIX"

#: Every fix, in the order in which they look at a call.
FIXES = ("dispatch", "stride", "status", "early_send")

_OFF = frozenset({"", "0", "false", "off", "no"})
_ON = frozenset({"1", "true", "on", "yes"})

_complained_about: str | None = None


def parse(value: str | None) -> tuple[str, ...]:
    """The names of the fixes that ``value`` asks for, in the order of FIXES; empty for off.

    Raises ValueError, with the offending text, for a value that is neither a switch nor a list of fix names.
    """
    text = (value or "").strip().lower()
    if text in _OFF:
        return ()
    if text in _ON:
        return FIXES
    names = {name.strip() for name in text.split(",")}
    if not names <= set(FIXES):
        raise ValueError(", ".join(repr(name) for name in sorted(names - set(FIXES))))
    return tuple(fix for fix in FIXES if fix in names)


def enabled() -> tuple[str, ...]:
    """The fixes that the environment asks for. A value that means nothing is off, and is said so once a process."""
    global _complained_about
    value = os.environ.get(VARIABLE)
    try:
        return parse(value)
    except ValueError as unknown:
        # In a virtual environment every .pth line runs twice, and sitecustomize may come on top.
        if value != _complained_about:
            _say(
                f"{VARIABLE}={value!r} is not understood (unknown: {unknown}); the hotfix stays off. "
                f"Use 1, 0, or a comma-separated list of: {', '.join(FIXES)}."
            )
        _complained_about = value
        return ()
