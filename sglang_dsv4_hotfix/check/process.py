"""``check --pid N``: what /proc tells of a running process.

That is not everything, and the report says what it is not.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import toggle
from . import FINE, NOT_ACTIVE, UNKNOWN

_PROC = Path("/proc")

#: Extension modules that tell what a process has imported, by a part of their path.
_LIBRARIES = {"wrapt": "/wrapt/", "mooncake": "/mooncake/", "sgl_kernel": "/sgl_kernel/", "torch": "/torch/"}

#: Interpreter options that keep .pth files, sitecustomize or PYTHONPATH from being read.
_FLAGS = "SIEs"

_OWN_FILE = re.compile(r"/sglang_dsv4_hotfix/(\w+/)?\w+\.pyc?$")

_CANNOT_KNOW = (
    "the environment is the one that the process was started with; what it has changed since is not in /proc",
    "modules in pure Python, this package and conn.py among them, leave no mapping and no open file behind",
)


class Unseen(Exception):
    """The process cannot be looked at. The message says why."""


@dataclass(frozen=True)
class Process:
    pid: int
    command: list[str]
    executable: str
    #: The environment it was started with; None when the process has overwritten it.
    environment: dict[str, str] | None
    #: The nearest ancestor that still has its environment, when the process has none.
    ancestor: int | None
    #: By name, the first mapped file of each of _LIBRARIES.
    libraries: dict[str, str]
    #: Open or mapped files of this package. Usually none, see _CANNOT_KNOW.
    files: list[str]
    #: Where its stdout and stderr go.
    output: list[str]

    @property
    def toggle(self) -> str | None:
        return (self.environment or {}).get(toggle.VARIABLE)

    @property
    def enabled(self) -> tuple[str, ...]:
        try:
            return toggle.parse(self.toggle)
        except ValueError:
            return ()

    @property
    def flags(self) -> list[str]:
        """The interpreter options of _FLAGS. Empty also for a process that has rewritten its command line."""
        found: list[str] = []
        arguments = iter(self.command[1:])
        for argument in arguments:
            if not argument.startswith("-") or argument.startswith("--"):
                break
            found += [f"-{letter}" for letter in argument[1:] if letter in _FLAGS]
            if argument[-1] in "mc":
                break
            if argument in ("-W", "-X"):
                next(arguments, None)
        return found

    @property
    def exit_code(self) -> int:
        return self._verdict()[0]

    def conclusion(self) -> str:
        return self._verdict()[1]

    def _verdict(self) -> tuple[int, str]:
        if "python" not in os.path.basename(self.executable):
            return UNKNOWN, f"Can't tell: {self.executable} is no Python. Look at the scheduler processes of SGLang."
        if self.environment is None:
            return UNKNOWN, (
                "Can't tell: the process has written its title over its environment, and what started it is no Python "
                "that still has its own. Look in its log for the line of sglang_dsv4_hotfix."
            )
        if not self.enabled:
            return NOT_ACTIVE, (
                f"This process runs without the hotfix: {self._toggle_in_words()} where it was started. "
                f"If it is a server of SGLang's, set {toggle.VARIABLE}=1 there and restart it."
            )
        if "mooncake" in self.libraries and "wrapt" not in self.libraries:
            return NOT_ACTIVE, (
                "The toggle is on, Mooncake's engine is loaded and wrapt's extension is not: the hotfix has not acted "
                "in this process. Run sglang-dsv4-hotfix check with its Python and its environment."
            )
        if "wrapt" not in self.libraries:
            return UNKNOWN, (
                "Can't tell: the toggle is on, and neither wrapt nor Mooncake's engine is loaded. This process has not "
                "imported conn.py, or not yet; look at the scheduler processes."
            )
        if "-S" in self.flags:
            return UNKNOWN, (
                "Can't tell: the toggle is on and wrapt is loaded, but this Python was started with -S, which reads "
                "neither .pth files nor sitecustomize. Look in its log for the line of sglang_dsv4_hotfix."
            )
        if "mooncake" not in self.libraries:
            return UNKNOWN, (
                "Can't tell yet: the toggle is on and wrapt is loaded, which the hotfix does when SGLang imports "
                "conn.py; Mooncake's engine, which a server starts next, is not. Look again when it serves."
            )
        return FINE, (
            "The toggle is on, wrapt and Mooncake's engine are loaded: by all that can be seen from outside, the "
            f"hotfix is in{self._partly()}. The proof is the line of sglang_dsv4_hotfix in its log, at INFO."
        )

    def _partly(self) -> str:
        return "" if self.enabled == toggle.FIXES else f", and only {', '.join(self.enabled)} of it"

    def toggle_row(self) -> str:
        """The toggle and where it was seen, in words."""
        if self.environment is None:
            return "not known"
        where = "" if self.ancestor is None else f" (from process {self.ancestor})"
        return f"{'on' if self.enabled else 'off'}: {self._toggle_in_words()}{where}"

    def _toggle_in_words(self) -> str:
        if self.toggle is None:
            return f"{toggle.VARIABLE} was not set"
        try:
            toggle.parse(self.toggle)
        except ValueError:
            return f"{toggle.VARIABLE} was {self.toggle!r} (not understood)"
        return f"{toggle.VARIABLE} was {self.toggle!r}"

    def cannot_know(self) -> list[str]:
        """What this report cannot say, in words."""
        limits = list(_CANNOT_KNOW)
        if self.ancestor is not None:
            limits.append(
                f"this process has a title of its own, which takes the place of its environment; the one shown is that "
                f"of process {self.ancestor}, which it comes from"
            )
        if "wrapt" in self.libraries:
            limits.append("wrapt may have been loaded by another package as well")
        else:
            limits.append("wrapt without its C extension (a build for PyPy, WRAPT_DISABLE_EXTENSIONS) is not seen")
        return limits

    def data(self) -> dict[str, Any]:
        return {
            "pid": self.pid,
            "command": self.command,
            "executable": self.executable,
            "flags": self.flags,
            "toggle": None
            if self.environment is None
            else {"value": self.toggle, "enabled": list(self.enabled), "from_pid": self.ancestor or self.pid},
            "libraries": self.libraries,
            "files": self.files,
            "output": self.output,
            "cannot_know": self.cannot_know(),
            "conclusion": self.conclusion(),
            "exit_code": self.exit_code,
        }


def main(pid: int, as_json: bool) -> int:
    """Prints what is known of the process; returns the exit code."""
    try:
        process = look(pid)
    except Unseen as reason:
        if as_json:
            print(json.dumps({"pid": pid, "problem": str(reason), "exit_code": UNKNOWN}))
        else:
            print(f"sglang-dsv4-hotfix: {reason}", file=sys.stderr)
        return UNKNOWN
    if as_json:
        print(json.dumps(process.data(), indent=2))
    else:
        from .text import paragraph, table

        lines = [*table(list(_rows(process))), "", *paragraph(f"Verdict: {process.conclusion()}")]
        print("\n".join(lines))
    return process.exit_code


def look(pid: int) -> Process:
    """Reads /proc. Raises Unseen."""
    directory = _PROC / str(pid)
    try:
        command = _strings((directory / "cmdline").read_bytes())
        if _state(pid) == "Z":
            raise Unseen(f"process {pid} has ended and waits for its parent to notice")
        environment, ancestor = _environment(pid)
        mapped = {fields[5] for line in (directory / "maps").open() if len(fields := line.rstrip().split(None, 5)) > 5}
        opened = [_target(entry) for entry in sorted((directory / "fd").iterdir(), key=lambda entry: int(entry.name))]
        executable = os.readlink(directory / "exe")
    except (FileNotFoundError, ProcessLookupError) as error:
        raise Unseen(f"there is no process {pid} here, or it has just ended") from error
    except PermissionError as error:
        raise Unseen(f"process {pid} belongs to somebody else: run this as the same user, or as root") from error
    libraries = {
        name: min(files)
        for name, part in _LIBRARIES.items()
        if (files := [path for path in mapped if part in path and ".so" in path])
    }
    files = sorted({path for path in [*mapped, *opened] if _OWN_FILE.search(path)})
    output = list(dict.fromkeys(opened[1:3]))
    return Process(pid, command, executable, environment, ancestor, libraries, files, output)


def _environment(pid: int) -> tuple[dict[str, str] | None, int | None]:
    """The environment of the process, or of the nearest ancestor that has one and the same Python, and that ancestor.

    SGLang's schedulers set a process title (setproctitle), which is written over the environment. What starts them is
    a Python of SGLang's too, and hands on its environment; of other ancestors, a shell, that is not certain.
    """
    executable = os.readlink(_PROC / str(pid) / "exe")
    ancestor = pid
    while ancestor > 0:
        try:
            if os.readlink(_PROC / str(ancestor) / "exe") != executable:
                break
            entries = _strings((_PROC / str(ancestor) / "environ").read_bytes())
        except OSError:
            if ancestor == pid:
                raise
            break  # somebody else's, or gone: of this process there is still something to say
        pairs = dict(entry.split("=", 1) for entry in entries if "=" in entry)
        if pairs:
            return pairs, None if ancestor == pid else ancestor
        ancestor = _parent(ancestor)
    return None, None


def _rows(process: Process) -> Iterator[tuple[str, str]]:
    yield "Process", f"{process.pid}: {' '.join(process.command)[:200]}"
    yield "Python", " ".join([process.executable, *process.flags])
    yield "Toggle", process.toggle_row()
    for name in _LIBRARIES:
        yield name, process.libraries.get(name, "not loaded")
    if process.files:
        yield "Package files", "\n".join(process.files)
    yield "Output", "\n".join(process.output)
    yield "Not known", "\n".join(process.cannot_know())


def _strings(data: bytes) -> list[str]:
    return [part.decode(errors="surrogateescape") for part in data.split(b"\0") if part.strip()]


def _state(pid: int) -> str:
    return _stat(pid)[0]


def _parent(pid: int) -> int:
    return int(_stat(pid)[1])


def _stat(pid: int) -> list[str]:
    """The fields of /proc/N/stat that follow the command, which may hold anything."""
    return (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()


def _target(link: Path) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return "closed meanwhile"
