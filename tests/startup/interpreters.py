"""The real interpreters on this machine, and how their processes are run: with nothing but what a test names."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

#: The operating system's own Python (Debian's and Ubuntu's have a sitecustomize) and every release that we support.
NAMES = ("system", "3.10", "3.11", "3.12", "3.13")

_SYSTEM = "/usr/bin/python3"


@dataclass(frozen=True)
class Ended:
    """A process that has ended, as seen from outside."""

    code: int
    out: str
    err: str

    @property
    def ours(self) -> list[str]:
        """What we said on stderr, line by line."""
        return [line for line in self.err.splitlines() if "sglang_dsv4_hotfix" in line]


def run(
    command: Sequence[str | Path],
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout: float = 120,
) -> Ended:
    """Runs a command with the variables of ``env`` and no others, in ``cwd`` (default: the root directory)."""
    done = subprocess.run(
        [str(part) for part in command],
        env=dict(env or {}),
        cwd=cwd or "/",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    return Ended(done.returncode, done.stdout, done.stderr)


@functools.cache
def find(name: str) -> str | None:
    """The path of an interpreter of NAMES; None when this machine has none, or one that cannot be used."""
    if name == "system":
        shipped = list(Path("/usr/lib").glob("python3*/sitecustomize.py"))
        return _path(_SYSTEM, None) if shipped else None
    versions = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    candidates = [sys.executable, shutil.which(f"python{name}"), *sorted(versions.glob(f"{name}.*/bin/python"))]
    return next((found for candidate in candidates if candidate and (found := _path(candidate, name))), None)


def mine() -> str:
    """The name of the interpreter that runs the tests. Where one version is enough, it is this one."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def _path(candidate: str | Path, version: str | None) -> str | None:
    """The interpreter behind ``candidate``: a pyenv shim may stand for none, and a virtual environment for its base."""
    tell = "import sys; print(sys._base_executable, '%d.%d' % sys.version_info[:2])"
    try:
        done = run([candidate, "-c", tell], env=os.environ)
    except OSError:
        return None
    if done.code != 0:
        return None
    path, found = done.out.split()
    return path if version in (None, found) and tuple(map(int, found.split("."))) >= (3, 10) else None
