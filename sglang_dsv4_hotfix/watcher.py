"""Waits, with nothing but the import system, until SGLang imports its Mooncake module.

Importing wrapt at interpreter start costs several times a bare start (about 9 times for wrapt 2.5), and every Python
process of a container would pay it. A finder of a few lines in ``sys.meta_path`` costs next to nothing; wrapt is
imported only in processes that really import ``sglang.srt.disaggregation.mooncake.conn``. By then wrapt is also sure
to be importable, which it need not be while ``.pth`` files are read.
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is not imported: this module loads at interpreter start
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

#: The module that is patched once it has been imported.
TARGET = "sglang.srt.disaggregation.mooncake.conn"


class _Watcher:
    """A meta path finder that finds nothing itself: it registers the wrapt hook when TARGET is looked for."""

    def find_spec(
        self, fullname: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        if fullname != TARGET:
            return None
        unwatch()
        try:
            _register_hook()
        except Exception as error:  # SGLang's import must survive whatever is broken in here
            from . import _say_broken

            _say_broken(error)
        # The list that the import system is going through has changed under it: this finder is gone from it, and
        # wrapt's own stands in front of where it was. So the search starts anew here, also when there is no hook.
        from importlib.util import find_spec

        return find_spec(fullname)


_watcher = _Watcher()


def watch() -> None:
    """Starts waiting for TARGET; patches at once if it has been imported already."""
    if TARGET in sys.modules:
        _register_hook()
    elif not any(finder is _watcher for finder in sys.meta_path):
        sys.meta_path.insert(0, _watcher)


def unwatch() -> None:
    """Stops waiting. A hook that has been registered already is not touched."""
    if any(finder is _watcher for finder in sys.meta_path):
        sys.meta_path.remove(_watcher)


def _register_hook() -> bool:
    from . import hook

    return hook.register(TARGET)
