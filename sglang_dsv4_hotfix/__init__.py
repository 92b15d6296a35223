"""Makes DeepSeek-V4 prefill/decode disaggregation over Mooncake correct on released SGLang builds.

Switched on with ``SGLANG_DSV4_HOTFIX=1``. With the toggle unset the .pth file does not even load this one; with it set,
every Python process of an environment reads this file at start-up, so it imports nothing at module level.
"""

__version__ = "0.1.0"


def activate() -> None:
    """Waits for SGLang's Mooncake module and patches it once it has been imported. Idempotent, never raises.

    The one entry point of all ways in: the ``.pth`` and ``.start`` files, ``sitecustomize.py`` and SGLang's plugin
    entry point. Returns at once when ``SGLANG_DSV4_HOTFIX`` is unset or empty.
    """
    try:
        import os  # loaded by site already

        value = os.environ.get("SGLANG_DSV4_HOTFIX")
        if not value:
            return
        if value != "1":  # the usual value needs no reading, and a start no further module
            from . import toggle

            if not toggle.enabled():
                return
        from . import watcher

        watcher.watch()
    except Exception as error:  # an interpreter's start, or SGLang's, must survive whatever is broken in here
        _say_broken(error)


def _say_broken(error: Exception) -> None:
    _say(
        f"could not be activated ({type(error).__name__}: {error}); SGLang runs unpatched. "
        "Reinstall the package, or unset SGLANG_DSV4_HOTFIX."
    )


def _say(text: str) -> None:
    """One line on stderr. Where stderr is closed, full or a dead pipe, the start goes on without it."""
    import os
    import sys

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
    import sys

    from . import watcher

    watcher.unwatch()
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
