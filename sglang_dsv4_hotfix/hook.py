"""The wrapt post-import hook: judges the build that has just been imported, patches it, reports.

An exception in a post-import hook fails the import of the module, and with it the scheduler. So nothing leaves this
module but a log line, and a process that could not be patched goes on unpatched.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

from . import fixes, report, toggle
from .build import LoadedBuild, Unreadable, parameters
from .components import Signature
from .report import Outcome
from .settlement import Settlement
from .transfer import StateTransfer
from .verdict import Verdict, Word

#: wrapt before 1.15 can deadlock when the imported module starts a thread that imports.
_WRAPT_REQUIREMENT = "wrapt>=1.15,<3"

_undo: list[Callable[[], None]] = []
_reverted = False

#: What on_import has seen: activate() may be called again, and must not lead to a second wrapper or a second report.
_judged: ModuleType | None = None


def register(target: str) -> bool:
    """Registers on_import with wrapt for the module ``target``. False, and one warning, when wrapt is not usable."""
    global _reverted
    _reverted = False
    unusable = wrapt_problem()
    if unusable is not None:
        report.problem(unusable)
        return False
    import wrapt

    wrapt.register_post_import_hook(on_import, target)
    return True


def wrapt_problem() -> str | None:
    """Why wrapt cannot be used here and what to do about it; None when it can. Imports wrapt."""
    try:
        import wrapt

        found = str(wrapt.__version__)
        version = tuple(int(number) for number in found.split(".")[:2])
        if (1, 15) <= version < (3,):
            # Something else may go by that name.
            _ = wrapt.register_post_import_hook, wrapt.wrap_function_wrapper
    except Exception as error:
        return (
            f"wrapt cannot be imported ({type(error).__name__}: {error}); SGLang runs unpatched. "
            f"Run: pip install '{_WRAPT_REQUIREMENT}'"
        )
    if not (1, 15) <= version < (3,):
        return f"wrapt {found} does not fit; SGLang runs unpatched. Run: pip install '{_WRAPT_REQUIREMENT}'"
    return None


def on_import(conn: ModuleType) -> None:
    """Called by wrapt with the imported module. Never raises."""
    global _judged
    if _reverted or conn is _judged:
        return
    _judged = conn
    try:
        _put_back()  # of a module that has been imported anew; never two wrappers
        _patch(conn)
    except Exception as error:
        _put_back()
        report.problem(
            f"the hook failed ({type(error).__name__}: {error}); SGLang runs unpatched. Please report this with the "
            f"output of: sglang-dsv4-hotfix check"
        )


def revert() -> None:
    """Puts back every attribute that is still ours; what lies below somebody else's wrapper stays, as a no-op."""
    global _reverted, _judged
    _put_back()
    _reverted, _judged = True, None


def _put_back() -> None:
    while _undo:
        _undo.pop()()
    report.forget()


def _patch(conn: ModuleType) -> None:
    build = LoadedBuild(conn)
    enabled = toggle.enabled()
    verdicts = {name: fixes.judge(name, build) for name in enabled}
    outcomes = {name: Outcome(verdict, False) for name, verdict in verdicts.items()}
    others = (name for name in toggle.FIXES if name not in enabled)
    left_out = [name for name in others if fixes.judge(name, build).word is Word.NEEDED]
    for name in _patch_transfer(build, verdicts):
        # Exceptions end the transfer thread also on the builds that use the returned value.
        done = "exceptions contained" if verdicts[name].word is Word.FIXED else ""
        outcomes[name] = Outcome(verdicts[name], True, done)
    if "early_send" in verdicts and verdicts["early_send"].word is Word.NEEDED:
        off, done, undo = fixes.early_send.apply()
        _undo.append(undo)
        outcomes["early_send"] = Outcome(verdicts["early_send"], off, done)
    report.record(getattr(conn, "__file__", None), outcomes, left_out)


def _patch_transfer(build: LoadedBuild, verdicts: dict[str, Verdict]) -> list[str]:
    """Wraps the two methods for the fixes that need it. Returns the names of those fixes."""
    rewriting = ("dispatch", "stride")
    needed: list[str] = [name for name in verdicts if name in rewriting and verdicts[name].word is Word.NEEDED]
    status = verdicts.get("status")
    contain = status is not None and fixes.watches_over_calls(status, build)
    if not needed and not contain:
        return []
    try:
        settlement = fixes.status.settlement(build)
    except Unreadable:
        settlement = None
    attribute = inspect.getattr_static(build.manager, "maybe_send_extra")
    transfer = StateTransfer(
        Signature.of(build.function("maybe_send_extra")),
        lambda manager: attribute.__get__(manager, type(manager)),
        [fixes.BY_NAME[name].rewriter(build, needed) for name in needed],
        contain=contain,
        value_is_dropped=status is not None and status.word is Word.NEEDED,
        settlement=settlement,
    )
    if settlement is Settlement.BY_STATUS:
        success, failed = build.poll_values()
        for name in ("update_status", "sync_status_to_decode_endpoint"):
            names = parameters(build.function(name))
            _wrap(build.manager, name, transfer.status_reporter(names, success, failed))
    _wrap(build.manager, "send_aux", transfer.send_aux)
    _wrap(build.manager, "maybe_send_extra", transfer.maybe_send_extra)
    _undo.append(lambda: setattr(transfer, "active", False))
    return [*needed, "status"] if contain else needed


def _wrap(manager: type[Any], name: str, wrapper: Callable[..., Any]) -> None:
    """wrapt around ``manager.name``, with the way back."""
    import wrapt

    original = inspect.getattr_static(manager, name)
    inherited = name not in vars(manager)
    wrapt.wrap_function_wrapper(manager, name, wrapper)
    patched = vars(manager)[name]

    def undo() -> None:
        if vars(manager).get(name) is not patched:
            return  # somebody else's wrapper is on top now
        if inherited:
            delattr(manager, name)
        else:
            setattr(manager, name, original)

    _undo.append(undo)
