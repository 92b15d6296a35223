"""Makes DeepSeek-V4 prefill/decode disaggregation over Mooncake correct on released SGLang builds.

Switched on with ``SGLANG_DSV4_HOTFIX=1``. With the toggle unset the .pth file does not even load this one. With it set,
this one file is what every Python process of an environment loads at its start: it waits, with nothing but the import
system, until SGLang imports its Mooncake module. Importing wrapt at once would cost several times a bare start (about 9
times for wrapt 2.5), and every process of a container would pay it; a finder of a few lines in ``sys.meta_path`` costs
next to nothing. By then wrapt is also sure to be importable, which it need not be while ``.pth`` files are read.
"""

import os  # loaded by site already
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is not imported: this module loads at interpreter start
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

__version__ = "0.1.0"

#: The module that is patched once it has been imported.
TARGET = "sglang.srt.disaggregation.mooncake.conn"


class _Watcher:
    """A meta path finder that finds nothing itself: it registers the wrapt hook when TARGET is looked for."""

    waiting = True

    def find_spec(
        self, fullname: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        if fullname != TARGET or not self.waiting:
            return None
        self.waiting = False  # the search below must not come back here, even if this finder cannot be taken away
        try:
            _unwatch()
            _register_hook()
        except Exception as error:  # SGLang's import must survive whatever is broken in here
            _say_broken(error)
        # The list that the import system is going through has changed under it: this finder is gone from it, and
        # wrapt's own stands in front of where it was. So the search starts anew here, also when there is no hook.
        from importlib.util import find_spec

        return find_spec(fullname)


def activate() -> None:
    """Patches SGLang's Mooncake module once it has been imported, until then waits for it. Idempotent, never raises.

    The one entry point of all ways in: the ``.pth`` and ``.start`` files, ``sitecustomize.py`` and SGLang's plugin
    entry point. Returns at once when ``SGLANG_DSV4_HOTFIX`` is unset or empty.
    """
    try:
        value = os.environ.get("SGLANG_DSV4_HOTFIX")
        if not value:
            return
        if value != "1":  # the usual value needs no reading, and a start no further module
            from . import toggle

            if not toggle.enabled():
                return
        if TARGET in sys.modules:
            _register_hook()
        elif not _is_waiting():
            sys.meta_path.insert(0, _Watcher())
    except Exception as error:  # an interpreter's start, or SGLang's, must survive whatever is broken in here
        _say_broken(error)


def _register_hook() -> None:
    from . import hook

    hook.register(TARGET)


def _is_waiting() -> bool:
    return any(map(_is_ours, sys.meta_path))


def _unwatch() -> None:
    # Not with remove(), which asks other people's finders whether they equal ours.
    sys.meta_path[:] = [finder for finder in sys.meta_path if not _is_ours(finder)]


def _is_ours(finder: object) -> bool:
    """By name, not by class: when this module is reloaded, the finder of before stays where it is."""
    return type(finder).__module__ == __name__


def _say_broken(error: Exception) -> None:
    _say(
        f"could not be activated ({type(error).__name__}: {error}); SGLang runs unpatched. "
        "Reinstall the package, or unset SGLANG_DSV4_HOTFIX."
    )


def _say(text: str) -> None:
    """One line on stderr. Where stderr is closed, full or a dead pipe, the start goes on without it."""
    try:
        if sys.stderr is not None:
            # Not with print: what it could not write would be tried again at the end, and change the exit code.
            os.write(sys.stderr.fileno(), f"sglang_dsv4_hotfix: {text}\n".encode(errors="replace"))
    except Exception:
        pass


def deactivate() -> None:
    """The reverse of activate(): stops waiting and puts every patched attribute back. For tests and notebooks.

    An attribute that somebody else has wrapped on top of ours is left in place, and our wrapper below it passes
    every call on untouched.
    """
    _unwatch()
    hook = sys.modules.get(f"{__name__}.hook")
    if hook is not None:
        hook.revert()


def status() -> "dict[str, object]":
    """What this process knows: versions, enabled fixes and the verdict of each fix, as plain JSON data.

    ``fixes`` is empty until ``sglang.srt.disaggregation.mooncake.conn`` has been imported with the toggle on::

        {"package": "0.1.0", "sglang": {"version": "0.5.11", "conn": ".../conn.py"}, "enabled": ["dispatch", ...],
         "problem": None, "fixes": {"dispatch": {"verdict": "needed", "observation": "...", "patched": True}, ...}}
    """
    from . import report

    return report.status()
