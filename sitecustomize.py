"""sglang_dsv4_hotfix for directories on PYTHONPATH, where Python does not read .pth files.

Activates the hotfix (which does nothing unless SGLANG_DSV4_HOTFIX is set), then runs the sitecustomize that this file
takes the place of, if there is one further down the path: Debian's, a profiler's, a tracer's.
"""

import os  # loaded by site already
import sys

# What tells a copy of this file from somebody else's; read from the first kilobyte.
_MARK = b"sglang_dsv4_hotfix for directories on PYTHONPATH"


def _activate() -> None:
    value = os.environ.get("SGLANG_DSV4_HOTFIX")
    if not value:
        return
    try:
        import sglang_dsv4_hotfix
    except Exception as error:
        # As toggle.py has it, which cannot be imported here.
        off = ("", "0", "false", "off", "no")
        if value.strip().lower() not in off and sys.stderr is not None:
            try:
                os.write(sys.stderr.fileno(), f"{_complaint(error)}\n".encode(errors="replace"))
            except Exception:  # stderr is closed, full or a dead pipe
                pass
    else:
        sglang_dsv4_hotfix.activate()


def _complaint(error: Exception) -> str:
    return (
        f"sglang_dsv4_hotfix: {__file__} is on the path, but the package cannot be imported ({type(error).__name__}: "
        f"{error}); SGLang runs unpatched. Put the directory that holds sglang_dsv4_hotfix/ on PYTHONPATH too."
    )


def _run_shadowed() -> None:
    """Runs the next sitecustomize that is not a copy of this file; what it raises is its own affair, as without us."""
    try:
        # importlib.machinery and importlib.util have these by public names, and make a start half as long again.
        from _frozen_importlib import module_from_spec
        from _frozen_importlib_external import PathFinder
    except ImportError:
        from importlib.machinery import PathFinder
        from importlib.util import module_from_spec

    here = os.path.realpath(os.path.dirname(__file__))
    path = [directory for directory in sys.path if isinstance(directory, str)]
    directories = [os.path.realpath(directory or os.curdir) for directory in path]
    # Only below this one: what stands above has had its turn, and has perhaps called this file itself.
    below = path[directories.index(here) + 1 :] if here in directories else []
    for directory in below:
        spec = PathFinder.find_spec("sitecustomize", [directory])
        if spec is None or spec.loader is None or _is_copy(spec.origin):
            continue
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)
        return


def _is_copy(path: "str | None") -> bool:
    try:
        with open(path or "", "rb") as file:
            return _MARK in file.read(1024)
    except OSError:
        return False


_activate()
_run_shadowed()
