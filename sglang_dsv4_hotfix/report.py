"""Verdicts, the one log line of a process, and status()."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from . import __version__, toggle
from .log import say
from .verdict import Verdict, Word


class Outcome(NamedTuple):
    """What became of one fix in this process."""

    verdict: Verdict
    patched: bool
    #: What was done, when that is not plain from the verdict; else empty.
    done: str = ""


#: By fix. Empty until conn.py has been imported with the toggle on.
_outcomes: dict[str, Outcome] = {}
_conn: str | None = None
_problem: str | None = None


def status() -> dict[str, object]:
    """See sglang_dsv4_hotfix.status."""
    return {
        "package": __version__,
        "sglang": {"version": sglang_version(), "conn": _conn},
        "enabled": list(toggle.enabled()),
        "problem": _problem,
        "fixes": {
            name: {
                "verdict": outcome.verdict.word.value,
                "observation": outcome.verdict.observation,
                "patched": outcome.patched,
            }
            for name, outcome in _outcomes.items()
        },
    }


def record(conn: str | None, outcomes: dict[str, Outcome], left_out: Sequence[str] = ()) -> None:
    """Keeps the outcomes for status() and says them, in one line, once."""
    global _conn, _problem
    _conn, _problem = conn, None
    _outcomes.clear()
    _outcomes.update(outcomes)
    say(_level(outcomes), "%s", summary(outcomes, left_out))


def forget() -> None:
    global _conn, _problem
    _conn = _problem = None
    _outcomes.clear()


def problem(text: str) -> None:
    """One warning for something that keeps the process unpatched, however often it is met."""
    global _problem
    if text == _problem:
        return
    _problem = text
    say(logging.WARNING, "sglang_dsv4_hotfix: %s", text)


def summary(outcomes: dict[str, Outcome], left_out: Sequence[str] = ()) -> str:
    """What the log says: versions, each fix with its verdict and what was done, and what the toggle leaves out."""
    fixes = "; ".join(f"{name}: {_sentence(outcome)}" for name, outcome in outcomes.items())
    text = f"sglang_dsv4_hotfix {__version__} on SGLang {sglang_version() or 'of unknown version'}: {fixes}"
    if left_out:
        text += f". Needed too, and not switched on: {', '.join(left_out)}"
    if nothing_left(outcomes):
        text += ". Nothing left for this package to do on this build: remove it"
    return text


def nothing_left(outcomes: dict[str, Outcome]) -> bool:
    """Whether every fix there is stands down for good on this build."""
    return outcomes.keys() == set(toggle.FIXES) and all(
        outcome.verdict.word in (Word.FIXED, Word.NOT_APPLICABLE) and not outcome.patched
        for outcome in outcomes.values()
    )


def sglang_version() -> str | None:
    """The version that the imported SGLang gives itself. For reports: nightlies and forks lie about it."""
    module = sys.modules.get("sglang.version") or sys.modules.get("sglang")
    version: Any = getattr(module, "__version__", None)
    if version is None:
        from importlib import metadata

        try:
            version = metadata.version("sglang")
        except metadata.PackageNotFoundError:
            return None
    return str(version)


def _sentence(outcome: Outcome) -> str:
    word, observation = outcome.verdict
    if word is Word.NEEDED:
        how = f" ({outcome.done})" if outcome.done else ""
        return f"needed, patched{how}" if outcome.patched else f"needed, not patched{how}"
    if word is Word.UNRECOGNISED:
        return f"unrecognised, not patched ({observation})"
    return f"{word.value}, {outcome.done}" if outcome.done else word.value


def _level(outcomes: dict[str, Outcome]) -> int:
    unsure = any(outcome.verdict.word is Word.UNRECOGNISED for outcome in outcomes.values())
    unpatched = any(outcome.verdict.word is Word.NEEDED and not outcome.patched for outcome in outcomes.values())
    return logging.WARNING if unsure or unpatched else logging.INFO
