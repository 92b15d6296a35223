"""early_send: cached-prefix KV is sent while the forward pass that writes it may still be running. Any model.

Target      the environment variable SGLANG_DISAGG_PREFILL_EARLY_SEND_CACHED_PREFIX of the prefill server
Symptom     Now and then, under overlapped scheduling, decode gets KV pages of a cached prefix as they were before the
            pass that fills them had finished.
Cause       From 0.5.15 the prefill scheduler sends a cached prefix early. From 0.5.16 it records an event to wait for
            (``_early_send_wait_event``) on the sender, which Mooncake's sender does not look at before 0.5.22.
Upstream    fixed for Mooncake in 0.5.22.
Evidence    tests/releases: the guard on every release, and that the build's own ``envs`` reads the value set here.
The change  Sets the variable to 0 unless the operator has set it. ``envs...get()`` reads the environment at each call
            (``EnvField.get`` in sglang/srt/environ.py), and conn.py is imported before the scheduler serves its first
            request, so this is early enough. The early send is an optimisation: without it the prefix goes with the
            last chunk.
Retires     when Mooncake's sender waits for the event.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from ..build import Build
from ..verdict import Verdict, Word

VARIABLE = "SGLANG_DISAGG_PREFILL_EARLY_SEND_CACHED_PREFIX"
_WAIT_EVENT = "_early_send_wait_event"


def judge(build: Build) -> Verdict:
    """The knob exists, and nothing in the modules of Mooncake's sender knows of the event."""
    if not build.knows_variable(VARIABLE):
        return Verdict(Word.NOT_APPLICABLE, f"this build has no {VARIABLE}")
    if build.sender_mentions(_WAIT_EVENT):
        return Verdict(Word.FIXED, f"Mooncake's sender knows {_WAIT_EVENT}")
    return Verdict(Word.NEEDED, f"{VARIABLE} exists and Mooncake's sender never reads {_WAIT_EVENT}")


#: What SGLang takes for off (``EnvBool.parse`` in sglang/srt/environ.py); it takes any other text for its default, on.
_OFF = ("false", "0", "no", "n")


def overruled() -> str | None:
    """The value in the environment that keeps the early send on, if somebody has set one."""
    chosen = os.environ.get(VARIABLE)
    return None if chosen is None or chosen.lower() in _OFF else chosen


def apply() -> tuple[bool, str, Callable[[], None]]:
    """Sets the variable. Returns whether the early send is off now, what was done, in words, and how to undo it."""
    chosen = os.environ.get(VARIABLE)
    if chosen is not None:
        off = overruled() is None
        return off, f"{VARIABLE}={chosen} is in the environment already and stays", lambda: None
    os.environ[VARIABLE] = "0"

    def undo() -> None:
        if os.environ.get(VARIABLE) == "0":
            del os.environ[VARIABLE]

    return True, f"has set {VARIABLE}=0", undo
