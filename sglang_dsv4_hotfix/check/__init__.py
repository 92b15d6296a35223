"""``sglang-dsv4-hotfix check``: is this SGLang affected, and will the hotfix do anything about it?

Reads files only: neither SGLang nor torch nor a GPU library is imported. The verdicts come from the guards that run in
a live process, see ``ondisk``.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .. import __version__, fixes, report, toggle
from ..ondisk import OnDiskBuild
from ..report import Outcome
from ..verdict import Verdict, Word
from . import hazards, locate
from .findings import Obstacle, Way
from .locate import Installation
from .ways import Interpreter

#: Exit codes.
FINE, NOT_ACTIVE, UNKNOWN = 0, 1, 2

_PACKAGE = Path(__file__).resolve().parent.parent


def main(argv: Sequence[str]) -> int:
    """Prints the report; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="sglang-dsv4-hotfix check",
        description="Judge an SGLang installation without importing it.",
        epilog="Exit codes: 0 nothing to do, or the hotfix will do it; 1 affected and not active; 2 can't tell.",
    )
    parser.add_argument("--sglang", metavar="PATH", help="another SGLang than the one that this Python would import")
    parser.add_argument("--pid", type=int, metavar="N", help="a running process: does it have the hotfix?")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args(argv)
    if arguments.pid is not None:
        from . import process

        return process.main(arguments.pid, arguments.json)
    found = check(arguments.sglang)
    if arguments.json:
        print(json.dumps(found.data(), indent=2))
    else:
        from . import text

        print(text.render(found))
    return found.exit_code


@dataclass(frozen=True)
class Fix:
    """One fix on the build that was judged."""

    verdict: Verdict
    #: Whether the fix would change anything on this build.
    to_do: bool
    #: Whether the toggle asks for it.
    enabled: bool


@dataclass(frozen=True)
class Report:
    installation: Installation | None
    not_found: str
    toggle: str | None
    enabled: tuple[str, ...]
    ways: list[Way]
    obstacles: list[Obstacle]
    fixes: dict[str, Fix] = field(default_factory=dict)
    hazards: list[dict[str, str]] = field(default_factory=list)

    @property
    def active(self) -> bool:
        """Whether the hotfix will act in a process that is started like this one."""
        blocked = any(obstacle.blocks for obstacle in self.obstacles)
        return bool(self.enabled) and any(way.works for way in self.ways) and not blocked

    @property
    def undone(self) -> list[str]:
        """The fixes with something to do that will not do it."""
        return [name for name, fix in self.fixes.items() if fix.to_do and not (fix.enabled and self.active)]

    @property
    def unrecognised(self) -> list[str]:
        return [name for name, fix in self.fixes.items() if fix.verdict.word is Word.UNRECOGNISED]

    @property
    def exit_code(self) -> int:
        if not self.fixes or self.unrecognised:
            return UNKNOWN
        return NOT_ACTIVE if self.undone else FINE

    def conclusion(self) -> str:
        """The last line of the text, in plain words: affected or not, active or not, what to do."""
        if not self.fixes:
            return f"Can't tell: {self.not_found}."
        if self.unrecognised:
            return (
                f"Can't tell: {', '.join(self.unrecognised)} not recognised on this build, and left alone by the "
                "hotfix. Please report this output, with the build's conn.py."
            )
        outcomes = {name: Outcome(fix.verdict, fix.to_do) for name, fix in self.fixes.items()}
        if report.nothing_left(outcomes):
            return "Not affected: nothing left for this package to do on this build: remove it."
        return f"{self._affected()} {self._what_to_do()}"

    def data(self) -> dict[str, Any]:
        installation = self.installation
        return {
            "package": __version__,
            "sglang": {
                "version": installation.version if installation else None,
                "metadata_version": installation.metadata if installation else None,
                "path": str(installation.package) if installation else None,
                "conn": str(installation.conn) if installation else None,
                "has_model": installation.has_model if installation else None,
            },
            "toggle": {"value": self.toggle, "enabled": list(self.enabled)},
            "ways": [way._asdict() for way in self.ways],
            "active": self.active,
            "fixes": {
                name: {
                    "verdict": fix.verdict.word.value,
                    "observation": fix.verdict.observation,
                    "to_do": fix.to_do,
                }
                for name, fix in self.fixes.items()
            },
            "obstacles": [obstacle._asdict() for obstacle in self.obstacles],
            "hazards": self.hazards,
            "conclusion": self.conclusion(),
            "exit_code": self.exit_code,
        }

    def _affected(self) -> str:
        to_do = [name for name, fix in self.fixes.items() if fix.to_do]
        needed = [name for name in to_do if self.fixes[name].verdict.word is Word.NEEDED]
        if needed:
            return f"Affected ({', '.join(needed)})."
        return "State arrives rightly on this build, but an exception while it is sent still ends the transfer thread."

    def _what_to_do(self) -> str:
        if not self.undone:
            if any(obstacle.name == "plugin-only" for obstacle in self.obstacles):
                return "The hotfix is active where SGLang loads plugins, and there alone: see the obstacle above."
            return "The hotfix is active and mends it in every process that is started like this one."
        if not self.enabled:
            action = f"Set {toggle.VARIABLE}=1 in the environment of the prefill and decode servers and restart them."
            others = (obstacle for obstacle in self.obstacles if obstacle.name != "toggle-unknown")
            if any(obstacle.blocks for obstacle in others) or not any(way.works for way in self.ways):
                action = f"Remove the obstacles above. {action}"
            return f"The hotfix is not active. {action}"
        if not self.active:
            return f"The hotfix is switched on and will not act: remove the obstacles above ({self._blocking()})."
        if self.undone == ["early_send"] and _overruled("early_send"):
            setting = f"SGLANG_DISAGG_PREFILL_EARLY_SEND_CACHED_PREFIX={fixes.early_send.overruled()}"
            return f"The hotfix is active, but {setting} overrules early_send: unset it and restart the servers."
        return (
            f"The hotfix is active, but {toggle.VARIABLE}={self.toggle} leaves out {', '.join(self.undone)}: "
            f"set it to 1 and restart the servers."
        )

    def _blocking(self) -> str:
        names = [obstacle.name for obstacle in self.obstacles if obstacle.blocks]
        return ", ".join(names or [obstacle.name for obstacle in self.obstacles])


def check(path: str | None) -> Report:
    """Judges the SGLang at ``path``, or the one that this Python would import."""
    installation, not_found = None, ""
    try:
        installation = locate.find(path)
    except locate.NotFound as reason:
        not_found = str(reason)
    interpreter = Interpreter(_PACKAGE, installation.has_plugins if installation else None)
    value = os.environ.get(toggle.VARIABLE)
    try:
        enabled = toggle.parse(value)
    except ValueError:
        enabled = ()  # an obstacle says so
    obstacles = list(interpreter.obstacles())
    if installation is None:
        return Report(None, not_found, value, enabled, interpreter.ways, obstacles)
    build = OnDiskBuild(installation.package)
    verdicts = {name: fixes.judge(name, build) for name in toggle.FIXES}
    return Report(
        installation,
        not_found,
        value,
        enabled,
        interpreter.ways,
        [*obstacles, *locate.obstacles(installation)],
        {
            name: Fix(verdict, _to_do(name, verdict, build), name in enabled and not _overruled(name))
            for name, verdict in verdicts.items()
        },
        hazards.look(installation.package, build),
    )


def _overruled(name: str) -> bool:
    return name == "early_send" and fixes.early_send.overruled() is not None


def _to_do(name: str, verdict: Verdict, build: OnDiskBuild) -> bool:
    if name == "status":
        return fixes.watches_over_calls(verdict, build)
    return verdict.word is Word.NEEDED
