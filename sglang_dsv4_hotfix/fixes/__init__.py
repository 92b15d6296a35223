"""The fixes, a page each: evidence, guard, and what is changed.

A fix is a module with ``judge(build)`` and one of

- ``rewriter(build, active)`` -> a function that rewrites the list of parts which a call shows to the build (see
  ``components``), or refuses the peer by raising Refused; ``active`` has the names of all fixes that rewrite;
- ``apply()`` -> whether it is in force, what was done, and a function that undoes it, for a fix that does not concern
  the call;

or neither (``status``), when the fix is to watch over the call.
"""

from __future__ import annotations

from ..build import Build, Unreadable
from ..verdict import Verdict, Word
from . import dispatch, early_send, status, stride

BY_NAME = {"dispatch": dispatch, "stride": stride, "status": status, "early_send": early_send}


def judge(name: str, build: Build) -> Verdict:
    """The verdict of one fix on ``build``. Whatever its guard cannot make out is ``unrecognised``; never raises."""
    try:
        verdict: Verdict = BY_NAME[name].judge(build)
        return verdict
    except Unreadable as reason:
        return Verdict(Word.UNRECOGNISED, str(reason))
    except Exception as error:
        return Verdict(Word.UNRECOGNISED, f"the guard failed with {type(error).__name__}: {error}")


def watches_over_calls(verdict: Verdict, build: Build) -> bool:
    """Whether the status fix is applied: where a failure is dropped, and where an exception ends the thread."""
    return verdict.word is Word.NEEDED or (verdict.word is Word.FIXED and status.exceptions_end_thread(build))
